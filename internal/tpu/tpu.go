// Package tpu has the basic types of the project and their arithmetic: accelerator types,
// slices and workers. It also has the selection of workers by name, and the written form of
// a set of workers. It does no I/O and uses only the standard library.
//
// # Decisions
//
//   - Prices are a table (prices.txt) with its source and date, because a program needs a
//     key to read Google's list of prices. If the table lacks a price, the price is
//     unknown. It is never guessed.
package tpu

import (
	"cmp"
	"fmt"
	"time"
)

// A WorkerID identifies one worker of a run by slice number and worker number. Both begin
// at 0. Its written form is s0w3.
type WorkerID struct {
	Slice, Worker int
}

func (w WorkerID) String() string { return fmt.Sprintf("s%dw%d", w.Slice, w.Worker) }

// CompareWorkers orders workers by slice and number, for package slices.
func CompareWorkers(a, b WorkerID) int {
	return cmp.Or(cmp.Compare(a.Slice, b.Slice), cmp.Compare(a.Worker, b.Worker))
}

// A Slice is one TPU node resource as the API reports it.
type Slice struct {
	Index int    // number within the run, from 0
	Name  string // node id, the last part of the resource name: "t-0"
	UID   string // the API's unique id; a new id with the same name means a new machine

	// Provider says which provider has the slice, by that provider's word for its resources. It
	// is "" if there is only one provider.
	Provider string

	Project string
	Zone    string
	Created time.Time // when the API has made it; zero: unknown
	Billed  time.Time // since when it is billed; zero: it is not billed, or not known
	Until   time.Time // when the provider takes it away, because the request limits its time; zero: never, or not known
	Remade  bool      // if its VMs are lost, the provider makes a new slice with the same name and another UID
	EndFlag string    // the flag that has set Until; "": --max-run-duration

	Type           string // accelerator type: "v5litepod-16"
	RuntimeVersion string
	Condition      Condition
	State          string // the provider's word behind Condition: READY, CREATING, PREEMPTED, …
	Health         string // the provider's word for the health: HEALTHY, … or empty
	HealthDetail   string
	QueuedResource string   // id of the queued resource that has made it, or empty
	MultiSlice     bool     // made by one queued resource for several nodes; so it has MEGASCALE metadata
	BareNames      bool     // its VMs use names for each other that this machine cannot resolve
	Network        string   // network name
	Tags           []string // network tags of its workers, which firewall rules use
	Labels         map[string]string
	Metadata       map[string]string

	Workers []Worker // in the order of networkEndpoints; empty while the slice is being made
	Untold  []Worker // its VMs, in no order, while it is not known which worker each of them is
}

// FirstEnd returns the earliest time at which the provider takes one of the slices away.
// The zero time means never, or not known.
func FirstEnd(all []Slice) (first time.Time) {
	for _, s := range all {
		if !s.Until.IsZero() && (first.IsZero() || s.Until.Before(first)) {
			first = s.Until
		}
	}
	return first
}

// EndFlag returns the flag that has set FirstEnd.
func EndFlag(all []Slice) string {
	for _, s := range all {
		if s.EndFlag != "" && s.Until.Equal(FirstEnd(all)) {
			return s.EndFlag
		}
	}
	return "--max-run-duration"
}

// A Condition says what can be done with a slice. The provider that lists slices translates
// its own words into a Condition. No other code reads those words.
type Condition string

// The conditions.
const (
	Unclear  Condition = ""           // the provider's word is not known, or there is none
	Making   Condition = "being made" // no command can run on it yet
	Usable   Condition = "usable"     // its VMs run and are healthy
	Ill      Condition = "ill"        // its VMs run, but some part is broken
	Serviced Condition = "in service" // its VMs run, while the provider repairs the machines
	Halted   Condition = "halted"     // its VMs are stopped, or are going to be
	Taken    Condition = "taken"      // the provider has taken it away
	Leaving  Condition = "being deleted"
)

// Over reports whether no command can run on the slice any more. The VMs do not start again by
// themselves.
func (c Condition) Over() bool { return c == Taken || c == Leaving || c == Halted }

// A Worker is one VM of a slice.
type Worker struct {
	Name     string // name of the VM, if the provider of the slice knows VMs by name
	Internal string // IP address inside the network; for a host outside the cloud, its name
	External string // external IP address, or empty

	// If the user has named the hosts one by one, Login and Port are for this worker only.
	// Zero values mean that the values for all workers apply.
	Login string
	Port  int
}

// Ready reports whether the slice is ready for a run: its VMs run, it is healthy, and its
// workers are known. If it is not, why gives the reason.
func (s Slice) Ready() (ok bool, why string) {
	switch {
	case s.Condition != Usable && s.Condition != Ill && s.Condition != Serviced:
		return false, "state " + s.State
	case s.Condition != Usable:
		why = "health " + s.Health
		if s.HealthDetail != "" {
			why += ": " + s.HealthDetail
		}
		return false, why
	case len(s.Workers) == 0:
		return false, "no workers yet (no networkEndpoints)"
	}
	return true, ""
}

// ParseWorkerID parses a worker in the form that String returns.
func ParseWorkerID(text string) (WorkerID, error) {
	var w WorkerID
	if n, err := fmt.Sscanf(text, "s%dw%d", &w.Slice, &w.Worker); err != nil || n != 2 || w.Slice < 0 || w.Worker < 0 || w.String() != text {
		ask := ""
		if whole := likely(text); whole != "" {
			ask = "did you mean " + whole + "? "
		}
		return WorkerID{}, fmt.Errorf("parse worker %q: %sworkers are written s0w0, s0w1, s1w0, …", text, ask)
	}
	return w, nil
}
