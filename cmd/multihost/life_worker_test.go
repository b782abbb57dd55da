package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
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

// A lifeVM is a worker of a story. It speaks SSH over memory and answers as the worker
// scripts do, but runs none. Its disk survives a reboot.
type lifeVM struct {
	world *lifeWorld
	spec  worker.Spec
	addr  string
	id    string // slice, worker and the id of the slice

	mu      sync.Mutex // guards the fields below
	key     ssh.Signer
	up      bool
	removed bool          // the worker was taken away for good
	down    chan struct{} // closed when the worker goes down
	conns   map[*lifePipe]string
	away    string        // why it cannot be reached: "refuse", "hang" or ""
	unread  chan struct{} // until this channel is closed, nobody can read the end of a log; nil: everybody can
	runs    map[string]*lifeRun
	synced  map[string]string // digest of the code, by run
	kit     []string          // the scripts that the worker keeps: hash and file name of each, as sha256sum prints them
	lease   lifeLease
	wg      sync.WaitGroup
}

// A lifeRun is one attempt on one worker.
type lifeRun struct {
	run, owner, command string
	slices              string // the number of slices of the run
	attempt             int
	armed               time.Time
	phase               string
	code                int
	reason              string
	end                 time.Time
	log                 []byte
	padding             string // added to each line
	seen                bool
	verdict             string
	stopped             string        // time and reason of a stop
	more                chan struct{} // closed when the log has grown or the command has ended
	over                chan struct{} // closed at the end of the attempt
}

func (r *lifeRun) alive() bool { return r.phase == "running" || r.phase == "starting" }

// print adds a line to the log. The caller holds vm.mu.
func (r *lifeRun) print(format string, args ...any) {
	r.log = fmt.Appendf(r.log, format+r.padding+"\n", args...)
	close(r.more)
	r.more = make(chan struct{})
}

// place names the worker's place in the run.
func (vm *lifeVM) place() string { return fmt.Sprintf("%s.%d", vm.spec.Node, vm.spec.Index) }

func (vm *lifeVM) Addr() string     { return vm.addr }
func (vm *lifeVM) Hostname() string { return vm.spec.Hostname }

func (vm *lifeVM) HostKeys() map[string]string {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return map[string]string{vm.key.PublicKey().Type(): base64.StdEncoding.EncodeToString(vm.key.PublicKey().Marshal())}
}

func (vm *lifeVM) gone() bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.removed
}

// readable reports whether somebody can read the files of the machine.
func (vm *lifeVM) readable() bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.up && !vm.removed && vm.away == ""
}

// boot boots the machine. It does nothing if the machine is up already, because two reboots
// may overlap, or if the machine is gone for good.
func (vm *lifeVM) boot() {
	terms := metadataOf(vm.spec, "attributes/multihost-lease") // do not hold the lock here: the API locks first its own state, then a worker
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.up || vm.removed || vm.world.ctx.Err() != nil {
		return
	}
	vm.up, vm.down, vm.conns = true, make(chan struct{}), map[*lifePipe]string{}
	vm.lease.boot(vm, terms)
}

// goDown ends everything on the machine. Nobody sees how a running command ends.
func (vm *lifeVM) goDown() {
	vm.mu.Lock()
	if !vm.up {
		vm.mu.Unlock()
		return
	}
	vm.up = false
	close(vm.down)
	for _, r := range vm.runs {
		if r.alive() {
			r.phase, r.end = "lost", time.Now()
			close(r.over)
		}
	}
	for conn := range vm.conns {
		conn.Close()
	}
	vm.mu.Unlock()
	vm.wg.Wait()
}

// rebootTime is how long a reboot takes a machine away.
const rebootTime = 40 * time.Second

