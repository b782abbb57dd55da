package sshfan_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/remote"
	"multihost/internal/sim/worker"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
	"multihost/internal/testkit/contract"
)

// A target is a kind of machine on which the test checks the contract of SSH behaviours. If
// a row differs between two targets, the simulated one is wrong.
type target struct {
	addr  string
	login string
	keys  func() []string // host keys, in authorized_keys form

	authorize    func(bool) // sets whether the target accepts our key
	freeze, thaw func()     // stop and continue existing connections
	rotate       func()     // makes new host keys

	// asRoot says that the server can do what sshd can do only as root: give terminals to
	// other users, and start commands in a home directory of the test.
	asRoot bool

	fewFiles bool // the soft limit of open files is 1024, as on Ubuntu
}

// processTarget starts a worker of the simulator's process backend.
func processTarget(t *testing.T, key *sshkey.Identity) target {
	t.Helper()
	backend, err := worker.NewProcess(worker.ProcessConfig{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	var shut atomic.Bool
	machine, err := backend.Start(t.Context(), worker.Spec{
		Name: "s0w0", Node: "t-0", NodeUID: "1234", Hostname: "t1v-n-0123abcd-w-0",
		AuthorizedKeys: func() []string {
			if shut.Load() {
				return nil
			}
			return []string{"tester:" + key.PublicKey() + " tester"}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	fault := func(words ...string) {
		t.Helper()
		fault, err := worker.ParseFault(words...)
		if err == nil {
			err = machine.SetFault(fault)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return target{
		addr:  net.JoinHostPort(machine.Addr(), strconv.Itoa(backend.Port())),
		login: "tester",
		keys: func() (lines []string) {
			for algo, blob := range machine.HostKeys() {
				lines = append(lines, algo+" "+blob)
			}
			return lines
		},
		authorize: func(yes bool) { shut.Store(!yes) },
		freeze:    func() { fault("freeze") },
		thaw:      func() { fault("clear") },
		rotate:    func() { fault("rotate-host-keys") },
		asRoot:    true,
	}
}

// host returns the target as a worker with the address addr. This may be the address of a
// proxy in front of the target.
func (g target) host(addr string) sshfan.Host {
	h := hostAt("s0w0", addr)
	h.User = g.login
	h.Keys = func(context.Context) ([]string, error) { return g.keys(), nil }
	return h
}

// A bench has what the rows of the contract work with.
type bench struct {
	target
	id     *sshkey.Identity
	signer ssh.Signer // the same key as id
	conn   *sshfan.Conn
}

func (b bench) settings(c *sshfan.Config) {
	c.Identity = b.id
}

// client logs in without sshfan, for behaviours that sshfan does not use.
func (b bench) client(t *testing.T) *ssh.Client {
	t.Helper()
	c, err := ssh.Dial("tcp", b.addr, &ssh.ClientConfig{
		User:            b.login,
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(b.signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), // tests of sshfan cover the check of host keys
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (b bench) session(t *testing.T) *ssh.Session {
	t.Helper()
	s, err := b.client(t).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newKey(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public, key
}

// benchOf connects to a target.
func benchOf(t *testing.T, start func(*testing.T, *sshkey.Identity) target) bench {
	t.Helper()
	_, key := newKey(t)
	path := writeKey(t, openssh(t, key, ""), 0o600)
	id, err := sshkey.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	b := bench{target: start(t, id), id: id, signer: signer}
	if b.authorize != nil {
		b.authorize(true)
	}
	b.conn = connect(t, newFleet(t, b.settings), b.host(b.addr))
	return b
}

func TestContract(t *testing.T) {
	testkit.NoLeaks(t)
	for name, start := range map[string]func(*testing.T, *sshkey.Identity) target{
		"process": processTarget,
		"openssh": func(t *testing.T, id *sshkey.Identity) target { return startOpenSSH(t).target(id) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := benchOf(t, start)
			contract.Check(t, contract.Target{
				Connect: func(t *testing.T, readOnly bool) remote.Conn {
					return connect(t, newFleet(t, b.settings, func(c *sshfan.Config) { c.ReadOnly = readOnly }), b.host(b.addr))
				},
				ConnectCuttable: func(t *testing.T) (remote.Conn, func()) {
					p := newProxy(t, b.addr)
					return connect(t, newFleet(t, b.settings), b.host(p.addr())), p.cut
				},
			})
			t.Run("command over SSH", b.commands)
			for _, row := range sshContract {
				t.Run(row.name, func(t *testing.T) { row.check(t, b) })
			}
		})
	}
}

// commands are the rows about one command on a connection.
func (b bench) commands(t *testing.T) {
	ours := func(line string) string {
		out, err := exec.Command("bash", "-c", line).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	const (
		limits = "ulimit -Sa | grep -v 'open files'; ulimit -Ha | grep -v 'open files'"
		rank   = "nice; cat /proc/self/oom_score_adj; ionice -p $$; chrt -p $$ | sed s/.*:// | head -1"
	)
	openFiles := ours("ulimit -Sn")
	if b.fewFiles {
		openFiles = "1024\n"
	}
	for _, row := range []contract.Command{
		{Name: "starts at home", Line: `test "$PWD" = "$HOME" && echo here`, Stdout: "here\n"},
		{Name: "login name", Line: "echo $USER $LOGNAME", Stdout: b.login + " " + b.login + "\n"},
		{Name: "open descriptors", Line: "exec ls /proc/self/fd", Stdout: "0\n1\n2\n3\n"}, // the last descriptor is the one of ls
		{Name: "limits", Line: limits, Stdout: ours(limits)},
		{Name: "open files", Line: "ulimit -Sn", Stdout: openFiles},
		{Name: "rank", Line: rank, Stdout: ours(rank)},
		{
			Name:   "names of variables", // without the names that make a process part of a worker, which are not part of the contract
			Line:   "tr '\\0' '\\n' </proc/$$/environ | sed 's/=.*//' | grep -vE '^(MULTIHOST_.*|TMPDIR)$' | sort | tr '\\n' ' '",
			Stdout: "HOME LANG LOGNAME MAIL PATH SHELL SSH_CLIENT SSH_CONNECTION USER ",
		},
		{Name: "values of variables", Line: `echo $LANG $MAIL $SHELL; case :$PATH in *:` + loginPath + `) echo path; esac`, Stdout: "C.UTF-8 /var/mail/" + b.login + " /bin/bash\npath\n"},
		{Name: "where it comes from", Line: "set -- $SSH_CONNECTION; echo $# $1", Stdout: "4 127.0.0.1\n"},
		{Name: "the connection is at no descriptor", Line: "ls -l /proc/self/fd | grep -c socket:", Stdout: "0\n", Status: remote.Status{Code: 1}},
	} {
		t.Run(row.Name, func(t *testing.T) {
			if row.Name == "starts at home" {
				b.needRoot(t)
			}
			row.Check(t, b.conn)
		})
	}
}

// sshContract are the rows about sessions and connections. Rows that change the target for
// good come last.
var sshContract = []struct {
	name  string
	check func(*testing.T, bench)
}{
	{"bashrc is read before a command", func(t *testing.T, b bench) {
		if _, _, status := run(t, b.conn, "test -e ~/.bashrc || echo 'export SET_BY_BASHRC=yes' >~/.bashrc"); status.Code != 0 {
			t.Fatal("the home of the login is not empty")
		}
		out, _, _ := run(t, b.conn, "echo $SET_BY_BASHRC; rm ~/.bashrc")
		if out != "yes\n" {
			t.Errorf("got %q", out)
		}
	}},
	{"a login that is lent to a command", loans},
	{"MaxSessions", func(t *testing.T, b bench) {
		c := b.client(t)
		var open []*ssh.Session
		for range 10 {
			s, err := c.NewSession()
			if err != nil {
				t.Fatalf("session %d: %v", len(open), err)
			}
			open = append(open, s)
		}
		_, err := c.NewSession()
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) || refused.Reason != ssh.ConnectionFailed || refused.Message != "open failed" {
			t.Errorf("the 11th: got %v, want connect failed: open failed", err)
		}
		open[0].Close()
		testkit.Eventually(t, "room for another", func() bool {
			s, err := c.NewSession()
			return err == nil && s.Run("true") == nil
		})
	}},
	{"Setenv is refused", func(t *testing.T, b bench) {
		s := b.session(t)
		if err := s.Setenv("MULTIHOST_RUN", "x"); err == nil {
			t.Error("MULTIHOST_RUN was accepted")
		}
		if err := s.Setenv("LC_TEST", "x"); err != nil {
			t.Errorf("LC_TEST: %v", err)
		}
		out, err := s.Output("echo $MULTIHOST_RUN-$LC_TEST")
		if err != nil || string(out) != "-x\n" {
			t.Errorf("got %q, %v", out, err)
		}
	}},
	{"the locale of the client", func(t *testing.T, b bench) {
		s := b.session(t)
		for _, v := range []string{"LANG=de_DE.UTF-8", "LC_TEST=first", "LC_TEST=last"} {
			name, value, _ := strings.Cut(v, "=")
			if err := s.Setenv(name, value); err != nil {
				t.Errorf("%s: %v", v, err)
			}
		}
		out, err := s.Output(`tr '\0' '\n' </proc/$$/environ | grep -E '^(LANG|LC_.*)=' | sort`)
		if err != nil || string(out) != "LANG=C.UTF-8\nLC_TEST=last\n" {
			t.Errorf("got %q, %v; want the machine's LANG, and the client's LC_TEST once", out, err)
		}
	}},
	{"SFTP", func(t *testing.T, b bench) {
		s := b.session(t)
		in, err := s.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := s.StdoutPipe()
		if err == nil {
			err = s.RequestSubsystem("sftp")
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write([]byte{0, 0, 0, 5, 1, 0, 0, 0, 3}); err != nil { // INIT, version 3
			t.Fatal(err)
		}
		answer := make([]byte, 9)
		if _, err := io.ReadFull(out, answer); err != nil || !bytes.Equal(answer[4:], []byte{2, 0, 0, 0, 3}) { // VERSION
			t.Errorf("got % x, %v", answer, err)
		}
		in.Close()
		if _, err := io.ReadAll(out); err != nil { // extensions follow
			t.Errorf("after the end of its input: %v", err)
		}
	}},
	{"requests that sshd does not know", func(t *testing.T, b bench) {
		c := b.client(t)
		if ok, _, err := c.SendRequest("keepalive@openssh.com", true, nil); ok || err != nil {
			t.Errorf("keepalive: got %v, %v; want a refusal", ok, err)
		}
		s := b.session(t)
		if ok, err := s.SendRequest("keepalive@openssh.com", true, nil); ok || err != nil {
			t.Errorf("keepalive on a channel: got %v, %v; want a refusal", ok, err)
		}
		if ok, err := s.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{"none"})); ok || err != nil {
			t.Errorf("subsystem: got %v, %v; want a refusal", ok, err)
		}
		if _, _, err := c.OpenChannel("x11", nil); err == nil {
			t.Error("a channel of type x11 was opened")
		} else if refused := new(ssh.OpenChannelError); !errors.As(err, &refused) || refused.Reason != ssh.ConnectionFailed {
			t.Errorf("channel of type x11: %v", err)
		}
	}},
	{"one command per session", func(t *testing.T, b bench) {
		s := b.session(t)
		in, err := s.StdinPipe()
		if err == nil {
			err = s.Start("cat")
		}
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := s.SendRequest("exec", true, ssh.Marshal(struct{ Line string }{"true"})); ok || err != nil {
			t.Errorf("second exec: got %v, %v; want a refusal", ok, err)
		}
		in.Close()
		if err := s.Wait(); err != nil {
			t.Error(err)
		}
	}},
	{"signals reach an ordinary user's command", func(t *testing.T, b bench) {
		for line, want := range map[string]string{
			"echo up; exec sleep 60":                                     "signal TERM",
			"trap 'exit 9' TERM; echo up; sleep 60 & wait":               "status 9",
			"trap : TERM; (echo up; exec sleep 60) & wait; wait; exit 3": "status 3", // the signal reaches the whole group
		} {
			s := b.session(t)
			if got := signalled(t, s, line, ssh.SIGTERM); got != want {
				t.Errorf("%s: got %s, want %s", line, got, want)
			}
		}
	}},
	{"signals that SSH has no name for", func(t *testing.T, b bench) {
		s := b.session(t)
		if got := signalled(t, s, "echo up; read -r x; exit 6", "WINCH", "FOO"); got != "status 6" {
			t.Errorf("got %s", got)
		}
	}},
	{"a terminal merges streams and rewrites newlines", func(t *testing.T, b bench) {
		b.needRoot(t)
		s := b.session(t)
		if err := s.RequestPty("vt100", 40, 100, ssh.TerminalModes{}); err != nil {
			t.Fatal(err)
		}
		out, err := s.Output("echo out; echo err >&2; echo $TERM; stty size")
		if err != nil || string(out) != "out\r\nerr\r\nvt100\r\n40 100\r\n" {
			t.Errorf("got %q, %v", out, err)
		}
	}},
	{"a terminal has the modes of the client's", func(t *testing.T, b bench) {
		b.needRoot(t)
		s := b.session(t)
		if err := s.RequestPty("vt100", 40, 100, ssh.TerminalModes{ssh.ECHO: 0, ssh.ICRNL: 0, ssh.TOSTOP: 1, ssh.ONLCR: 0, ssh.VINTR: 1, ssh.VEOL: 255}); err != nil {
			t.Fatal(err)
		}
		out, err := s.Output(`tty | tr 0-9 N; (: </dev/tty) && echo controls; stty -a | grep -oE -- '(intr|eol) = [^;]*|-?(echo|icrnl|tostop|onlcr|isig)\b'`)
		const want = "/dev/pts/N\ncontrols\nintr = ^A\neol = <undef>\n-icrnl\n-onlcr\nisig\n-echo\ntostop\n"
		if err != nil || strings.ReplaceAll(string(out), "NN", "N") != want {
			t.Errorf("got %q, %v; want %q", out, err, want)
		}
	}},
	{"a terminal that is closed hangs up", func(t *testing.T, b bench) {
		b.needRoot(t)
		s := b.session(t)
		var pid testkit.Buffer
		s.Stdout = &pid
		err := s.RequestPty("vt100", 40, 100, ssh.TerminalModes{})
		if err == nil {
			err = s.Start("echo $$; exec sleep 60")
		}
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the process id", func() bool { return strings.HasSuffix(pid.String(), "\n") })
		s.Close()
		testkit.Eventually(t, "its end", func() bool {
			_, _, status := run(t, b.conn, "kill -0 "+strings.TrimSpace(pid.String())+" 2>/dev/null")
			return status.Code != 0
		})
	}},
	{"forwarding", func(t *testing.T, b bench) {
		behind := newServer(t)
		c := b.client(t)
		conn, err := c.Dial("tcp", behind.addr())
		if err != nil {
			t.Fatal(err)
		}
		version := make([]byte, 4)
		if _, err := io.ReadFull(conn, version); err != nil || string(version) != "SSH-" {
			t.Errorf("read %q, %v", version, err)
		}
		conn.Close()
		_, err = c.Dial("tcp", closedPort(t))
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) || refused.Reason != ssh.ConnectionFailed || refused.Message != "Connection refused" {
			t.Errorf("closed port: got %v, want connect failed: Connection refused", err)
		}
	}},
	{"another key, login or none", func(t *testing.T, b bench) {
		_, wrong := newKey(t)
		other, err := ssh.NewSignerFromKey(wrong)
		if err != nil {
			t.Fatal(err)
		}
		six := []ssh.Signer{other}
		for len(six) < 6 {
			six = append(six, newSigner(t))
		}
		for _, tt := range []struct {
			name, login string
			auth        ssh.AuthMethod
		}{
			{"wrong key", b.login, ssh.PublicKeys(other)},
			{"no such login", "nobody-here", ssh.PublicKeys(b.signer)},
			{"password", b.login, ssh.Password("x")},
			{"the right key after six wrong ones", b.login, ssh.PublicKeys(append(six, b.signer)...)},
		} {
			_, err := ssh.Dial("tcp", b.addr, &ssh.ClientConfig{
				User: tt.login, Auth: []ssh.AuthMethod{tt.auth}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
			})
			if err == nil {
				t.Errorf("%s: logged in", tt.name)
			}
		}
		five, err := ssh.Dial("tcp", b.addr, &ssh.ClientConfig{
			User: b.login, Auth: []ssh.AuthMethod{ssh.PublicKeys(append(six[:5:5], b.signer)...)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		})
		if err != nil {
			t.Fatalf("the right key after five wrong ones: %v", err)
		}
		five.Close()
	}},
	{"cut in the middle of output", func(t *testing.T, b bench) {
		p := newProxy(t, b.addr)
		c := connect(t, newFleet(t, b.settings), b.host(p.addr()))
		p.cutAfter(200_000)
		var out bytes.Buffer
		_, err := c.Run(t.Context(), remote.Cmd{Line: "head -c 1000000 /dev/zero", Stdout: &out})
		if !errors.Is(err, remote.ErrConnectionLost) || out.Len() == 0 || out.Len() >= 200_000 {
			t.Errorf("got %v after %d bytes, want ErrConnectionLost before 200000", err, out.Len())
		}
		p.cutAfter(0)
		run(t, c, "true")
	}},
	{"frozen peer", func(t *testing.T, b bench) {
		c := connect(t, newFleet(t, b.settings, func(c *sshfan.Config) { c.KeepAlive = time.Second }), b.host(b.addr))
		pid, s := b.background(t, c)
		b.freeze()
		_, err := s.Wait()
		if !errors.Is(err, remote.ErrConnectionLost) || !errors.Is(err, remote.ErrSilent) {
			t.Errorf("got %v, want ErrConnectionLost because of ErrSilent", err)
		}
		b.thaw()
		b.stillRuns(t, pid)
	}},
	{"key refused, then accepted", func(t *testing.T, b bench) {
		b.authorize(false)
		sink := &notes{}
		f := newFleet(t, b.settings, func(c *sshfan.Config) { c.Sink = sink })
		connected := make(chan error, 1)
		go func() {
			_, errs := f.Connect(t.Context(), []sshfan.Host{b.host(b.addr)})
			connected <- errs[0]
		}()
		testkit.Eventually(t, "a refusal", func() bool {
			all := sink.progress()
			return len(all) > 0 && strings.Contains(all[len(all)-1].Detail, "key refused")
		})
		b.authorize(true)
		if err := <-connected; err != nil {
			t.Error(err)
		}
	}},
	{"key refused for good", func(t *testing.T, b bench) {
		b.authorize(false)
		defer b.authorize(true)
		f := newFleet(t, b.settings, func(c *sshfan.Config) { c.AuthRetryFor = time.Millisecond })
		if e := refused(t, f, b.host(b.addr), remote.StageAuth); !errors.Is(e, remote.ErrKeyRefused) {
			t.Errorf("got %v, want ErrKeyRefused", e)
		}
	}},
	{"host key changed", func(t *testing.T, b bench) {
		known := filepath.Join(t.TempDir(), "known_hosts")
		pinning := func(c *sshfan.Config) { c.KnownHosts = known }
		connect(t, newFleet(t, b.settings, pinning), b.host(b.addr))
		b.rotate()
		refused(t, newFleet(t, b.settings, pinning), b.host(b.addr), remote.StageHostKey)
		h := b.host(b.addr)
		h.Pin = "node-2/0" // a new machine replaces the old one
		run(t, connect(t, newFleet(t, b.settings, pinning), h), "true")
		if _, err := sshfan.ForgetHostKeys(known, b.host("").Pin); err != nil {
			t.Fatal(err)
		}
		run(t, connect(t, newFleet(t, b.settings, pinning), b.host(b.addr)), "true")
	}},
}

func (b bench) needRoot(t *testing.T) {
	t.Helper()
	if !b.asRoot {
		testkit.Lacks(t, "sshd must run as root for this")
	}
}

// background starts a command that writes its process id and continues.
func (b bench) background(t *testing.T, c *sshfan.Conn) (pid string, s remote.Session) {
	t.Helper()
	var out testkit.Buffer
	s, err := c.Start(t.Context(), remote.Cmd{Line: "echo $$; exec sleep 1000 </dev/null >/dev/null 2>&1", Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the process id", func() bool { return strings.HasSuffix(out.String(), "\n") })
	return strings.TrimSpace(out.String()), s
}

// stillRuns checks that a process still runs. Then it ends the process.
func (b bench) stillRuns(t *testing.T, pid string) {
	t.Helper()
	if _, _, status := run(t, b.conn, fmt.Sprintf("kill -0 %[1]s && kill -KILL %[1]s", pid)); status.Code != 0 {
		t.Errorf("the process ended with its session: %+v", status)
	}
}

// signalled starts a command, sends signals once the command is up, and returns how the
// command ended.
func signalled(t *testing.T, s *ssh.Session, line string, signals ...ssh.Signal) string {
	t.Helper()
	var out testkit.Buffer
	s.Stdout = &out
	in, err := s.StdinPipe()
	if err == nil {
		err = s.Start(line)
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the command", func() bool { return out.String() == "up\n" })
	for _, sig := range signals {
		if err := s.Signal(sig); err != nil {
			t.Errorf("send %s: %v", sig, err)
		}
	}
	if signals[0] != ssh.SIGTERM {
		in.Close()
	}
	err = s.Wait()
	var exit *ssh.ExitError
	switch {
	case errors.As(err, &exit) && exit.Signal() != "":
		return "signal " + exit.Signal()
	case errors.As(err, &exit):
		return fmt.Sprintf("status %d", exit.ExitStatus())
	}
	return fmt.Sprint(err)
}

// sshd ignores signals for root, so nobody can stop a command with them. The simulator has
// no login for root.
func TestOpenSSHIgnoresSignalsForRoot(t *testing.T) {
	testkit.NoLeaks(t)
	testkit.NeedRoot(t)
	s := startOpenSSH(t)
	signer := newSigner(t)
	s.write("authorized_keys", string(ssh.MarshalAuthorizedKey(signer.PublicKey())), 0o644)
	c, err := ssh.Dial("tcp", s.listener.Addr().String(), &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	session, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var out testkit.Buffer
	session.Stdout = &out
	in, err := session.StdinPipe()
	if err == nil {
		err = session.Start("echo up; read -r x; exit 6")
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the command", func() bool { return out.String() == "up\n" })
	if err := session.Signal(ssh.SIGKILL); err != nil {
		t.Errorf("send KILL: %v", err)
	}
	testkit.Eventually(t, "the refusal", func() bool { return len(s.said("session signalling requires privilege separation")) > 0 })
	in.Close()
	var exit *ssh.ExitError
	if err := session.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 6 {
		t.Errorf("got %v, want status 6: the signal had no effect", err)
	}
}

// A proxy passes TCP connections on until a test cuts them.
type proxy struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	left  int // how many bytes from the server may pass before the cut; 0: no limit
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to}
	p.wg.Go(p.listen)
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) cutAfter(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = bytes
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func (p *proxy) listen() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.wg.Go(func() { p.carry(out, in, false) })
		p.wg.Go(func() { p.carry(in, out, true) })
	}
}

func (p *proxy) carry(to, from net.Conn, counted bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if counted {
			p.mu.Lock()
			limited := p.left > 0
			p.left = max(p.left-n, 0)
			spent := limited && p.left == 0
			p.mu.Unlock()
			if spent {
				return
			}
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}
