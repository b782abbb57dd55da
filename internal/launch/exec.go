package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/remote"
)

// ExecSpec is a command that does not outlive its connection. Argv is required.
type ExecSpec struct {
	Argv  []string
	Sudo  bool          // run the command as root
	Grace time.Duration // time between TERM and KILL when the command is stopped; may be 0

	// Closing Leave ends the wait for a command that is being stopped. Leave may be nil.
	Leave <-chan struct{}
}

// ExecEnd is how a command of Exec ended.
type ExecEnd struct {
	Code    int  // exit code; 128+n if signal n ended the command
	Stopped bool // the worker stopped the command because the context had ended; nothing of it is left
	Held    bool // the command ended, but a process that it left behind held its output open; Exec did not wait for the rest
}

// heldLimit limits how long processes that a command left behind may hold its output open
// without writing to it.
const heldLimit = 5 * time.Second

// longestExec limits the size of all words of a command together. Linux limits a
// single word to 128 KiB.
const longestExec = 1 << 20

var (
	errHeld      = errors.New("what the command left behind holds its output")
	errNotProven = errors.New("it may still be running: its end was not told")
)

// Exec runs a command in the home directory of the login and waits for its end. It copies
// the command's output to stdout and stderr at once, without the output of the login's
// start-up files. The command's standard input is empty.
//
// The command belongs to this call. If ctx ends, the connection is lost or this program
// dies, the worker ends every process of the command. It uses TERM, the grace time and
// KILL. These are the command's session, the processes that have its mark in their
// environment, and the descendants of both. After the end of ctx, Exec returns the cause of
// ctx. ExecEnd.Stopped is then true if the worker confirmed that nothing is left. If the
// command ends by itself, the processes that it leaves behind stay.
func Exec(ctx context.Context, r remote.Runner, spec ExecSpec, stdout, stderr io.Writer) (ExecEnd, error) {
	words, err := spec.words()
	if err != nil {
		return ExecEnd{}, err
	}
	if ctx.Err() != nil {
		return ExecEnd{}, context.Cause(ctx)
	}
	session, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	leash, hand := io.Pipe()
	defer hand.Close()

	nonce := remote.NewNonce()
	broken := func() { cancel(errWriter) }
	outGate, errGate := &gate{w: stdout, broken: broken}, &gate{w: stderr, broken: broken}
	e := &execution{nonce: nonce, cancel: cancel, hand: hand}
	outGate.wrote, errGate.wrote = e.heard, e.heard
	out := &remote.Stream{Answer: remote.Answer{Nonce: nonce}, Raw: outGate}
	errs := &remote.Stream{Answer: remote.Answer{Nonce: nonce}, Raw: &trailer{mark: []byte(nonce), raw: errGate, tell: e.tell}}
	defer e.stop()

	// 15 s: the worker allows 10 s for KILL, and the answer takes some time.
	unwatch := context.AfterFunc(ctx, func() {
		hand.Close()
		limit := time.NewTimer(spec.Grace + 15*time.Second)
		defer limit.Stop()
		select {
		case <-limit.C:
		case <-spec.Leave:
		case <-session.Done():
		}
		cancel(errNotProven)
	})
	defer unwatch()

	sudo := "0"
	if spec.Sudo {
		sudo = "1"
	}
	cmd := execScript.Cmd(input{io.MultiReader(strings.NewReader(words), leash), leash}, nonce, milliseconds(spec.Grace), sudo, strconv.Itoa(len(words)))
	cmd.Stdout, cmd.Stderr = out, errs
	status, err := r.Run(session, cmd)
	_, outErr := outGate.close()
	_, errErr := errGate.close()
	if failed := errors.Join(outErr, errErr); failed != nil {
		return ExecEnd{}, &writeError{fmt.Errorf("write output of %s: %w", r.Name(), failed)}
	}
	if end, told := e.end(); told && (err == nil || errors.Is(err, errHeld)) {
		if end.Stopped && ctx.Err() != nil {
			return end, context.Cause(ctx)
		}
		end.Stopped = false
		end.Held = errors.Is(err, errHeld)
		return end, nil
	}
	switch {
	case e.survivors > 0:
		return ExecEnd{}, fmt.Errorf("exec on %s: processes survive SIGKILL: %d", r.Name(), e.survivors)
	case err != nil:
		return ExecEnd{}, fmt.Errorf("exec on %s: %w", r.Name(), err)
	}
	if _, err := checkAnswer(r.Name(), "exec", &out.Answer, &errs.Answer, status); err != nil {
		return ExecEnd{}, err
	}
	return ExecEnd{}, fmt.Errorf("exec on %s: %w", r.Name(), errNotProven)
}

