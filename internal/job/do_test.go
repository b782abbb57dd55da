package job

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/attempt"
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/plan"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/testkit/onworkers"
	"multihost/internal/tpu"
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(m.Run())
}

// A shelf is a provider whose slices exist as soon as they are requested.
type shelf struct {
	provision.Provider
	taken    func() bool // whether the first slices are taken away; nil: no
	readOnly bool        // client of a dry run
	workers  int
	refuses  error  // error of a deletion
	stateDir string // directory of this machine's records

	mu       sync.Mutex // guards the fields below
	requests []provision.Request
	deleted  int
}

func (s *shelf) Get(_ context.Context, id string) (provision.Resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == s.deleted {
		return provision.Resource{}, fmt.Errorf("look at %q: %w", id, provision.ErrNotFound)
	}
	r := s.requests[len(s.requests)-1]
	res := provision.Resource{ID: r.ID, Life: provision.Active, State: "ACTIVE", Type: r.Type.Name, NodeCount: 1, Nodes: []string{"m"},
		Labels: r.Labels, CreateTime: born(len(s.requests)), Reclaimable: true, Commands: s.Undoing(id).Commands}
	one := tpu.Slice{Created: born(len(s.requests)), Name: "m", UID: fmt.Sprint(len(s.requests)), State: "READY", Condition: tpu.Usable, Type: r.Type.Name, QueuedResource: r.ID, Workers: make([]tpu.Worker, s.workers)}
	if len(s.requests) == 1 && s.taken != nil && s.taken() {
		res.Life, res.State, one.State, one.Condition = provision.Suspended, "SUSPENDED", "PREEMPTED", tpu.Taken
	}
	res.Slices = []tpu.Slice{one}
	return res, nil
}

// born returns the creation time of the n-th resource. It is the time of another clock than
// this machine's.
func born(n int) time.Time { return time.Date(2026, time.January, n, 0, 0, 0, 0, time.UTC) }

func (s *shelf) Slices(ctx context.Context) ([]tpu.Slice, error) {
	res, _ := s.Get(ctx, "m")
	return res.Slices, nil
}

func (s *shelf) Create(ctx context.Context, r provision.Request) (provision.Resource, bool, error) {
	if s.readOnly {
		return provision.Resource{}, false, &gcp.ReadOnlyError{Method: "POST", Body: []byte(`{"node":"m"}`)}
	}
	s.mu.Lock()
	created := len(s.requests) == s.deleted
	if created {
		s.requests = append(s.requests, r)
	}
	s.mu.Unlock()
	res, err := s.Get(ctx, r.ID)
	return res, created, err
}

func (s *shelf) Delete(context.Context, string, provision.DeleteOptions) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses != nil {
		return false, s.refuses
	}
	s.deleted++
	return true, nil
}

func (s *shelf) Undoing(id string, _ ...string) provision.Undoing { return undoing(id) }

// onShelf returns the arguments of a job on a shelf. Its worker consists of processes of
// this machine.
func onShelf(t *testing.T, script string) (Deps, JobOptions, *shelf, *testkit.Recorder, *localworker.Worker) {
	t.Helper()
	d, o, cloud, said, machines := onShelfWith(t, 1, script)
	return d, o, cloud, said, machines[0]
}

// onShelfWith is onShelf with several workers.
func onShelfWith(t *testing.T, workers int, script string) (Deps, JobOptions, *shelf, *testkit.Recorder, []*localworker.Worker) {
	t.Helper()
	code, cloud, fleet := t.TempDir(), &shelf{workers: workers}, localworker.Fleet{}
	fleet.Slice(t, "m", workers)
	testkit.Must(t, os.WriteFile(filepath.Join(code, "words"), []byte("from the laptop\n"), 0o600))
	d, said := onworkers.Deps(t, fleet, cloud)
	d.Clock, cloud.stateDir = testkit.NewFastClock(), d.StateDir
	ty, err := tpu.ParseType("v5litepod-4")
	testkit.Must(t, err)
	return Deps{Reach: d.Reach, Keeper: d.Keeper}, JobOptions{
		Request: provision.Request{ID: "m", NodeCount: 1, Type: ty, Labels: map[string]string{provision.LabelRun: "m"}},
		Run: attempt.Options{Prefix: "m", Run: "m", Dir: code, Script: script, Preflight: "off", NUMA: preflight.NUMAOff, FailFast: true, Grace: 100 * time.Millisecond,
			SyncTimeout: time.Minute, StartLimit: time.Minute, KillStale: launch.FreeOrphans, Patience: follow.Patience{Lost: time.Hour, Log: time.Hour}, Watch: follow.WatchOptions{StallTimeout: -1}},
		Budget: Budget{Restarts: 0, Preemptions: 1},
	}, cloud, said, fleet["m"]
}

