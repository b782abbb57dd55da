//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/access"
	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/runs"
	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/testkit/localworker"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// localWorkers are the machines of a simulated cloud. They are reached without SSH, so
// nobody has a key for them.
type localWorkers struct {
	worker.Backend
	mu      sync.Mutex
	workers map[string]*localworker.Worker // by node and number
}

func (b *localWorkers) Start(ctx context.Context, spec worker.Spec) (worker.Machine, error) {
	m, err := b.Backend.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	env, home, err := m.(worker.Host).Login("ann")
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.workers[fmt.Sprintf("%s/%d", spec.Node, spec.Index)] = &localworker.Worker{User: "ann", Home: home, Env: env}
	return m, nil
}

func (b *localWorkers) find(s tpu.Slice, number int) (*localworker.Worker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.workers[fmt.Sprintf("%s/%d", s.Name, number)]; w != nil {
		return w, nil
	}
	return nil, fmt.Errorf("%s has no worker %d", s.Name, number)
}

// each calls f for the workers of a node.
func (b *localWorkers) each(node string, f func(*localworker.Worker)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, w := range b.workers {
		if strings.HasPrefix(name, node+"/") {
			f(w)
		}
	}
}

// A run and a job sync, do the preflight, start, follow, reconnect and stop over a
// connection other than SSH.
func TestRunAndJobOverLocalProcesses(t *testing.T) {
	besideOthers(t)
	dir, err := os.MkdirTemp(memoryDir(), "multihost-local-")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	backend := &localWorkers{workers: map[string]*localworker.Worker{}}
	backend.Backend, err = worker.NewProcess(worker.ProcessConfig{Root: filepath.Join(dir, "machines")})
	testkit.Must(t, err)
	server, err := sim.Start(t.Context(), sim.Config{Dir: filepath.Join(dir, "sim"), Step: 10 * time.Millisecond, Workers: backend,
		Slices: []sim.SliceSpec{{Name: "t", Count: 1, Type: "v4-16"}}})
	testkit.Must(t, err)
	t.Cleanup(func() {
		server.Close()
		for _, w := range backend.workers {
			w.Wait()
		}
	})
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true,
		TPUEndpoint: server.URL() + "/", ComputeEndpoint: server.URL() + "/compute/v1/", ResourceManagerEndpoint: server.URL() + "/", LoginWait: access.LoginWait})
	t.Cleanup(cloud.Close)
	code := filepath.Join(dir, "code")
	testkit.Must(t, os.MkdirAll(code, 0o700))
	testkit.Must(t, os.WriteFile(filepath.Join(code, "words"), []byte("from the laptop\n"), 0o600))

	queue := qr.New(cloud)
	machine := func(hear func(event.Event)) *deps {
		typed := &stage.Invocation{Clock: gcp.SystemClock, Sink: event.SinkFunc(hear)}
		return &deps{
			Reach:    &workers.Reach{Invocation: typed, Place: provision.Place{Project: sim.DefaultProject, Zone: sim.DefaultZone}, Cloud: queue.Provider(server.URL()), Access: overssh.Access{Login: "ann", RetryFor: time.Minute}, Dialer: &localworker.Dialer{Find: backend.find}},
			Keeper:   &record.Keeper{Of: typed, StateDir: filepath.Join(dir, "state"), Owner: "ann@laptop", ExitStatus: exitCode},
			Networks: network.New(cloud, qr.LifeOf),
		}
	}
	options := func(prefix, script string) attempt.Options {
		return attempt.Options{Prefix: prefix, Run: "r" + prefix, Dir: code, Script: script, Preflight: "require", Platform: preflight.GCE, NUMA: preflight.NUMAOff, FailFast: true,
			Grace: time.Second, SyncTimeout: time.Minute, StartLimit: time.Minute, KillStale: launch.FreeOrphans, Patience: follow.Patience{Lost: time.Minute, Log: time.Minute}}
	}
	const script = "cat words; until [ -e ~/go ]; do sleep 0.05; done; echo end"
	logs := func(name string) (all []string) {
		paths, _ := filepath.Glob(filepath.Join(dir, "state", "runs", name, "output_*.txt"))
		for _, path := range paths {
			text, _ := os.ReadFile(path)
			all = append(all, string(text))
		}
		return all
	}
	said := func() string { return "" }
	await := func(what string, ok func() bool) {
		t.Helper()
		if !testkit.Await(scriptWait, ok) {
			t.Fatalf("waited in vain for %s; multihost said %s; the logs are %q", what, said(), append(logs("rt"), logs("s")...))
		}
	}
	has := func(want string, n int, all []string) bool {
		return len(all) == n && strings.Join(all, "") == strings.Repeat(want, n)
	}
	begin := func(f func(*deps) (stage.Outcome, error)) (phases func() string, ended <-chan error) {
		var mu sync.Mutex
		var heard []string
		d := machine(func(e event.Event) {
			mu.Lock()
			defer mu.Unlock()
			switch e := e.(type) {
			case event.Phase:
				if e.State == event.Started {
					heard = append(heard, e.Name)
				}
			case event.Note:
				heard = append(heard, fmt.Sprintf("%q", e.Text))
			}
		})
		done := make(chan error, 1)
		go func() { done <- outcome(f(d)) }()
		return func() string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(heard, " ")
		}, done
	}

	// The connections of the first run break while its command prints.
	var ended <-chan error
	said, ended = begin(func(d *deps) (stage.Outcome, error) {
		return job.Run(t.Context(), jobDeps(d), options("t", script))
	})
	await("the first lines", func() bool { return has("from the laptop\n", 2, logs("rt")) })
	backend.each("t", (*localworker.Worker).Leave)
	await("the outage", func() bool { return strings.Contains(said(), "lost the connection to s0w[0-1]") })
	backend.each("t", func(w *localworker.Worker) {
		w.Return()
		testkit.Must(t, os.WriteFile(filepath.Join(w.Home, "go"), nil, 0o600))
	})
	if err := <-ended; err != nil || !has("from the laptop\nend\n", 2, logs("rt")) {
		t.Errorf("the run ends with %v, and its logs are %q; it said %s", err, logs("rt"), said())
	}
	for _, phase := range []string{"sync", "preflight", "start", "run"} {
		if !strings.Contains(said(), phase) {
			t.Errorf("a run without phase %s: %s", phase, said())
		}
	}

	// The second run is stopped.
	backend.each("t", func(w *localworker.Worker) { testkit.Must(t, os.Remove(filepath.Join(w.Home, "go"))) })
	stopped := options("t", script)
	stopped.Run = "s"
	said, ended = begin(func(d *deps) (stage.Outcome, error) { return job.Run(t.Context(), jobDeps(d), stopped) })
	await("the first lines", func() bool { return has("from the laptop\n", 2, logs("s")) })
	if err := runs.Stop(t.Context(), runsDeps(machine(func(event.Event) {})), "s", runs.StopOptions{Grace: time.Second}); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := <-ended; exitCode(err) == 0 {
		t.Errorf("the stopped run ends with %v; it said %s", err, said())
	}

	ty, err := tpu.ParseType("v5litepod-4")
	testkit.Must(t, err)
	request := qr.Request{ID: "j", NodeCount: 2, NodePrefix: "j", Type: ty, Tier: qr.Spot}
	request.Mark("j", "ann")
	request.MarkJob("j")
	o := job.JobOptions{Request: request.Neutral(), Run: options("j", "cat words")}
	o.Run.Run, o.Run.Preflight = "j", "apply" // the preflight is for a small network
	said, ended = begin(func(d *deps) (stage.Outcome, error) { return job.Job(t.Context(), jobDeps(d), o) })
	if err := <-ended; err != nil || !has("from the laptop\n", 2, logs("j")) {
		t.Errorf("the job ends with %v, and its logs are %q; it said %s", err, logs("j"), said())
	}
	if _, err := queue.Get(t.Context(), "j"); gcp.ClassOf(err) != gcp.NotFound {
		t.Errorf("the queued resource after the job: %v", err)
	}
}

var _ remote.Dialer = (*overssh.SSH)(nil)
