package iap

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/net/nettest"

	"multihost/internal/testkit"
)

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// checkEcho sends data through c to a target that echoes it, and compares the echo with
// data. It reads and writes in pieces of all sizes.
func checkEcho(t *testing.T, c net.Conn, data []byte) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		for rest := data; len(rest) > 0; {
			n := min(len(rest), 1+mathrand.N(100<<10))
			if _, err := c.Write(rest[:n]); err != nil {
				t.Errorf("write with %d bytes to go: %v", len(rest), err)
				return
			}
			rest = rest[n:]
		}
	})
	defer wg.Wait()
	got := make([]byte, len(data))
	for have := 0; have < len(got); {
		n, err := c.Read(got[have:min(len(got), have+1+mathrand.N(50<<10))])
		if err != nil {
			t.Fatalf("read after %d of %d bytes: %v", have, len(got), err)
		}
		have += n
	}
	if !bytes.Equal(got, data) {
		t.Error("what came back is not what was sent")
	}
}

// The test cuts the WebSocket every 40 KB in both directions.
func TestNothingLostOrDoubled(t *testing.T) {
	const cut = 40_000
	for _, row := range []struct {
		name  string
		size  int
		relay func(*relay)
	}{
		{"cut in the middle of frames", 5 << 20, func(r *relay) { r.cutIn, r.cutOut = cut, cut+123 }},
		{"cut between frames", 5 << 20, func(r *relay) { r.cutInF, r.cutOutFrame = cut, cut }},
		{"odd frames, lost acknowledgements", 1 << 20, func(r *relay) {
			r.cutOut, r.cutInF, r.oddFrames = cut, cut, true
			r.loseAcks.Store(true)
		}},
		{"no cuts", 5 << 20, func(*relay) {}},
	} {
		t.Run(row.name, func(t *testing.T) {
			testkit.NoLeaks(t)
			r := newRelay(t, newTarget(t, echo), row.relay)
			checkEcho(t, r.dial(t), randomBytes(row.size))
			// A cut can hit both directions at the same moment, so not every cut adds a
			// connect.
			if cuts := row.size / cut; row.name != "no cuts" && r.connects() < cuts {
				t.Errorf("%d connects, want at least %d", r.connects(), cuts)
			}
			if most := r.session().mostInFlight(); most > sendWindow+3*relayMaxData {
				t.Errorf("%d bytes in flight", most)
			}
		})
	}
}

func TestMessageCutBetweenFragments(t *testing.T) {
	testkit.NoLeaks(t)
	r := newRelay(t, newTarget(t, echo), func(r *relay) { r.cutFragments.Store(5) })
	checkEcho(t, r.dial(t), randomBytes(100_000))
	if n := r.connects(); n < 6 {
		t.Errorf("%d connects, want 6", n)
	}
}

