package attempt

import (
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// deciderFor returns the decider of a runner that is new to the workers.
func deciderFor(t *testing.T, o Options, ids []tpu.WorkerID) *decider {
	t.Helper()
	d := Deps{
		Reach:  &workers.Reach{Invocation: &stage.Invocation{Clock: gcp.SystemClock, Sink: event.Discard}},
		Keeper: &record.Keeper{StateDir: t.TempDir()},
	}
	return &decider{Run: &Run{Deps: d, O: o}, history: &History{}, workers: &workers.Connected{IDs: ids}, yields: true}
}

// A running command is taken over only if it is the same. With and without a virtual
// environment, the same words are two commands.
func TestSameCommand(t *testing.T) {
	for _, tt := range []struct {
		story             string
		command           string
		has, asked, lives bool
		want              string
	}{
		{"the same", "true", false, false, true, ""},
		{"the same, both in one", "true", true, true, true, ""},
		{"other words", "false", false, false, true, "you asked for another command: true"},
		{"asked in one", "true", false, true, true, "you asked for another command: true in a virtual environment (--venv)"},
		{"asked without", "true", true, false, true, "you asked for another command: true without a virtual environment (--venv=false)"},
		{"it has ended", "true", false, true, false, "ended on s0w0 while nobody followed it: true; you asked for another command: true in a virtual environment (--venv)"},
	} {
		found := workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: 1}, Command: tt.command, Venv: tt.has, Phase: launch.Exited}, Workers: []tpu.WorkerID{{}}}
		if tt.lives {
			found.Info.Phase = launch.Running
		}
		r := deciderFor(t, Options{Run: "r", Argv: []string{"true"}, Venv: tt.asked}, nil)
		err := r.sameCommand(found)
		if (err == nil) != (tt.want == "") || err != nil && !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.story, err, tt.want)
		}
	}
}

// A success that no runner has seen is taken over. Without a record of the attempt, a
// runner asks the workers.
func TestASuccessThatNobodySawIsTakenOver(t *testing.T) {
	ended := func(attempt, well int, seen bool) workers.FoundRun {
		return workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: attempt}, Phase: launch.Exited, Mine: true, Command: "train"},
			Workers: testkit.WorkerIDs(2, 1), Well: well, Seen: seen}
	}
	for _, tt := range []struct {
		story string
		rec   *record.Record
		found []workers.FoundRun
		taken int // attempt to take over; 0: none
	}{
		{"a success on all workers", nil, []workers.FoundRun{ended(1, 2, false)}, 1},
		{"its user was told it", nil, []workers.FoundRun{ended(1, 2, true)}, 0},
		{"a worker failed", nil, []workers.FoundRun{ended(1, 1, false)}, 0},
		{"a later attempt has failed", nil, []workers.FoundRun{ended(2, 1, false), ended(1, 2, false)}, 0},
		{"seen here", &record.Record{Run: "r", Attempt: 1, Ended: true}, []workers.FoundRun{ended(1, 2, false)}, 0},
		{"not seen here", &record.Record{Run: "r", Attempt: 1}, []workers.FoundRun{ended(1, 1, false)}, 1},
		{"another attempt was seen here", &record.Record{Run: "r", Attempt: 1, Ended: true}, []workers.FoundRun{ended(2, 2, false)}, 2},
	} {
		r := deciderFor(t, Options{Run: "r", Script: "train"}, testkit.WorkerIDs(2, 1))
		r.Job = true
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

// A stop is for each runner that began before it, and for none that began later.
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
		r := deciderFor(t, Options{Run: "r"}, nil)
		r.history.Since = tt.since
		found := workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: 1}, Phase: launch.Exited, Mine: true}, Stopped: launch.Stopped{At: tt.at, Reason: "by ann"}}
		err := r.settleWith(&Decision{attempt: 2}, []workers.FoundRun{found})
		if (err != nil) != tt.stopped {
			t.Errorf("%s: %v", tt.story, err)
		}
	}
}

