package sshfan

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/event"
)

// A Conn is the connection to one worker. It outlives the network connection
// under it: when that has died, the next Run or Start opens another. Its
// methods are safe for concurrent use.
type Conn struct {
	fleet *Fleet
	host  Host

	mu      sync.Mutex
	closed  bool
	link    *link           // the last connection, alive or not
	dialing *dialing        // the attempt under way, or nil
	trusted ssh.PublicKey   // host key that this Conn has verified before
	offset  time.Duration   // see ClockOffset
	greeted bool            // its clock was measured once: its login runs commands
	kit     map[string]bool // by SHA-256, the scripts that the worker keeps

	lacking map[*Program]bool // those that it was believed to keep, and lacked
}

// dialing is an attempt to connect that several callers may wait for.
type dialing struct {
	done chan struct{}
	link *link
	err  error
	left bool // the caller that made it gave up: its error is not ours
}

func newConn(f *Fleet, host Host) *Conn {
	return &Conn{fleet: f, host: host}
}

// Name is Host.Name.
func (c *Conn) Name() string { return c.host.Name }

// Close closes the connection and ends its sessions with ErrConnectionLost.
// Later calls of Run and Start fail with ErrClosed. It does not stop commands
// on the worker.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closed = true
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.end(ErrClosed)
		<-l.gone
	}
}

// live returns a connection that works as far as is known, connecting anew if
// needed. Callers that come while one is being opened wait for that one. A
// non-nil trouble is told every failed try.
func (c *Conn) live(ctx context.Context, trouble func(*ConnectError)) (*link, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, c.fail(StageDial, "", ErrClosed)
		}
		if c.link != nil && !c.link.ended() {
			l := c.link
			c.mu.Unlock()
			return l, nil
		}
		d := c.dialing
		if d == nil {
			d = &dialing{done: make(chan struct{})}
			c.dialing = d
			c.mu.Unlock()
			c.lead(ctx, d, trouble)
			return d.link, d.err
		}
		c.mu.Unlock()
		select {
		case <-d.done:
			if d.err != nil && !d.left {
				return nil, d.err
			}
		case <-ctx.Done():
			return nil, c.fail(StageDial, "", context.Cause(ctx))
		}
	}
}

// lead carries out an attempt on behalf of everybody who waits for it.
func (c *Conn) lead(ctx context.Context, d *dialing, trouble func(*ConnectError)) {
	l, err := c.connect(ctx, trouble)
	if l != nil && trouble == nil {
		event.Notef(c.fleet.cfg.Sink, event.Debug, "", "connected to %s again", c.host.Name)
	}
	c.mu.Lock()
	d.link, d.err, d.left = l, err, ctx.Err() != nil
	c.dialing = nil
	if l != nil {
		c.link = l
		if c.closed {
			d.link, d.err = nil, c.fail(StageDial, "", ErrClosed)
		}
	}
	closed := c.closed
	c.mu.Unlock()
	if l != nil && closed {
		l.end(ErrClosed)
	}
	close(d.done)
}

// fail makes the error of a step of this connection.
func (c *Conn) fail(stage Stage, addr string, err error) *ConnectError {
	return &ConnectError{Host: c.host.Name, User: c.host.User, Stage: stage, Addr: addr, Err: err}
}

// A link is one authenticated network connection. It ends once and for all.
type link struct {
	fleet *Fleet
	conn  ssh.Conn
	sock  *socket

	gone   chan struct{} // closed when the connection has ended
	reason error         // why; to be read after gone

	mu    sync.Mutex
	cause error // why we ended it, if we did

	quiet   int         // ticks without a byte; belongs to keepAlive
	probing atomic.Bool // a keepalive is unanswered

	agent atomic.Pointer[agentServer] // nil as a rule
}

// An agentServer answers one client of a forwarded agent.
type agentServer func(io.ReadWriteCloser)

// lend lets the worker use an agent from now on.
func (l *link) lend(serve agentServer) { l.agent.Store(&serve) }

// serve answers what the worker asks of us, which is nothing that we grant but
// an agent that was lent, and notices the end of the connection.
func (l *link) serve(chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
	for chans != nil || reqs != nil {
		select {
		case ch, ok := <-chans:
			if !ok {
				chans = nil
				continue
			}
			if serve := l.agent.Load(); serve != nil && ch.ChannelType() == "auth-agent@openssh.com" {
				l.fleet.spawn(func() { l.serveAgent(*serve, ch) })
				continue
			}
			// An error here is the end of the connection, seen below.
			_ = ch.Reject(ssh.Prohibited, "not offered")
		case req, ok := <-reqs:
			if !ok {
				reqs = nil
				continue
			}
			if req.WantReply {
				_ = req.Reply(false, nil)
			}
		}
	}
	err := plain(l.conn.Wait())
	l.fleet.mu.Lock()
	delete(l.fleet.links, l)
	l.fleet.mu.Unlock()
	l.mu.Lock()
	if l.cause != nil {
		err = l.cause
	}
	l.mu.Unlock()
	l.reason = err
	close(l.gone)
}

