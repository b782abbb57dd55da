// Package sshfan is the SSH engine. It opens one connection to every worker, once, for all
// phases of a run.
//
// What it promises:
//
//   - Config.MaxDials limits how many handshakes are in progress. Nothing limits the open
//     sessions: a collective program needs all of its workers at once, so a limit would
//     cause a deadlock.
//   - A worker may answer late or not at all, or refuse the key, as a booting VM does.
//     sshfan tries it again, with jitter, until Config.RetryFor has passed. Such a worker
//     does not delay others. Every try ends within Config.ConnectTimeout, which covers TCP
//     connect, key exchange and login together. So a host that accepts TCP and then sends
//     nothing cannot hang a run.
//   - sshfan checks the host key of a worker against the keys from the API and against the
//     pin from an earlier connection. Without either, it trusts the key on first use, with
//     a warning. If a key differs from the pin, the connection fails, whatever the API
//     says. No switch turns this off.
//   - All workers share one connection to each bastion, and only a few handshakes go
//     through it at the same time. ssh's known_hosts verifies bastions.
//   - A dead peer is noticed within three keepalive intervals. A running command then ends
//     with ErrConnectionLost. The command may still run on the worker, so sshfan never runs
//     it a second time. The next Run or Start asks for the address again and connects
//     again.
//   - The end of a session does not end the remote process: sshd leaves it running. To stop
//     a command, run another command on the worker.
//
// An idle connection has four goroutines: three within x/crypto/ssh (packet reader, key
// exchange, multiplexer), and one that serves the worker's requests and notices the end. A
// running session has three more, for its requests, its standard output and its standard
// error, and a fourth while Cmd.Stdin is copied. A connection through a bastion has three
// more. One goroutine per Fleet keeps all connections alive.
package sshfan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"multihost/internal/event"
	"multihost/internal/remote"
	"multihost/internal/sshkey"
)

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// A Host is one worker as sshfan sees it: its address, its identity and the login name.
type Host struct {
	// Name is the name of the worker in errors and events: "s0w3".
	Name string

	// Addr returns host:port. It is called before every try, because an address may change
	// when a VM is restarted.
	Addr func(ctx context.Context) (hostport string, err error)

	// User is the login name, never "root".
	User string

	// Pin identifies the machine to which the host key belongs, such as "<node uid>/<worker
	// number>". The same machine always has the same Pin, whatever its address. A Pin has
	// no white space.
	Pin string

	// Keys returns the host keys that the cloud's API knows, in authorized_keys form
	// ("ssh-ed25519 AAAA…"). The worker must show one of them. If a key is pinned, the
	// worker must show the pinned one. A changed key ends the attempt with a HostKeyError,
	// even if the API knows it. Nil or ErrNoHostKeys means that the API knows none. After
	// any other error the Fleet tries again.
	Keys func(ctx context.Context) ([]string, error)

	// Doubt is called when the worker has shown an unknown host key. It reports whether the
	// last answer of Keys came from a cache. If it did, the Fleet tries the worker once
	// again, because a new answer may be different. Doubt may be nil.
	Doubt func() bool

	// Cloud means that the worker is a VM of the cloud: its keys come from its metadata,
	// and firewall rules of the cloud let connections in.
	Cloud bool

	// Slice names the worker's slice. All workers of a slice have the same firewall rules,
	// so a connection to one of them proves the rules. "" means that the slice is unknown.
	Slice string
}

// Config is what a Fleet needs. Only Identity has no default.
type Config struct {
	// Identity holds the keys for logging in. It must stay open as long as the Fleet.
	Identity *sshkey.Identity

	// KnownHosts is the file with the pins (see pins). It is made when it is needed. ""
	// means that only this Fleet remembers pins.
	KnownHosts string

	// ReadOnly makes the Fleet run only commands that change nothing (Cmd.ReadOnly), and
	// write no pins.
	ReadOnly bool

	// MaxDials limits how many connections are being opened or not yet logged in. The
	// default is 1024. A limit of 512 takes a quarter longer on 1,024 workers with a round
	// trip of 50 ms. Without a limit, 2048 workers need twice the peak memory and gain
	// nothing. At most 8 of these connections go through one bastion: it drops connections
	// beyond its MaxStartups.
	MaxDials int

	// Jump has the bastions on the way to every worker, the nearest to this machine first.
	// One connection to each bastion is enough. If Jump is empty, SSHConfig may name
	// bastions.
	Jump []JumpHost

	// SSHConfig says how to reach the addresses of workers: HostName, Port and ProxyJump.
	// It may be nil.
	SSHConfig *SSHConfig

	// UserKnownHosts are known_hosts files of ssh with the keys of bastions. A bastion in
	// none of them is trusted on first use, with a warning, and pinned as
	// "jump/<host:port>". Missing files are skipped.
	UserKnownHosts []string

	// Passphrase returns the passphrase of a key that SSHConfig names for a bastion. It is
	// called at most once per key. If it is nil, encrypted keys that no agent holds are
	// left out.
	Passphrase func(path string) (string, error)

	// AgentSocket is the socket of an ssh-agent. Bastions are offered its keys, too. ""
	// means no agent.
	AgentSocket string

	// ConnectTimeout limits one try: TCP connect, handshake and login together. The default
	// is 15 s.
	ConnectTimeout time.Duration

	// RetryFor is how long an unreachable worker is tried again. The default is 2 min.
	// Every worker gets at least one whole try.
	RetryFor time.Duration

	// AuthRetryFor is how long a worker may refuse our key, counted from the first refusal.
	// A VM refuses it until its agent has fetched the keys. After that time, the key counts
	// as wrong. The default is RetryFor.
	AuthRetryFor time.Duration

	// KeepAlive is the silence after which the Fleet sends a keepalive. After three times
	// that silence, the Fleet gives the connection up. The default is 10 s.
	KeepAlive time.Duration

	// ShellTimeout limits how long a login may take to run a first command (see
	// Conn.MeasureClock). Start-up files that load an environment from a busy disk take
	// seconds. A file that waits for input never ends. The default is 30 s.
	ShellTimeout time.Duration

	// Dial opens the connection under SSH. The default is TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Fold describes, in the event.Progress of Connect, the hosts that are not connected
	// yet. waiting has their indexes in the argument of Connect. By default, the first five
	// are named and the others counted.
	Fold func(waiting []int) string

	// AcceptCommand returns the command line with which the user accepts the changed host
	// key of the worker called name.
	AcceptCommand func(name string) string

	// Sink receives progress and notes. The default drops them.
	Sink event.Sink

	// Clock paces retries and keepalives. The default is the clock of the system.
	Clock remote.Clock
}

