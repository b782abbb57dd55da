package qr

import (
	"fmt"
	"slices"
	"strings"

	"multihost/internal/tpu"
)

// A Life is where a queued resource stands:
//
//	absent → requested → waiting → provisioning → active → suspended → deleting → absent
//	              └──────────┴──────────┴───────────┴────→ failed ──────┘
//
// From every one of them somebody may delete it. The API never leads back: what
// is suspended or failed is not queued again, and counts against the quota
// until it is deleted.
type Life string

// The stations of a queued resource.
const (
	Absent       Life = "absent"
	Requested    Life = "requested"    // CREATING, ACCEPTED
	Waiting      Life = "waiting"      // WAITING_FOR_RESOURCES
	Provisioning Life = "provisioning" // PROVISIONING
	Active       Life = "active"       // ACTIVE: its slices exist, ready or not
	Suspended    Life = "suspended"    // SUSPENDING, SUSPENDED
	Failed       Life = "failed"       // FAILED
	Deleting     Life = "deleting"     // DELETING
)

// LifeOf is the station of a state in the API's words, or of NotFound. A word
// that is not known is taken for one on the way: waiting shows what becomes of
// it, and nothing is deleted for a word.
func LifeOf(state string) Life {
	switch state {
	case NotFound:
		return Absent
	case "WAITING_FOR_RESOURCES":
		return Waiting
	case "PROVISIONING":
		return Provisioning
	case "ACTIVE":
		return Active
	case "SUSPENDING", "SUSPENDED":
		return Suspended
	case "FAILED":
		return Failed
	case "DELETING":
		return Deleting
	}
	return Requested
}

// A Loss is why slices that were asked for cannot be used.
type Loss string

// The losses. Removed is somebody's wish; the others happen.
const (
	NoLoss         Loss = ""
	Preempted      Loss = "preempted"
	Maintenance    Loss = "maintenance"
	Infrastructure Loss = "infrastructure"
	Removed        Loss = "removed by a user"
)

// A Step is what to do next about a queued resource.
type Step string

// The steps. None of them is taken by Decide itself.
const (
	StepCreate   Step = "create"
	StepWait     Step = "wait"     // it changes by itself
	StepUse      Step = "use"      // every worker answers
	StepReset    Step = "reset"    // reboot all VMs
	StepRecreate Step = "recreate" // delete, wait until it is gone, create
	StepGiveUp   Step = "give up"  // nothing that may be done here helps
)

// A Reach is what is known of the workers of a slice.
type Reach string

// What a slice may have shown. The zero value says that it was not tried.
const (
	Untried Reach = ""
	Answers Reach = "answers" // every worker does
	Silent  Reach = "silent"  // some worker does not
)

// A Sight is all that is known about a queued resource at one moment.
type Sight struct {
	State     string // the API's word, or NotFound
	Initiator string // who brought it there: USER, SERVICE or empty
	Detail    string // the API's text of a failure
	Tier      Tier
	Slices    []SliceSight // one for each that it has or ought to have

	Existed bool // it was seen before, and we did not delete it
	Overdue bool // it has shown the same for longer than its phase may take
	Resets  int  // how often it was reset since its slices last answered
}

// A SliceSight is what is known about one slice.
type SliceSight struct {
	Name   string
	State  string // the API's word; empty: it is not listed
	Health string
	Reach  Reach
}

// A Decision is what to do about a queued resource, and why.
type Decision struct {
	Step Step
	Loss Loss
	Why  string // one clause: "slice t-1 is PREEMPTED"
}

// Sight puts together what the API says of r and what reach says of its slices,
// by name. A nil reach has tried none.
func (r Resource) Sight(reach func(slice string) Reach) Sight {
	s := Sight{State: r.State, Initiator: r.StateInitiator, Detail: r.Failure, Tier: r.Tier, Existed: true}
	for _, name := range r.Nodes {
		seen := SliceSight{Name: name}
		if i := slices.IndexFunc(r.Slices, func(have SliceState) bool { return have.Name == name }); i >= 0 {
			seen.State, seen.Health = r.Slices[i].State, r.Slices[i].Health
		}
		if reach != nil {
			seen.Reach = reach(name)
		}
		s.Slices = append(s.Slices, seen)
	}
	return s
}

