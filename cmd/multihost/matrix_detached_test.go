package main

import (
	"bytes"
	"context"

	"multihost/internal/overssh"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/stage"
	"multihost/internal/submit"
	"multihost/internal/testkit"
	"multihost/internal/workers"

	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"multihost/internal/agent"
	"multihost/internal/agent/detached"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gc"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/network"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/sshkey"
)

// lonelyPhases are the phases of a job without runner in which a fault can happen.
var lonelyPhases = []string{"requested", "waiting", "provisioning", "boot", "preflight", "run", "between attempts", "end", "deletion"}

// Indexes of lonelyPhases.
const (
	fromBoot      = 3
	fromPreflight = 4
	fromEnd       = 7
	fromDeletion  = 8
)

// A lonelyFault is a fault that happens once to a job without runner.
type lonelyFault struct {
	name   string
	only   *lonelyProvider // the only provider whose slices it can hit; nil: all
	from   int             // first phase in which it can happen
	last   int             // last phase in which it can happen; 0: the last one
	strike func(s *lonelyStage)
	code   int    // exit status of attach if the fault happens before the phase at index until
	until  int    // the first phase in which attach ends with 0
	taken  string // the slices whose machines it takes away; "": none
	again  bool   // if the job has not ended with 0, the user types it again
	short  bool   // the job has a short --ttl
	long   bool   // without the fault, the command would not end in time
	bound  bool   // it happens only to slices that are not spot
	brief  bool   // the slices may run for at most shortLife
	stays  bool   // no worker may delete the slices, so the user does
	alone  bool   // if the workers gather before they begin, those that are left wait in vain
	missed bool   // if it happens in the preflight, the other slice begins alone and fails
}

func lonelyFaults(on *lonelyProvider) []lonelyFault {
	inject := func(text string) func(s *lonelyStage) {
		return func(s *lonelyStage) { s.inject(text) }
	}
	away := func(path string, code int, d time.Duration) func(s *lonelyStage) {
		return func(s *lonelyStage) { s.outage(path, code, d) }
	}
	const stopped = 128 + int(syscall.SIGTERM)
	const workersAccount = " account=*gserviceaccount.com n=all"
	all := []lonelyFault{
		{name: "one slice of two preempted", only: lonelyOnTPU, from: fromProvisioning, taken: "m-*", again: true, code: exitUnavailable, until: fromDeletion, strike: inject("preempt node=m-1")},
		{name: "one slice of two preempted", only: lonelyOnGCE, from: fromProvisioning, taken: "m-1", alone: true, again: true, code: exitUnavailable, until: fromDeletion, strike: inject("group-preempt group=m-1")},
		{name: "all slices preempted", only: lonelyOnGCE, from: fromProvisioning, taken: "m-*", again: true, code: exitUnavailable, until: fromDeletion, strike: inject("group-preempt group=m-*")},
		{name: "queued resource suspended", only: lonelyOnTPU, taken: "m-*", code: exitUnavailable, until: fromDeletion, strike: inject("qr-suspended qr=m")},
		{name: "queued resource failed", only: lonelyOnTPU, taken: "m-*", code: exitUnavailable, until: fromDeletion, strike: inject("qr-failed qr=m message='an internal error has occurred'")},
		{name: "the VMs of a slice cannot be made", only: lonelyOnGCE, last: untilProvisioning, alone: true, strike: inject("group-error group=m-1")},
		{name: "a host fails", only: lonelyOnGCE, from: fromBoot, bound: true, strike: (*lonelyStage).hostFails},
		{name: "a host fails and is away for 20 minutes", only: lonelyOnGCE, from: fromBoot, bound: true, missed: true, strike: func(s *lonelyStage) { s.hostIsAway(20 * time.Minute) }},
		{name: "a host fails and is away for 2 hours", only: lonelyOnGCE, from: fromBoot, bound: true, alone: true, code: exitUnavailable, until: fromDeletion, strike: func(s *lonelyStage) { s.hostIsAway(2 * time.Hour) }},
		{name: "an admin deletes a VM", only: lonelyOnGCE, from: fromBoot, alone: true, code: exitUnavailable, until: fromEnd, strike: (*lonelyStage).adminDeletesVM},
		{name: "an admin deletes one slice of two", only: lonelyOnGCE, from: untilWaiting, alone: true, again: true, code: exitUnavailable, until: fromDeletion, strike: (*lonelyStage).adminDeletesGroup},
		{name: "an admin deletes it", from: on.whole, code: exitUnavailable, until: fromDeletion, strike: (*lonelyStage).adminDeletes},
		{name: "API answers 503 for 2 minutes", from: fromBoot, strike: away(on.api, http.StatusServiceUnavailable, 2*time.Minute)},
		{name: "workers may not delete slices for 5 minutes", only: lonelyOnGCE, from: fromBoot, strike: func(s *lonelyStage) {
			s.outage(http.MethodDelete+" "+on.api, http.StatusForbidden, 5*time.Minute)
		}},
		{name: "workers may not delete slices any more", only: lonelyOnGCE, from: fromBoot, stays: true, strike: inject("permission-denied permission=compute.instanceGroupManagers.delete" + workersAccount)},
		{name: "bucket answers 503 for 5 minutes", from: fromBoot, strike: away("storage/v1/", http.StatusServiceUnavailable, 5*time.Minute)},
		{name: "bucket answers 403 for 5 minutes", from: fromBoot, strike: away("storage/v1/", http.StatusForbidden, 5*time.Minute)},
		{name: "workers may not use the bucket any more", from: fromBoot, code: exitUnavailable, until: fromDeletion, strike: inject("permission-denied permission=storage.*" + workersAccount)},
		{name: "metadata server and tokens away for 2 minutes", from: fromBoot, strike: away("", 0, 2*time.Minute)},
		{name: "a worker reboots", from: fromBoot, strike: func(s *lonelyStage) { s.reboot(s.lastVM()) }},
		{name: "all workers reboot", from: fromBoot, strike: func(s *lonelyStage) { s.reboot(anyVM) }},
		{name: "a worker never comes back", from: fromBoot, alone: true, code: exitUnavailable, until: fromDeletion, strike: func(s *lonelyStage) { s.kill(s.lastVM()) }},
		{name: "--ttl is over", from: fromPreflight, code: stopped, until: fromEnd, short: true, long: true, strike: func(s *lonelyStage) { s.standStill(shortLife) }},
		{name: "--max-run-duration is almost over", only: lonelyOnGCE, from: fromPreflight, code: stopped, until: fromEnd, brief: true, long: true, again: true, strike: func(s *lonelyStage) { s.standStill(shortLife - 2*time.Minute) }},
		{name: "--max-run-duration is over", only: lonelyOnGCE, from: fromPreflight, taken: "m-*", code: exitUnavailable, until: fromDeletion, brief: true, long: true, again: true, strike: (*lonelyStage).runEnds},
		{name: "a stop is asked for in the bucket", code: stopped, until: fromEnd, strike: (*lonelyStage).userStops},
	}
	return slices.DeleteFunc(all, func(f lonelyFault) bool { return f.only != nil && f.only != on })
}

