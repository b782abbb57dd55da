package job

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// If the error names the cause, multihost does not ask the cloud.
func TestACauseThatTheErrorSays(t *testing.T) {
	t.Parallel()
	stop := &stage.Interrupted{Signal: syscall.SIGTERM}
	broken := errors.New("connection lost")
	for _, tt := range []struct {
		story      string
		err, ended error
		cause      stage.Cause
		why        string
	}{
		{"the command failed", nil, nil, "", ""},
		{"an error", broken, nil, "", ""},
		{"an interrupt", stop, stop, stage.UserStop, "terminated (SIGTERM)"},
		{"an interrupt that another error hides", broken, stop, stage.UserStop, "terminated (SIGTERM)"},
		{"an interrupt of this attempt alone", fmt.Errorf("follow: %w", stop), nil, stage.UserStop, "terminated (SIGTERM)"},
		{"no slices", &unready{broken}, nil, stage.Refused, "connection lost"},
		{"a time that has passed", &stage.Error{Stage: stage.Timeout, Text: "late"}, nil, stage.Refused, "timeout: late"},
		{"a time to live that is over", stage.SlicesTaken(time.Time{}, "--ttl"), nil, stage.Expired, stage.SlicesTaken(time.Time{}, "--ttl").Error()},
		{"a cause that was raised", &stage.Failure{Cause: stage.Stall, Why: "no step"}, nil, stage.Stall, "no step"},
		{"a training that stands still", &stage.Error{Stage: stage.Stalled, Text: "no step"}, nil, stage.Refused, "stall: no step"},
	} {
		if cause, why := causeIn(tt.err, tt.ended); cause != tt.cause || why != tt.why {
			t.Errorf("%s: %q, %q; want %q, %q", tt.story, cause, why, tt.cause, tt.why)
		}
	}
}

// The reason comes from the worker whose end decides the verdict. Signs of a loss come from
// every worker.
func TestSignsOfTheWorkers(t *testing.T) {
	t.Parallel()
	ends := func(exits ...launch.Exit) *follow.Following {
		f := &follow.Following{Workers: &workers.Connected{IDs: testkit.WorkerIDs(1, len(exits))}}
		for _, exit := range exits {
			f.Ends = append(f.Ends, follow.Ending{Known: true, Exit: exit})
		}
		return f
	}
	lost := ends(launch.Exit{}, launch.Exit{})
	lost.Ends[1].Err = follow.ErrSliceGone
	for _, tt := range []struct {
		story  string
		follow *follow.Following
		err    error
		want   signs
	}{
		{"nothing was started", nil, errors.New("no such flag"), signs{final: true}},
		{"a worker went away before the start", nil, stage.ErrRebooted, signs{lost: true}},
		{"an exit code", ends(launch.Exit{}, launch.Exit{Code: 3}), nil, signs{}},
		{"a signal from outside", ends(launch.Exit{}, launch.Exit{Code: 143, Signal: "TERM"}), nil, signs{killed: true}},
		{"out of memory", ends(launch.Exit{Code: 137, Signal: "KILL", OOM: true}), nil, signs{}},
		{"somebody stopped it", ends(launch.Exit{Code: 143, Signal: "TERM", Reason: follow.StopBy + "ann@desk"}), nil, signs{stopped: true}},
		{"a slice is gone", lost, nil, signs{lost: true}},
		{"a command without a record of its end", ends(launch.Exit{Lost: true}), nil, signs{lost: true}},
	} {
		got := (&inquest{follow: tt.follow}).signs(tt.err)
		if got.why == "" && tt.want != (signs{}) {
			t.Errorf("%s: nothing says why", tt.story)
		}
		got.why = ""
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.story, got, tt.want)
		}
	}
}