// output returns this machine's copies of the output of the attempts.
func output(d Deps) string {
	var all strings.Builder
	paths, _ := filepath.Glob(filepath.Join(d.StateDir, "runs", "m", "*output_*.txt"))
	more, _ := filepath.Glob(filepath.Join(d.StateDir, "runs", "m", "*", "output_*.txt"))
	for _, path := range append(paths, more...) {
		text, _ := os.ReadFile(path)
		all.Write(text)
	}
	return all.String()
}

func TestAJobMakesItsSlicesAndDeletesThem(t *testing.T) {
	t.Parallel()
	d, o, cloud, said, _ := onShelf(t, "cat words")
	cloud.readOnly = true
	p, err := PlanJob(t.Context(), d, o)
	if err != nil || p.Resource.Do != plan.ResourceCreate || string(p.Resource.Request) != `{"node":"m"}` || p.Asked || p.End.Deletes != "m" || len(p.Workers) != 1 {
		t.Errorf("plan %+v, %v", p, err)
	}
	cloud.readOnly = false
	out, err := Job(t.Context(), d, o)
	if err != nil || out.Code != 0 || len(cloud.requests) != 1 || cloud.deleted != 1 || output(d) != "from the laptop\n" {
		t.Errorf("%+v, %v; %d requests, %d deletions; output %q", out, err, len(cloud.requests), cloud.deleted, output(d))
	}
	if !said.Said(event.Info, "and its slices are deleted: nothing of this job is billed") {
		t.Errorf("said %v", said.Notes())
	}
}

// The budget pays for a loss, and the command starts again on new slices.
func TestAJobGoesOnAfterALoss(t *testing.T) {
	t.Parallel()
	d, o, cloud, said, machine := onShelf(t, "if [ -e ~/second ]; then echo again; else touch ~/second; kill -TERM $$; fi")
	cloud.taken = func() bool {
		_, err := os.Stat(filepath.Join(machine.Home, "second"))
		return err == nil
	}
	out, err := Job(t.Context(), d, o)
	if err != nil || out.Code != 0 || len(cloud.requests) != 2 || cloud.deleted != 2 || !strings.Contains(output(d), "again\n") {
		t.Errorf("%+v, %v; %d requests, %d deletions; output %q; said %v", out, err, len(cloud.requests), cloud.deleted, output(d), said.Notes())
	}
	var ends []string
	for _, e := range said.Events() {
		if end, ok := e.(event.AttemptEnd); ok {
			ends = append(ends, strings.Join(strings.Fields(fmt.Sprintf("%d %v %s %v", end.Attempt, end.OK, end.Cause, end.Again)), " "))
		}
	}
	if got, want := strings.Join(ends, ", "), "1 false preempted true, 2 true false"; got != want {
		t.Errorf("attempts ended %q, want %q", got, want)
	}
}

// A repeated job finds no command of its first runner. If its own start then fails, the
// first runner has no logs to lose, and no warning about them appears.
func TestAJobThatIsTypedAgainLosesNoLogs(t *testing.T) {
	t.Parallel()
	d, o, cloud, said, _ := onShelf(t, "true")
	o.Request.Mark("m", "ann")
	o.Request.MarkJob("m")
	cloud.requests = append(cloud.requests, o.Request)
	o.Run.UseExisting = true
	if _, err := Job(t.Context(), d, o); err == nil || !strings.Contains(err.Error(), "there is no folder") || cloud.deleted != 1 {
		t.Errorf("%v; %d deletions", err, cloud.deleted)
	}
	if said.Said(event.Warn, "logs of an earlier runner's command") {
		t.Errorf("said %v", said.Notes())
	}
}