const (
	// timeToLive is the --ttl of every job on the stage. No job lasts that long by itself.
	// shortLife is the --ttl of jobs in which it must expire. A worker that is silent for
	// shortLife does not count as dead yet.
	timeToLive = 24 * time.Hour
	shortLife  = 20 * time.Minute
	// lookEvery is how often a worker looks at its command and at the other workers. The
	// real agent looks every 20 s, even in a month of training. Here that would only cost
	// computing time.
	lookEvery = time.Minute
	// slicesDeadline is how long workers wait for each other.
	slicesDeadline = 30 * time.Minute
	// commandTime is how long a command runs. It is also the time in which a command
	// notices that its process on another worker has gone.
	commandTime = 5 * time.Minute
	bootTime    = 40 * time.Second
	simStep     = time.Second
)

// A lonelyStage is a job without runner in which one fault happens in one phase. Its
// workers do what multihost-agent does. The stage answers them: calls go to the simulator's
// API, and operations of the supervisor leave the same files as real ones. All of it runs
// in a bubble of package synctest: time stands still while a goroutine runs, and jumps to
// the next event when all goroutines wait. So the speed of the machine does not matter.
type lonelyStage struct {
	t      *testing.T
	on     *lonelyProvider
	phase  string
	fault  lonelyFault
	dir    string
	server *sim.Server
	access overssh.Access
	begin  time.Time
	struck atomic.Bool
	over   chan struct{}  // closed after the fault has happened
	wg     sync.WaitGroup // the goroutines of bootIn

	mu      sync.Mutex // nobody waits for anything while holding this lock
	vms     []*stageVM
	booted  time.Time // when the first machine booted
	arrived int       // number of workers in the phase of the fault
	down    []outage
	still   time.Time               // until then, nobody does anything
	begun   map[int]map[string]bool // which workers have started an attempt, by attempt and name
	ends    map[int]time.Time       // when the command ends, by attempt
	code    map[int]int             // exit status of the command, by attempt
	lost    int                     // newest attempt that has lost a process because a machine went down
	shaken  bool                    // the test has rebooted a machine, so that the job has a phase between two attempts
	closed  bool
}

type outage struct {
	call  string // a part of "METHOD /path"
	code  int    // 0: no answer, not even from the metadata server
	until time.Time
}

// TestMatrixOfDetachedJobs runs a job without runner for every pair of phase and fault.
// Each job must end with the right status and leave nothing behind. The table of results is
// in docs/reliability.md. -update writes the table.
func TestMatrixOfDetachedJobs(t *testing.T) { runLonelyMatrix(t, lonelyOnTPU) }

