package provision

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/tpu"
)

// The phases of a wait for slices, as events and DeadlineError name them.
const (
	PhaseQueue     = "queue"     // until there is capacity
	PhaseSlices    = "slices"    // from the first slice that has come until the last one has its capacity
	PhaseProvision = "provision" // until the slices exist
	PhaseBoot      = "boot"      // until every slice is ready and answers
	PhaseRecover   = "recover"   // while the provider restarts slices by itself
)

// A ConflictError says that a resource of the requested name exists but differs from the
// request. Create did not touch it.
type ConflictError struct {
	Commands    Commands
	ID          string
	Owner       string   // in the form of Resource.Owner: "run r1 of ada"
	Differences []string // each has the form "field: it has X, you asked for Y"
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("create %s %q: it exists and belongs to %s: %s",
		e.Commands.Kind, e.ID, e.Owner, strings.Join(e.Differences, "; "))
}

// Fault returns fault.Unavailable.
func (e *ConflictError) Fault() fault.Kind { return fault.Unavailable }

// Hint returns the command to type.
func (e *ConflictError) Hint() string {
	return "choose another name, or look at it with: " + e.Commands.Show
}

// A StateError says that a resource cannot become ready by itself.
type StateError struct {
	Commands  Commands
	ID        string
	Life      Life
	State     string // the provider's word
	By        string // who brought it into this state, in words, or ""
	Detail    string // the provider's own text, or ""
	Diagnosis string // the probable reason of a failure, or ""
	Starved   bool   // capacity or quota was lacking

	Command string // what to type; "": the usual command for this life
	Again   string // what to type after the resource is deleted, or ""
}

// NewStateError returns the *StateError for a life that ends every wait, or nil for another
// life.
func NewStateError(r Resource) error {
	switch r.Life {
	case Failed, Suspended, Suspending, Deleting:
		return &StateError{Commands: r.Commands, ID: r.ID, Life: r.Life, State: r.State, By: r.By, Detail: r.Failure, Starved: r.Starved}
	}
	return nil
}

// NoCapacity reports whether the provider named capacity or quota as the reason.
func (e *StateError) NoCapacity() bool { return e.Starved }

func (e *StateError) Error() string {
	text := fmt.Sprintf("%s %q: %s", e.Commands.Kind, e.ID, e.meaning())
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if e.Diagnosis != "" {
		text += "; " + e.Diagnosis
	}
	return text
}

// Fault returns fault.Temporary if capacity or quota was lacking, otherwise
// fault.Unavailable.
func (e *StateError) Fault() fault.Kind {
	if e.Starved {
		return fault.Temporary
	}
	return fault.Unavailable
}

func (e *StateError) meaning() string {
	by := ""
	if e.By != "" {
		by = " by " + e.By
	}
	switch e.Life {
	case Absent:
		return "it does not exist (any more)"
	case Failed:
		return "it " + e.State
	case Suspending:
		return "it is " + e.State + by + ": its slices are being taken away"
	case Suspended:
		return "it is " + e.State + by + ": its slices are gone, and it is not queued again by itself"
	case Deleting:
		return "it is " + e.State + ": somebody deletes it"
	}
	return "it is " + e.State
}

// Hint returns the command to type.
func (e *StateError) Hint() string {
	switch {
	case e.Life == Absent:
		return "see what exists with: " + e.Commands.List
	case e.Life == Deleting:
		return "wait until it is gone with: " + e.Commands.Gone
	case e.Command != "":
		return e.Command
	}
	return "it counts against the quota until it is deleted; type: " + e.Commands.Delete
}

// HintWhenGone returns the command to type after the resource is deleted, or "".
func (e *StateError) HintWhenGone() string { return e.Again }

// A DeadlineError says that a phase of a wait took longer than its limit. The resource
// still exists or is still being deleted. State is what the provider returned after the
// limit had passed.
type DeadlineError struct {
	Commands Commands
	ID       string
	Phase    string // a Phase constant, "delete" or "create"
	Limit    time.Duration
	Life     Life
	State    string // the provider's word, or "" if it could not be read
	Detail   string // what is missing; in the queue, the probable reason
	Slices   []tpu.Slice
	Silent   []string // names of running slices of which some worker does not answer
	Err      error    // why the state could not be read, or nil

	Consoles []Console // serial consoles of VMs that do not answer; the first one explains most

	Missing []Missing // slices that have not come although others have
	Total   int       // number of slices that were asked for
	Cost    string    // what the slices that have come cost, in words

	Again string // what to type after the resource is deleted, or ""
}

func (e *DeadlineError) Error() string {
	if GivesBack(e) {
		return fmt.Sprintf("wait for %s %q: %s", e.Commands.Kind, e.ID, e.Lack())
	}
	text := fmt.Sprintf("wait for %s %q: phase %s is not over after %s", e.Commands.Kind, e.ID, e.Phase, event.Duration(e.Limit))
	switch {
	case e.Err != nil:
		text += ": its state is unknown"
	case e.Life == Absent:
		text += ": it does not exist any more"
	default:
		text += ": it is " + e.State
	}
	if e.Detail != "" {
		text += "; " + e.Detail
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Lack says, for PhaseSlices, which slices have not come and why, and what the others have
// cost.
func (e *DeadlineError) Lack() string {
	names, texts := make([]string, len(e.Missing)), make([]string, len(e.Missing))
	for i, m := range e.Missing {
		names[i], texts[i] = m.Name, m.Why
	}
	return fmt.Sprintf("%d of %s came within %s of the first one (--slices-deadline); missing is %s; cost of the others: %s",
		e.Total-len(e.Missing), event.Count(e.Total, "slice"), event.Duration(e.Limit), tpu.FoldTexts(names, texts), e.Cost)
}

// GivesBack reports whether err says that slices did not come within
// [Request.SlicesDeadline]. The slices that came must then be deleted.
func GivesBack(err error) bool {
	var late *DeadlineError
	return errors.As(err, &late) && late.Phase == PhaseSlices
}

// Fault returns fault.Temporary.
func (e *DeadlineError) Fault() fault.Kind { return fault.Temporary }

// Unwrap returns the reason why the state could not be read.
func (e *DeadlineError) Unwrap() error { return e.Err }

// Hint returns the command to type.
func (e *DeadlineError) Hint() string {
	if e.Phase == "delete" {
		return "it may still be billed; ask again with: " + e.Commands.Delete
	}
	hint := "it still exists; wait on with: " + e.Commands.Wait + "; or remove it with: " + e.Commands.Delete
	if len(e.Consoles) > 0 {
		hint += "; see the whole serial console with: " + e.Consoles[0].Show
	}
	return hint
}

// HintWhenGone returns the command to type after the resource is deleted, or "".
func (e *DeadlineError) HintWhenGone() string { return e.Again }
