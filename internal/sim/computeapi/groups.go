package computeapi

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

// serveGroups answers for zonal managed instance groups.
func (s machines) serveGroups(c *computeCall) (any, error) {
	if err := s.checkPlace(c.scope); err != nil {
		return nil, err
	}
	if c.id == "" {
		if c.r.Method == http.MethodPost && c.scope != "aggregated" {
			return s.insertGroup(c)
		}
		var all []message
		for _, g := range cloud.Sorted(s.State.Groups, nil) {
			all = append(all, groups.Message(s.Cloud, g))
		}
		return s.listOf(c, "instanceGroupManager", all)
	}
	g := s.State.Groups[c.name()]
	switch c.r.Method + " " + c.verb {
	case "GET ":
		if err := wire.CheckQuery(c.query); err != nil {
			return nil, err
		}
		if g == nil {
			return nil, noSuchCompute(c.name())
		}
		return groups.Message(s.Cloud, g), nil
	case "DELETE ":
		return s.deleteGroup(c, g)
	}
	if g == nil {
		return nil, noSuchCompute(c.name())
	}
	switch c.r.Method + " " + c.verb {
	case "POST resize":
		return s.resizeGroup(c, g)
	case "POST listManagedInstances":
		return s.listManaged(c, g)
	case "GET listErrors":
		var all []proto.Message
		for _, e := range g.Errors {
			all = append(all, e)
		}
		return s.pageOf(c, all)
	case "POST resizeRequests":
		return nil, wire.Errorf(http.StatusBadRequest, "Creating resize requests for managed instance group with TPU is not allowed.")
	}
	return nil, wire.NotModelled("instanceGroupManagers." + cmp.Or(c.verb, strings.ToLower(c.r.Method)))
}

// pageOf returns a list whose message has only items and a token for the next page.
func (s machines) pageOf(c *computeCall, all []proto.Message) (*computeList, error) {
	if err := wire.CheckQuery(c.query, "filter", "maxResults", "orderBy", "pageToken", "returnPartialSuccess"); err != nil {
		return nil, err
	}
	if c.query.Get("filter") != "" || c.query.Get("orderBy") != "" {
		return nil, wire.NotModelled("A filter or an order for " + c.verb)
	}
	items, next, err := wire.Page(all, c.query, "maxResults", 500)
	if err != nil {
		return nil, err
	}
	l := &computeList{items: items, head: map[string]any{}}
	if next != "" {
		l.head["nextPageToken"] = next
	}
	return l, nil
}

func (s machines) listManaged(c *computeCall, g *cloud.Group) (any, error) {
	var all []proto.Message
	for _, p := range g.Places {
		all = append(all, groups.Managed(s.Cloud, g, p))
	}
	l, err := s.pageOf(c, all)
	if err != nil {
		return nil, err
	}
	l.under = "managedInstances"
	return l, nil
}

func (s machines) insertGroup(c *computeCall) (any, error) {
	msg := new(computepb.InstanceGroupManager)
	if op, seen, err := c.begin(msg); seen || err != nil {
		return op, err
	}
	c.id = msg.GetName()
	if err := checkName(c.id); err != nil {
		return nil, err
	}
	if s.State.Groups[c.name()] != nil {
		return nil, existsCompute(c.name())
	}
	g := &cloud.Group{Msg: msg, Id: c.id, Zone: strings.TrimPrefix(c.scope, "zones/")}
	if err := s.checkGroup(c, g); err != nil {
		return nil, err
	}
	name := c.name()
	s.put(msg, "instanceGroupManager", name)
	zone := s.Networks().Link("projects/" + s.Config.Project + "/" + c.scope)
	msg.Zone, msg.InstanceGroup = &zone, proto.String(s.Networks().Link(s.Networks().ComputePath(c.scope, "instanceGroups", c.id)))
	msg.Fingerprint = groups.Fingerprint(msg.GetId(), 0)
	msg.Versions = []*computepb.InstanceGroupManagerVersion{{InstanceTemplate: msg.InstanceTemplate}}
	s.State.Groups[name] = g
	return s.startLongOp(c, "insert", name, msg.GetId(), func(ok bool, done func()) {
		if ok {
			groups.Of(s.Cloud).Grow(g, int(msg.GetTargetSize()))
		}
		s.NextStep(func() {
			if !ok {
				delete(s.State.Groups, name)
			}
			done()
		})
	})
}

