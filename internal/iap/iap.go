// Package iap opens TCP connections to VMs without an external address, through Google's
// Identity-Aware Proxy.
package iap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/coder/websocket"

	"multihost/internal/fault"
)

// A Proxy opens TCP connections to instances without an external address, through Google's
// Identity-Aware Proxy. Only the field Project is required. Its methods are safe for
// concurrent use. Do not change its fields after the first Dial.
//
// A tunnel outlives the WebSocket that carries it. Each side counts the bytes of both
// directions and keeps the bytes that the other side has not confirmed. When the
// WebSocket breaks, a new one continues at the confirmed byte. So a connection through a
// tunnel loses and repeats nothing when the laptop changes its network. A tunnel ends
// only when a reconnect cannot help.
//
// An idle tunnel costs three goroutines.
type Proxy struct {
	// Endpoint is the URL of the relay. Empty: wss://tunnel.cloudproxy.app/v4.
	Endpoint string

	// Project is the project of the instances.
	Project string

	// Token returns an access token of the scope cloud-platform. It is called at every
	// connect and reconnect, because a tunnel lives longer than a token. It must return
	// when its context ends. Nil: no token is sent.
	Token func(ctx context.Context) (string, error)

	// HTTPClient makes the WebSocket handshakes. Default: http.DefaultClient.
	HTTPClient *http.Client

	// Clock gives the pauses between reconnects. Default: the system's.
	Clock Clock

	openLimit time.Duration // default: openLimit; shorter in tests
}

const (
	defaultEndpoint = "wss://tunnel.cloudproxy.app/v4"
	subprotocol     = "relay.tunnel.cloudproxy.app"
	origin          = "bot:iap-tunneler" // the relay refuses browsers' origins

	// openLimit limits one connect or reconnect: token, handshake and the relay's own
	// connect to the instance. gcloud waits as long.
	openLimit = 60 * time.Second

	// reconnectLimit is how long a broken tunnel tries to reconnect, as with gcloud.
	// The keepalives of SSH give up much earlier.
	reconnectLimit = 15 * time.Minute

	// stallLimit is how long the relay may be silent after we sent bytes. After that, the
	// WebSocket counts as dead. Without this limit, a path that vanished without a reset would go
	// unnoticed for minutes. The limit is longer than Config.KeepAlive, because an idle SSH
	// connection only gets answers to keepalives. Together with stallCheck it is shorter than
	// three KeepAlive, so that a new WebSocket exists before the connection is given up. With a
	// protocol that never answers, this limit causes one useless reconnect.
	stallLimit = 15 * time.Second
	stallCheck = 5 * time.Second

	// settled is the age from which a WebSocket proves that the relay works, even if no byte
	// passed.
	settled = 30 * time.Second

	// linger limits how long Close sends the rest of the written bytes.
	linger = 2 * time.Second

	// goodbye limits how long Close, after linger, waits for the relay's answer to the close
	// frame. Without a close frame the relay would hold the worker's side open. The frame is on
	// its way when the wait begins. Meanwhile we receive all bytes that the relay still sends,
	// because unread bytes would make our kernel reset the connection.
	goodbye = 100 * time.Millisecond

	// sendWindow limits the bytes kept for sending again. It allows 7 MB/s at a round trip
	// of 150 ms. Writers wait while it is full.
	sendWindow = 1 << 20

	// readWindow limits the bytes that wait for Read. The relay's own window controls the
	// flow, because we acknowledge bytes when they are read, not when they arrive. This
	// limit protects against a relay without a window. It is large because acknowledgements
	// queue behind data. With a small limit, a tunnel could deadlock: both windows are
	// full, and the reader waits for its own Write, as the reader of x/crypto/ssh may.
	readWindow = 4 << 20

	// ackAfter is how many bytes are read before an acknowledgement.
	ackAfter = 2 * relayMaxData

	// keepBuffer limits the buffer of an idle tunnel.
	keepBuffer = 64 << 10
)