func TestWritesDoNotMix(t *testing.T) {
	testkit.NoLeaks(t)
	const size = 2 * sendWindow
	arrived := make(chan []byte, 1)
	r := newRelay(t, newTarget(t, func(c net.Conn) {
		got := make([]byte, 2*size)
		_, _ = io.ReadFull(c, got)
		arrived <- got
	}))
	c := r.dial(t)
	var wg sync.WaitGroup
	for _, mark := range []string{"a", "b"} {
		wg.Go(func() {
			if _, err := c.Write(bytes.Repeat([]byte(mark), size)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := <-arrived
	if half := bytes.Count(got[:size], got[:1]); half != size {
		t.Errorf("%d bytes of the first half are of one write, want %d", half, size)
	}
}

func TestBuffer(t *testing.T) {
	var b buffer
	var want []byte
	for range 10_000 {
		if n := mathrand.N(300); mathrand.N(2) == 0 {
			more := randomBytes(n)
			b.add(more)
			want = append(want, more...)
		} else {
			n = min(n, len(want))
			b.drop(n)
			want = want[n:]
		}
		if !bytes.Equal(b.bytes(), want) {
			t.Fatal("bytes differ")
		}
		if len(want) < 1000 && cap(b.all) > keepBuffer {
			t.Fatalf("%d bytes take %d", len(want), cap(b.all))
		}
	}
}

// Nothing is read before everything is written, so acknowledgements queue behind data.
func TestWriteDoesNotWaitForRead(t *testing.T) {
	testkit.NoLeaks(t)
	data := randomBytes(3 * sendWindow)
	arrived := make(chan []byte, 1)
	r := newRelay(t, newTarget(t, func(c net.Conn) {
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { _, _ = c.Write(data) })
		got := make([]byte, len(data))
		_, _ = io.ReadFull(c, got)
		arrived <- got
	}), func(r *relay) { r.unbounded = true })
	c := r.dial(t)
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) || !bytes.Equal(<-arrived, data) {
		t.Error("bytes differ")
	}
}

func TestATunnelIsANetConn(t *testing.T) {
	testkit.NoLeaks(t)
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		peers := make(chan net.Conn, 1)
		ended := make(chan struct{})
		r := newRelay(t, newTarget(t, func(c net.Conn) {
			peers <- c
			<-ended
		}))
		proxy := r.iap()
		proxy.Clock = leisurelyClock{} // time for Close to send all
		c1, err = proxy.Dial(t.Context(), "z1", "vm1", "nic0", 22)
		if err != nil {
			return nil, nil, nil, err
		}
		c2 = <-peers
		return c1, c2, func() { c1.Close(); c2.Close(); close(ended) }, nil
	})
}

// serveSSH is an SSH server on c. Its commands echo their input.
func serveSSH(t *testing.T, c net.Conn, key ssh.Signer) {
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(key)
	conn, chans, reqs, err := ssh.NewServerConn(c, config)
	if err != nil {
		t.Errorf("serve ssh: %v", err)
		return
	}
	defer conn.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { ssh.DiscardRequests(reqs) })
	for offered := range chans {
		ch, requests, err := offered.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			for req := range requests {
				_ = req.Reply(req.Type == "exec", nil)
				if req.Type == "exec" {
					wg.Go(func() {
						_, _ = io.Copy(ch, ch)
						_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{7}))
						_ = ch.Close()
					})
				}
			}
		})
	}
}

func TestCarriesSSH(t *testing.T) {
	testkit.NoLeaks(t)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	r := newRelay(t, newTarget(t, func(c net.Conn) { serveSSH(t, c, key) }), func(r *relay) {
		r.cutIn, r.cutOut = 50_000, 70_000
	})
	raw := r.dial(t)
	if err := raw.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	conn, chans, reqs, err := ssh.NewClientConn(raw, "vm1:22", &ssh.ClientConfig{User: "u", HostKeyCallback: ssh.FixedHostKey(key.PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	client := ssh.NewClient(conn, chans, reqs)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	data := randomBytes(1 << 20)
	var out bytes.Buffer
	session.Stdin, session.Stdout = bytes.NewReader(data), &out
	err = session.Run("echo")
	var exit *ssh.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != 7 {
		t.Errorf("session ended with %v, want status 7", err)
	}
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes came back, want the %d that were sent", out.Len(), len(data))
	}
	if r.connects() < 20 {
		t.Errorf("only %d connects", r.connects())
	}
}

// expireWhenFull waits until the window of c has been full for a moment. Then it sets a
// write deadline that ends the write, and closes the channel.
func expireWhenFull(t *testing.T, c net.Conn) <-chan struct{} {
	conn, expired := c.(*tunnel), make(chan struct{})
	go func() {
		defer close(expired)
		full := 0
		testkit.Eventually(t, "the window is full", func() bool {
			conn.mu.Lock()
			defer conn.mu.Unlock()
			if full++; conn.outbox.len() < sendWindow {
				full = 0
			}
			return full > 50
		})
		_ = c.SetWriteDeadline(time.Now())
	}()
	return expired
}

func TestDeadlines(t *testing.T) {
	testkit.NoLeaks(t)
	release := make(chan struct{})
	r := newRelay(t, newTarget(t, func(c net.Conn) {
		<-release
		echo(c)
	}))
	c := r.dial(t)
	defer close(release)

	_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read: %v, want a timeout", err)
	}
	flood := make([]byte, 50<<20)
	written := expireWhenFull(t, c)
	n, err := c.Write(flood)
	<-written
	if !errors.Is(err, os.ErrDeadlineExceeded) || n < sendWindow {
		t.Errorf("write: %d bytes, %v, want a timeout and a full window", n, err)
	}
	// A timeout does not end the connection.
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Error(err)
	}
	release <- struct{}{}
	if _, err := io.CopyN(io.Discard, c, int64(n)); err != nil {
		t.Errorf("read %d bytes back: %v", n, err)
	}
}

