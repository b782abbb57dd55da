//go:build unix

package logs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/detach"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/metrics"
	"multihost/internal/provision"
	"multihost/internal/runs"
	"multihost/internal/sim"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/testkit/onworkers"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/tpu"
	"multihost/internal/training"
)

// farRun has local slices t-0 and t-1 of one worker each, and a user's machine without a
// record of their runs.
type farRun struct {
	testkit.FixedSlices
	t     *testing.T
	fleet localworker.Fleet
	d     runs.Deps
	said  *testkit.Recorder
}

func newFarRun(t *testing.T) *farRun {
	f := &farRun{t: t, fleet: localworker.Fleet{}}
	for _, name := range []string{"t-0", "t-1"} {
		f.All = append(f.All, f.fleet.Slice(t, name, 1))
	}
	on, said := onworkers.Deps(t, f.fleet, f)
	on.Owner = "ann@desk"
	f.d, f.said = runs.Deps{Reach: on.Reach, Keeper: on.Keeper}, said
	return f
}

// Get returns the resource of the run r, which is a job without runner.
func (f *farRun) Get(_ context.Context, id string) (provision.Resource, error) {
	if id != "r" {
		return provision.Resource{}, provision.ErrNotFound
	}
	r := provision.Request{ID: id}
	r.Mark(id, "ann")
	return provision.Resource{ID: id, Life: provision.Active, Labels: r.Labels}, nil
}

// start starts a script on both workers. $me is the name of the slice.
func (f *farRun) start(script string) {
	f.t.Helper()
	for name, on := range f.fleet {
		testkit.Must(f.t, os.WriteFile(filepath.Join(on[0].Home, "name"), []byte(name), 0o600))
		on[0].Start(f.t, launch.Spec{Run: "r", Attempt: 1, Owner: "ann@laptop", Slices: 2, Script: "me=$(<~/name)\n" + script})
	}
}

// texts is a LogSink. It keeps the text of each worker.
type texts map[tpu.WorkerID]string

func (s texts) WriteLog(id tpu.WorkerID, _ time.Time, p []byte) error {
	s[id] += string(p)
	return nil
}

func (texts) Flush() error { return nil }