func runLonelyMatrix(t *testing.T, on *lonelyProvider) {
	t.Parallel()
	identity, err := sshkey.Create(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	faults := lonelyFaults(on)
	names := make([]string, len(faults))
	for f, fault := range faults {
		names[f] = fault.name
	}
	doc := openMatrix(t, on.mark, lonelyPhases, names)
	dir, err := os.MkdirTemp(memoryDir(), "multihost-matrix-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Run("cells", func(t *testing.T) {
		for f, fault := range faults {
			for p, phase := range lonelyPhases {
				if p < fault.from || fault.last > 0 && p > fault.last {
					doc.set(t, f, p, "–")
					continue
				}
				if (p+2*f)%6 > 0 && !tableIsWritten() && !testkit.All(t) {
					continue
				}
				s := &lonelyStage{on: on, phase: phase, fault: fault, dir: filepath.Join(dir, fmt.Sprintf("%d-%d", p, f)),
					access: overssh.Access{Login: "ann", Identity: identity}, begun: map[int]map[string]bool{}, ends: map[int]time.Time{}, code: map[int]int{}}
				switch {
				case fault.alone && on.gathers && p < fromPreflight:
					s.fault.code = exitTempFail
				case fault.missed && p == fromPreflight:
					s.fault.code = 1
				case p >= fault.until:
					s.fault.code, s.fault.long = exitOK, false
				}
				t.Run(phase+" × "+fault.name, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						s.t, s.over = t, make(chan struct{})
						story := &testkit.Buffer{}
						if doc.set(t, f, p, s.run(story)); t.Failed() {
							t.Logf("%s%s", story.String(), s.logs())
						}
					})
				})
			}
		}
	})
	doc.close(t)
}

// run runs the job and returns its result.
func (s *lonelyStage) run(story *testkit.Buffer) (result string) {
	failed := func(format string, args ...any) string {
		s.t.Errorf(format, args...)
		return "?"
	}
	var err error
	if s.server, err = sim.Start(context.Background(), sim.Config{Dir: filepath.Join(s.dir, "sim"), Listen: "none", Step: simStep, Workers: s}); err != nil {
		return failed("%v", err)
	}
	defer s.server.Close()
	url := s.server.URL()
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, Transport: briefly{inProcess{s.server}, s},
		TPUEndpoint: url + "/", ComputeEndpoint: url + "/compute/v1/", StorageEndpoint: url + "/storage/v1/", ResourceManagerEndpoint: url + "/"})
	provider := s.on.open(cloud)
	sink := event.SinkFunc(func(e event.Event) { fmt.Fprintf(story, "%T %+v\n", e, e) })
	typed := &stage.Invocation{Sink: sink, Clock: gcp.SystemClock}
	d := &deps{
		Reach:  &workers.Reach{Invocation: typed, Place: provision.Place{Project: sim.DefaultProject, Zone: sim.DefaultZone}, Cloud: provider, Access: s.access},
		Keeper: &record.Keeper{Of: typed, StateDir: filepath.Join(s.dir, "state"), Owner: "ann@laptop", ExitStatus: exitCode},
		Source: detach.Source{OpenBucket: func(ctx context.Context, bucket, dir string) (*detach.Bucket, error) {
			return detach.Open(ctx, cloud, bucket, dir)
		}},
		Networks: network.New(cloud, qr.LifeOf), Agents: noAgent(),
	}
	overSSH(d, nil)
	roots, err := cloud.Roots()
	if err != nil {
		return failed("%v", err)
	}
	o := matrixJob(s.dir, s.access, s.on.asks(matrixFault{bound: s.fault.bound}))
	o.TTL, o.Request.SlicesDeadline = timeToLive, slicesDeadline
	if s.fault.short {
		o.TTL = shortLife
	}
	if s.fault.brief {
		o.Request.MaxRunDuration = shortLife
	}
	s.on.starts(s)
	s.begin = time.Now()
	if _, err := submit.Detach(context.Background(), submitDeps(d), o, submit.DetachOptions{Bucket: sim.DefaultBucket, Roots: roots}); err != nil {
		return failed("not started: %v", err)
	}
	left, err := s.play()
	if err != nil {
		return failed("%v", err)
	}
	if !s.struck.Load() {
		return failed("%v", errPhaseNeverCame)
	}
	out, err := runs.Attach(context.Background(), runsDeps(d), o.Run.Run, runs.AttachOptions{})
	status := exitCode(outcome(out, err))
	fmt.Fprintf(story, "ended with %d, %v; left: %s\n", status, err, left)
	if status != s.fault.code {
		return failed("exit status %d, want %d", status, s.fault.code)
	}
	result = fmt.Sprintf("%d, %s", status, event.Count(len(s.begun), "attempt"))
	if s.fault.again && status != exitOK {
		if left != "" {
			result += " †"
		}
		if err := s.again(d, o, roots); err != nil {
			return failed("typed again: %v", err)
		}
		left = s.left()
	}
	if left != "" && (s.fault.taken != "" || s.fault.stays) { // no worker is left to delete the slices
		if _, err := provider.Delete(context.Background(), "m", provision.DeleteOptions{OnlyRun: "m"}); err != nil {
			return failed("%v", err)
		}
		result += " †"
	}
	if left = s.on.remains(s); left != "" { // the next command deletes parts that were in use while workers existed
		<-time.After(provision.MakingTime)
		wait := gc.WarnOfLeftovers(context.Background(), gc.Deps{Reach: d.Reach, StateDir: d.StateDir}, "ann", "")
		<-time.After(workers.WarnLimit)
		wait()
	}
	if left = s.on.remains(s); left != "" {
		return failed("%s is left", left)
	}
	return result
}