func (s machines) deleteGroup(c *computeCall, g *cloud.Group) (any, error) {
	if op, seen, err := c.begin(nil); seen || err != nil {
		return op, err
	}
	if g == nil {
		return nil, noSuchCompute(c.name())
	}
	if g.Deleting {
		return nil, notReady(c.name())
	}
	return s.startLongOp(c, "delete", c.name(), g.Msg.GetId(), func(ok bool, done func()) {
		if ok {
			groups.Of(s.Cloud).Delete(g, done)
		} else {
			s.NextStep(done)
		}
	})
}

// resizeGroup changes the number of VMs. In BULK mode it goes from 0 to the size of the
// topology and back to 0.
func (s machines) resizeGroup(c *computeCall, g *cloud.Group) (any, error) {
	if op, seen, err := c.begin(nil, "size"); seen || err != nil {
		return op, err
	}
	size, err := strconv.Atoi(c.query.Get("size"))
	if err != nil || size < 0 {
		return nil, badValue("size", c.query.Get("size"), "Must be a number from 0.")
	}
	if g.Deleting {
		return nil, notReady(c.name())
	}
	now := int(g.Msg.GetTargetSize())
	switch {
	case size == now || size == 0:
	case groups.Bulk(g) && g.Growing:
		return nil, badValue("size", strconv.Itoa(size), "A bulk operation is in progress: the target size can only be set to 0.")
	case groups.Bulk(g) && now != 0:
		return nil, badValue("size", strconv.Itoa(size), "Instances can be added only while the target size of a managed instance group in BULK mode is 0.")
	default:
		if err := s.checkSize(g, size); err != nil {
			return nil, err
		}
	}
	life := groups.Of(s.Cloud)
	return s.startLongOp(c, "compute.instanceGroupManagers.resize", c.name(), g.Msg.GetId(), func(ok bool, done func()) {
		switch {
		case !ok || size == now:
			s.NextStep(done)
		case size == 0:
			life.Shrink(g, done)
		default:
			life.Grow(g, size)
			s.NextStep(done)
		}
	})
}

var (
	basePattern  = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,56}[a-z0-9])?$`)
	countPattern = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,45}[a-z0-9])?-#{1,10}(\[[0-9]{1,9}\])?$`)
)

// The largest groups, without and with pages of managed instances.
const (
	mostVMs      = 1000
	mostPagedVMs = 2000
)

// checkGroup returns an error for a group that the service refuses, and fills in g.
func (s machines) checkGroup(c *computeCall, g *cloud.Group) error {
	m := g.Msg
	if err := onlyFields(m, "a managed instance group", "name", "description", "zone", "instanceTemplate", "versions", "targetSize", "baseInstanceName",
		"targetSizePolicy", "resourcePolicies", "instanceLifecyclePolicy", "updatePolicy", "listManagedInstancesResults"); err != nil {
		return err
	}
	if m.BaseInstanceName == nil {
		m.BaseInstanceName = m.Name
	}
	if base := m.GetBaseInstanceName(); !basePattern.MatchString(base) && !countPattern.MatchString(base) {
		return badValue("resource.baseInstanceName", base, "Must be a match of regex '[a-z](([-a-z0-9]{0,57})|([-a-z0-9]{0,46}-#{1,10}(\\\\[[0-9]{1,10}\\\\])?))'")
	}
	m.ListManagedInstancesResults = proto.String(cmp.Or(m.GetListManagedInstancesResults(), "PAGELESS"))
	if how := m.GetListManagedInstancesResults(); how != "PAGELESS" && how != "PAGINATED" {
		return badValue("resource.listManagedInstancesResults", how, "Must be PAGELESS or PAGINATED.")
	}
	if m.TargetSize == nil {
		return wire.Errorf(http.StatusBadRequest, "Required field 'resource.targetSize' not specified").WithReason("required")
	}
	if mode := cmp.Or(m.GetTargetSizePolicy().GetMode(), "INDIVIDUAL"); mode != "INDIVIDUAL" && mode != "BULK" {
		return badValue("resource.targetSizePolicy.mode", mode, "Must be INDIVIDUAL or BULK.")
	}
	template, err := s.templateOf(c, m)
	if err != nil {
		return err
	}
	g.Properties = proto.CloneOf(template.GetProperties())
	kind, err := s.checkMachine(g)
	if err != nil {
		return err
	}
	if err := s.checkAffinity(g); err != nil {
		return err
	}
	policy, err := s.policyOf(c, m)
	if err != nil {
		return err
	}
	if err := s.checkTopology(g, kind, policy.GetWorkloadPolicy().GetAcceleratorTopology()); err != nil {
		return err
	}
	return s.checkSize(g, int(m.GetTargetSize()))
}

