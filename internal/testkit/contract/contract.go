// Package contract tests what every kind of connection to a worker must do. The tests of each
// implementation of remote.Conn run the rows of this package. If two kinds differ in a row, one
// of them has a fault.
package contract

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// A Target is a worker and one kind of connection to it. The worker's login shell is bash, and
// the login's home is empty.
type Target struct {
	// Connect returns a new connection. readOnly is remote.Request.ReadOnly.
	Connect func(t *testing.T, readOnly bool) remote.Conn

	// ConnectCuttable returns a new connection and a function that breaks its network
	// connection. The next command can connect again.
	ConnectCuttable func(t *testing.T) (conn remote.Conn, cut func())

	// NoSignals says that this kind of connection reports only an exit code, even after a
	// death by signal.
	NoSignals bool
}

// Check runs all rows.
func Check(t *testing.T, target Target) {
	conn := target.Connect(t, false)
	t.Run("command", func(t *testing.T) {
		for _, row := range Commands {
			if target.NoSignals && row.Status.Signal != "" {
				row.Status = remote.Status{Code: max(row.Status.Code, row.Code)}
			}
			t.Run(row.Name, func(t *testing.T) { row.Check(t, conn) })
		}
	})
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) { row.check(t, target, conn) })
	}
}

// A Command is a row about one command on a connection.
type Command struct {
	Name, Line     string
	Stdin          string
	Stdout, Stderr string
	Status         remote.Status
	Code           int // exit code for a signal without a name, if the connection reports the signal's number
}

// Check runs the command.
func (c Command) Check(t *testing.T, conn remote.Conn) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := remote.Cmd{Line: c.Line, Stdout: &out, Stderr: &errs}
	if c.Stdin != "" {
		cmd.Stdin = strings.NewReader(c.Stdin)
	}
	status, err := conn.Run(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	if status != c.Status || out.String() != c.Stdout || errs.String() != c.Stderr {
		t.Errorf("got %+v, %.60q, %.60q; want %+v, %.60q, %.60q",
			status, out.String(), errs.String(), c.Status, c.Stdout, c.Stderr)
	}
}

// Signals 32 and 33 belong to the C library, so a program can neither use nor reset them.
// The tests may have been started with one of them ignored.
const signals = `grep -E '^Sig(Blk|Ign):' /proc/self/status | while read -r name mask; do
	printf '%s %x\n' "$name" $((0x$mask & ~0x180000000))
done`

