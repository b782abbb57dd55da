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
	"multihost/internal/remote"
)

// A Conn is the SSH connection to one worker. It implements remote.Conn. It outlives its
// network connection. If that has ended, the next Run or Start opens another.
type Conn struct {
	*remote.Shell
	fleet *Fleet
	host  Host

	mu      sync.Mutex
	closed  bool
	link    *link         // the newest connection, alive or not
	dialing *dialing      // the attempt in progress, or nil
	trusted ssh.PublicKey // the host key that this Conn has verified, or nil
}

// dialing is an attempt to connect. Several callers may wait for it.
type dialing struct {
	done chan struct{}
	link *link
	err  error
	left bool // the caller that made the attempt has ended it; other callers ignore its error
}

func newConn(f *Fleet, host Host) *Conn {
	c := &Conn{fleet: f, host: host}
	c.Shell = remote.NewShell(remote.ShellConfig{
		Name: host.Name, User: host.User, Start: c.start,
		ReadOnly: f.cfg.ReadOnly, Timeout: f.cfg.ShellTimeout, Clock: f.cfg.Clock,
	})
	return c
}

// Close implements remote.Conn.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closed = true
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.end(remote.ErrClosed)
		<-l.gone
	}
}

// live returns a connection that is not known to be broken. If there is none, it opens one,
// or waits for the one that another caller is opening. If trouble is not nil, live calls it
// with the error of every failed try.
func (c *Conn) live(ctx context.Context, trouble func(*remote.ConnectError)) (*link, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, c.fail(remote.StageDial, "", remote.ErrClosed)
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
			return nil, c.fail(remote.StageDial, "", context.Cause(ctx))
		}
	}
}

// lead makes the attempt d for all callers that wait for it.
func (c *Conn) lead(ctx context.Context, d *dialing, trouble func(*remote.ConnectError)) {
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
			d.link, d.err = nil, c.fail(remote.StageDial, "", remote.ErrClosed)
		}
	}
	closed := c.closed
	c.mu.Unlock()
	if l != nil && closed {
		l.end(remote.ErrClosed)
	}
	close(d.done)
}

// fail returns the error for a failed step of this connection.
func (c *Conn) fail(stage remote.Stage, addr string, err error) *remote.ConnectError {
	return &remote.ConnectError{Host: c.host.Name, User: c.host.User, Stage: stage, Addr: addr, Err: err}
}

// A link is one authenticated network connection. Once a link has ended, it is never used
// again.
type link struct {
	fleet *Fleet
	conn  ssh.Conn
	sock  *socket

	gone   chan struct{} // closed when the connection has ended
	reason error         // why the connection has ended; read only after gone is closed

	mu    sync.Mutex
	cause error // why we have ended the connection, if we have

	quiet   int          // number of checks without a received byte; only keepAlive uses it
	heard   atomic.Int64 // when keepAlive last noticed a received byte, in nanoseconds
	mute    atomic.Bool  // a keepalive has had no answer for half of KeepAlive
	probing atomic.Bool  // a keepalive has had no answer yet

	agent atomic.Pointer[agentServer] // the agent for the worker, usually nil
}

// An agentServer answers one client of a forwarded agent.
type agentServer func(io.ReadWriteCloser)

// lend lets the worker use the agent from now on.
func (l *link) lend(serve agentServer) { l.agent.Store(&serve) }

// serve answers requests of the worker, and notices the end of the connection. It refuses
// everything but the use of an agent lent to the worker.
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
			// An error here means that the connection has ended. The code below handles
			// that.
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

// serveAgent handles one client of the agent lent to the worker.
func (l *link) serveAgent(serve agentServer, nc ssh.NewChannel) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return // the connection has ended
	}
	l.fleet.spawn(func() { ssh.DiscardRequests(reqs) })
	serve(ch)
	_ = ch.Close()
}

// end closes the connection with cause as the reason, unless it has a reason already. Its
// sessions end with ErrConnectionLost.
func (l *link) end(cause error) {
	l.mu.Lock()
	if l.cause == nil {
		l.cause = cause
	}
	l.mu.Unlock()
	// An error of Close does not matter: cause is the reason.
	_ = l.conn.Close()
}

// ended reports whether the connection is known to be unusable.
func (l *link) ended() bool {
	select {
	case <-l.gone:
		return true
	default:
		return l.sock.broken.Load()
	}
}

// Silence implements remote.Conn. The worker is silent if the connection has ended or a
// keepalive has no answer. since is exact to a quarter of Config.KeepAlive.
func (c *Conn) Silence() (since time.Time, silent bool) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	switch {
	case l == nil:
		return time.Time{}, true
	case !l.ended() && !l.mute.Load():
		return time.Time{}, false
	}
	return time.Unix(0, l.heard.Load()), true
}

// lost returns the error of a command that was running when the link ended.
func (l *link) lost(name string) error {
	<-l.gone
	if l.reason == nil {
		return fmt.Errorf("run on %s: %w", name, remote.ErrConnectionLost)
	}
	return fmt.Errorf("run on %s: %w: %w", name, remote.ErrConnectionLost, l.reason)
}

// answers sends a keepalive and waits for the reply. It returns false if the connection
// ends before the reply. keepAlive ends a connection that stays silent.
func (l *link) answers() bool {
	_, _, err := l.conn.SendRequest("keepalive@openssh.com", true, nil)
	return err == nil
}

// socket records whether a network connection delivers bytes, and whether it is broken. A
// flag that keepAlive resets is cheaper than reading the clock at every Read.
type socket struct {
	net.Conn
	heard  atomic.Bool
	broken atomic.Bool
	full   atomic.Bool // first has mostFirst bytes

	mu    sync.Mutex
	first []byte // the first bytes from the other side, up to mostFirst
}

// mostFirst is how many of the first bytes from the other side are kept. A server that
// refuses to speak SSH with us sends fewer.
const mostFirst = 256

// greeting returns the line that the server sent in place of an SSH version, or "".
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

// keepAlive checks every connection four times in each interval KeepAlive. It counts checks,
// not time. If this process was stopped or got no processor for a minute, it must not give
// its connections up, because it could not notice that they are alive.
const (
	looks     = 4
	probeAt   = looks
	muteAt    = probeAt + looks/2
	giveUpAt  = 3*looks - 1 // with the interval before the first check, within 3 KeepAlive
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

// look probes a silent connection, and gives it up if it stays silent. Both may block on
// the network, so each has a goroutine of its own.
func (f *Fleet) look(l *link) {
	if l.sock.heard.Swap(false) {
		l.quiet = 0
		l.heard.Store(f.cfg.Clock.Now().UnixNano())
		l.mute.Store(false)
		return
	}
	l.quiet++
	l.mute.Store(l.quiet >= muteAt)
	switch {
	case l.quiet == giveUpAt:
		silence := fmt.Errorf("%w for %s", remote.ErrSilent, 3*f.cfg.KeepAlive)
		f.spawn(func() { l.end(silence) })
	case l.quiet >= probeAt && l.probing.CompareAndSwap(false, true):
		f.spawn(func() {
			l.answers()
			l.probing.Store(false)
		})
	}
}

// adopt adds a new connection to the Fleet and serves it. If the Fleet is closed, it fails
// with ErrClosed.
func (f *Fleet) adopt(l *link, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return remote.ErrClosed
	}
	f.links[l] = struct{}{}
	f.wg.Go(func() { l.serve(chans, reqs) })
	if !f.ticking {
		f.ticking = true
		f.wg.Go(f.keepAlive)
	}
	return nil
}
