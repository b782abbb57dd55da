package qr_test

import (
	"fmt"
	"slices"
	"testing"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/sim"

	"github.com/google/go-cmp/cmp"
)

// four returns a queued resource with four slices. All but the third are ready and healthy.
func four(state, slice, health string) qr.Resource {
	r := qr.Resource{State: state}
	for i := range 4 {
		r.Nodes = append(r.Nodes, fmt.Sprintf("t-%d", i))
		have := qr.SliceState{Name: r.Nodes[i], State: "READY", Health: "HEALTHY"}
		if i == 2 {
			have.State, have.Health = slice, health
		}
		if have.State != "" { // otherwise the API does not list it
			r.Slices = append(r.Slices, have)
		}
	}
	return r
}

// sees returns the sight of r. All workers answer, except that the workers of the third
// slice have the given Reach.
func sees(r qr.Resource, reach provision.Reach) provision.Sight {
	return r.Neutral().Sight(func(slice string) provision.Reach {
		if slice == "t-2" {
			return reach
		}
		return provision.Answers
	})
}

func TestDecide(t *testing.T) {
	active := func(slice, health string, reach provision.Reach) provision.Sight {
		return sees(four("ACTIVE", slice, health), reach)
	}
	only := func(state string) provision.Sight { return qr.Resource{State: state}.Neutral().Sight(nil) }
	suspended := func(state, initiator string, tier qr.Tier) provision.Sight {
		return qr.Resource{State: state, StateInitiator: initiator, Tier: tier}.Neutral().Sight(nil)
	}
	overdue := func(s provision.Sight) provision.Sight { s.Overdue = true; return s }
	again := func(s provision.Sight) provision.Sight { s.Resets++; return s }
	for _, row := range []struct {
		story string
		sight provision.Sight
		step  provision.Step
		loss  provision.Loss
		why   string
	}{
		{"an admin deleted it", provision.Absence("queued resource"), provision.StepGiveUp, provision.Removed, "the queued resource was deleted by somebody else"},
		{"an admin deletes it", only("DELETING"), provision.StepWait, provision.Removed, "the queued resource is DELETING"},
		{"just asked for", only("CREATING"), provision.StepWait, provision.NoLoss, ""},
		{"accepted", only("ACCEPTED"), provision.StepWait, provision.NoLoss, ""},
		{"no capacity for hours", only("WAITING_FOR_RESOURCES"), provision.StepWait, provision.NoLoss, ""},
		{"no capacity within the limit", overdue(only("WAITING_FOR_RESOURCES")), provision.StepGiveUp, provision.Infrastructure, "the queued resource is WAITING_FOR_RESOURCES for too long"},
		{"a word that is new to us", only("PONDERING"), provision.StepWait, provision.NoLoss, ""},
		{"VMs are being made", four("PROVISIONING", "CREATING", "").Neutral().Sight(nil), provision.StepWait, provision.NoLoss, ""},
		{"VMs are made for too long", overdue(four("PROVISIONING", "CREATING", "").Neutral().Sight(nil)), provision.StepRecreate, provision.Infrastructure, "the queued resource is PROVISIONING for too long"},
		{"one is preempted while the others are made", four("PROVISIONING", "PREEMPTED", "").Neutral().Sight(nil), provision.StepWait, provision.Preempted, "slice t-2 is PREEMPTED"},
		{"failed", qr.Resource{State: "FAILED", Failure: "an internal error has occurred"}.Neutral().Sight(nil), provision.StepRecreate, provision.Infrastructure, "the queued resource FAILED: an internal error has occurred"},
		{"spot slices are being taken", suspended("SUSPENDING", "SERVICE", qr.Spot), provision.StepWait, provision.Preempted, "the queued resource is SUSPENDING"},
		{"spot slices are taken", suspended("SUSPENDED", "SERVICE", qr.Spot), provision.StepRecreate, provision.Preempted, "the queued resource is SUSPENDED"},
		{"flex-start slices are taken", suspended("SUSPENDED", "SERVICE", qr.FlexStart), provision.StepRecreate, provision.Preempted, "the queued resource is SUSPENDED"},
		{"on-demand slices are taken for maintenance", suspended("SUSPENDED", "SERVICE", qr.OnDemand), provision.StepRecreate, provision.Maintenance, "the queued resource is SUSPENDED"},
		{"one of four on-demand slices shows why", four("SUSPENDED", "PREEMPTED", "").Neutral().Sight(nil), provision.StepRecreate, provision.Preempted, "slice t-2 is PREEMPTED"},
		{"a user is taking the slices", suspended("SUSPENDING", "USER", qr.Spot), provision.StepWait, provision.Removed, "a user took the slices of the queued resource"},
		{"a user took the slices", suspended("SUSPENDED", "USER", qr.Spot), provision.StepGiveUp, provision.Removed, "a user took the slices of the queued resource"},

		{"all answer", active("READY", "HEALTHY", provision.Answers), provision.StepUse, provision.NoLoss, ""},
		{"health is not told", active("READY", "", provision.Answers), provision.StepUse, provision.NoLoss, ""},
		{"READY, not yet tried", active("READY", "HEALTHY", provision.Untried), provision.StepWait, provision.NoLoss, ""},
		{"preemption of one slice of four", active("PREEMPTED", "", provision.Silent), provision.StepWait, provision.Preempted, "slice t-2 is PREEMPTED"},
		{"… and the queued resource never follows", overdue(active("PREEMPTED", "", provision.Silent)), provision.StepRecreate, provision.Preempted, "slice t-2 is PREEMPTED"},
		{"one of four is not listed any more", active("", "", provision.Silent), provision.StepWait, provision.Infrastructure, "slice t-2 is gone"},
		{"… for good", overdue(active("", "", provision.Silent)), provision.StepRecreate, provision.Infrastructure, "slice t-2 is gone"},
		{"maintenance", active("READY", "UNHEALTHY_MAINTENANCE", provision.Silent), provision.StepWait, provision.Maintenance, "slice t-2 is READY and its health is UNHEALTHY_MAINTENANCE"},
		{"maintenance that does not end", overdue(active("READY", "UNHEALTHY_MAINTENANCE", provision.Silent)), provision.StepRecreate, provision.Maintenance, "slice t-2 is READY and its health is UNHEALTHY_MAINTENANCE"},
		{"READY but unhealthy", active("READY", "TIMEOUT", provision.Answers), provision.StepWait, provision.Infrastructure, "slice t-2 is READY and its health is TIMEOUT"},
		{"… for too long", overdue(active("READY", "TIMEOUT", provision.Answers)), provision.StepReset, provision.Infrastructure, "slice t-2 is READY and its health is TIMEOUT"},
		{"READY but unreachable", active("READY", "HEALTHY", provision.Silent), provision.StepWait, provision.Infrastructure, "slice t-2 is READY, but its workers do not all answer"},
		{"… for too long", overdue(active("READY", "HEALTHY", provision.Silent)), provision.StepReset, provision.Infrastructure, "slice t-2 is READY, but its workers do not all answer"},
		{"… and a reset did not help", again(overdue(active("READY", "HEALTHY", provision.Silent))), provision.StepRecreate, provision.Infrastructure, "slice t-2 is READY, but its workers do not all answer"},
		{"being repaired", active("REPAIRING", "", provision.Silent), provision.StepWait, provision.Infrastructure, "slice t-2 is REPAIRING"},
		{"being repaired for too long", overdue(active("REPAIRING", "", provision.Silent)), provision.StepRecreate, provision.Infrastructure, "slice t-2 is REPAIRING"},
		{"stopped by somebody", overdue(active("STOPPED", "", provision.Silent)), provision.StepRecreate, provision.Infrastructure, "slice t-2 is STOPPED"},
	} {
		t.Run(row.story, func(t *testing.T) {
			want := provision.Decision{Step: row.step, Loss: row.loss, Why: row.why}
			if got := provision.Decide(row.sight); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// TestDecideNeverActsOnTheUnknown tries every pair of words that the API has for a slice.
// Nothing may be reset or deleted before its time has passed.
func TestDecideNeverActsOnTheUnknown(t *testing.T) {
	states := []string{"", "STATE_UNSPECIFIED", "CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPED", "STOPPING",
		"STARTING", "PREEMPTED", "TERMINATED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN"}
	healths := []string{"", "HEALTH_UNSPECIFIED", "HEALTHY", "TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE"}
	for _, state := range states {
		for _, health := range healths {
			for _, reach := range []provision.Reach{provision.Untried, provision.Answers, provision.Silent} {
				sight := sees(four("ACTIVE", state, health), reach)
				if d := provision.Decide(sight); d.Step != provision.StepWait && d.Step != provision.StepUse {
					t.Errorf("%q %q %q: %+v at once", state, health, reach, d)
				} else if usable := state == "READY" && (health == "" || health[0] == 'H') && reach == provision.Answers; usable != (d.Step == provision.StepUse) {
					t.Errorf("%q %q %q: %+v", state, health, reach, d)
				}
				sight.Overdue = true
				if d := provision.Decide(sight); d.Step == provision.StepWait && d.Loss != provision.NoLoss {
					t.Errorf("%q %q %q: it is waited for for ever: %+v", state, health, reach, d)
				}
			}
		}
	}
}

// The API resets only ACTIVE resources.
func TestResetRebootsAndReports(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	if err := c.Reset(t.Context(), "q7"); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(c.Log.Events(), func(e event.Event) bool { p, ok := e.(event.Progress); return ok && p.Phase == "reset" }) {
		t.Error("nothing is said while the VMs reboot")
	}
	if n := c.Calls("POST", ":reset"); n != 1 {
		t.Errorf("%d resets were asked for", n)
	}
	if got, err := c.Get(t.Context(), "q7"); err != nil || got.State != "ACTIVE" {
		t.Errorf("after the reset it is %q, %v", got.State, err)
	}
	c.Fault(sim.Fault{Name: "qr-failed", QR: "q7"})
	if err := c.Reset(t.Context(), "q7"); err == nil {
		t.Error("a FAILED queued resource was reset")
	}
}

func TestSightNamesSlicesThatAreNotListed(t *testing.T) {
	r := qr.Resource{State: "ACTIVE", Nodes: []string{"t-0", "t-1"}, Slices: []qr.SliceState{{Name: "t-1", State: "READY", Health: "HEALTHY"}}}
	got := r.Neutral().Sight(func(string) provision.Reach { return provision.Silent })
	want := []provision.SliceSight{
		{Name: "t-0", State: "slice t-0 is gone", Loss: provision.Infrastructure, Reach: provision.Silent},
		{Name: "t-1", State: "slice t-1 is READY", Up: true, Reach: provision.Silent},
	}
	if diff := cmp.Diff(want, got.Slices); diff != "" || !got.Existed {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
