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

// newOrigin makes the thread from which the process backend starts every process.
// A process begins with much of what the thread and the program have that start it,
// and this program has it from whoever started it: nohup, a shell's &, a service
// manager. A command behind sshd begins afresh, whoever started sshd or as what
// a system starts it: no signal is ignored or blocked, the umask is 022, and no
// descriptor is open but the three of the session.
func newOrigin() (*thread, error) {
	if err := startAfresh(); err != nil {
		return nil, err
	}
	return newThread(func() error {
		// Its own umask, which the kernel otherwise has the threads of a program share.
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

// startAfresh has what this program starts from now on inherit no ignored signal,
// and no descriptor that is not given to it. The program itself goes on to ignore
// the signals.
func startAfresh() error {
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
	// A signal that has a handler has none in a program that is started, and one
	// that is sent to a channel that nobody reads is as good as ignored here.
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
