package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/sim"
	"multihost/internal/sim/netns"
	"multihost/internal/sim/worker"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

// A matrixBackend is a kind of worker on which some cells of a matrix run for real. mark
// marks these cells in the table.
type matrixBackend struct{ name, mark string }

// onBackend returns the cells that run on the workers of a backend: one phase for each
// fault. Together these cells cover every phase. Two backends never have the same phase for
// a fault.
func (on *matrixProvider) onBackend(backend int) []int {
	faults := matrixFaults(on)
	chosen, used := make([]int, len(faults)), make([]int, len(matrixPhases))
	for f, fault := range faults {
		chosen[f] = -1
		for k := range matrixPhases {
			p := (k + f + 4*backend) % len(matrixPhases)
			if fault.inRun {
				p = slices.Index(matrixPhases, "run")
			}
			if fault.can(p, on) && (chosen[f] < 0 || used[p] < used[chosen[f]]) {
				chosen[f] = p
			}
		}
		used[chosen[f]]++
	}
	return chosen
}

// marks returns the marks of a cell in the table.
func (on *matrixProvider) marks(fault, phase int) (text string) {
	for b, backend := range on.backends {
		if on.onBackend(b)[fault] == phase {
			text += backend.mark
		}
	}
	if text != "" {
		text = " " + text
	}
	return text
}

// wholeMatrix reports whether every cell is to run on real workers.
func wholeMatrix() bool { return os.Getenv("MATRIX") == "whole" }

// TestMatrixOnRealWorkers runs a part of the matrix on workers that run everything for
// real: shells of the process backend, and namespaces with OpenSSH and a kernel of their
// own. With MATRIX=whole it runs all cells. The table of TestMatrix has the expected
// results. So this test shows that the stand-ins of TestMatrix behave like real workers. A
// training that a fault interrupts must continue from its checkpoint.
func TestMatrixOnRealWorkers(t *testing.T) {
	testkit.OnlyInAll(t, "TestMatrix")
	besideOthers(t)
	if tableIsWritten() {
		t.Skip("TestMatrix writes the table")
	}
	if testkit.RaceDetector {
		t.Skip("what runs here of the program runs in TestMatrix, too")
	}
	identity, err := sshkey.Create(filepath.Join(t.TempDir(), "key"))
	testkit.Must(t, err)
	for _, on := range []*matrixProvider{onTPU, onGCE} {
		on.onRealWorkers(t, identity)
	}
}

func (on *matrixProvider) onRealWorkers(t *testing.T, identity *sshkey.Identity) {
	faults := matrixFaults(on)
	doc := openMatrix(t, on.mark, matrixPhases, namesOf(faults))
	for b, backend := range on.backends {
		t.Run(on.name+"/"+backend.name, func(t *testing.T) {
			t.Parallel()
			if backend.name == "netns" {
				simworker.NeedNetns(t)
			}
			chosen := on.onBackend(b)
			var cells [][2]int // the slowest cells come first
			for f, fault := range faults {
				for p := range matrixPhases {
					switch {
					case !fault.can(p, on) || p != chosen[f] && !wholeMatrix():
					case fault.inRun:
						cells = slices.Insert(cells, 0, [2]int{f, p})
					default:
						cells = append(cells, [2]int{f, p})
					}
				}
			}
			slots := make(chan struct{}, realWidth)
			var wg sync.WaitGroup
			for p, phase := range matrixPhases {
				if !slices.ContainsFunc(cells, func(c [2]int) bool { return c[1] == p }) {
					t.Errorf("nothing happens in the phase %s", phase)
				}
			}
			for _, cell := range cells {
				f, p := cell[0], cell[1]
				slots <- struct{}{}
				c := newRealCell(t, identity, matrixPhases[p], faults[f], backend.name)
				c.on = on
				wg.Go(func() {
					defer func() { <-slots }()
					doc.set(t, f, p, c.run()+on.marks(f, p))
				})
			}
			wg.Wait()
		})
	}
}

