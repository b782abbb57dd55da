package gce

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A sight is all that the API says about one slice at one moment.
type sight struct {
	group   *computepb.InstanceGroupManager
	managed []*computepb.ManagedInstance
	vms     []*computepb.Instance // existing VMs
	spot    bool
	maxRun  time.Duration // Compute Engine deletes the VMs after this time; 0: never
	now     time.Time
}

// A state is the meaning of a sight.
type state struct {
	life    provision.Life
	word    string         // state in messages; the API's word if it has one
	why     string         // in one sentence: what the slice waits for, or why it failed
	code    string         // error code of the API: "QUOTA_EXCEEDED"
	starved bool           // it failed for lack of capacity or quota
	by      string         // who took the slice away; "": nobody
	loss    provision.Loss // why, if the API says so; NoLoss: depends on the tier
	byUser  bool
	until   time.Time // when Compute Engine deletes or stops the VMs; zero: not known
}

// Words for states that the API shows in several fields.
const (
	wordRequested = "REQUESTED"
	wordWaiting   = "WAITING_FOR_CAPACITY"
	wordQuota     = "WAITING_FOR_QUOTA"
	wordPartly    = "WAITING_FOR_SLICES"
	wordMaking    = "PROVISIONING"
	wordActive    = "ACTIVE"
	wordDegraded  = "ACTIVE_DEGRADED"
	wordRepairing = "REPAIRING"
	wordStopped   = "STOPPED"
	wordPreempted = "PREEMPTED"
	wordOver      = "RUN_DURATION_OVER"
	wordGone      = "WITHOUT_VMS"
	wordLacking   = "LACKS_VMS"
	wordNoGroups  = "WITHOUT_GROUPS"
	wordHalfGone  = "LACKS_GROUPS"
	wordEmpty     = "RESIZED_TO_0"
	wordFailed    = "FAILED"
	wordDeleting  = "DELETING"
)

// goneWhy says what may have happened if VMs of a slice are gone before the end of the
// slice's run duration.
const goneWhy = "its VMs never came, or were deleted: by a user, or at the end of a run duration that multihost has not set"

// repairTime limits the time in which Compute Engine stops a VM and starts it again. If the
// VM stays down longer, somebody has stopped it, and nobody will start it.
const repairTime = 30 * time.Minute

// States of a VM, grouped by their meaning for a slice.
var (
	comingUp  = []string{"PROVISIONING", "STAGING", "REPAIRING"}
	goingDown = []string{"PENDING_STOP", "STOPPING", "DEPROVISIONING", "SUSPENDING"}
	down      = []string{"TERMINATED", "STOPPED", "SUSPENDED"}
)

func (s sight) count(states ...string) int {
	n := 0
	for _, vm := range s.vms {
		if slices.Contains(states, vm.GetStatus()) {
			n++
		}
	}
	return n
}

func (s sight) topology() *computepb.InstanceGroupManagerStatusAcceleratorTopology {
	if all := s.group.GetStatus().GetAppliedAcceleratorTopologies(); len(all) > 0 {
		return all[0]
	}
	return nil
}

// judge returns the meaning of a sight. It first looks for temporary states: to delete a
// slice during its repair would lose its capacity.
func (s sight) judge() state {
	st := state{until: s.end()}
	size := int(s.group.GetTargetSize())
	topology := s.topology().GetState()
	bulk := s.group.GetStatus().GetBulkInstanceOperation()
	up := s.count("RUNNING")
	fails, code := s.failure()
	switch {
	case s.leaving():
		st.life, st.word = provision.Deleting, wordDeleting
	case topology == "FAILED":
		code, text := firstError(s.topology().GetStateDetails().GetError())
		st.fail(code, cmp.Or(text, "the topology "+s.topology().GetAcceleratorTopology()+" cannot be set up"))
	case s.over() && !bulk.GetInProgress():
		s.ends(&st)
	case size == 0 && len(s.vms) == 0:
		st.life, st.word, st.by, st.byUser = provision.Suspended, wordEmpty, "a user", true
	case size > 0 && up == size && (topology == "" || topology == "ACTIVE"):
		st.life, st.word = provision.Active, wordActive
	case size > 0 && up == size && topology == "ACTIVE_DEGRADED":
		_, text := firstError(s.topology().GetStateDetails().GetError())
		st.life, st.word, st.why = provision.Active, wordDegraded, cmp.Or(text, "some of its links or chips are broken")
	case topology == "REACTIVATING":
		st.life, st.word, st.why = provision.Recovering, topology, "Compute Engine restarts all its VMs on other machines"
	case bulk.GetInProgress():
		s.waits(&st)
	case fails != "" && up < size:
		st.fail(code, fails)
	case len(s.vms) == 0:
		s.withoutVMs(&st, topology)
	default:
		s.interrupted(&st, topology)
	}
	return st
}