// Dial connects to a port of an instance. nic is the network interface; "" means "nic0". Dial
// ends when ctx does. After that, ctx does not affect the connection. The error is an *Error. The
// connection owns its goroutines; Close ends them.
//
// Write returns when the bytes are in the window of bytes that the relay has not confirmed. Read
// returns io.EOF when the instance closed the connection in good order, and a *net.OpError with
// an *Error when the tunnel broke. Close takes a round trip, or a tenth of a second at most. If
// written bytes are not yet sent, it takes up to two seconds more. Close many connections at the
// same time, not one after the other.
func (t *Proxy) Dial(ctx context.Context, zone, instance, nic string, port int) (net.Conn, error) {
	if nic == "" {
		nic = "nic0"
	}
	c := &tunnel{
		iap:     t,
		target:  target{project: t.Project, zone: zone, instance: instance, nic: nic, port: port},
		clock:   t.Clock,
		local:   address("iap"),
		done:    make(chan struct{}),
		closing: make(chan struct{}),
	}
	if c.clock == nil {
		c.clock = systemClock{}
	}
	c.changed.L = &c.mu
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	ws, err := c.open(ctx)
	if err != nil {
		c.cancel(err)
		return nil, err
	}
	go c.run(ws)
	return c, nil
}

// target is the far end of a tunnel: a port of an instance.
type target struct {
	project, zone, instance, nic string
	port                         int
}

func (t target) String() string { return net.JoinHostPort(t.instance, strconv.Itoa(t.port)) }

// address is the address of one end of a tunnel.
type address string

func (a address) Network() string { return "iap" }
func (a address) String() string  { return string(a) }

// tunnel is the net.Conn that Dial returns. Its offsets count from the first byte of their
// direction, as the relay's do.
type tunnel struct {
	iap    *Proxy
	target target
	clock  Clock

	ctx     context.Context // ends with the tunnel; not the context of Dial
	cancel  context.CancelCauseFunc
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when run has ended

	writing sync.Mutex // held during a Write, so that two never mix

	mu      sync.Mutex
	changed sync.Cond // signals a change below
	closed  bool      // by Close
	up      bool      // a WebSocket is being served
	err     error     // why the tunnel ended; io.EOF: in good order
	local   net.Addr
	sid     []byte // identifies the tunnel at a reconnect

	inbox    buffer // received, to be read
	received uint64 // offset of inbox's end
	acked    uint64 // offset in our last acknowledgement

	outbox    buffer // written, to be confirmed
	confirmed uint64 // offset of outbox's start
	sent      uint64 // offset of the next byte on this WebSocket
	sentMost  uint64 // largest value that sent ever had

	waiting  time.Time // when we first sent data after the relay's last frame; zero: not yet
	opened   time.Time // when this WebSocket was opened
	progress bool      // the tunnel has advanced on this WebSocket

	readDeadline, writeDeadline deadline

	// Used by run only.
	tries       int       // reconnects since the last progress
	brokenSince time.Time // when the connection broke, before these reconnects
}

// run keeps the tunnel open until it ends.
func (c *tunnel) run(ws *websocket.Conn) {
	defer close(c.done)
	for ws != nil {
		err := c.serve(ws)
		ws, err = c.reconnect(err)
		if ws == nil {
			c.end(err)
		}
	}
}

// end ends the tunnel because of err. Received bytes can still be read.
func (c *tunnel) end(err error) {
	c.cancel(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	c.outbox = buffer{}
	c.changed.Broadcast()
}

// serve moves bytes over ws until it breaks, and returns why.
func (c *tunnel) serve(ws *websocket.Conn) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(c.receive(ctx, ws)) })
	wg.Go(func() { c.watch(ctx, cancel) })
	if err := c.send(ctx, ws, cancel); err != nil && ctx.Err() == nil {
		// A relay sends its reason before it closes. Give the receiver time to read it.
		select {
		case <-ctx.Done():
		case <-c.clock.After(time.Second):
		}
		cancel(err)
	}
	cancel(net.ErrClosed)
	_ = ws.CloseNow()
	wg.Wait()
	return context.Cause(ctx)
}

