package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"multihost/internal/access"
	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/record"
	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/sshkey"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/workers"
)

// matrixPhases are the phases of a job in which a fault can happen.
var matrixPhases = []string{"requested", "waiting", "provisioning", "connect", "sync", "preflight", "start", "run", "teardown"}

// A matrixFault is a fault that happens once, in some phase of a job.
type matrixFault struct {
	name   string
	only   *matrixProvider // the only provider whose slices it can hit; nil: all
	from   int             // index of the first phase in which it can happen
	onGCE  int             // the same index for Compute Engine, if it is greater
	until  int             // index of the last phase in which it can happen; 0: all
	ends   bool            // it ends the command on the workers
	slow   bool            // the runner notices it only after a limit of many minutes
	bound  bool            // it happens only to slices that are not spot
	keeps  bool            // the job keeps its slices and makes no new ones
	inRun  bool            // on real workers it happens while the command runs
	trains bool            // with inRun: the command is a training with a checkpoint
	strike func(c *cell)
	// allowed are the right exit statuses.
	allowed []int
}

// can reports whether the fault can happen to slices of the provider on in a phase.
func (f matrixFault) can(phase int, on *matrixProvider) bool {
	from := f.from
	if on == onGCE {
		from = max(from, f.onGCE)
	}
	return phase >= from && (f.until == 0 || phase <= f.until)
}

const (
	untilWaiting      = 1
	fromProvisioning  = 2
	untilProvisioning = 2
	fromConnect       = 3
)

func matrixFaults(on *matrixProvider) []matrixFault {
	// inject returns a function that sets a fault of the simulator: tpu for queued
	// resources, compute for slices that Compute Engine makes.
	inject := func(tpu, compute string) func(c *cell) {
		return func(c *cell) {
			if c.on == onGCE {
				tpu = compute
			}
			c.inject(tpu)
		}
	}
	both := func(text string) func(c *cell) { return inject(text, text) }
	for2m := func(code int) func(c *cell) {
		return func(c *cell) { c.outage(code, 2*time.Minute) }
	}
	all := []matrixFault{
		{name: "one slice of two preempted", from: fromProvisioning, ends: true, strike: inject("preempt node=m-1", "group-preempt group=m-1"), allowed: []int{0}},
		{name: "all slices suspended", onGCE: fromProvisioning, ends: true, inRun: true, trains: true, strike: inject("qr-suspended qr=m", "group-preempt group=m-*"), allowed: []int{0}},
		{name: "the request fails", only: onTPU, ends: true, strike: both("qr-failed qr=m message='an internal error has occurred'"), allowed: []int{0}},
		{name: "the request fails", only: onGCE, strike: both("group-topology state=FAILED group=m-1"), allowed: []int{0}}, // the VMs of the group continue to run
		{name: "no capacity any more", ends: true, strike: (*cell).noCapacity, allowed: []int{0, exitTempFail}},
		{name: "no capacity for 2 minutes", only: onGCE, until: untilWaiting, keeps: true, strike: (*cell).lateCapacity, allowed: []int{0}},
		{name: "a VM takes 5 minutes to boot", only: onGCE, until: untilProvisioning, keeps: true, strike: (*cell).lateBoot, allowed: []int{0}},
		{name: "maintenance of one slice", from: fromConnect, slow: true, strike: inject("maintenance node=m-1", "group-maintenance group=m-1"), allowed: []int{0}},
		{name: "a host fails", only: onGCE, from: fromConnect, ends: true, bound: true, keeps: true, strike: (*cell).hostFails, allowed: []int{0}},
		{name: "a host fails and is away for 20 minutes", only: onGCE, from: fromConnect, ends: true, slow: true, bound: true, keeps: true, strike: (*cell).hostIsAway, allowed: []int{0}},
		{name: "the run duration is over", only: onGCE, from: fromConnect, ends: true, bound: true, strike: both("group-run-ends group=m-*"), allowed: []int{0, exitTempFail}},
		{name: "an admin deletes a VM", only: onGCE, from: fromConnect, ends: true, strike: (*cell).adminDeletesVM, allowed: []int{exitUnavailable, 0}},
		{name: "an admin deletes it", ends: true, strike: (*cell).adminDeletes, allowed: []int{exitUnavailable, 0}},
		{name: "API answers 503 for 2 minutes", strike: for2m(http.StatusServiceUnavailable), allowed: []int{0}},
		{name: "API answers 429 for 2 minutes", strike: for2m(http.StatusTooManyRequests), allowed: []int{0}},
		{name: "login ended for 2 minutes", strike: for2m(http.StatusUnauthorized), allowed: []int{0}},
		{name: "a worker reboots", from: fromConnect, ends: true, strike: both("worker-reboot node=m-1 worker=0"), allowed: []int{0}},
		{name: "a worker never answers again", from: fromConnect, ends: true, slow: true, inRun: true, strike: both("worker-unreachable node=m-1 worker=0"), allowed: []int{0}},
		{name: "runner killed, job typed again", strike: (*cell).killRunner, allowed: []int{0}},
		{name: "Ctrl-C", ends: true, strike: (*cell).interrupt, allowed: []int{exitInterrupt, exitOK}},
		// Compute Engine needs several calls. A job that has made only a part of its slices
		// waits for the API as long as for any other call. Then it ends, and deletes the
		// part as soon as it can.
		{name: "the runner has no network for 20 minutes", slow: true, inRun: true, strike: func(c *cell) { c.cutOffFor(20 * time.Minute) }, allowed: []int{0, exitUnavailable}},
		{name: "the runner reaches no worker for 20 minutes", from: fromConnect, slow: true, inRun: true, strike: (*cell).tunnelAway, allowed: []int{0}},
	}
	return slices.DeleteFunc(all, func(f matrixFault) bool { return f.only != nil && f.only != on })
}