// Commands are the rows about one command on a connection.
var Commands = []Command{
	{Name: "success", Line: "true"},
	{Name: "exit status", Line: "exit 7", Status: remote.Status{Code: 7}},
	{Name: "exit status 255", Line: "exit 255", Status: remote.Status{Code: 255}},
	{Name: "no such command", Line: "no-such-command 2>/dev/null", Status: remote.Status{Code: 127}},
	{Name: "exit by KILL", Line: "kill -KILL $$", Status: remote.Status{Code: 137, Signal: "KILL"}},
	{Name: "exit by TERM", Line: "kill -TERM $$", Status: remote.Status{Code: 143, Signal: "TERM"}},
	{Name: "exit by SEGV", Line: "ulimit -c 0; kill -SEGV $$", Status: remote.Status{Code: 139, Signal: "SEGV"}},
	{Name: "exit by a signal without a name", Line: "kill -RTMIN $$", Status: remote.Status{Code: 128, Signal: "UNKNOWN"}, Code: 162},
	{Name: "a child's death is no signal", Line: "exec 2>/dev/null; (kill -KILL $BASHPID); exit $?", Status: remote.Status{Code: 137}},
	{Name: "exit 137 is no signal", Line: "exit 137", Status: remote.Status{Code: 137}},
	{Name: "streams are apart", Line: "echo out; echo err >&2", Stdout: "out\n", Stderr: "err\n"},
	{Name: "input to the end", Line: "cat", Stdin: "a\x00\xff\n", Stdout: "a\x00\xff\n"},
	{Name: "input larger than the windows", Line: "wc -c", Stdin: strings.Repeat("x", 5<<20), Stdout: "5242880\n"},
	{Name: "no input", Line: "cat; echo end", Stdout: "end\n"},
	{Name: "input is never read", Line: "exit 3", Stdin: strings.Repeat("x", 4<<20), Status: remote.Status{Code: 3}},
	{Name: "input is closed, not read", Line: "exec <&-; sleep 0.1; exit 3", Stdin: strings.Repeat("x", 4<<20), Status: remote.Status{Code: 3}},
	{Name: "NUL and invalid UTF-8", Line: `printf '\000\377\376\r\n\033[2J'`, Stdout: "\x00\xff\xfe\r\n\x1b[2J"},
	{Name: "a line without its end", Line: "printf 'no newline'", Stdout: "no newline"},
	{Name: "1 MiB without newline", Line: "head -c 1048576 /dev/zero | tr '\\000' x", Stdout: strings.Repeat("x", 1<<20)},
	{Name: "1 MiB of errors", Line: "head -c 1048576 /dev/zero | tr '\\000' x >&2", Stderr: strings.Repeat("x", 1<<20)},
	{Name: "end of output before the exit", Line: "exec >&- 2>&-; sleep 0.2; exit 5", Status: remote.Status{Code: 5}},
	{Name: "a child that holds the pipes", Line: "(sleep 0.3; echo late) & echo now", Stdout: "now\nlate\n"},
	{Name: "a child that holds no pipe", Line: "sleep 60 </dev/null >/dev/null 2>&1 & kill -0 $! && kill $! && echo gone", Stdout: "gone\n"},
	{Name: "words", Line: remote.Quote("printf", "%s|", "a b", "it's $HOME", "a\nb"), Stdout: "a b|it's $HOME|a\nb|"},
	{Name: "script", Line: remote.Quote("bash", "-c", `echo "$#:$1"`, "bash", "a b", ""), Stdout: "2:a b\n"},
	{Name: "an empty line is a command", Line: " "},
	{Name: "home", Line: `cd && test "$PWD" = "$HOME" && echo here`, Stdout: "here\n"},
	{Name: "no login shell", Line: "shopt -q login_shell || echo none; echo $0", Stdout: "none\nbash\n"},
	{Name: "no terminal", Line: "tty", Stdout: "not a tty\n", Status: remote.Status{Code: 1}},
	{Name: "session of its own", Line: `read -r _ _ _ _ _ session _ </proc/$$/stat; test "$session" = $$ && echo own`, Stdout: "own\n"},
	{Name: "no controlling terminal", Line: "(: </dev/tty) 2>/dev/null || echo none", Stdout: "none\n"},
	{Name: "process group of its own", Line: `read -r _ _ _ _ group _ </proc/$$/stat; test "$group" = $$ && echo own`, Stdout: "own\n"},
	{Name: "no signal is ignored or blocked", Line: signals, Stdout: "SigBlk: 0\nSigIgn: 0\n"},
	{Name: "a writer whose reader has ended", Line: "yes | head -1", Stdout: "y\n"},
	{Name: "umask", Line: "umask", Stdout: "0022\n"},
	{Name: "descriptors wait", Line: "cat /proc/self/fdinfo/[012] | grep flags:", Stdout: "flags:\t00\nflags:\t01\nflags:\t01\n"},
}

