package sshfan_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
)

// through makes a Fleet jump over bastions.
func through(bastions ...*server) func(*sshfan.Config) {
	return func(c *sshfan.Config) {
		for _, b := range bastions {
			c.Jump = append(c.Jump, sshfan.JumpHost{Addr: b.addr(), User: "jumper"})
		}
	}
}

func TestManyWorkersThroughOneBastion(t *testing.T) {
	testkit.NoLeaks(t)
	const hosts = 64
	// This bastion behaves as if it had MaxStartups and other users: it closes the first
	// connections, and accepts only few that are not logged in.
	bastion := newServer(t, func(s *server) { s.startups = 1; s.hangUpFirst.Store(2) })
	behind := newServer(t)
	f := newFleet(t, through(bastion))
	list := make([]sshfan.Host, hosts)
	for i := range list {
		list[i] = behind.host(fmt.Sprintf("s0w%d", i))
	}
	conns, errs := f.Connect(t.Context(), list)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := bastion.logins.Load(); n != 1 {
		t.Errorf("%d logins to the bastion, want 1: the connection is shared", n)
	}
	if most := behind.mostAtOnce.Load(); most > 8 {
		t.Errorf("%d handshakes at once through the bastion, want at most 8", most)
	}
	if n := bastion.forwards.Load(); n != hosts {
		t.Errorf("%d forwarded connections, want %d", n, hosts)
	}
	sessions := make([]remote.Session, hosts)
	for i, c := range conns {
		var err error
		if sessions[i], err = c.Start(t.Context(), remote.Cmd{Line: "sleep"}); err != nil {
			t.Fatal(err)
		}
	}
	bastion.cut()
	for i, s := range sessions {
		if _, err := s.Wait(); !errors.Is(err, remote.ErrConnectionLost) {
			t.Errorf("worker %d after the bastion was cut: %v, want ErrConnectionLost", i, err)
		}
	}
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			if _, err := c.Run(t.Context(), remote.Cmd{Line: "true"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := bastion.logins.Load(); n != 2 {
		t.Errorf("%d logins to the bastion after it was cut once, want 2", n)
	}
}

func TestTwoBastionsAndABusyTunnel(t *testing.T) {
	testkit.NoLeaks(t)
	first, second, behind := newServer(t), newServer(t), newServer(t)
	c := connect(t, newFleet(t, through(first, second)), behind.host("s0w0"))
	out, _, status := run(t, c, "head -c 3000000 /dev/zero | tr '\\000' x; exit 3")
	if len(out) != 3000000 || status.Code != 3 {
		t.Errorf("got %d bytes, %+v", len(out), status)
	}
	if first.forwards.Load() != 1 || second.forwards.Load() != 1 {
		t.Errorf("%d and %d forwards, want one each", first.forwards.Load(), second.forwards.Load())
	}
}

func TestBastionsOfTheContract(t *testing.T) {
	for name, start := range map[string]func(*testing.T, *sshkey.Identity) target{
		"process": processTarget,
		"openssh": func(t *testing.T, id *sshkey.Identity) target { return startOpenSSH(t).target(id) },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			id := newIdentity(t)
			bastion := start(t, id)
			bastion.authorize(true)
			behind := newServer(t)
			f := newFleet(t, func(c *sshfan.Config) {
				c.Identity = id
				c.Jump = []sshfan.JumpHost{{Addr: bastion.addr, User: bastion.login}}
				c.RetryFor = time.Millisecond
			})
			hosts := make([]sshfan.Host, 16)
			for i := range hosts {
				hosts[i] = behind.host(fmt.Sprintf("s0w%d", i))
			}
			conns, errs := f.Connect(t.Context(), hosts)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for _, c := range conns {
				run(t, c, "true")
			}
			e := refused(t, f, hostAt("s0w99", closedPort(t)), remote.StageDial)
			var forward *sshfan.ForwardError
			if !errors.As(e, &forward) || !strings.Contains(e.Error(), "Connection refused") || !strings.Contains(e.Hint(), "still booting") {
				t.Errorf("got %v; %s", e, e.Hint())
			}
		})
	}
}

