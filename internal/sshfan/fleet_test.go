package sshfan_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

func hostAt(name, addr string) sshfan.Host {
	return sshfan.Host{
		Name: name,
		Addr: func(context.Context) (string, error) { return addr, nil },
		User: "tester",
		Pin:  "node-1/" + name,
	}
}

// connect connects to one host, and must succeed.
func connect(t testing.TB, f *sshfan.Fleet, h sshfan.Host) *sshfan.Conn {
	t.Helper()
	conns, errs := f.Connect(t.Context(), []sshfan.Host{h})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	return conns[0]
}

// refused connects to one host, and must fail at stage.
func refused(t testing.TB, f *sshfan.Fleet, h sshfan.Host, stage remote.Stage) *remote.ConnectError {
	t.Helper()
	conns, errs := f.Connect(t.Context(), []sshfan.Host{h})
	var e *remote.ConnectError
	if !errors.As(errs[0], &e) || conns[0] != nil {
		t.Fatalf("got connection %v and error %v, want a ConnectError", conns[0], errs[0])
	}
	if e.Stage != stage || e.Host != h.Name {
		t.Fatalf("got failure of %s at stage %q (%v), want %s at %q", e.Host, e.Stage, e, h.Name, stage)
	}
	return e
}

func run(t testing.TB, c *sshfan.Conn, line string) (stdout, stderr string, status remote.Status) {
	t.Helper()
	var out, errs bytes.Buffer
	status, err := c.Run(t.Context(), remote.Cmd{Line: line, Stdout: &out, Stderr: &errs})
	if err != nil {
		t.Fatalf("run %q: %v", line, err)
	}
	return out.String(), errs.String(), status
}

