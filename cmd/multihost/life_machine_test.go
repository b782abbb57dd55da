package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"multihost/internal/access"
	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gc"
	"multihost/internal/gcp"
	"multihost/internal/interrupt"
	"multihost/internal/job"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/sim"
	"multihost/internal/stage"
	"multihost/internal/workers"
)

// A lifeMachine is a machine on which commands of multihost are typed.
type lifeMachine struct {
	world *lifeWorld
	name  string
	dir   string // state directory
	disk  string // the small file system with dir; "": the disk is never full

	mu        sync.Mutex
	offline   bool // it has no network
	full      bool // its disk is full
	processes []*lifeProcess
	typed     int
}

func newLifeMachine(w *lifeWorld, name string) *lifeMachine {
	m := &lifeMachine{world: w, name: name, dir: filepath.Join(w.dir, name)}
	if w.real == nil && w.story.needs(fullDisk) {
		if m.disk = w.smallDisk(); m.disk != "" {
			m.dir = filepath.Join(m.disk, name)
		}
	}
	return m
}

// newest returns the newest command that has not ended, or nil if there is none.
func (m *lifeMachine) newest() *lifeProcess {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range slices.Backward(m.processes) {
		if !p.hasEnded() {
			return p
		}
	}
	return nil
}

func (m *lifeMachine) running() (all []*lifeProcess) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.processes {
		if !p.hasEnded() {
			all = append(all, p)
		}
	}
	return all
}

// setOffline cuts the machine off the network, or connects it again.
func (m *lifeMachine) setOffline(offline bool) {
	m.mu.Lock()
	m.offline = offline
	m.mu.Unlock()
	if !offline {
		return
	}
	for _, p := range m.running() {
		m.world.cut(p.name, true)
	}
}