func TestDeadlineWhileCutOff(t *testing.T) {
	testkit.NoLeaks(t)
	var away atomic.Bool
	r := newRelay(t, newTarget(t, echo), func(r *relay) {
		r.refuse = func(string) int {
			if away.Load() {
				return http.StatusServiceUnavailable
			}
			return 0
		}
	})
	c := r.dial(t)
	away.Store(true)
	r.drop()
	testkit.Eventually(t, "a reconnect is tried", func() bool { return r.connects() > 2 })
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v, want a timeout", err)
	}
	if _, err := io.WriteString(c, "still here"); err != nil {
		t.Error(err)
	}
	_ = c.SetReadDeadline(time.Time{})
	away.Store(false)
	got := make([]byte, len("still here"))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "still here" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestCloseEndsReadAndWrite(t *testing.T) {
	for _, state := range []string{"connected", "cut off"} {
		t.Run(state, func(t *testing.T) {
			testkit.NoLeaks(t)
			release := make(chan struct{})
			var away atomic.Bool
			r := newRelay(t, newTarget(t, func(net.Conn) { <-release }), func(r *relay) {
				r.refuse = func(string) int {
					if away.Load() {
						return http.StatusServiceUnavailable
					}
					return 0
				}
			})
			defer close(release)
			c := r.dial(t)
			if state == "cut off" {
				away.Store(true)
				r.drop()
				testkit.Eventually(t, "a reconnect is tried", func() bool { return r.connects() > 1 })
			}
			ended := make(chan error, 2)
			go func() { _, err := c.Read(make([]byte, 1)); ended <- err }()
			go func() { _, err := c.Write(make([]byte, 50<<20)); ended <- err }()
			testkit.Eventually(t, "the window is full", func() bool {
				conn := c.(*tunnel)
				conn.mu.Lock()
				defer conn.mu.Unlock()
				return conn.outbox.len() == sendWindow
			})
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for range 2 {
				if err := <-ended; !errors.Is(err, net.ErrClosed) {
					t.Errorf("ended with %v, want net.ErrClosed", err)
				}
			}
			if err := c.SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
				t.Errorf("deadline of a closed connection: %v", err)
			}
		})
	}
}

func TestCloseSendsWhatWasWritten(t *testing.T) {
	testkit.NoLeaks(t)
	got := make(chan []byte, 1)
	r := newRelay(t, newTarget(t, func(c net.Conn) {
		all, _ := io.ReadAll(c)
		got <- all
	}))
	proxy := r.iap()
	proxy.Clock = leisurelyClock{} // time for Close
	c, err := proxy.Dial(t.Context(), "z1", "vm1", "nic0", 22)
	if err != nil {
		t.Fatal(err)
	}
	data := randomBytes(300 << 10)
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	s := r.session()
	begin := time.Now()
	c.Close()
	if took := time.Since(begin); took >= leisure*linger {
		t.Errorf("close took %s: it has waited for nothing", took)
	}
	if all := <-got; !bytes.Equal(all, data) {
		t.Errorf("%d bytes arrived, want %d", len(all), len(data))
	}
	if code := <-s.farewell; code != 1000 {
		t.Errorf("taken leave with code %d, want 1000", code)
	}
}

