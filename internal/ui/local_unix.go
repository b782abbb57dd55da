//go:build unix

package ui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// IsClosedPipe reports whether a write failed because its reader has gone.
func IsClosedPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

// takesEscapes reports whether a terminal obeys escape sequences.
func takesEscapes(uintptr) bool { return true }

// mayRead reports whether this program is in the foreground of its shell.
func mayRead(terminal *os.File) bool {
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// readKey reads single bytes until one of keys, or Interrupt, comes. Lower-case letters in
// keys stand for both cases. It reads only when there is something to read, because a read
// of a terminal cannot be cancelled.
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
	var b [1]byte
	for {
		switch _, err := readUnlessWoken(fd, int(wake.Fd()), b[:]); {
		case errors.Is(err, errWoken):
			return 0, context.Cause(ctx)
		case err != nil:
			return 0, err
		}
		if 'A' <= b[0] && b[0] <= 'Z' {
			b[0] += 'a' - 'A'
		}
		if b[0] == Interrupt || keys == AnyKey || bytes.IndexByte([]byte(keys), b[0]) >= 0 {
			return b[0], nil
		}
	}
}

// dropTyped drops what the user has typed and nobody has read. The terminal must be in raw
// mode.
func dropTyped(fd int) {
	var b [64]byte
	for {
		waiting := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(waiting, 0); n <= 0 || err != nil {
			return
		}
		if n, err := unix.Read(fd, b[:]); n <= 0 || err != nil {
			return
		}
	}
}

var errWoken = errors.New("woken up")

// readUnlessWoken reads from a terminal. It returns errWoken once wake can be read or has
// ended, and io.EOF at the end of the terminal.
func readUnlessWoken(fd, wake int, p []byte) (int, error) {
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		switch _, err := unix.Poll(ready, -1); {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case ready[1].Revents != 0:
			return 0, errWoken
		}
		switch n, err := unix.Read(fd, p); {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}
