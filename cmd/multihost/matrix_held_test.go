package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"multihost/internal/access"
	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/held"
	"multihost/internal/job"
	"multihost/internal/kube"
	"multihost/internal/launch"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/sim/kubeapi"
	"multihost/internal/sim/kubeapi/store"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/workers"
)

// heldPhases are the phases of a run on held slices in which a fault can happen.
var heldPhases = []string{"connect", "sync", "preflight", "start", "run"}

// A heldFault is a fault that happens once, in some phase of a run on held slices.
type heldFault struct {
	name   string
	ends   bool // the command does not survive it
	strike func(c *heldCell)
	status int
}

// outageOfPods is how long the API, or another thing that comes back, is away in a fault.
const outageOfPods = 2 * time.Second

var heldFaults = []heldFault{
	{name: "a pod is killed", ends: true, strike: (*heldCell).killPod},
	{name: "a pod is killed, and the old pods stay for a while", ends: true, strike: func(c *heldCell) {
		c.cluster.Hold("*")
		c.later(func() error { c.cluster.Hold(""); return nil })
		c.killPod()
	}},
	{name: "a pod is deleted", ends: true, strike: (*heldCell).deletePod},
	{name: "a node is gone, and another one comes", ends: true, strike: func(c *heldCell) {
		c.check(c.cluster.SetPool("np-1", nil))
		c.later(func() error { return c.addPool(1) })
	}},
	{name: "the connections of commands are cut", strike: func(c *heldCell) { c.cluster.CutExecs() }},
	{name: "the API is away", strike: func(c *heldCell) {
		c.check(c.cluster.SetAway(true))
		c.later(func() error { return c.cluster.SetAway(false) })
	}},
	{name: "the API answers 503 to 5 requests", strike: func(c *heldCell) { c.cluster.FailRequests(http.StatusServiceUnavailable, 5) }},
	{name: "connections are cut, and the API is away", strike: func(c *heldCell) {
		c.cluster.CutExecs()
		c.check(c.cluster.SetAway(true))
		c.later(func() error { return c.cluster.SetAway(false) })
	}},
	{name: "runner killed, run typed again", strike: (*heldCell).killRunner},
	{name: "runner killed and a pod killed, run typed again after `slices wait`", ends: true, strike: func(c *heldCell) {
		c.killPod()
		c.killRunner()
	}},
	{name: "Ctrl-C", ends: true, strike: func(c *heldCell) { c.signal() }, status: exitInterrupt},
}

// A heldCell is one run on held slices, with one fault in one phase.
type heldCell struct {
	t       *testing.T
	number  int // of the cell, from 1
	phase   string
	fault   heldFault
	dir     string
	cluster *kubeapi.Server

	signal, kill func()
	back         sync.WaitGroup // waits until everything that was away is back
	struck       sync.Once
	happened     atomic.Bool
	killed       atomic.Bool
	lost         []string // pods that JobSet is going to replace
	starts       atomic.Int32
}

// TestMatrixOnHeldSlices runs a command for every pair of phase and fault, on two slices of
// one pod each. The pods are real processes. The run may make one further attempt. After a
// success, the logs are whole, and the last attempt has started the command once on each
// worker. In the phase run, a second attempt begins only if the fault ends the command.
func TestMatrixOnHeldSlices(t *testing.T) {
	testkit.NeedWorker(t)
	besideOthers(t)
	if testkit.RaceDetector {
		t.Skip("what runs here of the program is raced in internal/pods and internal/job")
	}
	slots := make(chan struct{}, heldWidth)
	var wg sync.WaitGroup
	for p, phase := range heldPhases {
		for f, fault := range heldFaults {
			if !testkit.All(t) && (phase != "run" || f%8 != 0) { // a sample
				continue
			}
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				t.Run(phase+" × "+fault.name, func(t *testing.T) {
					c := &heldCell{t: t, number: 1 + p*len(heldFaults) + f, phase: phase, fault: fault, dir: t.TempDir()}
					c.run()
				})
			})
		}
	}
	wg.Wait()
}

// heldWidth is how many runs take place at once. Their pods are processes.
const heldWidth = 4