// templateOf returns the template that a new group names.
func (s machines) templateOf(c *computeCall, m *computepb.InstanceGroupManager) (*computepb.InstanceTemplate, error) {
	link := m.GetInstanceTemplate()
	if v := m.GetVersions(); link == "" && len(v) == 1 && v[0].TargetSize == nil {
		link = v[0].GetInstanceTemplate()
	} else if len(v) > 0 && (len(v) > 1 || v[0].GetInstanceTemplate() != link) {
		return nil, wire.NotModelled("A group with several versions")
	}
	scope := "global"
	if strings.Contains(link, "regions/") {
		scope = "regions/" + cloud.RegionOf(strings.TrimPrefix(c.scope, "zones/"))
	}
	name, ok := s.Networks().Ref(link, scope, "instanceTemplates")
	if !ok || !strings.Contains(link, "/") {
		return nil, badValue("resource.instanceTemplate", link, "The URL is malformed.")
	}
	t := s.State.Templates[name]
	if t == nil {
		return nil, noSuchCompute(name)
	}
	m.InstanceTemplate = t.SelfLink
	return t, nil
}

// policyOf returns the workload policy that a new group names, or nil.
func (s machines) policyOf(c *computeCall, m *computepb.InstanceGroupManager) (*computepb.ResourcePolicy, error) {
	link := m.GetResourcePolicies().GetWorkloadPolicy()
	if link == "" {
		return nil, nil
	}
	name, ok := s.Networks().Ref(link, "regions/"+cloud.RegionOf(strings.TrimPrefix(c.scope, "zones/")), "resourcePolicies")
	if !ok || !strings.Contains(link, "/") {
		return nil, badValue("resource.resourcePolicies.workloadPolicy", link, "The URL is malformed.")
	}
	p := s.State.Policies[name]
	if p == nil {
		return nil, noSuchCompute(name)
	}
	m.ResourcePolicies.WorkloadPolicy = p.SelfLink
	return p, nil
}

// checkMachine returns an error for VMs that the zone does not have, or whose other
// properties do not fit their machine type.
func (s machines) checkMachine(g *cloud.Group) (groups.MachineType, error) {
	p := g.Properties
	offered := groups.Offered(s.Cloud, g.Zone)
	i := slices.IndexFunc(offered, func(m groups.MachineType) bool { return m.Name == p.GetMachineType() })
	if i < 0 {
		return groups.MachineType{}, noSuchCompute(s.Networks().ComputePath("zones/"+g.Zone, "machineTypes", p.GetMachineType()))
	}
	m := offered[i]
	if p.GetScheduling().GetOnHostMaintenance() != "TERMINATE" {
		return m, badScheduling("Instances with accelerators do not support live migration: onHostMaintenance must be TERMINATE.")
	}
	if disk := p.Disks[0].GetInitializeParams().GetDiskType(); m.Hyperdisk() && disk != "" && disk != "hyperdisk-balanced" && disk != "hyperdisk-ml" {
		return m, wire.Errorf(http.StatusBadRequest, "[%s] features are not compatible for creating instance with machine type %s.", disk, m.Name)
	}
	return m, nil
}