// A cell is one job with one fault in one phase.
type cell struct {
	t       *testing.T
	phase   string
	fault   matrixFault
	on      *matrixProvider
	backend string // kind of the workers; "": stand-ins that only answer
	server  *sim.Server
	ticks   *tickClock
	clock   gcp.Clock // clock of the runner
	begin   time.Time
	fleet   fleet
	front   *httptest.Server
	access  overssh.Access
	dir     string
	kill    func()
	signal  func()
	told    func(event.Note) // receives the runner's notes; may be nil

	struck  sync.Once
	over    chan struct{} // closed after the fault has happened
	killed  atomic.Bool
	tunnel  atomic.Bool    // the runner can reach the API but not the workers
	back    sync.WaitGroup // waits until everything that was away is back
	starts  atomic.Int32
	made    atomic.Int32 // number of groups of Compute Engine
	mu      sync.Mutex   // guards the fields below
	down    int          // HTTP status of all answers …
	downTil time.Time    // … until this time
}

// A fleet is the workers of a cell.
type fleet interface {
	worker.Backend
	machines(node string) []machine // machines of one slice; "" means all slices
	cutOff(dead bool)               // true cuts the runner off from all workers; false lets the next runner reach them
	isDead() bool                   // the runner is cut off
}

// A machine is one worker of a fleet.
type machine interface {
	isUp() bool
	downs() int // how often the machine has gone down
}

// hurriedClock is the runner's time.
type hurriedClock struct {
	start time.Time
	speed float64
}

func (c hurriedClock) Now() time.Time {
	return c.start.Add(time.Duration(float64(time.Since(c.start)) * c.speed))
}

func (c hurriedClock) After(d time.Duration) <-chan time.Time {
	return time.After(time.Duration(float64(d) / c.speed))
}

// speed returns how many times faster than real time the runner's clock is. It is larger if
// limits of many minutes have to pass.
func (f matrixFault) speed() float64 {
	if f.slow {
		return 400
	}
	return 100
}

// tickClock is the simulator's time. It advances a step each time the runner has read the
// state of the queued resource, so that the runner misses no state.
type tickClock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[chan time.Time]time.Time
}

func (c *tickClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *tickClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time, 1)
	c.timers[ch] = c.now.Add(d)
	return ch
}

const tick = 10 * time.Millisecond

func (c *tickClock) tick() { c.advance(tick) }

func (c *tickClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for ch, due := range c.timers {
		if !due.After(c.now) {
			ch <- c.now
			delete(c.timers, ch)
		}
	}
}

