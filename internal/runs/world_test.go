//go:build unix

package runs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/sim"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/testkit/onworkers"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/tpu"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

// A world is a provision.Provider with local slices t-0, t-1, … of one worker each.
type world struct {
	provision.Provider
	t     *testing.T
	fleet localworker.Fleet

	mu        sync.Mutex
	all       []tpu.Slice
	resources map[string]provision.Resource
	deleted   []string
}

func newWorld(t *testing.T, count int) *world {
	w := &world{t: t, fleet: localworker.Fleet{}, resources: map[string]provision.Resource{}}
	for i := range count {
		w.all = append(w.all, w.fleet.Slice(t, fmt.Sprintf("t-%d", i), 1))
	}
	return w
}

func (w *world) Slices(context.Context) ([]tpu.Slice, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all), nil
}

func (w *world) Get(_ context.Context, id string) (provision.Resource, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if res, ok := w.resources[id]; ok {
		return res, nil
	}
	return provision.Resource{}, provision.ErrNotFound
}

func (w *world) List(context.Context) (all []provision.Resource, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, res := range w.resources {
		all = append(all, res)
	}
	return all, nil
}

func (w *world) Delete(_ context.Context, id string, _ provision.DeleteOptions) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.resources, id)
	w.deleted = append(w.deleted, id)
	return true, nil
}

func (w *world) Undoing(id string, _ ...string) provision.Undoing {
	return provision.Undoing{Commands: provision.Commands{Kind: "queued resource", Delete: "multihost qr delete " + id + " --force"}}
}

func (w *world) change(i int, f func(*tpu.Slice)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.all[i])
}

// holds makes a resource of all slices, as the job of a run does.
func (w *world) holds(run string, life provision.Life) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := provision.Request{ID: run}
	r.Mark(run, "ann")
	r.MarkJob(run)
	res := provision.Resource{ID: run, Life: life, State: string(life), Labels: r.Labels}
	for i := range w.all {
		w.all[i].QueuedResource, w.all[i].Labels = run, r.Labels
		if life == provision.Active {
			res.Slices, res.Nodes = append(res.Slices, w.all[i]), append(res.Nodes, w.all[i].Name)
		}
	}
	res.NodeCount = len(res.Slices)
	w.resources[run] = res
}

// machine returns the Deps of a command on a machine of its own.
func (w *world) machine(name string) (Deps, *testkit.Recorder) {
	d, said := onworkers.Deps(w.t, w.fleet, w)
	d.Access.RetryFor, d.Owner = 100*time.Millisecond, "ann@"+name
	d.ExitStatus = func(error) int { return 75 }
	return Deps{Reach: d.Reach, Keeper: d.Keeper}, said
}

// start starts a script as attempt 1 of a run on the given slices.
func (w *world) start(run, script string, on ...string) {
	w.t.Helper()
	for _, name := range on {
		w.fleet[name][0].Start(w.t, launch.Spec{Run: run, Attempt: 1, Owner: "ann@laptop", Slices: len(on), Script: script})
	}
}

var attachOptions = AttachOptions{Grace: 100 * time.Millisecond, Patience: follow.Patience{Lost: time.Minute, Log: time.Minute},
	Watch: follow.WatchOptions{StallTimeout: -1}, Secret: func(string) (string, bool) { return "", false }}

// listed returns what ps shows.
func listed(d Deps, said *testkit.Recorder, ended bool) (text string, rows []Seen, err error) {
	err = List(context.Background(), d, "", nil, ended)
	for _, e := range said.Events() {
		if r, ok := e.(event.Result); ok && r.Name == "runs" {
			text, rows = r.Text, r.Data.([]Seen)
		}
	}
	return text, rows, err
}