// Slices are protected if an earlier runner may have left something on them. The protection
// ends when nothing is known to be there, or when the user chooses otherwise.
func TestWhatAnEarlierRunnerMayHaveLeft(t *testing.T) {
	t.Parallel()
	mine := func(phase launch.Phase) workers.FoundRun {
		return workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "m", Attempt: 1}, Phase: phase, Mine: true}}
	}
	seen := mine(launch.Exited)
	seen.Seen = true
	other := mine(launch.Running)
	other.Info.Run = "other"
	here, silent := []error{nil}, []error{errors.New("silent")}
	from := inheritance{inherited: true}
	for _, tt := range []struct {
		story             string
		h                 inheritance
		lives, logs, asks bool
		leaves            string
	}{
		{"a resource that this command has made", inheritance{}, false, false, false, ""},
		{"nobody has answered", from.hears("m", nil, silent), true, false, true, "whether the command of an earlier runner lives on it is not known yet"},
		{"nothing is there", from.hears("m", nil, here), false, false, false, ""},
		{"another run", from.hears("m", []workers.FoundRun{other}, here), false, false, false, ""},
		{"it lives", from.hears("m", []workers.FoundRun{mine(launch.Running)}, here), true, true, false, "the command of an earlier runner lives on it, and this command has not taken it over"},
		{"it has ended", from.hears("m", []workers.FoundRun{mine(launch.Exited)}, here), false, true, false, "the command of an earlier runner has ended on it, and its logs may be not whole here"},
		{"it has ended, and a user was told", from.hears("m", []workers.FoundRun{seen}, here), false, false, false, ""},
	} {
		if tt.h.mayLive() != tt.lives || tt.h.losesLogs(0, false) != tt.logs || tt.h.losesLogs(1, true) || tt.h.losesLogs(0, true) != (tt.logs || tt.asks) {
			t.Errorf("%s: may live %v, loses logs %v, with slices %v", tt.story, tt.h.mayLive(), tt.h.losesLogs(0, false), tt.h.losesLogs(0, true))
		}
		if got := tt.h.leaves(provision.Active, errors.New("no")); got != tt.leaves {
			t.Errorf("%s: leaves %q, want %q", tt.story, got, tt.leaves)
		}
		for _, chosen := range []error{&stage.Interrupted{Signal: syscall.SIGINT, Answer: stage.Stop}, stage.ErrExpired} {
			if got := tt.h.leaves(provision.Active, chosen); got != "" {
				t.Errorf("%s: leaves %q although it is to end", tt.story, got)
			}
		}
		if got := tt.h.leaves(provision.Waiting, errors.New("no")); got != "" {
			t.Errorf("%s: leaves %q of a place in the queue", tt.story, got)
		}
	}
}

// After an attempt of this runner, another machine may have begun one.
func TestACommandThatAnotherMachineHasBegun(t *testing.T) {
	t.Parallel()
	var a adoption
	a.forget()
	if a.asks() {
		t.Error("new slices have no commands to ask for")
	}
	a.worked = true // the first attempt has begun
	a.forget()
	if !a.asks() || a.mayLive() || a.losesLogs(1, true) || a.leaves(provision.Active, errors.New("no")) != "" {
		t.Errorf("before a worker has said something: %+v", a.inheritance)
	}
	a.inheritance = a.hears("m", []workers.FoundRun{{Info: launch.Info{Ref: launch.Ref{Run: "m", Attempt: 2}, Phase: launch.Running, Mine: true}}}, []error{nil})
	if !a.mayLive() || !a.losesLogs(1, true) || a.leaves(provision.Active, errors.New("no")) == "" {
		t.Errorf("a command lives: %+v", a.inheritance)
	}
}

// While its slice is being taken away, a worker can report any error. A mistake of the user
// is not a loss.
func TestWhichErrorsMayBeALoss(t *testing.T) {
	t.Parallel()
	r := &inquest{workers: &workers.Connected{}, used: make([]tpu.Slice, 1)}
	each := []error{errors.New("killed")}
	for _, at := range []stage.Stage{stage.Sync, stage.Preflight, stage.Venv, stage.Free, stage.Start} {
		if !r.mayBeLoss(&stage.Error{Stage: at, Each: each}) || r.mayBeLoss(&stage.Error{Stage: at}) {
			t.Errorf("%s: only an error of a worker may be a loss", at)
		}
	}
	for _, at := range []stage.Stage{stage.Input, stage.Settings, stage.Skew} {
		if r.mayBeLoss(&stage.Error{Stage: at, Each: each}) {
			t.Errorf("%s: it is taken for a loss", at)
		}
	}
}

