package worker

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onOwnThread runs f on a thread that ends with it, so that f may change what
// the kernel keeps per thread: the namespaces. It returns when f does.
func onOwnThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The first thread can never end. While it is locked here, the
			// next goroutine gets another one.
			result <- onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		result <- f() // still locked: the runtime ends the thread
	}()
	return <-result
}

// openNetwork returns a handle on the network namespace of a process.
func openNetwork(pid int) (*os.File, error) { return os.Open(procPath(pid, "ns/net")) }

// inNetwork runs f in a network namespace. Sockets made by f stay in it.
func inNetwork(network *os.File, f func() error) error {
	return onOwnThread(func() error {
		// Unlike Fd, this may meet a Close.
		raw, err := network.SyscallConn()
		if err != nil {
			return err
		}
		var entered error
		err = raw.Control(func(fd uintptr) { entered = unix.Setns(int(fd), unix.CLONE_NEWNET) })
		if err = errors.Join(err, entered); err != nil {
			return err
		}
		return f()
	})
}