// send writes data and acknowledgements to ws until ctx ends or ws breaks. When the tunnel
// is closed, it sends the remaining bytes and closes ws in good order.
func (c *tunnel) send(ctx context.Context, ws *websocket.Conn, cancel context.CancelCauseFunc) error {
	defer context.AfterFunc(ctx, c.wake)()
	var frame []byte
	for {
		frame = c.nextFrame(ctx, frame[:0])
		if len(frame) > 0 {
			if err := ws.Write(ctx, websocket.MessageBinary, frame); err != nil {
				return err
			}
			continue
		}
		if ctx.Err() == nil {
			c.takeLeave(ctx, ws, cancel)
		}
		return nil
	}
}

// takeLeave closes ws in good order. If the relay does not answer within the limit goodbye,
// takeLeave ends the receiver's context ctx. The WebSocket library itself would wait for
// ten seconds.
func (c *tunnel) takeLeave(ctx context.Context, ws *websocket.Conn, cancel context.CancelCauseFunc) {
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-c.clock.After(goodbye):
			cancel(net.ErrClosed)
		}
	})
	_ = ws.Close(websocket.StatusNormalClosure, "")
	cancel(net.ErrClosed)
	wg.Wait()
}

// nextFrame waits until there is something to send, and appends it to buf. It appends
// nothing when ctx has ended, or when the tunnel is closed and everything is sent.
func (c *tunnel) nextFrame(ctx context.Context, buf []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ctx.Err() == nil {
		// Acknowledgements first: a relay with a full window waits for them.
		if read := c.received - uint64(c.inbox.len()); read > c.acked+ackAfter {
			c.acked = read
			return appendAckFrame(buf, read)
		}
		if unsent := c.outbox.bytes()[c.sent-c.confirmed:]; len(unsent) > 0 {
			unsent = unsent[:min(len(unsent), relayMaxData)]
			c.sent += uint64(len(unsent))
			c.sentMost = max(c.sentMost, c.sent)
			if c.waiting.IsZero() {
				c.waiting = c.clock.Now()
			}
			return appendDataFrame(buf, unsent)
		}
		if c.closed {
			return buf
		}
		c.changed.Wait()
	}
	return buf
}

// receive reads frames from ws until it breaks.
func (c *tunnel) receive(ctx context.Context, ws *websocket.Conn) error {
	defer context.AfterFunc(ctx, c.wake)()
	var buf []byte
	for {
		frame, err := readRelayFrame(ctx, ws, &buf)
		if err != nil {
			return err
		}
		if err := c.take(ctx, frame); err != nil {
			return err
		}
	}
}

// take handles a received frame. It waits while the inbox is full.
func (c *tunnel) take(ctx context.Context, f relayFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = time.Time{}
	switch f.tag {
	case relayData:
		for c.inbox.len() >= readWindow && !c.closed {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			c.changed.Wait()
		}
		if !c.closed {
			c.inbox.add(f.data)
			c.received += uint64(len(f.data))
			c.progress = true
		}
	case relayAck:
		if err := c.confirm(f.count); err != nil {
			return err
		}
	case relaySID, relayReconnected:
		return protocolError("greeted twice")
	}
	// Unknown tags are ignored, as in gcloud.
	c.changed.Broadcast()
	return nil
}

// confirm drops the bytes up to the offset upTo, because the relay has them. c.mu is held.
func (c *tunnel) confirm(upTo uint64) error {
	switch {
	case upTo > c.sentMost:
		return protocolError(fmt.Sprintf("confirmed %d bytes of %d", upTo, c.sentMost))
	case upTo <= c.confirmed:
		return nil // a late confirmation changes nothing
	}
	c.outbox.drop(int(upTo - c.confirmed))
	c.confirmed = upTo
	c.sent = max(c.sent, upTo)
	c.progress = true
	return nil
}

// watch calls cancel, which ends ws, when the relay is silent for too long.
func (c *tunnel) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.clock.After(stallCheck):
		}
		c.mu.Lock()
		// While the inbox is full, we receive nothing. Silence is then not the relay's fault.
		stalled := !c.waiting.IsZero() && c.inbox.len() < readWindow &&
			c.clock.Now().Sub(c.waiting) >= stallLimit
		c.mu.Unlock()
		if stalled {
			cancel(errRelaySilent)
			return
		}
	}
}

