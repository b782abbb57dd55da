package launch

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed" // the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/sshfan"
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
	//go:embed release.sh
	releaseText string
	//go:embed status.sh
	statusText string
	//go:embed follow.sh
	followText string
	//go:embed digest.sh
	digestText string
	//go:embed tail.sh
	tailText string
	//go:embed stop.sh
	stopText string
	//go:embed free.sh
	freeText string
	//go:embed dump.sh
	dumpText string
	//go:embed exec.sh
	execText string
	//go:embed list.sh
	listText string
)

// The operations on a worker.
var (
	// arm writes the scripts of the supervisor, which have the library before
	// them, too.
	armScript = sshfan.NewProgram("arm",
		"text_lib="+sshfan.Quote(libText), "text_supervise="+sshfan.Quote(superviseText), "text_start="+sshfan.Quote(startText),
		`eval "$text_lib"`, armText)
	releaseScript = operation("release", releaseText)
	statusScript  = operation("status", statusText)
	followScript  = operation("follow", followText)
	digestScript  = operation("digest", digestText)
	tailScript    = operation("tail", tailText)
	stopScript    = operation("stop", stopText)
	freeScript    = operation("free", freeText)
	dumpScript    = operation("dump", dumpText)
	listScript    = operation("list", listText)
	execScript    = operation("exec", execText)
)

func operation(name, text string) *sshfan.Program { return sshfan.NewProgram(name, libText, text) }

// newNonce makes the word that marks the answer lines of one exec, so that what
// the login's start-up files print is never taken for an answer.
func newNonce() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return "mh" + hex.EncodeToString(b[:])
}

// A record is one line of a worker's answer: a word and the rest.
type record struct{ word, rest string }

// fields returns the rest as n words; the last one is what remains. Missing
// ones are empty: a worker's answer is not trusted to be complete.
func (r record) fields(n int) []string {
	f := strings.SplitN(r.rest, " ", n)
	for len(f) < n {
		f = append(f, "")
	}
	return f
}

const (
	maxLine   = 16 << 10 // of an answer
	maxAnswer = 4 << 20  // of one exec: a list of many runs
)

// errFlood ends an exec whose answer has no end: nobody waits for it, and
// nothing of it is kept.
var errFlood = fmt.Errorf("it answers with more than %d MiB", maxAnswer>>20)

// answer parses what a script prints, as it arrives. Lines without the nonce
// are kept only as far as they help to tell what went wrong.
type answer struct {
	nonce string
	next  func(record) (done bool) // optional: hears every record; one that it is done with is not kept
	stray func(string)             // optional: hears every other line

	mu      sync.Mutex
	line    []byte
	size    int // of what came, without the records that next was done with
	noise   []byte
	records []record
}

func (a *answer) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		head, rest, found := bytes.Cut(p, []byte{'\n'})
		if room := maxLine - len(a.line); len(head) > room {
			a.size += len(head) - room
			head = head[:room]
		}
		a.line = append(a.line, head...)
		if !found {
			if a.size+len(a.line) > maxAnswer {
				return 0, errFlood
			}
			break
		}
		p = rest
		a.take(string(a.line))
		a.line = a.line[:0]
		if a.size > maxAnswer {
			return 0, errFlood
		}
	}
	return n, nil
}

func (a *answer) take(line string) {
	r, ok := parseRecord(line, a.nonce)
	if ok && a.next != nil && a.next(r) {
		return
	}
	if a.size += len(line) + 1; !ok {
		if a.stray != nil {
			a.stray(line)
		}
		if len(a.noise) < 1024 && line != "" {
			a.noise = append(append(a.noise, line...), '\n')
		}
		return
	}
	a.records = append(a.records, r)
}

func parseRecord(line, nonce string) (record, bool) {
	// Start-up files may print without a newline at the end.
	_, text, found := strings.Cut(line, nonce+" ")
	if !found {
		return record{}, false
	}
	word, rest, _ := strings.Cut(text, " ")
	return record{word, rest}, word != ""
}

