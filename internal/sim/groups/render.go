package groups

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"multihost/internal/sim/cloud"
)

const maintenanceTime = 4 * time.Hour

// Message returns g in the form of the API.
func Message(c *cloud.Cloud, g *cloud.Group) *computepb.InstanceGroupManager {
	s := Of(c)
	m := proto.CloneOf(g.Msg)
	actions, statuses := map[string]int32{}, map[string]int32{}
	stable := !g.Growing && !g.Deleting
	for _, p := range g.Places {
		actions[camel(p.Action)]++
		stable = stable && p.Action == "NONE"
		if p.Instance == nil {
			statuses["nonExistent"]++
		} else {
			statuses[camel(p.Instance.Msg.GetStatus())]++
		}
	}
	m.CurrentActions = new(computepb.InstanceGroupManagerActionsSummary)
	count(m.CurrentActions, actions)
	m.Status = &computepb.InstanceGroupManagerStatus{
		IsStable: &stable, CurrentInstanceStatuses: new(computepb.InstanceGroupManagerStatusInstanceStatusSummary),
		VersionTarget: &computepb.InstanceGroupManagerStatusVersionTarget{IsReached: proto.Bool(true)},
		Stateful:      &computepb.InstanceGroupManagerStatusStateful{HasStatefulConfig: proto.Bool(false)},
	}
	count(m.Status.CurrentInstanceStatuses, statuses)
	if Bulk(g) {
		m.Status.BulkInstanceOperation = &computepb.InstanceGroupManagerStatusBulkInstanceOperation{InProgress: proto.Bool(g.Growing)}
		if g.Growing && !g.Checked.IsZero() {
			m.Status.BulkInstanceOperation.LastProgressCheck = &computepb.InstanceGroupManagerStatusBulkInstanceOperationLastProgressCheck{
				Timestamp: proto.String(cloud.Stamp(g.Checked)), Error: g.Check,
			}
		}
	}
	if state := Topology(c, g); state != "" {
		policy := s.State.Policies[s.Networks().URLToName(g.Msg.GetResourcePolicies().GetWorkloadPolicy())]
		t := &computepb.InstanceGroupManagerStatusAcceleratorTopology{
			AcceleratorTopology: proto.String(policy.GetWorkloadPolicy().GetAcceleratorTopology()), State: &state,
		}
		if g.Why != nil {
			t.StateDetails = &computepb.InstanceGroupManagerStatusAcceleratorTopologyAcceleratorTopologyStateDetails{Error: g.Why, Timestamp: proto.String(s.Timestamp())}
		}
		m.Status.AppliedAcceleratorTopologies = append(m.Status.AppliedAcceleratorTopologies, t)
	}
	return m
}

// Topology returns the state of g's topology, or "" if it has none. A fault may replace
// this state.
func Topology(c *cloud.Cloud, g *cloud.Group) string {
	if a := Of(c).faults().find("group-topology", g); a != nil && g.Topology != "" && !g.Deleting {
		return a.State
	}
	return g.Topology
}

// camel turns a word of an enumeration into the name of a field: PENDING_STOP becomes
// pendingStop.
func camel(word string) string {
	first, rest, _ := strings.Cut(strings.ToLower(word), "_")
	if rest == "" {
		return first
	}
	return first + strings.ToUpper(rest[:1]) + rest[1:]
}

// count sets all fields of a message of numbers. A field that is not in counts becomes 0.
func count(m proto.Message, counts map[string]int32) {
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		r.Set(f, protoreflect.ValueOfInt32(counts[f.JSONName()]))
	}
}

// Managed returns what g says about one of its VMs.
func Managed(c *cloud.Cloud, g *cloud.Group, p *cloud.Place) *computepb.ManagedInstance {
	s := Of(c)
	m := &computepb.ManagedInstance{
		Name: proto.String(p.Name), Instance: proto.String(s.Networks().Link(s.instancePath(g, p))), CurrentAction: proto.String(p.Action),
		Version: &computepb.ManagedInstanceVersion{InstanceTemplate: g.Msg.InstanceTemplate}, TargetStatus: proto.String("RUNNING"),
	}
	if p.Action == "DELETING" {
		m.TargetStatus = proto.String("DELETED")
	}
	if p.Failure != nil {
		m.LastAttempt = &computepb.ManagedInstanceLastAttempt{Errors: &computepb.ManagedInstanceLastAttemptErrors{Errors: []*computepb.Errors{p.Failure}}}
	}
	if i := p.Instance; i != nil {
		m.Id, m.InstanceStatus = i.Msg.Id, i.Msg.Status
		if end := i.Msg.GetResourceStatus().GetScheduling().GetTerminationTimestamp(); end != "" {
			m.Scheduling = &computepb.ManagedInstanceScheduling{TerminationTimestamp: &end}
		}
	}
	return m
}