// again types a job a second time after it has lost its slices. The job must continue and
// succeed.
func (s *lonelyStage) again(d *deps, o job.JobOptions, roots gcp.Roots) error {
	s.mu.Lock()
	before := len(s.begun)
	s.fault.long = false
	s.mu.Unlock()
	if _, err := submit.Detach(context.Background(), submitDeps(d), o, submit.DetachOptions{Bucket: sim.DefaultBucket, Roots: roots}); err != nil {
		return err
	}
	if _, err := s.play(); err != nil {
		return err
	}
	out, err := runs.Attach(context.Background(), runsDeps(d), o.Run.Run, runs.AttachOptions{})
	if err == nil && (out.Code != 0 || len(s.begun) != before+1) {
		err = fmt.Errorf("exit status %d after %s", out.Code, event.Count(len(s.begun)-before, "attempt"))
	}
	return err
}

// left returns the state of the slices and of their request, or "" if there is neither a
// slice nor a queued resource.
func (s *lonelyStage) left() string {
	left, _ := s.on.state(s.server.Status())
	return left
}

// play lets time pass until nothing more can happen. left is what exists at the end.
func (s *lonelyStage) play() (left string, err error) {
	for {
		var phase string
		left, phase = s.on.state(s.server.Status())
		pause := 10 * time.Second
		if phase != "" && phase != still {
			s.reached(phase)
			pause = simStep / 2
		}
		switch {
		case left == "", phase == still && !s.anybody(), s.fault.stays && time.Since(s.begin) > timeToLive/2:
			return left, nil
		case time.Since(s.begin) > 3*timeToLive:
			return left, fmt.Errorf("it never ends: %s", left)
		}
		<-time.After(pause)
	}
}

// anybody reports whether any worker is active or about to boot.
func (s *lonelyStage) anybody() bool { return s.anybodyOf(anyVM) }

// anybodyOf is like anybody, but looks only at the machines that its parameter selects.
func (s *lonelyStage) anybodyOf(of func(*stageVM) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.vms, func(vm *stageVM) bool { return of(vm) && (vm.coming || vm.off != nil) })
}

func anyVM(*stageVM) bool { return true }

// lastVM returns a function that selects the last worker of the last slice.
func (s *lonelyStage) lastVM() func(*stageVM) bool {
	return func(vm *stageVM) bool { return vm.spec.Node == "m-1" && vm.spec.Index == s.on.workers/2-1 }
}

// reached makes the fault happen, once, when the job is in the fault's phase.
func (s *lonelyStage) reached(phase string) {
	if phase == s.phase && s.struck.CompareAndSwap(false, true) {
		s.fault.strike(s)
		_, _ = s.server.Clear("no-capacity") // see lonelyOnGCE
		close(s.over)
	}
}

// reaches makes the fault happen when all workers have come to the phase.
func (vm *stageVM) reaches(boot int, phase string) {
	s := vm.stage
	if phase != s.phase {
		return
	}
	s.mu.Lock()
	s.arrived++
	last, off := s.arrived == s.on.workers, vm.off
	s.mu.Unlock()
	if last {
		s.reached(phase)
	}
	select {
	case <-s.over:
	case <-off:
	}
	if !last {
		vm.wait(boot, time.Now().Truncate(time.Second).Add(time.Second+vm.part()))
	}
}

// inject sets a fault of the simulator. It returns when everything that the fault takes
// away has gone.
func (s *lonelyStage) inject(text string) {
	s.set(text)
	if s.fault.taken != "" {
		s.awaitDown(s.fault.taken)
	}
}

// awaitDown waits until all machines of the slices have gone.
func (s *lonelyStage) awaitDown(nodes string) {
	of := func(vm *stageVM) bool { return nodes == "m-*" || vm.spec.Node == nodes }
	for begin := time.Now(); s.anybodyOf(of); <-time.After(simStep / 10) {
		if time.Since(begin) > time.Hour {
			s.t.Error("the workers are not taken away")
			return
		}
	}
}