// switchOff acts like kill -9 on all commands of the machine. Whatever they still do has no
// effect, and their files stay as they are now.
func (m *lifeMachine) switchOff() {
	all := m.running()
	if len(all) == 0 {
		return
	}
	for _, p := range all {
		p.dead.Store(true)
		m.world.note(lifeFact{kind: factKilled, who: p.name})
		m.world.cut(p.name, false)
	}
	kept := filepath.Join(m.world.dir, m.name+".kept")
	for range 20 { // a file may disappear during the copy
		if err := os.CopyFS(kept, os.DirFS(m.dir)); err == nil {
			break
		} else if !os.IsNotExist(err) {
			panic(err)
		}
		if err := os.RemoveAll(kept); err != nil {
			panic(err)
		}
	}
	for _, p := range all {
		p.end()
		<-p.done
	}
	if err := os.RemoveAll(m.dir); err != nil {
		panic(err)
	}
	if m.disk == "" {
		if err := os.Rename(kept, m.dir); err != nil && !os.IsNotExist(err) {
			panic(err)
		}
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fill(false) // the files fit on the disk, but the copy needs more room for a moment
	if err := errors.Join(os.CopyFS(m.dir, os.DirFS(kept)), os.RemoveAll(kept)); err != nil {
		panic(err)
	}
	m.fill(m.full)
}

// A lifeProcess is one command of multihost.
type lifeProcess struct {
	machine   *lifeMachine
	name      string // for example: job 2 of laptop
	verb      string
	run       string
	asks      bool            // it has a terminal
	signalled interrupt.Watch // what signals do
	signals   chan os.Signal
	keys      chan stage.Answer // the person's answers
	end       func()            // ends the command as kill -9 would
	done      chan struct{}
	dead      atomic.Bool

	mu      sync.Mutex // guards the fields below
	said    strings.Builder
	heard   time.Time     // when the command last printed something
	owns    bool          // the command has started or taken over the run
	follows bool          // the command has followed the run
	attempt event.Attempt // the attempt that it follows
	phase   string
	last    string // the last text that the command printed
	keeps   bool   // the command has said how long it keeps slices that have failed
	deps    *deps
	status  int
}

func (p *lifeProcess) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// cutOff reports whether the command is cut off: nothing reaches it, and nothing from it
// arrives.
func (p *lifeProcess) cutOff() bool {
	p.machine.mu.Lock()
	defer p.machine.mu.Unlock()
	return p.machine.offline || p.dead.Load()
}

// start starts a command of multihost, as a person would type it.
func (m *lifeMachine) start(verb string, asks bool) *lifeProcess {
	m.mu.Lock()
	m.typed++
	p := &lifeProcess{machine: m, name: fmt.Sprintf("%s %d of %s", verb, m.typed, m.name), verb: verb, run: "m", asks: asks,
		signals: make(chan os.Signal, 4), keys: make(chan stage.Answer, 4), done: make(chan struct{}), heard: time.Now()}
	p.signalled.Leave = make(chan struct{})
	if verb == "run" || verb == "leave" {
		p.run = "r"
	}
	m.processes = append(m.processes, p)
	m.mu.Unlock()
	m.world.note(lifeFact{kind: factTyped, who: p.name, verb: verb, run: p.run})
	parent, cancel := context.WithCancelCause(context.Background())
	var once sync.Once
	p.end = func() {
		once.Do(func() {
			cancel(errStoryOver)
			select {
			case <-p.signalled.Leave:
			default:
				close(p.signalled.Leave)
			}
		})
	}
	p.deps = p.makeDeps()
	if asks {
		p.deps.CtrlC = stage.Ask
		p.signalled.AskWith(p.ask, func() stage.Answer { return p.deps.StatusOf().Second() })
	}
	go func() {
		defer close(p.done)
		ctx, stop := p.signalled.Obey(parent, p.signals, func() { p.dead.Store(true); p.end() })
		err := p.do(ctx)
		stop()
		cancel(nil)
		p.status = exitCode(err)
		p.hear(fmt.Sprintf("ends with %d: %v; %s", p.status, err, hintOf(err)))
		if !p.dead.Load() {
			m.world.returned(p)
		}
	}()
	return p
}

// ask waits for the person's answer.
func (p *lifeProcess) ask(ctx context.Context) (stage.Answer, bool) {
	stand := p.deps.StatusOf()
	if stand.Running == "" && stand.Resource == "" {
		return "", false
	}
	select {
	case answer := <-p.keys:
		if answer == stage.Stop {
			p.machine.world.note(lifeFact{kind: factChosen, who: p.name, text: "answers stop"})
		}
		return answer, true
	case <-ctx.Done():
		return stage.Continue, true
	}
}

// signal sends a signal and notes that. If the person wants to end the run with the signal,
// it also notes that choice.
func (p *lifeProcess) signal(sig os.Signal) {
	p.mu.Lock()
	owns := p.owns
	p.mu.Unlock()
	stand := p.deps.StatusOf()
	asked := p.asks && sig == syscall.SIGINT && (stand.Running != "" || stand.Resource != "")
	if owns && !asked && sig != syscall.SIGHUP {
		p.machine.world.note(lifeFact{kind: factChosen, who: p.name, text: sig.String()})
	}
	p.machine.world.note(lifeFact{kind: factSignal, who: p.name, text: sig.String()})
	select {
	case p.signals <- sig:
	default:
	}
}

func (p *lifeProcess) makeDeps() *deps {
	w := p.machine.world
	sink := event.SinkFunc(p.emit)
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, TPUEndpoint: "http://cloud/",
		ComputeEndpoint: "http://cloud/compute/v1/", Transport: &lifeWay{w, p}, Sink: sink, LoginWait: access.LoginWait})
	whole := w.story.provider().open(cloud, w.root)
	source, carried := provision.Provider(lifeQueue{whole}), noAgent()
	if w.real != nil {
		source, carried = whole, agents()
	}
	typed := &stage.Invocation{Sink: sink, Clock: gcp.SystemClock, Leave: p.signalled.Leave}
	d := &deps{
		Reach: &workers.Reach{Invocation: typed, Place: provision.Place{Project: sim.DefaultProject, Zone: sim.DefaultZone}, Cloud: source, Access: overssh.Access{Login: w.login, Identity: w.identity, KnownHosts: filepath.Join(p.machine.dir, "known_hosts"), Port: w.port, Way: w.way,
			ConnectTimeout: 15 * time.Second, RetryFor: time.Minute, MaxDials: 8,
			Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return w.dial(ctx, p, addr) }}},
		Keeper:   &record.Keeper{Of: typed, StateDir: p.machine.dir, Owner: "ann@" + p.machine.name, ExitStatus: exitCode},
		Networks: network.New(cloud, qr.LifeOf), Roots: gcp.Roots{TPU: w.root}, Agents: carried,
	}
	overSSH(d, nil)
	return d
}