// reconnect opens a new WebSocket after the old one broke because of cause. If that fails,
// it returns a nil WebSocket and why the tunnel ended.
func (c *tunnel) reconnect(cause error) (*websocket.Conn, error) {
	now := c.clock.Now()
	c.mu.Lock()
	c.up = false
	if c.progress || now.Sub(c.opened) >= settled {
		c.tries, c.brokenSince = 0, now
	}
	c.mu.Unlock()

	if websocket.CloseStatus(cause) == websocket.StatusNormalClosure {
		return nil, io.EOF
	}
	for failure := c.target.explain(c.ctx, cause); ; {
		if c.ctx.Err() != nil {
			return nil, context.Cause(c.ctx)
		}
		if !failure.mendable() {
			return nil, failure
		}
		wait := reconnectWait(c.tries)
		if c.clock.Now().Add(wait).Sub(c.brokenSince) > reconnectLimit {
			told := *failure
			told.Err = fmt.Errorf("no reconnect within %s: %w", reconnectLimit, failure.Err)
			return nil, &told
		}
		c.tries++
		select {
		case <-c.closing:
			return nil, net.ErrClosed
		case <-c.clock.After(wait):
		}
		ws, err := c.open(c.ctx)
		if err == nil {
			return ws, nil
		}
		failure = c.target.explain(c.ctx, err)
	}
}

// reconnectWait returns the pause before a reconnect. A restart of a relay may cut the tunnels of
// 2048 workers. The first pause is just long enough that they do not all reconnect in one moment.
// Later pauses grow by a half from 1 s to 20 s. Half of each pause is random.
func reconnectWait(tries int) time.Duration {
	if tries == 0 {
		return rand.N(250 * time.Millisecond)
	}
	d := time.Second
	for range tries - 1 {
		d = min(d+d/2, 20*time.Second)
	}
	return d/2 + rand.N(d/2)
}

// open opens a WebSocket for a new tunnel, or for one that the relay knows by its sid. The error
// is an *Error.
func (c *tunnel) open(ctx context.Context) (*websocket.Conn, error) {
	limit := c.iap.openLimit
	if limit <= 0 {
		limit = openLimit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, noAnswerError(limit))
	defer cancel()

	ws, err := c.handshake(ctx)
	if err != nil {
		return nil, c.target.explain(ctx, err)
	}
	if err := c.greet(ctx, ws); err != nil {
		_ = ws.CloseNow()
		return nil, c.target.explain(ctx, err)
	}
	return ws, nil
}

func (c *tunnel) handshake(ctx context.Context) (*websocket.Conn, error) {
	where, err := c.address()
	if err != nil {
		return nil, permanentError{err}
	}
	header := http.Header{"Origin": {origin}, "User-Agent": {"multihost"}}
	if c.iap.Token != nil {
		token, err := c.iap.Token(ctx)
		if err != nil {
			return nil, fmt.Errorf("get access token: %w", err)
		}
		header.Set("Authorization", "Bearer "+token)
	}
	client := http.DefaultClient
	if c.iap.HTTPClient != nil {
		client = c.iap.HTTPClient
	}
	// A redirect leads to a login page, and means that the relay has refused us.
	here := *client
	here.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	var local net.Addr
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { local = i.Conn.LocalAddr() }}
	ws, resp, err := websocket.Dial(httptrace.WithClientTrace(ctx, trace), where, &websocket.DialOptions{
		HTTPClient:   &here,
		HTTPHeader:   header,
		Subprotocols: []string{subprotocol},
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, c.target.refused(resp)
		}
		return nil, err
	}
	ws.SetReadLimit(relayMaxMessage)
	c.mu.Lock()
	c.local = local
	c.mu.Unlock()
	return ws, nil
}