func (s *lonelyStage) adminDeletes() {
	for _, path := range s.on.paths {
		s.call(http.MethodDelete, path, "")
	}
	s.awaitDown("m-*")
}

func (s *lonelyStage) userStops() {
	s.call(http.MethodPost, "/upload/storage/v1/b/"+sim.DefaultBucket+"/o?uploadType=media&name=m%2Fcontrol%2Fstop", "enough\n")
}

func (s *lonelyStage) call(method, path, body string) (answered string) {
	answer := httptest.NewRecorder()
	s.server.ServeHTTP(answer, httptest.NewRequest(method, path, strings.NewReader(body)))
	if answer.Code != http.StatusOK && answer.Code != http.StatusNotFound {
		s.t.Errorf("%s %s: %s", method, path, answer.Body)
	}
	return answer.Body.String()
}

// outage makes calls fail for the time d if their "METHOD /path" contains call.
func (s *lonelyStage) outage(call string, code int, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = append(s.down, outage{call, code, time.Now().Add(d)})
}

// standStill stops all activity until shortly after the time d since the first boot.
func (s *lonelyStage) standStill(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.still = s.booted.Add(d + 5*time.Second)
}

// kill takes workers away for good.
func (s *lonelyStage) kill(of func(*stageVM) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, vm := range s.vms {
		if of(vm) {
			vm.halt()
			vm.dead = true
		}
	}
}

func (s *lonelyStage) reboot(of func(*stageVM) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, vm := range s.vms {
		if vm.off != nil && of(vm) {
			vm.halt()
			s.bootIn(vm, 2*time.Minute)
		}
	}
}

// bootIn boots a machine after the time d. The agent waits for whole seconds, so each
// machine acts at its own fraction of the second. No two machines act at the same moment,
// and their order is always the same. The caller holds mu.
func (s *lonelyStage) bootIn(vm *stageVM, d time.Duration) {
	vm.coming = true
	d = time.Until(time.Now().Add(d).Truncate(time.Second).Add(vm.part()))
	s.wg.Go(func() {
		select {
		case <-time.After(d):
		case <-vm.taken:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		vm.coming = false
		if !vm.gone && !vm.dead {
			vm.boot()
		}
	})
}

// part is the machine's own fraction of a second.
func (vm *stageVM) part() time.Duration {
	d := 300*time.Millisecond + time.Duration(vm.spec.Index)*100*time.Millisecond
	if vm.spec.Node == "m-1" {
		d += 300 * time.Millisecond
	}
	return d
}

// Port, Start and Close make the stage a worker.Backend of the simulator.
func (s *lonelyStage) Port() int { return 22 }

func (s *lonelyStage) Start(_ context.Context, spec worker.Spec) (worker.Machine, error) {
	vm := &stageVM{stage: s, spec: spec, taken: make(chan struct{}), commands: map[int]*stageCommand{}}
	if err := os.MkdirAll(spec.Root, 0o700); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the stage is closed")
	}
	s.vms = append(s.vms, vm)
	s.bootIn(vm, bootTime)
	tellPlace(spec)
	return vm, nil
}

func (s *lonelyStage) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, vm := range s.vms {
		vm.take()
	}
	s.mu.Unlock()
	s.wg.Wait()
	for _, vm := range s.vms {
		vm.ended.Wait()
	}
	return nil
}

func (s *lonelyStage) logs() string {
	var b bytes.Buffer
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, vm := range s.vms {
		text, _ := os.ReadFile(filepath.Join(vm.spec.Root, "log"))
		fmt.Fprintf(&b, "--- %s:\n%s", vm.name(), text)
	}
	return b.String()
}

// A stageVM is one worker. Its fields are guarded by the stage's mu.
type stageVM struct {
	stage    *lonelyStage
	spec     worker.Spec
	boots    int
	power    func()        // ends the present boot
	off      chan struct{} // closed at the end of this boot; nil while the machine is down or its program has ended
	coming   bool          // the machine is about to boot
	dead     bool          // the machine never comes back
	gone     bool          // its slice is deleted
	taken    chan struct{} // closed when the slice is deleted
	commands map[int]*stageCommand
	ended    sync.WaitGroup
}

// A stageCommand is one attempt on one worker.
type stageCommand struct {
	boot int
	dir  string
	over bool
}

// name names the place of the machine in the job.
func (vm *stageVM) name() string { return fmt.Sprintf("%sw%d", vm.spec.Node, vm.spec.Index) }

func (vm *stageVM) Addr() string     { return "127.0.0.1" }
func (vm *stageVM) Hostname() string { return vm.spec.Hostname }
func (vm *stageVM) HostKeys() map[string]string {
	return map[string]string{"ssh-ed25519": base64.StdEncoding.EncodeToString([]byte(vm.spec.Name))}
}

