package ui

import (
	"errors"
	"io"
	"sync"
	"syscall"
	"time"
)

// Stdout returns a writer for data that a command writes itself, such as a log. Before the
// first byte, the writer shows what was emitted until then, and erases the status line.
// There is no status line while the last line of the data is unfinished. On a terminal, the
// data has the form that Printable gives it.
func (r *Renderer) Stdout() io.WriteCloser { return r.data(toStdout) }

// Stderr does what Stdout does, for data on standard error, such as that of a program on a
// worker.
func (r *Renderer) Stderr() io.WriteCloser { return r.data(toStderr) }

func (r *Renderer) data(to dest) io.WriteCloser {
	w, l := r.o.Stdout, r.out
	if to == toStderr {
		w, l = r.o.Stderr, r.err
	}
	return printable(&dataWriter{l: l, to: to, w: w}, r.o.IsTerminal(w))
}

// A dataWriter writes directly to a lane's destination, after it has written what is in the
// lane's queue. So a Write waits for the reader, and notices when the reader has gone.
type dataWriter struct {
	l  *lane
	to dest
	w  io.Writer
	mu sync.Mutex
}

func (d *dataWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.l
	l.pen <- struct{}{}
	defer func() {
		<-l.pen
		l.kick()
	}()
	l.drain()
	n, err := writeAll(d.w, p)
	l.inLine = n > 0 && p[n-1] != '\n'
	return n, err
}

// writeAll writes p to w, even to a terminal that another program has left in non-blocking
// mode.
func writeAll(w io.Writer, p []byte) (int, error) {
	done := 0
	for {
		n, err := w.Write(p)
		if err == nil || !errors.Is(err, syscall.EAGAIN) || n < 0 || n > len(p) {
			return done + max(n, 0), err
		}
		p, done = p[n:], done+n
		timer := time.NewTimer(10 * time.Millisecond)
		<-timer.C
	}
}
