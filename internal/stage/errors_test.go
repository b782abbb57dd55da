package stage

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

func TestWhatAnInterruptMeans(t *testing.T) {
	for _, tt := range []struct {
		in           Interrupted
		ours, others bool // the command leaves its own run running (ours), or another command's (others)
		text         string
	}{
		{Interrupted{Signal: syscall.SIGINT}, false, true, "interrupted (SIGINT)"},
		{Interrupted{Signal: syscall.SIGTERM}, false, true, "terminated (SIGTERM)"},
		{Interrupted{Signal: syscall.SIGHUP}, true, true, "the terminal is gone (SIGHUP)"},
		{Interrupted{Signal: syscall.SIGHUP, Answer: Stop}, false, false, "the terminal is gone (SIGHUP)"},
		{Interrupted{Signal: syscall.SIGHUP, Answer: Detach}, true, true, "the terminal is gone (SIGHUP)"},
		{Interrupted{Signal: syscall.SIGINT, Answer: Detach}, true, true, "detached"},
		{Interrupted{Signal: syscall.SIGINT, Answer: Stop}, false, false, "interrupted (SIGINT)"},
		{Interrupted{Signal: syscall.SIGQUIT}, false, true, "ended by signal quit"},
	} {
		if got := tt.in.Detaches(true); got != tt.ours {
			t.Errorf("%+v leaves our run running: %v", tt.in, got)
		}
		if got := tt.in.Detaches(false); got != tt.others {
			t.Errorf("%+v leaves another's run running: %v", tt.in, got)
		}
		if got := tt.in.Error(); got != tt.text || tt.in.Fault() != fault.Interrupted {
			t.Errorf("%+v: %q, %v", tt.in, got, tt.in.Fault())
		}
	}
}