// words returns the words of the command, each followed by a NUL.
func (s ExecSpec) words() (string, error) {
	if len(s.Argv) == 0 {
		return "", errors.New("exec: no command")
	}
	var b strings.Builder
	for _, w := range s.Argv {
		if strings.ContainsRune(w, 0) {
			return "", fmt.Errorf("exec: argument %q: a NUL byte cannot be part of an argument", w)
		}
		b.WriteString(w)
		b.WriteByte(0)
	}
	if b.Len() > longestExec {
		return "", fmt.Errorf("exec: the command has %d bytes, the most are %d", b.Len(), longestExec)
	}
	return b.String(), nil
}

// execution is the state of one command of Exec.
type execution struct {
	nonce  string
	cancel context.CancelCauseFunc
	hand   io.Closer // writing end of the worker's stdin: closing it stops the command

	mu        sync.Mutex // guards the fields below
	told      bool       // the worker has reported the end
	result    ExecEnd
	survivors int
	timer     *time.Timer // cancels the exec heldLimit after the end or the last output
}

// tell takes the worker's record of the end of the command.
func (e *execution) tell(line string) {
	rec, ok := remote.ParseRecord(line, e.nonce)
	if !ok || rec.Word != "exit" {
		return
	}
	f := rec.Fields(3)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hand.Close() // nothing more goes to the worker, and Run would wait for a pending read of stdin
	if e.survivors = int(number(f[1])); e.survivors > 0 || e.told {
		return
	}
	e.told = true
	e.result = ExecEnd{Code: int(min(number(f[0]), 255)), Stopped: f[2] == "1"}
	e.timer = time.AfterFunc(heldLimit, func() { e.cancel(errHeld) })
}

// heard restarts the timer after output.
func (e *execution) heard(int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil {
		e.timer.Reset(heldLimit)
	}
}

func (e *execution) end() (ExecEnd, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.result, e.told
}

func (e *execution) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
	}
}

// A trailer passes bytes on to raw until the mark. It calls tell with the line that begins
// with the mark.
type trailer struct {
	mark []byte
	raw  io.Writer
	tell func(line string)

	held []byte // bytes not yet passed on, because they may begin the mark
	line []byte
	seen bool
}

func (t *trailer) Write(p []byte) (int, error) {
	n := len(p)
	if !t.seen {
		text := append(t.held, p...)
		at := bytes.Index(text, t.mark)
		end := at
		if at < 0 {
			end = len(text) - beginning(text, t.mark)
		}
		if end > 0 {
			if _, err := t.raw.Write(text[:end]); err != nil {
				return 0, err
			}
		}
		t.held = append([]byte(nil), text[end:]...)
		if at < 0 {
			return n, nil
		}
		t.seen, p = true, t.held
	}
	if line, _, whole := bytes.Cut(p, []byte{'\n'}); t.tell != nil {
		t.line = append(t.line, line[:min(len(line), maxTold-len(t.line))]...)
		if whole {
			t.tell(string(t.line))
			t.tell = nil
		}
	}
	return n, nil
}

// maxTold limits the bytes that a trailer keeps of the line with the mark.
const maxTold = 4 << 10

// beginning returns how many bytes at the end of text are the beginning of mark.
func beginning(text, mark []byte) int {
	for n := min(len(text), len(mark)-1); n > 0; n-- {
		if bytes.HasPrefix(mark, text[len(text)-n:]) {
			return n
		}
	}
	return 0
}
