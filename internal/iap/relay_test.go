package iap

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// A relay is a server of the SSH relay protocol that leads every tunnel to one TCP address.
// It is strict: input that Google's relay might refuse fails the test. Its fields say which
// faults it has. Set them before use. Atomic fields can be set at any time.
type relay struct {
	t      testing.TB
	target string
	server *httptest.Server
	client *http.Client

	// The relay cuts a connection after this many bytes to the client (out) or from the
	// client (in). It cuts in the middle of a frame or after it.
	cutOut, cutIn       int
	cutOutFrame, cutInF int

	cutFragments atomic.Int32 // how often to cut within a message, after a fragment

	oddFrames bool                     // data in frames of all sizes, messages in fragments
	loseAcks  atomic.Bool              // every second acknowledgement is lost, in both directions
	deaf      atomic.Bool              // reads nothing from new WebSockets
	mute      atomic.Bool              // sends nothing, not even a greeting
	unbounded bool                     // ignores acknowledgements
	expired   atomic.Bool              // does not know session ids any more
	refuse    func(path string) int    // HTTP status of a refusal; 0: none
	closeWith func(path string) int    // close code instead of a greeting; 0: none
	greeting  func(path string) []byte // in place of the usual greeting
	noTarget  int                      // close code when the target closes; default 1000

	mu       sync.Mutex
	sessions map[string]*relaySession
	tokens   []string // as sent, in order
	paths    []string
	wg       sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelFunc
}

const relayWindow = 256 << 10

// relaySession is a tunnel, on the relay's side.
type relaySession struct {
	relay   *relay
	sid     string
	zone    string
	backend net.Conn

	serving sync.Mutex // held by one WebSocket at a time

	mu       sync.Mutex
	changed  *sync.Cond
	stop     context.CancelFunc // stops the active WebSocket, or nil
	out      []byte             // sent to the client and not acknowledged
	outBase  uint64
	outMost  uint64 // largest sent offset
	in       uint64 // bytes from the client to the backend
	inAcked  uint64
	most     uint64 // largest number of the client's bytes in flight
	ended    bool   // the backend has closed
	farewell chan websocket.StatusCode
}

func (s *relaySession) mostInFlight() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

func newRelay(t testing.TB, target string, configure ...func(*relay)) *relay {
	t.Helper()
	r := &relay{t: t, target: target, sessions: make(map[string]*relaySession)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	for _, c := range configure {
		c(r)
	}
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.server.Listener = cutListener{r.server.Listener, r}
	r.server.Start()
	transport := &http.Transport{}
	r.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		r.cancel()
		r.mu.Lock()
		for _, s := range r.sessions {
			s.end()
		}
		r.mu.Unlock()
		transport.CloseIdleConnections()
		r.server.CloseClientConnections()
		r.server.Close()
		r.wg.Wait()
	})
	return r
}

func (r *relay) endpoint() string { return "ws" + strings.TrimPrefix(r.server.URL, "http") + "/v4" }

// iap returns a client of the relay.
func (r *relay) iap() *Proxy {
	return &Proxy{
		Endpoint:   r.endpoint(),
		Project:    "p1",
		HTTPClient: r.client,
		Clock:      &hastyClock{},
		Token:      func(context.Context) (string, error) { return "secret", nil },
	}
}

func (r *relay) dial(t testing.TB) net.Conn {
	t.Helper()
	return r.dialBy(t, &hastyClock{})
}

func (r *relay) dialBy(t testing.TB, clock Clock) net.Conn {
	t.Helper()
	tunnel := r.iap()
	tunnel.Clock = clock
	c, err := tunnel.Dial(t.Context(), "z1", "vm1", "", 22)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// connects returns how many WebSockets the client has requested.
func (r *relay) connects() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.paths)
}

func (r *relay) session() *relaySession {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sessions) != 1 {
		r.t.Fatalf("%d sessions, want 1", len(r.sessions))
	}
	for _, s := range r.sessions {
		return s
	}
	return nil
}

func (r *relay) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		s.detach()
	}
}