func TestConnectBoundsHandshakesNotSessions(t *testing.T) {
	testkit.NoLeaks(t)
	const hosts, bound = 256, 16
	s := newServer(t)
	f := newFleet(t, func(c *sshfan.Config) {
		c.MaxDials = bound
	})
	list := make([]sshfan.Host, hosts)
	for i := range list {
		list[i] = s.host(fmt.Sprintf("s0w%d", i))
	}
	conns, errs := f.Connect(t.Context(), list)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if most := s.mostAtOnce.Load(); most > bound {
		t.Errorf("%d handshakes at once, want at most %d", most, bound)
	}
	sessions := make([]remote.Session, hosts)
	for i, c := range conns {
		var err error
		if sessions[i], err = c.Start(t.Context(), remote.Cmd{Line: "sleep"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.execs.Load(); n != hosts {
		t.Errorf("%d sessions at once, want %d", n, hosts)
	}
	for _, s := range sessions {
		s.Close()
	}
}

func TestIdleConnectionCostsFourGoroutines(t *testing.T) {
	testkit.NoLeaks(t)
	const hosts = 64
	// The server runs in this process, so recognize its goroutines by their stacks.
	s := newServer(t)
	f := newFleet(t)
	list := make([]sshfan.Host, hosts)
	for i := range list {
		list[i] = s.host(fmt.Sprintf("s0w%d", i))
	}
	conns, errs := f.Connect(t.Context(), list)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, c := range conns {
		run(t, c, "true")
	}
	per := func() float64 {
		buf := make([]byte, 8<<20)
		buf = buf[:runtime.Stack(buf, true)]
		n := 0
		for stack := range strings.SplitSeq(string(buf), "\n\n") {
			if strings.Contains(stack, "internal/sshfan.(*link).serve(") || strings.Contains(stack, "internal/sshfan.(*Session)") ||
				strings.Contains(stack, "created by golang.org/x/crypto/ssh.newClientTransport") {
				n++
			}
		}
		// Both sides create a multiplexer in the same function: half of them are the
		// client's.
		n += bytes.Count(buf, []byte("created by golang.org/x/crypto/ssh.newMux")) / 2
		return float64(n) / hosts
	}
	testkit.Eventually(t, "four goroutines per idle connection, once sessions have ended", func() bool {
		got := per()
		return got > 3.9 && got < 4.1
	})
}

func TestSilentHostEndsByItsOwnDeadline(t *testing.T) {
	testkit.NoLeaks(t)
	good := newServer(t)
	silent := newServer(t, func(s *server) { s.silent = true })
	f := newFleet(t, func(c *sshfan.Config) {
		c.ConnectTimeout = 3 * time.Second // not less, because the good host has no more time
		c.RetryFor = time.Millisecond
	})
	conns, errs := f.Connect(t.Context(), []sshfan.Host{silent.host("s0w0"), good.host("s0w1")})
	if errs[1] != nil {
		t.Fatal(errs[1])
	}
	run(t, conns[1], "true")
	var e *remote.ConnectError
	if !errors.As(errs[0], &e) || e.Stage != remote.StageHandshake || e.Hint() == "" {
		t.Fatalf("got %v, want a handshake failure with a hint", errs[0])
	}
	if want := "no answer within 3s"; !strings.Contains(e.Error(), want) {
		t.Errorf("error %q does not say %q", e, want)
	}
}

func TestConnectIsTriedAgainWhileTheHostBoots(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t, func(s *server) { s.hangUpFirst.Store(1) })
	asked := 0
	closed := closedPort(t)
	h := s.host("s0w0")
	h.Addr = func(context.Context) (string, error) {
		asked++
		switch asked {
		case 1:
			return "", errors.New("no address yet")
		case 2:
			return closed, nil // refused, because sshd is not up yet
		}
		return s.addr(), nil // closed during the handshake; the next try works
	}
	sink := &notes{}
	f := newFleet(t, func(c *sshfan.Config) { c.Sink = sink })
	run(t, connect(t, f, h), "true")
	if asked != 4 {
		t.Errorf("address asked for %d times, want 4: once per try", asked)
	}
	all := sink.progress()
	if first, last := all[0], all[len(all)-1]; first.Done != 0 || first.Total != 1 || first.Waiting != "s0w0" || last.Done != 1 || last.Waiting != "" {
		t.Errorf("progress begins with %+v and ends with %+v", first, last)
	}
}

func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestRefusedPortIsADialFailure(t *testing.T) {
	testkit.NoLeaks(t)
	f := newFleet(t, func(c *sshfan.Config) { c.RetryFor = time.Millisecond })
	e := refused(t, f, hostAt("s0w0", closedPort(t)), remote.StageDial)
	if !strings.Contains(e.Error(), "connection refused") || e.Hint() == "" {
		t.Errorf("got error %q with hint %q", e, e.Hint())
	}
}

func TestKeyRefusedThenAccepted(t *testing.T) {
	testkit.NoLeaks(t)
	var asked atomic.Int32
	s := newServer(t, func(s *server) {
		s.accept = func(string, ssh.PublicKey) bool { return asked.Add(1) > 2 }
	})
	run(t, connect(t, newFleet(t), s.host("s0w0")), "true")
	if s.logins.Load() != 1 {
		t.Errorf("%d logins, want 1", s.logins.Load())
	}
}

func TestKeyRefusedForGood(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t, func(s *server) {
		s.accept = func(string, ssh.PublicKey) bool { return false }
	})
	id := newIdentity(t)
	clock := &skippingClock{}
	clock.skip.Store(true)
	f := newFleet(t, func(c *sshfan.Config) {
		c.Identity, c.Clock, c.KeepAlive, c.AuthRetryFor = id, clock, time.Hour, 10*time.Second
	})
	e := refused(t, f, s.host("s0w0"), remote.StageAuth)
	if !errors.Is(e, remote.ErrKeyRefused) || e.Tries < 2 {
		t.Errorf("got %v after %d tries, want ErrKeyRefused after several", e, e.Tries)
	}
	for _, want := range []string{`"tester"`, strings.Fields(id.Fingerprint())[1], "authorized_keys", "journalctl"} {
		if !strings.Contains(e.Hint(), want) {
			t.Errorf("hint %q does not name %s", e.Hint(), want)
		}
	}
	if !strings.Contains(e.Error(), "does not take it") {
		t.Errorf("error %q does not tell a wrong key from a VM that boots", e)
	}
}

func TestWrongKeyIsToldFromABootingVM(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t, func(s *server) {
		s.accept = func(user string, _ ssh.PublicKey) bool { return user == "tester" }
	})
	f := newFleet(t, func(c *sshfan.Config) { c.AuthRetryFor = time.Millisecond })
	connect(t, f, s.host("s0w0"))
	other := s.host("s0w1")
	other.User = "other"
	if e := refused(t, f, other, remote.StageAuth); !strings.Contains(e.Hint(), "other workers accept this key") {
		t.Errorf("one of two workers refuses the key: hint %q", e.Hint())
	}

	t.Run("booting", func(t *testing.T) {
		sshd := newServer(t, func(s *server) { s.nologin = true })
		e := refused(t, newFleet(t, func(c *sshfan.Config) { c.RetryFor = time.Millisecond }), sshd.host("s0w0"), remote.StageAuth)
		if !errors.Is(e, remote.ErrBooting) || errors.Is(e, remote.ErrKeyRefused) || !strings.Contains(e.Hint(), "not ready yet") {
			t.Errorf("got %v; %s", e, e.Hint())
		}
	})
	t.Run("interrupted before it is known", func(t *testing.T) {
		sink := &notes{}
		f := newFleet(t, func(c *sshfan.Config) { c.RetryFor, c.Sink = time.Hour, sink })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, errs := f.Connect(ctx, []sshfan.Host{other})
			failed <- errs[0]
		}()
		testkit.Eventually(t, "word of the refusal", func() bool {
			all := sink.progress()
			return len(all) > 0 && strings.Contains(all[len(all)-1].Detail, "a VM that boots refuses every key")
		})
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "does not take it") {
			t.Errorf("got %v", err)
		}
	})
}

