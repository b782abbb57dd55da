package launch

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/remote"
)

var (
	//go:embed lib.sh
	libText string
	//go:embed arm.sh
	armText string
	//go:embed supervise.sh
	superviseText string
	//go:embed start.sh
	startText string
	//go:embed processes.pl
	processesText string
	//go:embed release.sh
	releaseText string
	//go:embed status.sh
	statusText string
	//go:embed follow.sh
	followText string
	//go:embed digest.sh
	digestText string
	//go:embed stop.sh
	stopText string
	//go:embed free.sh
	freeText string
	//go:embed dump.sh
	dumpText string
	//go:embed exec.sh
	execText string
	//go:embed venv.sh
	venvText string
	//go:embed verdict.sh
	verdictText string
	//go:embed list.sh
	listText string
)

// The operations on a worker.
var (
	// arm also writes the scripts of the supervisor, each with the library in front.
	armScript = remote.NewProgram("arm",
		"text_lib="+remote.Quote(remote.Prelude()+libText), "text_supervise="+remote.Quote(superviseText), "text_start="+remote.Quote(startText),
		"text_processes="+remote.Quote(processesText),
		`eval "$text_lib"`, remote.JSON(), armText)
	releaseScript = operation("release", releaseText)
	statusScript  = operation("status", statusText)
	followScript  = operation("follow", followText)
	digestScript  = operation("digest", digestText)
	stopScript    = operation("stop", stopText)
	freeScript    = operation("free", freeText)
	dumpScript    = operation("dump", dumpText)
	listScript    = operation("list", listText)
	execScript    = operation("exec", execText)
	venvScript    = operation("venv", venvText)
	verdictScript = operation("verdict", verdictText)
)

func operation(name, text string) *remote.Program {
	return remote.NewProgram(name, remote.Prelude(), libText, text)
}

// input is the standard input that follows the script of an exec. When the connection is
// lost, the transport calls Close to end a pending Read.
type input struct {
	io.Reader
	io.Closer
}

// answerLimit limits a worker's answer, from the moment when it has the script. All scripts
// end within seconds unless the worker's disk or sudo hangs.
const answerLimit = 2 * time.Minute

// A noAnswerError is the cause of an exec that read its input and did not end within limit.
type noAnswerError struct{ limit time.Duration }

func (e noAnswerError) Error() string {
	return fmt.Sprintf("no answer within %s: its disk hangs, or sudo does", e.limit)
}

// A notReachedError is the cause of an exec that did not read its input within limit.
type notReachedError struct{ limit time.Duration }

func (e notReachedError) Error() string { return fmt.Sprintf("not reached within %s", e.limit) }

// limited is the standard input of an exec. If the exec has not ended within limit after
// the first read, limited cancels it. Connecting comes before the first read and has limits
// of its own. reach, if set, also limits the time until the first read. The caller must
// call stop.
type limited struct {
	io.Reader
	limit  time.Duration
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	begun bool
	timer *time.Timer
}

func newLimited(r io.Reader, limit, reach time.Duration, cancel context.CancelCauseFunc) *limited {
	l := &limited{Reader: r, limit: limit, cancel: cancel}
	if reach > 0 {
		l.timer = time.AfterFunc(reach, func() { cancel(notReachedError{reach}) })
	}
	return l
}

func (l *limited) Read(p []byte) (int, error) {
	l.begin(l.limit)
	return l.Reader.Read(p)
}

// begin starts the limit of the answer, once. 0 means no limit.
func (l *limited) begin(limit time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun {
		return
	}
	l.begun = true
	if l.timer != nil {
		l.timer.Stop()
	}
	if limit > 0 {
		l.timer = time.AfterFunc(limit, func() { l.cancel(noAnswerError{limit}) })
	}
}

func (l *limited) stop() {
	l.begin(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
}

// call runs one operation on the worker and returns the answer.
func call(ctx context.Context, r remote.Runner, op string, script *remote.Program, args ...string) ([]remote.Record, error) {
	return callWithin(ctx, answerLimit, 0, r, op, script, args...)
}

// callWithin does what call does, with other limits. limit is for the answer, and reach is for
// reaching the worker. 0 means no limit.
func callWithin(ctx context.Context, limit, reach time.Duration, r remote.Runner, op string, script *remote.Program, args ...string) ([]remote.Record, error) {
	out := &remote.Answer{Nonce: remote.NewNonce()}
	errs := &remote.Answer{Nonce: out.Nonce}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := newLimited(strings.NewReader(""), limit, reach, cancel)
	defer in.stop()
	cmd := script.Cmd(in, append([]string{out.Nonce}, args...)...)
	cmd.Stdout, cmd.Stderr = out, errs
	status, err := r.Run(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w", op, r.Name(), err)
	}
	return checkAnswer(r.Name(), op, out, errs, status)
}

func checkAnswer(worker, op string, out, errs *remote.Answer, status remote.Status) ([]remote.Record, error) {
	records := out.Records()
	for _, rec := range records {
		if rec.Word == "error" {
			return nil, &RemoteError{Worker: worker, Op: op, Text: remote.Clean(rec.Rest, 500)}
		}
	}
	if len(records) == 0 {
		return nil, &RemoteError{Worker: worker, Op: op, Text: silence(status, errs.Trouble(), out.Trouble()), Silent: true}
	}
	return records, nil
}

// silence says why a script may have answered nothing.
func silence(status remote.Status, stderr, stdout string) string {
	text := fmt.Sprintf("no answer (exit code %d)", status.Code)
	if status.Signal != "" {
		text = "no answer (killed by SIG" + remote.Clean(status.Signal, 20) + ")"
	}
	switch {
	case stderr != "":
		text += ": " + stderr
	case stdout != "":
		text += ": " + stdout
	case status.Code == 0:
		text += "; does ~/.bashrc or the login shell there end the session?"
	}
	return text
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func instant(s string) time.Time {
	if n := number(s); n > 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// errLate is what a closed gate returns to a goroutine that still copies output.
var errLate = errors.New("write after the end of the exec")

// gate passes bytes on to w until it is closed, and counts them. A transport may still copy
// after its Run has returned. The gate keeps these bytes from w, so that they do not come
// out of order.
type gate struct {
	mu     sync.Mutex
	w      io.Writer
	closed bool
	count  int64
	err    error       // error of w
	broken func()      // called once when w fails
	wrote  func(int64) // optional: gets the number of bytes that w took
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, errLate
	}
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	g.count += int64(n)
	if err != nil {
		g.err = err
		g.broken()
	} else if g.wrote != nil {
		g.wrote(int64(n))
	}
	return n, err
}

func (g *gate) close() (count int64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.count, g.err
}