// A job is repeated while one worker does not answer. It finds its command on the other
// worker, even without a lease there. It reboots nothing, names the missing worker, and
// continues when that worker answers.
func TestAJobThatIsTypedAgainWhileAWorkerIsAway(t *testing.T) {
	t.Parallel()
	d, o, cloud, said, machines := onShelfWith(t, 2, localworker.UntilAllowed+"echo done")
	d.Access.RetryFor = 200 * time.Millisecond
	ty, err := tpu.ParseType("v4-16")
	testkit.Must(t, err)
	o.Request.Type = ty
	o.Request.Mark("m", "ann")
	o.Request.MarkJob("m")
	first := o
	first.Run.Detach = true
	if _, err := Job(t.Context(), d, first); err != nil {
		t.Fatal(err)
	}
	machines[1].Leave()
	d.Sink = event.SinkFunc(func(e event.Event) {
		said.Emit(e)
		if note, ok := e.(event.Note); ok && strings.Contains(note.Text, "is taken over") {
			machines[1].Return()
			for _, w := range machines {
				w.Allow(t)
			}
		}
	})
	out, err := Job(t.Context(), d, o)
	if err != nil || out.Code != 0 || len(cloud.requests) != 1 || cloud.deleted != 1 || output(d) != "done\ndone\n" {
		t.Errorf("%+v, %v; %d requests, %d deletions; output %q", out, err, len(cloud.requests), cloud.deleted, output(d))
	}
	if !said.Said(event.Warn, "the command of run m lives, but s0w1 cannot be reached") {
		t.Errorf("said %v", said.Notes())
	}
}

// A failure of the command is not a loss. Without a budget the command does not start
// again. The slices stay if the user wants to look at them.
func TestAJobWhoseCommandFails(t *testing.T) {
	t.Parallel()
	d, o, cloud, said, _ := onShelf(t, "exit 3")
	o.KeepOnFailure = true
	out, err := Job(t.Context(), d, o)
	if err != nil || out.Code != 3 || len(cloud.requests) != 1 || cloud.deleted != 0 || !said.Said(event.Warn, "stays (--keep-on-failure)") {
		t.Errorf("%+v, %v; %d requests, %d deletions; said %v", out, err, len(cloud.requests), cloud.deleted, said.Notes())
	}
	// Now a run with a budget works on these slices.
	o.Run.Run, o.Run.MaxRestarts = "again", 1
	o.Run.Script = "if [ -e ~/second ]; then exit 0; else touch ~/second; exit 4; fi"
	p, err := PlanRun(t.Context(), d, o.Run)
	if err != nil || p.Limits.Restarts != 1 || len(p.Workers) != 1 {
		t.Errorf("plan %+v, %v", p, err)
	}
	out, err = Run(t.Context(), d, o.Run)
	if err != nil || out.Code != 0 {
		t.Errorf("%+v, %v; said %v", out, err, said.Notes())
	}
}

// A hurried clock shortens every wait. It shows the real time, like the workers' clocks,
// because a stop counts only for runners that began before it.
type hurried struct{ gcp.Clock }

func (hurried) After(d time.Duration) <-chan time.Time { return time.After(d / 100) }

// If somebody stops the run between two attempts, it ends as if somebody had stopped the
// command.
func TestAStopBetweenTwoAttempts(t *testing.T) {
	t.Parallel()
	d, o, cloud, said, machine := onShelf(t, "exit 3")
	o.Budget.Restarts = 1
	stop := func(e event.Event) {
		if end, ok := e.(event.AttemptEnd); ok && end.Again {
			_, err := launch.Stop(t.Context(), machine.Connect("s0w0", false, time.Minute), launch.Ref{Run: "m", Attempt: end.Attempt}, launch.StopOptions{Reason: "stop by bob", Mark: true})
			testkit.Must(t, err)
		}
		said.Emit(e)
	}
	d.Sink = event.SinkFunc(stop)
	d.Clock = hurried{gcp.SystemClock}
	out, err := Job(t.Context(), d, o)
	if err != nil || out.Code != stoppedCode || cloud.deleted != 1 {
		t.Errorf("%+v, %v; %d deletions; said %v", out, err, cloud.deleted, said.Notes())
	}
	var sums []string
	for _, e := range said.Events() {
		if sum, ok := e.(event.Summary); ok {
			sums = append(sums, fmt.Sprintf("%d: %s", sum.ExitCode, sum.Text))
		}
	}
	if len(sums) == 0 || sums[len(sums)-1] != "143: run m was stopped: stop by bob; no further attempt is begun" {
		t.Errorf("summaries %q", sums)
	}
}

