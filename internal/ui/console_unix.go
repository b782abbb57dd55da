//go:build unix

package ui

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// consoleTTY is what a Console needs from the system: reads that can be ended, and a notice
// of a new size.
type consoleTTY struct {
	resized     chan struct{}
	signals     chan os.Signal
	quit        chan struct{}
	told        sync.WaitGroup
	wake, waker *os.File
	reading     sync.Mutex // held while a Read uses wake
}

func (t *consoleTTY) open() (err error) {
	if t.wake, t.waker, err = os.Pipe(); err != nil {
		return err
	}
	t.resized, t.quit = make(chan struct{}, 1), make(chan struct{})
	t.signals = make(chan os.Signal, 1)
	signal.Notify(t.signals, unix.SIGWINCH)
	t.told.Go(func() {
		for {
			select {
			case <-t.quit:
				return
			case <-t.signals:
				select {
				case t.resized <- struct{}{}:
				default: // nobody has read the notice of an earlier change yet
				}
			}
		}
	})
	return nil
}

// close ends the read in progress and waits for it.
func (t *consoleTTY) close() {
	signal.Stop(t.signals)
	close(t.quit)
	t.told.Wait()
	t.waker.Close()
	t.reading.Lock()
	defer t.reading.Unlock()
	t.wake.Close()
}

// read reads only when there is something to read, because a read cannot be cancelled.
func (t *consoleTTY) read(in *os.File, p []byte) (int, error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	select {
	case <-t.quit:
		return 0, io.EOF
	default:
	}
	n, err := readUnlessWoken(int(in.Fd()), int(t.wake.Fd()), p)
	if errors.Is(err, errWoken) {
		err = io.EOF
	}
	return n, err
}