// An attempt that was only unreachable is followed again once it can be reached. If a part
// of the attempt is gone, a new attempt replaces it.
func TestAnAttemptThatWentOnIsFollowedOn(t *testing.T) {
	info := func(phase launch.Phase) launch.Info {
		return launch.Info{Ref: launch.Ref{Run: "r", Attempt: 2}, Phase: phase, Mine: true, Command: "train"}
	}
	for _, tt := range []struct {
		story    string
		found    workers.FoundRun
		known    bool // the runner knows what happened to the attempt
		followed bool
		evicted  bool
	}{
		{"it runs on all workers", workers.FoundRun{Info: info(launch.Running), Workers: testkit.WorkerIDs(2, 1)}, false, true, false},
		{"it has ended there meanwhile", workers.FoundRun{Info: info(launch.Exited), Workers: testkit.WorkerIDs(2, 1)}, false, true, false},
		{"a worker was rebooted", workers.FoundRun{Info: info(launch.Running), Workers: testkit.WorkerIDs(2, 1), Broken: 1}, false, false, true},
		{"a slice was made again", workers.FoundRun{Info: info(launch.Running), Workers: testkit.WorkerIDs(1, 1)}, false, false, true},
		{"it was lost for another reason", workers.FoundRun{Info: info(launch.Running), Workers: testkit.WorkerIDs(2, 1)}, true, false, true},
	} {
		for _, adopts := range []bool{true, false} {
			r := deciderFor(t, Options{Run: "r", Script: "train"}, testkit.WorkerIDs(2, 1))
			if err := (&record.Record{Run: "r", Attempt: 2}).Save(r.StateDir); err != nil {
				t.Fatal(err)
			}
			r.Job, *r.history = adopts, History{Tried: 1, Last: 2, CutOff: !tt.known}
			in := &Decision{attempt: 3}
			if err := r.settleWith(in, []workers.FoundRun{tt.found}); err != nil || (in.living != nil) != tt.followed || (len(in.evict) > 0) != tt.evicted {
				t.Errorf("%s: followed %v, %d stopped, %v", tt.story, in.living != nil, len(in.evict), err)
			}
		}
	}
}

// An attempt on slices that were made after this runner began its last attempt belongs to
// another runner, even with the same number. It is taken over, and nothing is stopped.
func TestAnAttemptOfAnotherRunnerIsKnownByItsSlices(t *testing.T) {
	found := workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: 1}, Phase: launch.Running, Mine: true, Command: "train"}, Workers: testkit.WorkerIDs(2, 1)}
	slices := func(uids ...string) (all []tpu.Slice) {
		for _, uid := range uids {
			all = append(all, tpu.Slice{Name: "r-" + uid, UID: uid})
		}
		return all
	}
	for _, tt := range []struct {
		story    string
		begunOn  []string
		now      []tpu.Slice
		followed bool
	}{
		{"other slices", []string{"1", "2"}, slices("3", "4"), true},
		{"the same slices", []string{"1", "2"}, slices("1", "2"), false},
		{"one of two was made again", []string{"1", "2"}, slices("1", "4"), false},
		{"hosts that no cloud knows", nil, slices("", ""), false},
	} {
		r := deciderFor(t, Options{Run: "r", Script: "train"}, testkit.WorkerIDs(2, 1))
		r.workers.Slices = tt.now
		r.Job, *r.history = true, History{Tried: 1, Last: 1, on: tt.begunOn}
		in := &Decision{attempt: 2}
		if err := r.settleWith(in, []workers.FoundRun{found}); err != nil || (in.living != nil) != tt.followed || (len(in.evict) > 0) == tt.followed {
			t.Errorf("%s: followed %v, %d stopped, %v", tt.story, in.living != nil, len(in.evict), err)
		}
	}
}

// A single worker has no start skew.
func TestHowTheStartIsTold(t *testing.T) {
	for _, tt := range []struct {
		workers int
		skew    time.Duration
		want    string
	}{{1, 0, "1 worker"}, {2, 0, "2 workers at the same moment"}, {8, 13 * time.Millisecond, "8 workers within 13 ms"}} {
		if got := startedText(tt.workers, tt.skew); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// A taken-over attempt has the code with which it began. Its success is no success of this
// machine's present code.
func TestWorkOfATakenOverAttempt(t *testing.T) {
	t.Parallel()
	on := func(attempt int, uid, work string) *record.Record {
		return &record.Record{Attempt: attempt, Slices: []record.Slice{{UID: uid}}, Work: work}
	}
	for _, tt := range []struct {
		story string
		old   *record.Record
		want  string
	}{
		{"this machine began it", on(2, "a", "old"), "old"},
		{"this machine has no record", nil, ""},
		{"another attempt", on(1, "a", "old"), ""},
		{"the same number on other slices", on(2, "b", "old"), ""},
		{"a version that did not note it", on(2, "a", ""), ""},
	} {
		if got := workOf(tt.old, on(2, "a", "new")); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.story, got, tt.want)
		}
	}
}