func (vm *lifeVM) Reboot(ctx context.Context) error {
	vm.world.note(lifeFact{kind: factGone, who: vm.world.rebooter(), worker: vm.id, text: "rebooted"})
	vm.goDown()
	select {
	case <-time.After(rebootTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	vm.boot()
	return nil
}

func (vm *lifeVM) Stop(context.Context) error {
	vm.world.note(lifeFact{kind: factGone, who: vm.world.remover(), worker: vm.id, text: "taken away"})
	vm.mu.Lock()
	vm.removed = true
	vm.mu.Unlock()
	vm.goDown()
	return nil
}

func (vm *lifeVM) SetFault(f worker.Fault) error {
	if f.Kind == worker.Reboot && f.Duration > 0 { // the machine stays down until somebody boots it
		vm.world.note(lifeFact{kind: factGone, who: byCloud, worker: vm.id, text: "its host has failed"})
		vm.goDown()
		return nil
	}
	if f.Kind == worker.Reboot {
		vm.world.back.Go(func() { _ = vm.Reboot(vm.world.ctx) })
		return nil
	}
	return fmt.Errorf("workers of a story have no fault %s", f.Kind)
}

// cut ends the connections of one command of multihost, or of all commands if who is "".
func (vm *lifeVM) cut(who string, silently bool) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	for conn, whose := range vm.conns {
		switch {
		case who != "" && whose != who:
		case silently:
			conn.silence()
		default:
			conn.Close()
		}
	}
}

// accept serves a connection of a command of multihost.
func (vm *lifeVM) accept(who string) (net.Conn, bool) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if !vm.up {
		return nil, false
	}
	near, far := newLifePipe(vm.addr)
	vm.conns[far] = who
	vm.wg.Go(func() {
		defer func() {
			far.Close()
			vm.mu.Lock()
			delete(vm.conns, far)
			vm.mu.Unlock()
		}()
		vm.serve(far, who)
	})
	return near, true
}

func (vm *lifeVM) serve(conn net.Conn, who string) {
	vm.mu.Lock()
	key := vm.key
	vm.mu.Unlock()
	cfg := &ssh.ServerConfig{NoClientAuth: true}
	cfg.KeyExchanges = []string{ssh.KeyExchangeECDHP256} // the fastest key exchange
	cfg.AddHostKey(key)
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
		wg.Go(func() { vm.session(ch, reqs, who) })
	}
}

func (vm *lifeVM) session(ch ssh.Channel, reqs <-chan *ssh.Request, who string) {
	defer ch.Close()
	for req := range reqs {
		if req.Type != "exec" {
			req.Reply(false, nil)
			continue
		}
		req.Reply(true, nil)
		go ssh.DiscardRequests(reqs) // ends with the channel
		code := (&lifeSession{vm: vm, ch: ch, who: who}).exec(string(req.Payload[4:]))
		ch.CloseWrite()
		ch.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, uint32(code)))
		return
	}
}

// A lifeSession answers one command line on a worker.
type lifeSession struct {
	vm    *lifeVM
	ch    ssh.Channel
	who   string
	nonce string
}

func (s *lifeSession) say(format string, args ...any) {
	fmt.Fprintf(s.ch, s.nonce+" "+format+"\n", args...)
}

func (s *lifeSession) sayAside(format string, args ...any) {
	fmt.Fprintf(s.ch.Stderr(), s.nonce+" "+format+"\n", args...)
}