func TestEndOfTheOtherSide(t *testing.T) {
	hangUp := func(c net.Conn) { _, _ = io.WriteString(c, "last words") }

	t.Run("in good order", func(t *testing.T) {
		testkit.NoLeaks(t)
		c := newRelay(t, newTarget(t, hangUp)).dial(t)
		all, err := io.ReadAll(c)
		if err != nil || string(all) != "last words" {
			t.Errorf("read %q, %v", all, err)
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write: %v, want a broken pipe", err)
		}
	})
	t.Run("by sshd", func(t *testing.T) {
		testkit.NoLeaks(t)
		c := newRelay(t, newTarget(t, hangUp), func(r *relay) { r.noTarget = 4010 }).dial(t)
		all, err := io.ReadAll(c)
		var e *Error
		if string(all) != "last words" || !errors.As(err, &e) || e.Code != 4010 || !strings.Contains(e.Hint(), "journalctl") {
			t.Errorf("read %q, %v", all, err)
		}
		var broken *net.OpError
		if !errors.As(err, &broken) {
			t.Errorf("%v does not say that the connection was cut off", err)
		}
		if _, again := c.Write([]byte("x")); !errors.As(again, &e) {
			t.Errorf("write: %v, want the same", again)
		}
	})
	t.Run("session expired while cut off", func(t *testing.T) {
		testkit.NoLeaks(t)
		r := newRelay(t, newTarget(t, echo))
		c := r.dial(t)
		checkEcho(t, c, randomBytes(100))
		r.expired.Store(true)
		r.drop()
		_, err := c.Read(make([]byte, 1))
		var e *Error
		if !errors.As(err, &e) || e.Code != 4001 || e.Hint() == "" || !strings.Contains(err.Error(), "unknown sid") {
			t.Errorf("read: %v", err)
		}
	})
}

func TestDialErrors(t *testing.T) {
	const (
		role = "roles/iap.tunnelResourceAccessor"
		rule = "multihost network firewall create NET-ssh --network=NET --allow=tcp:22 --source-ranges=35.235.240.0/20"
	)
	for _, row := range []struct {
		http, code int
		hint       string
		permanent  bool
	}{
		{http: 400, hint: role, permanent: true},
		{http: 401, hint: "application-default login", permanent: true},
		{http: 403, hint: role, permanent: true},
		{http: 404, hint: `no instance "vm1"`},
		{http: 302},
		{http: 503},
		{code: 1011},
		{code: 4003, hint: rule},
		{code: 4010, hint: "journalctl"},
		{code: 4033, hint: role, permanent: true},
		{code: 4047, hint: `no instance "vm1"`},
	} {
		t.Run(fmt.Sprint(row.http+row.code), func(t *testing.T) {
			testkit.NoLeaks(t)
			r := newRelay(t, newTarget(t, echo), func(r *relay) {
				r.refuse = func(string) int { return row.http }
				r.closeWith = func(string) int { return row.code }
			})
			_, err := r.iap().Dial(t.Context(), "z1", "vm1", "nic0", 22)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v of type %T", err, err)
			}
			if e.HTTP != row.http || e.Code != row.code || e.Instance != "vm1" || e.Permanent() != row.permanent {
				t.Errorf("got %+v", e)
			}
			if reason := map[bool]string{true: ": not today", false: "because of you"}[row.http != 0]; !strings.Contains(err.Error(), reason) {
				t.Errorf("%q does not keep the reason %q", err, reason)
			}
			if hint := e.Hint(); !strings.Contains(hint, row.hint) || (row.hint == "") != (hint == "") {
				t.Errorf("hint %q, want %q in it", hint, row.hint)
			}
			if r.connects() != 1 {
				t.Errorf("%d connects: a failed dial is the caller's to repeat", r.connects())
			}
		})
	}
}