func TestARunIsFoundFollowedAndVerified(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.start("r", "echo begins\n"+localworker.UntilAllowed+"echo ends", "t-0", "t-1")
	d, said := w.machine("desk")
	text, rows, err := listed(d, said, false)
	if err != nil || len(rows) != 1 || rows[0].State != "running" || !strings.Contains(text, "running, not followed ") || strings.Join(rows[0].Slices, " ") != "t-0 t-1" {
		t.Errorf("%v, %+v\n%s", err, rows, text)
	}
	for _, on := range w.fleet {
		on[0].Allow(t)
	}
	out, err := Attach(t.Context(), d, "r", attachOptions)
	if err != nil || out.Code != 0 || out.PartLogs {
		t.Errorf("attach: %+v, %v", out, err)
	}
	if err := Verify(t.Context(), d, "r", ""); err != nil {
		t.Errorf("verify: %v", err)
	}
	rec, err := record.LoadRecord(d.StateDir, "r")
	testkit.Must(t, err)
	testkit.Append(t, rec.LogPath(tpu.WorkerID{Slice: 1}), "more")
	if err := Verify(t.Context(), d, "r", ""); err == nil || !strings.Contains(err.Error(), "s1w0") {
		t.Errorf("verify a log that differs: %v", err)
	}
	if text, rows, _ := listed(d, said, false); len(rows) != 0 || text != "no runs live; those that have ended: multihost ps --all\n" {
		t.Errorf("ps: %q", text)
	}
	if _, rows, _ := listed(d, said, true); len(rows) != 1 || rows[0].State != "exit code 0" {
		t.Errorf("ps --all: %+v", rows)
	}
	if err := Stop(t.Context(), d, "r", StopOptions{}); err != nil {
		t.Errorf("stop of a run that has ended: %v", err)
	}
	_, err = Attach(t.Context(), d, "unknown", attachOptions)
	if err == nil || !strings.Contains(err.Error(), `no run "unknown" on this machine's list`) {
		t.Errorf("attach: %v", err)
	}
	// The slices of the run have gone, and another machine starts it again.
	for i := range 2 {
		w.change(i, func(s *tpu.Slice) { s.UID += " again" })
	}
	_, err = Attach(t.Context(), d, "r", attachOptions)
	if err == nil || !strings.Contains(err.Error(), `slices of run "r" are gone: t-0, t-1`) {
		t.Errorf("attach after the slices: %v", err)
	}
}

func TestAStopTellsWhoWasNotReached(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.start("r", localworker.UntilAllowed, "t-0", "t-1")
	d, said := w.machine("desk")
	w.fleet["t-1"][0].Leave()
	err := Stop(t.Context(), d, "r", StopOptions{Grace: 100 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "run r may still run on t-1, which could not be asked") {
		t.Errorf("stop: %v", err)
	}
	if !said.Said(event.Warn, "run r is known from t-0; other slices, which may have a part of it, could not be asked") {
		t.Errorf("said %+v", said.Notes())
	}
	if text, _, err := listed(d, said, true); err == nil || !strings.Contains(text, ", on 1 of 2 slices") {
		t.Errorf("ps: %v\n%s", err, text)
	}
	w.fleet["t-1"][0].Return()
	if err := Stop(t.Context(), d, "r", StopOptions{Grace: 100 * time.Millisecond}); err != nil {
		t.Errorf("stop again: %v", err)
	}
	if out, err := Attach(t.Context(), d, "r", attachOptions); err != nil || out.Code != 143 {
		t.Errorf("attach: %+v, %v", out, err)
	}
}

// If a part of the run is missing, the search also asks a slice that is not ready. If that
// slice has gone, the run is no success.
func TestAPartOfARunIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.start("r", "echo ends", "t-0", "t-1")
	w.change(1, func(s *tpu.Slice) { s.Condition, s.Health = tpu.Serviced, "UNHEALTHY_MAINTENANCE" })
	d, _ := w.machine("desk")
	if out, err := Attach(t.Context(), d, "r", attachOptions); err != nil || out.Code != 0 {
		t.Errorf("in service: %+v, %v", out, err)
	}
	w.change(1, func(s *tpu.Slice) { s.Condition, s.State, s.Workers = tpu.Making, "CREATING", nil })
	d, _ = w.machine("lab")
	if _, err := Attach(t.Context(), d, "r", attachOptions); err == nil || !strings.Contains(err.Error(), "run r may still run on t-1 (state CREATING), which could not be asked") {
		t.Errorf("being made: %v", err)
	}
	w.all = w.all[:1]
	d, said := w.machine("phone")
	_, err := Attach(t.Context(), d, "r", attachOptions)
	var e *stage.Error
	if !errors.As(err, &e) || e.Text != "slices of run r that are gone or were made again since: 1 of 2" {
		t.Errorf("gone: %v", err)
	}
	for _, e := range said.Events() {
		if sum, ok := e.(event.Summary); ok && (sum.OK || sum.ExitCode == 0) {
			t.Errorf("%+v", sum)
		}
	}
}

