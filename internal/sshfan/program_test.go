package sshfan_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

// meter counts the bytes sent over all connections.
type meter struct{ sent atomic.Int64 }

type meteredConn struct {
	net.Conn
	m *meter
}

func (c meteredConn) Write(p []byte) (int, error) {
	c.m.sent.Add(int64(len(p)))
	return c.Conn.Write(p)
}

func (m *meter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return meteredConn{conn, m}, nil
}

// bulky returns a program that answers with its arguments and its input. The text of the
// program does not compress.
func bulky(t *testing.T, size int) *remote.Program {
	t.Helper()
	noise := make([]byte, size)
	_, err := rand.NewChaCha8([32]byte{byte(size)}).Read(noise)
	testkit.Must(t, err)
	for i, c := range noise {
		noise[i] = ' ' + c%90
	}
	return remote.NewProgram("bulky", "# "+string(noise), `printf '%s|' "$@"`, "cat", "exit 7", "")
}

// ran runs the program and returns how many bytes were sent for that.
func (m *meter) ran(t *testing.T, c *sshfan.Conn, p *remote.Program, input string) int64 {
	t.Helper()
	before := m.sent.Load()
	var stdin io.Reader
	if input != "" {
		stdin = strings.NewReader(input)
	}
	cmd := p.Cmd(stdin, "a b", "it's")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	status, err := c.Run(t.Context(), cmd)
	if err != nil || status.Code != 7 || out.String() != "a b|it's|"+input {
		t.Fatalf("got %v, %v, %.100q; standard error: %s", status, err, out.String(), errs.String())
	}
	return m.sent.Load() - before
}

func kitOf(w *simworker.Worker) string { return filepath.Join(w.Root, "home/tester/.multihost/kit") }