func (r *relay) serve(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	r.mu.Lock()
	r.paths = append(r.paths, req.URL.Path)
	r.tokens = append(r.tokens, strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "))
	r.mu.Unlock()
	for name, want := range map[string]string{"Origin": "bot:iap-tunneler", "Sec-WebSocket-Protocol": "relay.tunnel.cloudproxy.app"} {
		if got := req.Header.Get(name); got != want {
			r.t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if q.Get("newWebsocket") != "True" || q.Get("zone") != "z1" {
		r.t.Errorf("bad query %q", req.URL.RawQuery)
	}
	if r.refuse != nil {
		if status := r.refuse(req.URL.Path); status != 0 {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			io.WriteString(w, "<html><style>p { x }</style><p>not\n<b>today</b></p></html>")
			return
		}
	}
	ws, err := websocket.Accept(w, req, &websocket.AcceptOptions{
		Subprotocols:       []string{"relay.tunnel.cloudproxy.app"},
		InsecureSkipVerify: true,
	})
	if err != nil {
		return // cut on the way
	}
	defer ws.CloseNow()
	ws.SetReadLimit(6 + 16384)
	if r.closeWith != nil {
		if code := r.closeWith(req.URL.Path); code != 0 {
			ws.Close(websocket.StatusCode(code), "because\nof you")
			return
		}
	}
	if r.greeting != nil {
		if g := r.greeting(req.URL.Path); g != nil {
			ws.Write(r.ctx, websocket.MessageBinary, g)
			ws.CloseRead(r.ctx)
			<-r.ctx.Done()
			return
		}
	}
	if r.mute.Load() {
		ws.CloseRead(r.ctx)
		<-r.ctx.Done()
		return
	}
	switch req.URL.Path {
	case "/v4/connect":
		r.connect(ws, req)
	case "/v4/reconnect":
		r.reconnect(ws, req)
	default:
		r.t.Errorf("bad path %q", req.URL.Path)
	}
}

func (r *relay) connect(ws *websocket.Conn, req *http.Request) {
	q := req.URL.Query()
	if q.Get("project") != "p1" || q.Get("instance") != "vm1" || q.Get("interface") != "nic0" || q.Get("port") != "22" {
		r.t.Errorf("bad query %q", req.URL.RawQuery)
	}
	backend, err := net.Dial("tcp", r.target)
	if err != nil {
		ws.Close(4003, "failed to connect to backend")
		return
	}
	s := &relaySession{
		relay: r, backend: backend, zone: q.Get("zone"),
		sid:      fmt.Sprintf("sid %d&=%%/?", rand.Uint64()), // must be escaped
		farewell: make(chan websocket.StatusCode, 1),
	}
	s.changed = sync.NewCond(&s.mu)
	r.mu.Lock()
	r.sessions[s.sid] = s
	r.mu.Unlock()
	r.wg.Go(s.fromBackend)
	greeting := binary.BigEndian.AppendUint32([]byte{0, 1}, uint32(len(s.sid)))
	s.serve(ws, append(greeting, s.sid...), 0)
}

func (r *relay) reconnect(ws *websocket.Conn, req *http.Request) {
	q := req.URL.Query()
	r.mu.Lock()
	s := r.sessions[q.Get("sid")]
	r.mu.Unlock()
	if s == nil || r.expired.Load() {
		ws.Close(4001, "unknown sid")
		return
	}
	ack, err := strconv.ParseUint(q.Get("ack"), 10, 64)
	if err != nil {
		r.t.Errorf("bad query %q", req.URL.RawQuery)
		return
	}
	s.serve(ws, nil, ack)
}

// fromBackend takes the target's bytes no faster than acknowledgements come.
func (s *relaySession) fromBackend() {
	buf := make([]byte, 16384)
	for {
		n, err := s.backend.Read(buf)
		s.mu.Lock()
		s.out = append(s.out, buf[:n]...)
		s.ended = err != nil
		s.changed.Broadcast()
		for len(s.out) >= relayWindow && !s.relay.unbounded && s.relay.ctx.Err() == nil {
			s.changed.Wait()
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *relaySession) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
	}
	s.changed.Broadcast()
}

func (s *relaySession) end() {
	s.backend.Close()
	s.detach()
}

// serve carries the session over ws, after the last WebSocket has ended.
func (s *relaySession) serve(ws *websocket.Conn, greeting []byte, ack uint64) {
	s.detach()
	s.serving.Lock()
	defer s.serving.Unlock()

	ctx, cancel := context.WithCancel(s.relay.ctx)
	defer cancel()
	s.mu.Lock()
	s.stop = cancel
	if ack > s.outMost || ack < s.outBase {
		s.relay.t.Errorf("reconnect with ack %d, want %d to %d", ack, s.outBase, s.outMost)
	}
	s.acknowledged(ack)
	if greeting == nil {
		greeting = binary.BigEndian.AppendUint64([]byte{0, 2}, s.in)
		s.inAcked = s.in
	}
	s.mu.Unlock()

	var wg sync.WaitGroup
	wg.Go(func() { s.toClient(ctx, ws, greeting); cancel() })
	s.fromClient(ctx, ws)
	cancel()
	ws.CloseNow()
	wg.Wait()
}

// acknowledged drops the bytes that the client has. s.mu is held.
func (s *relaySession) acknowledged(ack uint64) {
	if ack > s.outMost {
		s.relay.t.Errorf("client acknowledged %d bytes of %d", ack, s.outMost)
		return
	}
	if ack > s.outBase {
		s.out = s.out[ack-s.outBase:]
		s.outBase = ack
		s.changed.Broadcast()
	}
}

func (s *relaySession) toClient(ctx context.Context, ws *websocket.Conn, greeting []byte) {
	r := s.relay
	defer context.AfterFunc(ctx, func() { s.mu.Lock(); s.changed.Broadcast(); s.mu.Unlock() })()
	if err := r.write(ctx, ws, greeting); err != nil {
		return
	}
	s.mu.Lock()
	next := s.outBase
	s.mu.Unlock()
	for sent, acks := 0, 0; ; {
		var frame []byte
		s.mu.Lock()
		for frame == nil && ctx.Err() == nil {
			next = max(next, s.outBase)
			unsent := s.out[next-s.outBase:]
			switch {
			case s.in > s.inAcked+2*16384:
				s.inAcked = s.in
				if acks++; r.loseAcks.Load() && acks%2 == 0 {
					continue
				}
				frame = binary.BigEndian.AppendUint64([]byte{0, 7}, s.in)
			case len(unsent) > 0:
				most := 16384
				if r.oddFrames {
					most = 1 + rand.N(most)
				}
				unsent = unsent[:min(len(unsent), most)]
				next += uint64(len(unsent))
				s.outMost = max(s.outMost, next)
				frame = binary.BigEndian.AppendUint32([]byte{0, 4}, uint32(len(unsent)))
				frame = append(frame, unsent...)
			case s.ended:
				code := websocket.StatusNormalClosure
				if r.noTarget != 0 {
					code = websocket.StatusCode(r.noTarget)
				}
				s.mu.Unlock()
				ws.Close(code, "")
				return
			default:
				s.changed.Wait()
			}
		}
		s.mu.Unlock()
		if ctx.Err() != nil || r.write(ctx, ws, frame) != nil {
			return
		}
		if sent += len(frame); r.cutOutFrame > 0 && sent > r.cutOutFrame {
			return
		}
	}
}

// write sends a message. If oddFrames is set, it first sends a message of an unknown tag,
// then the message in fragments.
func (r *relay) write(ctx context.Context, ws *websocket.Conn, msg []byte) error {
	if len(msg) > 100 && r.cutFragments.Add(-1) >= 0 {
		return r.writeHalf(ctx, ws, msg)
	}
	if !r.oddFrames {
		return ws.Write(ctx, websocket.MessageBinary, msg)
	}
	if err := ws.Write(ctx, websocket.MessageBinary, []byte{0x7f, 0x01, 'x'}); err != nil {
		return err
	}
	w, err := ws.Writer(ctx, websocket.MessageBinary)
	if err != nil {
		return err
	}
	for len(msg) > 0 {
		n := 1 + rand.N(min(len(msg), 9000))
		if _, err := w.Write(msg[:n]); err != nil {
			return err
		}
		msg = msg[n:]
	}
	return w.Close()
}

// writeHalf sends only the first fragment of a message.
func (r *relay) writeHalf(ctx context.Context, ws *websocket.Conn, msg []byte) error {
	w, err := ws.Writer(ctx, websocket.MessageBinary)
	if err != nil {
		return err
	}
	if _, err := w.Write(msg[:len(msg)/2]); err != nil {
		return err
	}
	// The answer to a ping proves that the fragment has arrived.
	if err := ws.Ping(ctx); err != nil {
		return err
	}
	return errCut
}

func (s *relaySession) fromClient(ctx context.Context, ws *websocket.Conn) {
	r := s.relay
	for received, acks := 0, 0; ; {
		for r.deaf.Load() {
			<-ctx.Done()
			return
		}
		kind, msg, err := ws.Read(ctx)
		if code := websocket.CloseStatus(err); code != -1 {
			select {
			case s.farewell <- code:
			default:
			}
			s.backend.Close()
		}
		if err != nil || len(msg) < 2 {
			return
		}
		tag, rest := binary.BigEndian.Uint16(msg), msg[2:]
		switch {
		case kind != websocket.MessageBinary:
			r.t.Error("client sent a text message")
		case tag == 4 && len(rest) >= 4:
			n := int(binary.BigEndian.Uint32(rest))
			data := rest[4:]
			if n == 0 || n > 16384 || n < len(data) {
				r.t.Errorf("client sent data of %d bytes in a message of %d", n, len(data))
			}
			if len(data) < n {
				return // cut on the way
			}
			if _, err := s.backend.Write(data); err != nil {
				return
			}
			s.mu.Lock()
			s.in += uint64(n)
			s.most = max(s.most, s.in-s.inAcked)
			s.changed.Broadcast()
			s.mu.Unlock()
		case tag == 7 && len(rest) == 8:
			if acks++; !r.loseAcks.Load() || acks%2 == 0 {
				s.mu.Lock()
				s.acknowledged(binary.BigEndian.Uint64(rest))
				s.mu.Unlock()
			}
		case tag == 4 || tag == 7:
			return // cut on the way
		default:
			r.t.Errorf("client sent a frame of tag %d", tag)
		}
		if received += len(msg); r.cutInF > 0 && received > r.cutInF {
			return
		}
	}
}

// cutListener accepts connections, and cuts them in the middle of their data.
type cutListener struct {
	net.Listener
	relay *relay
}

func (l cutListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: c, relay: l.relay}, nil
}

type cutConn struct {
	net.Conn
	relay   *relay
	in, out int // each used by one goroutine
}

var errCut = errors.New("cut")

func (c *cutConn) Write(p []byte) (int, error) {
	if limit := c.relay.cutOut; limit > 0 && c.out+len(p) > limit {
		n, _ := c.Conn.Write(p[:max(0, limit-c.out)])
		c.out += n
		c.Conn.Close()
		return n, errCut
	}
	n, err := c.Conn.Write(p)
	c.out += n
	return n, err
}

func (c *cutConn) Read(p []byte) (int, error) {
	if limit := c.relay.cutIn; limit > 0 {
		if c.in >= limit {
			c.Conn.Close()
			return 0, errCut
		}
		p = p[:min(len(p), limit-c.in)]
	}
	n, err := c.Conn.Read(p)
	c.in += n
	return n, err
}

// hastyClock makes waits a hundred times shorter. By this clock, a relay that waits some tenths
// of a second for a CPU seems silent.
type hastyClock struct {
	scale time.Duration // default 100
	mu    sync.Mutex
	begin time.Time
}

func (c *hastyClock) factor() time.Duration { return cmp.Or(c.scale, 100) }

func (c *hastyClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begin.IsZero() {
		c.begin = time.Now()
	}
	return c.begin.Add(time.Since(c.begin) * c.factor())
}

func (c *hastyClock) After(d time.Duration) <-chan time.Time {
	return time.After(d / c.factor())
}

// leisurelyClock makes waits longer, so that Close can send everything, even on a busy
// machine.
type leisurelyClock struct{}

const leisure = 60

func (leisurelyClock) Now() time.Time                         { return time.Now() }
func (leisurelyClock) After(d time.Duration) <-chan time.Time { return time.After(leisure * d) }

// newTarget listens, and calls handle for each connection in a goroutine.
func newTarget(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); handle(c) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }
