package follow

import (
	"context"
	"errors"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// deps returns the Deps of a following.
func deps(clock gcp.Clock, sink event.Sink, cloud provision.Provider) Deps {
	return Deps{Reach: &workers.Reach{Invocation: &stage.Invocation{Clock: clock, Sink: sink}, Cloud: cloud}}
}

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
		var o outages
		gaveUp := false
		for range 30 {
			o.lost(0, tpu.WorkerID{}, func(error) { gaveUp = true }, tt.err, clock.Now(), 10*time.Minute)
			<-clock.After(time.Minute)
		}
		if gaveUp != tt.lost {
			t.Errorf("%s: given up = %v, want %v", tt.story, gaveUp, tt.lost)
		}
	}
}

// If this machine reaches neither a worker nor the API, it has no network, and no worker
// becomes lost, even after hours. Workers become lost if the API answers, or if other
// workers can be reached.
func TestAMachineWithoutNetworkLosesNoWorker(t *testing.T) {
	away := &gcp.Error{Class: gcp.Unavailable}
	for _, tt := range []struct {
		story string
		err   error
		ended bool // the command has ended on one of two workers; otherwise both are lost
		reach bool // one of two workers can be reached
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
		f := &Following{
			Deps:    deps(clock, event.Discard, &testkit.FixedSlices{Err: tt.err, All: []tpu.Slice{slice}}),
			Workers: &workers.Connected{Slices: []tpu.Slice{slice}, IDs: []tpu.WorkerID{{}, {Worker: 1}}}, Patience: Patience{Lost: 10 * time.Minute},
			Ends: []Ending{{}, {Known: tt.ended}},
		}
		gaveUp := false
		lose := func(i int) {
			f.outages.lost(i, f.Workers.IDs[i], func(error) { gaveUp = true }, errors.New("connection refused"), clock.Now(), f.Patience.Lost)
		}
		pause := OutageLook
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

func TestWhatIsOnlyOutOfReach(t *testing.T) {
	away := Ending{Known: true, Err: errors.New("not reachable")}
	for _, tt := range []struct {
		story string
		ends  []Ending
		want  bool
	}{
		{"all workers are away", []Ending{away, {Err: context.Canceled}}, true},
		{"one has ended well", []Ending{{Known: true}, away}, true},
		{"one has failed", []Ending{{Known: true, Exit: launch.Exit{Code: 1}}, away}, false},
		{"one was stopped", []Ending{{Known: true, Exit: launch.Exit{Code: 143, Reason: "fail-fast"}}, away}, false},
		{"a slice is gone", []Ending{away, {Known: true, Err: ErrSliceGone}}, false},
		{"all have ended well", []Ending{{Known: true}, {Known: true}}, false},
	} {
		if got := Endings(tt.ends).cutOff(); got != tt.want {
			t.Errorf("%s: %v", tt.story, got)
		}
	}
}

// The reports of an outage, minute by minute: seen is the event, and want the report.
func TestReportsOfAnOutage(t *testing.T) {
	const away, back, nothing = "away", "back", ""
	type moment struct {
		at   time.Duration
		err  trouble // noTrouble: the worker is followed again
		want string
	}
	for _, tt := range []struct {
		story   string
		moments []moment
	}{
		{"a long one is told again when it has doubled", []moment{
			{0, connection, away}, {30 * time.Second, connection, nothing}, {time.Minute, connection, away}, {110 * time.Second, connection, nothing},
			{2 * time.Minute, connection, away}, {4 * time.Minute, connection, away}, {5 * time.Minute, connection, nothing}, {6 * time.Minute, noTrouble, back},
		}},
		{"another trouble is told at once", []moment{{0, connection, away}, {time.Second, noAnswer, away}, {2 * time.Second, noAnswer, nothing}}},
		{"one that is over before it was told is not told", []moment{{0, noTrouble, nothing}}},
		{"a worker that comes and goes is told once a minute", []moment{
			{0, connection, away}, {time.Second, noTrouble, back}, {2 * time.Second, connection, nothing}, {3 * time.Second, noTrouble, nothing}, {2 * time.Minute, connection, away},
		}},
	} {
		begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		var o outage
		for _, m := range tt.moments {
			now := begin.Add(m.at)
			if m.err == noTrouble {
				o.end()
			} else {
				o.fail(now, m.err, "x", func(error) {}, time.Hour)
			}
			text, again := o.report(now, time.Hour)
			got := nothing
			switch {
			case again:
				got = back
			case text != "":
				got = away
			}
			if got != m.want {
				t.Errorf("%s: after %v %q is said, want %q", tt.story, m.at, got, m.want)
			}
		}
	}
}

// If the end of an outage was not reported, the next outage counts as the same one.
func TestARecoveryThatIsTooShortIsNotTold(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var o outage
	o.fail(begin, connection, "x", func(error) {}, 0)
	o.report(begin, 0)
	o.end()
	o.fail(begin.Add(time.Second), connection, "x", func(error) {}, 0)
	if text, back := o.report(begin.Add(2*time.Second), 0); text != "" || back {
		t.Errorf("said %q, %v", text, back)
	}
}

func TestThePauseBeforeTheCloudIsAskedAgain(t *testing.T) {
	away := errors.New("no answer")
	for _, tt := range []struct {
		pause, limit time.Duration
		err          error
		want         time.Duration
	}{
		{time.Minute, 0, nil, OutageLook},
		{OutageLook, 0, away, 2 * OutageLook},
		{time.Hour, 0, away, longestLook},
		{time.Minute, 40 * time.Second, away, 20 * time.Second},
		{time.Minute, time.Second, away, OutageLook},
	} {
		if got := nextLook(tt.pause, tt.limit, tt.err); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func TestASliceThatRunsNothing(t *testing.T) {
	s := tpu.Slice{Name: "t", UID: "1"}
	for _, tt := range []struct {
		nodes []tpu.Slice
		want  string
	}{
		{[]tpu.Slice{{Name: "t", UID: "1", State: "READY", Condition: tpu.Usable}}, ""},
		{[]tpu.Slice{{Name: "t", UID: "1", State: "PREEMPTED", Condition: tpu.Taken}}, `slice "t" is PREEMPTED`},
		{[]tpu.Slice{{Name: "t", UID: "2", State: "READY", Condition: tpu.Usable}}, `slice "t" is gone`},
		{[]tpu.Slice{{Name: "t", UID: "2", State: "Running", Condition: tpu.Usable, Remade: true}}, `slice "t" is being made again, and what was on its workers is lost`},
		{nil, `slice "t" is gone`},
	} {
		if got := LostSlice(tt.nodes, s); got != tt.want {
			t.Errorf("%+v: %q", tt.nodes, got)
		}
	}
}
