package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Interrupt is what Ask returns for a Ctrl-C that was typed as the answer.
const Interrupt = '\x03'

// CanAsk reports whether in is a terminal that this program may read now: one
// that is in the background of its shell would be stopped by it.
func CanAsk(in io.Reader, out io.Writer) bool {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || !IsTerminal(out) {
		return false
	}
	group, err := unix.IoctlGetInt(int(file.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
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

// readKey reads single bytes until one of keys comes. A read of a terminal
// cannot be taken back, so it is only begun when there is something to read.
func readKey(ctx context.Context, fd int, keys string) (byte, error) {
	wake, waker, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer wake.Close()
	stop := context.AfterFunc(ctx, func() { waker.Close() })
	defer func() {
		if stop() {
			waker.Close()
		}
	}()
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake.Fd()), Events: unix.POLLIN}}
	for {
		switch _, err := unix.Poll(ready, -1); {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		}
		var b [1]byte
		switch n, err := unix.Read(fd, b[:]); {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		if b[0] == Interrupt || bytes.IndexByte([]byte(keys), b[0]|0x20) >= 0 { // in either case of letters
			if b[0] != Interrupt {
				b[0] |= 0x20
			}
			return b[0], nil
		}
	}
}