// TestMatrix runs a job for every pair of phase and fault, with the simulator's API over
// HTTP and workers that answer SSH. The runner's clock is faster than real time (see
// matrixFault.speed). Each job must leave nothing behind. The table of results is in
// docs/reliability.md. -update writes the table.
func TestMatrix(t *testing.T) { runMatrix(t, onTPU) }

func runMatrix(t *testing.T, on *matrixProvider) {
	identity, err := sshkey.Create(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	faults := matrixFaults(on)
	slow := calibrate(t, identity)
	doc := openMatrix(t, on.mark, matrixPhases, namesOf(faults))
	slots := make(chan struct{}, matrixWidth)
	var wg sync.WaitGroup
	for p, phase := range matrixPhases {
		for f, fault := range faults {
			if !fault.can(p, on) {
				doc.set(t, f, p, "–")
				continue
			}
			if (p+2*f)%len(matrixPhases) > 0 && phase != "run" && !tableIsWritten() && !testkit.All(t) {
				continue
			}
			c := newCell(t, identity, phase, fault, slow)
			c.on = on
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				t.Run(phase+" × "+fault.name, func(t *testing.T) {
					c.t = t
					result := c.run() + on.marks(f, p)
					t.Log(result)
					doc.set(t, f, p, result)
				})
			})
		}
	}
	wg.Wait()
	doc.close(t)
}

func namesOf(faults []matrixFault) (names []string) {
	for _, fault := range faults {
		names = append(names, fault.name)
	}
	return names
}

// matrixWidth is how many jobs run at once. Most of the time they wait.
const matrixWidth = 12

// longest is how long a job may take on a busy machine.
const longest = 3 * time.Minute

// usual is how long a job without a fault takes on an idle machine.
const usual = 500 * time.Millisecond

// calibrate runs jobs without faults. It returns how many times slower than usual this
// machine is now, at least 1. The runner's clock must not outrun the work.
func calibrate(t *testing.T, identity *sshkey.Identity) float64 {
	nothing := matrixFault{name: "nothing", strike: func(*cell) {}, allowed: []int{exitOK}}
	begin := time.Now()
	var wg sync.WaitGroup
	for range matrixWidth {
		wg.Go(func() { newCell(t, identity, "teardown", nothing, 10).run() })
	}
	wg.Wait()
	return max(1, float64(time.Since(begin))/float64(usual))
}

func newCell(t *testing.T, identity *sshkey.Identity, phase string, fault matrixFault, slow float64) *cell {
	patience := time.Duration(float64(time.Second) * slow)
	c := &cell{t: t, phase: phase, fault: fault, on: onTPU, over: make(chan struct{}), begin: time.Now(), clock: hurriedClock{time.Now(), fault.speed() / slow},
		ticks: &tickClock{now: time.Now(), timers: map[chan time.Time]time.Time{}}, dir: t.TempDir()}
	c.access = overssh.Access{Login: "quick", Identity: identity, KnownHosts: filepath.Join(c.dir, "known_hosts"),
		ConnectTimeout: patience, RetryFor: patience, MaxDials: 8}
	return c
}

// run runs the job and returns the result. If the runner is killed, run runs the job a
// second time.
func (c *cell) run() string {
	name := c.phase + " × " + c.fault.name
	if err := c.setUp(); err != nil {
		c.t.Errorf("%s: %v", name, err)
		return "?"
	}
	defer c.close()
	status, log := c.runner()
	for c.killed.CompareAndSwap(true, false) {
		c.fleet.cutOff(false)
		var again string
		status, again = c.runner()
		log += "--- again\n" + again
	}
	complain := func(format string, args ...any) {
		c.t.Errorf("%s: %s\n%s", name, fmt.Sprintf(format, args...), log)
	}
	select {
	case <-c.over:
	default:
		complain("%v", errPhaseNeverCame)
	}
	ok := false
	for _, allowed := range c.fault.allowed {
		ok = ok || status == allowed
	}
	if !ok {
		complain("exit status %d", status)
	}
	if left := c.leftovers(); left != "" {
		complain("%s is left", left)
	}
	if made := c.made.Load(); c.fault.keeps && made != 2 {
		complain("%d groups were made, and 2 are needed", made)
	}
	if c.backend != "" && c.fault.trains {
		if err := c.wentOn(); err != nil {
			complain("%v", err)
		}
	}
	attempts := "attempts"
	if c.starts.Load() == 1 {
		attempts = "attempt"
	}
	return fmt.Sprintf("%d, %d %s", status, c.starts.Load(), attempts)
}