func TestWhatAJobHasMadeIsDeletedByAStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.holds("t", provision.Active)
	d, said := w.machine("desk")
	if _, err := Attach(t.Context(), d, "t", attachOptions); err == nil || !strings.Contains(err.Error(), "no worker knows of run \"t\", but queued resource t was made for it") {
		t.Errorf("before it has begun: %v", err)
	}
	if text, rows, err := listed(d, said, false); err != nil || len(rows) != 1 || rows[0].State != "ready, no command" || rows[0].Gone != "not known here" {
		t.Errorf("%v, %+v\n%s", err, rows, text)
	}
	w.start("t", "echo a word; exit 3", "t-0", "t-1")
	testkit.Eventually(t, "the end", func() bool {
		_, rows, _ := listed(d, said, false)
		return strings.HasPrefix(rows[0].State, "kept: exit code 3")
	})
	err := Stop(t.Context(), d, "t", StopOptions{})
	if err == nil || len(w.deleted) != 0 || !strings.Contains(err.Error(), "the logs of s[0-1]w0 are not whole here: 0 of 14 bytes, and the rest is on its workers only") {
		t.Errorf("without its logs: %v, deleted %v", err, w.deleted)
	}
	asked := ""
	err = Stop(t.Context(), d, "t", StopOptions{Confirm: func(_ context.Context, q string) error { asked = q; return nil }})
	if err != nil || len(w.deleted) != 1 || !strings.HasPrefix(asked, "run t has ended (exit code 3); the logs of s[0-1]w0 are not whole here") {
		t.Errorf("%v; asked %q; deleted %v", err, asked, w.deleted)
	}
	w.holds("t", provision.Waiting)
	w.all, w.deleted = nil, nil
	d, _ = w.machine("lab")
	if err := Stop(t.Context(), d, "t", StopOptions{}); err != nil || len(w.deleted) != 1 {
		t.Errorf("a request that waits: %v, deleted %v", err, w.deleted)
	}
}

// inBucket makes a world with a job without runner in a bucket. The job is called r. put
// writes an object of the job.
func inBucket(t *testing.T) (w *world, d Deps, said *testkit.Recorder, put func(name, text string)) {
	c := simcloud.Start(t, sim.Config{})
	w = newWorld(t, 2)
	d, said = w.machine("desk")
	d.Clock = testkit.NewFastClock()
	d.Source, put = onworkers.Bucket(d.Reach, c)
	put("run.json", `{"run":"r","project":"p","zone":"z","queued_resource":"r","accelerator_type":"v4-8","slices":["t-0","t-1"],"workers_per_slice":1,
		"login":"tester","owner":"ann@laptop","command":"train","seconds_between_uploads":5}`)
	return w, d, said, put
}

