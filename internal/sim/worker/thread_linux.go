package worker

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnOwnThread runs f on a thread that ends with f. So f may change what the kernel keeps
// per thread, such as namespaces. It returns when f returns.
func OnOwnThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The first thread must never end. Its goroutine stays locked to it here, so
			// the next one gets another thread.
			result <- OnOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		result <- f() // the thread is still locked, so the runtime ends it
	}()
	return <-result
}

// A Thread runs functions, one after another, on one thread.
type Thread struct {
	tasks chan func()
	quit  chan struct{}
	ended chan struct{}
}

// NewThread starts a thread and runs setup on it first. The caller ends it with End.
func NewThread(setup func() error) (*Thread, error) {
	t := &Thread{tasks: make(chan func()), quit: make(chan struct{}), ended: make(chan struct{})}
	ready := make(chan error)
	go func() {
		defer close(t.ended)
		_ = OnOwnThread(func() error {
			err := setup()
			ready <- err
			if err != nil {
				return err
			}
			for {
				select {
				case task := <-t.tasks:
					task()
				case <-t.quit:
					return nil
				}
			}
		})
	}()
	if err := <-ready; err != nil {
		<-t.ended
		return nil, err
	}
	return t, nil
}

// Do runs f on the thread.
func (t *Thread) Do(f func() error) error {
	result := make(chan error, 1)
	select {
	case t.tasks <- func() { result <- f() }:
		return <-result
	case <-t.ended:
		return errors.New("backend is closed")
	}
}

// End ends the thread and waits for its end. Call it only once.
func (t *Thread) End() {
	close(t.quit)
	<-t.ended
}

// OpenNetwork returns a handle on the network namespace of a process.
func OpenNetwork(pid int) (*os.File, error) { return os.Open(ProcPath(pid, "ns/net")) }

// InNetwork runs f in a network namespace. Sockets that f creates stay there.
func InNetwork(network *os.File, f func() error) error {
	return OnOwnThread(func() error {
		// Unlike Fd, SyscallConn is safe during a concurrent Close.
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
