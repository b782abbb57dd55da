package groups

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/worker"
)

// Groups moves managed instance groups and their VMs from state to state. Every method
// returns at once. Work that takes time checks the epoch of its group before it continues.
type Groups struct{ *cloud.Cloud }

// Of returns the groups of a cloud.
func Of(c *cloud.Cloud) Groups { return Groups{c} }

// Bulk reports whether g makes all of its VMs at once.
func Bulk(g *cloud.Group) bool { return g.Msg.GetTargetSizePolicy().GetMode() == "BULK" }

// sliced reports whether a policy gives g a topology.
func sliced(g *cloud.Group) bool { return g.Msg.GetResourcePolicies().GetWorkloadPolicy() != "" }

// model returns the provisioning model of the VMs of g.
func model(g *cloud.Group) string {
	return cmp.Or(g.Properties.GetScheduling().GetProvisioningModel(), "STANDARD")
}

// name returns the resource name of g.
func (s Groups) name(g *cloud.Group) string {
	return s.Networks().ComputePath("zones/"+g.Zone, "instanceGroupManagers", g.Id)
}

// next runs f after a step, unless something else has happened to the VMs of g meanwhile.
func (s Groups) next(g *cloud.Group, f func()) {
	epoch := g.Epoch
	s.NextStep(func() {
		if g.Epoch == epoch && !g.Deleting {
			f()
		}
	})
}

// interrupt stops whatever is happening to the VMs of g.
func interrupt(g *cloud.Group) { g.Epoch++; g.Growing, g.Check = false, nil }

// Grow makes g create n VMs. g must have none.
func (s Groups) Grow(g *cloud.Group, n int) {
	interrupt(g)
	g.Msg.TargetSize = proto.Int32(int32(n))
	g.Places = nil
	if n == 0 {
		return
	}
	g.Growing = true
	numbers := Shuffled(n)
	for i, name := range s.names(g, n) {
		p := &cloud.Place{Name: name, Number: numbers[i], Action: "CREATING"}
		g.Places = append(g.Places, p)
		if model(g) == "FLEX_START" { // these VMs exist while they wait
			s.addInstance(g, p, "PENDING")
		}
	}
	s.next(g, func() { s.try(g) })
}

// Shuffled returns the worker numbers of n VMs, in the order of the VMs' names. Of two or
// more VMs, the numbers do not rise with the names, so that nobody relies on that order.
func Shuffled(n int) []int {
	for {
		numbers := rand.Perm(n)
		if n < 2 || !slices.IsSorted(numbers) {
			return numbers
		}
	}
}