func (p *lifeProcess) do(ctx context.Context) error {
	w := p.machine.world
	o := w.story.job(w)
	switch p.verb {
	case "job", "detach":
		o.Run.Detach = p.verb == "detach"
		return outcome(job.Job(ctx, jobDeps(p.deps), o))
	case "run", "leave":
		r := o.Run
		r.Run, r.Prefix, r.Detach = "r", "m", p.verb == "leave"
		return outcome(job.Run(ctx, jobDeps(p.deps), r))
	case "attach":
		return outcome(runs.Attach(ctx, runsDeps(p.deps), "m", runs.AttachOptions{Grace: o.Run.Grace, Patience: o.Run.Patience}))
	case "stop":
		return interruptible(ctx, runs.Stop(ctx, runsDeps(p.deps), "m", runs.StopOptions{Grace: o.Run.Grace}))
	case "gc":
		g := gc.GCOptions{User: "ann", Look: true}
		left, err := gc.Leftovers(ctx, gcDeps(p.deps), g)
		if err == nil {
			err = gc.Collect(ctx, gcDeps(p.deps), g, left)
		}
		return interruptible(ctx, err)
	}
	panic("no such command: " + p.verb)
}

// job returns the options of the story's job.
func (s lifeStory) job(w *lifeWorld) job.JobOptions {
	o := job.JobOptions{
		Request: s.provider().asks(s),
		Run: attempt.Options{Prefix: "m", Run: "m", Dir: filepath.Join(w.dir, "src"), Script: "train", Preflight: "apply", NUMA: preflight.NUMAOff,
			FailFast: true, Grace: 5 * time.Second, SyncTimeout: time.Minute, StartLimit: 2 * time.Minute,
			Patience: follow.Patience{Lost: lifeLost, Log: 5 * time.Minute}},
		Budget:         job.Budget{Restarts: s.restarts, Preemptions: s.preemptions},
		ProvisionLimit: 20 * time.Minute, BootLimit: 3 * time.Minute,
		Lease: s.lease, TTL: s.ttl, Keep: s.keep == "keep", KeepOnFailure: strings.HasPrefix(s.keep, "on failure"),
	}
	if s.keep == "on failure 10m" {
		o.KeepFor = 10 * time.Minute
	}
	o.Request.Mark("m", "ann")
	o.Request.MarkJob("m")
	o.Request.Metadata = access.WithKey(o.Request.Metadata, w.login, w.identity.PublicKey())
	if w.real != nil {
		w.real.fit(&o)
	}
	return o
}

// lifeLost is --lost-timeout of the stories. It is longer than --boot-timeout. So the test
// finds a take-over that wrongly waits only for --boot-timeout.
const lifeLost = 8 * time.Minute

// emit receives the events of the command.
func (p *lifeProcess) emit(e event.Event) {
	switch e := e.(type) {
	case event.Note:
		if e.Level != event.Debug {
			p.hear(string(e.Level) + ": " + e.Text + " (" + e.Hint + ")")
		}
	case event.Phase:
		p.mu.Lock()
		p.speaks()
		p.phase = ""
		if e.State == event.Started {
			p.phase = e.Name
		}
		p.follows = p.follows || e.Name == "run"
		if e.Name == "run" && e.State == event.Started && (p.verb == "job" || p.verb == "run") {
			p.owns = true
		}
		p.mu.Unlock()
		p.hear(fmt.Sprintf("phase %s %s %s", e.Name, e.State, e.Detail))
	case event.Attempt:
		p.mu.Lock()
		p.attempt = e
		p.mu.Unlock()
	case event.Summary:
		p.hear("summary: " + e.Text + " (" + e.Next + ")")
	case event.State:
		p.hear("state: " + e.Name + " " + e.State)
	case event.AttemptEnd:
		p.hear(fmt.Sprintf("attempt %d ends: %s, %s; %s", e.Attempt, e.Cause, e.Why, e.Next))
	case event.Progress:
		p.mu.Lock()
		p.speaks()
		p.mu.Unlock()
	case event.Result:
		p.hear(e.Text)
	}
}

func (p *lifeProcess) hear(text string) {
	if p.dead.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.speaks()
	p.last = text
	p.keeps = strings.Contains(text, "keeping the failed slices") || p.keeps && strings.Contains(text, "the API has not answered")
	fmt.Fprintf(&p.said, "%10s  %s\n", time.Since(p.machine.world.begin).Round(100*time.Millisecond), text)
}

// speaks notes that the command of multihost prints something, and how long it was silent
// before. It may be silent while the user's command runs, or after it has said until when
// it keeps slices. The caller holds p.mu.
func (p *lifeProcess) speaks() {
	quiet := time.Since(p.heard)
	if quiet > p.machine.world.quietLimit && p.phase != "run" && !p.keeps {
		p.machine.world.note(lifeFact{kind: factSilent, who: p.name, text: fmt.Sprintf("nothing was said for %s after %q", quiet, p.last)})
	}
	p.heard = time.Now()
}

