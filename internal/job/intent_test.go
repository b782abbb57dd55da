package job

import (
	"strings"
	"testing"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A living command is taken over only as what it is: the same words in a virtual
// environment and without one are two commands.
func TestSameCommand(t *testing.T) {
	for _, tt := range []struct {
		story             string
		command           string
		has, asked, lives bool
		want              string
	}{
		{"the same", "true", false, false, true, ""},
		{"the same, both in one", "true", true, true, true, ""},
		{"other words", "false", false, false, true, "asked is another command: true"},
		{"asked in one", "true", false, true, true, "asked is another command: true in a virtual environment (--venv)"},
		{"asked without", "true", true, false, true, "asked is another command: true without a virtual environment (--venv=false)"},
		{"it has ended", "true", false, true, false, "has ended on s0w0 while nobody saw it: true; asked is another command: true in a virtual environment (--venv)"},
	} {
		found := workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: 1}, Command: tt.command, Venv: tt.has, Phase: launch.Exited}, Workers: []tpu.WorkerID{{}}}
		if tt.lives {
			found.Info.Phase = launch.Running
		}
		r := &Runner{O: RunOptions{Run: "r", Argv: []string{"true"}, Venv: tt.asked}}
		err := r.sameCommand(found)
		if (err == nil) != (tt.want == "") || err != nil && !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.story, err, tt.want)
		}
	}
}

// The runner of a success may be unable to see it: whoever comes without a record of the
// attempt goes by what the workers know.
func TestASuccessThatNobodySawIsTakenOver(t *testing.T) {
	ended := func(attempt, well int, seen bool) workers.FoundRun {
		return workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: attempt}, Phase: launch.Exited, Mine: true, Command: "train"},
			Workers: testkit.WorkerIDs(2, 1), Well: well, Seen: seen}
	}
	for _, tt := range []struct {
		story string
		rec   *record.Record
		found []workers.FoundRun
		taken int // the attempt that is taken over; 0: none
	}{
		{"a success on all workers", nil, []workers.FoundRun{ended(1, 2, false)}, 1},
		{"its user was told it", nil, []workers.FoundRun{ended(1, 2, true)}, 0},
		{"a worker failed", nil, []workers.FoundRun{ended(1, 1, false)}, 0},
		{"a later attempt has failed", nil, []workers.FoundRun{ended(2, 1, false), ended(1, 2, false)}, 0},
		{"seen here", &record.Record{Run: "r", Attempt: 1, Ended: true}, []workers.FoundRun{ended(1, 2, false)}, 0},
		{"not seen here", &record.Record{Run: "r", Attempt: 1}, []workers.FoundRun{ended(1, 1, false)}, 1},
		{"another attempt was seen here", &record.Record{Run: "r", Attempt: 1, Ended: true}, []workers.FoundRun{ended(2, 2, false)}, 2},
	} {
		r := &Runner{Deps: &workers.Deps{
			Reach:  &workers.Reach{},
			Keeper: &record.Keeper{StateDir: t.TempDir()},
		}, O: RunOptions{Run: "r", Script: "train"}, workers: &workers.Connected{IDs: testkit.WorkerIDs(2, 1)}, adopts: true}
		if tt.rec != nil {
			if err := tt.rec.Save(r.StateDir); err != nil {
				t.Fatal(err)
			}
		}
		in := &Decision{attempt: 3}
		err := r.settleWith(in, tt.found)
		taken := 0
		if in.living != nil {
			taken = in.living.Info.Attempt
		}
		if err != nil || taken != tt.taken {
			t.Errorf("%s: attempt %d is taken over, want %d; %v", tt.story, taken, tt.taken, err)
		}
	}
}

// A stop holds for each runner that began before it, and for none that began later.
func TestAStopEndsTheRunnersBeforeIt(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		story   string
		since   time.Time
		at      time.Time
		stopped bool
	}{
		{"it came later", now.Add(-time.Hour), now.Add(-time.Minute), true},
		{"it came before", now.Add(-time.Minute), now.Add(-time.Hour), false},
		{"there was none", now.Add(-time.Hour), time.Time{}, false},
		{"the worker's clock has been set back since", now.Add(-time.Hour), now.Add(time.Hour), false},
		{"a command that begins nothing", time.Time{}, now, false},
	} {
		r := &Runner{Deps: &workers.Deps{
			Reach:  &workers.Reach{Invocation: &stage.Invocation{Clock: gcp.SystemClock}},
			Keeper: &record.Keeper{StateDir: t.TempDir()},
		}, O: RunOptions{Run: "r"}, workers: &workers.Connected{}, since: tt.since}
		found := workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: 1}, Phase: launch.Exited, Mine: true}, Stopped: launch.Stopped{At: tt.at, Reason: "by ann"}}
		err := r.settleWith(&Decision{attempt: 2}, []workers.FoundRun{found})
		if (err != nil) != tt.stopped {
			t.Errorf("%s: %v", tt.story, err)
		}
	}
}
