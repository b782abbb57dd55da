// Package provision stands between a job and the provider that makes its slices. A
// [Provider] (package qr for queued resources) takes a [Request], describes what exists as
// a [Resource], and translates its own words into a [Life] and a condition of each slice.
// [Decide] says what to do about the resource: wait for it, use it, reboot its VMs, make it
// again, or give up. Only a provider knows its words, and only Decide judges.
//
// The package is pure: it reads nothing, waits for nothing and uses no clock.
package provision

// A Life is the stage in the life of a resource:
//
//	absent → requested → waiting → provisioning → active ⇄ recovering
//	              │          │           │           │
//	              └──────────┴───────────┴───────────┴→ suspending → suspended → deleting → absent
//	                                                 └→ failed
//
// Somebody may delete a resource at every stage. A suspended or failed resource never
// recovers, and counts against the quota until somebody deletes it. A provider that
// restarts or replaces slices itself keeps their capacity meanwhile. Such a resource is
// Recovering: multihost waits for it and never deletes it.
type Life string

// The lives of a resource.
const (
	Absent       Life = "absent"
	Requested    Life = "requested"    // the provider has not accepted it yet, or its word is unknown
	Waiting      Life = "waiting"      // waits for capacity; nothing exists, nothing is billed
	Provisioning Life = "provisioning" // its slices are being made
	Active       Life = "active"       // its slices exist, ready or not
	Recovering   Life = "recovering"   // the provider itself restarts or replaces slices
	Suspending   Life = "suspending"   // its slices are being taken away
	Suspended    Life = "suspended"    // its slices were taken away
	Failed       Life = "failed"
	Deleting     Life = "deleting"
)

// Queued reports whether a resource of this life waits for its turn: it has no slices and
// never had any.
func (l Life) Queued() bool { return l == Requested || l == Waiting }

// Dead reports whether a resource of this life gives no more slices. It counts against
// the quota until it is deleted.
func (l Life) Dead() bool { return l == Suspended || l == Failed }

// Empty reports whether a resource of this life certainly has no VMs.
func (l Life) Empty() bool { return l == Absent || l == Waiting || l.Dead() }

// A Loss is the reason why requested slices cannot be used.
type Loss string

// The losses. A user wants Removed and Expired, but not the others.
const (
	NoLoss         Loss = ""
	Preempted      Loss = "preempted"
	Maintenance    Loss = "maintenance"
	Infrastructure Loss = "infrastructure"
	Removed        Loss = "removed by a user"
	Expired        Loss = "expired" // the requested time of the slices has passed
)

// A Step is what to do next about a resource.
type Step string

// The steps. Decide only names a step. The caller carries it out.
const (
	StepCreate   Step = "create"
	StepWait     Step = "wait"     // the resource changes by itself
	StepUse      Step = "use"      // every worker answers
	StepReset    Step = "reset"    // reboot all VMs
	StepRecreate Step = "recreate" // delete it, wait until it is gone, create it
	StepGiveUp   Step = "give up"  // no allowed step helps
)

// A Reach says whether the workers of a slice answer.
type Reach string

// What is known about the workers of a slice.
const (
	Untried Reach = ""        // not known: nobody has tried
	Answers Reach = "answers" // every worker answers
	Silent  Reach = "silent"  // some worker does not answer
)

// A Sight is all that is known about a resource at one moment.
type Sight struct {
	Kind   string // the provider's word for the resource: "queued resource"
	Life   Life
	Word   string // the provider's own word for Life, for messages: "WAITING_FOR_RESOURCES"
	Detail string // the provider's text about a failure, or about what happened to the slices

	ByUser      bool // a user caused this life, not the provider
	Over        bool // the requested time of its slices has passed
	Loss        Loss // why its slices were taken away, if the provider says so; otherwise NoLoss
	Reclaimable bool // the provider may take its slices back at any time: spot, flex-start

	Slices []SliceSight // one for each slice that it has or should have

	Existed bool // it was seen before, and this job has not deleted it
	Overdue bool // its life and slices have not changed for longer than this life allows
	Resets  int  // number of resets since its slices last answered
}

// A SliceSight is what is known about one slice.
type SliceSight struct {
	Name  string
	State string // one clause about its state: "slice t-1 is PREEMPTED"
	Loss  Loss   // why the slice cannot be used, if the provider says so; NoLoss if it can
	Up    bool   // the VMs run, so they can be rebooted
	Reach Reach
}

// A Decision is what to do about a resource, and why.
type Decision struct {
	Step Step
	Loss Loss
	Why  string // one clause: "slice t-1 is PREEMPTED"
}