func TestBastionFailures(t *testing.T) {
	good := func(t *testing.T) *server { return newServer(t) }
	for _, tt := range []struct {
		name    string
		bastion func(t *testing.T) *server
		stage   remote.Stage
		jump    remote.Stage // stage of the JumpError; "": any stage, or no JumpError
		says    string
		hint    string
	}{
		{"refuses our key", func(t *testing.T) *server {
			return newServer(t, func(s *server) { s.accept = func(string, ssh.PublicKey) bool { return false } })
		}, remote.StageJump, remote.StageAuth, "accepts none of our keys", "--ssh-proxy-jump"},
		{"says nothing", func(t *testing.T) *server {
			return newServer(t, func(s *server) { s.silent = true })
		}, remote.StageJump, "", "no answer within", "bastion"},
		{"does not forward", func(t *testing.T) *server {
			return newServer(t, func(s *server) {
				s.mayForward = func(string) (ssh.RejectionReason, string) {
					return ssh.Prohibited, "administratively prohibited: open failed"
				}
			})
		}, remote.StageDial, "", "refuses to forward", "AllowTcpForwarding"},
		{"cannot reach the worker", func(t *testing.T) *server {
			return newServer(t, func(s *server) {
				s.mayForward = func(string) (ssh.RejectionReason, string) {
					return ssh.ConnectionFailed, "Connection timed out\x1b[2J"
				}
			})
		}, remote.StageDial, "", "Connection timed out [2J", "in from the bastion"},
		{"is not there", func(t *testing.T) *server {
			s := good(t)
			s.stop()
			return s
		}, remote.StageJump, remote.StageDial, "connection refused", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testkit.NoLeaks(t)
			b, behind := tt.bastion(t), newServer(t)
			f := newFleet(t, through(b), func(c *sshfan.Config) {
				c.RetryFor = time.Millisecond
				if tt.name == "says nothing" {
					c.ConnectTimeout = 300 * time.Millisecond
				}
			})
			conns, errs := f.Connect(t.Context(), []sshfan.Host{behind.host("s0w0"), behind.host("s0w1")})
			for i, err := range errs {
				var e *remote.ConnectError
				if !errors.As(err, &e) || conns[i] != nil {
					t.Fatalf("got %v", err)
				}
				if e.Stage != tt.stage {
					t.Errorf("stage %q, want %q", e.Stage, tt.stage)
				}
				var jump *sshfan.JumpError
				if errors.As(err, &jump) != (tt.stage == remote.StageJump) {
					t.Errorf("JumpError: %v, want stage %q", jump, tt.jump)
				} else if tt.jump != "" && jump.Stage != tt.jump {
					t.Errorf("bastion failed at %q, want %q", jump.Stage, tt.jump)
				}
				if !strings.Contains(e.Error(), tt.says) || !strings.Contains(e.Hint(), tt.hint) {
					t.Errorf("got %q with hint %q, want %q and %q", e, e.Hint(), tt.says, tt.hint)
				}
				if errors.Is(err, remote.ErrKeyRefused) {
					t.Error("a bastion's refusal is taken for a worker's")
				}
			}
		})
	}
}

func TestFrozenBastionIsGivenUp(t *testing.T) {
	testkit.NoLeaks(t)
	bastion, behind := newServer(t), newServer(t)
	f := newFleet(t, through(bastion), func(c *sshfan.Config) { c.KeepAlive = 500 * time.Millisecond })
	c := connect(t, f, behind.host("s0w0"))
	s, err := c.Start(t.Context(), remote.Cmd{Line: "sleep"})
	if err != nil {
		t.Fatal(err)
	}
	bastion.freeze()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("time is up"))
	defer cancel()
	if _, err := c.Run(ctx, remote.Cmd{Line: "true"}); err == nil || err.Error() != "time is up" {
		t.Errorf("run through a frozen bastion: got %v, want the cause of the context", err)
	}
	if _, err := s.Wait(); !errors.Is(err, remote.ErrConnectionLost) {
		t.Errorf("got %v, want ErrConnectionLost", err)
	}
	run(t, c, "true")
}