// checkTopology returns an error for a topology that the service refuses for a group, and
// sets the type of the group's slice.
func (s machines) checkTopology(g *cloud.Group, kind groups.MachineType, topology string) error {
	size := 1
	if topology != "" {
		chips, err := groups.ChipsOf(topology)
		if err != nil || chips%kind.Chips != 0 || chips == kind.Chips {
			return badValue("resource.resourcePolicies.workloadPolicy", topology, "The accelerator topology does not fit several VMs of machine type "+kind.Name+".")
		}
		if !groups.Bulk(g) {
			return wire.Errorf(http.StatusBadRequest, "MIGs with TPU accelerator topology require BULK mode in target size policy.")
		}
		size = chips / kind.Chips
	}
	g.Typ, g.NUMANodes = kind.Slice(size, topology), kind.NUMANodes
	action := g.Msg.GetInstanceLifecyclePolicy().GetDefaultActionOnFailure()
	if err := onlyFields(g.Msg.GetInstanceLifecyclePolicy(), "instanceLifecyclePolicy", "defaultActionOnFailure", "forceUpdateOnRepair"); err != nil {
		return err
	}
	switch {
	case action == "DO_NOTHING":
		return nil
	case g.Properties.GetScheduling().GetProvisioningModel() == "FLEX_START":
		return badValue("resource.instanceLifecyclePolicy.defaultActionOnFailure", action, "Must be DO_NOTHING with provisioning model FLEX_START.")
	}
	return wire.NotModelled("A group that repairs its VMs (defaultActionOnFailure other than DO_NOTHING)")
}

// checkSize returns an error for a number of VMs that is neither 0 nor the size of the
// slice.
func (s machines) checkSize(g *cloud.Group, size int) error {
	most := mostVMs
	if g.Msg.GetListManagedInstancesResults() == "PAGINATED" {
		most = mostPagedVMs
	}
	switch {
	case size < 0 || size > most:
		return badValue("resource.targetSize", strconv.Itoa(size), fmt.Sprintf("Must be between 0 and %d.", most))
	case size == 0 || size == g.Typ.Workers:
		return nil
	case g.Typ.Workers == 1:
		return wire.NotModelled("A group of several VMs without a topology")
	}
	return wire.Errorf(http.StatusBadRequest, "Target size should be %d for given accelerator topology but was %d.", g.Typ.Workers, size)
}

// serveAutoscalers answers that there are no autoscalers.
func (s machines) serveAutoscalers(c *computeCall) (any, error) {
	if err := s.checkPlace(c.scope); err != nil {
		return nil, err
	}
	if c.r.Method != http.MethodGet {
		return nil, wire.NotModelled("Making autoscalers")
	}
	if c.id != "" {
		return nil, noSuchCompute(c.name())
	}
	return s.listOf(c, "autoscaler", nil)
}

// serveInstanceGroups answers for unmanaged instance groups: each managed group has one of
// the same name.
func (s machines) serveInstanceGroups(c *computeCall) (any, error) {
	if err := s.checkPlace(c.scope); err != nil {
		return nil, err
	}
	if c.r.Method != http.MethodGet || c.verb != "" {
		return nil, wire.NotModelled("Groups that are not managed, and listing VMs of groups")
	}
	var all []message
	for _, g := range cloud.Sorted(s.State.Groups, nil) {
		m := &computepb.InstanceGroup{
			Kind: proto.String("compute#instanceGroup"), Id: numbered(g.Msg.GetInstanceGroup()), Name: &g.Id, SelfLink: g.Msg.InstanceGroup, Zone: g.Msg.Zone,
			Size: proto.Int32(int32(len(g.Instances()))), Network: g.Properties.NetworkInterfaces[0].Network, Subnetwork: g.Properties.NetworkInterfaces[0].Subnetwork,
			CreationTimestamp: g.Msg.CreationTimestamp, Fingerprint: g.Msg.Fingerprint,
		}
		if c.id != "" && s.Networks().URLToName(m.GetSelfLink()) == c.name() {
			return m, wire.CheckQuery(c.query)
		}
		all = append(all, m)
	}
	if c.id != "" {
		return nil, noSuchCompute(c.name())
	}
	return s.listOf(c, "instanceGroup", all)
}
