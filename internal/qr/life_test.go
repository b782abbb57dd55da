package qr_test

import (
	"fmt"
	"testing"

	"multihost/internal/qr"
	"multihost/internal/sim"

	"github.com/google/go-cmp/cmp"
)

// four are the slices of a request for four, all of them well but the third.
func four(state, health string, reach qr.Reach) []qr.SliceSight {
	all := make([]qr.SliceSight, 4)
	for i := range all {
		all[i] = qr.SliceSight{Name: fmt.Sprintf("t-%d", i), State: "READY", Health: "HEALTHY", Reach: qr.Answers}
	}
	all[2].State, all[2].Health, all[2].Reach = state, health, reach
	return all
}

func TestDecide(t *testing.T) {
	active := func(state, health string, reach qr.Reach) qr.Sight {
		return qr.Sight{State: "ACTIVE", Existed: true, Slices: four(state, health, reach)}
	}
	overdue := func(s qr.Sight) qr.Sight { s.Overdue = true; return s }
	again := func(s qr.Sight) qr.Sight { s.Resets++; return s }
	for _, row := range []struct {
		story string
		sight qr.Sight
		step  qr.Step
		loss  qr.Loss
	}{
		{"nothing there yet", qr.Sight{State: qr.NotFound}, qr.StepCreate, qr.NoLoss},
		{"an admin deleted it", qr.Sight{State: qr.NotFound, Existed: true}, qr.StepGiveUp, qr.Removed},
		{"an admin deletes it", qr.Sight{State: "DELETING", Existed: true}, qr.StepWait, qr.Removed},
		{"just asked for", qr.Sight{State: "CREATING"}, qr.StepWait, qr.NoLoss},
		{"accepted", qr.Sight{State: "ACCEPTED"}, qr.StepWait, qr.NoLoss},
		{"no capacity for hours", qr.Sight{State: "WAITING_FOR_RESOURCES"}, qr.StepWait, qr.NoLoss},
		{"no capacity within the limit", overdue(qr.Sight{State: "WAITING_FOR_RESOURCES"}), qr.StepGiveUp, qr.Infrastructure},
		{"a word that is new to us", qr.Sight{State: "PONDERING"}, qr.StepWait, qr.NoLoss},
		{"VMs are being made", qr.Sight{State: "PROVISIONING", Slices: four("CREATING", "", "")}, qr.StepWait, qr.NoLoss},
		{"VMs are made for too long", overdue(qr.Sight{State: "PROVISIONING", Slices: four("CREATING", "", "")}), qr.StepRecreate, qr.Infrastructure},
		{"one is preempted while the others are made", qr.Sight{State: "PROVISIONING", Slices: four("PREEMPTED", "", "")}, qr.StepWait, qr.Preempted},
		{"failed", qr.Sight{State: "FAILED", Detail: "an internal error has occurred"}, qr.StepRecreate, qr.Infrastructure},
		{"spot slices are being taken", qr.Sight{State: "SUSPENDING", Initiator: "SERVICE", Tier: qr.Spot}, qr.StepWait, qr.Preempted},
		{"spot slices are taken", qr.Sight{State: "SUSPENDED", Initiator: "SERVICE", Tier: qr.Spot}, qr.StepRecreate, qr.Preempted},
		{"on-demand slices are taken for maintenance", qr.Sight{State: "SUSPENDED", Initiator: "SERVICE", Tier: qr.OnDemand}, qr.StepRecreate, qr.Maintenance},
		{"one of four on-demand slices shows why", qr.Sight{State: "SUSPENDED", Initiator: "SERVICE", Slices: four("PREEMPTED", "", "")}, qr.StepRecreate, qr.Preempted},
		{"a user is taking the slices", qr.Sight{State: "SUSPENDING", Initiator: "USER", Tier: qr.Spot}, qr.StepWait, qr.Removed},
		{"a user took the slices", qr.Sight{State: "SUSPENDED", Initiator: "USER", Tier: qr.Spot}, qr.StepGiveUp, qr.Removed},

		{"all answer", active("READY", "HEALTHY", qr.Answers), qr.StepUse, qr.NoLoss},
		{"health is not told", active("READY", "", qr.Answers), qr.StepUse, qr.NoLoss},
		{"READY, not yet tried", active("READY", "HEALTHY", qr.Untried), qr.StepWait, qr.NoLoss},
		{"preemption of one slice of four", active("PREEMPTED", "", qr.Silent), qr.StepWait, qr.Preempted},
		{"… and the queued resource never follows", overdue(active("PREEMPTED", "", qr.Silent)), qr.StepRecreate, qr.Preempted},
		{"one of four is not listed any more", active("", "", qr.Silent), qr.StepWait, qr.Infrastructure},
		{"… for good", overdue(active("", "", qr.Silent)), qr.StepRecreate, qr.Infrastructure},
		{"maintenance", active("READY", "UNHEALTHY_MAINTENANCE", qr.Silent), qr.StepWait, qr.Maintenance},
		{"maintenance that does not end", overdue(active("READY", "UNHEALTHY_MAINTENANCE", qr.Silent)), qr.StepRecreate, qr.Maintenance},
		{"READY but unhealthy", active("READY", "TIMEOUT", qr.Answers), qr.StepWait, qr.Infrastructure},
		{"… for too long", overdue(active("READY", "TIMEOUT", qr.Answers)), qr.StepReset, qr.Infrastructure},
		{"READY but unreachable", active("READY", "HEALTHY", qr.Silent), qr.StepWait, qr.Infrastructure},
		{"… for too long", overdue(active("READY", "HEALTHY", qr.Silent)), qr.StepReset, qr.Infrastructure},
		{"… and a reset did not help", again(overdue(active("READY", "HEALTHY", qr.Silent))), qr.StepRecreate, qr.Infrastructure},
		{"being repaired", active("REPAIRING", "", qr.Silent), qr.StepWait, qr.Infrastructure},
		{"being repaired for too long", overdue(active("REPAIRING", "", qr.Silent)), qr.StepRecreate, qr.Infrastructure},
		{"stopped by somebody", overdue(active("STOPPED", "", qr.Silent)), qr.StepRecreate, qr.Infrastructure},
	} {
		t.Run(row.story, func(t *testing.T) {
			got := qr.Decide(row.sight)
			if got.Step != row.step || got.Loss != row.loss {
				t.Errorf("got %q for %q (%s), want %q for %q", got.Step, got.Loss, got.Why, row.step, row.loss)
			}
			if got.Loss != qr.NoLoss && got.Why == "" {
				t.Error("a loss without a word why")
			}
		})
	}
}