func (s *lifeSession) exec(line string) (code int) {
	if line == "true" {
		return 0
	}
	if strings.Contains(line, "multihost-clock:") {
		if strings.Contains(line, "multihost-kit:") {
			s.vm.mu.Lock()
			fmt.Fprintln(s.ch, "multihost-kit:", strings.Join(s.vm.kit, " "))
			s.vm.mu.Unlock()
		}
		in := bufio.NewScanner(s.ch)
		for in.Scan() {
			fmt.Fprintf(s.ch, "multihost-clock:%d\n", time.Now().UnixNano())
		}
		return 0
	}
	at := strings.LastIndex(line, " multihost-") // search from the end: the script before it is long
	if at < 0 {
		fmt.Fprintf(s.ch.Stderr(), "worker of a story: %.80q\n", line)
		return 127
	}
	words, err := shlex.Split(line[at:])
	if err != nil || len(words) < 4 {
		return 127
	}
	op, args := strings.TrimPrefix(words[0], "multihost-"), words[4:]
	s.nonce = words[3]
	size, _ := strconv.Atoi(words[1])
	if size > 0 {
		s.vm.keep(words[2])
	}
	switch op {
	case "sync":
		s.vm.sync(args[1:])
		s.say("same")
		return 0
	case "preflight":
		for _, setting := range preflight.Settings() {
			s.say("result %s\tx\tx\tx\tok\tno\t", setting.Name)
		}
		s.say("end")
		return 0
	}
	in := bufio.NewReader(s.ch)
	if _, err := io.CopyN(io.Discard, in, int64(size)); err != nil {
		return 74
	}
	switch op {
	case "list":
		s.list()
	case "free":
		s.say("devices 4")
	case "arm":
		s.arm(args, in)
	case "follow":
		return s.follow(args)
	case "stop":
		s.stop(args)
	case "status", "release":
		s.status(args)
	case "verdict":
		s.vm.mu.Lock()
		if r := s.vm.runs[args[0]+"/"+args[1]]; r != nil && len(args) > 3 {
			r.seen = true
		} else if r != nil {
			r.verdict = args[2]
		}
		s.vm.mu.Unlock()
		s.say("kept")
	case "digest":
		s.digest(args)
	case "lease":
		s.lease(args, in)
	default:
		s.say("error a worker of a story knows no %s", op)
	}
	return 0
}

// keep stores a script with the given SHA-256, as bootstrap.sh of package remote does.
func (vm *lifeVM) keep(sum string) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if len(sum) == 2*sha256.Size && !slices.Contains(vm.kit, sum) {
		vm.kit = append(vm.kit, sum, sum[:16])
	}
}

// sync stores the digest of a run's code. The request contains the code.
func (vm *lifeVM) sync(args []string) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if len(args) >= 2 {
		vm.synced[args[0]] = args[1]
	}
}

// tell answers with what the worker knows of an attempt. The caller holds vm.mu.
func (s *lifeSession) tell(say func(string, ...any), run, attempt string) *lifeRun {
	r := s.vm.runs[run+"/"+attempt]
	say("run %s %s", run, attempt)
	if r == nil {
		say("phase unknown")
		return nil
	}
	say("phase %s", r.phase)
	supervised := 0
	if r.alive() {
		supervised = 1
	}
	say("supervisor 11 %d %d", supervised, r.armed.UnixNano())
	if r.phase != "starting" {
		say("started 12 %d", r.armed.UnixNano())
	}
	switch r.phase {
	case "exited":
		say("exit code %d", r.code)
		say("exit end %d", r.end.UnixNano())
		say("exit size %d", len(r.log))
		if r.reason != "" {
			say("exit signal TERM")
			say("exit reason %s", r.reason)
		}
	case "lost":
		say("exit code 255")
		say("exit size %d", len(r.log))
		say("exit lost 1")
		say("exit reason the worker was rebooted")
	}
	return r
}

func (s *lifeSession) list() {
	s.vm.mu.Lock()
	defer s.vm.mu.Unlock()
	s.say("now %d", time.Now().UnixNano())
	for _, key := range slices.Sorted(maps.Keys(s.vm.runs)) {
		run, attempt, _ := strings.Cut(key, "/")
		r := s.tell(s.say, run, attempt)
		s.describe(r)
	}
}

func (s *lifeSession) describe(r *lifeRun) {
	if r.seen {
		s.say("seen 1")
	}
	if r.verdict != "" {
		s.say("verdict %s", r.verdict)
	}
	if r.stopped != "" {
		s.say("stopped %s", r.stopped)
	}
	s.say("mine 1")
	s.say("login quick")
	s.say("owner %s", r.owner)
	s.say("command %s", r.command)
	s.say("slices %s", r.slices)
}