func TestDialFailsWithoutARelay(t *testing.T) {
	testkit.NoLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = (&Proxy{Endpoint: "ws://" + l.Addr().String() + "/v4", Project: "p1"}).Dial(t.Context(), "z1", "vm1", "nic0", 22)
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, syscall.ECONNREFUSED) || strings.Contains(err.Error(), "newWebsocket") {
		t.Errorf("got %v", err)
	}
	noToken := errors.New("logged out")
	_, err = (&Proxy{Project: "p1", Token: func(context.Context) (string, error) { return "", noToken }}).Dial(t.Context(), "z1", "vm1", "nic0", 22)
	if !errors.As(err, &e) || !errors.Is(err, noToken) {
		t.Errorf("got %v", err)
	}
	_, err = new(Proxy).Dial(t.Context(), "z1", "vm1", "nic0", 22)
	if !errors.As(err, &e) || !e.Permanent() {
		t.Errorf("got %v", err)
	}
}

func TestDialEndsInTime(t *testing.T) {
	testkit.NoLeaks(t)
	r := newRelay(t, newTarget(t, echo), func(r *relay) { r.mute.Store(true) })
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, enough)
	defer cancel()
	if _, err := r.iap().Dial(ctx, "z1", "vm1", "nic0", 22); !errors.Is(err, enough) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	proxy := r.iap()
	proxy.openLimit = 20 * time.Millisecond
	var timeout net.Error
	if _, err := proxy.Dial(t.Context(), "z1", "vm1", "nic0", 22); !strings.Contains(err.Error(), "no answer within 20ms") {
		t.Errorf("got %v (timeout: %v)", err, errors.As(err, &timeout))
	}
}

func TestContextBoundsOnlyTheDial(t *testing.T) {
	testkit.NoLeaks(t)
	r := newRelay(t, newTarget(t, echo))
	ctx, cancel := context.WithCancel(t.Context())
	c, err := r.iap().Dial(ctx, "z1", "vm1", "nic0", 22)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cancel()
	checkEcho(t, c, randomBytes(1000))
	r.drop()
	checkEcho(t, c, randomBytes(1000))
}

func TestTokenIsFetchedAnew(t *testing.T) {
	testkit.NoLeaks(t)
	r := newRelay(t, newTarget(t, echo))
	var asked atomic.Int32
	proxy := r.iap()
	proxy.Clock = nil // by a fast clock the relay might seem silent
	proxy.Token = func(context.Context) (string, error) { return fmt.Sprint("token", asked.Add(1)), nil }
	c, err := proxy.Dial(t.Context(), "z1", "vm1", "nic0", 22)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.drop()
	checkEcho(t, c, randomBytes(1000))
	r.mu.Lock()
	defer r.mu.Unlock()
	if want := []string{"token1", "token2"}; !slices.Equal(r.tokens, want) {
		t.Errorf("tokens %q, want %q", r.tokens, want)
	}
	if want := []string{"/v4/connect", "/v4/reconnect"}; !slices.Equal(r.paths, want) {
		t.Errorf("paths %q, want %q", r.paths, want)
	}
}

func TestAddresses(t *testing.T) {
	testkit.NoLeaks(t)
	c := newRelay(t, newTarget(t, echo)).dial(t)
	if a := c.RemoteAddr(); a.String() != "vm1:22" || a.Network() != "iap" {
		t.Errorf("remote address %s %s", a.Network(), a)
	}
	if a, ok := c.LocalAddr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		t.Errorf("local address %v", c.LocalAddr())
	}
}