// TestDecideNeverActsOnTheUnknown goes through every pair of words that the API
// has for a slice: nothing is reset or deleted before its time has passed.
func TestDecideNeverActsOnTheUnknown(t *testing.T) {
	states := []string{"", "STATE_UNSPECIFIED", "CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPED", "STOPPING",
		"STARTING", "PREEMPTED", "TERMINATED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN"}
	healths := []string{"", "HEALTH_UNSPECIFIED", "HEALTHY", "TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE"}
	for _, state := range states {
		for _, health := range healths {
			for _, reach := range []qr.Reach{qr.Untried, qr.Answers, qr.Silent} {
				sight := qr.Sight{State: "ACTIVE", Existed: true, Slices: four(state, health, reach)}
				if d := qr.Decide(sight); d.Step != qr.StepWait && d.Step != qr.StepUse {
					t.Errorf("%q %q %q: %+v at once", state, health, reach, d)
				} else if usable := state == "READY" && (health == "" || health[0] == 'H') && reach == qr.Answers; usable != (d.Step == qr.StepUse) {
					t.Errorf("%q %q %q: %+v", state, health, reach, d)
				}
				sight.Overdue = true
				if d := qr.Decide(sight); d.Step == qr.StepWait && d.Loss != qr.NoLoss {
					t.Errorf("%q %q %q: it is waited for for ever: %+v", state, health, reach, d)
				}
			}
		}
	}
}

// TestResetRebootsAndReports: the API resets what is ACTIVE and nothing else.
func TestResetRebootsAndReports(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	if err := c.Reset(t.Context(), "q7"); err != nil {
		t.Fatal(err)
	}
	if n := c.calls("POST", ":reset"); n != 1 {
		t.Errorf("%d resets were asked for", n)
	}
	if got, err := c.Get(t.Context(), "q7"); err != nil || got.State != "ACTIVE" {
		t.Errorf("after the reset it is %q, %v", got.State, err)
	}
	c.fault(sim.Fault{Name: "qr-failed", QR: "q7"})
	if err := c.Reset(t.Context(), "q7"); err == nil {
		t.Error("a FAILED queued resource was reset")
	}
}

func TestSightNamesSlicesThatAreNotListed(t *testing.T) {
	r := qr.Resource{State: "ACTIVE", Nodes: []string{"t-0", "t-1"}, Slices: []qr.SliceState{{Name: "t-1", State: "READY", Health: "HEALTHY"}}}
	got := r.Sight(func(string) qr.Reach { return qr.Silent })
	want := []qr.SliceSight{{Name: "t-0", Reach: qr.Silent}, {Name: "t-1", State: "READY", Health: "HEALTHY", Reach: qr.Silent}}
	if diff := cmp.Diff(want, got.Slices); diff != "" || !got.Existed {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