// withoutVMs describes a group that has no VMs, or no VMs any more.
func (s sight) withoutVMs(st *state, topology string) {
	st.life, st.word = provision.Requested, wordRequested
	old := s.now.Sub(timeOf(s.group.GetCreationTimestamp())) >= provision.MakingTime
	if topology == "INCOMPLETE" || topology == "DEACTIVATING" || !s.making() && (old || len(s.managed) > 0) {
		st.life, st.word, st.by = provision.Suspended, wordGone, "a user or Google"
		st.loss, st.why = provision.Infrastructure, goneWhy
	}
}

// making reports whether the group makes a VM.
func (s sight) making() bool {
	return slices.ContainsFunc(s.managed, func(m *computepb.ManagedInstance) bool {
		return slices.Contains([]string{"CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING"}, m.GetCurrentAction())
	})
}

// fail marks st as the state of a slice that will not come up any more.
func (st *state) fail(code, text string) {
	st.life, st.word, st.code, st.why, st.starved = provision.Failed, wordFailed, code, text, starving(code)
}

// starving reports whether an error of the API means lack of capacity or quota. A VM
// without a machine may also fail minutes later, with INTERNAL_ERROR.
func starving(code string) bool {
	return noCapacity(code) || code == "INTERNAL_ERROR" || noQuota(code)
}

func noQuota(code string) bool    { return strings.HasPrefix(code, "QUOTA_EXCEEDED") }
func noCapacity(code string) bool { return strings.Contains(code, "RESOURCE_POOL_EXHAUSTED") }

// waits describes a group that waits for its VMs. It waits even for lack of capacity or
// quota.
func (s sight) waits(st *state) {
	code, text := firstError(s.group.GetStatus().GetBulkInstanceOperation().GetLastProgressCheck().GetError())
	st.code = code
	if s.count(slices.Concat(comingUp, []string{"RUNNING"})...) > 0 {
		st.life, st.word = provision.Provisioning, wordMaking
		return
	}
	st.life, st.word, st.why = provision.Waiting, wordWaiting, cmp.Or(text, "Compute Engine has not yet found machines for it")
	if noQuota(code) {
		st.word = wordQuota
	}
}

// interrupted describes a slice whose VMs exist and do not all run. Until all have run
// once, they are being made. After that, Compute Engine repairs the slice. Spot VMs and VMs
// that a user has stopped stay stopped. A deleted VM is not made again.
func (s sight) interrupted(st *state, topology string) {
	switch {
	case s.spot && s.count(down...)+s.count(goingDown...) > 0:
		st.life, st.word, st.by = provision.Suspended, wordPreempted, "Google (preemption)"
		st.loss = provision.Preempted
		if s.count(down...) == 0 {
			st.life = provision.Suspending
		}
	case s.count(down...) > 0 && !s.stoppedLately():
		st.life, st.word, st.by = provision.Suspended, wordStopped, "a user or Google"
		st.loss, st.why = provision.Infrastructure, "its VMs were stopped, and nobody starts them again"
	case s.count(down...)+s.count(goingDown...)+s.count("REPAIRING") > 0 || topology == "INCOMPLETE" && s.startedAgain():
		st.life, st.word = provision.Recovering, wordRepairing
		st.why = "Compute Engine starts its VMs again"
	case len(s.vms) < int(s.group.GetTargetSize()) && !s.making():
		st.life, st.word, st.by = provision.Suspended, wordLacking, "a user or Google"
		st.loss, st.why = provision.Infrastructure, "some of its VMs were deleted"
	case s.count("PENDING") == len(s.vms):
		st.life, st.word, st.why = provision.Waiting, wordWaiting, "Compute Engine has not yet found machines for it"
	default: // PROVISIONING, STAGING, or the topology is ACTIVATING
		st.life, st.word = provision.Provisioning, wordMaking
	}
}