// newRealCell returns a cell on real workers. The clock of its runner is fast, too, but
// stops while this process gets no processor. So the runner on a slow machine does not
// believe that hours have passed.
func newRealCell(t *testing.T, identity *sshkey.Identity, phase string, fault matrixFault, backend string) *cell {
	dir, err := os.MkdirTemp(memoryDir(), "multihost-matrix-")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	clock := &tickClock{now: time.Now(), timers: map[chan time.Time]time.Time{}}
	c := &cell{t: t, phase: phase, fault: fault, backend: backend, over: make(chan struct{}), begin: time.Now(), clock: clock,
		ticks: &tickClock{now: time.Now(), timers: map[chan time.Time]time.Time{}}, dir: dir}
	c.access = overssh.Access{Login: "ann", Identity: identity, KnownHosts: filepath.Join(dir, "known_hosts"),
		ConnectTimeout: 30 * time.Second, RetryFor: 10 * time.Second, MaxDials: 8}
	if c.fault.trains = fault.trains && phase == "run"; c.fault.trains {
		strike := c.fault.strike
		c.fault.strike = func(c *cell) {
			c.awaitCheckpoint()
			strike(c)
		}
	}
	const beat = 5 * time.Millisecond
	ticker, over := time.NewTicker(beat), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ticker.C:
				clock.advance(time.Duration(fault.speed()/realHurry) * beat)
			case <-over:
				return
			}
		}
	})
	t.Cleanup(func() {
		ticker.Stop()
		close(over)
		wg.Wait()
	})
	return c
}

// realWidth is how many jobs on real workers run at once. Most of the time they wait.
const realWidth = 7

// realHurry is the factor by which the clock is slower with real workers than with
// stand-ins.
const realHurry = 4

// forReal adapts the job of a cell to real workers.
func (c *cell) forReal(o *job.JobOptions) {
	o.Run.Platform, o.Run.KillStale = preflight.GCE, launch.FreeOrphans
	o.Run.Grace, o.Run.SyncTimeout, o.Run.StartLimit = time.Second, 5*time.Minute, 5*time.Minute
	switch {
	case c.phase != "run":
		o.Run.Script = "true"
	case c.fault.trains:
		o.Run.Script = c.training(o.Run.Dir)
	case c.fault.ends:
		o.Run.Script = "[ $MULTIHOST_ATTEMPT != 1 ] || exec sleep 1000"
	default: // the command may end before or after the fault
		o.Run.Script = "exec sleep 2"
	}
}

// training returns a command that trains until a fault ends it. The command keeps its
// checkpoint in the bucket. After a restart from a checkpoint, it trains 3 more steps.
func (c *cell) training(dir string) string {
	for _, name := range []string{"train.py", "declaration.txt"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "examples", "train", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			c.t.Error(err)
		}
	}
	url := c.server.URL()
	return fmt.Sprintf(`mkdir -p kept
curl -sf -o kept/checkpoint '%[1]s/storage/v1/b/%[2]s/o/checkpoint?alt=media' || rm -f kept/checkpoint
steps=1000000
[ ! -s kept/checkpoint ] || steps=$(($(head -n 1 kept/checkpoint | sed 's/.*"steps": \([0-9]*\).*/\1/') + 3))
python3 train.py --steps=$steps --step-seconds=0.1 --batch=8 --checkpoint-dir=kept --checkpoint-every=1 &
while [ $MULTIHOST_PROCESS_ID = 0 ] && kill -0 $! 2>/dev/null; do
  [ ! -s kept/checkpoint ] || curl -s -H 'Content-Type: application/octet-stream' --data-binary @kept/checkpoint '%[1]s/upload/storage/v1/b/%[2]s/o?uploadType=media&name=checkpoint' >/dev/null
  sleep 0.2
done
wait $!`, url, sim.DefaultBucket)
}

var stepsOfCheckpoint = regexp.MustCompile(`"steps": ([0-9]+)`)

// stepsKept returns the number of steps in the bucket's checkpoint.
func (c *cell) stepsKept() int {
	for _, o := range c.server.Objects(sim.DefaultBucket) {
		if head, _, _ := bytes.Cut(o.Data, []byte("\n")); o.Name == "checkpoint" && stepsOfCheckpoint.Match(head) {
			n, _ := strconv.Atoi(string(stepsOfCheckpoint.FindSubmatch(head)[1]))
			return n
		}
	}
	return 0
}

// awaitCheckpoint waits until the training has a checkpoint.
func (c *cell) awaitCheckpoint() {
	if !testkit.Await(2*scriptWait, func() bool { return c.stepsKept() >= 3 }) {
		c.t.Error("the training makes no checkpoint")
	}
}

