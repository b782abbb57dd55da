package network

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"multihost/internal/gcp"
	"multihost/internal/provision"
)

// A machineList has the machines of all zones, and what makes machines.
type machineList struct {
	vms       []*computepb.Instance
	groups    []*computepb.InstanceGroupManager
	templates []*computepb.InstanceTemplate
}

// users returns the machines of Compute Engine and the TPUs that use the network or are about to.
// Delete needs them, because the API refuses to delete a network in use, but not its rules.
// Without the rules, the workers of a running job cannot reach each other.
func (c *calls) users(ctx context.Context, name string) ([]string, error) {
	machines, err := c.machines(ctx)
	if err != nil {
		return nil, err
	}
	return c.usersAmong(ctx, machines, name)
}

// usersAmong does what users does, for a caller that has the machines already.
func (c *calls) usersAmong(ctx context.Context, machines machineList, name string) ([]string, error) {
	tpus, err := c.tpuUsers(ctx, name)
	if err != nil {
		return nil, err
	}
	all := append(machines.on(name, c.gcp.Clock().Now()), tpus...)
	slices.Sort(all)
	return slices.Compact(all), nil
}

// on returns the machines on the network, also stopped VMs. It also returns what may make
// machines on it: groups, and templates so new that a group may still be made from them.
func (m machineList) on(network string, now time.Time) []string {
	var users []string
	for _, vm := range m.vms {
		if hasNIC(vm.GetNetworkInterfaces(), network) {
			users = append(users, fmt.Sprintf("VM %s (%s)", vm.GetName(), gcp.BaseName(vm.GetZone())))
		}
	}
	onIt := map[string]bool{}
	for _, t := range m.templates {
		if !hasNIC(t.GetProperties().GetNetworkInterfaces(), network) {
			continue
		}
		onIt[pathBelowProject(t.GetSelfLink())] = true
		made, err := time.Parse(time.RFC3339, t.GetCreationTimestamp())
		if err == nil && now.Sub(made) < provision.MakingTime {
			users = append(users, "instance template "+t.GetName())
		}
	}
	for _, g := range m.groups {
		makes := func(template string) bool { return template != "" && onIt[pathBelowProject(template)] }
		if g.GetTargetSize() > 0 && (makes(g.GetInstanceTemplate()) || slices.ContainsFunc(g.GetVersions(), func(v *computepb.InstanceGroupManagerVersion) bool { return makes(v.GetInstanceTemplate()) })) {
			users = append(users, fmt.Sprintf("instance group %s (%s)", g.GetName(), gcp.BaseName(g.GetZone()+g.GetRegion())))
		}
	}
	return users
}

func hasNIC(all []*computepb.NetworkInterface, network string) bool {
	return slices.ContainsFunc(all, func(nic *computepb.NetworkInterface) bool {
		name := nic.GetNetwork()
		return gcp.BaseName(name) == network || name == "" && nic.GetSubnetwork() == "" && network == "default"
	})
}

// pathBelowProject returns the part of an address after its project:
// "regions/R/instanceTemplates/T". A template has several addresses, but one such path.
func pathBelowProject(address string) string {
	if _, rest, ok := strings.Cut(address, "projects/"); ok {
		_, address, _ = strings.Cut(rest, "/")
	}
	return address
}

// machines reads the machines of all zones. Every refusal is an error, because the network may
// then be in use.
func (c *calls) machines(ctx context.Context) (all machineList, err error) {
	api, err := c.clients(ctx)
	if err != nil {
		return all, err
	}
	project := c.gcp.Project()
	read := func(what string, call func(context.Context) error) {
		if err == nil {
			err = c.gcp.Do(ctx, what, call)
		}
	}
	read("list VMs", func(ctx context.Context) error {
		all.vms = nil
		for p, err := range api.instances.AggregatedList(ctx, &computepb.AggregatedListInstancesRequest{Project: project}, gcp.NoRetry()).All() {
			if err != nil {
				return err
			}
			all.vms = append(all.vms, p.Value.GetInstances()...)
		}
		return nil
	})
	read("list instance groups", func(ctx context.Context) error {
		all.groups = nil
		for p, err := range api.groups.AggregatedList(ctx, &computepb.AggregatedListInstanceGroupManagersRequest{Project: project}, gcp.NoRetry()).All() {
			if err != nil {
				return err
			}
			all.groups = append(all.groups, p.Value.GetInstanceGroupManagers()...)
		}
		return nil
	})
	read("list instance templates", func(ctx context.Context) error {
		all.templates = nil
		for p, err := range api.templates.AggregatedList(ctx, &computepb.AggregatedListInstanceTemplatesRequest{Project: project}, gcp.NoRetry()).All() {
			if err != nil {
				return err
			}
			all.templates = append(all.templates, p.Value.GetInstanceTemplates()...)
		}
		return nil
	})
	if err != nil {
		return machineList{}, fmt.Errorf("find out which machines use the network: %w", err)
	}
	return all, nil
}