// leaving reports whether the VMs of the group are being deleted.
func (s sight) leaving() bool {
	actions := s.group.GetStatus() != nil && s.group.GetCurrentActions().GetDeleting() > 0
	deleting := 0
	for _, m := range s.managed {
		if m.GetCurrentAction() == "DELETING" || m.GetTargetStatus() == "DELETED" {
			deleting++
		}
	}
	return deleting > 0 && deleting == len(s.managed) || actions && len(s.managed) == 0
}

// ends describes a slice whose requested time has passed.
func (s sight) ends(st *state) {
	st.life, st.word, st.by = provision.Suspended, wordOver, fmt.Sprintf("Google (its longest run of %s is over)", s.maxRun)
	if s.count(goingDown...) > 0 {
		st.life = provision.Suspending
	}
}

// over reports whether Compute Engine has stopped or deleted, or is stopping, the VMs
// because their requested time has passed. Spot VMs are stopped, others are deleted.
func (s sight) over() bool {
	end := s.end()
	if made := timeOf(s.group.GetCreationTimestamp()); len(s.vms) == 0 && !made.IsZero() {
		end = made.Add(s.maxRun)
	}
	if s.maxRun == 0 || end.IsZero() || s.now.Before(end) {
		return false
	}
	return !slices.ContainsFunc(s.vms, func(vm *computepb.Instance) bool {
		isDown := slices.Contains(down, vm.GetStatus())
		return !isDown && !slices.Contains(goingDown, vm.GetStatus()) || isDown && timeOf(vm.GetLastStopTimestamp()).Before(end)
	})
}

// stoppedLately reports whether all stopped VMs stopped so recently that Compute Engine may
// start them again.
func (s sight) stoppedLately() bool {
	for _, vm := range s.vms {
		if at := timeOf(vm.GetLastStopTimestamp()); slices.Contains(down, vm.GetStatus()) && (at.IsZero() || s.now.Sub(at) > repairTime) {
			return false
		}
	}
	return true
}

// startedAgain reports whether a VM was stopped and then started.
func (s sight) startedAgain() bool {
	return slices.ContainsFunc(s.vms, func(vm *computepb.Instance) bool { return vm.GetLastStopTimestamp() != "" })
}

