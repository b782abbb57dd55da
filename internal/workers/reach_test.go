//go:build unix

package workers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/overssh"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/tpu"
)

// A cloud has fixed slices, and a queued resource with three slices.
type cloud struct{ testkit.FixedSlices }

func (*cloud) Get(_ context.Context, id string) (provision.Resource, error) {
	return provision.Resource{ID: id, NodeCount: 3}, nil
}

func (*cloud) Undoing(string, ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{List: "multihost qr list"}}
}

// reach returns a Reach for the workers of slices.
func reach(sink event.Sink, dialer remote.Dialer, all ...tpu.Slice) *Reach {
	return &Reach{
		Invocation: &stage.Invocation{Sink: sink, Clock: gcp.SystemClock}, Place: provision.Place{Zone: "z"},
		Cloud: &cloud{testkit.FixedSlices{All: all}}, Dialer: dialer, Access: overssh.Access{RetryFor: time.Minute},
	}
}

// ready returns a usable slice with this number of workers.
func ready(name string, workers int) tpu.Slice {
	s := testkit.ReadySlice(name, workers)
	s.Type, s.QueuedResource = "v4-16", "q"
	return s
}

func making(name string) tpu.Slice {
	return tpu.Slice{Name: name, UID: name, State: "CREATING", Condition: tpu.Making, Type: "v4-16", QueuedResource: "q"}
}

func family(all ...tpu.Slice) []tpu.Slice {
	for i := range all {
		all[i].MultiSlice = true
	}
	return all
}

// A run needs all slices of a family. A command on single workers needs only the slices
// that it names.
func TestWhichWorkersAreMeant(t *testing.T) {
	pattern := func(text string) tpu.Pattern {
		p, err := tpu.ParsePattern(text)
		testkit.Must(t, err)
		return p
	}
	const short = `"q" has 3 slices, only 2 are here`
	for _, tt := range []struct {
		story    string
		all      []tpu.Slice
		w        Workers
		run      string // workers of a run, or the error
		commands string // workers of a command, or the error
		warned   bool   // by the command
	}{
		{"all are ready", family(ready("t-0", 2), ready("t-1", 2), ready("t-2", 2)), Workers{Prefix: "t"}, "s[0-2]w[0-1]", "s[0-2]w[0-1]", false},
		{"one by its name", family(ready("t-0", 2), making("t-1")), Workers{Prefix: "t-0"}, "s0w[0-1]", "s0w[0-1]", false},
		{"one is being made", family(ready("t-0", 1), making("t-1"), ready("t-2", 1)), Workers{Prefix: "t"}, `slice "t-1" is not ready: state CREATING`, `slice "t-1" is not ready: state CREATING`, false},
		{"some of them", family(ready("t-0", 1), making("t-1"), ready("t-2", 1)), Workers{Prefix: "t", Only: pattern("s2w0")}, "", "s2w0", true},
		{"all but some", family(ready("t-0", 2), ready("t-1", 2), ready("t-2", 2)), Workers{Prefix: "t", Except: pattern("s1w*")}, "", "s[0,2]w[0-1]", false},
		{"those that are ready", family(ready("t-0", 1), making("t-1"), ready("t-2", 1)), Workers{Prefix: "t", Partial: true}, "s[0-1]w0", "s[0,2]w0", true},
		{"the last is not there", family(ready("t-0", 1), ready("t-1", 1)), Workers{Prefix: "t"}, short, short, false},
		{"the slices 0 and 1 of more", family(ready("t-0", 1), ready("t-1", 1), making("t-2")), Workers{Prefix: "t", Slices: tpu.Numbers{{0, 1}}}, "s[0-1]w0", "s[0-1]w0", false},
		{"none", nil, Workers{Prefix: "t"}, "no slice", "no slice", false},
		{"a worker that does not exist", family(ready("t-0", 1), ready("t-1", 1), ready("t-2", 1)), Workers{Prefix: "t", Only: pattern("s9w9")}, "", "s9w9", false},
	} {
		said := &testkit.Recorder{}
		d := reach(said, nil, tt.all...)
		watch := stage.Stopwatch{Sink: event.Discard, Clock: gcp.SystemClock}
		check := func(who, want string, ids []tpu.WorkerID, err error) {
			got := tpu.Fold(ids)
			if err != nil {
				got = err.Error()
			}
			if want != "" && got != want && (err == nil || !strings.Contains(got, want)) {
				t.Errorf("%s, %s: %q, want %q", tt.story, who, got, want)
			}
		}
		_, ids, err := d.Choose(t.Context(), &watch, tt.w)
		check("a command", tt.commands, ids, err)
		if warned := len(said.Notes()) > 0; warned != tt.warned {
			t.Errorf("%s: said %+v", tt.story, said.Notes())
		}
		if tt.run != "" {
			sel, err := d.Discover(t.Context(), tt.w.Prefix, tt.w.Slices, tt.w.Partial)
			if err != nil {
				sel = tpu.Selection{}
			}
			check("a run", tt.run, sel.Workers(), err)
		}
	}
	d := reach(event.Discard, nil)
	d.Cloud.(*cloud).Err = errors.New("away")
	watch := stage.Stopwatch{Sink: event.Discard, Clock: gcp.SystemClock}
	_, _, err := d.Choose(t.Context(), &watch, Workers{Prefix: "t"})
	if _, other := d.Discover(t.Context(), "t", nil, false); err == nil || err.Error() != `list slices in "z": away` || other == nil || other.Error() != err.Error() {
		t.Errorf("without an answer: %v and %v", err, other)
	}
}