func (c *heldCell) run() {
	c.setUp()
	var log testkit.Buffer
	status := c.runner(&log)
	for c.killed.CompareAndSwap(true, false) {
		fmt.Fprintln(&log, "--- again")
		c.check(c.cluster.SetAway(false))
		c.awaitPods()
		status = c.runner(&log)
	}
	c.back.Wait()
	complain := func(format string, args ...any) {
		c.t.Errorf("%s\n%s", fmt.Sprintf(format, args...), log.String())
	}
	if !c.happened.Load() {
		complain("%v", errPhaseNeverCame)
	}
	if status != c.fault.status {
		complain("exit status %d", status)
	}
	if status == exitOK {
		c.checkLogs(complain)
	}
	want := int32(1)
	if c.fault.ends && status == exitOK {
		want = 2
	}
	if got := c.starts.Load(); c.phase == "run" && got != want {
		complain("the command was started %d times, want %d", got, want)
	}
}

// checkLogs checks that the last attempt has started the command once on each worker, and
// that the logs are whole.
func (c *heldCell) checkLogs(complain func(string, ...any)) {
	files, _ := filepath.Glob(filepath.Join(c.dir, "state", "runs", "m", "attempt-*", "output_slice_*"))
	if len(files) == 0 {
		files, _ = filepath.Glob(filepath.Join(c.dir, "state", "runs", "m", "output_slice_*"))
	}
	if len(files) < 2 {
		complain("logs: %q", files)
		return
	}
	for _, file := range files[len(files)-2:] {
		if text, err := os.ReadFile(file); err != nil || string(text) != "1\nend\n" {
			complain("log %s: %q, %v", file, text, err)
		}
	}
}

func (c *heldCell) check(err error) {
	if err != nil {
		c.t.Error(err)
	}
}

// later calls back after outageOfPods.
func (c *heldCell) later(back func() error) {
	c.back.Go(func() {
		<-time.After(outageOfPods)
		c.check(back())
	})
}

func (c *heldCell) addPool(number int) error {
	return c.cluster.SetPool(fmt.Sprintf("np-%d", number), []kubeapi.Node{{Name: fmt.Sprintf("node-%d", number), Chips: 4, Labels: map[string]string{
		"cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice", "cloud.google.com/gke-tpu-topology": "2x2x1"}}})
}

func (c *heldCell) setUp() {
	dir := filepath.Join(c.dir, "cluster")
	testkit.Must(c.t, os.MkdirAll(filepath.Join(c.dir, "src"), 0o700))
	testkit.Must(c.t, os.WriteFile(filepath.Join(c.dir, "src", "train.py"), []byte("pass\n"), 0o600))
	testkit.Must(c.t, os.MkdirAll(dir, 0o700))
	var err error
	c.cluster, err = kubeapi.New(kubeapi.Config{Dir: dir, Listen: fmt.Sprintf("127.92.0.%d:0", c.number)}) // nobody else takes its port while it is away
	testkit.Must(c.t, err)
	c.t.Cleanup(func() {
		c.back.Wait()
		c.check(c.cluster.Close())
	})
	for i := range 2 {
		testkit.Must(c.t, c.addPool(i))
	}
	d := c.deps(event.Discard, nil)
	r := provision.Request{ID: "m", NodeCount: 2, Type: parseType("v4-8"), Own: held.Settings{Lease: time.Hour}}
	r.Mark("m", "ann")
	_, _, err = d.Cloud.Create(c.t.Context(), r)
	testkit.Must(c.t, err)
	c.awaitPods()
}

// awaitPods waits until the slices are ready and the pods in lost are gone.
func (c *heldCell) awaitPods() {
	d := c.deps(event.Discard, nil)
	testkit.Eventually(c.t, "the pods", func() bool {
		res, err := d.Cloud.Get(c.t.Context(), "m")
		pods, _ := c.cluster.Objects().List(store.Pods, "default")
		old := slices.ContainsFunc(pods, func(p *store.Object) bool { return slices.Contains(c.lost, p.GetName()) })
		return err == nil && res.Life == provision.Active && !old
	})
}

