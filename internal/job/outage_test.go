package job

import (
	"context"
	"errors"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func TestAWorkerIsNotLostForWantOfALogin(t *testing.T) {
	for _, tt := range []struct {
		story string
		err   error
		lost  bool
	}{
		{"the login has ended", &gcp.CredentialsError{Err: errors.New("invalid_rapt"), Expired: true}, false},
		{"the worker is away", errors.New("connection refused"), true},
	} {
		clock := testkit.NewJumpClock()
		f := &following{Deps: &Deps{Clock: clock, Sink: event.Discard}, team: &team{ids: []tpu.WorkerID{{}}}, patience: Patience{Lost: 10 * time.Minute}}
		var o outage
		gaveUp := false
		for range 30 {
			o.lost(f, 0, func(error) { gaveUp = true }, tt.err)
			<-clock.After(time.Minute)
		}
		if gaveUp != tt.lost {
			t.Errorf("%s: given up = %v, want %v", tt.story, gaveUp, tt.lost)
		}
	}
}

// A machine that reaches no worker and not the API has itself no network: its
// workers are not lost for that, however long it lasts. They are once the API
// says that they could be there, and where others can be reached.
func TestAMachineWithoutNetworkLosesNoWorker(t *testing.T) {
	away := &gcp.Error{Class: gcp.Unavailable}
	for _, tt := range []struct {
		story string
		err   error
		ended bool // one worker of two has; else both are lost
		reach bool // one worker of two is reached
		lost  bool
	}{
		{"no network for hours", away, false, false, false},
		{"the same, and one worker has ended before", away, true, false, false},
		{"a login page in place of the API", errors.New("x509: certificate signed by unknown authority"), false, false, false},
		{"the API answers", nil, false, false, true},
		{"the API refuses", &gcp.Error{Class: gcp.Permission}, false, false, true},
		{"the other worker is reached", away, false, true, true},
	} {
		clock := testkit.NewJumpClock()
		slice := tpu.Slice{Name: "t", UID: "1", State: "READY", Condition: tpu.Usable}
		f := &following{
			Deps: &Deps{Clock: clock, Sink: event.Discard, Cloud: &testkit.FixedSlices{Err: tt.err, All: []tpu.Slice{slice}}},
			team: &team{slices: []tpu.Slice{slice}, ids: []tpu.WorkerID{{}, {Worker: 1}}}, patience: Patience{Lost: 10 * time.Minute},
			ends: []ending{{}, {known: tt.ended}}, outages: make([]outage, 2),
		}
		gaveUp := false
		lose := func(i int) {
			f.outages[i].lost(f, i, func(error) { gaveUp = true }, errors.New("connection refused"))
		}
		pause := outageLook
		for range 200 {
			lose(0)
			if !tt.reach && !tt.ended {
				lose(1)
			}
			<-clock.After(pause)
			pause = f.lookAtOutages(t.Context(), pause)
		}
		if gaveUp != tt.lost {
			t.Errorf("%s: given up = %v, want %v", tt.story, gaveUp, tt.lost)
		}
	}
}

// An attempt that only could not be reached is followed on when it can be again;
// one of which anything is gone is replaced.
func TestAnAttemptThatWentOnIsFollowedOn(t *testing.T) {
	info := func(phase launch.Phase) launch.Info {
		return launch.Info{Ref: launch.Ref{Run: "r", Attempt: 2}, Phase: phase, Mine: true, Command: "train"}
	}
	for _, tt := range []struct {
		story    string
		found    foundRun
		known    bool // how it ended, or what else became of it
		followed bool
		evicted  bool
	}{
		{"it runs on all workers", foundRun{info: info(launch.Running), workers: testkit.WorkerIDs(2, 1)}, false, true, false},
		{"it has ended there meanwhile", foundRun{info: info(launch.Exited), workers: testkit.WorkerIDs(2, 1)}, false, true, false},
		{"a worker was rebooted", foundRun{info: info(launch.Running), workers: testkit.WorkerIDs(2, 1), broken: 1}, false, false, true},
		{"a slice was made again", foundRun{info: info(launch.Running), workers: testkit.WorkerIDs(1, 1)}, false, false, true},
		{"it was lost for another reason", foundRun{info: info(launch.Running), workers: testkit.WorkerIDs(2, 1)}, true, false, true},
	} {
		for _, adopts := range []bool{true, false} {
			d := &Deps{StateDir: t.TempDir()}
			if err := (&Record{Run: "r", Attempt: 2}).save(d.StateDir); err != nil {
				t.Fatal(err)
			}
			r := &run{Deps: d, o: RunOptions{Run: "r", Script: "train"}, team: &team{ids: testkit.WorkerIDs(2, 1)}, adopts: adopts, tried: 1, begunLast: 2, cutOff: !tt.known}
			in := &intent{attempt: 3}
			if err := r.settleWith(in, []foundRun{tt.found}); err != nil || (in.living != nil) != tt.followed || (len(in.evict) > 0) != tt.evicted {
				t.Errorf("%s: followed %v, %d stopped, %v", tt.story, in.living != nil, len(in.evict), err)
			}
		}
	}
}

// An attempt on slices that were made since this runner began its last one is another
// runner's, even if its number is the same: it is taken over, and nothing is stopped.
func TestAnAttemptOfAnotherRunnerIsKnownByItsSlices(t *testing.T) {
	found := foundRun{info: launch.Info{Ref: launch.Ref{Run: "r", Attempt: 1}, Phase: launch.Running, Mine: true, Command: "train"}, workers: testkit.WorkerIDs(2, 1)}
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
		r := &run{Deps: &Deps{StateDir: t.TempDir()}, o: RunOptions{Run: "r", Script: "train"}, team: &team{ids: testkit.WorkerIDs(2, 1), slices: tt.now},
			adopts: true, tried: 1, begunLast: 1, begunOn: tt.begunOn}
		in := &intent{attempt: 2}
		if err := r.settleWith(in, []foundRun{found}); err != nil || (in.living != nil) != tt.followed || (len(in.evict) > 0) == tt.followed {
			t.Errorf("%s: followed %v, %d stopped, %v", tt.story, in.living != nil, len(in.evict), err)
		}
	}
}

func TestWhatIsOnlyOutOfReach(t *testing.T) {
	away := ending{known: true, err: errors.New("not reachable")}
	for _, tt := range []struct {
		story string
		ends  []ending
		want  bool
	}{
		{"all workers are away", []ending{away, {err: context.Canceled}}, true},
		{"one has ended well", []ending{{known: true}, away}, true},
		{"one has failed", []ending{{known: true, exit: launch.Exit{Code: 1}}, away}, false},
		{"one was stopped", []ending{{known: true, exit: launch.Exit{Code: 143, Reason: "fail-fast"}}, away}, false},
		{"a slice is gone", []ending{away, {known: true, err: errSliceGone}}, false},
		{"all have ended well", []ending{{known: true}, {known: true}}, false},
	} {
		if got := (&following{ends: tt.ends}).cutOff(); got != tt.want {
			t.Errorf("%s: %v", tt.story, got)
		}
	}
}