// A Fleet owns connections to many workers. Its methods are safe for
// concurrent use.
type Fleet struct {
	cfg     Config
	pins    *pins
	keyring *sshkey.Keyring // for bastions
	dials   chan struct{}   // has a token for each handshake in progress
	buffers sync.Pool       // of *[bigBuffer]byte, for copying output

	ctx    context.Context // Close ends it with ErrClosed
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // waits for every goroutine of the Fleet

	mu        sync.Mutex
	closed    bool
	ticking   bool // keepAlive runs
	links     map[*link]struct{}
	firstUse  []string // hosts trusted on first use and not reported yet
	toldTrust bool
	hops      map[string]*hop // bastions, by the way to them

	letIn    atomic.Int32 // successful logins to workers
	reached  sync.Map     // Host.Slice of every worker that was reached
	toldSlow atomic.Bool
}

// New makes a Fleet. It reads Config.KnownHosts and makes no connection. The
// caller closes the Fleet.
func New(cfg Config) (*Fleet, error) {
	if cfg.Identity == nil {
		return nil, errors.New("make ssh fleet: no identity to log in with")
	}
	if cfg.MaxDials <= 0 {
		cfg.MaxDials = 1024
	}
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = 15 * time.Second
	}
	if cfg.RetryFor <= 0 {
		cfg.RetryFor = 2 * time.Minute
	}
	if cfg.AuthRetryFor <= 0 {
		cfg.AuthRetryFor = cfg.RetryFor
	}
	if cfg.KeepAlive <= 0 {
		cfg.KeepAlive = 10 * time.Second
	}
	if cfg.ShellTimeout <= 0 {
		cfg.ShellTimeout = 30 * time.Second
	}
	if cfg.Dial == nil {
		// sshfan has keepalives of its own, which also pass a bastion. The kernel's would
		// cost four system calls per connection.
		dialer := &net.Dialer{KeepAlive: -1}
		cfg.Dial = dialer.DialContext
	}
	if cfg.Sink == nil {
		cfg.Sink = event.Discard
	}
	if cfg.Clock == nil {
		cfg.Clock = systemClock{}
	}
	pins, err := loadPins(cfg.KnownHosts)
	if err != nil {
		return nil, err
	}
	f := &Fleet{
		cfg:     cfg,
		pins:    pins,
		keyring: sshkey.NewKeyring(cfg.AgentSocket, cfg.Passphrase),
		dials:   make(chan struct{}, cfg.MaxDials),
		links:   make(map[*link]struct{}),
		hops:    make(map[string]*hop),
	}
	f.buffers.New = func() any { return new([bigBuffer]byte) }
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	return f, nil
}

// Connect connects to all hosts at once. It returns when every host is connected or given
// up. Both results have the length and the order of hosts. For each host, either the Conn or
// the error is nil. Errors are *ConnectError. When ctx ends, the hosts that are not connected
// yet fail at once with the cause of ctx.
//
// Connections stay open until Conn.Close or Fleet.Close, even if Connect has failed for
// some hosts.
func (f *Fleet) Connect(ctx context.Context, hosts []Host) ([]*Conn, []error) {
	conns, errs := f.Open(ctx, hosts)
	for i := range conns {
		if errs[i] != nil {
			conns[i] = nil
		}
	}
	return conns, errs
}