// end returns the first moment at which Compute Engine takes a VM of the slice away.
func (s sight) end() (first time.Time) {
	for _, vm := range s.vms {
		at := timeOf(vm.GetResourceStatus().GetScheduling().GetTerminationTimestamp())
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// billed returns since when the running VMs cost money, or zero. VMs of flex-start exist
// while they still wait.
func (s sight) billed() (first time.Time) {
	for _, vm := range s.vms {
		text := vm.GetCreationTimestamp()
		if vm.GetScheduling().GetProvisioningModel() == "FLEX_START" {
			text = vm.GetLastStartTimestamp()
		}
		at := timeOf(text)
		if !slices.Contains(down, vm.GetStatus()) && !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// failure returns the error of the last attempt to make a VM.
func (s sight) failure() (text, code string) {
	for _, m := range s.managed {
		for _, e := range m.GetLastAttempt().GetErrors().GetErrors() {
			return oneLine(e.GetMessage()), e.GetCode()
		}
	}
	return "", ""
}

func firstError(e *computepb.Error) (code, text string) {
	for _, item := range e.GetErrors() {
		return item.GetCode(), oneLine(item.GetMessage())
	}
	return "", ""
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// timeOf reads a time of the API, or returns zero.
func timeOf(text string) time.Time {
	t, _ := time.Parse(time.RFC3339, text)
	return t
}

// together returns the state of a resource whose slices have these states. The parameter
// missing counts slices whose groups do not exist. In a fresh resource they may still come.
// Otherwise somebody has deleted them.
func together(all []state, missing int, fresh bool) state {
	have := func(lives ...provision.Life) *state {
		for i := range all {
			if slices.Contains(lives, all[i].life) {
				return &all[i]
			}
		}
		return nil
	}
	queued, leaving, until := counted(all)
	whole := state{until: until}
	pick := func(st *state) state {
		picked := *st
		picked.until = whole.until
		return picked
	}
	if leaving > 0 && leaving == len(all) {
		return pick(&all[0])
	}
	for _, life := range []provision.Life{provision.Failed, provision.Suspended, provision.Suspending} {
		if st := have(life); st != nil {
			return pick(st)
		}
	}
	if gone := leaving + missing; leaving > 0 || missing > 0 && !fresh && len(all) > 0 {
		whole.life, whole.word, whole.by = provision.Suspended, wordHalfGone, "a user"
		if leaving > 0 {
			whole.life = provision.Suspending
		}
		whole.why = fmt.Sprintf("%d of %d slices are deleted", gone, len(all)+missing)
		return whole
	}
	if st := have(provision.Recovering); st != nil {
		return pick(st)
	}
	switch st := have(provision.Waiting, provision.Requested); {
	case len(all) == 0:
		return state{life: provision.Absent, word: provision.NotFound}
	case queued == len(all):
		return pick(clearest(all))
	case st != nil:
		partly := pick(clearest(all))
		partly.life, partly.word = provision.Provisioning, wordPartly
		partly.why = fmt.Sprintf("%d of %d slices wait: %s", queued+missing, len(all)+missing, partly.why)
		return partly
	case have(provision.Provisioning) != nil:
		return pick(have(provision.Provisioning))
	case missing > 0:
		whole.life, whole.word, whole.why = provision.Provisioning, wordPartly, fmt.Sprintf("%d of %d slices have no group", missing, len(all)+missing)
		return whole
	}
	for i := range all {
		if all[i].word == wordDegraded {
			return pick(&all[i])
		}
	}
	return pick(&all[0])
}

// counted returns how many slices are queued, and how many are being deleted. The result
// until is when the first slice ends, or zero.
func counted(all []state) (queued, leaving int, until time.Time) {
	for _, st := range all {
		if st.life.Queued() {
			queued++
		}
		if st.life == provision.Deleting {
			leaving++
		}
		if !st.until.IsZero() && (until.IsZero() || st.until.Before(until)) {
			until = st.until
		}
	}
	return queued, leaving, until
}

// clearest returns the queued state with the best reason for the wait. Lack of quota
// comes first, because it does not end by itself. At least one state must be queued.
func clearest(all []state) *state {
	rank := func(st state) int {
		switch {
		case !st.life.Queued():
			return 0
		case noQuota(st.code):
			return 4
		case st.code != "":
			return 3
		case st.life == provision.Waiting:
			return 2
		}
		return 1
	}
	best := 0
	for i := range all {
		if rank(all[i]) > rank(all[best]) {
			best = i
		}
	}
	return &all[best]
}

// conditionOf says what can be done with a slice in this state.
func conditionOf(st state) tpu.Condition {
	switch st.life {
	case provision.Active:
		return tpu.Usable
	case provision.Requested, provision.Waiting, provision.Provisioning:
		return tpu.Making
	case provision.Suspending, provision.Suspended:
		if st.word == wordPreempted {
			return tpu.Taken
		}
		return tpu.Halted
	case provision.Deleting:
		return tpu.Leaving
	}
	return tpu.Unclear
}

// reason says in one sentence why a resource does not come up, and what to type.
func reason(st state, r provision.Resource, zone string) provision.Explanation {
	why := ": " + st.why
	if st.life == provision.Failed { // the text about the failure already names the state
		st.why, why = "", ""
	}
	switch {
	case noQuota(st.code):
		const more = "ask for more quota at https://console.cloud.google.com/iam-admin/quotas, or delete what uses it: multihost slices list"
		return provision.Explanation{Reason: "the quota of the project is too small" + why + "; waiting does not help", Hint: more, Again: more}
	case noCapacity(st.code), st.code == "INTERNAL_ERROR":
		elsewhere := "try another zone with --zone=ZONE"
		if !r.Tier.IsReserved() && r.Tier != provision.FlexStart {
			elsewhere += ", or another tier: --flex-start"
		}
		return provision.Explanation{Reason: "zone " + zone + " has no free machines of this type now" + why, Hint: elsewhere, Again: elsewhere}
	case st.life == provision.Recovering:
		return provision.Explanation{Reason: st.why, Hint: "wait: the slice keeps its capacity"}
	}
	return provision.Explanation{Reason: st.why}
}
