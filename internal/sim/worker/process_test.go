//go:build linux

package worker_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"multihost/internal/sim/worker"
	"multihost/internal/testkit"
)

const patience = 2 * time.Minute

// A fixture is a backend, with what tests need to log in.
type fixture struct {
	t       testing.TB
	backend worker.Backend
	root    string
	signer  ssh.Signer

	mu   sync.Mutex
	keys []string
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	checkGoroutines(t)
	root := tempDir(t)
	b, err := worker.NewProcess(worker.ProcessConfig{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if pids := marked(t, root); len(pids) > 0 {
			t.Errorf("processes %v outlive the backend", pids)
		}
	})
	f := &fixture{t: t, backend: b, root: root, signer: newSigner(t)}
	f.keys = []string{entry("dev", f.signer)}
	return f
}

// tempDir prefers a directory in memory. On a disk, the files of many machines would take
// most of the tests' time.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "multihost-worker-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func checkGoroutines(t testing.TB) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		if !await(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before }) {
			buf := make([]byte, 1<<20)
			t.Logf("%s", buf[:runtime.Stack(buf, true)])
		}
	})
}

// await polls a condition that has no event.
func await(t testing.TB, what string, cond func() bool) bool {
	t.Helper()
	holds := testkit.Await(patience, cond)
	if !holds {
		t.Errorf("waited %v for %s", patience, what)
	}
	return holds
}

func newSigner(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func entry(login string, s ssh.Signer) string {
	return login + ":" + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.PublicKey()))) + " " + login + "@laptop"
}

func (f *fixture) authorized() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.keys...)
}

func (f *fixture) authorize(line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys = append(f.keys, line)
}