func TestAProgramIsSentToAWorkerOnce(t *testing.T) {
	testkit.NoLeaks(t)
	var m meter
	const size = 30000
	p := bulky(t, size)
	workers := simworker.StartMany(t, 2, simworker.Config{SSH: sshfan.Config{Dial: m.dial}})
	c := workers[0].Conns[0]
	if n := m.ran(t, c, p, "first"); n < size/2 {
		t.Errorf("the first command has sent %d bytes", n)
	}
	const little = 4000
	for _, input := range []string{"second", "", strings.Repeat("x", 100000)} {
		if n := m.ran(t, c, p, input); n > int64(len(input)+little) {
			t.Errorf("a later command with %d bytes of input has sent %d", len(input), n)
		}
	}
	for path, want := range map[string]os.FileMode{kitOf(workers[0]): 0o700, filepath.Dir(kitOf(workers[0])): 0o755} {
		info, err := os.Stat(path)
		testkit.Must(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}

	// A new connection finds scripts that another runner has sent.
	testkit.Must(t, os.CopyFS(kitOf(workers[1]), os.DirFS(kitOf(workers[0]))))
	other := workers[1].Conns[0]
	if _, err := other.MeasureClock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := m.ran(t, other, p, "found"); n > little {
		t.Errorf("a worker that had the program was sent %d bytes", n)
	}
}

// Somebody has altered a script but not its length. A runner notices when it connects.
func TestAnAlteredKitIsSentAnew(t *testing.T) {
	testkit.NoLeaks(t)
	w := simworker.Start(t, simworker.Config{})
	testkit.Must(t, os.MkdirAll(kitOf(w), 0o700))
	p := bulky(t, 3000)
	evil := "touch ~/evil; exit 7"
	evil += strings.Repeat(" ", len(p.Text())-len(evil))
	path := filepath.Join(kitOf(w), fmt.Sprintf("%x", sha256.Sum256([]byte(p.Text())))[:16])
	testkit.Must(t, os.WriteFile(path, []byte(evil), 0o600))
	c := w.Conns[0]
	if _, err := c.MeasureClock(t.Context()); err != nil {
		t.Fatal(err)
	}
	var m meter
	m.ran(t, c, p, "input")
	if _, err := os.Stat(filepath.Join(w.Root, "home/tester/evil")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what somebody has put into the kit was run: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != p.Text() {
		t.Errorf("the kit is not as it should be again: %v", err)
	}
}

func TestAKitThatIsNotAsItWasLeftIsNotUsed(t *testing.T) {
	testkit.NoLeaks(t)
	w := simworker.Start(t, simworker.Config{})
	c, size := w.Conns[0], 5000
	var m meter
	entry := func() string {
		files, err := filepath.Glob(kitOf(w) + "/*")
		testkit.Must(t, err)
		if len(files) != 1 {
			t.Fatalf("the kit is %q, want one file", files)
		}
		return files[0]
	}
	for name, spoil := range map[string]func() error{
		"altered":   func() error { return os.WriteFile(entry(), []byte("touch ~/evil; exit 7"), 0o600) },
		"truncated": func() error { return os.Truncate(entry(), 100) },
		"emptied":   func() error { return os.Truncate(entry(), 0) },
		"removed":   func() error { return os.RemoveAll(filepath.Dir(kitOf(w))) },
	} {
		// Use another program each time: if a program was missing once, its Conn always sends
		// it.
		testkit.Must(t, os.RemoveAll(kitOf(w)))
		size++
		p := bulky(t, size)
		m.ran(t, c, p, "first")
		testkit.Must(t, spoil())
		for range 2 {
			m.ran(t, c, p, name)
		}
		if data, err := os.ReadFile(entry()); err != nil || string(data) != p.Text() {
			t.Errorf("%s: the kit is not as it should be again: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(w.Root, "home/tester/evil")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what somebody has put into the kit was run: %v", err)
	}

	// If the input cannot be read a second time, the error says so.
	p := bulky(t, size+1)
	m.ran(t, c, p, "first")
	testkit.Must(t, os.RemoveAll(kitOf(w)))
	if _, err := c.Run(t.Context(), p.Cmd(strings.NewReader(strings.Repeat("x", 1<<20)))); !errors.Is(err, remote.ErrProgramGone) {
		t.Errorf("got %v, want ErrProgramGone", err)
	}
	m.ran(t, c, p, "afterwards")
}

// The input is a pipe whose writer waits. The second try must still get the bytes that the
// first one has read.
func TestAnInputUnderWayIsNotLostWithTheKit(t *testing.T) {
	testkit.NoLeaks(t)
	w := simworker.Start(t, simworker.Config{})
	c, p := w.Conns[0], remote.NewProgram("pipe", "read -r a", "echo $a", "read -r b", "echo $b")
	for range 2 {
		in, order := io.Pipe()
		out := make(chan string, 10)
		cmd := p.Cmd(in)
		cmd.Stdout = lines(out)
		done := make(chan error)
		go func() {
			_, err := c.Run(t.Context(), cmd)
			done <- err
		}()
		for _, word := range []string{"one\n", "two\n"} {
			if _, err := io.WriteString(order, word); err != nil {
				t.Fatal(err)
			}
			if got := <-out; got != word {
				t.Errorf("got %q, want %q", got, word)
			}
		}
		order.Close()
		testkit.Must(t, <-done)
		testkit.Must(t, os.RemoveAll(kitOf(w)))
	}
}

// lines is a writer that sends each text to a channel.
type lines chan<- string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestAWorkerThatKeepsNothingRunsProgramsAllTheSame(t *testing.T) {
	testkit.NoLeaks(t)
	w := simworker.Start(t, simworker.Config{})
	testkit.Must(t, os.MkdirAll(filepath.Dir(kitOf(w)), 0o755))
	testkit.Must(t, os.WriteFile(kitOf(w), nil, 0o600)) // now nobody can make a directory there
	var m meter
	p := bulky(t, 3000)
	for range 3 {
		m.ran(t, w.Conns[0], p, "input")
	}
	// The program must not fail either if its input cannot be read again.
	for range 3 {
		m.ran(t, w.Conns[0], p, strings.Repeat("x", 100000))
	}
}

func TestAKitKeepsTheNewestPrograms(t *testing.T) {
	testkit.NoLeaks(t)
	w := simworker.Start(t, simworker.Config{})
	testkit.Must(t, os.MkdirAll(kitOf(w), 0o700))
	for i := range 120 {
		testkit.Must(t, os.WriteFile(filepath.Join(kitOf(w), "old"+strings.Repeat("0", i)), nil, 0o600))
	}
	var m meter
	p := bulky(t, 3000)
	m.ran(t, w.Conns[0], p, "input")
	files, err := os.ReadDir(kitOf(w))
	testkit.Must(t, err)
	if len(files) > 60 {
		t.Errorf("the kit has %d files", len(files))
	}
	name := fmt.Sprintf("%x", sha256.Sum256([]byte(p.Text())))[:16]
	if !slices.ContainsFunc(files, func(f os.DirEntry) bool { return f.Name() == name }) {
		t.Errorf("the kit lacks the newest program, %s", name)
	}
}