// The runner of a job dies while it deletes the slices after a success. The same job given
// again knows the success and continues the deletion. Another job of the same name does
// not.
func TestASuccessIsKnownWhenTheRunnerDiedDuringTheDeletion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story   string
		change  func(o *JobOptions, cloud *shelf)
		ran     int // attempts of both commands together
		deleted int
	}{
		{"the same", func(*JobOptions, *shelf) {}, 1, 1},
		{"the slices are gone", func(_ *JobOptions, c *shelf) { c.deleted++ }, 1, 1},
		{"the slices are gone for hours", func(o *JobOptions, c *shelf) {
			c.deleted++
			rec, err := record.LoadRecord(c.stateDir, o.Run.Run)
			testkit.Must(t, err)
			for i := range rec.Attempts {
				rec.Attempts[i].End = rec.Attempts[i].End.Add(-memory)
			}
			testkit.Must(t, rec.Save(c.stateDir))
		}, 2, 2},
		{"--keep", func(o *JobOptions, _ *shelf) { o.Keep = true }, 1, 0},
		{"another command", func(o *JobOptions, _ *shelf) { o.Run.Script += " # changed" }, 2, 1},
		{"other code", func(o *JobOptions, _ *shelf) {
			testkit.Must(t, os.WriteFile(filepath.Join(o.Run.Dir, "more"), nil, 0o600))
		}, 2, 1},
		{"another environment", func(o *JobOptions, _ *shelf) { o.Run.Env = []config.EnvVar{{Name: "A", Value: "b"}} }, 2, 1},
		{"--replace", func(o *JobOptions, _ *shelf) { o.Run.Replace = true }, 2, 1},
		{"somebody has made it again", func(_ *JobOptions, c *shelf) { c.requests, c.deleted = append(c.requests, c.requests[0]), 1 }, 2, 2},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			d, o, cloud, said, _ := onShelf(t, "echo ran")
			o.Request.Mark("m", "ann")
			o.Request.MarkJob("m")
			cloud.refuses = &gcp.Error{What: "delete", Class: gcp.Permission} // as if the runner had died
			if out, err := Job(t.Context(), d, o); out.Code != 0 || !stage.Is(err, stage.Teardown) {
				t.Fatalf("%+v, %v", out, err)
			}
			cloud.refuses = nil
			tt.change(&o, cloud)
			for _, more := range []int{0, 1} { // once the job is done with the slices, the same job given again is a new one
				if out, err := Job(t.Context(), d, o); out.Code != 0 || err != nil {
					t.Fatalf("%+v, %v, said %v", out, err, said.Notes())
				}
				if got := strings.Count(output(d), "ran\n"); got != tt.ran+more || more == 0 && cloud.deleted != tt.deleted {
					t.Errorf("%d more: %d attempts, %d deletions; want %d, %d; said %v", more, got, cloud.deleted, tt.ran+more, tt.deleted, said.Notes())
				}
			}
			if knew := tt.ran == 1; said.Said(event.Info, "the command is not started again") != knew {
				t.Errorf("said %v", said.Notes())
			}
		})
	}
}

// A job takes over a command that began with older code. Its runner dies during the
// deletion. The success does not count for the present code.
func TestASuccessOfOlderCodeIsNone(t *testing.T) {
	t.Parallel()
	d, o, cloud, said, machine := onShelf(t, localworker.UntilAllowed+"echo ran")
	o.Request.Mark("m", "ann")
	o.Request.MarkJob("m")
	o.Run.Detach = true
	if out, err := Job(t.Context(), d, o); !out.Detached || err != nil {
		t.Fatalf("%+v, %v", out, err)
	}
	machine.Allow(t)
	testkit.Must(t, os.WriteFile(filepath.Join(o.Run.Dir, "more"), nil, 0o600))
	o.Run.Detach = false
	cloud.refuses = &gcp.Error{What: "delete", Class: gcp.Permission} // as if the runner had died
	if out, err := Job(t.Context(), d, o); out.Code != 0 || !stage.Is(err, stage.Teardown) || !said.Said(event.Info, "is taken over") {
		t.Fatalf("%+v, %v, said %v", out, err, said.Notes())
	}
	cloud.refuses = nil
	if out, err := Job(t.Context(), d, o); out.Code != 0 || err != nil {
		t.Fatalf("%+v, %v, said %v", out, err, said.Notes())
	}
	if ran := strings.Count(output(d), "ran\n"); ran != 2 {
		t.Errorf("%d attempts, want one of each code; said %v", ran, said.Notes())
	}
}