// run runs a command line.
func run(t *testing.T, c remote.Conn, line string) (stdout string, status remote.Status) {
	t.Helper()
	var out bytes.Buffer
	status, err := c.Run(t.Context(), remote.Cmd{Line: line, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), status
}

// background starts a command that writes its process id and continues.
func background(t *testing.T, c remote.Conn) (pid string, s remote.Session) {
	t.Helper()
	var out testkit.Buffer
	s, err := c.Start(t.Context(), remote.Cmd{Line: "echo $$; exec sleep 1000 </dev/null >/dev/null 2>&1", Stdout: &out})
	testkit.Must(t, err)
	testkit.Eventually(t, "the process id", func() bool { return strings.HasSuffix(out.String(), "\n") })
	return strings.TrimSpace(out.String()), s
}

// stillRuns checks that a process is running, and ends it.
func stillRuns(t *testing.T, c remote.Conn, pid string) {
	t.Helper()
	if _, status := run(t, c, fmt.Sprintf("kill -0 %[1]s && kill -KILL %[1]s", pid)); status.Code != 0 {
		t.Errorf("the process ended with its session: %+v", status)
	}
}

// rows are about sessions and connections.
var rows = []struct {
	name  string
	check func(*testing.T, Target, remote.Conn)
}{
	{"input in pieces", func(t *testing.T, _ Target, c remote.Conn) {
		var out testkit.Buffer
		s, err := c.Start(t.Context(), remote.Cmd{Line: "while read -r x; do echo got $x; done; exit 4", Stdout: &out})
		testkit.Must(t, err)
		io.WriteString(s.Stdin(), "one\n")
		testkit.Eventually(t, "the first answer", func() bool { return out.String() == "got one\n" })
		io.WriteString(s.Stdin(), "two\n")
		s.Stdin().Close()
		if status, err := s.Wait(); err != nil || status.Code != 4 || out.String() != "got one\ngot two\n" {
			t.Errorf("got %v, %v, %q", status, err, out.String())
		}
		if _, err := io.WriteString(s.Stdin(), "late"); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("input after the end: %v, want ErrClosedPipe", err)
		}
	}},
	{"closing the session leaves the process", func(t *testing.T, _ Target, c remote.Conn) {
		pid, s := background(t, c)
		s.Close()
		if _, err := s.Wait(); !errors.Is(err, remote.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		stillRuns(t, c, pid)
	}},
	{"closing the connection leaves the process", func(t *testing.T, target Target, c remote.Conn) {
		other := target.Connect(t, false)
		pid, s := background(t, other)
		other.Close()
		if _, err := s.Wait(); !errors.Is(err, remote.ErrConnectionLost) {
			t.Errorf("got %v, want ErrConnectionLost", err)
		}
		stillRuns(t, c, pid)
		var refused *remote.ConnectError
		if _, err := other.Run(t.Context(), remote.Cmd{Line: "true"}); !errors.Is(err, remote.ErrClosed) || !errors.As(err, &refused) {
			t.Errorf("a command after it: %v, want a ConnectError with ErrClosed", err)
		}
	}},
	{"the end of the context leaves the process", func(t *testing.T, _ Target, c remote.Conn) {
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		var out testkit.Buffer
		s, err := c.Start(ctx, remote.Cmd{Line: "echo $$; exec sleep 1000 </dev/null >/dev/null 2>&1", Stdout: &out})
		testkit.Must(t, err)
		testkit.Eventually(t, "the process id", func() bool { return strings.HasSuffix(out.String(), "\n") })
		cancel(why)
		if _, err := s.Wait(); !errors.Is(err, why) {
			t.Errorf("got %v, want the cause of the context", err)
		}
		stillRuns(t, c, strings.TrimSpace(out.String()))
		if _, err := c.Run(ctx, remote.Cmd{Line: "true"}); !errors.Is(err, why) {
			t.Errorf("a command after it: %v, want the cause of the context", err)
		}
	}},
	{"a process that writes to a closed session dies of it", func(t *testing.T, _ Target, c remote.Conn) {
		var pid testkit.Buffer
		s, err := c.Start(t.Context(), remote.Cmd{Line: "echo $$; while :; do echo y; sleep 0.02; done", Stdout: &pid})
		testkit.Must(t, err)
		testkit.Eventually(t, "the process id", func() bool { return strings.Contains(pid.String(), "\n") })
		s.Close()
		first, _, _ := strings.Cut(pid.String(), "\n")
		testkit.Eventually(t, "its end", func() bool {
			_, status := run(t, c, "kill -0 "+first+" 2>/dev/null")
			return status.Code != 0
		})
	}},
	{"output flood with a slow sink", func(t *testing.T, _ Target, c remote.Conn) {
		release := make(chan struct{})
		out := &stuck{entered: make(chan struct{}, 1), release: release}
		s, err := c.Start(t.Context(), remote.Cmd{
			Line:   "for i in $(seq 32); do head -c 1048576 /dev/zero; echo $i >~/written; done",
			Stdout: out,
		})
		testkit.Must(t, err)
		<-out.entered
		// Another session of the connection is not delayed. It sees the flood stop.
		last := ""
		testkit.Eventually(t, "the flood to stop", func() bool {
			now, _ := run(t, c, "sleep 0.1; cat ~/written 2>/dev/null || echo 0")
			stopped := now == last
			last = now
			return stopped
		})
		if n, err := strconv.Atoi(strings.TrimSpace(last)); err != nil || n > 16 {
			t.Errorf("%s MiB were written while nobody read (%v)", last, err)
		}
		close(release)
		if status, err := s.Wait(); err != nil || status.Code != 0 || out.n != 32<<20 {
			t.Errorf("got %d bytes, %+v, %v", out.n, status, err)
		}
	}},
	{"a writer that fails", func(t *testing.T, _ Target, c remote.Conn) {
		full := errors.New("disk is full")
		_, err := c.Run(t.Context(), remote.Cmd{Line: "echo x; read -t 60", Stdin: waiting{t.Context()}, Stdout: failing{full}})
		if !errors.Is(err, full) {
			t.Errorf("got %v, want the writer's error", err)
		}
	}},
	{"a reader that fails", func(t *testing.T, _ Target, c remote.Conn) {
		gone := errors.New("file is gone")
		var out bytes.Buffer
		_, err := c.Run(t.Context(), remote.Cmd{Line: "cat; echo all", Stdin: failing{gone}, Stdout: &out})
		if !errors.Is(err, gone) || strings.Contains(out.String(), "all") {
			t.Errorf("got %v and %q, want the reader's error", err, out.String())
		}
	}},
	{"both outputs in one writer", func(t *testing.T, _ Target, c remote.Conn) {
		var out bytes.Buffer // not safe for concurrent use
		_, err := c.Run(t.Context(), remote.Cmd{Line: "for i in $(seq 100); do echo o; echo e >&2; done", Stdout: &out, Stderr: &out})
		if err != nil || out.Len() != 400 {
			t.Errorf("got %d bytes, %v", out.Len(), err)
		}
	}},
	{"many commands after each other", func(t *testing.T, _ Target, c remote.Conn) {
		for range 30 { // three times MaxSessions of sshd, so each session must be freed at its end
			run(t, c, "true")
		}
	}},
	{"a program is sent once", func(t *testing.T, target Target, c remote.Conn) {
		p := remote.NewProgram("greets", `printf '%s|' "$@"; cat; exit 7`)
		for range 2 {
			cmd := p.Cmd(strings.NewReader("input"), "a b", "it's")
			var out bytes.Buffer
			cmd.Stdout = &out
			if status, err := c.Run(t.Context(), cmd); err != nil || status.Code != 7 || out.String() != "a b|it's|input" {
				t.Errorf("got %v, %v, %q", status, err, out.String())
			}
		}
		// Somebody removes the script, so it is sent again.
		run(t, c, fmt.Sprintf("rm ~/.multihost/kit/%.8x", sha256.Sum256([]byte(p.Text()))))
		cmd := p.Cmd(nil)
		if status, err := c.Run(t.Context(), cmd); err != nil || status.Code != 7 {
			t.Errorf("without the kit: %v, %v", status, err)
		}
	}},
	{"a connection that only reads", func(t *testing.T, target Target, _ remote.Conn) {
		c := target.Connect(t, true)
		var refused *remote.ConnectError
		if _, err := c.Run(t.Context(), remote.Cmd{Line: "touch ~/changed"}); !errors.Is(err, remote.ErrReadOnly) || !errors.As(err, &refused) {
			t.Errorf("got %v, want a ConnectError with ErrReadOnly", err)
		}
		var out bytes.Buffer
		if _, err := c.Run(t.Context(), remote.Cmd{Line: "ls ~", Stdout: &out, ReadOnly: true}); err != nil || strings.Contains(out.String(), "changed") {
			t.Errorf("got %q, %v", out.String(), err)
		}
	}},
	{"clock", func(t *testing.T, _ Target, c remote.Conn) {
		begin := time.Now()
		offset, err := c.MeasureClock(t.Context())
		if err != nil || offset.Abs() > time.Second+time.Since(begin) || offset != c.ClockOffset() {
			t.Errorf("got %s and %s, %v", offset, c.ClockOffset(), err)
		}
	}},
	{"cut before the status", func(t *testing.T, target Target, c remote.Conn) {
		other, cut := target.ConnectCuttable(t)
		pid, s := background(t, other)
		if _, silent := other.Silence(); silent {
			t.Error("a connection in use is silent")
		}
		cut()
		if _, err := s.Wait(); !errors.Is(err, remote.ErrConnectionLost) {
			t.Errorf("got %v, want ErrConnectionLost", err)
		}
		if since, silent := other.Silence(); !silent || since.IsZero() {
			t.Errorf("after the cut: silent %t since %s", silent, since)
		}
		stillRuns(t, other, pid) // other connects again
		if _, silent := other.Silence(); silent {
			t.Error("a connection that was made anew is silent")
		}
	}},
	{"cut in the middle of output", func(t *testing.T, target Target, _ remote.Conn) {
		c, cut := target.ConnectCuttable(t)
		out := &cutter{cut: sync.OnceFunc(cut)}
		_, err := c.Run(t.Context(), remote.Cmd{Line: "while head -c 100000 /dev/zero; do :; done", Stdout: out})
		if !errors.Is(err, remote.ErrConnectionLost) || out.n == 0 {
			t.Errorf("got %v after %d bytes, want ErrConnectionLost", err, out.n)
		}
		run(t, c, "true")
	}},
}

// cutter is a writer that cuts the connection.
type cutter struct {
	cut func()
	n   int
}

func (c *cutter) Write(p []byte) (int, error) {
	c.n += len(p)
	go c.cut() // cut may wait for this Write
	return len(p), nil
}

// failing is a reader and writer with an error.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

// waiting is a reader that waits for the end of the test.
type waiting struct{ ctx context.Context }

func (w waiting) Read([]byte) (int, error) {
	<-w.ctx.Done()
	return 0, io.EOF
}

// stuck is a writer that waits until it is released.
type stuck struct {
	entered chan struct{}
	release chan struct{}
	n       int
}

func (s *stuck) Write(p []byte) (int, error) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.release
	s.n += len(p)
	return len(p), nil
}