func (c *cell) setUp() (err error) {
	if c.backend == "" {
		quick, err := newQuickWorkers()
		if err != nil {
			return err
		}
		quick.until = c.commandEnds
		c.fleet = quick
	} else if c.fleet, err = newRealWorkers(c.backend, filepath.Join(c.dir, "workers")); err != nil {
		return err
	}
	c.server, err = sim.Start(context.Background(), sim.Config{Dir: filepath.Join(c.dir, "sim"), Step: tick, Workers: c.fleet, Clock: c.ticks})
	if err != nil {
		return err
	}
	c.front = httptest.NewServer(http.HandlerFunc(c.serve))
	c.on.starts(c)
	return nil
}

func (c *cell) close() {
	c.back.Wait()
	c.front.Close()
	if err := c.server.Close(); err != nil {
		c.t.Error(err)
	}
}

// Results of commandEnds. The channel never stays open: the command runs until it is stopped.
// The channel atOnce is closed: the command ends at once.
var never, atOnce = make(chan struct{}), closed()

func closed() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}

// commandEnds returns a channel that is closed when the command ends by itself. Before the
// fault, the command waits for the fault, or for ever if the fault must end the command. In
// the phase teardown and after the fault, the command ends at once.
func (c *cell) commandEnds(*quickVM) <-chan struct{} {
	select {
	case <-c.over:
		return atOnce
	default:
	}
	switch {
	case c.phase == "run" && c.fault.ends:
		return never
	case c.phase != "teardown":
		return c.over
	}
	return atOnce
}

// runner runs the job once, as multihost would.
func (c *cell) runner() (status int, log string) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	leave := make(chan struct{})
	c.kill = sync.OnceFunc(func() {
		close(leave)
		cancel(errors.New("killed"))
	})
	c.signal = func() { cancel(&stage.Interrupted{Signal: syscall.SIGINT}) }
	story := &testkit.Buffer{}
	overdue := time.AfterFunc(longest, func() {
		c.t.Errorf("%s × %s: the job has not ended after %s", c.phase, c.fault.name, longest)
		c.signal()
	})
	defer overdue.Stop()
	status, err := c.job(ctx, c.dir, leave, event.SinkFunc(func(e event.Event) { c.hear(e, story) }))
	fmt.Fprintf(story, "ended with %d, %v\n", status, err)
	return status, story.String()
}

// job runs the job on a machine whose state directory is dir.
func (c *cell) job(ctx context.Context, dir string, leave <-chan struct{}, sink event.Sink) (status int, err error) {
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, TPUEndpoint: c.front.URL + "/",
		ComputeEndpoint: c.front.URL + "/compute/v1/", ResourceManagerEndpoint: c.front.URL + "/", Clock: c.clock, Sink: sink, LoginWait: access.LoginWait})
	defer cloud.Close()
	access := c.access
	access.Port = c.fleet.Port()
	typed := &stage.Invocation{Sink: sink, Clock: c.clock, Leave: leave}
	d := &deps{
		Reach:  &workers.Reach{Invocation: typed, Place: provision.Place{Project: sim.DefaultProject, Zone: sim.DefaultZone}, Cloud: c.on.open(cloud), Access: access},
		Keeper: &record.Keeper{Of: typed, StateDir: dir, Owner: "ann@laptop", ExitStatus: exitCode},
		Agents: agents(), Networks: network.New(cloud, qr.LifeOf),
	}
	overSSH(d, nil)
	o := matrixJob(c.dir, c.access, c.on.asks(c.fault))
	if c.fault.slow {
		o.Run.StartLimit = 5 * time.Minute // in time of the runner's clock
	}
	if c.backend != "" {
		c.forReal(&o)
	}
	out, err := job.Job(ctx, jobDeps(d), o)
	return exitCode(outcome(out, err)), err
}