func TestAJobWithoutRunnerIsFollowedFromItsBucket(t *testing.T) {
	w, d, said, put := inBucket(t)
	w.holds("r", provision.Active)
	put("workers/s0w0", "phase=preflight\nattempt=1\nmay_delete=yes\n")
	if _, rows, err := listed(d, said, false); err != nil || len(rows) != 1 || rows[0].State != "preflight" || rows[0].Gone != "at its end" {
		t.Errorf("%v, %+v", err, rows)
	}
	done := make(chan error, 1)
	var out stage.Outcome
	go func() {
		var err error
		out, err = Attach(t.Context(), d, "r", attachOptions)
		done <- err
	}()
	testkit.Eventually(t, "a word of the run", func() bool { return said.Said(event.Info, "run r, attempt 1: preflight on s0w0") })
	for _, id := range testkit.WorkerIDs(2, 1) {
		put("workers/"+id.String(), "phase=ended\nattempt=1\nmay_delete=yes\n")
		put(detach.LogObject(id, 1), "begins\nends\n")
		put(fmt.Sprintf("ended/1/%s.%d", id, 3*id.Slice), fmt.Sprintf("end=%d\nsize=12\n", time.Now().UnixNano()))
	}
	if err := <-done; err != nil || out.Code != 3 || out.PartLogs {
		t.Errorf("%+v, %v", out, err)
	}
	rec, err := record.LoadRecord(d.StateDir, "r")
	testkit.Must(t, err)
	if log, _ := os.ReadFile(rec.LogPath(tpu.WorkerID{})); string(log) != "begins\nends\n" {
		t.Errorf("log %q", log)
	}
	if _, rows, err := listed(d, said, true); err != nil || len(rows) != 1 || rows[0].State != "failed: s1w0 was first, exit code 3" {
		t.Errorf("%v, %+v", err, rows)
	}
	// Without --all, the list shows the run as long as its slices exist.
	if _, rows, err := listed(d, said, false); err != nil || len(rows) != 1 || rows[0].State != "failed: s1w0 was first, exit code 3" || rows[0].Gone != "at once" {
		t.Errorf("%v, %+v", err, rows)
	}
	if err := Stop(t.Context(), d, "r", StopOptions{}); err != nil || len(w.deleted) != 0 {
		t.Errorf("stop of what has ended: %v, deleted %v", err, w.deleted)
	}
	// If only parts without slices are left, the run is over, and --all shows it once.
	res := w.resources["r"]
	res.Nodes, res.Slices, res.Life, res.Free = nil, nil, provision.Requested, true
	w.resources["r"] = res
	for all, want := range map[bool]int{true: 1, false: 0} {
		if _, rows, err := listed(d, said, all); err != nil || len(rows) != want {
			t.Errorf("parts without slices, --all=%v: %v, %+v", all, err, rows)
		}
	}
}

// After Ctrl-C, the rest of a log stays on the workers.
func TestLeavingTheRestOfALog(t *testing.T) {
	w, d, said, put := inBucket(t)
	w.holds("r", provision.Active)
	w.start("r", localworker.UntilAllowed, "t-0", "t-1")
	defer func() {
		for _, on := range w.fleet {
			on[0].Allow(t)
		}
	}()
	for _, id := range testkit.WorkerIDs(2, 1) {
		put("workers/"+id.String(), "phase=ended\nattempt=1\nmay_delete=yes\n")
		put(fmt.Sprintf("ended/1/%s.0", id), fmt.Sprintf("end=%d\nsize=12\n", time.Now().UnixNano()))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		testkit.Eventually(t, "its logs come over SSH", func() bool { return said.Said(event.Info, "run r, attempt 1: logs in ") })
		cancel(&stage.Interrupted{Signal: syscall.SIGINT})
	}()
	out, err := Attach(ctx, d, "r", attachOptions)
	if in := (*stage.Interrupted)(nil); !errors.As(err, &in) || !out.Started {
		t.Errorf("%+v, %v", out, err)
	}
}