// deps returns what a runner works with.
func (c *heldCell) deps(sink event.Sink, leave <-chan struct{}) *deps {
	cfg := kube.Config{Server: c.cluster.URL(), CA: c.cluster.CA(), Namespace: "default", Token: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "t"})}
	provider, dialer, of, err := access.Pods(cfg, "--context=sim", access.Options{Sink: sink})
	testkit.Must(c.t, err)
	c.t.Cleanup(provider.Client.Close)
	typed := &stage.Invocation{Sink: sink, Clock: gcp.SystemClock, Leave: leave}
	return &deps{
		Reach: &workers.Reach{Invocation: typed, Cloud: provider, Dialer: dialer, Cluster: of,
			Access: overssh.Access{Login: dialer.User, RetryFor: 20 * time.Second, ConnectTimeout: 20 * time.Second}},
		Keeper: &record.Keeper{Of: typed, StateDir: filepath.Join(c.dir, "state"), Owner: "ann@laptop", ExitStatus: exitCode},
	}
}

// runner runs the command as one invocation of multihost would.
func (c *heldCell) runner(log *testkit.Buffer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	leave := make(chan struct{})
	c.kill = sync.OnceFunc(func() {
		close(leave)
		cancel(errors.New("killed"))
	})
	c.signal = func() { cancel(&stage.Interrupted{Signal: syscall.SIGINT}) }
	begin := time.Now()
	d := c.deps(event.SinkFunc(func(e event.Event) {
		fmt.Fprintf(log, "%6.2f s %T %+v\n", time.Since(begin).Seconds(), e, e)
		switch e := e.(type) {
		case event.Release:
			c.starts.Add(1)
		case event.Phase:
			if e.Name == c.phase && e.State == event.Started {
				c.struck.Do(func() {
					c.fault.strike(c)
					c.happened.Store(true)
				})
			}
		}
	}), leave)
	o := attempt.Options{
		Prefix: "m", Run: "m", Dir: filepath.Join(c.dir, "src"), Script: c.script(), Preflight: "apply", Platform: preflight.GKE, NUMA: preflight.NUMAOff,
		KillStale: launch.FreeOrphans, FailFast: true, Grace: time.Second, SyncTimeout: time.Minute, StartLimit: time.Minute, MaxRestarts: 1,
		Patience: follow.Patience{Lost: time.Minute, Log: time.Minute},
	}
	out, err := job.Run(ctx, jobDeps(d), o)
	if c.happened.Load() && strings.Contains(fmt.Sprint(err), "lives on") { // the command of a runner that was killed
		fmt.Fprintf(log, "ended with %v; attach\n", err)
		out, err = runs.Attach(ctx, runsDeps(d), "m", runs.AttachOptions{Patience: o.Patience, Grace: o.Grace})
	}
	status := exitCode(outcome(out, err))
	fmt.Fprintf(log, "ended with %d, %v\n", status, err)
	return status
}

// script returns the command. The command prints how often this attempt has started it on
// the worker. If the fault must end the command, the command does not end by itself.
func (c *heldCell) script() string {
	wait := ""
	switch {
	case c.phase == "run" && c.fault.ends:
		wait = "[ $MULTIHOST_ATTEMPT != 1 ] || exec sleep 1000\n"
	case c.phase == "run":
		wait = "sleep 3\n"
	}
	return "echo >>~/starts-$MULTIHOST_ATTEMPT; wc -l <~/starts-$MULTIHOST_ATTEMPT\n" + wait + "echo end"
}

// eachPod calls f for the pods of slice 1.
func (c *heldCell) eachPod(f func(name string) error) {
	pods, _ := c.cluster.Objects().List(store.Pods, "default")
	for _, pod := range pods {
		if strings.HasPrefix(pod.GetName(), "m-slice-1-") {
			c.check(f(pod.GetName()))
		}
	}
}

func (c *heldCell) killPod() {
	pods, _ := c.cluster.Objects().List(store.Pods, "default")
	for _, pod := range pods {
		c.lost = append(c.lost, pod.GetName())
	}
	c.eachPod(func(name string) error { return c.cluster.Kill("default", name, false) })
}

func (c *heldCell) deletePod() {
	d := c.deps(event.Discard, nil)
	c.eachPod(func(name string) error {
		_, err := kube.Pods.In(d.Cloud.(*held.Provider).Client, "default").Delete(c.t.Context(), name, kube.RemoveOptions{})
		return err
	})
}

// killRunner kills the runner. Nothing that it still does reaches the cluster.
func (c *heldCell) killRunner() {
	c.killed.Store(true)
	c.check(c.cluster.SetAway(true))
	c.kill()
}