// returned notes the end of a command of multihost, and the state of the run at that time.
func (w *lifeWorld) returned(p *lifeProcess) {
	res := w.resource()
	p.mu.Lock()
	said, follows, followed := p.said.String(), p.follows, event.Attempt{}
	if p.verb == "attach" { // it ends with the attempt that it follows; the job may have begun another one
		followed = p.attempt
	}
	p.mu.Unlock()
	f := lifeFact{kind: factReturned, who: p.name, verb: p.verb, run: p.run, code: p.status, exists: res.exists && res.state != "DELETING", billed: res.billed && res.state != "DELETING", said: said}
	last := w.lastAttempt(p.run, followed.Attempt)
	for _, r := range last {
		f.attempt = r.log.attempt
		if r.log.alive() {
			f.codes, f.lives = append(f.codes, unended), true
			continue
		}
		code := r.log.code
		if r.log.phase == "lost" {
			code = 255
		}
		f.codes = append(f.codes, code)
	}
	if follows {
		f.partial = p.machine.partial(cmp.Or(followed.LogDir, p.machine.logDir(p.run)), slices.DeleteFunc(slices.Clone(last), func(e lifeEnd) bool { return p.status != 0 && !e.vm.readable() }))
	}
	w.note(f)
}

// A lifeEnd is what a worker knows of the last attempt.
type lifeEnd struct {
	vm  *lifeVM
	log *lifeRun
}

// lastAttempt returns the newest attempt of a run. For each place it takes the newest worker,
// even if that is gone. If upTo is not 0, later attempts do not count, except on real
// workers.
func (w *lifeWorld) lastAttempt(run string, upTo int) (all []lifeEnd) {
	if w.real != nil {
		return w.real.lastAttempt(run)
	}
	w.mu.Lock()
	fleet := make([]*lifeVM, 0, len(w.fleet))
	for _, vm := range w.fleet {
		fleet = append(fleet, vm)
	}
	w.mu.Unlock()
	slices.SortFunc(fleet, func(a, b *lifeVM) int { return strings.Compare(a.id, b.id) })
	newest := 0
	for _, vm := range fleet {
		if r := vm.newest(run, upTo); r != nil && r.phase != "starting" {
			newest = max(newest, r.attempt)
			all = append(all, lifeEnd{vm, r})
		}
	}
	return slices.DeleteFunc(all, func(e lifeEnd) bool { return e.log.attempt != newest })
}

// saidBy returns what a command of multihost has said so far.
func (w *lifeWorld) saidBy(who string) string {
	for _, m := range w.machines {
		m.mu.Lock()
		all := slices.Clone(m.processes)
		m.mu.Unlock()
		for _, p := range all {
			if p.name == who {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.said.String()
			}
		}
	}
	return ""
}

// onlyThere names the workers whose log of the last attempt is not whole on any machine.
func (w *lifeWorld) onlyThere(run string) (attempt int, names []string) {
	last := w.lastAttempt(run, 0)
	if len(last) > 0 {
		attempt = last[0].log.attempt
	}
	last = slices.DeleteFunc(last, func(e lifeEnd) bool { return e.vm.gone() })
	for i, m := range w.machines {
		missing := m.partial(m.logDir(run), last)
		if i == 0 {
			names = missing
		}
		if len(missing) == 0 {
			return attempt, nil
		}
	}
	return attempt, names
}

// logDir returns this machine's directory for the logs of the last attempt of a run.
func (m *lifeMachine) logDir(run string) string {
	var record struct {
		LogDir string `json:"log_dir"`
	}
	data, err := os.ReadFile(filepath.Join(m.dir, "runs", run, "run.json"))
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err != nil {
		return filepath.Join(m.dir, "runs", run)
	}
	return record.LogDir
}

// partial names the workers whose log is not whole in the directory dir of this machine.
func (m *lifeMachine) partial(dir string, last []lifeEnd) (names []string) {
	for _, e := range last {
		slice, _ := strconv.Atoi(e.vm.spec.Node[strings.LastIndexByte(e.vm.spec.Node, '-')+1:])
		have, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("output_slice_%04d_worker_%04d.txt", slice, e.vm.spec.Index)))
		if string(have) != string(e.log.log) {
			names = append(names, fmt.Sprintf("%s (%d of %d bytes)", e.vm.id, len(have), len(e.log.log)))
		}
	}
	return names
}