// SetFault switches the machine off if its host fails. Reboot switches the machine on
// again.
func (vm *stageVM) SetFault(f worker.Fault) error {
	if f.Kind != worker.Reboot {
		return errors.New("not on this stage")
	}
	vm.stage.mu.Lock()
	defer vm.stage.mu.Unlock()
	vm.halt()
	return nil
}

func (vm *stageVM) Reboot(context.Context) error {
	vm.stage.mu.Lock()
	defer vm.stage.mu.Unlock()
	vm.stage.bootIn(vm, bootTime)
	return nil
}

func (vm *stageVM) Stop(context.Context) error {
	vm.stage.mu.Lock()
	vm.take()
	vm.stage.mu.Unlock()
	vm.ended.Wait()
	return nil
}

// take takes the machine away for good. The caller holds mu.
func (vm *stageVM) take() {
	if !vm.gone {
		vm.gone = true
		close(vm.taken)
		vm.halt()
	}
}

// halt switches the machine off. The caller holds mu.
func (vm *stageVM) halt() {
	if vm.off == nil {
		return
	}
	vm.power()
	for attempt, c := range vm.commands {
		switch end, ends := vm.stage.ends[attempt]; {
		case c.over || c.boot != vm.boots:
		case ends && !time.Now().Before(end): // the command ended by itself before the halt
			c.end(vm.stage.code[attempt], "", end)
		default:
			vm.stage.loses(attempt)
			vm.stage.lost = max(vm.stage.lost, attempt)
		}
	}
	vm.boots++ // calls of the last boot get no answer any more
	close(vm.off)
	vm.off = nil
}

// boot runs the agent as root. The caller holds mu.
func (vm *stageVM) boot() {
	if err := vm.tryBoot(); err != nil {
		vm.stage.t.Error(err)
	}
}

// begins notes a boot. The caller holds mu.
func (vm *stageVM) begins(power func()) (boot int) {
	if vm.stage.booted.IsZero() {
		vm.stage.booted = time.Now()
	}
	vm.boots++
	vm.power, vm.off = power, make(chan struct{})
	return vm.boots
}

// ends notes that the program of a boot has ended by itself. The caller holds mu.
func (vm *stageVM) ends(boot int) {
	if vm.boots == boot && vm.off != nil {
		close(vm.off)
		vm.off = nil
	}
}