// Open does what Connect does, but returns a Conn for every host. If a host has an error,
// its Conn connects at the next use, as after a lost connection.
func (f *Fleet) Open(ctx context.Context, hosts []Host) ([]*Conn, []error) {
	conns := make([]*Conn, len(hosts))
	errs := make([]error, len(hosts))
	if len(hosts) == 0 {
		return conns, errs
	}
	f.warnDescriptors(len(hosts))
	f.warnSlowKey(len(hosts))

	p := newProgress(f, hosts)
	ended := make(chan int, len(hosts))
	for i := range hosts {
		conns[i] = newConn(f, hosts[i])
		connect := func() {
			_, errs[i] = conns[i].live(ctx, p.trouble(i))
			ended <- i
		}
		if !f.spawn(connect) {
			errs[i] = conns[i].fail(remote.StageDial, "", remote.ErrClosed)
			ended <- i
		}
	}
	p.follow(ended)
	f.tellTrust()
	return conns, errs
}

// Close closes every connection and ends every session with ErrConnectionLost. It returns
// when all goroutines of the Fleet have ended. After that, nothing calls a Cmd's writers or
// its reader. Commands on the workers run on.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closed = true
	links := make([]*link, 0, len(f.links))
	for l := range f.links {
		links = append(links, l)
	}
	f.mu.Unlock()

	f.cancel(remote.ErrClosed)
	for _, l := range links {
		l.end(remote.ErrClosed)
	}
	f.wg.Wait()
	f.keyring.Close()
}

// spawn runs fn in a goroutine for which Close waits. If the Fleet is closed, it returns
// false and does not call fn.
func (f *Fleet) spawn(fn func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.wg.Go(fn)
	return true
}

// tellTrust warns once per Fleet that workers were trusted on first use. Unless the
// Fleet is ReadOnly, it also writes the pins to the file.
func (f *Fleet) tellTrust() {
	f.mu.Lock()
	firstUse := f.firstUse
	f.firstUse = nil
	told := f.toldTrust
	f.toldTrust = told || len(firstUse) > 0
	f.mu.Unlock()

	if len(firstUse) > 0 && !told {
		event.Notef(f.cfg.Sink, event.Warn, "", "trusted the host keys of %s on first use (%s): the API knows no host keys of them",
			event.Count(len(firstUse), "worker"), shorten(firstUse))
	}
	if f.cfg.ReadOnly {
		return
	}
	if err := f.pins.flush(); err != nil {
		event.Notef(f.cfg.Sink, event.Warn, "", "host keys are not remembered: %v", err)
	}
}

// progress reports which hosts are not connected yet.
type progress struct {
	fleet    *Fleet
	hosts    []Host
	troubles []atomic.Pointer[remote.ConnectError] // last failed try of each host
	start    time.Time
}

func newProgress(f *Fleet, hosts []Host) *progress {
	return &progress{
		fleet:    f,
		hosts:    hosts,
		troubles: make([]atomic.Pointer[remote.ConnectError], len(hosts)),
		start:    f.cfg.Clock.Now(),
	}
}

// trouble returns a function that records the last failed try of host i.
func (p *progress) trouble(i int) func(*remote.ConnectError) {
	return func(err *remote.ConnectError) { p.troubles[i].Store(err) }
}

// The pace of Progress events. Each event lists the waiting hosts, so with 2048 hosts a
// faster pace would cost too much.
const (
	progressEvery = 100 * time.Millisecond
	progressIdle  = time.Second
)

// follow emits Progress until every host has ended.
func (p *progress) follow(ended <-chan int) {
	clock := p.fleet.cfg.Clock
	waiting := make([]bool, len(p.hosts))
	for i := range waiting {
		waiting[i] = true
	}
	p.emit(waiting, 0)
	last := clock.Now()
	idle := clock.After(progressIdle)
	for done := 0; done < len(p.hosts); {
		select {
		case i := <-ended:
			done++
			waiting[i] = false
			if done < len(p.hosts) && clock.Now().Sub(last) < progressEvery {
				continue
			}
		case <-idle:
			idle = clock.After(progressIdle)
		}
		p.emit(waiting, done)
		last = clock.Now()
	}
}

func (p *progress) emit(waiting []bool, done int) {
	var open []int
	for i, w := range waiting {
		if w {
			open = append(open, i)
		}
	}
	e := event.Progress{
		Phase:   "connect",
		Done:    done,
		Total:   len(p.hosts),
		Waiting: p.fold(open),
		Elapsed: p.fleet.cfg.Clock.Now().Sub(p.start),
		Limit:   p.fleet.cfg.RetryFor,
	}
	for _, i := range open {
		if err := p.troubles[i].Load(); err != nil {
			e.Detail = err.Error()
			break
		}
	}
	p.fleet.cfg.Sink.Emit(e)
}

func (p *progress) fold(open []int) string {
	if len(open) == 0 {
		return ""
	}
	if p.fleet.cfg.Fold != nil {
		return p.fleet.cfg.Fold(open)
	}
	names := make([]string, len(open))
	for i, h := range open {
		names[i] = p.hosts[h].Name
	}
	return shorten(names)
}

// shorten lists at most five names and counts the others.
func shorten(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ",")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ","), len(names)-most)
}
