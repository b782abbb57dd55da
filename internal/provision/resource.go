package provision

import (
	"strings"
	"time"

	"multihost/internal/tpu"
)

// A Tier is the kind of capacity that a request asks for.
type Tier string

// The tiers. The empty Tier is OnDemand.
const (
	OnDemand         Tier = "on-demand"
	Spot             Tier = "spot"
	BestEffort       Tier = "best-effort"
	Guaranteed       Tier = "guaranteed"
	Reserved         Tier = "reserved"
	ReservationBound Tier = "reservation-bound"
	FlexStart        Tier = "flex-start"
)

// IsReserved reports whether the capacity was reserved before the request.
func (t Tier) IsReserved() bool { return t == Reserved || t == ReservationBound }

// Reclaimable reports whether the provider may take slices of this tier back at any time.
func (t Tier) Reclaimable() bool { return t == Spot || t == BestEffort || t == FlexStart }

// A Request says what a job wants from a provider. A provider refuses what it cannot do.
type Request struct {
	ID        string   // id for the new resource
	NodeCount int      // number of slices, 1 or more
	Nodes     []string // their names
	Apart     bool     // the provider makes each slice separately, and its VMs do not know the other slices

	Type           tpu.Type
	Tier           Tier   // "": Reserved with a Reservation, otherwise OnDemand
	Reservation    string // name of reserved capacity, or ""
	MaxRunDuration time.Duration

	// When the slices may be made. Zero means any time.
	ValidAfterDuration time.Duration
	ValidUntilDuration time.Duration
	ValidAfterTime     time.Time
	ValidUntilTime     time.Time

	Network    string
	Subnetwork string
	Interfaces []Interface // network interfaces of each worker, if it has several; they replace Network and Subnetwork

	ServiceAccount string   // account of the workers; "": the provider's default
	Scopes         []string // what the account may call

	Labels   map[string]string
	Metadata map[string]string
	// OwnMetadata is added to Metadata. A comparison with an existing resource ignores it.
	OwnMetadata map[string]string

	// SlicesDeadline is how long slices that have come are kept while others are missing. 0
	// means no limit. The wait for the slices applies this limit, not the provider.
	SlicesDeadline time.Duration

	// Own holds settings that only one provider knows and reads. A field above takes
	// precedence over the same setting in Own.
	Own any
}

// An Interface is one of several network interfaces of a worker.
type Interface struct {
	Network     string
	Subnetwork  string
	ExternalIPs bool
}

// Mark adds the labels of OwnerLabels to the request.
func (r *Request) Mark(run, user string) { r.Labels = with(r.Labels, OwnerLabels(run, user)) }

// MarkJob adds the label that says that the job of this run makes and deletes the
// resource.
func (r *Request) MarkJob(run string) { r.Labels = JobLabels(r.Labels, run) }

// NodeNames returns the names of the slices that the request makes.
func (r Request) NodeNames() []string {
	if len(r.Nodes) == 0 && r.NodeCount <= 1 {
		return []string{r.ID}
	}
	return r.Nodes
}

// Asks returns the tier of the request, or the tier that its other fields imply.
func (r Request) Asks() Tier {
	switch {
	case r.Tier != "":
		return r.Tier
	case r.Reservation != "":
		return Reserved
	}
	return OnDemand
}

// RunLabel returns the label of the run.
func (r Request) RunLabel() (key, value string) { return LabelRun, r.Labels[LabelRun] }

// MakingTime limits the time from the newest part of a resource to its next part. A younger
// part does not count as the rest of a resource that is gone. The API usually accepts a part
// within seconds. If Google refuses it for minutes, multihost asks again.
const MakingTime = 15 * time.Minute

// A Resource is what a provider has made, or will make, for one request.
type Resource struct {
	ID       string
	Commands Commands // its kind in words, and what a person types about it
	Zone     string

	Life        Life
	State       string // the provider's own word for Life, for messages: "WAITING_FOR_RESOURCES"
	ByUser      bool   // a user caused this life, not the provider
	By          string // who caused it, in words: "Google (preemption or maintenance)"; "": unknown
	Over        bool   // the requested time of its slices has passed
	Loss        Loss   // why its slices were taken away, if the provider says so; otherwise NoLoss
	Failure     string // the provider's text about a failure, or about what happened to its slices
	Starved     bool   // it failed because capacity or quota is lacking
	Reclaimable bool   // the provider may take its slices back at any time
	Free        bool   // without slices; its parts cost nothing and hold no quota

	// Until is when the provider takes the slices back because the request limits their
	// time. Zero means never, or unknown.
	Until time.Time

	Type       string // accelerator type
	Tier       Tier
	Network    string
	NodeCount  int
	Nodes      []string    // names of its slices, whether they exist or not
	Slices     []tpu.Slice // existing slices, in the order of Nodes; Index is the index in Nodes
	Missing    []Missing   // slices that have not come although others have, which are billed meanwhile
	Labels     map[string]string
	Metadata   map[string]string // metadata requested for its VMs; nil: unknown
	CreateTime time.Time

	// Own is the provider's own description. Only the provider reads it.
	Own any
}