// Ctrl-C comes during the copy of the logs from the bucket. The state of the run is known
// by then.
func TestAnInterruptWhileLogsComeFromTheBucket(t *testing.T) {
	for name, ended := range map[string]bool{"the command has ended": true, "the command has not started": false} {
		t.Run(name, func(t *testing.T) {
			_, d, said, put := inBucket(t)
			for _, id := range testkit.WorkerIDs(2, 1) {
				if ended {
					put("workers/"+id.String(), "phase=ended\nattempt=1\n")
					put(fmt.Sprintf("ended/1/%s.0", id), fmt.Sprintf("end=%d\nsize=12\n", time.Now().UnixNano()))
				} else {
					put("workers/"+id.String(), "phase=preflight\nattempt=1\n")
				}
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			d.Sink = event.SinkFunc(func(e event.Event) {
				said.Emit(e)
				if n, ok := e.(event.Note); ok && strings.Contains(n.Text, "attempt 1") {
					cancel(&stage.Interrupted{Signal: syscall.SIGINT})
				}
			})
			out, err := Attach(ctx, d, "r", attachOptions)
			if in := (*stage.Interrupted)(nil); !errors.As(err, &in) || out.Started != ended {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
}

func TestAStopOfAJobWithoutRunner(t *testing.T) {
	w, d, _, put := inBucket(t)
	if err := Stop(t.Context(), d, "r", StopOptions{}); err != nil {
		t.Errorf("its resource is gone: %v", err)
	}
	w.holds("r", provision.Waiting)
	if err := Stop(t.Context(), d, "r", StopOptions{}); err != nil || strings.Join(w.deleted, " ") != "r" {
		t.Errorf("a request that waits: %v, deleted %v", err, w.deleted)
	}
	w.holds("r", provision.Active)
	if err := Stop(t.Context(), d, "r", StopOptions{}); err != nil {
		t.Errorf("nobody has begun: %v", err)
	}
	put("workers/s0w0", "phase=running\nattempt=1\nmay_delete=yes\n")
	w.start("r", localworker.UntilAllowed, "t-0", "t-1")
	done := make(chan error, 1)
	go func() { done <- Stop(t.Context(), d, "r", StopOptions{Grace: 100 * time.Millisecond}) }()
	testkit.Eventually(t, "the command ends", func() bool {
		c := w.fleet["t-1"][0].Connect("t-1", false, time.Second)
		defer c.Close()
		state, err := launch.Status(t.Context(), c, launch.Ref{Run: "r", Attempt: 1})
		return err == nil && state.Phase == launch.Exited
	})
	for _, id := range testkit.WorkerIDs(2, 1) {
		put(fmt.Sprintf("ended/1/%s.143", id), "reason=asked to stop\n")
	}
	if err := <-done; err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestWhatARoundOfAttachingDoes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		l    bucketLook
		want roundStep
	}{
		{bucketLook{}, lookOn},
		{bucketLook{running: true}, followOverSSH},
		{bucketLook{running: true, followed: true}, lookOn},
		{bucketLook{over: true}, concludeRun},
		{bucketLook{over: true, running: true}, concludeRun},
		{bucketLook{over: true, part: true, patient: true}, bringOverSSH},
		{bucketLook{over: true, part: true, patient: true, followed: true}, awaitLogs},
		{bucketLook{over: true, part: true, followed: true}, concludeRun},
	} {
		if got := row.l.step(); got != row.want {
			t.Errorf("%+v: %d, want %d", row.l, got, row.want)
		}
	}
}

func TestWhatAStopDoesNext(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		l    stopLook
		want stopStep
	}{
		{stopLook{over: true, gone: true}, stopEnded},
		{stopLook{gone: true, seen: true}, stopGone},
		{stopLook{empty: true, seen: true}, stopWithdraw},
		{stopLook{seen: true}, stopTell},
		{stopLook{seen: true, told: true}, stopAwait},
		{stopLook{}, stopLater},
	} {
		if got := row.l.step(); got != row.want {
			t.Errorf("%+v: %d, want %d", row.l, got, row.want)
		}
	}
}

func TestWhenSlicesOfAnEndedJobGo(t *testing.T) {
	t.Parallel()
	failed := detach.State{Ended: []detach.End{{Code: 3}}}
	ended := detach.State{Ended: []detach.End{{}}}
	unsent := detach.State{Ended: []detach.End{{}}, Unsent: testkit.WorkerIDs(1, 1)}
	for want, row := range map[string]struct {
		d detach.Description
		s detach.State
	}{
		"at once":                      {detach.Description{Keep: detach.KeepOnFailure}, ended},
		"never by itself":              {detach.Description{Keep: detach.KeepOnFailure}, failed},
		"10m after its end":            {detach.Description{Keep: detach.KeepOnFailure, KeepFor: 600}, failed},
		"once the bucket has its logs": {detach.Description{}, unsent},
	} {
		if got := goesAfter(&BucketRun{Desc: row.d}, row.s); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