// Decide returns the next step for s, the mildest that may help. It waits for states that
// may pass by themselves, because a VM that boots, one that migrates and one that is being
// taken away look the same. s.Overdue says that a wait has lasted too long.
func Decide(s Sight) Decision {
	switch s.Life {
	case Absent:
		if s.Existed {
			return Decision{StepGiveUp, Removed, "the " + s.Kind + " was deleted by somebody else"}
		}
		return Decision{Step: StepCreate}
	case Provisioning:
		return s.overdue(StepRecreate, s.whileMade())
	case Active:
		return s.active()
	case Recovering:
		// A deletion would give up the capacity that the provider holds for the resource.
		// This is also true of a long recovery.
		return Decision{StepWait, Infrastructure, s.is() + ": it is restarted by itself"}
	case Suspending, Suspended:
		return s.overdue(StepRecreate, s.suspended())
	case Failed:
		why := "the " + s.Kind + " " + s.Word
		if s.Detail != "" {
			why += ": " + s.Detail
		}
		return Decision{StepRecreate, Infrastructure, why}
	case Deleting:
		return Decision{StepWait, Removed, s.is()}
	}
	return s.overdue(StepGiveUp, Decision{Step: StepWait})
}

func (s Sight) is() string { return "the " + s.Kind + " is " + s.Word }

// overdue puts step in place of a wait that has lasted too long.
func (s Sight) overdue(step Step, d Decision) Decision {
	if !s.Overdue || d.Step != StepWait {
		return d
	}
	d.Step = step
	if d.Loss == NoLoss {
		d.Loss = Infrastructure
	}
	if d.Why == "" {
		d.Why = s.is() + " for too long"
	}
	return d
}

// whileMade returns the decision to wait. If a slice is lost before all slices exist, the
// decision names it.
func (s Sight) whileMade() Decision {
	for _, slice := range s.Slices {
		if slice.Loss == Preempted {
			return slice.decide()
		}
	}
	return Decision{Step: StepWait}
}

// suspended returns the decision about slices that were taken away. The loss is Expired or
// Removed if their time has passed or a user removed them. If the provider gives no reason,
// reclaimable slices count as preempted, others as taken for maintenance.
func (s Sight) suspended() Decision {
	d := Decision{Step: StepRecreate, Loss: Maintenance, Why: s.is()}
	if s.Life == Suspending {
		d.Step = StepWait
	}
	switch {
	case s.Loss != NoLoss:
		d.Loss = s.Loss
	case s.Reclaimable:
		d.Loss = Preempted
	}
	if s.Detail != "" {
		d.Why += ": " + s.Detail
	}
	for _, slice := range s.Slices {
		if slice.Loss == Preempted {
			d.Loss, d.Why = Preempted, slice.State
		}
	}
	if s.Over {
		d.Loss, d.Why = Expired, s.is()
	}
	if s.ByUser {
		d.Loss, d.Why = Removed, "a user took the slices of the "+s.Kind
		if d.Step != StepWait {
			d.Step = StepGiveUp
		}
	}
	return d
}

// active returns the decision about the slice that needs the hardest step.
func (s Sight) active() Decision {
	worst := Decision{Step: StepUse}
	for _, slice := range s.Slices {
		if d := s.activeSlice(slice); rank(d) > rank(worst) {
			worst = d
		}
	}
	return worst
}

func (s Sight) activeSlice(slice SliceSight) Decision {
	d := slice.decide()
	if !s.Overdue || d.Step != StepWait || d.Loss == NoLoss { // no loss, because nobody has tried the workers yet
		return d
	}
	// Only running VMs can be rebooted, and a second reboot helps no more than the first.
	if slice.Up && d.Loss == Infrastructure && s.Resets == 0 {
		d.Step = StepReset
		return d
	}
	d.Step = StepRecreate
	return d
}

// decide returns the decision about one slice of a resource that exists.
func (s SliceSight) decide() Decision {
	switch {
	case s.Loss != NoLoss:
		return Decision{StepWait, s.Loss, s.State}
	case s.Reach == Answers:
		return Decision{Step: StepUse}
	case s.Reach == Silent:
		return Decision{StepWait, Infrastructure, s.State + ", but its workers do not all answer"}
	}
	return Decision{Step: StepWait}
}

// rank orders decisions about single slices. The whole resource needs the hardest step. Of
// equal steps, the one with the clearer loss counts.
func rank(d Decision) int {
	steps := map[Step]int{StepUse: 0, StepWait: 1, StepReset: 2, StepRecreate: 3}
	losses := map[Loss]int{NoLoss: 0, Infrastructure: 1, Maintenance: 2, Preempted: 3}
	return 4*steps[d.Step] + losses[d.Loss]
}