// matrixJob is the job of a cell.
func matrixJob(dir string, reach overssh.Access, request provision.Request) job.JobOptions {
	o := job.JobOptions{
		Request: request,
		Run: attempt.Options{Prefix: "m", Run: "m", UseExisting: false, Dir: filepath.Join(dir, "src"), Script: "train", Preflight: "apply",
			NUMA: preflight.NUMAOff, FailFast: true, Grace: 100 * time.Millisecond, SyncTimeout: time.Minute, StartLimit: 20 * time.Second, Patience: follow.Patience{Lost: 10 * time.Minute, Log: 10 * time.Minute}},
		Budget: job.Budget{Preemptions: -1},
	}
	os.MkdirAll(o.Run.Dir, 0o700)
	os.WriteFile(filepath.Join(o.Run.Dir, "train.py"), []byte("pass\n"), 0o600)
	o.Request.Mark("m", "ann")
	o.Request.MarkJob("m")
	o.Request.Metadata = access.WithKey(o.Request.Metadata, reach.Login, reach.Identity.PublicKey())
	return o
}

// hear recognizes the phases that only the runner knows.
func (c *cell) hear(e event.Event, story *testkit.Buffer) {
	fmt.Fprintf(story, "%6.2f s %T %+v\n", time.Since(c.begin).Seconds(), e, e)
	switch e := e.(type) {
	case event.Note:
		if c.told != nil {
			c.told(e)
		}
	case event.Release:
		c.starts.Add(1)
	case event.Phase:
		phase := e.Name
		if phase == "delete" {
			phase = "teardown"
		}
		if phase == c.phase && e.State == event.Started {
			c.strike()
		}
	}
}

func (c *cell) strike() {
	c.struck.Do(func() {
		c.fault.strike(c)
		close(c.over)
	})
}

// serve passes the requests of the runner to the API.
func (c *cell) serve(w http.ResponseWriter, r *http.Request) {
	if c.fleet.isDead() && !c.tunnel.Load() {
		panic(http.ErrAbortHandler)
	}
	c.mu.Lock()
	down := c.down
	if !c.clock.Now().Before(c.downTil) {
		down = 0
	}
	c.mu.Unlock()
	if down != 0 {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(down)
		fmt.Fprintf(w, `{"error": {"code": %d, "message": "Request had invalid authentication credentials or came at a bad time."}}`, down)
		return
	}
	answer := c.on.serve(c, r)
	if c.fleet.isDead() && !c.tunnel.Load() {
		panic(http.ErrAbortHandler)
	}
	for k, v := range answer.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(answer.Code)
	io.Copy(w, answer.Body)
}

// inject sets a fault of the simulator. It waits until everything that the fault takes away
// has gone. Otherwise a command might succeed just before that.
func (c *cell) inject(text string) {
	if !c.set(text) {
		return
	}
	switch name, _, _ := strings.Cut(text, "=m-1"); name {
	case "preempt node", "group-preempt group":
		c.awaitDown("m-1")
	case "qr-suspended qr=m", "qr-failed qr=m", "qr-failed qr=m message='an internal error has occurred'", "group-run-ends group=m-*", "group-preempt group=m-*":
		c.awaitDown("")
	}
}

// awaitDown waits until the workers of a slice are down, or all workers if node is "".
// Meanwhile the simulator's time advances.
func (c *cell) awaitDown(node string) {
	deadline := time.Now().Add(time.Minute)
	for _, vm := range c.fleet.machines(node) {
		for vm.isUp() {
			if time.Now().After(deadline) {
				c.t.Errorf("%s × %s: a worker is not taken away", c.phase, c.fault.name)
				return
			}
			c.ticks.tick()
			<-time.After(time.Millisecond)
		}
	}
}

// adminDeletes deletes the slices and their request behind the runner's back.
func (c *cell) adminDeletes() {
	if c.on == onGCE {
		for _, group := range c.namesIn(inZone + "instanceGroupManagers") {
			c.elsewhere(http.MethodDelete, inZone+"instanceGroupManagers/"+group)
		}
	} else {
		c.elsewhere(http.MethodDelete, inTPU+"queuedResources/m?force=true")
	}
	c.awaitDown("")
}