// address returns the URL for a new tunnel. If the tunnel has a sid, it returns the URL for
// the tunnel's next WebSocket.
func (c *tunnel) address() (string, error) {
	if c.target.project == "" || c.target.zone == "" || c.target.instance == "" {
		return "", errors.New("project, zone and instance must be known")
	}
	endpoint := c.iap.Endpoint
	if endpoint == "" {
		endpoint = defaultEndpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	q := url.Values{"zone": {c.target.zone}, "newWebsocket": {"True"}}
	if c.sid == nil {
		u = u.JoinPath("connect")
		q.Set("project", c.target.project)
		q.Set("instance", c.target.instance)
		q.Set("interface", c.target.nic)
		q.Set("port", strconv.Itoa(c.target.port))
	} else {
		u = u.JoinPath("reconnect")
		q.Set("sid", string(c.sid))
		q.Set("ack", strconv.FormatUint(c.received, 10))
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// greet waits for the frame that opens a WebSocket. Everything that this frame does not
// confirm is sent again.
func (c *tunnel) greet(ctx context.Context, ws *websocket.Conn) error {
	var buf []byte
	for {
		f, err := readRelayFrame(ctx, ws, &buf)
		if err != nil {
			return err
		}
		c.mu.Lock()
		done, err := c.greeted(f)
		c.mu.Unlock()
		if done || err != nil {
			return err
		}
	}
}

// greeted handles a frame before the greeting, or the greeting itself. It reports whether
// the frame is the greeting. c.mu is held.
func (c *tunnel) greeted(f relayFrame) (bool, error) {
	wasNew := c.sid == nil
	switch {
	case f.tag == relaySID && wasNew && len(f.data) > 0:
		c.sid = append([]byte(nil), f.data...)
		c.progress = true
	case f.tag == relayReconnected && !wasNew:
		if f.count < c.confirmed {
			return false, protocolError(fmt.Sprintf("lost %d bytes that it had confirmed", c.confirmed-f.count))
		}
		c.progress = false
		if err := c.confirm(f.count); err != nil {
			return false, err
		}
		c.sent = c.confirmed
	case f.tag == relaySID, f.tag == relayReconnected, f.tag == relayData, f.tag == relayAck:
		return false, protocolError(fmt.Sprintf("began with a frame of tag %d", f.tag))
	default:
		return false, nil
	}
	c.opened = c.clock.Now()
	c.waiting = time.Time{}
	c.up = true
	return true, nil
}

func (c *tunnel) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed.Broadcast()
}

// Read implements net.Conn.
func (c *tunnel) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.opError("read", net.ErrClosed)
		case c.readDeadline.expired:
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		case c.inbox.len() > 0:
			return c.consume(p), nil
		case c.err == io.EOF:
			return 0, io.EOF
		case c.err != nil:
			return 0, c.opError("read", c.err)
		}
		c.changed.Wait()
	}
}

// consume moves bytes from the inbox to p. c.mu is held.
func (c *tunnel) consume(p []byte) int {
	n := copy(p, c.inbox.bytes())
	c.inbox.drop(n)
	c.changed.Broadcast() // there may be something to acknowledge
	return n
}

// Write implements net.Conn.
func (c *tunnel) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	written := 0
	for {
		switch {
		case c.closed:
			return written, c.opError("write", net.ErrClosed)
		case c.writeDeadline.expired:
			return written, c.opError("write", os.ErrDeadlineExceeded)
		case c.err == io.EOF:
			return written, c.opError("write", syscall.EPIPE)
		case c.err != nil:
			return written, c.opError("write", c.err)
		}
		n := min(len(p)-written, sendWindow-c.outbox.len())
		if n > 0 {
			c.outbox.add(p[written : written+n])
			written += n
			c.changed.Broadcast()
		}
		if written == len(p) {
			return written, nil
		}
		c.changed.Wait()
	}
}

// Close implements net.Conn. When it returns, all goroutines of the tunnel have ended. It
// may be called twice.
func (c *tunnel) Close() error {
	c.mu.Lock()
	first, up := !c.closed, c.up
	c.closed = true
	c.inbox = buffer{}
	c.readDeadline.stop()
	c.writeDeadline.stop()
	c.changed.Broadcast()
	c.mu.Unlock()

	if first {
		close(c.closing)
		if !up {
			c.cancel(net.ErrClosed)
		}
	}
	select {
	case <-c.done:
	case <-c.clock.After(linger):
		c.cancel(net.ErrClosed)
		<-c.done
	}
	return nil
}

// LocalAddr implements net.Conn. It is our end of the connection to the relay.
func (c *tunnel) LocalAddr() net.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local
}