// serveAgent is one client's connection to the agent that was lent.
func (l *link) serveAgent(serve agentServer, nc ssh.NewChannel) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return // the end of the connection
	}
	l.fleet.spawn(func() { ssh.DiscardRequests(reqs) })
	serve(ch)
	_ = ch.Close()
}

// end closes the connection because of cause. Sessions see it as lost.
func (l *link) end(cause error) {
	l.mu.Lock()
	if l.cause == nil {
		l.cause = cause
	}
	l.mu.Unlock()
	// The reason of the end is cause, not what closing says.
	_ = l.conn.Close()
}

// ended reports whether the connection is known to be of no use any more.
func (l *link) ended() bool {
	select {
	case <-l.gone:
		return true
	default:
		return l.sock.broken.Load()
	}
}

// lost is the error of a command that was under way when the link ended.
func (l *link) lost(name string) error {
	<-l.gone
	if l.reason == nil {
		return fmt.Errorf("run on %s: %w", name, ErrConnectionLost)
	}
	return fmt.Errorf("run on %s: %w: %w", name, ErrConnectionLost, l.reason)
}

// answers asks the worker for a sign of life and waits for it. It reports
// false when the connection ends instead, which keepAlive sees to.
func (l *link) answers() bool {
	_, _, err := l.conn.SendRequest("keepalive@openssh.com", true, nil)
	return err == nil
}

// socket notes the signs of life and death of a network connection. A flag
// that keepAlive resets is cheaper than asking for the time at every read.
type socket struct {
	net.Conn
	heard  atomic.Bool
	broken atomic.Bool
	full   atomic.Bool // first is

	mu    sync.Mutex
	first []byte // what the other side said, up to mostFirst bytes
}

// mostFirst is more than servers say that will not speak SSH with us.
const mostFirst = 256

// greeting is the line that came in place of an SSH version, or "".
func (s *socket) greeting() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	line, _, _ := strings.Cut(strings.ToValidUTF8(string(s.first), "\uFFFD"), "\n")
	if strings.HasPrefix(line, "SSH-") {
		return ""
	}
	return strings.TrimSpace(line)
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n > 0 && !s.heard.Load() {
		s.heard.Store(true)
	}
	if n > 0 && !s.full.Load() {
		s.mu.Lock()
		s.first = append(s.first, p[:min(n, mostFirst-len(s.first))]...)
		s.full.Store(len(s.first) == mostFirst)
		s.mu.Unlock()
	}
	if err != nil {
		s.broken.Store(true)
	}
	return n, err
}

func (s *socket) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	if err != nil {
		s.broken.Store(true)
	}
	return n, err
}

func (s *socket) Close() error {
	s.broken.Store(true)
	return s.Conn.Close()
}

// keepAlive looks at every connection four times per KeepAlive. It counts
// looks, not time: a process that was stopped, or starved, for a minute comes
// back to connections that had no chance to show life and must not be given up
// for that.
const (
	looks     = 4
	probeAt   = looks
	giveUpAt  = 3*looks - 1 // with the look before the first: within 3 KeepAlive
	leastLook = time.Millisecond
)

func (f *Fleet) keepAlive() {
	pause := max(f.cfg.KeepAlive/looks, leastLook)
	var links []*link
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.cfg.Clock.After(pause):
		}
		links = links[:0]
		f.mu.Lock()
		for l := range f.links {
			links = append(links, l)
		}
		f.mu.Unlock()
		for _, l := range links {
			f.look(l)
		}
		clear(links)
	}
}

// look probes a connection that has been silent and gives up one that stays
// so. Both may block on the network and get a goroutine of their own.
func (f *Fleet) look(l *link) {
	if l.sock.heard.Swap(false) {
		l.quiet = 0
		return
	}
	l.quiet++
	switch {
	case l.quiet == giveUpAt:
		silence := fmt.Errorf("%w for %s", ErrSilent, 3*f.cfg.KeepAlive)
		f.spawn(func() { l.end(silence) })
	case l.quiet >= probeAt && l.probing.CompareAndSwap(false, true):
		f.spawn(func() {
			l.answers()
			l.probing.Store(false)
		})
	}
}

// adopt makes a fresh connection one of the Fleet's.
func (f *Fleet) adopt(l *link, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	f.links[l] = struct{}{}
	f.wg.Go(func() { l.serve(chans, reqs) })
	if !f.ticking {
		f.ticking = true
		f.wg.Go(f.keepAlive)
	}
	return nil
}

// ClockOffset is the worker's clock minus ours as MeasureClock last found it,
// and 0 before.
func (c *Conn) ClockOffset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset
}
