//go:build unix

package localworker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"multihost/internal/remote"
)

// A session is a process and our ends of its pipes. It implements remote.Session.
type session struct {
	conn      *Conn
	cmd       remote.Cmd
	pipes     [3]*os.File
	out, errs *remote.Gate
	in        *remote.Intake // nil: Cmd.Stdin is not copied
	unwatch   func() bool

	done   chan struct{} // closed when the process and its output have ended
	status remote.Status // read it only after done is closed

	once    sync.Once
	aborted chan struct{} // closed when our side ends the session
	cause   error         // why our side has ended it; read it only after aborted is closed
}

func (s *session) exec() error {
	p, pipes, err := s.conn.process(s.cmd.Line)
	if err != nil {
		return err
	}
	s.pipes = pipes
	ended := make(chan struct{})
	s.conn.worker.reaped.Go(func() {
		_ = p.Wait() // p.ProcessState says how it ended
		close(ended)
	})
	var output sync.WaitGroup
	output.Go(func() { s.pump(pipes[1], s.out) })
	output.Go(func() { s.pump(pipes[2], s.errs) })
	switch {
	case s.cmd.Stdin == remote.NoInput:
		pipes[0].Close()
	case s.cmd.Stdin != nil:
		s.in = remote.NewIntake(s.cmd.Stdin)
		s.conn.copying.Go(s.feed)
	}
	s.conn.copying.Go(func() {
		defer s.forget()
		output.Wait()
		select {
		case <-ended:
		case <-s.aborted:
			return
		}
		s.closePipes()
		if s.in != nil {
			s.in.Shut()
		}
		s.status = statusOf(p.ProcessState)
		close(s.done)
	})
	return nil
}

func (s *session) forget() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	delete(s.conn.sessions, s)
}

func (s *session) closePipes() {
	for _, f := range s.pipes {
		f.Close()
	}
}

// pump copies output until its end.
func (s *session) pump(from io.Reader, to *remote.Gate) {
	if _, err := io.Copy(to, from); err != nil && !errors.Is(err, remote.ErrShut) && !errors.Is(err, os.ErrClosed) {
		s.abort(fmt.Errorf("write output of %s: %w", s.conn.Name(), err))
	}
}

// feed copies Cmd.Stdin to the process and closes its input.
func (s *session) feed() {
	defer s.in.Done()
	buf := make([]byte, 32<<10)
	for {
		n, err := s.in.Read(buf)
		if n > 0 {
			if _, err := s.pipes[0].Write(buf[:n]); err != nil {
				return // the process takes no more input, or the session has ended
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			s.pipes[0].Close()
			return
		case errors.Is(err, remote.ErrShut):
			return
		case err != nil:
			s.abort(fmt.Errorf("read input for %s: %w", s.conn.Name(), err))
			return
		}
	}
}

// abort ends the session. The process continues, but nobody uses its pipes.
func (s *session) abort(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.aborted)
		s.closePipes()
	})
}

// Stdin implements remote.Session.
func (s *session) Stdin() io.WriteCloser {
	if s.cmd.Stdin != nil {
		return closedStdin{}
	}
	return stdin{s}
}

// Wait implements remote.Session.
func (s *session) Wait() (remote.Status, error) {
	defer s.unwatch()
	select {
	case <-s.done:
		return s.status, nil
	case <-s.aborted:
	}
	select {
	case <-s.done:
		return s.status, nil
	default:
	}
	s.out.Shut()
	s.errs.Shut()
	if s.in != nil {
		s.in.Shut()
	}
	return remote.Status{}, s.cause
}

// Close implements remote.Session.
func (s *session) Close() error {
	s.unwatch()
	select {
	case <-s.done:
	default:
		s.abort(remote.ErrClosed)
	}
	return nil
}

// stdin is session.Stdin.
type stdin struct{ s *session }

func (w stdin) Write(p []byte) (int, error) {
	n, err := w.s.pipes[0].Write(p)
	return n, w.explain(err)
}

func (w stdin) Close() error {
	if err := w.s.pipes[0].Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// explain returns why the input takes no more bytes.
func (w stdin) explain(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-w.s.aborted:
		return w.s.cause
	default:
		return fmt.Errorf("write to %s: %w", w.s.conn.Name(), io.ErrClosedPipe)
	}
}

// closedStdin is the session.Stdin of a command whose input comes from elsewhere.
type closedStdin struct{}

func (closedStdin) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (closedStdin) Close() error              { return nil }