func (f *fixture) start(change func(*worker.Spec)) worker.Machine {
	f.t.Helper()
	spec := worker.Spec{
		Name: "s0w0", Node: "t-0", NodeUID: "1", Hostname: "t1v-n-0123-w-0",
		Devices:        []string{"/dev/accel0", "/dev/accel1", "/dev/accel2", "/dev/accel3"},
		MTU:            8896,
		IP:             "10.128.0.7",
		NUMANodes:      2,
		AuthorizedKeys: f.authorized,
	}
	if change != nil {
		change(&spec)
	}
	m, err := f.backend.Start(f.t.Context(), spec)
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

func (f *fixture) addr(m worker.Machine) string {
	return net.JoinHostPort(m.Addr(), strconv.Itoa(f.backend.Port()))
}

func (f *fixture) tryDial(m worker.Machine, login string, key ssh.Signer) (*ssh.Client, error) {
	return ssh.Dial("tcp", f.addr(m), &ssh.ClientConfig{
		User:            login,
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		Timeout:         patience,
	})
}

func (f *fixture) dial(m worker.Machine) *ssh.Client {
	f.t.Helper()
	c, err := f.tryDial(m, "dev", f.signer)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

func newSession(t testing.TB, c *ssh.Client) *ssh.Session {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs one command, which must end with status 0.
func run(t testing.TB, c *ssh.Client, line string) string {
	t.Helper()
	out, errOut, err := runErr(t, c, line)
	if err != nil {
		t.Fatalf("run %q: %v\nstderr: %s", line, err, errOut)
	}
	return out
}

func runErr(t testing.TB, c *ssh.Client, line string) (stdout, stderr string, err error) {
	t.Helper()
	s := newSession(t, c)
	defer s.Close()
	var o, e bytes.Buffer
	s.Stdout, s.Stderr = &o, &e
	err = s.Run(line)
	return o.String(), e.String(), err
}

// marked returns the living processes below root.
func marked(t testing.TB, root string) []int {
	t.Helper()
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Processes("environ", "MULTIHOST_SIM_WORKER="+root)
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

// readPID runs a command that prints a process id on its first line.
func readPID(t testing.TB, r io.Reader) int {
	t.Helper()
	var pid int
	if _, err := fmt.Fscanln(r, &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestExitStatusAndSignal(t *testing.T) {
	f := newFixture(t)
	c := f.dial(f.start(nil))
	for _, code := range []int{0, 1, 7, 137, 255} {
		_, _, err := runErr(t, c, fmt.Sprintf("exit %d", code))
		got := 0
		var exit *ssh.ExitError
		if errors.As(err, &exit) {
			got = exit.ExitStatus()
		}
		if got != code || exit != nil && exit.Signal() != "" {
			t.Errorf("exit %d arrives as %v", code, err)
		}
	}
	for _, sig := range []string{"TERM", "KILL", "SEGV"} {
		_, _, err := runErr(t, c, "ulimit -c 0; kill -"+sig+" $$")
		var exit *ssh.ExitError
		if !errors.As(err, &exit) || exit.Signal() != sig {
			t.Errorf("death by %s arrives as %v", sig, err)
		}
	}
}

func TestSignalRequestReachesTheGroup(t *testing.T) {
	f := newFixture(t)
	c := f.dial(f.start(nil))
	s := newSession(t, c)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("echo $$; sleep 1000; echo no"); err != nil {
		t.Fatal(err)
	}
	readPID(t, out)
	if err := s.Signal(ssh.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.Signal() != "TERM" {
		t.Errorf("got %v, want death by TERM", err)
	}
}

func TestStreamsAreSeparateAndBytesArriveIntact(t *testing.T) {
	f := newFixture(t)
	c := f.dial(f.start(nil))
	out, errOut, err := runErr(t, c, `printf 'a\0b\377'; printf 'c\0d\376' >&2`)
	if err != nil || out != "a\x00b\xff" || errOut != "c\x00d\xfe" {
		t.Errorf("got %q, %q, %v", out, errOut, err)
	}

	data := make([]byte, 3<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	s := newSession(t, c)
	s.Stdin = bytes.NewReader(data)
	got, err := s.Output("cat")
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("3 MiB through cat: %d bytes back, equal %v, %v", len(got), bytes.Equal(got, data), err)
	}

	line := run(t, c, `head -c 1048576 /dev/zero | tr '\0' x`)
	if line != strings.Repeat("x", 1<<20) {
		t.Errorf("line of 1 MiB arrives with %d bytes", len(line))
	}
}

func TestEndOfInput(t *testing.T) {
	f := newFixture(t)
	c := f.dial(f.start(nil))
	t.Run("reaches the command", func(t *testing.T) {
		s := newSession(t, c)
		s.Stdin = strings.NewReader("two\nlines\n")
		out, err := s.Output("wc -l; echo after")
		if err != nil || string(out) != "2\nafter\n" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("input that nobody reads", func(t *testing.T) {
		s := newSession(t, c)
		s.Stdin = io.LimitReader(zeros{}, 16<<20)
		if out, err := s.Output("exec <&-; echo done"); string(out) != "done\n" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("output ends before the command", func(t *testing.T) {
		s := newSession(t, c)
		in, err := s.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := s.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start("exec >&- 2>&-; read -r line; exit 3"); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
			t.Errorf("got %q, %v", rest, err)
		}
		if _, err := io.WriteString(in, "go\n"); err != nil {
			t.Fatal(err)
		}
		var exit *ssh.ExitError
		if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 3 {
			t.Errorf("got %v, want status 3", err)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestClosedSessionLeavesTheCommand(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	for _, lost := range []string{"session", "connection"} {
		c := f.dial(m)
		s := newSession(t, c)
		out, err := s.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start("echo $$; exec sleep 1000"); err != nil {
			t.Fatal(err)
		}
		pid := readPID(t, out)
		if lost == "session" {
			s.Close()
			run(t, c, "true")
		}
		c.Close()
		run(t, f.dial(m), "true")
		if !alive(pid) {
			t.Errorf("closing the %s killed the command", lost)
		}
	}
}

func TestBackgroundChildHoldsTheChannel(t *testing.T) {
	f := newFixture(t)
	c := f.dial(f.start(nil))
	s := newSession(t, c)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(`mkfifo gate; { read -r x <gate; echo late; } & echo $$`); err != nil {
		t.Fatal(err)
	}
	pid := readPID(t, out)
	await(t, "the main process to end", func() bool { return !alive(pid) })
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	run(t, c, "true")
	select {
	case err := <-ended:
		t.Fatalf("channel ended before the child: %v", err)
	default:
	}
	run(t, c, "echo go >gate")
	rest, err := io.ReadAll(out)
	if string(rest) != "late\n" || err != nil {
		t.Errorf("got %q, %v", rest, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestLogin(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	other := newSigner(t)
	refused := func(login string, key ssh.Signer) {
		t.Helper()
		c, err := f.tryDial(m, login, key)
		if err == nil {
			c.Close()
			t.Errorf("%s is let in", login)
		} else if !strings.Contains(err.Error(), "unable to authenticate") {
			t.Error(err)
		}
	}
	refused("dev", other)
	refused("eve", f.signer)
	f.authorize(entry("root", f.signer))
	refused("root", f.signer)
	f.authorize(entry("eve", other) + " google-ssh")
	f.authorize("old:" + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(other.PublicKey()))) +
		` google-ssh {"userName":"old","expireOn":"2020-01-01T00:00:00+0000"}`)
	refused("old", other)

	c, err := f.tryDial(m, "eve", other)
	if err != nil {
		t.Fatalf("key added later is refused: %v", err)
	}
	defer c.Close()
	if got, want := run(t, c, `echo "$USER $LOGNAME ${HOME##*/} ${PWD##*/}"`), "eve eve eve eve\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHostKeys(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	offered := func(algo string) string {
		var key ssh.PublicKey
		c, err := ssh.Dial("tcp", f.addr(m), &ssh.ClientConfig{
			User: "dev", Auth: []ssh.AuthMethod{ssh.PublicKeys(f.signer)},
			HostKeyAlgorithms: []string{algo},
			HostKeyCallback: func(_ string, _ net.Addr, k ssh.PublicKey) error {
				key = k
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		return base64.StdEncoding.EncodeToString(key.Marshal())
	}
	for algo, want := range m.HostKeys() {
		if got := offered(algo); got != want {
			t.Errorf("%s: offered %s, published %s", algo, got, want)
		}
	}
	before := m.HostKeys()
	if err := m.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, m.HostKeys()); diff != "" {
		t.Errorf("reboot changes host keys:\n%s", diff)
	}
	set(t, m, "rotate-host-keys")
	for algo, old := range before {
		if m.HostKeys()[algo] == old {
			t.Errorf("%s key did not change", algo)
		}
		if got := offered(algo); got != m.HostKeys()[algo] {
			t.Errorf("%s: offered %s, published %s", algo, got, m.HostKeys()[algo])
		}
	}
}

func TestMaxSessions(t *testing.T) {
	f := newFixture(t)
	c := f.dial(f.start(nil))
	var open []*ssh.Session
	for range 10 {
		s := newSession(t, c)
		if err := s.Start("exec sleep 1000"); err != nil {
			t.Fatal(err)
		}
		open = append(open, s)
	}
	var refused *ssh.OpenChannelError
	if _, err := c.NewSession(); !errors.As(err, &refused) || refused.Reason != ssh.ConnectionFailed {
		t.Errorf("11th session: got %v", err)
	}
	if err := open[0].Signal(ssh.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = open[0].Wait()
	await(t, "a session to be free", func() bool {
		s, err := c.NewSession()
		if err == nil {
			s.Close()
		}
		return err == nil
	})
}

func TestRequests(t *testing.T) {
	f := newFixture(t)
	c := f.dial(f.start(nil))
	if _, _, err := c.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		t.Errorf("keepalive: %v", err)
	}
	s := newSession(t, c)
	if err := s.Setenv("FOO", "bar"); err == nil {
		t.Error("FOO is accepted")
	}
	if err := s.Setenv("LC_TIME", "C"); err != nil {
		t.Errorf("LC_TIME is refused: %v", err)
	}
	if out, err := s.Output(`echo "[$FOO][$LC_TIME]"`); err != nil || string(out) != "[][C]\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if err := newSession(t, c).RequestSubsystem("netconf"); err == nil {
		t.Error("subsystem netconf is accepted")
	}
}

func TestTerminal(t *testing.T) {
	f := newFixture(t)
	c := f.dial(f.start(nil))
	s := newSession(t, c)
	if err := s.RequestPty("xterm", 40, 100, nil); err != nil {
		t.Fatal(err)
	}
	out, err := s.Output(`tty; stty size; echo "$TERM"; echo err >&2`)
	lines := strings.Split(string(out), "\r\n")
	if err != nil || len(lines) != 5 || !strings.HasPrefix(lines[0], "/dev/pts/") || lines[1] != "40 100" || lines[2] != "xterm" || lines[3] != "err" {
		t.Errorf("got %q, %v", out, err)
	}

	s = newSession(t, c)
	if err := s.RequestPty("xterm", 40, 100, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("echo $$; exec sleep 1000"); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(r, "%d\r\n", &pid); err != nil {
		t.Fatal(err)
	}
	s.Close()
	await(t, "the hang-up to end the command", func() bool { return !alive(pid) })
}

func set(t testing.TB, m worker.Machine, words string) {
	t.Helper()
	fault, err := worker.ParseFault(strings.Fields(words)...)
	if err != nil {
		t.Fatal(err)
	}
	if got := fault.String(); got != words {
		t.Errorf("%q is written %q", words, got)
	}
	if err := m.SetFault(fault); err != nil {
		t.Fatal(err)
	}
}

func TestShutdownScript(t *testing.T) { testShutdownScript(t, newFixture(t)) }

// If a machine is told to end, it first runs the shutdown script as root, within its limit.
// A reset or a loss of power does not run the script.
func testShutdownScript(t *testing.T, f *fixture) {
	testkit.Need(t, "curl")
	var ends atomic.Int32
	m := f.start(func(s *worker.Spec) {
		s.Metadata = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/computeMetadata/v1/instance/attributes/shutdown-script":
				fmt.Fprint(w, "#!/bin/bash\nexec sleep $(curl -s \"http://${GCE_METADATA_HOST:-169.254.169.254}/ends/$(id -un)\")\n")
			case "/ends/root":
				if ends.Add(1) == 1 {
					fmt.Fprint(w, 0)
				} else {
					fmt.Fprint(w, 1000)
				}
			default:
				http.NotFound(w, r)
			}
		})
	})
	if err := m.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	set(t, m, "reboot power")
	if n := ends.Load(); n != 0 {
		t.Errorf("%d shutdown scripts ran without an order to end", n)
	}
	set(t, m, "reboot")
	if n := ends.Load(); n != 1 {
		t.Errorf("%d shutdown scripts ran, want 1", n)
	}
	run(t, f.dial(m), "true")
	o, ok := m.(worker.Orderly)
	if !ok {
		t.Fatal("it cannot be told to end")
	}
	if err := o.ShutDown(t.Context(), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, err := f.tryDial(m, "dev", f.signer); err == nil {
		t.Error("it answers after its end")
	}
}

func TestReboot(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	c := f.dial(m)
	const state = `cat "$MULTIHOST_ROOT_PROC/proc/sys/kernel/random/boot_id"; sysctl -n net.ipv4.tcp_no_metrics_save; cat /tmp/none "$TMPDIR/x" keep; ip route`
	run(t, c, `echo kept >keep; echo x >"$TMPDIR/x"; sudo -n sysctl -w net.ipv4.tcp_no_metrics_save=1; sudo -n ip route change default via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.7 metric 100 rto_min 5ms`)
	s := newSession(t, c)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("setsid sleep 1000 & echo $!; wait"); err != nil {
		t.Fatal(err)
	}
	pid := readPID(t, out)
	before, _, _ := runErr(t, c, state)

	if err := m.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("connection ends without error")
	}
	if alive(pid) {
		t.Error("a process outlives the reboot")
	}
	after, _, _ := runErr(t, f.dial(m), state)
	b, a := strings.SplitN(before, "\n", 2), strings.SplitN(after, "\n", 2)
	if b[0] == a[0] {
		t.Error("boot id is the same")
	}
	want := "0\nkept\ndefault via 10.128.0.1 dev ens8 proto dhcp src 10.128.0.7 metric 100 \n10.128.0.1 dev ens8 proto dhcp scope link src 10.128.0.7 metric 100 \n"
	if diff := cmp.Diff(want, a[1]); diff != "" {
		t.Errorf("after the reboot (-want +got):\n%s", diff)
	}

	set(t, m, "reboot 1h0m0s")
	if err := m.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, f.dial(m), "true")

	set(t, m, "reboot 50ms")
	if conn, err := net.Dial("tcp", f.addr(m)); err == nil {
		conn.Close()
		t.Log("the machine came back at once") // the test was slow
	}
	await(t, "the machine to come back", func() bool {
		c, err := f.tryDial(m, "dev", f.signer)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func TestCut(t *testing.T) { testCut(t, newFixture(t)) }

func testCut(t *testing.T, f *fixture) {
	m := f.start(nil)
	for _, direction := range []string{"in", "out"} {
		c := f.dial(m)
		set(t, m, "cut "+direction+" 100000 1")
		s := newSession(t, c)
		var got bytes.Buffer
		s.Stdout = &got
		if direction == "in" {
			s.Stdin = io.LimitReader(zeros{}, 1<<20)
		}
		err := s.Run("head -c 1048576 /dev/zero; cat >/dev/null")
		var missing *ssh.ExitMissingError
		if !errors.As(err, &missing) {
			t.Errorf("cut %s: got %v", direction, err)
		}
		if n := got.Len(); direction == "out" && (n == 0 || n > 100000) {
			t.Errorf("cut after 100000 bytes lets %d through", n)
		}
		// The fault allows one cut, which has happened.
		if n := len(run(t, f.dial(m), "head -c 1048576 /dev/zero")); n != 1<<20 {
			t.Errorf("cut %s: %d bytes after the last cut", direction, n)
		}
	}
	set(t, m, "cut out 10")
	for range 2 {
		if c, err := f.tryDial(m, "dev", f.signer); err == nil {
			c.Close()
			t.Error("a connection lives")
		}
	}
	set(t, m, "clear cut")
	run(t, f.dial(m), "true")
}

func TestFaultsOfReach(t *testing.T) { testFaultsOfReach(t, newFixture(t)) }

func testFaultsOfReach(t *testing.T, f *fixture) {
	m := f.start(nil)

	c := f.dial(m)
	set(t, m, "unreachable refuse")
	if err := c.Wait(); err == nil {
		t.Error("standing connection ends without error")
	}
	if _, err := net.Dial("tcp", f.addr(m)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refuse: got %v", err)
	}
	set(t, m, "clear unreachable")

	c = f.dial(m)
	set(t, m, "unreachable hang")
	d := net.Dialer{Timeout: 50 * time.Millisecond}
	if conn, err := d.DialContext(t.Context(), "tcp", f.addr(m)); err == nil {
		conn.Close()
		t.Error("hang: connected")
	} else if ne, ok := err.(net.Error); !ok || !ne.Timeout() {
		t.Errorf("hang: got %v", err)
	}
	answered := make(chan error, 1)
	go func() {
		_, _, err := c.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Errorf("hang: keepalive is answered: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	set(t, m, "clear")
	if err := <-answered; err != nil {
		t.Errorf("standing connection does not come back: %v", err)
	}
	run(t, f.dial(m), "true")

	set(t, m, "freeze")
	conn, err := net.Dial("tcp", f.addr(m))
	if err != nil {
		t.Fatalf("freeze: %v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("freeze: read %d bytes, %v", n, err)
	}
	conn.Close()
	set(t, m, "freeze 10ms")
	run(t, f.dial(m), "true")
}

func TestFaultsOfLogin(t *testing.T) {
	f := newFixture(t)
	m := f.start(func(s *worker.Spec) {
		s.Faults = []worker.Fault{{Kind: worker.RefuseAuth, Count: 2}}
	})
	for range 2 {
		if c, err := f.tryDial(m, "dev", f.signer); err == nil {
			c.Close()
			t.Error("let in too early")
		}
	}
	c := f.dial(m)

	for _, what := range []string{"handshake", "exec"} {
		set(t, m, "slow "+what+" 30ms")
		from := time.Now()
		run(t, f.dial(m), "true")
		if took := time.Since(from); took < 30*time.Millisecond {
			t.Errorf("slow %s: took %v", what, took)
		}
		set(t, m, "clear slow")
	}

	s := newSession(t, c)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("echo $$; exec sleep 1000"); err != nil {
		t.Fatal(err)
	}
	readPID(t, out)
	set(t, m, "kill")
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.Signal() != "KILL" {
		t.Errorf("kill: got %v", err)
	}
	run(t, c, "true")
}

func TestParseFaultRefuses(t *testing.T) {
	for _, words := range []string{
		"", "explode", "cut", "cut sideways 1", "cut in x", "cut in -1", "slow exec", "slow nap 1s",
		"unreachable", "unreachable maybe", "refuse-auth", "refuse-auth soon", "missing", "missing ../x",
		"kill FOO", "clear foo", "no-sudo now", "freeze 1s 2s",
	} {
		if f, err := worker.ParseFault(strings.Fields(words)...); err == nil {
			t.Errorf("%q is read as %v", words, f)
		}
	}
}

func TestStart(t *testing.T) {
	f := newFixture(t)
	m := f.start(func(s *worker.Spec) {
		s.Faults = []worker.Fault{{Kind: worker.Unreachable, Mode: "refuse"}}
	})
	if _, err := net.Dial("tcp", f.addr(m)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("unreachable from the start: got %v", err)
	}
	set(t, m, "clear")
	run(t, f.dial(m), "true")
	for what, spec := range map[string]worker.Spec{
		"a directory in use": {Node: "t-0"},
		"a bad node":         {Node: "../t"},
		"a bad device":       {Node: "t-1", Devices: []string{"/dev/../etc/passwd"}},
		"a bad fault":        {Node: "t-2", Faults: []worker.Fault{{Kind: "explode"}}},
	} {
		if _, err := f.backend.Start(t.Context(), spec); err == nil {
			t.Errorf("starts with %s", what)
		}
	}
}

func TestStopLeavesNothing(t *testing.T) {
	f := newFixture(t)
	m := f.start(nil)
	other := f.start(func(s *worker.Spec) { s.Name, s.Index = "s0w1", 1 })
	otherClient := f.dial(other)
	s := newSession(t, otherClient)
	otherOut, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("echo $$; exec sleep 1000"); err != nil {
		t.Fatal(err)
	}
	otherPID := readPID(t, otherOut)

	// A process that does not belong to the simulator.
	foreign := exec.Command("sleep", "1000")
	if err := foreign.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Process.Kill(); _ = foreign.Wait() }()

	c := f.dial(m)
	s = newSession(t, c)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(`
		sleep 1000 & echo $!
		setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!
		env -i /bin/sleep 1000 & echo $!
		env -i setsid /bin/sleep 1000 </dev/null >/dev/null 2>&1 & echo $!
		trap '' TERM HUP INT
		bash -c 'trap "" TERM; while :; do sleep 0.01; done' & echo $!
		sudo -n -- sleep 1000 & echo $!
		wait`); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for range 6 {
		pids = append(pids, readPID(t, out))
	}
	addr := f.addr(m)
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d of 6 lives", i+1)
		}
	}
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("listener: got %v", err)
	}
	if !alive(otherPID) || !alive(foreign.Process.Pid) {
		t.Error("a process of another machine was killed")
	}
	if err := m.Stop(t.Context()); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if err := m.SetFault(worker.Fault{Kind: worker.Freeze}); err == nil {
		t.Error("a stopped machine takes faults")
	}
}

func TestCloseWithOpenConnections(t *testing.T) {
	f := newFixture(t)
	for i := range 4 {
		m := f.start(func(s *worker.Spec) { s.Index = i })
		s := newSession(t, f.dial(m))
		if err := s.Start("sleep 1000 & sleep 1000"); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			set(t, m, "freeze")
		}
		if i == 2 {
			set(t, m, "unreachable hang")
		}
		if i == 3 {
			set(t, m, "reboot 1h0m0s")
		}
	}
	if err := f.backend.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.backend.Start(context.Background(), worker.Spec{Node: "t-0"}); err == nil {
		t.Error("a closed backend starts machines")
	}
}

func TestManyMachines(t *testing.T) {
	f := newFixture(t)
	const n = 256
	from := time.Now()
	machines := make([]worker.Machine, n)
	for i := range machines {
		machines[i] = f.start(func(s *worker.Spec) { s.Index = i })
	}
	t.Logf("%d machines start in %v", n, time.Since(from))
	var wg sync.WaitGroup
	limit := make(chan struct{}, 16)
	for i, m := range machines {
		if i%8 != 0 {
			continue
		}
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			c, err := f.tryDial(m, "dev", f.signer)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			s, err := c.NewSession()
			if err != nil {
				t.Error(err)
				return
			}
			out, err := s.Output("echo $HOME; sleep 1000 >/dev/null 2>&1 &")
			if want := fmt.Sprintf("/workers/t-0-w-%d/home/dev\n", i); err != nil || !strings.HasSuffix(string(out), want) {
				t.Errorf("machine %d: got %q, %v", i, out, err)
			}
		})
	}
	wg.Wait()
	from = time.Now()
	if err := f.backend.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d machines stop in %v", n, time.Since(from))
}
