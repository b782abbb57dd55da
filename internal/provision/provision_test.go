package provision

import "testing"

var (
	well      = SliceSight{Name: "t-0", State: "slice t-0 is up", Up: true, Reach: Answers}
	untried   = SliceSight{Name: "t-1", State: "slice t-1 is up", Up: true}
	silent    = SliceSight{Name: "t-1", State: "slice t-1 is up", Up: true, Reach: Silent}
	unhealthy = SliceSight{Name: "t-1", State: "slice t-1 is ill", Up: true, Loss: Infrastructure, Reach: Answers}
	stopped   = SliceSight{Name: "t-1", State: "slice t-1 is stopped", Loss: Infrastructure, Reach: Silent}
	taken     = SliceSight{Name: "t-1", State: "slice t-1 is taken", Loss: Preempted, Reach: Silent}
	repaired  = SliceSight{Name: "t-1", State: "slice t-1 is repaired", Up: true, Loss: Maintenance}
)

func sight(life Life, slices ...SliceSight) Sight {
	return Sight{Kind: "pool", Life: life, Word: "SO", Existed: life != Absent, Slices: slices}
}

func TestDecide(t *testing.T) {
	overdue := func(s Sight) Sight { s.Overdue = true; return s }
	reset := func(s Sight) Sight { s.Resets++; return s }
	tells := func(loss Loss, how string) Sight { s := sight(Suspended); s.Loss, s.Detail = loss, how; return s }
	existed := func(s Sight) Sight { s.Existed = true; return s }
	byUser := func(s Sight) Sight { s.ByUser = true; return s }
	spot := func(s Sight) Sight { s.Reclaimable = true; return s }
	failed := sight(Failed)
	failed.Detail = "no network"
	for _, row := range []struct {
		story string
		sight Sight
		want  Decision
	}{
		{"nothing exists yet", sight(Absent), Decision{Step: StepCreate}},
		{"somebody has deleted it", existed(sight(Absent)), Decision{StepGiveUp, Removed, "the pool was deleted by somebody else"}},
		{"it was just asked for", sight(Requested), Decision{Step: StepWait}},
		{"there is no capacity for hours", sight(Waiting), Decision{Step: StepWait}},
		{"there is no capacity within the limit", overdue(sight(Waiting)), Decision{StepGiveUp, Infrastructure, "the pool is SO for too long"}},
		{"a life that is not known", sight("pondering"), Decision{Step: StepWait}},
		{"its slices are made", sight(Provisioning, well, stopped), Decision{Step: StepWait}},
		{"its slices are made for too long", overdue(sight(Provisioning, well)), Decision{StepRecreate, Infrastructure, "the pool is SO for too long"}},
		{"one is preempted while the others are made", sight(Provisioning, well, taken), Decision{StepWait, Preempted, "slice t-1 is taken"}},
		{"it failed", failed, Decision{StepRecreate, Infrastructure, "the pool SO: no network"}},
		{"it failed without a word", sight(Failed), Decision{StepRecreate, Infrastructure, "the pool SO"}},
		{"somebody deletes it", sight(Deleting), Decision{StepWait, Removed, "the pool is SO"}},

		{"spot slices are being taken", spot(sight(Suspending)), Decision{StepWait, Preempted, "the pool is SO"}},
		{"spot slices are being taken for too long", overdue(spot(sight(Suspending))), Decision{StepRecreate, Preempted, "the pool is SO"}},
		{"spot slices are taken", spot(sight(Suspended)), Decision{StepRecreate, Preempted, "the pool is SO"}},
		{"nobody knows why they were taken", tells(Infrastructure, "its VMs are gone"), Decision{StepRecreate, Infrastructure, "the pool is SO: its VMs are gone"}},
		{"preempted slices, as the provider tells", tells(Preempted, ""), Decision{StepRecreate, Preempted, "the pool is SO"}},
		{"others are taken for maintenance", sight(Suspended), Decision{StepRecreate, Maintenance, "the pool is SO"}},
		{"a slice shows why", sight(Suspended, well, taken), Decision{StepRecreate, Preempted, "slice t-1 is taken"}},
		{"a user is taking the slices", byUser(spot(sight(Suspending))), Decision{StepWait, Removed, "a user took the slices of the pool"}},
		{"a user took the slices", byUser(spot(sight(Suspended))), Decision{StepGiveUp, Removed, "a user took the slices of the pool"}},

		{"the provider restarts it", sight(Recovering, stopped), Decision{StepWait, Infrastructure, "the pool is SO: it is restarted by itself"}},
		{"the provider restarts it for too long", overdue(sight(Recovering, stopped)), Decision{StepWait, Infrastructure, "the pool is SO: it is restarted by itself"}},

		{"every worker answers", sight(Active, well, well), Decision{Step: StepUse}},
		{"one slice was not tried yet", sight(Active, well, untried), Decision{Step: StepWait}},
		{"one slice was not tried yet, for long", overdue(sight(Active, well, untried)), Decision{Step: StepWait}},
		{"one slice does not answer", sight(Active, well, silent), Decision{StepWait, Infrastructure, "slice t-1 is up, but its workers do not all answer"}},
		{"one slice does not answer for too long", overdue(sight(Active, well, silent)), Decision{StepReset, Infrastructure, "slice t-1 is up, but its workers do not all answer"}},
		{"a reset did not help", reset(overdue(sight(Active, well, silent))), Decision{StepRecreate, Infrastructure, "slice t-1 is up, but its workers do not all answer"}},
		{"a slice is ill for too long", overdue(sight(Active, well, unhealthy)), Decision{StepReset, Infrastructure, "slice t-1 is ill"}},
		{"a stopped slice cannot be rebooted", overdue(sight(Active, well, stopped)), Decision{StepRecreate, Infrastructure, "slice t-1 is stopped"}},
		{"a slice is preempted", sight(Active, well, taken), Decision{StepWait, Preempted, "slice t-1 is taken"}},
		{"a slice is preempted and nothing follows", overdue(sight(Active, well, taken)), Decision{StepRecreate, Preempted, "slice t-1 is taken"}},
		{"maintenance is no reason to reboot", overdue(sight(Active, well, repaired)), Decision{StepRecreate, Maintenance, "slice t-1 is repaired"}},
		{"the clearer loss is told", sight(Active, silent, taken), Decision{StepWait, Preempted, "slice t-1 is taken"}},
		{"the harder step is taken", overdue(sight(Active, silent, stopped)), Decision{StepRecreate, Infrastructure, "slice t-1 is stopped"}},
	} {
		t.Run(row.story, func(t *testing.T) {
			if got := Decide(row.sight); got != row.want {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}

// Nothing is rebooted or deleted before its time has passed, unless it is useless. A wait
// for a loss ends, unless the provider itself repairs the loss.
func TestDecideIsPatientAndNotForEver(t *testing.T) {
	for _, life := range []Life{Requested, Waiting, Provisioning, Active, Recovering, Suspending, Deleting, "pondering"} {
		for _, slice := range []SliceSight{well, untried, silent, unhealthy, stopped, taken, repaired} {
			s := sight(life, well, slice)
			if d := Decide(s); d.Step != StepWait && d.Step != StepUse {
				t.Errorf("%s, %q: %+v at once", life, slice.State, d)
			}
			s.Overdue = true
			if d := Decide(s); d.Step == StepWait && d.Loss != NoLoss && life != Deleting && life != Recovering {
				t.Errorf("%s, %q: waits for ever: %+v", life, slice.State, d)
			}
		}
	}
}