func TestMemoryIsBounded(t *testing.T) {
	testkit.NoLeaks(t)
	t.Run("of what is sent", func(t *testing.T) {
		r := newRelay(t, newTarget(t, echo), func(r *relay) { r.deaf.Store(true) })
		c := r.dial(t)
		flood := make([]byte, 20<<20)
		written := expireWhenFull(t, c)
		if n, err := c.Write(flood); n != sendWindow || err == nil {
			t.Errorf("wrote %d bytes, %v; want %d", n, err, sendWindow)
		}
		<-written
	})
	t.Run("of what is received", func(t *testing.T) {
		data := randomBytes(12 << 20)
		r := newRelay(t, newTarget(t, func(c net.Conn) { _, _ = c.Write(data); echo(c) }), func(r *relay) { r.unbounded = true })
		c := r.dialBy(t, &hastyClock{scale: 20}) // slower than usual, because the test counts connects
		conn := c.(*tunnel)
		waiting := func() int {
			conn.mu.Lock()
			defer conn.mu.Unlock()
			return conn.inbox.len()
		}
		testkit.Eventually(t, "the window is full", func() bool { return waiting() >= readWindow })
		// Here the relay is not the cause of the silence.
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		begin := conn.clock.Now()
		testkit.Eventually(t, "the relay might seem silent", func() bool {
			return conn.clock.Now().Sub(begin) > stallLimit+2*stallCheck
		})
		if n := r.connects(); n != 1 {
			t.Errorf("%d connects, want 1", n)
		}
		got := make([]byte, len(data)+1)
		for have := 0; have < len(got); {
			n, err := c.Read(got[have:])
			if err != nil {
				t.Fatal(err)
			}
			have += n
			if n := waiting(); n > readWindow+relayMaxMessage {
				t.Fatalf("%d bytes wait", n)
			}
		}
		if !bytes.Equal(got, append(data, 'x')) {
			t.Error("bytes differ")
		}
		conn.mu.Lock()
		defer conn.mu.Unlock()
		if n := cap(conn.inbox.all); n > keepBuffer {
			t.Errorf("an idle tunnel holds a buffer of %d bytes", n)
		}
	})
}

func TestSilentRelayIsGivenUp(t *testing.T) {
	testkit.NoLeaks(t)
	r := newRelay(t, newTarget(t, echo), func(r *relay) { r.deaf.Store(true) })
	c := r.dialBy(t, &hastyClock{scale: 20}) // slower than usual, because the test counts connects
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a reconnect", func() bool { return r.connects() > 1 })
	r.deaf.Store(false)
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
	before := r.connects()
	testkit.Eventually(t, "an idle minute", func() bool {
		conn := c.(*tunnel)
		conn.mu.Lock()
		defer conn.mu.Unlock()
		return conn.waiting.IsZero() && conn.clock.Now().Sub(conn.opened) > time.Minute
	})
	if after := r.connects(); after != before {
		t.Errorf("%d reconnects of an idle tunnel", after-before)
	}
}

func TestGivesUpReconnecting(t *testing.T) {
	testkit.NoLeaks(t)
	r := newRelay(t, newTarget(t, echo), func(r *relay) {
		r.refuse = func(path string) int {
			if path == "/v4/connect" {
				return 0
			}
			return http.StatusBadGateway
		}
	})
	proxy := r.iap()
	proxy.Clock = &hastyClock{scale: 1000}
	c, err := proxy.Dial(t.Context(), "z1", "vm1", "nic0", 22)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.drop()
	_, err = c.Read(make([]byte, 1))
	var e *Error
	if !errors.As(err, &e) || e.HTTP != http.StatusBadGateway || !strings.Contains(err.Error(), "no reconnect within 15m0s") {
		t.Errorf("got %v", err)
	}
	if n := r.connects(); n < 2 || n > 150 {
		t.Errorf("%d connects in 15 minutes", n)
	}
}

func TestReconnectWaits(t *testing.T) {
	for range 1000 {
		if d := reconnectWait(0); d >= 250*time.Millisecond {
			t.Fatalf("first wait %s", d)
		}
		if d := reconnectWait(1); d < 500*time.Millisecond || d >= time.Second {
			t.Fatalf("second wait %s", d)
		}
		if d := reconnectWait(50); d < 10*time.Second || d >= 20*time.Second {
			t.Fatalf("late wait %s", d)
		}
	}
}

func TestReconnectsWhatCanBeMended(t *testing.T) {
	for code, want := range map[int]bool{1001: true, 1011: true, 1012: true, 4002: true, 4004: true, 4003: false, 4000: false, 4033: false} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			testkit.NoLeaks(t)
			var once atomic.Bool
			r := newRelay(t, newTarget(t, echo), func(r *relay) {
				r.closeWith = func(path string) int {
					if path == "/v4/reconnect" && once.CompareAndSwap(false, true) {
						return code
					}
					return 0
				}
			})
			c := r.dial(t)
			r.drop()
			if want {
				checkEcho(t, c, randomBytes(1000))
				return
			}
			_, err := c.Read(make([]byte, 1))
			var e *Error
			if !errors.As(err, &e) || e.Code != code {
				t.Errorf("read: %v, want code %d", err, code)
			}
		})
	}
}

