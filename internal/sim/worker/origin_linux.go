package worker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// newOrigin creates the thread that starts every process of the process backend. A process
// inherits signal settings, umask and descriptors from the program that starts it, and this
// program has them from nohup, a shell's & or a service manager. A command under sshd does
// not depend on how sshd was started: no signal is ignored or blocked, the umask is 022,
// and only the three descriptors of the session are open.
func newOrigin() (*Thread, error) {
	if err := StartAfresh(); err != nil {
		return nil, err
	}
	return NewThread(func() error {
		// Get a umask of our own: the threads of a program share one otherwise.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("leave the shared umask: %w", err)
		}
		unix.Umask(0o022)
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, new(unix.Sigset_t), nil); err != nil {
			return fmt.Errorf("unblock signals: %w", err)
		}
		return nil
	})
}

// StartAfresh ensures that programs started from now on inherit no ignored signal, and only
// descriptors passed to them. This program itself still ignores the signals.
func StartAfresh() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, rest, _ := bytes.Cut(status, []byte("\nSigIgn:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	ignored, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	if err != nil {
		return fmt.Errorf("read the ignored signals: %w", err)
	}
	// A program gets the default for a signal that has a handler here. A signal for a
	// channel that nobody reads is ignored here.
	nobody := make(chan os.Signal, 1)
	for n := range 64 {
		if ignored&(1<<n) != 0 {
			signal.Notify(nobody, syscall.Signal(n+1))
		}
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range open {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil && !errors.Is(err, unix.EBADF) {
			return fmt.Errorf("keep descriptor %d from commands: %w", fd, err)
		}
	}
	return nil
}
