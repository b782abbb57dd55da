package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/shlex"
	"golang.org/x/crypto/ssh"

	"multihost/internal/preflight"
	"multihost/internal/sim/worker"
)

// quickWorkers makes workers that speak SSH and answer as the worker scripts do, but run
// none. A thousand attempts cost as much as a few with real shells. The tests of the
// scripts show that the answers are right.
type quickWorkers struct {
	port     int
	reserved net.Listener // keeps the port from other fleets, of this process and of others

	mu    sync.Mutex
	next  int
	vms   map[string]*quickVM // the newest worker in each place, by node and index
	dead  bool                // the runner counts as dead: none of its messages arrives
	until func(vm *quickVM) <-chan struct{}
	look  func(vm *quickVM, list func()) // calls list, which answers with what the worker knows; nil: list is called directly
}

// newQuickWorkers takes a port of 127.0.0.0/8 for the workers, until Close.
func newQuickWorkers() (*quickWorkers, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &quickWorkers{port: l.Addr().(*net.TCPAddr).Port, reserved: l, vms: map[string]*quickVM{}}, nil
}

func (b *quickWorkers) Port() int    { return b.port }
func (b *quickWorkers) Close() error { return b.reserved.Close() }

func (b *quickWorkers) Start(_ context.Context, spec worker.Spec) (worker.Machine, error) {
	b.mu.Lock()
	b.next++
	addr := fmt.Sprintf("127.91.%d.%d", b.next/250, b.next%250+1)
	b.mu.Unlock()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, err
	}
	vm := &quickVM{fleet: b, spec: spec, addr: addr, key: signer, runs: map[string]*quickRun{}, synced: map[string]string{}}
	if err := vm.boot(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.vms[spec.Node+"/"+strconv.Itoa(spec.Index)] = vm
	b.mu.Unlock()
	tellPlace(spec)
	return vm, nil
}

func (b *quickWorkers) all() []*quickVM {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*quickVM
	for _, vm := range b.vms {
		all = append(all, vm)
	}
	return all
}

func (b *quickWorkers) machines(node string) []machine {
	var all []machine
	for _, vm := range b.all() {
		if node == "" || vm.spec.Node == node {
			all = append(all, vm)
		}
	}
	return all
}

// cutOff(true) cuts the runner off from all workers. After cutOff(false), the next runner
// can reach them.
func (b *quickWorkers) cutOff(dead bool) {
	b.mu.Lock()
	b.dead = dead
	b.mu.Unlock()
	for _, vm := range b.all() {
		vm.cut()
	}
}

func (b *quickWorkers) isDead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dead
}

// A quickVM is one worker.
type quickVM struct {
	fleet *quickWorkers
	spec  worker.Spec
	addr  string
	key   ssh.Signer

	mu       sync.Mutex // guards the fields below
	listener net.Listener
	conns    map[net.Conn]bool
	down     chan struct{} // closed when the worker goes down
	fallen   int           // how often the worker has gone down
	silent   bool          // the worker answers nobody until its next boot
	unread   chan struct{} // until this channel is closed, nobody can read the end of a log; nil: everybody can
	runs     map[string]*quickRun
	synced   map[string]string // digest of the code, by run
	wg       sync.WaitGroup
}

// A quickRun is one attempt on one worker.
type quickRun struct {
	run, attempt, owner, command string
	armed                        time.Time
	phase                        string
	code                         int
	reason                       string
	over                         chan struct{} // closed at the end of the attempt
}

func (vm *quickVM) boot() error {
	l, err := net.Listen("tcp", net.JoinHostPort(vm.addr, strconv.Itoa(vm.fleet.port)))
	if err != nil {
		return err
	}
	vm.mu.Lock()
	vm.listener, vm.conns, vm.down, vm.silent = l, map[net.Conn]bool{}, make(chan struct{}), false
	vm.mu.Unlock()
	vm.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			vm.wg.Go(func() { vm.serve(conn) })
		}
	})
	return nil
}

// goDown ends everything on the machine. Nobody sees how a running command ends.
func (vm *quickVM) goDown() {
	vm.mu.Lock()
	if vm.listener != nil {
		vm.listener.Close()
		close(vm.down)
		vm.fallen++
		vm.listener = nil
	}
	for _, r := range vm.runs {
		if r.phase == "running" || r.phase == "starting" {
			r.phase = "lost"
			close(r.over)
		}
	}
	vm.mu.Unlock()
	vm.cut()
	vm.wg.Wait()
}

func (vm *quickVM) cut() {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	for conn := range vm.conns {
		conn.Close()
	}
}

func (vm *quickVM) isUp() bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.listener != nil
}

func (vm *quickVM) downs() int {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.fallen
}

func (vm *quickVM) Addr() string     { return vm.addr }
func (vm *quickVM) Hostname() string { return vm.spec.Hostname }

func (vm *quickVM) HostKeys() map[string]string {
	return map[string]string{vm.key.PublicKey().Type(): base64.StdEncoding.EncodeToString(vm.key.PublicKey().Marshal())}
}