// Decide says what to do about what is seen. It is the whole state machine: it
// does nothing, reads nothing and knows no time; the caller says when a phase
// is overdue. The milder step comes first, and what may settle by itself is
// waited for: a VM that boots, migrates or is being taken away looks the same.
func Decide(s Sight) Decision {
	switch LifeOf(s.State) {
	case Absent:
		if s.Existed {
			return Decision{StepGiveUp, Removed, "the queued resource was deleted by somebody else"}
		}
		return Decision{Step: StepCreate}
	case Requested, Waiting:
		return s.overdue(StepGiveUp, Decision{Step: StepWait})
	case Provisioning:
		return s.overdue(StepRecreate, s.whileMade())
	case Suspended:
		return s.overdue(StepRecreate, s.suspended())
	case Failed:
		return Decision{StepRecreate, Infrastructure, strings.TrimSuffix("the queued resource FAILED: "+s.Detail, ": ")}
	case Deleting:
		return Decision{StepWait, Removed, "the queued resource is DELETING"}
	}
	worst := Decision{Step: StepUse}
	for _, slice := range s.Slices {
		if d := s.overdueSlice(slice); rank(d) > rank(worst) {
			worst = d
		}
	}
	return worst
}

// overdue turns a wait that has lasted too long into step.
func (s Sight) overdue(step Step, d Decision) Decision {
	if !s.Overdue || d.Step != StepWait {
		return d
	}
	d.Step = step
	if d.Loss == NoLoss {
		d.Loss = Infrastructure
	}
	if d.Why == "" {
		d.Why = "the queued resource is " + s.State + " for too long"
	}
	return d
}

// whileMade is a wait that tells a slice that is lost before all are there.
func (s Sight) whileMade() Decision {
	for _, slice := range s.Slices {
		if d := sliceDecision(slice); d.Loss == Preempted {
			return d
		}
	}
	return Decision{Step: StepWait}
}

// suspended: the service takes slices of the tiers that it may take back by
// preempting them, others for maintenance; a user by deleting the slices.
func (s Sight) suspended() Decision {
	d := Decision{Step: StepRecreate, Loss: Maintenance, Why: "the queued resource is " + s.State}
	if s.State == "SUSPENDING" {
		d.Step = StepWait
	}
	switch s.Tier {
	case Spot, BestEffort, FlexStart:
		d.Loss = Preempted
	}
	for _, slice := range s.Slices {
		if slice.State == "PREEMPTED" || slice.State == "TERMINATED" {
			d.Loss, d.Why = Preempted, fmt.Sprintf("slice %s is %s", slice.Name, slice.State)
		}
	}
	if s.Initiator == "USER" {
		d.Loss, d.Why = Removed, "a user took the slices of the queued resource"
		if d.Step != StepWait {
			d.Step = StepGiveUp
		}
	}
	return d
}

// overdueSlice is the decision about one slice of an ACTIVE resource.
func (s Sight) overdueSlice(slice SliceSight) Decision {
	d := sliceDecision(slice)
	if d.Step != StepWait || d.Loss == NoLoss || !s.Overdue { // without a loss it has to be tried first
		return d
	}
	// Only VMs that are there can be rebooted, and a second reboot helps no more
	// than the first.
	if slice.State == "READY" && d.Loss == Infrastructure && s.Resets == 0 {
		d.Step = StepReset
		return d
	}
	d.Step = StepRecreate
	return d
}

// sliceDecision is what one slice of a living resource shows.
func sliceDecision(slice SliceSight) Decision {
	why := fmt.Sprintf("slice %s is %s", slice.Name, slice.State)
	switch slice.State {
	case "":
		return Decision{StepWait, Infrastructure, fmt.Sprintf("slice %s is gone", slice.Name)}
	case "PREEMPTED", "TERMINATED": // the queued resource follows: SUSPENDING
		return Decision{StepWait, Preempted, why}
	case "READY":
	default: // STOPPED too: only single-host slices can be started again
		return Decision{StepWait, Infrastructure, why}
	}
	health := " and its health is " + slice.Health
	switch {
	case slice.Health == "UNHEALTHY_MAINTENANCE":
		return Decision{StepWait, Maintenance, why + health}
	case !tpu.Healthy(slice.Health):
		return Decision{StepWait, Infrastructure, why + health}
	case slice.Reach == Answers:
		return Decision{Step: StepUse}
	case slice.Reach == Silent:
		return Decision{StepWait, Infrastructure, why + ", but its workers do not all answer"}
	}
	return Decision{Step: StepWait} // READY, and nobody has tried its workers
}

// rank orders the decisions about single slices: the hardest step is what the
// resource as a whole needs, and of two like steps the clearer loss is told.
func rank(d Decision) int {
	steps := map[Step]int{StepUse: 0, StepWait: 1, StepReset: 2, StepRecreate: 3}
	losses := map[Loss]int{NoLoss: 0, Infrastructure: 1, Maintenance: 2, Preempted: 3}
	return 4*steps[d.Step] + losses[d.Loss]
}
