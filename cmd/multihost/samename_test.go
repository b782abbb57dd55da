package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"multihost/internal/attempt"
	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/record"
	"multihost/internal/sim"
	"multihost/internal/sshkey"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/workers"
)

// Two machines start runs of the same name, and both runs have the same directory on the
// workers. The first run must not start with code of the second one. The second run must
// not change the code of the first while that runs.
func TestTwoRunsOfOneNameDoNotMixTheirCode(t *testing.T) {
	besideOthers(t)
	lab := newLab(t, "process", sim.SliceSpec{Name: "t", Count: 1, Type: "v4-16"})
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true,
		TPUEndpoint: lab.server.URL() + "/", ComputeEndpoint: lab.server.URL() + "/compute/v1/"})
	t.Cleanup(cloud.Close)
	identity, err := sshkey.Create(filepath.Join(lab.dir, "key"))
	testkit.Must(t, err)
	queue := qr.New(cloud)
	// run starts a run on a machine of its own. It calls hold before the phase begins.
	run := func(ctx context.Context, name, phase string, hold func(), script string) (stage.Outcome, error) {
		dir := filepath.Join(lab.dir, name)
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, "src"), 0o700))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "src", "whose"), []byte(name+"\n"), 0o600))
		typed := &stage.Invocation{Clock: gcp.SystemClock, Sink: event.SinkFunc(func(e event.Event) {
			if p, ok := e.(event.Phase); ok && p.Name == phase && p.State == event.Started {
				hold()
			}
		})}
		d := &deps{
			Reach:  &workers.Reach{Invocation: typed, Place: provision.Place{Project: sim.DefaultProject, Zone: sim.DefaultZone}, Cloud: queue.Provider(""), Access: overssh.Access{Login: "ann", Identity: identity, KnownHosts: filepath.Join(dir, "known_hosts"), Port: lab.server.SSHPort(), ConnectTimeout: time.Minute, RetryFor: time.Minute, MaxDials: 8}},
			Keeper: &record.Keeper{Of: typed, StateDir: dir, Owner: name + "@laptop", ExitStatus: exitCode},
			Agents: agents(), Networks: network.New(cloud, qr.LifeOf),
		}
		overSSH(d, nil)
		return job.Run(ctx, jobDeps(d), attempt.Options{Prefix: "t", Run: "r", Dir: filepath.Join(dir, "src"), Script: script, Preflight: "off", NUMA: preflight.NUMAOff,
			Grace: time.Second, KillStale: launch.FreeOrphans})
	}
	var second error
	out, err := run(t.Context(), "ann", "start", func() {
		ctx, interrupt := context.WithCancelCause(t.Context())
		_, second = run(ctx, "bob", "free", func() { interrupt(&stage.Interrupted{Signal: syscall.SIGINT}) }, "true")
	}, "true")
	var code *launch.CodeError
	if exitCode(second) != exitInterrupt || !errors.As(err, &code) || out.Started || !strings.Contains(err.Error(), `s0w[0-1]: another run called "r", of bob@laptop, has brought its code into ~/r after this one`) || exitCode(err) != exitUnavailable {
		t.Errorf("the second comes between and goes: the first ends with %+v, %v, and the second with %v", out, err, second)
	}
	out, err = run(t.Context(), "ann", "start", func() { _, second = run(t.Context(), "bob", "", nil, "true") }, "true")
	if second != nil || !errors.Is(err, launch.ErrAlreadyStarted) || out.Started {
		t.Errorf("the second is faster: the first ends with %+v, %v, and the second with %v", out, err, second)
	}

	// The second run looks for active runs on the workers before the first one has started.
	started, over := make(chan struct{}), make(chan struct{})
	var first error
	_, second = run(t.Context(), "bob", "sync", func() {
		go func() {
			defer close(over)
			_, first = run(t.Context(), "ann", "run", func() { close(started) }, "until [ -e ~/go ]; do sleep 0.1; done; cat whose >~/ran")
		}()
		select {
		case <-started:
		case <-over:
		}
	}, "true")
	homes, err := filepath.Glob(filepath.Join(lab.dir, "sim", "workers", "*", "home", "ann"))
	if err != nil || len(homes) != 2 {
		t.Fatalf("homes of workers: %v, %v", homes, err)
	}
	for _, home := range homes {
		testkit.Must(t, os.WriteFile(filepath.Join(home, "go"), nil, 0o600))
	}
	<-over
	var used *codesync.InUseError
	if first != nil || !errors.As(second, &used) || !strings.Contains(second.Error(), "a run of that name, of ann@laptop, lives there on other code, which is left as it is") || exitCode(second) != exitUnavailable {
		t.Errorf("the second comes later: the first ends with %v, the second with %v", first, second)
	}
	for _, home := range homes {
		if ran, err := os.ReadFile(filepath.Join(home, "ran")); string(ran) != "ann\n" {
			t.Errorf("on %s ran the code of %q, %v", home, ran, err)
		}
	}
}