func (vm *quickVM) Reboot(context.Context) error {
	vm.goDown()
	return vm.boot()
}

func (vm *quickVM) Stop(context.Context) error {
	vm.goDown()
	return nil
}

func (vm *quickVM) SetFault(f worker.Fault) error {
	switch f.Kind {
	case worker.Unreachable:
		vm.mu.Lock()
		vm.silent = true
		vm.mu.Unlock()
		vm.cut()
		return nil
	case worker.Reboot:
		if f.Duration > 0 { // the machine stays down until somebody boots it
			vm.goDown()
			return nil
		}
		return vm.Reboot(context.Background())
	}
	return fmt.Errorf("quick workers have no fault %s", f.Kind)
}

func (vm *quickVM) serve(conn net.Conn) {
	defer conn.Close()
	vm.mu.Lock()
	refuse := vm.silent || vm.listener == nil || vm.fleet.isDead()
	if !refuse {
		vm.conns[conn] = true
	}
	vm.mu.Unlock()
	if refuse {
		return
	}
	defer func() {
		vm.mu.Lock()
		delete(vm.conns, conn)
		vm.mu.Unlock()
	}()
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
	cfg.AddHostKey(vm.key)
	sc, chans, reqs, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		return
	}
	defer sc.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { ssh.DiscardRequests(reqs) })
	for nc := range chans {
		if nc.ChannelType() != "session" {
			nc.Reject(ssh.UnknownChannelType, "only sessions")
			continue
		}
		ch, reqs, err := nc.Accept()
		if err != nil {
			return
		}
		wg.Go(func() { vm.session(ch, reqs) })
	}
}

func (vm *quickVM) session(ch ssh.Channel, reqs <-chan *ssh.Request) {
	defer ch.Close()
	for req := range reqs {
		if req.Type != "exec" {
			req.Reply(false, nil)
			continue
		}
		req.Reply(true, nil)
		go ssh.DiscardRequests(reqs) // ends with the channel
		line := string(req.Payload[4:])
		code := vm.exec(line, ch)
		ch.CloseWrite()
		ch.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, uint32(code)))
		return
	}
}

// exec answers one command line.
func (vm *quickVM) exec(line string, ch ssh.Channel) (code int) {
	words, err := shlex.Split(line)
	if err != nil || len(words) == 0 {
		return 127
	}
	switch {
	case words[0] == "true":
		return 0
	case strings.Contains(line, "multihost-clock:"):
		in := bufio.NewScanner(ch)
		for in.Scan() {
			fmt.Fprintf(ch, "multihost-clock:%d\n", time.Now().UnixNano())
		}
		return 0
	}
	at := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "multihost-") })
	if at < 0 || len(words) < at+4 {
		fmt.Fprintf(ch.Stderr(), "quick worker: %.80q\n", line)
		return 127
	}
	size, _ := strconv.Atoi(words[at+1])
	in := bufio.NewReader(ch)
	say := func(w io.Writer, format string, args ...any) {
		fmt.Fprintf(w, words[at+3]+" "+format+"\n", args...)
	}
	op, args := strings.TrimPrefix(words[at], "multihost-"), words[at+4:]
	switch op {
	case "sync":
		vm.sync(args[1:])
		say(ch, "same")
		return 0
	case "preflight":
		for _, s := range preflight.Settings() {
			say(ch, "result %s\tx\tx\tx\tok\tno\t", s.Name)
		}
		say(ch, "end")
		return 0
	}
	if _, err := io.CopyN(io.Discard, in, int64(size)); err != nil {
		return 74
	}
	switch op {
	case "list":
		list := func() { vm.list(func(format string, args ...any) { say(ch, format, args...) }) }
		if vm.fleet.look == nil {
			list()
		} else {
			vm.fleet.look(vm, list)
		}
	case "free":
		say(ch, "devices 4")
	case "arm":
		vm.arm(args, in, func(format string, args ...any) { say(ch, format, args...) })
	case "follow":
		return vm.follow(args, ch, say)
	case "stop":
		vm.stop(args, func(format string, args ...any) { say(ch, format, args...) })
	case "status", "release":
		vm.mu.Lock()
		vm.tell(args[0]+"/"+args[1], args[0], args[1], func(format string, args ...any) { say(ch, format, args...) })
		vm.mu.Unlock()
	default:
		say(ch, "error quick workers know no %s", op)
	}
	return 0
}

// sync stores the digest of a run's code. The request contains the code.
func (vm *quickVM) sync(args []string) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if len(args) >= 2 {
		vm.synced[args[0]] = args[1]
	}
}

type sayer func(format string, args ...any)