// local returns slice "t" with n workers on this machine.
func local(t *testing.T, n int) (tpu.Slice, []*localworker.Worker, remote.Dialer) {
	t.Helper()
	fleet := localworker.Fleet{}
	return fleet.Slice(t, "t", n), fleet["t"], fleet.Dialer()
}

// A caller that needs all workers gets an error if one is away. A caller that can work with
// some gets the others.
func TestWorkersThatAreAway(t *testing.T) {
	t.Parallel()
	s, on, dialer := local(t, 2)
	said := &testkit.Recorder{}
	d := reach(said, dialer, s)
	watch := stage.Stopwatch{Sink: said, Clock: gcp.SystemClock}
	c, err := d.ReachAll(t.Context(), &watch, "t", nil, false, nil)
	if err != nil || c.Reached() != 2 || c.Slice(1).Name != "t" {
		t.Fatalf("%+v, %v", c, err)
	}
	c.Close()

	on[1].Leave()
	defer on[1].Return()
	d.Access.RetryFor = time.Millisecond
	if _, err := d.ReachAll(t.Context(), &watch, "t", nil, false, nil); !stage.Is(err, stage.Connect) || !strings.Contains(err.Error(), "1 of 2 workers failed: s0w1") {
		t.Errorf("all: %v", err)
	}
	c, failed, err := d.Call(t.Context(), &watch, Workers{Prefix: "t"})
	if err != nil || fmt.Sprint(c.IDs) != "[s0w0]" || failed[tpu.WorkerID{Worker: 1}] == nil {
		t.Fatalf("some: %+v, %v, %v", c, failed, err)
	}
	c.Close()
	only, err := tpu.ParsePattern("s0w1")
	testkit.Must(t, err)
	if _, _, err := d.Call(t.Context(), &watch, Workers{Prefix: "t", Only: only}); !stage.Is(err, stage.Connect) {
		t.Errorf("none: %v", err)
	}
	v, err := d.Visit(t.Context(), tpu.Selection{Slices: []tpu.Slice{s}}, nil)
	testkit.Must(t, err)
	defer v.Close()
	if v.Workers[0].Conn == nil || v.Workers[0].Err != nil || v.Workers[1].Conn != nil || v.Workers[1].Err == nil {
		t.Errorf("visited %+v", v.Workers)
	}
}