// wentOn returns an error unless the training has continued from its checkpoint.
func (c *cell) wentOn() error {
	text, err := os.ReadFile(filepath.Join(c.dir, "runs", "m", "attempt-2", "output_slice_0000_worker_0000.txt"))
	if err != nil {
		return err
	}
	from := regexp.MustCompile(`goes on from step ([0-9]+) of its checkpoint`).FindSubmatch(text)
	if from == nil || strings.Contains(string(text), "completed step: 0,") {
		return fmt.Errorf("the second attempt begins anew:\n%s", text)
	}
	first, _ := strconv.Atoi(string(from[1]))
	for step := first; step < first+3; step++ {
		if first < 3 || !strings.Contains(string(text), fmt.Sprintf("completed step: %d,", step)) {
			return fmt.Errorf("the second attempt goes on from step %d, but has not done step %d:\n%s", first, step, text)
		}
	}
	return nil
}

// realWorkers are the workers of a backend.
type realWorkers struct {
	worker.Backend
	mu   sync.Mutex
	vms  []*realVM
	dead bool
}

func newRealWorkers(backend, dir string) (*realWorkers, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port // choose the port before the first worker exists
	if err := l.Close(); err != nil {
		return nil, err
	}
	b := &realWorkers{}
	if backend == "netns" {
		b.Backend, err = netns.New(netns.Config{Root: dir, Port: port})
	} else {
		b.Backend, err = worker.NewProcess(worker.ProcessConfig{Root: dir, Port: port})
	}
	return b, err
}

// Start makes a machine. A fault belongs to the machine on which it was set, not to a later
// one of the same name.
func (b *realWorkers) Start(ctx context.Context, spec worker.Spec) (worker.Machine, error) {
	spec.Faults = nil
	m, err := b.Backend.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	vm := &realVM{Machine: m, spec: spec, up: true}
	b.mu.Lock()
	b.vms = append(b.vms, vm)
	dead := b.dead
	b.mu.Unlock()
	if dead {
		vm.reachable(false)
	}
	if inner, ok := m.(worker.Internal); ok {
		return innerVM{vm, inner}, nil
	}
	return vm, nil
}

func (b *realWorkers) machines(node string) []machine {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []machine
	for _, vm := range b.vms {
		if node == "" || vm.spec.Node == node {
			all = append(all, vm)
		}
	}
	return all
}

func (b *realWorkers) cutOff(dead bool) {
	b.mu.Lock()
	b.dead = dead
	vms := slices.Clone(b.vms)
	b.mu.Unlock()
	for _, vm := range vms {
		vm.reachable(!dead)
	}
}

func (b *realWorkers) isDead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dead
}

// A realVM is one worker.
type realVM struct {
	worker.Machine
	spec worker.Spec
	mu   sync.Mutex
	up   bool
	fell int // how often the machine has gone down
}

// An innerVM is a realVM with a network of its own.
type innerVM struct {
	*realVM
	worker.Internal
}

func (vm *realVM) isUp() bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.up
}

// reachable(false) cuts all connections to the machine and refuses new ones.
// reachable(true) accepts connections again.
func (vm *realVM) reachable(yes bool) {
	fault := worker.Fault{Kind: worker.Unreachable, Mode: "refuse"}
	if yes {
		fault = worker.Fault{Kind: worker.Clear, Name: string(worker.Unreachable)}
	}
	_ = vm.SetFault(fault) // fails if the machine has stopped
}

func (vm *realVM) Reboot(ctx context.Context) error {
	vm.reachable(true)
	return vm.Machine.Reboot(ctx)
}

func (vm *realVM) Stop(ctx context.Context) error {
	defer vm.goneDown()
	return vm.Machine.Stop(ctx)
}

func (vm *realVM) ShutDown(ctx context.Context, limit time.Duration) error {
	orderly, ok := vm.Machine.(worker.Orderly)
	if !ok {
		return vm.Stop(ctx)
	}
	defer vm.goneDown()
	return orderly.ShutDown(ctx, limit)
}

func (vm *realVM) goneDown() {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.up = false
	vm.fell++
}

func (vm *realVM) downs() int {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.fell
}

// SetFault counts a reboot that leaves the machine down.
func (vm *realVM) SetFault(f worker.Fault) error {
	err := vm.Machine.SetFault(f)
	if f.Kind == worker.Reboot && f.Duration > 0 {
		vm.mu.Lock()
		vm.fell++
		vm.mu.Unlock()
	}
	return err
}
