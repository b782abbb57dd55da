package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/testkit"
)

// TestLifeOnRealWorkers plays short random stories and judges them by the rules of
// TestLife. The workers of the simulator run everything for real, on the real clock.
// LIFE_REAL_STORIES and LIFE_REAL_SEED say how many stories and which. A tenth of that
// number is played again on slices that Compute Engine makes.
func TestLifeOnRealWorkers(t *testing.T) {
	testkit.OnlyInAll(t, "TestLife")
	besideOthers(t)
	if testkit.RaceDetector {
		t.Skip("what runs here of the program runs in TestLife, too")
	}
	kit := newLifeKit(t)
	stories, seed := envNumber(t, "LIFE_REAL_STORIES", 40), envNumber(t, "LIFE_REAL_SEED", 1)
	slots := make(chan struct{}, lifeRealWidth)
	began := time.Now()
	var started atomic.Int64
	var wg sync.WaitGroup
	for _, part := range []struct {
		from    lifeDraw
		stories int
	}{{realDraw, stories}, {realOnGCE(), (stories + 9) / 10}} {
		for i := range part.stories {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				story := lifeStories(part.from).Example(seed*1_000_000 + i)
				why, starts := tellRealStory(t, story, kit)
				started.Add(int64(starts))
				if why != "" {
					t.Errorf("story %d of LIFE_REAL_SEED=%d: %s\n%s", i, seed, story, why)
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d stories of seed %d in %s: the command has started on %d workers", stories, seed, time.Since(began).Round(time.Millisecond), started.Load())
	if started.Load() < int64(stories) { // at least half of the stories have an attempt on two workers
		t.Errorf("the command has started on only %d workers in %d stories", started.Load(), stories)
	}
}

// lifeRealWidth is how many stories on real workers run at once. Most of the time they
// wait.
const lifeRealWidth = 16

// realDraw leaves out kinds of lifeDeed that take minutes on a real clock.
var realDraw = lifeDraw{
	deeds: []string{
		"type job", "type job at a terminal", "type attach", "type attach at a terminal", "type stop", "type run", "type gc --delete",
		"Ctrl-C", "Ctrl-C and the answer stop", "Ctrl-C and the answer detach", "Ctrl-C and the answer continue", "SIGTERM", "SIGHUP", "kill -9",
		"no network", "the API answers 503", "the next 3 calls are done and not answered", "the queued resource is suspended", "preempted is", "a reboot of",
		"no answer from", "connections are refused by", "the command fails on", "nothing",
	},
	times:       []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second, 6 * time.Second},
	faults:      []time.Duration{2 * time.Second, 5 * time.Second},
	leases:      []time.Duration{20 * time.Second},
	ttls:        []time.Duration{0},
	keeps:       []string{"", "", "", "keep"},
	lasts:       []time.Duration{6 * time.Second, 2 * time.Second, 12 * time.Second},
	preemptions: []int{1, 0, 2},
	workers:     []int{1},
	fewest:      2,
	steps:       5,
}

// realOnGCE is realDraw for slices that Compute Engine makes. The stories end in time,
// because --ttl deletes the slices within minutes.
func realOnGCE() lifeDraw {
	from := realDraw
	from.onGCE, from.ttls = true, []time.Duration{2 * time.Minute}
	from.deeds = append(slices.Clone(from.deeds), "the host fails of", "the host fails of", "no slice is repaired")
	return from
}

// tellRealStory plays one story. It returns which rule the story breaks and how, or "" if
// it keeps all rules. starts counts the starts of the command on all workers.
func tellRealStory(t *testing.T, story lifeStory, kit *lifeKit) (why string, starts int) {
	dir, err := os.MkdirTemp(memoryDir(), "multihost-life-")
	if err != nil {
		return err.Error(), 0
	}
	defer os.RemoveAll(dir)
	w, err := newRealLifeWorld(story, dir, kit)
	if err != nil {
		return err.Error(), 0
	}
	why = w.tell()
	for _, f := range w.real.facts() {
		if f.kind == factStarted {
			starts++
		}
	}
	if why != "" {
		why += "\n\n" + w.report()
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
	return why, starts
}

func newRealLifeWorld(story lifeStory, dir string, kit *lifeKit) (*lifeWorld, error) {
	w := blankLifeWorld(story, dir, kit)
	w.endLimit, w.goLimit, w.quietLimit = 8*time.Minute, 4*time.Minute, 6*time.Minute
	backend, err := newRealWorkers("process", filepath.Join(dir, "workers"))
	if err != nil {
		return nil, err
	}
	w.real = &lifeReal{Backend: backend.Backend, world: w, conns: map[net.Conn]string{}}
	w.login, w.port, w.way = "ann", backend.Port(), overssh.Access{}.Way
	w.real.front = httptest.NewServer(http.HandlerFunc(w.real.serve))
	w.root = w.real.front.URL
	return w, w.start(sim.Config{Step: 200 * time.Millisecond, Workers: w.real})
}

// A lifeReal makes real workers for a story and watches them. The commands on the workers
// write down what they do.
type lifeReal struct {
	worker.Backend
	world *lifeWorld
	front *httptest.Server // the API as the workers reach it

	mu    sync.Mutex
	vms   []*lifeRealVM
	conns map[net.Conn]string // connections to workers; value: the command of multihost that made the connection
}

func (b *lifeReal) serve(w http.ResponseWriter, r *http.Request) {
	answer := b.world.call(r, byLease)
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// A lifeRealVM is one worker of a lifeReal.
type lifeRealVM struct {
	worker.Machine
	world *lifeWorld
	spec  worker.Spec
	id    string

	mu      sync.Mutex
	removed bool
	away    string
}

func (b *lifeReal) Start(ctx context.Context, spec worker.Spec) (worker.Machine, error) {
	vm := &lifeRealVM{world: b.world, spec: spec, id: fmt.Sprintf("%s/%s", spec.Node, spec.NodeUID[max(0, len(spec.NodeUID)-8):])}
	spec.Faults = nil // a fault belongs to the machine on which it was set
	spec.Env = append(slices.Clone(spec.Env), "LIFE_VM="+vm.id)
	var err error
	if vm.Machine, err = b.Backend.Start(ctx, spec); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.vms = append(b.vms, vm)
	b.mu.Unlock()
	return vm, nil
}

func (vm *lifeRealVM) Reboot(ctx context.Context) error {
	vm.world.note(lifeFact{kind: factGone, who: vm.world.rebooter(), worker: vm.id, text: "rebooted"})
	return vm.Machine.Reboot(ctx)
}

func (vm *lifeRealVM) SetFault(f worker.Fault) error {
	if f.Kind == worker.Reboot {
		vm.world.note(lifeFact{kind: factGone, who: byCloud, worker: vm.id, text: "rebooted"})
	}
	return vm.Machine.SetFault(f)
}

func (vm *lifeRealVM) goes() {
	vm.mu.Lock()
	known := vm.removed
	vm.removed = true
	vm.mu.Unlock()
	if !known {
		vm.world.note(lifeFact{kind: factGone, who: vm.world.remover(), worker: vm.id, text: "taken away"})
	}
}

func (vm *lifeRealVM) Stop(ctx context.Context) error {
	vm.goes()
	return vm.Machine.Stop(ctx)
}

func (vm *lifeRealVM) ShutDown(ctx context.Context, limit time.Duration) error {
	vm.goes()
	if orderly, ok := vm.Machine.(worker.Orderly); ok {
		return orderly.ShutDown(ctx, limit)
	}
	return vm.Machine.Stop(ctx)
}

// newest returns the newest worker of each slice.
func (b *lifeReal) newest() map[string]*lifeRealVM {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]*lifeRealVM{}
	for _, vm := range b.vms {
		all[vm.spec.Node] = vm
	}
	return all
}

// standing reports whether any worker exists.
func (b *lifeReal) standing() bool {
	for _, vm := range b.newest() {
		vm.mu.Lock()
		removed := vm.removed
		vm.mu.Unlock()
		if !removed {
			return true
		}
	}
	return false
}

// awayFor makes a worker unreachable for a time.
func (b *lifeReal) awayFor(n int, how string, d time.Duration) {
	vm := b.newest()[fmt.Sprintf("m-%d", n)]
	if vm == nil {
		return
	}
	set := func(away string, f worker.Fault) {
		vm.mu.Lock()
		vm.away = away
		vm.mu.Unlock()
		_ = vm.SetFault(f) // the worker may be gone
	}
	set(how, worker.Fault{Kind: worker.Unreachable, Mode: how})
	b.world.later(d, func() { set("", worker.Fault{Kind: worker.Clear, Name: string(worker.Unreachable)}) })
}

// fails lets the command on a worker fail.
func (b *lifeReal) fails(n int) {
	if vm := b.newest()[fmt.Sprintf("m-%d", n)]; vm != nil {
		_ = os.WriteFile(b.file("fail", vm.id), nil, 0o600) // without this file, nothing fails
		b.world.later(time.Second, func() { os.Remove(b.file("fail", vm.id)) })
	}
}

// file returns the path of a file that the commands know by name.
func (b *lifeReal) file(name, vm string) string {
	return filepath.Join(b.world.dir, name+"."+strings.ReplaceAll(vm, "/", "."))
}

// lifeCommand is the command on a real worker. It writes down when it starts and how it
// ends, and keeps a copy of each line that it prints.
const lifeCommand = `exec 2>/dev/null
dir='%s' vm=${LIFE_VM/\//.}
read -r owner <"$MULTIHOST_RUN_DIR/meta"
tell() { printf '%%s\n' "${EPOCHREALTIME/,/.} $1 $MULTIHOST_RUN $LIFE_VM $MULTIHOST_ATTEMPT $2 ${owner#*@}" >>"$dir/facts"; }
line() { printf '%%s\n' "$1" && printf '%%s\n' "$1" >>"$dir/log.$vm.$MULTIHOST_RUN.$MULTIHOST_ATTEMPT"; }
trap 'line "it is told to end"; tell stopped 143; exit 143' TERM
ends() { trap "" TERM; line "ends with $1"; tell ended "$1"; exit "$1"; }
tell started 0
line "$MULTIHOST_RUN attempt $MULTIHOST_ATTEMPT begins"
for ((n = 0; n < %d; n++)); do
  sleep 0.25 & wait $!
  [ ! -e "$dir/fail.$vm" ] || ends 9
  ((n %% 4)) || line "step $n"
  [ "$MULTIHOST_ATTEMPT ${vm%%%%.*}" != '%d m-1' ] || ((n < %d)) || ends 3
done
ends 0`

// fit adapts the job to real workers. The new limits leave enough time for a busy machine.
func (b *lifeReal) fit(o *job.JobOptions) {
	s := b.world.story
	looks := int(s.lasts / (250 * time.Millisecond))
	o.Run.Script = fmt.Sprintf(lifeCommand, b.world.dir, looks, s.fails, looks/2)
	o.Run.Platform, o.Run.KillStale = preflight.GCE, launch.FreeOrphans
	o.Run.Grace, o.Run.SyncTimeout, o.Run.StartLimit = 30*time.Second, 5*time.Minute, 5*time.Minute
	o.BootLimit = 5 * time.Minute
}

// facts returns what the commands on the workers have written down. A worker knows which
// machine started a command, but not who stopped it.
func (b *lifeReal) facts() (h lifeHistory) {
	file, err := os.Open(filepath.Join(b.world.dir, "facts"))
	if err != nil {
		return nil // none has started
	}
	defer file.Close()
	for in := bufio.NewScanner(file); in.Scan(); {
		var seconds float64
		var owner string
		f := lifeFact{}
		if n, _ := fmt.Sscan(in.Text(), &seconds, (*string)(&f.kind), &f.run, &f.worker, &f.attempt, &f.code, &owner); n < 7 {
			continue
		}
		f.at = time.Unix(0, int64(seconds*1e9)).Sub(b.world.begin)
		if f.kind == factStarted {
			f.who = "a runner of " + owner
		}
		h = append(h, f)
	}
	return h
}

// lastAttempt returns the newest attempt of a run, on the newest worker in each place. If a
// reboot has ended the attempt, its log counts as unread: the last lines may not be on the
// disk.
func (b *lifeReal) lastAttempt(run string) (all []lifeEnd) {
	facts, newest := b.world.facts(), 0
	vms := b.newest()
	for _, node := range sortedKeys(vms) {
		vm := vms[node]
		var r *lifeRun
		up := true
		for _, f := range facts {
			switch {
			case f.worker != vm.id:
			case f.kind == factStarted && f.run == run:
				r, up = &lifeRun{run: run, attempt: f.attempt, phase: "running"}, true
			case r == nil || r.phase != "running":
			case f.kind == factGone:
				r.phase, up = "lost", false
			case (f.kind == factEnded || f.kind == factStopped) && f.run == run:
				r.phase, r.code = "exited", f.code
			}
		}
		if r == nil {
			continue
		}
		r.log, _ = os.ReadFile(b.file("log", vm.id) + "." + run + "." + strconv.Itoa(r.attempt))
		newest = max(newest, r.attempt)
		vm.mu.Lock()
		all = append(all, lifeEnd{&lifeVM{spec: vm.spec, id: vm.id, removed: vm.removed, away: vm.away, up: up}, r})
		vm.mu.Unlock()
	}
	return slices.DeleteFunc(all, func(e lifeEnd) bool { return e.log.attempt != newest })
}

// dial connects a command of multihost to a worker.
func (b *lifeReal) dial(ctx context.Context, p *lifeProcess, addr string) (net.Conn, error) {
	if p.cutOff() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.conns[conn] = p.name
	b.mu.Unlock()
	if p.cutOff() {
		conn.Close()
	}
	return &lifeRealConn{conn, b}, nil
}

type lifeRealConn struct {
	net.Conn
	real *lifeReal
}

func (c *lifeRealConn) Close() error {
	c.real.mu.Lock()
	delete(c.real.conns, c.Conn)
	c.real.mu.Unlock()
	return c.Conn.Close()
}

// cut ends the connections of a command of multihost.
func (b *lifeReal) cut(who string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for conn, whose := range b.conns {
		if whose == who {
			conn.Close()
		}
	}
}

// awaitGone waits until nothing is left, but no longer than limit.
func (w *lifeWorld) awaitGone(limit time.Duration) {
	for until := time.Now().Add(limit); time.Now().Before(until) && w.story.goes(); <-time.After(500 * time.Millisecond) {
		if r := w.resource(); !r.billed && (!r.exists || r.state == "SUSPENDED" || r.state == "FAILED") {
			return
		}
	}
}

var (
	_ worker.Backend = (*lifeReal)(nil)
	_ worker.Orderly = (*lifeRealVM)(nil)
)