func TestKindsOfStages(t *testing.T) {
	usage, config := fault.New(fault.Usage, "no such flag"), fault.New(fault.Configuration, "no project")
	denied := &gcp.Error{Class: gcp.Permission}
	unknown := errors.New("broken")
	for _, tt := range []struct {
		err  interface{ Fault() fault.Kind }
		want fault.Kind
	}{
		{&Error{Stage: Connect, Err: unknown}, fault.Unavailable},
		{&Error{Stage: Connect}, fault.Unavailable},
		{&Error{Stage: Connect, Err: denied}, fault.Permission},
		{&Error{Stage: Connect, Err: usage}, fault.Usage},
		{&Error{Stage: Venv, Err: config}, fault.Configuration},
		{&Error{Stage: Venv, Err: unknown}, fault.Preflight},
		{&Error{Stage: Settings}, fault.Preflight},
		{&Error{Stage: Skew}, fault.Preflight},
		{&Error{Stage: Timeout}, fault.Temporary},
		{&Error{Stage: Stalled}, fault.Temporary},
		{&Error{Stage: Local, Err: unknown}, fault.IO},
		{&Error{Stage: Scan, Err: denied}, fault.IO},
		{&Error{Stage: Input}, fault.Usage},
		{&Failure{Cause: Stall, Err: unknown}, fault.Temporary},
		{&Failure{Cause: Preempted}, fault.Unavailable},
		{&Failure{Cause: Refused, Err: denied}, fault.Permission},
	} {
		if got := tt.err.Fault(); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestTextsOfErrors(t *testing.T) {
	cause := errors.New("no route to host")
	for want, err := range map[string]error{
		"connect: no route to host":  &Error{Stage: Connect, Err: cause},
		"connect: s0w0 is away":      &Error{Stage: Connect, Text: "s0w0 is away", Err: cause},
		"--timeout: no duration":     &Error{Stage: Input, Text: "--timeout: no duration"},
		"preempted: slice t is gone": &Failure{Cause: Preempted, Why: "slice t is gone", Err: cause},
		"refused":                    &Failure{Cause: Refused, Err: cause},
	} {
		if err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
		if want != "--timeout: no duration" && !errors.Is(err, cause) {
			t.Errorf("%q does not wrap its cause", err)
		}
	}
	wrapped := fmt.Errorf("job: %w", &Error{Stage: Follow})
	if !Is(wrapped, Follow) || Is(wrapped, Sync) || Is(cause, Follow) {
		t.Error("Is does not know the stage of an error")
	}
}

// hinted is an error with one hint for the time while the slices exist, and one for the time
// after.
type hinted struct{ whenGone string }

func (hinted) Error() string          { return "it failed" }
func (hinted) Hint() string           { return "ssh there" }
func (h hinted) HintWhenGone() string { return h.whenGone }

func TestAdviceAboutSlicesGoesWithThem(t *testing.T) {
	err := &Error{Stage: Connect, Err: hinted{"ask for others"}}
	if got := err.Hint(); got != "ssh there" {
		t.Errorf("advice %q", got)
	}
	if got := (&Error{Err: hinted{}, Advice: "wait"}).Hint(); got != "wait" {
		t.Errorf("advice %q", got)
	}
	for _, tt := range []struct {
		err  error
		want string
	}{{err, "ask for others"}, {errors.New("x"), ""}} {
		gone := WithoutSlices(tt.err)
		var h interface{ Hint() string }
		if !errors.As(gone, &h) || h.Hint() != tt.want || !errors.Is(gone, tt.err) || gone.Error() != tt.err.Error() {
			t.Errorf("%v without slices: advice %q, want %q", tt.err, h.Hint(), tt.want)
		}
	}
}

func TestAStopwatchAddsTheTimesOfAPhase(t *testing.T) {
	sink, clock := &testkit.Recorder{}, testkit.NewJumpClock()
	w := Stopwatch{Sink: sink, Clock: clock}
	broken := errors.New("broken")
	work := func(text string, err error) func() (string, error) {
		return func() (string, error) { <-clock.After(time.Second); return text, err }
	}
	testkit.Must(t, w.Phase("sync", work("3 files", nil)))
	if err := w.Phase("sync", work("", broken)); !errors.Is(err, broken) {
		t.Errorf("phase: %v", err)
	}
	if err := w.Span("wait", func() error { <-clock.After(time.Minute); return broken }); !errors.Is(err, broken) {
		t.Errorf("span: %v", err)
	}
	if got := fmt.Sprint(w.Times); got != "[{sync 2s} {wait 1m0s}]" {
		t.Errorf("times %s", got)
	}
	want := []event.Event{
		event.Phase{Name: "sync", State: event.Started}, event.Phase{Name: "sync", State: event.Done, Detail: "3 files", Elapsed: time.Second},
		event.Phase{Name: "sync", State: event.Started}, event.Phase{Name: "sync", State: event.Failed, Elapsed: time.Second},
	}
	if got := sink.Events(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events %+v", got)
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := Sleep(ctx, testkit.NewJumpClock(), time.Hour); err != nil {
		t.Errorf("sleep: %v", err)
	}
	failed, cause := errors.New("failed"), &Interrupted{Signal: syscall.SIGINT}
	if err := InterruptedOr(ctx, failed); !errors.Is(err, failed) {
		t.Errorf("not interrupted: %v", err)
	}
	cancel(cause)
	if err := Sleep(ctx, gcp.SystemClock, time.Hour); !errors.Is(err, cause) {
		t.Errorf("sleep: %v", err)
	}
	if err := Sleep(ctx, gcp.SystemClock, 0); !errors.Is(err, cause) {
		t.Errorf("no sleep: %v", err)
	}
	if err := InterruptedOr(ctx, failed); !errors.Is(err, cause) {
		t.Errorf("interrupted: %v", err)
	}
}

func TestLimitsAsPeopleTypeThem(t *testing.T) {
	for d, want := range map[time.Duration]string{
		30 * time.Minute: "30m", 2 * time.Hour: "2h", 90 * time.Minute: "1h30m", 10 * time.Second: "10s", time.Hour + time.Second: "1h0m1s", 0: "0s", 1500 * time.Millisecond: "1.5s",
	} {
		if got := AsTyped(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestStatusOfAnOutcome(t *testing.T) {
	for _, tt := range []struct {
		o    Outcome
		want int
	}{{Outcome{}, 0}, {Outcome{Code: 3}, 3}, {Outcome{PartLogs: true}, PartLogCode}, {Outcome{Code: 3, PartLogs: true}, 3}} {
		if got := tt.o.Status(); got != tt.want {
			t.Errorf("%+v: %d", tt.o, got)
		}
	}
}

func TestMissingWorkersAreSorted(t *testing.T) {
	failed := map[tpu.WorkerID]error{{Slice: 1}: nil, {Worker: 2}: nil, {Worker: 10}: nil}
	if got := fmt.Sprint(Missing(failed)); got != "[s0w2 s0w10 s1w0]" {
		t.Errorf("missing %s", got)
	}
}