// tell answers with what the worker knows of a run. The caller holds vm.mu.
func (vm *quickVM) tell(key, run, attempt string, say sayer) {
	r := vm.runs[key]
	say("run %s %s", run, attempt)
	if r == nil {
		say("phase unknown")
		return
	}
	say("phase %s", r.phase)
	say("supervisor 11 1 %d", r.armed.UnixNano())
	if r.phase != "starting" {
		say("started 12 %d", r.armed.UnixNano())
	}
	switch r.phase {
	case "exited":
		say("exit code %d", r.code)
		say("exit end %d", time.Now().UnixNano())
		if r.reason != "" {
			say("exit signal TERM")
			say("exit reason %s", r.reason)
		}
	case "lost":
		say("exit code 255")
		say("exit lost 1")
	}
}

func (vm *quickVM) list(say sayer) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	say("now %d", time.Now().UnixNano())
	for key, r := range vm.runs {
		vm.tell(key, r.run, r.attempt, say)
		say("mine 1")
		say("login quick")
		say("owner %s", r.owner)
		say("command %s", r.command)
	}
}

func (vm *quickVM) arm(args []string, in *bufio.Reader, say sayer) {
	r := &quickRun{run: args[0], attempt: args[1], armed: time.Now(), phase: "starting", over: make(chan struct{})}
	for _, text := range args[2:] {
		size, _ := strconv.Atoi(text)
		file := make([]byte, size)
		if _, err := io.ReadFull(in, file); err != nil {
			return
		}
		if meta, ok := strings.CutPrefix(string(file), "owner="); ok {
			r.owner, r.command, _ = strings.Cut(strings.TrimSpace(meta), "\ncommand=")
		}
	}
	key := r.run + "/" + r.attempt
	vm.mu.Lock()
	for at, other := range vm.runs {
		if other.phase == "running" || other.phase == "starting" {
			say("busy %d", time.Now().UnixNano())
			vm.tell(at, other.run, other.attempt, say)
			say("login quick")
			say("owner %s", other.owner)
			say("command %s", other.command)
			vm.mu.Unlock()
			return
		}
	}
	if vm.runs[key] != nil {
		vm.mu.Unlock()
		say("already")
		return
	}
	vm.runs[key] = r
	code := vm.synced[r.run]
	vm.mu.Unlock()
	say("synced %s ann@laptop", code)
	say("armed 11 %d", r.armed.UnixNano())
	order, err := in.ReadString('\n')
	for err == nil && order == "clock\n" {
		say("clock %d", time.Now().UnixNano())
		order, err = in.ReadString('\n')
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if word, _, _ := strings.Cut(strings.TrimSpace(order), " "); err != nil || word != "go" || r.phase != "starting" {
		if r.phase == "starting" {
			r.phase = "aborted"
			delete(vm.runs, key)
			close(r.over)
		}
		say("aborted")
		return
	}
	r.phase = "running"
	say("started 12 %d", time.Now().UnixNano())
	end := vm.fleet.until(vm)
	down := vm.down
	vm.wg.Go(func() {
		select {
		case <-end:
		case <-down:
		case <-r.over:
			return
		}
		vm.end(r, 0, "")
	})
}

// end ends a command. If the machine goes down with it, nothing records the end.
func (vm *quickVM) end(r *quickRun, code int, reason string) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if r.phase == "running" && vm.listener != nil {
		r.phase, r.code, r.reason = "exited", code, reason
		close(r.over)
	}
}

func (vm *quickVM) follow(args []string, ch ssh.Channel, say func(w io.Writer, format string, args ...any)) int {
	key := args[0] + "/" + args[1]
	vm.mu.Lock()
	r, down := vm.runs[key], vm.down
	vm.mu.Unlock()
	if r == nil {
		say(ch, "unknown")
		return 0
	}
	say(ch, "stream 0")
	gone := make(chan struct{})
	go func() { // ends with the channel
		io.Copy(io.Discard, ch)
		close(gone)
	}()
	for _, end := range []func() <-chan struct{}{func() <-chan struct{} { return r.over }, vm.readable} {
		select {
		case <-end():
		case <-down:
			return 1
		case <-gone:
			return 0
		}
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.tell(key, args[0], args[1], func(format string, args ...any) { say(ch.Stderr(), format, args...) })
	say(ch.Stderr(), "exit size 0")
	say(ch.Stderr(), "end")
	return 0
}

// readable returns a channel that is closed when the ends of logs can be read.
func (vm *quickVM) readable() <-chan struct{} {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.unread == nil {
		return atOnce
	}
	return vm.unread
}

// fails ends the command on the machine as if the command had failed.
func (vm *quickVM) fails(code int) {
	vm.mu.Lock()
	runs := slices.Collect(maps.Values(vm.runs))
	vm.mu.Unlock()
	for _, r := range runs {
		vm.end(r, code, "")
	}
}

func (vm *quickVM) stop(args []string, say sayer) {
	key := args[0] + "/" + args[1]
	vm.mu.Lock()
	r := vm.runs[key]
	vm.mu.Unlock()
	if r != nil && len(args) > 3 && args[3] != "" {
		vm.end(r, 143, args[3])
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	say("counts 0 0")
	vm.tell(key, args[0], args[1], say)
}

var errPhaseNeverCame = errors.New("the phase never came")