// RemoteAddr implements net.Conn: the instance and its port.
func (c *tunnel) RemoteAddr() net.Addr { return address(c.target.String()) }

// SetDeadline implements net.Conn.
func (c *tunnel) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *tunnel) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readDeadline, t) }

// SetWriteDeadline implements net.Conn.
func (c *tunnel) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeDeadline, t) }

// buffer is a queue of bytes.
type buffer struct {
	all  []byte
	gone int // number of bytes dropped from the start of the field all
}

func (b *buffer) bytes() []byte { return b.all[b.gone:] }
func (b *buffer) len() int      { return len(b.all) - b.gone }

func (b *buffer) add(p []byte) {
	if len(b.all)+len(p) > cap(b.all) && b.gone >= b.len() {
		b.all = b.all[:copy(b.all, b.bytes())]
		b.gone = 0
	}
	b.all = append(b.all, p...)
}

func (b *buffer) drop(n int) {
	b.gone += n
	if b.len() > 0 {
		return
	}
	b.gone = 0
	b.all = b.all[:0]
	if cap(b.all) > keepBuffer {
		b.all = nil
	}
}

// deadline is a deadline in the system's time, whatever Proxy.Clock is, because net.Conn
// requires that.
type deadline struct {
	timer   *time.Timer
	expired bool
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer = nil
	d.expired = false
}

func (c *tunnel) setDeadline(d *deadline, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	d.stop()
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 {
		d.expired = true
		c.changed.Broadcast()
		return nil
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if d.timer == timer {
			d.expired = true
			c.changed.Broadcast()
		}
	})
	d.timer = timer
	return nil
}

func (c *tunnel) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "iap", Addr: c.RemoteAddr(), Err: err}
}

// Frames of the SSH relay protocol, version 4. Each binary message has one frame: a tag of
// two bytes, then the fields of that tag, most significant byte first.
const (
	relaySID         = 0x0001 // u32 length, session id: a new tunnel is open
	relayReconnected = 0x0002 // u64: number of our bytes that the relay has
	relayData        = 0x0004 // u32 length, bytes
	relayAck         = 0x0007 // u64, as relayReconnected

	relayMaxData    = 16384
	relayMaxMessage = 64 << 10 // more than a relay ever has to send
)

// relayFrame is a received frame. data is the session id or the bytes, and belongs to the
// read buffer. count is the number.
type relayFrame struct {
	tag   uint16
	data  []byte
	count uint64
}

// errShortFrame says that a frame is cut off. The connection may break in the middle of a
// message, between two fragments or two reads. The WebSocket library takes that for the end
// of the message.
var errShortFrame = errors.New("incomplete frame from the relay")

// errRelaySilent is the reason for giving up a WebSocket of a silent relay.
var errRelaySilent = errors.New("relay does not answer")

// protocolError says that a relay violates the protocol.
type protocolError string

func (e protocolError) Error() string { return "relay broke the protocol: it " + string(e) }

// parseRelayFrame reads a frame. It ignores bytes behind the frame, and everything behind
// an unknown tag.
func parseRelayFrame(msg []byte) (relayFrame, error) {
	if len(msg) < 2 {
		return relayFrame{}, errShortFrame
	}
	f := relayFrame{tag: binary.BigEndian.Uint16(msg)}
	msg = msg[2:]
	switch f.tag {
	case relaySID, relayData:
		if len(msg) < 4 {
			return relayFrame{}, errShortFrame
		}
		n := binary.BigEndian.Uint32(msg)
		msg = msg[4:]
		if uint64(n) > uint64(len(msg)) {
			return relayFrame{}, errShortFrame
		}
		f.data = msg[:n]
	case relayReconnected, relayAck:
		if len(msg) < 8 {
			return relayFrame{}, errShortFrame
		}
		f.count = binary.BigEndian.Uint64(msg)
	}
	return f, nil
}

func appendDataFrame(b, data []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, relayData)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func appendAckFrame(b []byte, count uint64) []byte {
	b = binary.BigEndian.AppendUint16(b, relayAck)
	return binary.BigEndian.AppendUint64(b, count)
}