func TestRunsOnWorkersAreFoundAndStopped(t *testing.T) {
	t.Parallel()
	s, on, dialer := local(t, 2)
	testkit.Must(t, os.WriteFile(filepath.Join(on[0].Home, "brief"), nil, 0o600))
	d := reach(event.Discard, dialer, s)
	c, err := d.Connect(t.Context(), tpu.Selection{Slices: []tpu.Slice{s}}, nil)
	testkit.Must(t, err)
	defer c.Close()
	for _, w := range on {
		w.Start(t, launch.Spec{Run: "r", Attempt: 1, Owner: "ann@laptop", Script: "[ -e ~/brief ] || exec sleep 300"})
	}
	var run FoundRun
	testkit.Eventually(t, "worker 0 has ended", func() bool {
		found, errs := c.Runs(t.Context())
		if err := errors.Join(errs...); err != nil || len(found) != 1 {
			t.Errorf("found %+v, %v", found, err)
			return true
		}
		run = found[0]
		return run.Well == 1
	})
	if run.Alive != 1 || fmt.Sprint(run.Workers) != "[s0w0 s0w1]" || !run.Info.Alive() || run.Stoppable() != nil {
		t.Errorf("%+v", run)
	}
	skip := func(i int) bool { return i == 0 }
	testkit.Must(t, c.StopAll(t.Context(), event.Discard, run.Info.Ref, 100*time.Millisecond, "enough", skip))
	if found, _ := c.Runs(t.Context()); len(found) != 1 || found[0].Alive != 0 || found[0].Broken != 1 {
		t.Errorf("after the stop: %+v", found)
	}
	err = MayStillRun(stage.WorkersError(stage.Stopping, c.IDs, []error{errors.New("away"), errors.New("away")}), "other")
	var e *stage.Error
	if !errors.As(err, &e) || !strings.HasPrefix(e.Text, "run other may still be running: 2 of 2 workers failed") || e.Advice != "try again with: multihost stop other" {
		t.Errorf("of a run that is not there: %v", err)
	}
}

// A greeted connection answers its first command once the channel is closed.
type greeted struct {
	remote.Conn
	answers <-chan struct{}
}

func (g greeted) MeasureClock(ctx context.Context) (time.Duration, error) {
	select {
	case <-g.answers:
		return 0, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (g greeted) ClockOffset() time.Duration { return 0 }

// dialed is a dialer that has reached the workers with these connections.
type dialed []remote.Conn

func (d dialed) Dial(context.Context, remote.Request) (*remote.Dialed, error) {
	errs := make([]error, len(d))
	for i, c := range d {
		if c == nil {
			errs[i] = errors.New("no route to host")
		}
	}
	return &remote.Dialed{Conns: d, Errs: errs, Close: func() {}}, nil
}

func (dialed) Way(context.Context, []tpu.Slice, event.Sink) string { return "" }

// answer closes a channel when an event says that only one login has not answered.
type answer struct {
	testkit.Recorder
	of   chan struct{}
	told event.Progress
}

func (a *answer) Emit(e event.Event) {
	if p, ok := e.(event.Progress); ok && p.Waiting == "s0w1" && a.told.Total == 0 {
		a.told = p
		close(a.of)
	}
	a.Recorder.Emit(e)
}

// A worker counts as connected once its login has answered, and never if it was not
// reached.
func TestALoginThatHangsIsNotConnected(t *testing.T) {
	t.Parallel()
	at := make(chan struct{})
	close(at)
	said := &answer{of: make(chan struct{})}
	d := reach(said, dialed{greeted{answers: at}, greeted{answers: said.of}, nil}, ready("t", 3))
	d.Clock = testkit.NewFastClock()
	c, err := d.DialAll(t.Context(), tpu.Selection{Slices: []tpu.Slice{ready("t", 3)}}, nil, false, time.Minute)
	if err != nil || c.Reached() != 2 {
		t.Fatalf("got %+v, %v", c, err)
	}
	if p := said.told; p.Phase != "connect" || p.Done != 1 || p.Total != 3 || p.Waiting != "s0w1" || p.Detail != "the login has not answered yet" {
		t.Errorf("told %+v", p)
	}
}