func TestRefusesABrokenProtocol(t *testing.T) {
	number := func(tag byte, n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{0, tag}, n) }
	for _, row := range []struct {
		name               string
		connect, reconnect []byte
		want               string
	}{
		{"data before the greeting", []byte{0, 4, 0, 0, 0, 1, 'x'}, nil, "began with a frame of tag 4"},
		{"a new tunnel is greeted as an old one", number(2, 0), nil, "began with a frame of tag 2"},
		{"no session id", []byte{0, 1, 0, 0, 0, 0}, nil, "began with a frame of tag 1"},
		{"a giant", make([]byte, 70<<10), nil, "more than 65536 bytes"},
		{"a cut greeting", []byte{0, 1, 0, 0, 0, 9, 'x'}, nil, "incomplete frame"},
		{"an old tunnel is greeted as a new one", nil, []byte{0, 1, 0, 0, 0, 1, 'x'}, "began with a frame of tag 1"},
		{"confirms what was never sent", nil, number(2, 1000), "confirmed 1000 bytes of 100"},
		{"takes back what it confirmed", nil, number(2, 50), "lost 50 bytes"},
	} {
		t.Run(row.name, func(t *testing.T) {
			testkit.NoLeaks(t)
			r := newRelay(t, newTarget(t, echo), func(r *relay) {
				var reconnects atomic.Int32
				r.greeting = func(path string) []byte {
					if path == "/v4/connect" {
						return row.connect
					}
					if reconnects.Add(1) == 1 {
						return nil // confirms the 100 bytes
					}
					return row.reconnect
				}
			})
			proxy := r.iap()
			c, err := proxy.Dial(t.Context(), "z1", "vm1", "nic0", 22)
			if row.connect == nil {
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				checkEcho(t, c, randomBytes(100))
				r.drop()
				testkit.Eventually(t, "a reconnect", func() bool {
					conn := c.(*tunnel)
					conn.mu.Lock()
					defer conn.mu.Unlock()
					return conn.confirmed == 100
				})
				r.drop()
				_, err = c.Read(make([]byte, 1))
			}
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}

func FuzzRelayFrame(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendDataFrame(nil, []byte("hello")))
	f.Add(appendAckFrame(nil, 1<<40))
	f.Add([]byte{0, 1, 0xff, 0xff, 0xff, 0xff, 'x'})
	f.Add([]byte{0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 2})
	f.Add([]byte{0, 9, 1})
	f.Fuzz(func(t *testing.T, msg []byte) {
		frame, err := parseRelayFrame(msg)
		if err != nil {
			if !errors.Is(err, errShortFrame) {
				t.Fatalf("error %v", err)
			}
			// The missing bytes may still come. So a prefix of a good frame is incomplete
			// and not malformed.
			if len(msg) >= 6 && msg[0] == 0 && (msg[1] == relayData || msg[1] == relaySID) && msg[2] == 0 {
				if _, err := parseRelayFrame(append(bytes.Clone(msg), make([]byte, 1<<24)...)); err != nil {
					t.Fatalf("a completed frame is refused: %v", err)
				}
			}
			return
		}
		if len(msg) < 2 || frame.tag != binary.BigEndian.Uint16(msg) || len(frame.data) > len(msg)-2 {
			t.Fatalf("%x read as %+v", msg, frame)
		}
		var again []byte
		switch frame.tag {
		case relayData:
			again = appendDataFrame(nil, frame.data)
		case relayAck:
			again = appendAckFrame(nil, frame.count)
		}
		if !bytes.HasPrefix(msg, again) {
			t.Fatalf("%x written as %x", msg, again)
		}
	})
}