func TestCloseDuringAJump(t *testing.T) {
	testkit.NoLeaks(t)
	silent := newServer(t, func(s *server) { s.silent = true })
	for name, jumps := range map[string][]*server{"at the bastion": {silent}, "behind it": {newServer(t)}} {
		f := newFleet(t, through(jumps...), func(c *sshfan.Config) { c.ConnectTimeout, c.RetryFor = time.Hour, time.Hour })
		failed := make(chan error, 1)
		go func() {
			_, errs := f.Connect(t.Context(), []sshfan.Host{silent.host("s0w0")})
			failed <- errs[0]
		}()
		testkit.Eventually(t, "the dial", func() bool { return silent.open() > 0 })
		f.Close()
		if err := <-failed; !errors.Is(err, remote.ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", name, err)
		}
		silent.cut()
		testkit.Eventually(t, "the end", func() bool { return silent.open() == 0 })
	}
}

func TestHostKeyOfABastion(t *testing.T) {
	testkit.NoLeaks(t)
	bastion, behind := newServer(t), newServer(t)
	dir := t.TempDir()
	pins, ssh1 := filepath.Join(dir, "pins"), filepath.Join(dir, "known_hosts")
	try := func(files ...string) (*notes, error) {
		sink := &notes{}
		f := newFleet(t, through(bastion), func(c *sshfan.Config) {
			c.KnownHosts, c.UserKnownHosts, c.Sink = pins, files, sink
		})
		defer f.Close()
		_, errs := f.Connect(t.Context(), []sshfan.Host{behind.host("s0w0")})
		return sink, errs[0]
	}
	wantKeyError := func(err error, hint string) {
		t.Helper()
		var keyErr *remote.HostKeyError
		var e *remote.ConnectError
		if !errors.As(err, &keyErr) || !errors.As(err, &e) || e.Stage != remote.StageJump || !strings.Contains(e.Hint(), hint) {
			t.Fatalf("got %v, want a HostKeyError with %q", err, hint)
		}
	}

	// An unknown key is trusted, reported and pinned.
	sink, err := try(filepath.Join(dir, "missing"))
	if err != nil || len(sink.texts("trusted the host key of bastion "+bastion.addr())) != 1 {
		t.Fatalf("first use: %v, notes %q", err, sink.texts(""))
	}
	if sink, err = try(); err != nil || len(sink.texts("bastion")) != 0 {
		t.Fatalf("second use: %v, notes %q", err, sink.texts(""))
	}
	if data, _ := os.ReadFile(pins); !strings.Contains(string(data), "\njump/"+bastion.addr()+" ssh-ed25519 ") {
		t.Errorf("pins: %s", data)
	}
	old := bastion.hostKeys[0]
	bastion.setHostKeys(newSigner(t))
	_, err = try()
	wantKeyError(err, "sed -E -i ")
	if n, err := sshfan.ForgetHostKeys(pins, "jump/"+bastion.addr()); n != 1 || err != nil {
		t.Errorf("forgot %d, %v", n, err)
	}

	// If ssh knows the host, only ssh's keys count, and nothing is pinned.
	line := func(key ssh.Signer) string {
		return knownhosts.Line([]string{knownhosts.HashHostname(knownhosts.Normalize(bastion.addr()))}, key.PublicKey()) + "\n"
	}
	os.WriteFile(ssh1, []byte(line(old)), 0o600)
	_, err = try(ssh1)
	wantKeyError(err, "ssh-keygen -R ")
	os.WriteFile(ssh1, []byte("# a comment\n"+line(newECDSASigner(t))+line(bastion.hostKeys[0])), 0o600)
	if sink, err = try(ssh1); err != nil || len(sink.texts("bastion")) != 0 {
		t.Errorf("known to ssh: %v, notes %q", err, sink.texts(""))
	}
	if data, _ := os.ReadFile(pins); strings.Contains(string(data), "jump/") {
		t.Errorf("pinned although ssh knows it: %s", data)
	}
	os.WriteFile(ssh1, []byte("@revoked * "+strings.TrimSpace(string(ssh.MarshalAuthorizedKey(bastion.hostKeys[0].PublicKey())))+"\n"), 0o600)
	if _, err = try(ssh1); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("revoked key: %v", err)
	}
	os.WriteFile(ssh1, []byte("not a line\n"), 0o600)
	if _, err = try(ssh1); err == nil || !strings.Contains(err.Error(), ssh1) {
		t.Errorf("broken known_hosts: %v", err)
	}
}

