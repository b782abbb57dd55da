package gce

import "multihost/internal/provision"

// Permissions implements provision.Permitted.
func (p *Provider) Permissions() []provision.Permission {
	var all []provision.Permission
	for _, use := range []struct {
		text     string
		required bool
		names    []string
	}{
		{"every command", true, []string{
			"compute.instanceGroupManagers.list", "compute.instanceGroupManagers.get", "compute.instanceTemplates.list", "compute.instances.list",
		}},
		{"the order of the workers, and their host keys", true, []string{"compute.instances.getGuestAttributes"}},
		{"putting the SSH key into slices", true, []string{"compute.instances.get", "compute.instances.setMetadata", "compute.zoneOperations.get"}},
		{"slices create and job", false, []string{
			"compute.machineTypes.get", "compute.resourcePolicies.create", "compute.resourcePolicies.get", "compute.resourcePolicies.use",
			"compute.instanceTemplates.create", "compute.instanceTemplates.get", "compute.instanceTemplates.useReadOnly", "compute.instanceGroupManagers.create",
			"compute.instances.create", "compute.disks.create", "compute.subnetworks.use", "compute.subnetworks.useExternalIp",
			"compute.regionOperations.get", "compute.zoneOperations.get", "iam.serviceAccounts.actAs",
		}},
		{"slices delete, gc and job", false, []string{
			"compute.instanceGroupManagers.delete", "compute.instances.delete", "compute.instanceTemplates.delete", "compute.resourcePolicies.delete",
			"compute.resourcePolicies.list",
		}},
		{"rebooting slices whose workers do not answer", false, []string{"compute.instances.reset"}},
		{"the serial consoles of VMs that do not answer", false, []string{"compute.instances.getSerialPortOutput"}},
	} {
		for _, name := range use.names {
			all = append(all, provision.Permission{Name: name, Use: use.text, Required: use.required})
		}
	}
	return all
}