func (a *answer) all() []record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.records
}

// trouble is the last thing that was said outside of the protocol.
func (a *answer) trouble() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(append(a.noise, a.line...))), "\n")
	return clean(lines[len(lines)-1], 300)
}

// input is the standard input of an exec that goes on after the script: a
// transport that has lost its connection can end a Read under way by Close.
type input struct {
	io.Reader
	io.Closer
}

// answerLimit bounds how long a worker may take to answer once it has the
// script: they all end within seconds unless its disk or its sudo hangs.
const answerLimit = 2 * time.Minute

// A noAnswerError is the cause of an exec that was given up.
type noAnswerError struct{ limit time.Duration }

func (e noAnswerError) Error() string {
	return fmt.Sprintf("no answer within %s: its disk hangs, or sudo does", e.limit)
}

// A notReachedError is the cause of an exec that was given up before it began.
type notReachedError struct{ limit time.Duration }

func (e notReachedError) Error() string { return fmt.Sprintf("not reached within %s", e.limit) }

// limited is the standard input of an exec, which it gives up by cancel when it has
// not ended within limit of its first read. Making a connection comes before and
// has deadlines of its own, unless reach is set. The caller stops it.
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

// begin sets the limit of the answer, once; 0 is none.
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
func call(ctx context.Context, r Runner, op string, script *sshfan.Program, args ...string) ([]record, error) {
	return callWithin(ctx, answerLimit, 0, r, op, script, args...)
}

// callWithin is call with other limits: for the answer, and for reaching the
// worker, where 0 is none.
func callWithin(ctx context.Context, limit, reach time.Duration, r Runner, op string, script *sshfan.Program, args ...string) ([]record, error) {
	out := &answer{nonce: newNonce()}
	errs := &answer{nonce: out.nonce}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := newLimited(strings.NewReader(""), limit, reach, cancel)
	defer in.stop()
	cmd := script.Cmd(in, append([]string{out.nonce}, args...)...)
	cmd.Stdout, cmd.Stderr = out, errs
	status, err := r.Run(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w", op, r.Name(), err)
	}
	return checkAnswer(r.Name(), op, out, errs, status)
}

func checkAnswer(worker, op string, out, errs *answer, status sshfan.Status) ([]record, error) {
	records := out.all()
	for _, rec := range records {
		if rec.word == "error" {
			return nil, &RemoteError{Worker: worker, Op: op, Text: clean(rec.rest, 500)}
		}
	}
	if len(records) == 0 {
		return nil, &RemoteError{Worker: worker, Op: op, Text: silence(status, errs.trouble(), out.trouble())}
	}
	return records, nil
}

// silence says why a script may have answered nothing.
func silence(status sshfan.Status, stderr, stdout string) string {
	text := fmt.Sprintf("no answer (exit code %d)", status.Code)
	if status.Signal != "" {
		text = "no answer (killed by SIG" + clean(status.Signal, 20) + ")"
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

// clean makes text of a worker fit for one line of a message: no control
// characters, no more than limit bytes, valid UTF-8.
func clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n':
			return ' '
		case r < 0x20 || r == 0x7f || 0x80 <= r && r < 0xa0 || r == 0x2028 || r == 0x2029 || 0x202a <= r && r <= 0x202e || 0x2066 <= r && r <= 0x2069:
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
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

// errLate is returned to a copy that outlives its exec.
var errLate = errors.New("write after the end of the exec")

// gate lets bytes through to w until it is closed, and counts them. A transport
// that still copies after its Run has returned cannot disturb the order.
type gate struct {
	mu     sync.Mutex
	w      io.Writer
	closed bool
	count  int64
	err    error       // of w
	broken func()      // called once when w fails
	wrote  func(int64) // optional: told how many bytes w took
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