// A Missing slice has not come yet. Its provider makes it separately from the others.
type Missing struct {
	Name string
	Why  string // what the slice waits for, in words
}

// Owner describes the owner of the resource, from its labels.
func (r Resource) Owner() string { return Owner(r.Labels) }

// IsOf reports whether the resource belongs to a run of this name.
func (r Resource) IsOf(run string) bool { return r.Labels[LabelRun] == LabelValue(run) }

// JobMade reports whether a job made the resource. Such a job deletes it at its end.
func (r Resource) JobMade() bool { return r.Labels[LabelTool] == ToolName && r.Labels[LabelJob] != "" }

// Made reports whether multihost made the resource. run and user are the values of
// its labels, in the form of LabelValue.
func (r Resource) Made() (run, user string, ok bool) {
	return r.Labels[LabelRun], r.Labels[LabelUser], r.Labels[LabelTool] == ToolName
}

// ReadySlices counts the slices that are ready for a run.
func (r Resource) ReadySlices() int {
	n := 0
	for _, s := range r.Slices {
		if ok, _ := s.Ready(); ok {
			n++
		}
	}
	return n
}

// Dead reports whether the resource can give no more slices but still counts
// against the quota.
func (r Resource) Dead() bool { return r.Life.Dead() }

// Spent reports whether the resource is dead and none of its slices runs. After the loss of
// a slice, some providers keep the others. These are billed, and a command may run on them.
func (r Resource) Spent() bool { return r.Dead() && r.ReadySlices() == 0 }

// ofNoCost says in messages that a Free resource costs nothing.
const ofNoCost = "costs nothing and holds no quota"

// Remains says what the Free resources in all cost and what removes them, or returns "" if
// there are none. A Free resource that is not dead may still get slices.
func Remains(all []Resource) (text, hint string) {
	var names, removes []string
	unless := ""
	for _, r := range all {
		if !r.Free {
			continue
		}
		names, removes = append(names, r.ID), append(removes, r.Commands.Delete)
		if !r.Dead() {
			unless = "unless a command is making it now, "
		}
	}
	switch len(names) {
	case 0:
		return "", ""
	case 1:
		return names[0] + " has no slices, " + ofNoCost, unless + "remove what is left of it with: " + removes[0]
	}
	return strings.Join(names, ", ") + " have no slices, cost nothing and hold no quota", unless + "remove what is left of each, such as: " + removes[0]
}

// Standing returns the state and its meaning for the bill, as the end of a sentence about a
// resource that is not deleted.
func (r Resource) Standing() string {
	switch {
	case r.Free:
		return "state " + r.State + ", has no slices, " + ofNoCost
	case r.Spent():
		return "state " + r.State + ", and holds quota until it is deleted"
	case len(r.Slices) == 0:
		return "state " + r.State + ", and is billed once it has slices"
	}
	return "state " + r.State + ", and is billed"
}

// Absence returns the sight of a resource that existed and can no longer be found. kind is
// the word for it in messages.
func Absence(kind string) Sight {
	return Sight{Kind: kind, Life: Absent, Word: NotFound, Existed: true}
}

// Sight combines what the provider says about r with what reach says about the slice of
// each name. A nil reach means that no worker was tried.
func (r Resource) Sight(reach func(slice string) Reach) Sight {
	s := Sight{
		Kind: r.Commands.Kind, Life: r.Life, Word: r.State, Detail: r.Failure, Existed: true,
		ByUser: r.ByUser, Over: r.Over, Loss: r.Loss, Reclaimable: r.Reclaimable,
	}
	for _, name := range r.Nodes {
		have := tpu.Slice{Name: name} // stays empty if the provider does not list the slice
		for _, slice := range r.Slices {
			if slice.Name == name {
				have = slice
			}
		}
		seen := SightOf(have)
		if reach != nil {
			seen.Reach = reach(name)
		}
		s.Slices = append(s.Slices, seen)
	}
	return s
}

// SightOf describes a slice as its provider lists it. A slice without State is not listed.
// The Reach of the result is Untried.
func SightOf(slice tpu.Slice) SliceSight {
	s := SliceSight{Name: slice.Name, Loss: Infrastructure, State: "slice " + slice.Name + " is " + slice.State}
	switch slice.Condition {
	case tpu.Usable:
		s.Up, s.Loss = true, NoLoss
	case tpu.Serviced, tpu.Ill:
		s.Up = true
		if slice.Condition == tpu.Serviced {
			s.Loss = Maintenance
		}
		s.State += " and its health is " + slice.Health
	case tpu.Taken: // decided with its resource
		s.Loss = Preempted
	}
	if slice.State == "" {
		s.State = "slice " + slice.Name + " is gone"
	}
	return s
}