func TestSSHConfig(t *testing.T) {
	testkit.NoLeaks(t)
	bastion, behind := newServer(t), newServer(t)
	home := t.TempDir()
	key := newIdentityAt(t, filepath.Join(home, ".ssh", "bastion key"))
	bastion.accept = func(user string, k ssh.PublicKey) bool {
		return user == "ada" && strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) == key.PublicKey()
	}
	host, port, _ := net.SplitHostPort(bastion.addr())
	workerHost, workerPort, _ := net.SplitHostPort(behind.addr())
	path := filepath.Join(home, ".ssh", "config")
	text := fmt.Sprintf(`Host gate
  HostName %s
  Port %s
  User ada
  IdentityFile "~/.ssh/bastion key"
  IdentityFile ~/.ssh/none
Host 10.0.0.*
  ProxyJump gate
  HostName %s
  Port %s
Host direct
  ProxyJump none
Host circle
  ProxyJump circle
Host command
  ProxyCommand nc %%h %%p
`, host, port, workerHost, workerPort)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := sshfan.LoadSSHConfig(path, home, "me")
	if err != nil {
		t.Fatal(err)
	}

	f := newFleet(t, func(c *sshfan.Config) { c.SSHConfig = config })
	run(t, connect(t, f, hostAt("s0w0", "10.0.0.7:22")), "true")
	if bastion.forwards.Load() != 1 {
		t.Errorf("%d connections through the bastion, want 1", bastion.forwards.Load())
	}
	run(t, connect(t, f, behind.host("s0w1")), "true") // no note about the bastion
	if bastion.forwards.Load() != 1 {
		t.Error("a worker of which the file says nothing went through the bastion")
	}
	for _, name := range []string{"circle:22", "command:22"} {
		e := refused(t, f, hostAt("s0w2", name), remote.StageJump)
		if !strings.Contains(e.Error(), path) || e.Tries != 1 {
			t.Errorf("%s: %v", name, e)
		}
	}

	got, err := sshfan.ParseJump("gate,root@other:2222", "me", config)
	want := []sshfan.JumpHost{
		{Addr: bastion.addr(), User: "ada", IdentityFiles: []string{filepath.Join(home, ".ssh/bastion key"), filepath.Join(home, ".ssh/none")}},
		{Addr: "other:2222", User: "root"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestKeysForBastions(t *testing.T) {
	testkit.NoLeaks(t)
	_, locked := newKey(t)
	lockedPath := writeKey(t, openssh(t, locked, "secret"), 0o600)
	lockedSigner, err := ssh.NewSignerFromKey(locked)
	if err != nil {
		t.Fatal(err)
	}
	socket, held := startAgent(t)
	for _, tt := range []struct {
		name       string
		wants      ssh.Signer
		agent      string
		passphrase string
		asked      int
	}{
		{name: "a locked key", wants: lockedSigner, passphrase: "secret", asked: 1},
		{name: "a locked key, wrong passphrase", passphrase: "x", asked: 1},
		{name: "a key of the agent", wants: held[1], agent: socket, passphrase: "secret", asked: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			accept := func(_ string, key ssh.PublicKey) bool {
				return tt.wants != nil && string(key.Marshal()) == string(tt.wants.PublicKey().Marshal())
			}
			// Two bastions have the same key. One of them must be tried twice.
			first := newServer(t, func(s *server) { s.accept = accept; s.hangUpFirst.Store(1) })
			second := newServer(t, func(s *server) { s.accept = accept })
			behind := newServer(t)
			asked := 0
			f := newFleet(t, through(first, second), func(c *sshfan.Config) {
				for i := range c.Jump {
					c.Jump[i].IdentityFiles = []string{lockedPath}
				}
				c.AgentSocket = tt.agent
				c.Passphrase = func(string) (string, error) { asked++; return tt.passphrase, nil }
			})
			if tt.wants != nil {
				run(t, connect(t, f, behind.host("s0w0")), "true")
			} else if e := refused(t, f, behind.host("s0w0"), remote.StageJump); !strings.Contains(e.Hint(), lockedPath) {
				t.Errorf("hint %q does not name the key that was left out", e.Hint())
			}
			if asked != tt.asked {
				t.Errorf("asked for the passphrase %d times, want %d", asked, tt.asked)
			}
		})
	}
}

func newIdentityAt(t *testing.T, path string) *sshkey.Identity {
	t.Helper()
	id, err := sshkey.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestParseJump(t *testing.T) {
	for spec, want := range map[string][]sshfan.JumpHost{
		"":                         nil,
		"b":                        {{Addr: "b:22", User: "me"}},
		"u@b":                      {{Addr: "b:22", User: "u"}},
		"u@corp.com@b:2":           {{Addr: "b:2", User: "u@corp.com"}},
		"ssh://u@b:2":              {{Addr: "b:2", User: "u"}},
		"u@[::1]:2222, x@10.0.0.1": {{Addr: "[::1]:2222", User: "u"}, {Addr: "10.0.0.1:22", User: "x"}},
	} {
		got, err := sshfan.ParseJump(spec, "me", nil)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %s %v", spec, diff, err)
		}
	}
	for _, spec := range []string{",", "b,", "@b", "u@", "b:0", "b:99999", "b:x", "-oProxyCommand=x", "a b", "u v@b", "b/x", "ssh://b/x", "b:22:33"} {
		if got, err := sshfan.ParseJump(spec, "me", nil); err == nil || !strings.Contains(err.Error(), spec) {
			t.Errorf("%q: got %v, %v", spec, got, err)
		}
	}
	if _, err := sshfan.ParseJump("b", "", nil); err == nil {
		t.Error("no login name, no error")
	}
}

func TestReachable(t *testing.T) {
	testkit.NoLeaks(t)
	ssh1, ssh2 := newServer(t), newServer(t)
	silent := newServer(t, func(s *server) { s.silent = true })
	closed := closedPort(t)
	var wg sync.WaitGroup
	const short = 3 * time.Second // hosts that answer at all answer within this time
	for _, tt := range []struct {
		name     string
		patience time.Duration
		addrs    []string
		want     int
	}{
		{"the first of two", patience, []string{ssh1.addr(), ssh2.addr()}, 0},
		{"no external address", patience, []string{"", ssh2.addr()}, 1},
		{"a port that is open is no SSH server", short, []string{silent.addr(), ssh2.addr()}, 1},
		{"one that boots is behind one that answers", patience, []string{closed, ssh2.addr()}, 1},
		{"one that boots is before one that is silent", short, []string{silent.addr(), closed}, 1},
		{"nothing", short, []string{silent.addr(), ""}, -1},
	} {
		wg.Go(func() {
			got, err := sshfan.Reachable(t.Context(), nil, tt.patience, tt.addrs...)
			var unreachable *sshfan.UnreachableError
			if got != tt.want || (err != nil) != (tt.want < 0) || err != nil && (!errors.As(err, &unreachable) || unreachable.Hint() == "") {
				t.Errorf("%s: got %d, %v; want %d", tt.name, got, err, tt.want)
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("stopped")
	cancel(cause)
	if _, err := sshfan.Reachable(ctx, nil, patience, silent.addr()); !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause", err)
	}
}

func TestHintsOnTheWay(t *testing.T) {
	testkit.NoLeaks(t)
	timeout := func(context.Context, string, string) (net.Conn, error) { return nil, os.ErrDeadlineExceeded }
	for addr, want := range map[string]string{
		"203.0.113.7:22": "multihost network firewall create",
		"10.128.0.7:22":  "--ip=iap",
	} {
		f := newFleet(t, func(c *sshfan.Config) { c.Dial, c.RetryFor = timeout, time.Millisecond })
		h := hostAt("s0w0", addr)
		h.Cloud = true
		if e := refused(t, f, h, remote.StageDial); !strings.Contains(e.Hint(), want) {
			t.Errorf("%s: hint %q, want %q", addr, e.Hint(), want)
		}
	}
	h := hostAt("s0w3", "")
	h.Addr = func(context.Context) (string, error) {
		return "", &sshfan.NoAddressError{Worker: "s0w3", Kind: "external"}
	}
	e := refused(t, newFleet(t), h, remote.StageDial)
	if e.Tries != 1 || !strings.Contains(e.Error(), "s0w3 has no external address") || !strings.Contains(e.Hint(), "--ip=iap") {
		t.Errorf("got %v after %d tries; %s", e, e.Tries, e.Hint())
	}
}
