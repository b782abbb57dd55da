package gke

import (
	"encoding/base64"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	container "google.golang.org/api/container/v1beta1"
	"google.golang.org/protobuf/proto"

	"multihost/internal/provision"
	"multihost/internal/tpu"
)

const (
	defaultPool = "default-pool"
	maxCPUNodes = 1000
	// podsPerNode is XPK's number. A node of a slice has one pod of a workload, but GKE
	// reserves addresses for each possible pod.
	podsPerNode = 15
	draLabel    = "cloud.google.com/gke-networking-dra-driver"
)

// scopes returns the OAuth scopes of nodes: more and GKE's defaults.
func scopes(more ...string) (all []string) {
	for _, s := range append(more, "devstorage.read_only", "logging.write", "monitoring", "service.management.readonly", "servicecontrol", "trace.append") {
		all = append(all, "https://www.googleapis.com/auth/"+s)
	}
	return all
}

// clusterBody returns the cluster of o, without slices. o must have its defaults, and
// version must not be empty.
func clusterBody(o Options, zone, version string) *container.Cluster {
	labels := provision.OwnerLabels("", o.User)
	channel := "RAPID"
	if o.Version != "" {
		channel = "REGULAR"
	}
	return &container.Cluster{
		Name: o.Name, InitialClusterVersion: version, ReleaseChannel: &container.ReleaseChannel{Channel: channel},
		Locations: []string{zone}, Network: o.Network, Subnetwork: o.Subnetwork,
		IpAllocationPolicy:          &container.IPAllocationPolicy{UseIpAliases: true, ForceSendFields: []string{"CreateSubnetwork"}},
		NetworkConfig:               &container.NetworkConfig{DatapathProvider: "ADVANCED_DATAPATH", EnableMultiNetworking: true},
		ControlPlaneEndpointsConfig: &container.ControlPlaneEndpointsConfig{DnsEndpointConfig: &container.DNSEndpointConfig{AllowExternalTraffic: true}},
		Autoscaling:                 &container.ClusterAutoscaling{AutoscalingProfile: "OPTIMIZE_UTILIZATION"},
		ResourceLabels:              labels,
		NodePools: []*container.NodePool{{
			Name: defaultPool, InitialNodeCount: int64(o.CPUNodes),
			Autoscaling:     &container.NodePoolAutoscaling{Enabled: true, LocationPolicy: "BALANCED", TotalMinNodeCount: 1, TotalMaxNodeCount: maxCPUNodes},
			Config:          &container.NodeConfig{MachineType: o.CPUMachine, OauthScopes: scopes("devstorage.full_control"), ResourceLabels: labels},
			Management:      management(true, o),
			UpgradeSettings: &container.UpgradeSettings{MaxSurge: 1},
		}},
	}
}

// management says how GKE repairs and upgrades nodes. With a version from the user, it does not
// upgrade nodes.
func management(repair bool, o Options) *container.NodeManagement {
	m := &container.NodeManagement{AutoRepair: repair, AutoUpgrade: o.Version == ""}
	if !m.AutoRepair {
		m.ForceSendFields = append(m.ForceSendFields, "AutoRepair")
	}
	if !m.AutoUpgrade {
		m.ForceSendFields = append(m.ForceSendFields, "AutoUpgrade")
	}
	return m
}

// byPolicy reports whether a workload policy, and not the node pool, sets the topology of a
// type's slices.
func byPolicy(t tpu.Type, n tpu.Nodes) bool { return n.Count > 1 && t.Generation.Name == "tpu7x" }

// policyName returns XPK's name for the workload policy of a type.
func policyName(t tpu.Type) string {
	return strings.NewReplacer(":", "-").Replace(t.Generation.Family+"-"+number(t)) + "-" + t.Topology + "-placement-policy"
}

// number returns the number in the accelerator type of t, or t.Topology if no type of the
// generation has that topology.
func number(t tpu.Type) string {
	for _, same := range tpu.Types() {
		if same.Generation.Name == t.Generation.Name && same.Topology == t.Topology {
			_, n, _ := strings.Cut(same.Name, "-")
			return n
		}
	}
	return t.Topology
}

func policyBody(t tpu.Type) *computepb.ResourcePolicy {
	return &computepb.ResourcePolicy{
		Name:           proto.String(policyName(t)),
		WorkloadPolicy: &computepb.ResourcePolicyWorkloadPolicy{Type: proto.String("HIGH_THROUGHPUT"), AcceleratorTopology: proto.String(t.Topology)},
	}
}

// poolBody returns the node pool of one slice. o must have its defaults. version is the
// cluster's.
func poolBody(o Options, n tpu.Nodes, name, zone, version string) *container.NodePool {
	p := &container.NodePool{
		Name: name, Locations: []string{zone}, InitialNodeCount: int64(n.Count), Version: version,
		Config: &container.NodeConfig{
			MachineType: n.Machine.Name, Spot: o.Tier == provision.Spot, Gvnic: &container.VirtualNIC{Enabled: true},
			HostMaintenancePolicy: &container.HostMaintenancePolicy{MaintenanceInterval: o.Maintenance},
			OauthScopes:           scopes("cloud-platform", "devstorage.full_control"),
			ResourceLabels:        provision.OwnerLabels("", o.User),
		},
		Management:      management(true, o),
		UpgradeSettings: &container.UpgradeSettings{MaxSurge: 1},
	}
	if n.Count > 1 {
		p.MaxPodsConstraint = &container.MaxPodsConstraint{MaxPodsPerNode: podsPerNode}
		p.PlacementPolicy = &container.PlacementPolicy{Type: "COMPACT", TpuTopology: n.Topology}
	}
	if byPolicy(o.Type, n) {
		p.PlacementPolicy = &container.PlacementPolicy{PolicyName: policyName(o.Type)}
	}
	if o.Type.Generation.Name == "v6e" {
		p.NetworkConfig = &container.NodeNetworkConfig{AcceleratorNetworkProfile: "auto"}
		p.Config.Labels = map[string]string{draLabel: "true"}
	}
	switch o.Tier {
	case provision.Reserved:
		p.Config.ReservationAffinity = &container.ReservationAffinity{
			ConsumeReservationType: "SPECIFIC_RESERVATION", Key: "compute.googleapis.com/reservation-name", Values: []string{o.Reservation},
		}
	case provision.FlexStart:
		p.Config.FlexStart = true
		p.Config.ReservationAffinity = &container.ReservationAffinity{ConsumeReservationType: "NO_RESERVATION"}
		p.Autoscaling = &container.NodePoolAutoscaling{Enabled: true, LocationPolicy: "ANY", MaxNodeCount: int64(n.Count)}
		p.InitialNodeCount, p.ForceSendFields = 0, []string{"InitialNodeCount"}
		p.Management = management(false, o)
	}
	return p
}

func decodeCA(text string) ([]byte, error) { return base64.StdEncoding.DecodeString(text) }
