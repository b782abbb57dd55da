package sshfan_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

func TestRun(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	for _, tt := range []struct {
		name, line     string
		stdin          string
		stdout, stderr string
		status         remote.Status
	}{
		{name: "success", line: ":"},
		{name: "exit code", line: "exit 7", status: remote.Status{Code: 7}},
		{name: "exit code that looks like a signal", line: "exit 137", status: remote.Status{Code: 137}},
		{name: "exit code 255", line: "exit 255", status: remote.Status{Code: 255}},
		{name: "no such command", line: "no-such-command 2>/dev/null", status: remote.Status{Code: 127}},
		{name: "killed", line: "kill -KILL $$", status: remote.Status{Code: 137, Signal: "KILL"}},
		{name: "terminated", line: "kill -TERM $$", status: remote.Status{Code: 143, Signal: "TERM"}},
		{name: "signal beyond RFC 4254", line: "signal-unknown", status: remote.Status{Code: 159, Signal: "SYS"}},
		{name: "separate streams", line: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
		{name: "input", line: "cat", stdin: "a\x00b\xffc", stdout: "a\x00b\xffc"},
		{name: "input nobody reads", line: "exit 3", stdin: strings.Repeat("x", 8<<20), status: remote.Status{Code: 3}},
		{name: "no input is the end of input", line: "cat; echo end", stdout: "end\n"},
		{name: "a line without its end", line: "printf 'no newline'", stdout: "no newline"},
		{name: "binary", line: `printf '\000\377\033[2J\r'`, stdout: "\x00\xff\x1b[2J\r"},
		{name: "1 MiB without newline", line: "head -c 1048576 /dev/zero | tr '\\000' x", stdout: strings.Repeat("x", 1<<20)},
		{name: "output after the input ended", line: "wait-for-close", stdin: "x", stdout: "late"},
		{name: "words with quotes", line: remote.Quote("printf", "%s|", "a b", "it's", "$HOME", "`x`", "a\nb", ""), stdout: "a b|it's|$HOME|`x`|a\nb||"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			cmd := remote.Cmd{Line: tt.line, Stdout: &out, Stderr: &errs}
			if tt.stdin != "" {
				cmd.Stdin = strings.NewReader(tt.stdin)
			}
			status, err := c.Run(t.Context(), cmd)
			if err != nil {
				t.Fatal(err)
			}
			if status != tt.status {
				t.Errorf("got status %+v, want %+v", status, tt.status)
			}
			if out.String() != tt.stdout || errs.String() != tt.stderr {
				t.Errorf("got %d bytes %.40q and %.40q, want %d bytes %.40q and %.40q",
					out.Len(), out.String(), errs.String(), len(tt.stdout), tt.stdout, tt.stderr)
			}
		})
	}
}

// Thousands of commands wait for input during the whole run. Each needs a large buffer only
// while it gets much input.
func TestInputIsReadThroughASmallBufferWhileLittleComes(t *testing.T) {
	testkit.NoLeaks(t)
	const much, little = 1 << 20, 10
	in := &countedInput{much: much, little: little}
	var out bytes.Buffer
	c := connect(t, newFleet(t), newServer(t).host("s0w0"))
	status, err := c.Run(t.Context(), remote.Cmd{Line: "cat | wc -c", Stdin: in, Stdout: &out})
	if err != nil || status.Code != 0 || strings.TrimSpace(out.String()) != strconv.Itoa(much+little) {
		t.Fatalf("%q, %+v, %v", out.String(), status, err)
	}
	first, most, last := in.room[0], slices.Max(in.room), in.room[len(in.room)-1]
	if first > 1<<10 || most < 32<<10 || last > 1<<10 {
		t.Errorf("read through buffers of %d, then %d, then %d bytes", first, most, last)
	}
}

// countedInput first delivers much at once, then little, then nothing.
type countedInput struct {
	much, little int
	room         []int // size of the buffer of each Read
}