func (s *lifeSession) status(args []string) {
	s.vm.mu.Lock()
	defer s.vm.mu.Unlock()
	r := s.tell(s.say, args[0], args[1])
	s.say("now %d", time.Now().UnixNano())
	if r != nil {
		s.say("log %d %d.0", len(r.log), time.Now().Unix())
		s.say("dropped 0")
		s.say("processes 1 0")
	}
}

func (s *lifeSession) digest(args []string) {
	s.vm.mu.Lock()
	defer s.vm.mu.Unlock()
	r := s.vm.runs[args[0]+"/"+args[1]]
	if r == nil {
		s.say("unknown")
		return
	}
	n, _ := strconv.Atoi(args[2])
	if n < 0 || n > len(r.log) {
		n = len(r.log)
	}
	sum := sha256.Sum256(r.log[:n])
	s.say("digest %d %s", n, hex.EncodeToString(sum[:]))
}

func (s *lifeSession) arm(args []string, in *bufio.Reader) {
	vm := s.vm
	attempt, _ := strconv.Atoi(args[1])
	r := &lifeRun{run: args[0], attempt: attempt, armed: time.Now(), phase: "starting", over: make(chan struct{}), more: make(chan struct{})}
	for _, text := range args[2:min(8, len(args))] {
		size, _ := strconv.Atoi(text)
		file := make([]byte, size)
		if _, err := io.ReadFull(in, file); err != nil {
			return
		}
		if meta, ok := bytes.CutPrefix(file, []byte("owner=")); ok {
			owner, rest, _ := strings.Cut(string(meta), "\ncommand=")
			command, rest, _ := strings.Cut(rest, "\n")
			r.owner, r.command, r.slices = owner, command, strings.TrimSpace(strings.TrimPrefix(rest, "slices="))
		}
	}
	if vm.world.story.needs(fullDisk) {
		r.padding = strings.Repeat(".", os.Getpagesize())
	}
	key := args[0] + "/" + args[1]
	vm.mu.Lock()
	for at, other := range vm.runs {
		if other.alive() {
			s.say("busy %d", time.Now().UnixNano())
			run, attempt, _ := strings.Cut(at, "/")
			s.tell(s.say, run, attempt)
			s.describe(other)
			vm.mu.Unlock()
			return
		}
	}
	if old := vm.runs[key]; old != nil {
		vm.mu.Unlock()
		s.say("already")
		return
	}
	vm.runs[key] = r
	code := vm.synced[r.run]
	vm.mu.Unlock()
	s.say("synced %s %s", code, r.owner)
	vm.mu.Lock()
	for _, other := range vm.runs {
		if other.run == r.run && other.stopped != "" {
			s.say("stopped %s", other.stopped)
		}
	}
	vm.mu.Unlock()
	s.say("armed 11 %d", r.armed.UnixNano())
	order, err := in.ReadString('\n')
	for err == nil && order == "clock\n" {
		s.say("clock %d", time.Now().UnixNano())
		order, err = in.ReadString('\n')
	}
	word, _, _ := strings.Cut(strings.TrimSpace(order), " ")
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if err != nil || word != "go" || r.phase != "starting" || !vm.up {
		if r.phase == "starting" {
			r.phase = "aborted"
			delete(vm.runs, key)
			close(r.over)
		}
		s.say("aborted")
		return
	}
	r.phase = "running"
	r.print("%s attempt %d begins", r.run, r.attempt)
	vm.world.note(lifeFact{kind: factStarted, who: s.who, run: r.run, worker: vm.id, attempt: r.attempt})
	s.say("started 12 %d", time.Now().UnixNano())
	vm.work(r)
}

// work runs the command as the story says. The caller holds vm.mu.
func (vm *lifeVM) work(r *lifeRun) {
	fate := vm.world.story.fate(vm.spec.Node, r.attempt)
	down := vm.down
	vm.wg.Go(func() {
		for n := range 3 {
			select {
			case <-time.After(fate.lasts / 3):
			case <-down:
				return
			case <-r.over:
				return
			}
			vm.mu.Lock()
			if r.alive() {
				r.print("step %d of %s", n, vm.id)
			}
			vm.mu.Unlock()
		}
		vm.end(r, fate.code, "", "")
	})
}

