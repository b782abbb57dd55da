package ui

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// Interrupt is what Ask returns if the user answers with Ctrl-C.
const Interrupt = '\x03'

// CanAsk reports whether in and out are terminals and this program may read from in now. A
// program in the background of its shell may not read, because the read would stop it. On
// Windows no program may, because a read of a console cannot be cancelled.
func CanAsk(in io.Reader, out io.Writer) bool {
	file, ok := in.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && IsTerminal(out) && mayRead(file)
}

// Ask stops the view, shows question on standard error and returns the first key in keys
// that the user types on the terminal in, or Interrupt. No caller of Emit waits for the
// answer. Then the view continues with the events that came meanwhile, as far as they were
// kept. When ctx ends, Ask restores the terminal and returns the cause of ctx. Calls must
// not overlap.
func (r *Renderer) Ask(ctx context.Context, in *os.File, question, keys string) (byte, error) {
	return r.ask(ctx, in, question, keys, asking{})
}

// AskAnew does what Ask does, for a question that replaces another one. It ignores what the
// user typed before the new question.
func (r *Renderer) AskAnew(ctx context.Context, in *os.File, question, keys string) (byte, error) {
	return r.ask(ctx, in, question, keys, asking{drops: true})
}

// asking says what Ask does before it shows a question.
type asking struct {
	drains bool // show the emitted events first
	drops  bool // ignore what the user has typed before
}

// AnyKey as the keys of a question accepts every key as the answer.
const AnyKey = ""

// AskAfter does what Ask does, for a question about the last emitted event, which it shows
// first.
func (r *Renderer) AskAfter(ctx context.Context, in *os.File, question, keys string) (byte, error) {
	return r.ask(ctx, in, question, keys, asking{drains: true})
}

func (r *Renderer) ask(ctx context.Context, in *os.File, question, keys string, first asking) (byte, error) {
	resume, err := r.hold(ctx)
	if err != nil {
		return 0, err
	}
	defer resume()
	if first.drains {
		r.err.drain()
	}
	fd := int(in.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return 0, fmt.Errorf("ask on the terminal: %w", err)
	}
	defer term.Restore(fd, state)
	if first.drops {
		dropTyped(fd)
	}
	text := bytes.ReplaceAll(appendVisibleText(nil, question+" "), []byte("\n"), []byte("\r\n"))
	if _, err := r.o.Stderr.Write(text); err != nil {
		return 0, fmt.Errorf("ask on the terminal: %w", err)
	}
	key, err := readKey(ctx, fd, keys)
	echo := "\r\n"
	if err == nil && key > ' ' {
		echo = string(key) + echo
	}
	_, _ = io.WriteString(r.o.Stderr, echo) // the answer counts even if its echo fails
	return key, err
}

// hold keeps the view from writing to standard error until the caller calls resume.
func (r *Renderer) hold(ctx context.Context) (resume func(), err error) {
	l := r.err
	select {
	case l.pen <- struct{}{}: // now nothing else writes
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l.erase()
	l.endData()
	return func() {
		<-l.pen
		l.kick()
	}, nil
}