// readRelayFrame reads the next frame from ws into buf, which it may replace by
// a larger one.
func readRelayFrame(ctx context.Context, ws *websocket.Conn, buf *[]byte) (relayFrame, error) {
	kind, r, err := ws.Reader(ctx)
	if err != nil {
		return relayFrame{}, err
	}
	if kind != websocket.MessageBinary {
		return relayFrame{}, protocolError("sent a text message")
	}
	msg := (*buf)[:0]
	for {
		if len(msg) == cap(msg) {
			msg = append(msg, make([]byte, max(512, len(msg)))...)[:len(msg)]
		}
		n, err := r.Read(msg[len(msg):cap(msg)])
		msg = msg[:len(msg)+n]
		*buf = msg
		if err == io.EOF {
			return parseRelayFrame(msg)
		}
		if errors.Is(err, websocket.ErrMessageTooBig) {
			return relayFrame{}, protocolError(fmt.Sprintf("sent more than %d bytes in one message", relayMaxMessage))
		}
		if err != nil {
			return relayFrame{}, err
		}
	}
}

// Error says why a tunnel could not be opened, or why it ended. At most one of Code and
// HTTP is not zero.
type Error struct {
	Project, Zone, Instance string
	Port                    int

	Code int // relay's close code of the WebSocket
	HTTP int // relay's HTTP status of a refused WebSocket
	Err  error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("IAP tunnel to %q port %d: ", e.Instance, e.Port)
	switch {
	case e.HTTP != 0:
		s += fmt.Sprintf("relay refused it with HTTP %d: ", e.HTTP)
	case e.Code != 0:
		s += fmt.Sprintf("relay closed it with code %d: ", e.Code)
	}
	return s + e.Err.Error()
}

// Fault returns fault.Unavailable.
func (e *Error) Fault() fault.Kind { return fault.Unavailable }

// Cause returns the text of the error without the VM's name.
func (e *Error) Cause() string {
	return strings.Replace(e.Error(), fmt.Sprintf(" to %q", e.Instance), "", 1)
}

func (e *Error) Unwrap() error { return e.Err }

// explain returns the error of a tunnel that could not be opened, or that broke. Its reason is
// the relay's, or else the cause of ctx, or else err.
func (t target) explain(ctx context.Context, err error) *Error {
	var told *Error
	var closed websocket.CloseError
	var inURL *url.Error
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &closed):
		return t.closedWith(closed)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &inURL):
		err = inURL.Err // the URL contains the session's secret id
	}
	return t.newError(0, 0, err)
}

func (t target) newError(code, status int, err error) *Error {
	return &Error{
		Project: t.project, Zone: t.zone, Instance: t.instance, Port: t.port,
		Code: code, HTTP: status, Err: err,
	}
}

// closedWith returns the error for a WebSocket that the relay closed.
func (t target) closedWith(e websocket.CloseError) *Error {
	code := int(e.Code)
	err := errors.New(codeText(code))
	if reason := oneLine(e.Reason); reason != "" {
		err = errors.New(reason)
	}
	if code == readFailed || code == writeFailed {
		// The relay's side of the tunnel ended, perhaps in good order.
		err = fmt.Errorf("%w: %w", err, io.EOF)
	}
	return t.newError(code, 0, err)
}

// refused returns the error for a handshake that the relay answered with an HTTP error.
func (t target) refused(resp *http.Response) *Error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // a part of the text is enough
	reason := oneLine(htmlTag.ReplaceAllString(string(text), " "))
	if reason == "" {
		reason = strings.ToLower(http.StatusText(resp.StatusCode))
	}
	return t.newError(0, resp.StatusCode, errors.New(reason))
}

// htmlTag matches a tag, and a style, script or title element with its content. Google's front
// ends send errors as HTML pages.
var htmlTag = regexp.MustCompile(`(?s)<(style|script|title).*?</(style|script|title)>|<[^>]*>`)

// oneLine turns a remote text into one line of at most 200 bytes and an ellipsis.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// Codes with which the relay closes a WebSocket. Codes that mean nothing to a user are left out.
const (
	sidUnknown        = 4001
	sidInUse          = 4002
	NoBackend         = 4003
	reauthenticate    = 4004
	writeFailed       = 4009
	readFailed        = 4010
	notAuthorized     = 4033
	lookupFailed      = 4047
	lookupFailedAgain = 4051 // at a reconnect
	rewindFailed      = 4074
)