// addInstance adds the VM of a place to the state.
func (s Groups) addInstance(g *cloud.Group, p *cloud.Place, status string) {
	props := proto.CloneOf(g.Properties)
	zone := "zones/" + g.Zone
	path := s.instancePath(g, p)
	link := func(collection, id string) *string {
		return proto.String(s.Networks().Link(s.Networks().ComputePath(zone, collection, id)))
	}
	id := uint64(cloud.NewID())
	i := &cloud.Instance{Id: p.Name, Zone: g.Zone, Group: g, Number: p.Number}
	i.Msg = &computepb.Instance{
		Kind: proto.String("compute#instance"), Id: &id, Name: proto.String(p.Name), SelfLink: proto.String(s.Networks().Link(path)),
		Zone: proto.String(s.Networks().Link("projects/" + s.Config.Project + "/" + zone)), Status: &status, CreationTimestamp: proto.String(s.Timestamp()),
		MachineType: link("machineTypes", props.GetMachineType()), CpuPlatform: proto.String("Unknown CPU Platform"), DeletionProtection: proto.Bool(false),
		CanIpForward: props.CanIpForward, Description: props.Description, Labels: props.Labels, LabelFingerprint: Fingerprint(id, 0), Scheduling: props.Scheduling,
		ServiceAccounts: props.ServiceAccounts, ReservationAffinity: props.ReservationAffinity, ShieldedInstanceConfig: props.ShieldedInstanceConfig,
		Tags: &computepb.Tags{Items: props.GetTags().GetItems(), Fingerprint: Fingerprint(id, 0)}, StartRestricted: proto.Bool(false),
		ResourceStatus: &computepb.ResourceStatus{PhysicalHostTopology: &computepb.ResourceStatusPhysicalHostTopology{
			Cluster: proto.String("sim-cluster"), Block: proto.String("sim-block"), Subblock: proto.String(fmt.Sprintf("%x", g.Msg.GetId())), Host: proto.String(fmt.Sprintf("%x", id)),
		}},
	}
	disk := props.Disks[0]
	disk.Kind, disk.Index, disk.Source = proto.String("compute#attachedDisk"), proto.Int32(0), link("disks", p.Name)
	disk.DiskSizeGb = disk.GetInitializeParams().DiskSizeGb
	disk.InitializeParams = nil
	i.Msg.Disks = []*computepb.AttachedDisk{disk}

	nic := props.NetworkInterfaces[0]
	network, subnetwork := s.Networks().URLToName(nic.GetNetwork()), ""
	if nic.Subnetwork != nil {
		subnetwork = s.Networks().URLToName(nic.GetSubnetwork())
		network = s.Networks().URLToName(s.State.Subnetworks[subnetwork].GetNetwork())
	}
	s.Networks().Place(i, network, subnetwork)
	nic.Kind, nic.Name, nic.StackType = proto.String("compute#networkInterface"), proto.String("nic0"), proto.String("IPV4_ONLY")
	nic.Network, nic.Subnetwork = proto.String(s.Networks().Link(network)), proto.String(s.Networks().Link(i.Subnetwork()))
	i.Msg.NetworkInterfaces = []*computepb.NetworkInterface{nic}

	items := map[string]string{
		"created-by":        "projects/" + cloud.ProjectNumber + "/zones/" + g.Zone + "/instanceGroupManagers/" + g.Id,
		"instance-template": s.Networks().URLToName(g.Msg.GetInstanceTemplate()),
	}
	for _, item := range props.GetMetadata().GetItems() {
		items[item.GetKey()] = item.GetValue()
	}
	SetMetadata(i, items, 0)
	s.State.Instances[path] = i
	p.Instance = i
}

// SetMetadata gives metadata to i. version is the number of changes so far.
func SetMetadata(i *cloud.Instance, items map[string]string, version int) {
	m := &computepb.Metadata{Kind: proto.String("compute#metadata"), Fingerprint: Fingerprint(i.Msg.GetId(), version)}
	for _, key := range slices.Sorted(maps.Keys(items)) {
		m.Items = append(m.Items, &computepb.Items{Key: proto.String(key), Value: proto.String(items[key])})
	}
	i.Msg.Metadata = m
	i.Version = version
}