func (c *countedInput) Read(p []byte) (int, error) {
	c.room = append(c.room, len(p))
	n := min(c.much, len(p))
	c.much -= n
	if n == 0 {
		n, c.little = c.little, 0
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func TestOneWriterForBothStreams(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	var both bytes.Buffer // the race detector checks this access
	line := "for i in 1 2 3 4 5 6 7 8; do echo out; echo err >&2; done"
	if _, err := c.Run(t.Context(), remote.Cmd{Line: line, Stdout: &both, Stderr: &both}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(both.String(), "out\n") + strings.Count(both.String(), "err\n"); n != 16 {
		t.Errorf("%d lines of 16: %q", n, both.String())
	}
}

func TestStartStdin(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	var out bytes.Buffer
	session, err := c.Start(t.Context(), remote.Cmd{Line: "read -r a; echo got $a; cat", Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(session.Stdin(), "one\ntwo\n")
	session.Stdin().Close()
	if status, err := session.Wait(); err != nil || status.Code != 0 {
		t.Fatal(status, err)
	}
	if out.String() != "got one\ntwo\n" {
		t.Errorf("got %q", out.String())
	}
	if _, err := io.WriteString(session.Stdin(), "late"); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("write after the end: got %v, want ErrClosedPipe", err)
	}
	if _, err := session.Wait(); err != nil {
		t.Errorf("second Wait: %v", err)
	}
}

func TestCancelledRunReturnsItsCause(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped by fail-fast")
	out := &cancelOn{cancel: func() { cancel(stop) }}
	_, err := c.Run(ctx, remote.Cmd{Line: "echo started; sleep 60", Stdout: out})
	if err != stop {
		t.Errorf("got %v, want the cause itself", err)
	}
	if _, err := c.Run(ctx, remote.Cmd{Line: "true"}); err != stop {
		t.Errorf("run with an ended context: got %v", err)
	}
	run(t, c, "true") // on the same connection
	if s.logins.Load() != 1 {
		t.Errorf("%d logins, want 1", s.logins.Load())
	}
}

// cancelOn cancels at the first write.
type cancelOn struct{ cancel func() }

func (w *cancelOn) Write(p []byte) (int, error) { w.cancel(); return len(p), nil }

func TestNothingIsWrittenAfterRunReturned(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		out := &guarded{first: cancel}
		if _, err := c.Run(ctx, remote.Cmd{Line: "while :; do echo y; done", Stdout: out}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		out.n++ // the race detector checks this access
	}
}

type guarded struct {
	n     int
	first func()
}

func (w *guarded) Write(p []byte) (int, error) {
	if w.n == 0 {
		w.first()
	}
	w.n += len(p)
	return len(p), nil
}

func TestFailingWriterEndsTheSession(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	full := errors.New("no space left on device")
	_, err := c.Run(t.Context(), remote.Cmd{Line: "while :; do echo y; done", Stdout: failing{full}})
	if !errors.Is(err, full) || !strings.Contains(err.Error(), "s0w0") {
		t.Errorf("got %v, want the error of the writer and the worker", err)
	}
}

func TestFailingReaderEndsTheSession(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	gone := errors.New("stale file handle")
	_, err := c.Run(t.Context(), remote.Cmd{Line: "cat >/dev/null", Stdin: io.MultiReader(strings.NewReader("half"), failing{gone})})
	if !errors.Is(err, gone) {
		t.Errorf("got %v, want the error of the reader", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
func (f failing) Read([]byte) (int, error)  { return 0, f.err }

func TestBlockedReaderDoesNotHoldUpTheEnd(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	r, w := io.Pipe()
	defer w.Close() // behaves like a person who types nothing
	status, err := c.Run(t.Context(), remote.Cmd{Line: "exit 5", Stdin: r})
	if err != nil || status.Code != 5 {
		t.Errorf("got %v, %v", status, err)
	}
}

func TestSlowWriterHoldsUpNobodyElse(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	f := newFleet(t)
	slow, quick := connect(t, f, s.host("s0w0")), connect(t, f, s.host("s0w1"))
	release := make(chan struct{})
	out := &stuck{entered: make(chan struct{}, 1), release: release}
	ended := make(chan error, 1)
	go func() {
		_, err := slow.Run(t.Context(), remote.Cmd{Line: "head -c 8388608 /dev/zero", Stdout: out})
		ended <- err
	}()
	<-out.entered
	run(t, quick, "echo other host")
	run(t, slow, "echo same connection")
	select {
	case err := <-ended:
		t.Fatalf("the slow one ended: %v", err)
	default:
	}
	close(release)
	if err := <-ended; err != nil || out.n != 8<<20 {
		t.Errorf("got %d bytes, %v", out.n, err)
	}
}

type stuck struct {
	entered chan struct{}
	release chan struct{}
	n       int
}

func (w *stuck) Write(p []byte) (int, error) {
	select {
	case w.entered <- struct{}{}:
	default:
	}
	<-w.release
	w.n += len(p)
	return len(p), nil
}

func TestSessionClose(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	c := connect(t, newFleet(t), s.host("s0w0"))
	session, err := c.Start(t.Context(), remote.Cmd{Line: "sleep 60"})
	if err != nil {
		t.Fatal(err)
	}
	session.Close()
	session.Close()
	if _, err := session.Wait(); !errors.Is(err, remote.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if _, err := io.WriteString(session.Stdin(), "x"); err == nil {
		t.Error("write after Close went well")
	}

	session, err = c.Start(t.Context(), remote.Cmd{Line: "exit 4"})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := session.Wait(); err != nil || status.Code != 4 {
		t.Errorf("got %v, %v", status, err)
	}
	session.Close()
	if status, err := session.Wait(); err != nil || status.Code != 4 {
		t.Errorf("Close after the end changed it to %v, %v", status, err)
	}
}

// A connection and a command may allocate only so much, so that thousands of them do not
// burden the garbage collector. Both ends are in this process: the server allocates more
// than half.
func TestAllocations(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("the race detector allocates")
	}
	s := newServer(t)
	id := newIdentity(t)
	connected := func() {
		f, err := sshfan.New(sshfan.Config{Identity: id})
		testkit.Must(t, err)
		connect(t, f, s.host("s0w0"))
		f.Close()
	}
	c := connect(t, newFleet(t), s.host("s0w0"))
	executed := func() {
		_, err := c.Run(t.Context(), remote.Cmd{Line: "true"})
		testkit.Must(t, err)
	}
	perConnection, perCommand := testing.AllocsPerRun(20, connected), testing.AllocsPerRun(100, executed)
	t.Logf("%.0f allocations a connection, %.0f a command", perConnection, perCommand)
	if perConnection > 850 { // measured: 652
		t.Errorf("%.0f allocations a connection", perConnection)
	}
	if perCommand > 170 { // measured: 130
		t.Errorf("%.0f allocations a command", perCommand)
	}
}

func BenchmarkConnectAndExec(b *testing.B) {
	s := newServer(b)
	id := newIdentity(b)
	for b.Loop() {
		f, err := sshfan.New(sshfan.Config{Identity: id})
		if err != nil {
			b.Fatal(err)
		}
		conns, errs := f.Connect(b.Context(), []sshfan.Host{s.host("s0w0")})
		if errs[0] != nil {
			b.Fatal(errs[0])
		}
		if _, err := conns[0].Run(b.Context(), remote.Cmd{Line: "true"}); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

func BenchmarkExec(b *testing.B) {
	s := newServer(b)
	c := connect(b, newFleet(b), s.host("s0w0"))
	for b.Loop() {
		if _, err := c.Run(b.Context(), remote.Cmd{Line: "true"}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOutput(b *testing.B) {
	s := newServer(b)
	c := connect(b, newFleet(b, func(c *sshfan.Config) { c.KeepAlive = time.Minute }), s.host("s0w0"))
	b.SetBytes(16 << 20)
	for b.Loop() {
		if _, err := c.Run(b.Context(), remote.Cmd{Line: "head -c 16777216 /dev/zero"}); err != nil {
			b.Fatal(err)
		}
	}
}

// A read-only fleet runs only commands marked as read-only, and writes no local file.
func TestAReadOnlyFleetOnlyReads(t *testing.T) {
	testkit.NoLeaks(t)
	s := newServer(t)
	known := filepath.Join(t.TempDir(), "state", "known_hosts")
	c := connect(t, newFleet(t, func(cfg *sshfan.Config) { cfg.ReadOnly, cfg.KnownHosts = true, known }), s.host("s0w0"))
	var refused *remote.ConnectError
	if _, err := c.Run(t.Context(), remote.Cmd{Line: "echo x"}); !errors.Is(err, remote.ErrReadOnly) || !errors.As(err, &refused) {
		t.Errorf("a command that may change something: %v", err)
	}
	if _, err := c.Run(t.Context(), remote.Cmd{Line: "echo x", ReadOnly: true, LoginTo: c}); !errors.Is(err, remote.ErrReadOnly) {
		t.Errorf("a command that is lent a login: %v", err)
	}
	var out bytes.Buffer
	if _, err := c.Run(t.Context(), remote.Cmd{Line: "echo x", ReadOnly: true, Stdout: &out}); err != nil || out.String() != "x\n" {
		t.Errorf("a command that reads: %q, %v", out.String(), err)
	}
	if _, err := c.MeasureClock(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(known)); !os.IsNotExist(err) {
		t.Errorf("host keys were kept: %v", err)
	}
}