func TestRootIsRefusedWithoutAConnection(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	h := s.host("s0w0")
	h.User = "root"
	e := refused(t, newFleet(t), h, remote.StageAuth)
	if s.logins.Load() != 0 || !strings.Contains(e.Hint(), "--user") {
		t.Errorf("got %d logins and hint %q", s.logins.Load(), e.Hint())
	}
}

func TestCancelDuringConnectReturnsAtOnce(t *testing.T) {
	testkit.NoLeaks(t)
	silent := newServer(t, func(s *server) { s.silent = true })
	f := newFleet(t, func(c *sshfan.Config) {
		c.ConnectTimeout, c.RetryFor, c.MaxDials = time.Hour, time.Hour, 1
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupt := errors.New("interrupted by the user")
	// One host is in its handshake, one waits for its turn, and one is between two tries.
	ended := make(chan []error, 1)
	go func() {
		_, errs := f.Connect(ctx, []sshfan.Host{
			silent.host("s0w0"), silent.host("s0w1"), hostAt("s0w2", closedPort(t)),
		})
		ended <- errs
	}()
	testkit.Eventually(t, "the dial", func() bool { return silent.open() > 0 })
	cancel(interrupt)
	errs := <-ended
	for i, err := range errs {
		if !errors.Is(err, interrupt) {
			t.Errorf("host %d: got %v, want the cause of the context", i, err)
		}
	}
}

func TestCloseDuringConnect(t *testing.T) {
	testkit.NoLeaks(t)
	silent := newServer(t, func(s *server) { s.silent = true })
	f := newFleet(t, func(c *sshfan.Config) { c.ConnectTimeout, c.RetryFor = time.Hour, time.Hour })
	failed := make(chan error, 1)
	go func() {
		_, errs := f.Connect(t.Context(), []sshfan.Host{silent.host("s0w0")})
		failed <- errs[0]
	}()
	testkit.Eventually(t, "the dial", func() bool { return silent.open() > 0 })
	f.Close()
	if err := <-failed; !errors.Is(err, remote.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if _, errs := f.Connect(t.Context(), []sshfan.Host{silent.host("s0w0")}); !errors.Is(errs[0], remote.ErrClosed) {
		t.Errorf("after Close got %v, want ErrClosed", errs[0])
	}
}

func TestDialHook(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	var asked string
	f := newFleet(t, func(c *sshfan.Config) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			asked = network + " " + addr
			return new(net.Dialer).DialContext(ctx, "tcp", s.addr())
		}
	})
	run(t, connect(t, f, hostAt("s0w0", "worker.example:22")), "true")
	if asked != "tcp worker.example:22" {
		t.Errorf("dialled %q", asked)
	}
}

// Each case says which host keys the API returns and the file has, which key the worker
// shows, and the result.
func TestHostKeys(t *testing.T) {
	type step struct {
		name    string
		api     string // a: key A, b: key B, "": unknown to the API
		shows   string
		pin     string
		fails   bool
		hint    string // hint of the failure; "": the command that accepts the key
		forget  bool   // the user accepts the key before the connection
		note    string // a part of a note that must be emitted
		silence bool   // no note at all
	}
	for _, story := range [][]step{
		{
			{name: "key from the API", api: "a", shows: "a", silence: true},
			{name: "then from the pin", shows: "a", silence: true},
			{name: "then another key", shows: "b", fails: true},
			{name: "another node in its place", pin: "node-2/s0w0", api: "b", shows: "b", silence: true},
		},
		{
			{name: "first use", shows: "a", note: "trusted the host keys of 1 worker on first use"},
			{name: "second use", shows: "a", silence: true},
			{name: "changed", shows: "b", fails: true},
			{name: "still changed", shows: "b", fails: true},
			{name: "changed, and the API knows", api: "b", shows: "b", fails: true, hint: "names the new key, too"},
			{name: "accepted", forget: true, api: "b", shows: "b", silence: true},
			{name: "the old one is out", shows: "a", fails: true},
			{name: "accepted, without the API", forget: true, shows: "a", note: "first use"},
		},
		{
			{name: "not the key of the API", api: "a", shows: "b", fails: true, hint: "cannot be accepted"},
			{name: "nothing was pinned", shows: "b", note: "first use"},
			{name: "the API contradicts the pin", api: "a", shows: "b", fails: true, hint: "cannot be accepted"},
			{name: "the pin contradicts the API", api: "a", shows: "a", fails: true, hint: "names the new key, too"},
		},
	} {
		t.Run(story[0].name, func(t *testing.T) {
			testkit.NoLeaks(t)
			keys := map[string]ssh.Signer{"a": newSigner(t), "b": newSigner(t)}
			s := newServer(t)
			known := filepath.Join(t.TempDir(), "state", "known_hosts")
			for _, step := range story {
				s.setHostKeys(keys[step.shows])
				h := s.host("s0w0")
				if step.pin != "" {
					h.Pin = step.pin
				}
				h.Keys = func(context.Context) ([]string, error) {
					if step.api == "" {
						return nil, sshfan.ErrNoHostKeys
					}
					return []string{string(ssh.MarshalAuthorizedKey(keys[step.api].PublicKey()))}, nil
				}
				if step.forget {
					if n, err := sshfan.ForgetHostKeys(known, h.Pin); n != 1 || err != nil {
						t.Fatalf("%s: forgot %d pins, %v", step.name, n, err)
					}
				}
				sink := &notes{}
				f := newFleet(t, func(c *sshfan.Config) {
					c.KnownHosts, c.Sink = known, sink
					c.AcceptCommand = func(name string) string { return "accept " + name }
				})
				conns, errs := f.Connect(t.Context(), []sshfan.Host{h})
				var keyErr *remote.HostKeyError
				switch {
				case step.fails && !errors.As(errs[0], &keyErr):
					t.Fatalf("%s: got %v, want a HostKeyError", step.name, errs[0])
				case step.fails:
					var e *remote.ConnectError
					errors.As(errs[0], &e)
					if e.Stage != remote.StageHostKey || e.Tries != 1 {
						t.Errorf("%s: failed at %q after %d tries", step.name, e.Stage, e.Tries)
					}
					want := ssh.FingerprintSHA256(keys[step.shows].PublicKey())
					if !strings.Contains(keyErr.Offered, want) || len(keyErr.Known) != 1 || !strings.Contains(e.Error(), "s0w0") {
						t.Errorf("%s: error does not tell all: %v; %s", step.name, e, e.Hint())
					}
					if command := "accept s0w0"; !strings.Contains(e.Hint(), step.hint) || strings.Contains(e.Hint(), command) == keyErr.Contradicted {
						t.Errorf("%s: hint %q", step.name, e.Hint())
					}
				case errs[0] != nil:
					t.Fatalf("%s: %v", step.name, errs[0])
				default:
					run(t, conns[0], "true")
				}
				f.Close()
				if step.note != "" && len(sink.texts(step.note)) != 1 {
					t.Errorf("%s: got notes %q, want one with %q", step.name, sink.texts(""), step.note)
				}
				if step.silence && len(sink.texts("")) != 0 {
					t.Errorf("%s: got notes %q", step.name, sink.texts(""))
				}
			}
			info, err := os.Stat(known)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("known hosts file: %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestHostKeyOfKnownTypeIsAskedFor(t *testing.T) {
	testkit.NoLeaks(t)
	ed, ecdsa := newSigner(t), newECDSASigner(t)
	s := newServer(t, func(s *server) { s.hostKeys = []ssh.Signer{ed, ecdsa} })
	h := s.host("s0w0")
	h.Keys = func(context.Context) ([]string, error) {
		return []string{string(ssh.MarshalAuthorizedKey(ecdsa.PublicKey()))}, nil
	}
	run(t, connect(t, newFleet(t), h), "true")
}

// A remembered host key alone does not make the fleet refuse a worker. The fleet asks the
// API once more, and that answer counts.
func TestRememberedHostKeysAreDoubtedOnce(t *testing.T) {
	testkit.NoLeaks(t)
	for name, knows := range map[string]bool{"the API knows the new key": true, "the API knows it not": false} {
		s := newServer(t)
		old, now := newSigner(t), s.hostKeys[0]
		asked := 0
		h := s.host("s0w0")
		h.Keys = func(context.Context) ([]string, error) {
			asked++
			key := old
			if knows && asked > 1 {
				key = now
			}
			return []string{string(ssh.MarshalAuthorizedKey(key.PublicKey()))}, nil
		}
		h.Doubt = func() bool { return true } // every answer counts as remembered
		_, errs := newFleet(t).Connect(t.Context(), []sshfan.Host{h})
		var keyErr *remote.HostKeyError
		if refused := errors.As(errs[0], &keyErr); refused == knows || asked != 2 {
			t.Errorf("%s: %v after asking %d times", name, errs[0], asked)
		}
	}
}

func TestTrustOnFirstUseIsSaidOncePerFleet(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	sink := &notes{}
	f := newFleet(t, func(c *sshfan.Config) { c.Sink = sink })
	for range 2 {
		hosts := make([]sshfan.Host, 7)
		for i := range hosts {
			hosts[i] = s.host(fmt.Sprintf("s%dw%d", len(sink.texts("first use")), i))
		}
		if _, errs := f.Connect(t.Context(), hosts); errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
	}
	want := []string{"trusted the host keys of 7 workers on first use (s0w0,s0w1,s0w2,s0w3,s0w4 and 2 more): the API knows no host keys of them"}
	if diff := cmp.Diff(want, sortedNames(sink.texts("first use"))); diff != "" {
		t.Error(diff)
	}
}

// A command waits for a worker whose key has changed. Meanwhile another command forgets the
// key. Then the first command forgets it, too, as the hint promises. A key that is in no
// file stays known.
func TestAKeyThatIsForgottenMeanwhileIsAccepted(t *testing.T) {
	testkit.NoLeaks(t)
	for _, row := range []struct {
		name  string
		state func(dir string) error // changes the directory of the file
		want  error
	}{
		{"in a file", func(string) error { return nil }, nil},
		{"that cannot be written", func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, new(remote.HostKeyError)},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			known := filepath.Join(dir, "known_hosts")
			s := newServer(t)
			h := s.host("s0w0")
			h.Keys = func(context.Context) ([]string, error) { return nil, sshfan.ErrNoHostKeys }
			f := newFleet(t, func(c *sshfan.Config) { c.KnownHosts = known })
			testkit.Must(t, row.state(dir))
			connect := func() error {
				conns, errs := f.Connect(t.Context(), []sshfan.Host{h})
				if errs[0] == nil {
					conns[0].Close()
				}
				return errs[0]
			}
			testkit.Must(t, connect())
			s.setHostKeys(newSigner(t))
			var refused *remote.HostKeyError
			if err := connect(); !errors.As(err, &refused) {
				t.Fatalf("a changed key: %v", err)
			}
			if _, err := sshfan.ForgetHostKeys(known, h.Pin); err != nil && row.want == nil {
				t.Fatal(err)
			}
			if err := connect(); errors.As(err, &refused) != (row.want != nil) || row.want == nil && err != nil {
				t.Errorf("after it was forgotten: %v", err)
			}
		})
	}
}

// sortedNames puts the names s0w0 to s0w4 into each text, in place of the names there. The
// order of those depends on which login ended first.
func sortedNames(texts []string) []string {
	for i, s := range texts {
		before, rest, _ := strings.Cut(s, "(")
		_, after, _ := strings.Cut(rest, " and ")
		texts[i] = before + "(s0w0,s0w1,s0w2,s0w3,s0w4 and " + after
	}
	return texts
}

func TestKeyThatChangesDuringARunStopsIt(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	h := s.host("s0w0")
	asked := 0
	h.Keys = func(context.Context) ([]string, error) { asked++; return s.keyLines(), nil }
	f := newFleet(t)
	c := connect(t, f, h)
	s.cut()
	run(t, c, "true")
	if asked != 1 {
		t.Errorf("the API was asked for keys %d times, want once per run", asked)
	}
	s.setHostKeys(newSigner(t)) // and the API returns the new key at once
	s.cut()
	var keyErr *remote.HostKeyError
	if _, err := c.Run(t.Context(), remote.Cmd{Line: "true"}); !errors.As(err, &keyErr) {
		t.Errorf("got %v, want a HostKeyError", err)
	}
	refused(t, f, h, remote.StageHostKey)
}

func TestKnownHostsFile(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "known_hosts")
	keep := "# mine\n\nother/0 " + s.keyLines()[0]
	if err := os.WriteFile(path, []byte(keep), 0o644); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, func(c *sshfan.Config) { c.KnownHosts = path })
	other := newFleet(t, func(c *sshfan.Config) { c.KnownHosts = path })
	connect(t, f, s.host("s0w0"))
	connect(t, other, s.host("s0w1")) // other has read the file before f writes it
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := keep + "\nnode-1/s0w0 " + s.keyLines()[0] + "\nnode-1/s0w1 " + s.keyLines()[0] + "\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	n, err := sshfan.ForgetHostKeys(path, "node-1/", "other/1")
	if err != nil || n != 2 {
		t.Errorf("forgot %d pins, %v; want 2", n, err)
	}
	if got, _ := os.ReadFile(path); string(got) != keep+"\n" {
		t.Errorf("file is %q after forgetting", got)
	}
	if n, err := sshfan.ForgetHostKeys(filepath.Join(dir, "none"), "x"); n != 0 || err != nil {
		t.Errorf("forgot %d pins of no file, %v", n, err)
	}

	if err := os.WriteFile(path, []byte("node-1/s0w0 ssh-ed25519 ???\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = sshfan.New(sshfan.Config{Identity: newIdentity(t), KnownHosts: path})
	var e *sshfan.KnownHostsError
	if !errors.As(err, &e) || e.Line != 1 || e.Path != path || !strings.Contains(e.Hint(), "sed -i 1d ") {
		t.Errorf("got %v, want an error that names the broken line", err)
	}
}

func TestLostConnection(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	f := newFleet(t)
	c := connect(t, f, s.host("s0w0"))

	var out bytes.Buffer
	_, err := c.Run(t.Context(), remote.Cmd{Line: "cut", Stdout: &out})
	if !errors.Is(err, remote.ErrConnectionLost) {
		t.Fatalf("cut in the middle: got %v, want ErrConnectionLost", err)
	}
	if n := s.execs.Load(); n != 1 {
		t.Errorf("command was sent %d times, want once", n)
	}
	run(t, c, "true") // connects again
	if n := s.logins.Load(); n != 2 {
		t.Errorf("%d logins, want 2", n)
	}

	status, err := c.Run(t.Context(), remote.Cmd{Line: "status-then-cut"})
	if err != nil && !errors.Is(err, remote.ErrConnectionLost) || status.Code != 0 {
		t.Errorf("cut after the status: got %v, %v", status, err)
	}
	if _, err = c.Run(t.Context(), remote.Cmd{Line: "no-status"}); !errors.Is(err, remote.ErrNoStatus) {
		t.Errorf("no status on a living connection: got %v, want ErrNoStatus", err)
	}
	var e *remote.ConnectError
	if _, err = c.Run(t.Context(), remote.Cmd{Line: "refuse"}); !errors.As(err, &e) || e.Stage != remote.StageExec {
		t.Errorf("refused: got %v, want a ConnectError at stage exec", err)
	}
}

func TestStartOnADeadConnectionIsMovedToANewOne(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	for range 20 {
		s.cut() // the client may or may not notice the cut before Run begins
		run(t, c, "true")
	}
	if n := s.execs.Load(); n != 20 {
		t.Errorf("%d commands for 20 calls", n)
	}
}

func TestManyWaitersShareOneRedial(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	s.cut()
	s.mu.Lock()
	s.holdLogins = make(chan struct{})
	s.mu.Unlock()
	results := make(chan error, 8)
	for range cap(results) {
		go func() {
			_, err := c.Run(t.Context(), remote.Cmd{Line: "true"})
			results <- err
		}()
	}
	testkit.Eventually(t, "the redial", func() bool { return s.handshakes.Load() > 0 })
	close(s.holdLogins)
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if n := s.logins.Load(); n != 2 {
		t.Errorf("%d logins, want 2", n)
	}
}

func TestKeepAliveFindsAFrozenPeer(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	const interval = 200 * time.Millisecond
	f := newFleet(t, func(c *sshfan.Config) { c.KeepAlive = interval })
	c := connect(t, f, s.host("s0w0"))
	session, err := c.Start(t.Context(), remote.Cmd{Line: "sleep"})
	if err != nil {
		t.Fatal(err)
	}
	// A working peer survives many intervals of silence.
	quiet := time.NewTimer(5 * interval)
	defer quiet.Stop()
	<-quiet.C
	if since, silent := c.Silence(); silent {
		t.Errorf("a live peer is silent since %v", since)
	}
	before := time.Now()
	s.freeze()
	testkit.Eventually(t, "its silence", func() bool { _, silent := c.Silence(); return silent })
	_, err = session.Wait()
	if !errors.Is(err, remote.ErrConnectionLost) || !errors.Is(err, remote.ErrSilent) {
		t.Errorf("got %v, want ErrConnectionLost because of ErrSilent", err)
	}
	if since, silent := c.Silence(); !silent || since.Sub(before).Abs() > interval {
		t.Errorf("silent %v since %v, frozen at %v", silent, since, before)
	}
	run(t, c, "true")
	if _, silent := c.Silence(); silent {
		t.Error("silent over a new connection")
	}
}

func TestCancelOnAFrozenPeerReturnsAtOnce(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	f := newFleet(t, func(c *sshfan.Config) { c.KeepAlive = time.Hour })
	c := connect(t, f, s.host("s0w0"))
	run(t, c, "true")
	s.freeze()
	for _, cmd := range []remote.Cmd{
		{Line: "true"},
		{Line: "cat", Stdin: io.LimitReader(zeros{}, 64<<20)},
	} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("time is up"))
		_, err := c.Run(ctx, cmd)
		cancel()
		if err == nil || err.Error() != "time is up" {
			t.Errorf("%s: got %v, want the cause of the context", cmd.Line, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestMaxSessions(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t, func(s *server) { s.sessions = 1 })
	clock := &skippingClock{}
	f := newFleet(t, func(c *sshfan.Config) { c.Clock, c.KeepAlive = clock, time.Hour })
	c := connect(t, f, s.host("s0w0"))
	first, err := c.Start(t.Context(), remote.Cmd{Line: "sleep"})
	if err != nil {
		t.Fatal(err)
	}
	clock.skip.Store(true)
	if _, err := c.Run(t.Context(), remote.Cmd{Line: "true"}); !errors.Is(err, sshfan.ErrTooManySessions) {
		t.Errorf("got %v, want ErrTooManySessions", err)
	}
	clock.skip.Store(false)
	second := make(chan error, 1)
	go func() {
		_, err := c.Run(t.Context(), remote.Cmd{Line: "true"})
		second <- err
	}()
	first.Close()
	s.cut() // on this server, the stand-in for sleep ends only with its connection
	<-second
	run(t, c, "true")
}

// skippingClock ends waits of up to some seconds at once while skip is set, and advances
// the time. It leaves the waits of the progress display alone: otherwise hours would pass
// during one try.
type skippingClock struct {
	skip    atomic.Bool
	skipped atomic.Int64
}

func (c *skippingClock) Now() time.Time {
	return time.Now().Add(time.Duration(c.skipped.Load()))
}

func (c *skippingClock) After(d time.Duration) <-chan time.Time {
	if !c.skip.Load() || d == sshfan.ProgressIdle || d > 10*time.Second {
		return time.After(d)
	}
	c.skipped.Add(int64(d))
	ch := make(chan time.Time, 1)
	ch <- c.Now()
	return ch
}

func TestCloseEndsSessions(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	f := newFleet(t)
	c := connect(t, f, s.host("s0w0"))
	session, err := c.Start(t.Context(), remote.Cmd{Line: "sleep"})
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := session.Wait(); !errors.Is(err, remote.ErrConnectionLost) || !errors.Is(err, remote.ErrClosed) {
		t.Errorf("got %v, want ErrConnectionLost because of ErrClosed", err)
	}
	if _, err := c.Run(t.Context(), remote.Cmd{Line: "true"}); !errors.Is(err, remote.ErrClosed) {
		t.Errorf("run after Close: got %v, want ErrClosed", err)
	}
}

func TestConnClose(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	f := newFleet(t)
	c, other := connect(t, f, s.host("s0w0")), connect(t, f, s.host("s0w1"))
	c.Close()
	if _, err := c.Run(t.Context(), remote.Cmd{Line: "true"}); !errors.Is(err, remote.ErrClosed) {
		t.Errorf("run after Close: got %v, want ErrClosed", err)
	}
	run(t, other, "true")
}

// A worker disappears while its clock is measured again. It must count as lost, not as a
// worker with a broken shell, because a job tries again only after a loss.
func TestAWorkerThatFallsSilentHasNoBrokenShell(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	f := newFleet(t, func(c *sshfan.Config) { c.KeepAlive, c.ShellTimeout = time.Hour, 3*time.Second })
	c := connect(t, f, s.host("s0w0"))
	if _, err := c.MeasureClock(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.freeze()
	_, err := c.MeasureClock(t.Context())
	var refused *remote.ConnectError
	if !errors.Is(err, remote.ErrConnectionLost) || errors.As(err, &refused) {
		t.Errorf("got %v, want ErrConnectionLost", err)
	}
}

func TestALoginThatWritesWithoutEndIsTold(t *testing.T) {
	testkit.NoLeaks(t)
	s := startOpenSSH(t)
	id := newIdentity(t)
	to := s.target(id)
	to.authorize(true)
	s.write("home/.bashrc", "while :; do echo welcome; done\n", 0o644)
	c := connect(t, newFleet(t, func(c *sshfan.Config) { c.Identity = id }), to.host(to.addr))
	_, err := c.MeasureClock(t.Context())
	var refused *remote.ConnectError
	if !errors.As(err, &refused) || !strings.HasSuffix(err.Error(), `: the login's start-up files write more than 64 KiB; it said "welcome"`) || !strings.Contains(refused.Hint(), "sudo tail ~") {
		t.Errorf("got %v", err)
	}
}

func TestMeasureClock(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	if c.ClockOffset() != 0 {
		t.Errorf("offset %s before it was measured", c.ClockOffset())
	}
	begin := time.Now()
	offset, err := c.MeasureClock(t.Context())
	if err != nil || offset.Abs() > time.Second+time.Since(begin) || c.ClockOffset() != offset {
		t.Errorf("got offset %s (%s kept), %v; the clocks are the same", offset, c.ClockOffset(), err)
	}
}