// elsewhere sends a request behind the runner's back.
func (c *cell) elsewhere(method, path string) string {
	answer := httptest.NewRecorder()
	c.server.ServeHTTP(answer, httptest.NewRequest(method, path, http.NoBody))
	if answer.Code != http.StatusOK {
		c.t.Errorf("%s × %s: %s", c.phase, c.fault.name, answer.Body)
	}
	return strings.TrimSpace(answer.Body.String())
}

// outage makes the API answer with code for the time d of the runner's clock.
func (c *cell) outage(code int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down, c.downTil = code, c.clock.Now().Add(d)
}

// killRunner cuts the runner off from everything. Nothing that the runner still does has an
// effect.
func (c *cell) killRunner() {
	c.killed.Store(true)
	c.fleet.cutOff(true)
	c.kill()
}

func (c *cell) interrupt() { c.signal() }

// cutOffFor cuts the runner off for the time d of its clock.
func (c *cell) cutOffFor(d time.Duration) {
	c.fleet.cutOff(true)
	c.back.Go(func() {
		<-c.clock.After(d)
		c.fleet.cutOff(false)
	})
}

// tunnelAway cuts the runner off from all workers for a while, but not from the API.
func (c *cell) tunnelAway() {
	c.tunnel.Store(true)
	c.cutOffFor(20 * time.Minute)
}

