package ui

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// Interrupt is what Ask returns for a Ctrl-C that was typed as the answer.
const Interrupt = '\x03'

// CanAsk reports whether in is a terminal that this program may read now: one
// that is in the background of its shell would be stopped by it.
// On Windows it may not: a read of a console cannot be taken back.
func CanAsk(in io.Reader, out io.Writer) bool {
	file, ok := in.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && IsTerminal(out) && mayRead(file)
}

// Ask stops the view, shows question on standard error, and returns the first
// key typed on the terminal in that is one of keys, or Interrupt. The view goes
// on afterwards with what came meanwhile, as far as it was kept: nothing that
// emits waits for the answer. When ctx ends, Ask gives the terminal back as it
// was and returns the cause. Ask is for one caller at a time.
func (r *Renderer) Ask(ctx context.Context, in *os.File, question, keys string) (byte, error) {
	resume, err := r.hold(ctx)
	if err != nil {
		return 0, err
	}
	defer resume()
	fd := int(in.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return 0, fmt.Errorf("ask on the terminal: %w", err)
	}
	defer term.Restore(fd, before)
	text := bytes.ReplaceAll(appendVisibleText(nil, question+" "), []byte("\n"), []byte("\r\n"))
	if _, err := r.o.Stderr.Write(text); err != nil {
		return 0, fmt.Errorf("ask on the terminal: %w", err)
	}
	key, err := readKey(ctx, fd, keys)
	echo := "\r\n"
	if err == nil && key != Interrupt {
		echo = string(key) + echo
	}
	_, _ = io.WriteString(r.o.Stderr, echo) // the answer counts, whatever its echo does
	return key, err
}

// hold keeps the view from writing to standard error until resume is called.
func (r *Renderer) hold(ctx context.Context) (resume func(), err error) {
	l := r.err
	select {
	case l.pen <- struct{}{}: // no write is under way now
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	l.erase()
	return func() {
		<-l.pen
		l.kick()
	}, nil
}