func (s texts) String() string {
	var all []string
	for id, text := range s {
		all = append(all, fmt.Sprintf("%s %q", id, text))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func TestLogsOfARunThatThisMachineDoesNotKnow(t *testing.T) {
	t.Parallel()
	f := newFarRun(t)
	f.start("echo $me begins\n" + localworker.UntilAllowed + "echo $me ends; [ $me = t-0 ] || exit 3")
	show := func(o LogOptions) string {
		t.Helper()
		s := texts{}
		if o.Tail == 0 {
			o.Tail = -1
		}
		if err := Logs(t.Context(), f.d, "r", "", o, s); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		return s.String()
	}
	if got := show(LogOptions{}); got != `s0w0 "t-0 begins\n"` {
		t.Errorf("so far: %s", got)
	}
	for _, on := range f.fleet {
		on[0].Allow(t)
	}
	const all = `s0w0 "t-0 begins\nt-0 ends\n", s1w0 "t-1 begins\nt-1 ends\n"`
	if got := show(LogOptions{All: true, Follow: true, Lost: time.Minute}); got != all {
		t.Errorf("followed: %s", got)
	}
	if got := show(LogOptions{FirstFailure: true}); got != `s1w0 "t-1 begins\nt-1 ends\n"` {
		t.Errorf("of the first failure: %s", got)
	}
	if got := show(LogOptions{Worker: tpu.WorkerID{Slice: 1}, Tail: 1}); got != `s1w0 "t-1 ends\n"` {
		t.Errorf("the last line: %s", got)
	}
	for want, o := range map[string]LogOptions{
		`run "r" has no worker s7w0`: {Worker: tpu.WorkerID{Slice: 7}},
		"attempt 4":                  {Attempt: 4},
	} {
		if err := Logs(t.Context(), f.d, "r", "", o, texts{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	f.All = f.All[:1]
	s := texts{}
	if err := Logs(t.Context(), f.d, "r", "", LogOptions{All: true, Tail: -1}, s); err == nil || !strings.Contains(err.Error(), "gone or were made again since: 1 of 2") || s.String() != `s0w0 "t-0 begins\nt-0 ends\n"` {
		t.Errorf("a part: %v, %s", err, s)
	}
}

// review begins to read the run with begin. It returns the Look at the run's end.
func (f *farRun) review(begin func(*Review, Far) error) Look {
	f.t.Helper()
	r := OpenReview(f.d.StateDir, "r", training.TrainingOptions{})
	testkit.Must(f.t, begin(r, Far{Deps: func() (runs.Deps, error) { return f.d, nil }, Clock: gcp.SystemClock}))
	defer r.Close()
	var look Look
	testkit.Eventually(f.t, "the end of the run", func() bool {
		var err error
		look, err = r.Look(metrics.View{}, time.Now())
		testkit.Must(f.t, err)
		return look.Ended || look.Story.Newest() != nil && look.Story.Newest().Summary != nil
	})
	return look
}

func TestAReviewReadsWhereTheRunIs(t *testing.T) {
	t.Parallel()
	f := newFarRun(t)
	f.start("echo a word; exit 3")
	for name, begin := range map[string]func(*Review, Far) error{
		"follow": func(r *Review, far Far) error { return r.Follow(t.Context(), far) },
		"fetch":  func(r *Review, far Far) error { return r.Fetch(t.Context(), far) },
	} {
		if look := f.review(begin); look.Story.Newest().Summary.CommandCode != 3 {
			t.Errorf("%s: %+v", name, look.Story.Newest().Summary)
		}
	}
	again := newFarRun(t)
	again.start("exec sleep 300")
	for name, on := range again.fleet { // stop the run as the runner of a job does
		c := on[0].Connect(name, false, time.Second)
		defer c.Close()
		_, err := launch.Stop(t.Context(), c, launch.Ref{Run: "r", Attempt: 1}, launch.StopOptions{Grace: 100 * time.Millisecond, Reason: stage.StandsStill})
		testkit.Must(t, err)
	}
	look := again.review(func(r *Review, far Far) error { return r.Fetch(t.Context(), far) })
	if sum := look.Story.Newest().Summary; len(look.Notices) > 0 || sum.Text != "run r was stopped: "+stage.StandsStill {
		t.Errorf("its runner stopped it: %+v, notices %q", sum, look.Notices)
	}
	r := OpenReview(f.d.StateDir, "unknown", training.TrainingOptions{})
	if err := r.Fetch(t.Context(), Far{Deps: func() (runs.Deps, error) { return f.d, nil }, Clock: gcp.SystemClock}); err == nil || !strings.Contains(err.Error(), `no run "unknown"`) {
		t.Errorf("a run that nobody knows: %v", err)
	}
}

func TestLogsOfAJobWithoutRunner(t *testing.T) {
	c := simcloud.Start(t, sim.Config{})
	f := newFarRun(t)
	f.All = nil // the workers cannot be reached
	f.d.Clock = testkit.NewFastClock()
	in, put := onworkers.Bucket(f.d.Reach, c)
	f.d.Source = in
	put("run.json", `{"run":"r","project":"p","zone":"z","queued_resource":"r","slices":["t-0","t-1"],"workers_per_slice":1,"login":"tester","owner":"ann@laptop","seconds_between_uploads":5}`)
	ids := testkit.WorkerIDs(2, 1)
	for _, id := range ids {
		put("workers/"+id.String(), "phase=running\nattempt=1\n")
		put(detach.LogObject(id, 1), "begins\n")
	}
	followed := texts{}
	done := make(chan error, 1)
	go func() {
		done <- Logs(t.Context(), f.d, "r", "", LogOptions{Follow: true, Worker: ids[1], Tail: -1}, followed)
	}()
	testkit.Eventually(t, "a note of the bucket", func() bool { return f.said.Said("info", "worker s1w0 cannot be reached") })
	for _, id := range ids {
		put(detach.LogObject(id, 1), "begins\nends\n")
		put(fmt.Sprintf("ended/1/%s.%d", id, 3*id.Slice), fmt.Sprintf("end=%d\nsize=12\n", time.Now().UnixNano()))
	}
	if err := <-done; err != nil || followed.String() != `s1w0 "begins\nends\n"` {
		t.Errorf("followed: %v, %s", err, followed)
	}
	for want, o := range map[string]LogOptions{
		`s0w0 "ends\n", s1w0 "ends\n"`: {All: true, Tail: 1},
		`s1w0 "begins\nends\n"`:        {FirstFailure: true, Tail: -1},
	} {
		s := texts{}
		if err := Logs(t.Context(), f.d, "r", "", o, s); err != nil || s.String() != want {
			t.Errorf("%v, %s, want %s", err, s, want)
		}
	}
	if err := Logs(t.Context(), f.d, "r", "", LogOptions{Worker: tpu.WorkerID{Slice: 2}}, texts{}); err == nil || !strings.Contains(err.Error(), `run "r" has no worker s2w0`) {
		t.Errorf("a worker that is none: %v", err)
	}
	if look := f.review(func(r *Review, far Far) error { return r.Fetch(t.Context(), far) }); look.Story.Newest().Summary.ExitCode != 3 {
		t.Errorf("%+v", look.Story.Newest().Summary)
	}
}