// end ends a command on the worker. If who is "", the command has ended by itself.
func (vm *lifeVM) end(r *lifeRun, code int, reason, who string) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if r.phase != "running" || !vm.up {
		return
	}
	r.print("ends with %d", code)
	r.phase, r.code, r.reason, r.end = "exited", code, reason, time.Now()
	close(r.over)
	f := lifeFact{kind: factEnded, run: r.run, worker: vm.id, attempt: r.attempt, code: code}
	if who != "" {
		f.kind, f.who = factStopped, who
	}
	vm.world.note(f)
}

// follow sends the log from an offset on. Logs of stories are short, so one read gets all
// that is there.
func (s *lifeSession) follow(args []string) int {
	vm := s.vm
	vm.mu.Lock()
	r, down := vm.runs[args[0]+"/"+args[1]], vm.down
	vm.mu.Unlock()
	if r == nil {
		s.say("unknown")
		return 0
	}
	offset, _ := strconv.Atoi(args[2])
	vm.mu.Lock()
	size := len(r.log)
	vm.mu.Unlock()
	if size < offset {
		s.say("truncated %d", size)
		return 0
	}
	s.say("stream %d", size)
	var gone chan struct{}
	if args[3] != "read" {
		gone = make(chan struct{})
		go func() { // ends with the channel
			io.Copy(io.Discard, s.ch)
			close(gone)
		}()
		s.sayAside("waiting")
	}
	for {
		vm.mu.Lock()
		unread := vm.unread
		vm.mu.Unlock()
		if unread != nil {
			select {
			case <-unread:
			case <-down:
				return 1
			case <-gone:
				return 0
			}
		}
		vm.mu.Lock()
		part, more, alive := bytes.Clone(r.log[offset:]), r.more, r.alive()
		vm.mu.Unlock()
		if _, err := s.ch.Write(part); err != nil {
			return 1
		}
		offset += len(part)
		if !alive || args[3] == "read" {
			break
		}
		select {
		case <-more:
		case <-r.over:
		case <-down:
			return 1
		case <-gone:
			return 0
		}
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	s.tell(s.sayAside, args[0], args[1])
	if args[3] != "read" {
		s.sayAside("end")
	}
	return 0
}

func (s *lifeSession) stop(args []string) {
	vm := s.vm
	vm.mu.Lock()
	r := vm.runs[args[0]+"/"+args[1]]
	vm.mu.Unlock()
	if r != nil && len(args) > 3 && args[3] != "" {
		vm.mu.Lock()
		if len(args) > 4 {
			r.stopped = fmt.Sprintf("%d %s", time.Now().UnixNano(), args[3])
		}
		starting := r.phase == "starting"
		if starting {
			r.phase = "aborted"
			delete(vm.runs, args[0]+"/"+args[1])
			close(r.over)
		} else if r.alive() {
			r.print("it is told to end")
		}
		down := vm.down
		vm.mu.Unlock()
		if !starting {
			select {
			case <-time.After(time.Second):
			case <-down:
				return
			}
			vm.end(r, 143, args[3], s.who)
		}
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	s.say("counts 0 0")
	s.tell(s.say, args[0], args[1])
}

// busy reports whether a command is running on the worker. The caller holds vm.mu.
func (vm *lifeVM) busy() bool {
	for _, r := range vm.runs {
		if r.alive() {
			return true
		}
	}
	return false
}

// newest returns a copy of the newest attempt of a run, up to the attempt last if that is
// not 0. It returns nil if there is none.
func (vm *lifeVM) newest(run string, last int) *lifeRun {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	var newest *lifeRun
	for _, r := range vm.runs {
		if r.run == run && (last == 0 || r.attempt <= last) && (newest == nil || r.attempt > newest.attempt) {
			newest = r
		}
	}
	if newest == nil {
		return nil
	}
	c := *newest
	c.log = bytes.Clone(newest.log)
	return &c
}

var _ worker.Machine = (*lifeVM)(nil)