func (vm *stageVM) tryBoot() error {
	log, err := os.OpenFile(filepath.Join(vm.spec.Root, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	boot := vm.begins(cancel)
	of := stageBoot{vm, boot}
	cfg := detached.Config{Home: vm.spec.Root, Root: vm.spec.Root, Proc: vm.spec.Root, Out: log, System: of, Transport: of, Metadata: &agent.Metadata{Transport: of}}
	vm.ended.Go(func() {
		defer log.Close()
		defer cancel()
		if err := detached.Run(ctx, cfg); err != nil && ctx.Err() == nil {
			vm.stage.t.Error(err)
		}
		vm.stage.mu.Lock()
		defer vm.stage.mu.Unlock()
		vm.ends(boot)
	})
	return nil
}

// A stageBoot is what the agent sees during one boot.
type stageBoot struct {
	*stageVM
	boot int
}

var errPowerless = errors.New("the machine is off")

// settle waits while a standstill stops all activity. Without power it waits for ever.
func (b stageBoot) settle() error {
	b.wait(b.boot, b.stillUntil())
	if !b.isUp(b.boot) {
		return errPowerless
	}
	return nil
}

// RoundTrip answers calls of the metadata server and of APIs.
func (b stageBoot) RoundTrip(r *http.Request) (*http.Response, error) {
	const instance = "/computeMetadata/v1/instance/"
	var body []byte
	if r.Body != nil {
		defer r.Body.Close()
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	var answer *httptest.ResponseRecorder
	path, metadata := strings.CutPrefix(r.URL.Path, instance)
	switch {
	case metadata && r.Method == http.MethodGet:
		answer = b.instance(b.boot, path)
	case metadata:
		answer = b.ask(r.Method, path, string(body))
	default:
		answer = b.call(b.boot, r, body)
	}
	if err := b.settle(); err != nil {
		return nil, err
	}
	if answer == nil {
		return nil, errors.New("connection refused")
	}
	resp := answer.Result()
	resp.Request = r
	resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	return resp, nil
}

// call answers a call of an API, or returns nil without power.
func (vm *stageVM) call(boot int, r *http.Request, body []byte) *httptest.ResponseRecorder {
	if vm.stage.noticed(vm, r.Method, r.URL.Path); !vm.isUp(boot) {
		return nil
	}
	if strings.HasSuffix(r.URL.Path, "/control/attempt") { // the last call of each look at the other workers
		vm.stage.looked()
	}
	req := httptest.NewRequest(r.Method, r.URL.String(), bytes.NewReader(body))
	req.Header = r.Header
	answer := httptest.NewRecorder()
	if off := vm.stage.outageOf(r.Method + " " + r.URL.Path); off != nil && off.code != 0 {
		http.Error(answer, `{"error": {"message": "come back later"}}`, off.code)
	} else {
		vm.stage.server.ServeHTTP(answer, req)
	}
	return answer
}

// Run makes the output and files of the program p, as far as the agent can see them.
func (b stageBoot) Run(_ context.Context, p detached.Program) (detached.Output, error) {
	var out detached.Output
	op := slices.IndexFunc(p.Args, func(word string) bool { return strings.HasPrefix(word, "multihost-") })
	switch {
	case op >= 0:
		name, nonce := strings.TrimPrefix(p.Args[op], "multihost-"), p.Args[op+2]
		out.Out = []byte(b.operate(b.boot, filepath.Join(b.spec.Root, ".multihost/runs/m"), nonce, name, p.Args[op+3:]))
	case strings.HasSuffix(p.Args[len(p.Args)-1], "/preflight"):
		b.reaches(b.boot, "preflight")
		out.Out = []byte("multihost-preflight end\n")
	case strings.Contains(p.Args[len(p.Args)-1], "$HOME"):
		out.Out = []byte(b.spec.Root)
	}
	return out, b.settle()
}

func (vm *stageVM) isUp(boot int) bool {
	vm.stage.mu.Lock()
	defer vm.stage.mu.Unlock()
	return vm.boots == boot && vm.off != nil
}

// wait waits until a time, or until the boot ends.
func (vm *stageVM) wait(boot int, until time.Time) {
	vm.stage.mu.Lock()
	off, up := vm.off, vm.boots == boot
	vm.stage.mu.Unlock()
	if !up {
		return
	}
	select {
	case <-time.After(time.Until(until)):
	case <-off:
	}
}

// stillUntil returns the first time after a standstill at which this machine acts. Without
// a standstill, that time is in the past.
func (vm *stageVM) stillUntil() time.Time {
	vm.stage.mu.Lock()
	defer vm.stage.mu.Unlock()
	return vm.stage.still.Truncate(time.Second).Add(time.Second + vm.part())
}

// loses makes an attempt fail as JAX does when another process is silent. If the attempt
// ends earlier, nothing happens.
func (s *lonelyStage) loses(attempt int) {
	s.ends[attempt], s.code[attempt] = time.Now().Add(commandTime), 1
}

// looked is called when a worker has nothing to do for the moment. If the fault must happen
// between two attempts, looked reboots a machine once the command runs on all workers.
func (s *lonelyStage) looked() {
	s.mu.Lock()
	running := 0
	for _, vm := range s.vms {
		for _, c := range vm.commands {
			if !c.over && !vm.gone && vm.off != nil && c.boot == vm.boots {
				running++
			}
		}
	}
	first := running == s.on.workers && s.phase == "between attempts" && !s.shaken
	s.shaken = s.shaken || first
	s.mu.Unlock()
	if first {
		s.reboot(s.lastVM())
	}
	if running == s.on.workers {
		s.reached("run")
	}
}

// operate makes the answer and files of an operation of the supervisor, as far as the agent
// can see them.
func (vm *stageVM) operate(boot int, runs, nonce, name string, args []string) (answer string) {
	s := vm.stage
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "free" || vm.boots != boot {
		return ""
	}
	attempt, _ := strconv.Atoi(args[1])
	now := time.Now()
	c := vm.commands[attempt]
	switch name {
	case "arm":
		if c != nil {
			return nonce + " already\n"
		}
		c = &stageCommand{boot: boot, dir: filepath.Join(runs, args[1])}
		vm.commands[attempt] = c
		err := errors.Join(os.MkdirAll(c.dir, 0o700),
			os.WriteFile(filepath.Join(c.dir, "started"), fmt.Appendf(nil, "12 1 %d boot\n", now.UnixNano()), 0o600),
			os.WriteFile(filepath.Join(c.dir, "output.log"), fmt.Appendf(nil, "attempt %d of %s\n", attempt, vm.name()), 0o600))
		if err != nil {
			return nonce + " error " + err.Error() + "\n"
		}
		if s.begun[attempt] == nil {
			s.begun[attempt] = map[string]bool{}
		}
		s.begun[attempt][vm.name()] = true
		switch n := len(s.begun[attempt]); {
		case n == 1:
			s.loses(attempt) // unless the other workers begin before that
		case n == s.on.workers && now.Before(s.ends[attempt]) && s.lost != attempt:
			delete(s.ends, attempt)
			if s.code[attempt] = 0; !s.fault.long {
				s.ends[attempt] = now.Add(commandTime)
			}
		}
		return nonce + " started 12 1\n"
	case "stop":
		if c != nil && !c.over {
			c.end(143, args[3], now)
			_ = os.WriteFile(filepath.Join(c.dir, "stop"), []byte(args[3]+"\n"), 0o600)
		}
	}
	switch {
	case c == nil:
		return nonce + " phase unknown\n"
	case c.over:
		return nonce + " phase exited\n"
	case c.boot != boot:
		c.end(255, "the worker was rebooted", now)
		return nonce + " phase lost\n"
	}
	if end, ends := s.ends[attempt]; ends && !now.Before(end) {
		c.end(s.code[attempt], "", now)
		return nonce + " phase exited\n"
	}
	return nonce + " phase running\n"
}

func (c *stageCommand) end(code int, reason string, now time.Time) {
	c.over = true
	text := fmt.Sprintf("code=%d\nsignal=\nend=%d\nsize=0\noom=0\nlost=0\ndropped=0\nreason=%s\n", code, now.UnixNano(), reason)
	_ = os.WriteFile(filepath.Join(c.dir, "exit"), []byte(text), 0o600) // the agent sees that the file is missing
}

// ask asks the machine's metadata server. It returns nil if the server does not answer.
func (vm *stageVM) ask(method, path, body string) *httptest.ResponseRecorder {
	if off := vm.stage.outageOf(""); off != nil && off.code == 0 {
		return nil
	}
	answer := httptest.NewRecorder()
	req := httptest.NewRequest(method, "http://metadata/computeMetadata/v1/instance/"+path, strings.NewReader(body))
	req.Header.Set("Metadata-Flavor", "Google")
	vm.spec.Metadata.ServeHTTP(answer, req)
	return answer
}

// instance answers a read of the machine's metadata server, or returns nil if the server
// does not answer.
func (vm *stageVM) instance(boot int, path string) *httptest.ResponseRecorder {
	const job = "attributes/multihost-job"
	if path == job {
		vm.reaches(boot, "boot")
	}
	answer := vm.ask(http.MethodGet, path, "")
	if path == job && answer != nil {
		text := strings.Replace(answer.Body.String(), "\nlook=20\n", fmt.Sprintf("\nlook=%d\n", lookEvery/time.Second), 1)
		answer.Body = bytes.NewBufferString(text)
	}
	return answer
}

// outageOf returns the outage that hits a call now, or nil.
func (s *lonelyStage) outageOf(call string) *outage {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.down {
		if strings.Contains(call, o.call) && time.Now().Before(o.until) {
			return &o
		}
	}
	return nil
}

// inProcess carries a client's requests to a handler, without a network.
type inProcess struct{ http.Handler }

func (h inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if r.Host == "" {
		r.Host = r.URL.Host
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer r.Body.Close()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	resp := answer.Result()
	resp.Request = r
	return resp, nil
}

// briefly carries requests without the scripts of workers.
type briefly struct {
	inProcess
	s *lonelyStage
}

func (b briefly) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && (strings.HasSuffix(r.URL.Path, "/queuedResources") || strings.HasSuffix(r.URL.Path, "/instanceTemplates")) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		body = withoutStartup(body)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	answer, err := b.inProcess.RoundTrip(r)
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/instanceGroupManagers") {
		b.s.reached("requested") // so far, only a part of the request exists
	}
	return answer, err
}

// noticed recognizes a phase by the next request of a worker.
func (s *lonelyStage) noticed(vm *stageVM, method, path string) {
	s.mu.Lock()
	ended := false
	for _, c := range vm.commands {
		ended = ended || c.over
	}
	attempts := len(s.begun)
	s.mu.Unlock()
	switch {
	case method == http.MethodDelete && slices.ContainsFunc(s.on.paths, func(p string) bool { return strings.HasPrefix(p, path) }):
		s.reached("deletion")
	case ended && s.phase == "end" && strings.Contains(path, "main_command_log"):
		s.reached("end")
	case attempts == 1 && method == http.MethodPost && strings.HasSuffix(path, "/o") && s.isBetween(vm):
		s.reached("between attempts")
	}
}

// isBetween reports whether the machine is up again after the reboot that brings the job
// between two attempts.
func (s *lonelyStage) isBetween(vm *stageVM) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shaken && vm.boots > 2 && vm.off != nil
}

// startups matches the startup and the shutdown script in a request, both as values of an
// object and of items.
var startups = regexp.MustCompile(`("(?:startup|shutdown)-script"(?::|,\s*"value":)\s*")(?:[^"\\]|\\.)*"`)

// withoutStartup removes the scripts from a request. These workers do not need them, and
// sending them back in every answer would take most of the time.
func withoutStartup(body []byte) []byte { return startups.ReplaceAll(body, []byte(`$1#"`)) }