// Two machines have a runner of the same job. They begin at once, or one after the other.
// One runner starts the command, once, and the other one follows it. Neither stops the
// command or deletes its slices too early.
func TestTwoRunnersOfOneJob(t *testing.T) {
	identity, err := sshkey.Create(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	slow := calibrate(t, identity)
	// No limit of a runner may expire. Twice as many runners work here as when the speed
	// was measured.
	calm := 10 * slow
	var wg sync.WaitGroup
	for round := range 10 {
		c := newCell(t, identity, "none", matrixFault{name: fmt.Sprintf("another runner, round %d", round)}, calm)
		wg.Go(func() { c.race(time.Duration(float64(round)*20*float64(time.Millisecond)*slow), false) })
	}
	c := newCell(t, identity, "none", matrixFault{name: "another runner, which reads one worker before the start and one after it"}, calm)
	wg.Go(func() { c.race(0, true) })
	wg.Wait()
}

// race runs the job twice. The second job begins when the time after has passed. With
// astride, the second runner reads what the workers know while the first one starts the
// command.
func (c *cell) race(after time.Duration, astride bool) {
	if err := c.setUp(); err != nil {
		c.t.Error(err)
		return
	}
	defer c.close()
	fleet := c.fleet.(*quickWorkers)
	type runner struct {
		follows, seen chan struct{} // closed when the runner follows the command, and when it has seen the end of the command
		status        int
		err           error
		story         testkit.Buffer
	}
	two := []*runner{{follows: make(chan struct{}), seen: make(chan struct{})}, {follows: make(chan struct{}), seen: make(chan struct{})}}
	both := make(chan struct{})
	fleet.until = func(*quickVM) <-chan struct{} { return both }
	prepared, early, late := make(chan struct{}), make(chan struct{}), make(chan struct{})
	read, wait := sync.OnceFunc(func() { close(early) }), sync.OnceFunc(func() { <-early; close(late); <-two[0].follows })
	fleet.look = func(vm *quickVM, list func()) {
		select {
		case <-prepared:
			if vm.spec.Node == "m-1" {
				wait()
			}
			list()
			read()
		default:
			list()
		}
	}
	var wg sync.WaitGroup
	for i, r := range two {
		follows, seen := sync.OnceFunc(func() { close(r.follows) }), sync.OnceFunc(func() { close(r.seen) })
		sink := event.SinkFunc(func(e event.Event) {
			c.hear(e, &r.story)
			if p, ok := e.(event.Phase); ok && astride && i == 0 && p.Name == "start" && p.State == event.Started {
				close(prepared)
				select {
				case <-late:
				case <-two[1].seen: // the other runner has failed
				}
			} else if ok && p.Name == "run" && p.State == event.Started {
				follows()
			} else if ok && p.Name == "run" {
				seen()
			} else if ok && p.Name == "delete" {
				select {
				case <-r.seen:
					<-two[1-i].seen // a real deletion takes longer than the last message of a worker
				default: // the slices counted as lost; the verdict says why
				}
			}
		})
		wg.Go(func() {
			if i == 1 && astride {
				select {
				case <-prepared:
				case <-two[0].seen:
				}
			} else if i == 1 {
				<-time.After(after)
			}
			r.status, r.err = c.job(context.Background(), filepath.Join(c.dir, fmt.Sprint(i)), nil, sink)
			follows()
			seen()
		})
	}
	for _, r := range two {
		<-r.follows
	}
	close(both)
	wg.Wait()
	if two[0].status != exitOK || two[1].status != exitOK || c.starts.Load() != 1 || c.leftovers() != "" {
		c.t.Errorf("%s: ended with %d, %v and %d, %v, started %d times, left: %s\n%s\n--- the other:\n%s", c.fault.name,
			two[0].status, two[0].err, two[1].status, two[1].err, c.starts.Load(), c.leftovers(), two[0].story.String(), two[1].story.String())
	}
}

// leftovers names what still exists in the simulator.
func (c *cell) leftovers() string {
	for _, kind := range c.on.kinds {
		if body := c.elsewhere(http.MethodGet, kind); body != "{}" && (c.on == onTPU || strings.Contains(body, `"items"`)) {
			return kind + ": " + body
		}
	}
	return ""
}

// A matrixDoc is a table of docs/reliability.md that a test writes, with a row for each
// fault and a column for each phase.
type matrixDoc struct {
	path, head, tail string
	first            string // the first two lines of the table
	phases, faults   []string
	want, got        [][]string // by fault and phase
	update           bool
}

// openMatrix reads the table after the line mark. The table must have all rows and columns.
func openMatrix(t *testing.T, mark string, phases, faults []string) *matrixDoc {
	t.Helper()
	begin, end := "<!-- "+mark+" -->\n\n", "\n<!-- end of matrix -->"
	path := filepath.Join("..", "..", "docs", "reliability.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(data), begin)
	table, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the %s", path, mark)
	}
	d := &matrixDoc{path: path, head: head + begin, tail: end + tail, phases: phases, faults: faults,
		first: "| what happens | " + strings.Join(phases, " | ") + " |\n|---" + strings.Repeat("|---", len(phases)) + "|\n"}
	for range faults {
		d.got = append(d.got, make([]string, len(phases)))
	}
	if d.update = tableIsWritten(); d.update {
		return d
	}
	rows, ok := strings.CutPrefix(table, d.first)
	for i, line := range strings.Split(strings.TrimSuffix(rows, "\n"), "\n") {
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
		ok = ok && i < len(faults) && len(cells) == 1+len(phases) && cells[0] == faults[i]
		d.want = append(d.want, cells[1:])
	}
	if !ok || len(d.want) != len(faults) {
		t.Fatalf("the matrix in %s has not the rows and columns of this test:\n%s", path, table)
	}
	return d
}

// tableIsWritten reports whether tests write their results into the table.
func tableIsWritten() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

// set records the result of a cell. It is safe for concurrent use.
func (d *matrixDoc) set(t *testing.T, fault, phase int, result string) {
	t.Helper()
	d.got[fault][phase] = result
	if !d.update && result != d.want[fault][phase] {
		t.Errorf("%s × %s: it comes out as %q; %s says %q", d.phases[phase], d.faults[fault], result, d.path, d.want[fault][phase])
	}
}

// close writes the table if -update is given and every cell is known.
func (d *matrixDoc) close(t *testing.T) {
	t.Helper()
	if !d.update || t.Failed() {
		return
	}
	var b strings.Builder
	b.WriteString(d.head + d.first)
	for f, name := range d.faults {
		if slices.Contains(d.got[f], "") {
			t.Fatalf("not every cell was run: %s stays as it is", d.path)
		}
		b.WriteString("| " + name + " | " + strings.Join(d.got[f], " | ") + " |\n")
	}
	b.WriteString(d.tail)
	if err := os.WriteFile(d.path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

var _ worker.Backend = (*quickWorkers)(nil)