// codeText returns the meaning of a code from a relay that gives no reason.
func codeText(code int) string {
	switch code {
	case sidUnknown:
		return "session unknown"
	case sidInUse:
		return "session in use"
	case NoBackend:
		return "failed to connect to backend"
	case reauthenticate:
		return "reauthentication required"
	case writeFailed, readFailed:
		return "instance closed the connection"
	case notAuthorized:
		return "not authorized"
	case lookupFailed, lookupFailedAgain:
		return "instance not found"
	case rewindFailed:
		return "bytes to send again are gone"
	}
	return "no reason given"
}

// Hint names the likely cause and says what to type. It may be "".
func (e *Error) Hint() string {
	switch e.HTTP {
	case http.StatusUnauthorized:
		return "the relay does not take the access token: gcloud auth application-default login"
	case http.StatusForbidden:
		return e.hintPermission()
	case http.StatusBadRequest:
		return fmt.Sprintf("project %q, zone %q or instance %q is wrong, or the permission is missing: %s",
			e.Project, e.Zone, e.Instance, e.hintPermission())
	case http.StatusNotFound:
		return e.hintInstance()
	}
	switch e.Code {
	case notAuthorized:
		return e.hintPermission()
	case NoBackend:
		return fmt.Sprintf("nothing listens on port %d yet (the VM boots, or is stopped), or no firewall rule lets IAP in: "+
			"multihost network firewall create NET-ssh --network=NET --allow=tcp:%d --source-ranges=35.235.240.0/20", e.Port, e.Port)
	case lookupFailed, lookupFailedAgain:
		return e.hintInstance()
	case readFailed, writeFailed:
		return "the worker hung up; why is in sshd's log on the worker: sudo journalctl -u ssh -n 20"
	case reauthenticate:
		return "your organization asks to log in again: gcloud auth application-default login"
	case sidUnknown, sidInUse, rewindFailed:
		return "the relay gave the tunnel up while we were cut off: connect again"
	}
	return ""
}

func (e *Error) hintPermission() string {
	return fmt.Sprintf("tunnels need roles/iap.tunnelResourceAccessor and the IAP API: "+
		"gcloud projects add-iam-policy-binding %s --member=user:EMAIL --role=roles/iap.tunnelResourceAccessor; "+
		"gcloud services enable iap.googleapis.com --project=%s", e.Project, e.Project)
}

func (e *Error) hintInstance() string {
	return fmt.Sprintf("project %q has no instance %q in zone %q: the VM may have been made anew, or preempted; see multihost slices list",
		e.Project, e.Instance, e.Zone)
}

// Permanent reports whether dialing again is useless.
func (e *Error) Permanent() bool {
	switch e.HTTP {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
		return true
	}
	var p interface{ Permanent() bool }
	return e.Code == notAuthorized || errors.As(e.Err, &p) && p.Permanent()
}

// mendable reports whether a reconnect can help. It cannot after a protocol violation or a
// permanent error. Any other error without the relay's HTTP status or code means a broken
// path, which a reconnect can repair.
func (e *Error) mendable() bool {
	var protocol protocolError
	var permanent permanentError
	switch {
	case errors.As(e.Err, &protocol), errors.As(e.Err, &permanent):
		return false
	case e.HTTP != 0:
		// 401: the token may have expired on the way, and the next try gets a new one.
		return e.HTTP >= 500 || e.HTTP == http.StatusTooManyRequests || e.HTTP == http.StatusRequestTimeout ||
			e.HTTP == http.StatusUnauthorized
	case e.Code == 0:
		return true
	}
	switch websocket.StatusCode(e.Code) {
	case websocket.StatusGoingAway, websocket.StatusNoStatusRcvd, websocket.StatusInternalError,
		websocket.StatusServiceRestart, websocket.StatusTryAgainLater, websocket.StatusBadGateway,
		// Until the relay notices that the old WebSocket is dead:
		sidInUse,
		// The relay only wants a new token:
		reauthenticate:
		return true
	}
	return false
}