// names returns the names of n new VMs, sorted. A name is the base name and four
// characters. If the base name has characters #, a name ends in a number with as many
// digits, and the base name gives the first number in brackets.
func (s Groups) names(g *cloud.Group, n int) []string {
	base := g.Msg.GetBaseInstanceName()
	var names []string
	if at := strings.IndexByte(base, '#'); at >= 0 {
		digits := strings.Count(base, "#")
		first := 0
		if _, bracket, ok := strings.Cut(base, "["); ok {
			first, _ = strconv.Atoi(strings.TrimSuffix(bracket, "]")) // checked at the creation
		}
		for i := range n {
			number := strconv.Itoa(first + i)
			names = append(names, base[:at]+strings.Repeat("0", max(0, digits-len(number)))+number)
		}
		return names
	}
	const letters = "0123456789bcdfghjklmnpqrstvwxz"
	for len(names) < n {
		suffix := make([]byte, 4)
		for i := range suffix {
			suffix[i] = letters[rand.IntN(len(letters))]
		}
		name := base + "-" + string(suffix)
		if s.State.Instances[s.Networks().ComputePath("zones/"+g.Zone, "instances", name)] == nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// try begins to make the VMs of g if there is capacity. Otherwise g waits until Retry.
func (s Groups) try(g *cloud.Group) {
	g.Checked = s.Clock.Now()
	g.Check = s.faults().noRoom(g)
	if g.Check == nil {
		s.provision(g)
		return
	}
	if !Bulk(g) {
		for _, p := range g.Places {
			s.attemptFailed(g, p, g.Check.Errors[0])
		}
	}
}

// attemptFailed records why an attempt to make a VM failed.
func (s Groups) attemptFailed(g *cloud.Group, p *cloud.Place, why *computepb.Errors) {
	p.Failure = why
	g.Errors = append(g.Errors, &computepb.InstanceManagedByIgmError{
		Error:     &computepb.InstanceManagedByIgmErrorManagedInstanceError{Code: why.Code, Message: why.Message},
		Timestamp: proto.String(s.Timestamp()),
		InstanceActionDetails: &computepb.InstanceManagedByIgmErrorInstanceActionDetails{
			Action: proto.String("CREATING"), Instance: proto.String(s.Networks().Link(s.instancePath(g, p))),
		},
	})
}

func (s Groups) instancePath(g *cloud.Group, p *cloud.Place) string {
	return s.Networks().ComputePath("zones/"+g.Zone, "instances", p.Name)
}

// provision makes the VMs of g. They go through PROVISIONING, STAGING and RUNNING.
func (s Groups) provision(g *cloud.Group) {
	for _, p := range g.Places {
		p.Failure = nil
		if p.Instance == nil {
			s.addInstance(g, p, "")
		}
		setStatus(p.Instance, "PROVISIONING")
	}
	if sliced(g) {
		g.Topology = "ACTIVATING"
	}
	s.next(g, func() {
		for _, i := range g.Instances() {
			setStatus(i, "STAGING")
		}
		if why := s.faults().takeError(g); why != nil {
			s.giveUp(g, why)
			return
		}
		s.next(g, func() { s.boot(g) })
	})
}

// giveUp ends the creation of the VMs of g, with an error.
func (s Groups) giveUp(g *cloud.Group, why *computepb.Errors) {
	interrupt(g)
	for _, p := range g.Places {
		s.attemptFailed(g, p, why)
		p.Action = "NONE"
	}
	if sliced(g) {
		g.Topology, g.Why = "FAILED", &computepb.Error{Errors: []*computepb.Errors{why}}
	}
	s.endAll(g, "STOPPING", cloud.StopLimit, s.remove)
}

// boot starts the machines of those VMs of g that are STAGING, without those that a fault
// keeps there.
func (s Groups) boot(g *cloud.Group) {
	var booting []*cloud.Instance
	var specs []worker.Spec
	for _, i := range g.Instances() {
		if i.Msg.GetStatus() == "STAGING" && !i.Booting && !s.faults().stuck(i) {
			if s.faults().findFor("group-no-boot", i) != nil {
				s.running(g, i)
				continue
			}
			i.Booting = true
			booting = append(booting, i)
			if s.Workers != nil {
				specs = append(specs, s.Machines().Spec(i))
			}
		}
	}
	epoch := g.Epoch
	s.Spawn(func() {
		machines, err := s.Slices().StartMachines(specs)
		s.Mu.Lock()
		defer s.Mu.Unlock()
		switch {
		case g.Epoch != epoch || g.Deleting:
			s.Slices().Discard(machines)
		case err != nil:
			s.giveUp(g, failure("INTERNAL_ERROR", err.Error()))
		default:
			for n, i := range booting {
				i.Booting = false
				if len(machines) > 0 {
					i.Machine = machines[n]
				}
				s.running(g, i)
			}
			s.settle(g)
		}
	})
}

// running makes i RUNNING.
func (s Groups) running(g *cloud.Group, i *cloud.Instance) {
	setStatus(i, "RUNNING")
	i.Msg.LastStartTimestamp = proto.String(s.Timestamp())
	nic := i.Msg.NetworkInterfaces[0]
	address := i.IP
	if i.Machine != nil {
		address = i.Machine.Addr()
		if _, ok := i.Machine.(worker.Internal); !ok {
			i.IP = address // a machine on loopback has only one address
		}
	}
	nic.NetworkIP = proto.String(i.IP)
	for _, access := range nic.AccessConfigs {
		access.NatIP = proto.String(address)
	}
	for _, p := range g.Places {
		if p.Instance == i {
			p.Action = "NONE"
		}
	}
	d := longestRun(g)
	if d == 0 || i.Msg.GetResourceStatus().GetScheduling() != nil {
		return // it began before
	}
	i.Msg.ResourceStatus.Scheduling = &computepb.ResourceStatusScheduling{TerminationTimestamp: proto.String(cloud.Stamp(s.Clock.Now().Add(d)))}
	s.Later(d, func() { s.runEnds(i) })
}

// longestRun returns how long a VM of g may run. 0 means no limit.
func longestRun(g *cloud.Group) time.Duration {
	return time.Duration(g.Properties.GetScheduling().GetMaxRunDuration().GetSeconds()) * time.Second
}

// settle ends the creation or recovery of g once all of its VMs run.
func (s Groups) settle(g *cloud.Group) {
	all := g.Instances()
	if len(all) < len(g.Places) || slices.ContainsFunc(all, func(i *cloud.Instance) bool { return i.Msg.GetStatus() != "RUNNING" }) {
		return
	}
	g.Growing, g.Check = false, nil
	if sliced(g) {
		s.next(g, func() { g.Topology, g.Why = "ACTIVE", nil })
	}
}

// Shrink deletes all VMs of g, or stops waiting for them, then calls done.
func (s Groups) Shrink(g *cloud.Group, done func()) {
	interrupt(g)
	g.Msg.TargetSize = proto.Int32(0)
	g.Topology, g.Why = "", nil
	s.empty(g, func() {
		if !g.Deleting && g.Msg.GetTargetSize() == 0 {
			g.Places = nil
		}
		done()
	})
}

// Delete deletes g with its VMs, then calls done.
func (s Groups) Delete(g *cloud.Group, done func()) {
	g.Gone = append(g.Gone, done)
	if g.Deleting {
		return
	}
	interrupt(g)
	g.Deleting = true
	if g.Topology != "" {
		g.Topology = "DEACTIVATING"
	}
	s.empty(g, func() {
		delete(s.State.Groups, s.name(g))
		for _, f := range g.Gone {
			f()
		}
	})
}

// empty deletes the VMs of g, then calls done.
func (s Groups) empty(g *cloud.Group, done func()) {
	for _, p := range g.Places {
		p.Action = "DELETING"
	}
	left := 1
	gone := func() {
		if left--; left == 0 {
			done()
		}
	}
	for _, i := range g.Instances() {
		left++
		setStatus(i, "STOPPING")
		s.NextStep(func() {
			s.Machines().EndInstance(i, cloud.StopLimit, func() { s.remove(i); gone() })
		})
	}
	s.NextStep(gone)
}

// Drop deletes one VM of a group, as its user has asked, then calls done. The group does
// not replace it.
func (s Groups) Drop(i *cloud.Instance, done func()) {
	g := i.Group
	interrupt(g)
	setStatus(i, "STOPPING")
	s.NextStep(func() {
		s.Machines().EndInstance(i, cloud.StopLimit, func() { s.remove(i); done() })
	})
}

// remove removes an ended VM from the state.
func (s Groups) remove(i *cloud.Instance) {
	for _, p := range i.Group.Places {
		if p.Instance == i {
			p.Instance = nil
			if p.Action != "DELETING" {
				p.Action = "NONE"
			}
		}
	}
	delete(s.State.Instances, s.Networks().ComputePath("zones/"+i.Zone, "instances", i.Id))
	incomplete(i.Group)
}

// stopped makes an ended VM TERMINATED.
func (s Groups) stopped(i *cloud.Instance) {
	i.Msg.LastStopTimestamp = proto.String(s.Timestamp())
	setStatus(i, "TERMINATED")
	incomplete(i.Group)
}

// incomplete marks that the topology of g lacks VMs.
func incomplete(g *cloud.Group) {
	if g.Topology != "" && g.Topology != "FAILED" && !g.Deleting {
		g.Topology = "INCOMPLETE"
	}
}

// endAll ends the machines of all VMs of g, which have the given status meanwhile. It calls
// then for each VM that has ended.
func (s Groups) endAll(g *cloud.Group, status string, limit time.Duration, then func(*cloud.Instance)) {
	for _, i := range g.Instances() {
		s.end(i, status, limit, then)
	}
}

func (s Groups) end(i *cloud.Instance, status string, limit time.Duration, then func(*cloud.Instance)) {
	setStatus(i, status)
	s.Machines().EndInstance(i, limit, func() {
		if !i.Group.Deleting {
			then(i)
		}
	})
}

// atEnd returns what happens to a VM of g after the service has stopped it.
func (s Groups) atEnd(g *cloud.Group) func(*cloud.Instance) {
	if g.Properties.GetScheduling().GetInstanceTerminationAction() == "DELETE" {
		return s.remove
	}
	return s.stopped
}

// preempt takes the VMs of g away, as the service does with spot VMs.
func (s Groups) preempt(g *cloud.Group) {
	interrupt(g)
	for _, i := range g.Instances() {
		i.Preempted = true
		s.happened(i, "compute.instances.preempted")
	}
	s.endAll(g, "STOPPING", cloud.PreemptLimit, s.atEnd(g))
}

// runEnds ends a VM whose maximum run duration has passed.
func (s Groups) runEnds(i *cloud.Instance) {
	if i.Group.Deleting || s.State.Instances[s.Networks().ComputePath("zones/"+i.Zone, "instances", i.Id)] != i || i.Msg.GetStatus() == "TERMINATED" {
		return
	}
	interrupt(i.Group)
	s.end(i, "STOPPING", cloud.StopLimit, s.atEnd(i.Group))
}

// restarts reports whether the service restarts VMs of g after a failure of their host.
func restarts(g *cloud.Group) bool {
	s := g.Properties.GetScheduling()
	return s.AutomaticRestart == nil || s.GetAutomaticRestart()
}

// hostFails makes a host of g fail. The service restarts all VMs of a slice together, each
// with its disk. A VM without automatic restart stays TERMINATED.
func (s Groups) hostFails(g *cloud.Group) {
	interrupt(g)
	var machines []worker.Machine
	for _, i := range g.Instances() {
		s.happened(i, "compute.instances.hostError")
		if !restarts(g) {
			continue
		}
		i.Msg.LastStopTimestamp = proto.String(s.Timestamp())
		setStatus(i, "REPAIRING")
		machines = append(machines, i.Machine)
	}
	if !restarts(g) {
		s.endAll(g, "STOPPING", 0, s.stopped)
		return
	}
	if sliced(g) {
		g.Topology = "REACTIVATING"
	}
	epoch := g.Epoch
	s.Spawn(func() {
		_ = cloud.RestartMachines(s.Ctx, machines, downForGood) // a machine that has ended does not boot again
		s.Mu.Lock()
		defer s.Mu.Unlock()
		if g.Epoch == epoch {
			s.next(g, func() { s.recover(g) })
		}
	})
}

// downForGood is how long a machine stays down unless somebody boots it.
const downForGood = 1000 * time.Hour

// recover boots the VMs of g that are REPAIRING, unless a fault forbids it.
func (s Groups) recover(g *cloud.Group) {
	if s.faults().neverRecovers(g) {
		return
	}
	var machines []worker.Machine
	repaired := slices.DeleteFunc(g.Instances(), func(i *cloud.Instance) bool { return i.Msg.GetStatus() != "REPAIRING" })
	for _, i := range repaired {
		s.happened(i, "compute.instances.automaticRestart")
		setStatus(i, "STAGING")
		i.Booting = true // so that boot leaves it alone
		machines = append(machines, i.Machine)
	}
	epoch := g.Epoch
	s.Spawn(func() {
		err := cloud.RestartMachines(s.Ctx, machines, 0)
		s.Mu.Lock()
		defer s.Mu.Unlock()
		if g.Epoch != epoch || g.Deleting {
			return
		}
		if err != nil {
			s.giveUp(g, failure("INTERNAL_ERROR", err.Error()))
			return
		}
		for _, i := range repaired {
			i.Booting, i.Maintained = false, false
			s.running(g, i)
		}
		s.settle(g)
	})
}

// happened adds an operation that shows what the service has done to a VM.
func (s Groups) happened(i *cloud.Instance, what string) {
	scope := "zones/" + i.Zone
	op := s.Networks().NewComputeOp(scope, what, s.Networks().ComputePath(scope, "instances", i.Id), i.Msg.GetId(), cloud.ComputeSystem)
	s.Networks().EndComputeOp(op, "")
}

// Retry continues groups that wait because of a fault.
func (s Groups) Retry() {
	for _, g := range cloud.Sorted(s.State.Groups, nil) {
		if g.Deleting {
			continue
		}
		switch all := g.Instances(); {
		case g.Growing && g.Check != nil:
			s.next(g, func() {
				if g.Check != nil {
					s.try(g)
				}
			})
		case slices.ContainsFunc(all, func(i *cloud.Instance) bool { return i.Msg.GetStatus() == "REPAIRING" }):
			s.next(g, func() { s.recover(g) })
		case slices.ContainsFunc(all, func(i *cloud.Instance) bool { return i.Msg.GetStatus() == "STAGING" && !i.Booting }):
			s.next(g, func() { s.boot(g) })
		case s.Workers != nil && slices.ContainsFunc(all, dark):
			for _, i := range all {
				if dark(i) {
					setStatus(i, "STAGING")
				}
			}
			s.next(g, func() { s.boot(g) })
		}
	}
}

// dark reports whether i is RUNNING but has not booted.
func dark(i *cloud.Instance) bool {
	return i.Msg.GetStatus() == "RUNNING" && i.Machine == nil && !i.Booting
}

// UserOf returns the name of a group with the template or policy called name, or "".
func UserOf(c *cloud.Cloud, name string) string {
	s := Of(c)
	for _, g := range cloud.Sorted(s.State.Groups, nil) {
		for _, link := range []string{g.Msg.GetInstanceTemplate(), g.Msg.GetResourcePolicies().GetWorkloadPolicy()} {
			if s.Networks().URLToName(link) == name {
				return s.name(g)
			}
		}
	}
	return ""
}

func failure(code, message string) *computepb.Errors {
	return &computepb.Errors{Code: &code, Message: &message}
}

func setStatus(i *cloud.Instance, status string) { i.Msg.Status = &status }