// If the API does not answer until the time for the slices is over, the error says so.
func TestSlicesThatDoNotComeBack(t *testing.T) {
	t.Parallel()
	clock := testkit.NewJumpClock()
	s := &standing{Reach: &workers.Reach{Invocation: &stage.Invocation{Clock: clock}, Cloud: &testkit.FixedSlices{Err: errAway}}}
	_, err := s.ready(t.Context(), nil, &stage.Failure{Cause: stage.Infrastructure})
	if want := "discover: slices are not usable for 15m: " + errAway.Error(); err == nil || err.Error() != want || !errors.Is(err, errAway) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A further attempt uses slices that their provider itself has made again. The attempt that
// was on the old ones has lost them, which is no failure of its command.
func TestSlicesThatAreMadeAgain(t *testing.T) {
	t.Parallel()
	used := []tpu.Slice{{Name: "t", UID: "1", Index: 1, Condition: tpu.Usable, State: "Running"}}
	for _, tt := range []struct {
		story string
		now   tpu.Slice
		why   string
		final bool
		gone  bool
	}{
		{"made again", tpu.Slice{Name: "t", UID: "2", Condition: tpu.Usable, State: "Running", Remade: true, Workers: []tpu.Worker{{Name: "t"}}}, "", true, false},
		{"on the way", tpu.Slice{Name: "t", UID: "2", Condition: tpu.Making, State: "Pending", Remade: true}, `slice "t": `, true, false},
		{"another one", tpu.Slice{Name: "t", UID: "2", Condition: tpu.Usable, State: "READY"}, "", false, true},
		{"deleted", tpu.Slice{Name: "u", Remade: true}, "", false, true},
	} {
		s := &standing{Reach: &workers.Reach{Cloud: &testkit.FixedSlices{All: []tpu.Slice{tt.now}}}, found: tpu.Selection{Slices: slices.Clone(used)}}
		d, err := s.look(t.Context(), used, func(string) provision.Reach { return provision.Silent })
		testkit.Must(t, err)
		if cause, why, final := (signs{lost: true}).blame(d, nil); cause != stage.Infrastructure || final != tt.final {
			t.Errorf("%s: blamed %s, %q, final %t", tt.story, cause, why, final)
		}
		why, err := s.absent([]tpu.Slice{tt.now})
		if (err != nil) != tt.gone || !strings.HasPrefix(why, tt.why) || (why == "") != (tt.why == "") {
			t.Errorf("%s: absent: %q, %v", tt.story, why, err)
		}
		if got := s.found.Slices[0]; !tt.gone && (got.UID != "2" || got.Index != 1) {
			t.Errorf("%s: the attempt uses %+v", tt.story, got)
		}
	}
}

func TestWhetherAnotherAttemptFollows(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story string
		f     *stage.Failure
		want  verdict
	}{
		{"a success", nil, verdict{}},
		{"a stop", &stage.Failure{Cause: stage.UserStop}, verdict{}},
		{"slices that were to go", &stage.Failure{Cause: stage.Expired, Code: 1}, verdict{}},
		{"a refusal", &stage.Failure{Cause: stage.Refused}, verdict{}},
		{"a failure", &stage.Failure{Cause: stage.Application, Code: 1, Ran: time.Hour}, verdict{true, "trying again (restart 1 of 1)"}},
		{"a loss", &stage.Failure{Cause: stage.Preempted, Ran: time.Hour}, verdict{true, "trying again (loss 1)"}},
		{"a command that cannot be run", &stage.Failure{Cause: stage.Application, Code: 127}, verdict{text: "no restart: exit code 127 says that the command cannot be run"}},
	} {
		r := &runner{books: ledger{Budget: Budget{Restarts: 1, Preemptions: -1}}}
		if got := r.next(t.Context(), tt.f); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.story, got, tt.want)
		}
	}
}

// Slices stay as long as another runner's command needs them, and longer if nobody has
// followed that command.
func TestWhatAnotherRunnerHasOnTheSlices(t *testing.T) {
	t.Parallel()
	run := func(phase launch.Phase) workers.FoundRun {
		return workers.FoundRun{Info: launch.Info{Ref: launch.Ref{Run: "m", Attempt: 2}, Owner: "ann@desk", Phase: phase}}
	}
	seen, failed := run(launch.Exited), run(launch.Exited)
	seen.Seen, failed.Verdict = true, "s0w0 was first, exit code 3"
	const runs, unread = "a command runs on it", "run m of ann@desk has ended on it, and nobody has followed it to its end"
	for _, tt := range []struct {
		story string
		runs  []workers.FoundRun
		want  string
	}{
		{"nothing", nil, ""},
		{"it runs", []workers.FoundRun{run(launch.Running)}, runs},
		{"it is about to start", []workers.FoundRun{run(launch.Starting)}, runs},
		{"it was never started", []workers.FoundRun{run(launch.Aborted)}, ""},
		{"it has ended, and a user knows of its success", []workers.FoundRun{seen}, ""},
		{"it has failed, and its runner has said so", []workers.FoundRun{failed}, ""},
		{"it has ended without a runner", []workers.FoundRun{failed, run(launch.Exited)}, unread},
		{"nobody saw its end", []workers.FoundRun{run(launch.Lost)}, unread},
		{"one has ended, and one runs", []workers.FoundRun{run(launch.Exited), run(launch.Running)}, runs},
	} {
		if got := keptFor(tt.runs); (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.story, got, tt.want)
		}
	}
}
