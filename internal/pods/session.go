package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"multihost/internal/kube"
	"multihost/internal/remote"
)

// start starts command lines for remote.Shell.
func (c *Conn) start(ctx context.Context, cmd remote.Cmd) (remote.Session, error) {
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case c.isClosed():
		return nil, c.fail(remote.StageDial, remote.ErrClosed, 0)
	case cmd.LoginTo != nil || cmd.AgentSocket != "":
		return nil, c.fail(remote.StageExec, errors.New("a pod has no sshd, and forwards no ssh-agent"), 0)
	}
	s := &session{conn: c, cmd: cmd, ready: make(chan struct{}), done: make(chan struct{}), aborted: make(chan struct{})}
	s.out, s.errs = remote.NewGates(cmd)
	request := kube.ExecRequest{Namespace: c.dialer.Namespace, Pod: c.pod, Container: c.dialer.Container, Terminal: cmd.Terminal != nil}
	renew := c.dialer.Renew
	if c.readOnly {
		renew = ""
	}
	request.Command, s.ahead = argv(cmd, renew)
	if err := c.persist(ctx, remote.StageExec, func() error { return c.open(ctx, s, request) }); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// open starts the command of a session.
func (c *Conn) open(ctx context.Context, s *session, r kube.ExecRequest) error {
	select {
	case c.dials <- struct{}{}:
		defer func() { <-c.dials }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	stream, err := c.dialer.Cluster.Exec(ctx, r)
	if err != nil {
		if state := c.look(ctx); state != nil && (passes(err) || kube.NotFound(err)) {
			return state // the state says more than the refusal of a command
		}
		return err
	}
	s.stream = stream
	return nil
}

// longLine is how many bytes of a command line may be in the address of the request. Front
// ends refuse long addresses, which need up to three bytes for one byte of the line.
const longLine = 2 << 10

// argv returns the program and arguments that run a command line in the home directory. ahead
// is input to send before the command's own input. renew is Dialer.Renew and runs first.
func argv(cmd remote.Cmd, renew string) (argv []string, ahead string) {
	var setup strings.Builder
	setup.WriteString("cd >/dev/null 2>&1; ") // no newline, so that line numbers in the command's errors are right
	if renew != "" {
		setup.WriteString(renew + "; ")
	}
	if cmd.Terminal != nil && cmd.Terminal.Type != "" {
		setup.WriteString("export TERM=" + remote.Quote(cmd.Terminal.Type) + "; ")
	}
	switch line := cmd.Line; {
	case line == "":
		setup.WriteString("exec bash -l")
	case len(line) <= longLine || cmd.Terminal != nil:
		setup.WriteString(line)
	default:
		// bash reads single bytes from a pipe, so it leaves the command's input alone.
		fmt.Fprintf(&setup, "LC_ALL=C IFS= read -r -d '' -N %d && eval \"$REPLY\"", len(line))
		ahead = line
	}
	return []string{"bash", "-c", setup.String()}, ahead
}

// A session is a command in a pod. It implements remote.Session.
type session struct {
	conn      *Conn
	cmd       remote.Cmd
	stream    *kube.Stream
	ahead     string        // input before that of the command
	ready     chan struct{} // closed when ahead is sent
	out, errs *remote.Gate
	in        *remote.Intake // nil: Cmd.Stdin is not copied
	unwatch   func() bool
	mute      atomic.Bool // a ping has no answer yet
	ended     atomic.Bool // Stdin has been closed

	ctx  context.Context // ends with the session
	stop context.CancelFunc

	done   chan struct{} // closed when the command has ended
	status remote.Status // read it only after done is closed

	once    sync.Once
	aborted chan struct{} // closed when the session ends without the command's status
	cause   error         // why; read it only after aborted is closed
}

// begin starts the goroutines of a session whose command was accepted.
func (s *session) begin(ctx context.Context) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		s.stream.Close()
		return c.fail(remote.StageDial, remote.ErrClosed, 0)
	}
	c.sessions[s] = true
	c.broken, c.heard = false, time.Now()
	s.ctx, s.stop = context.WithCancel(context.Background())
	if s.cmd.Stdin != nil {
		s.in = remote.NewIntake(s.cmd.Stdin)
		go s.feed() // ends when Read of Stdin returns; nobody waits for it, because Read may never return
	}
	c.running.Go(func() {
		defer close(s.ready)
		_, _ = io.WriteString(s.stream, s.ahead) // Receive returns the reason for a failure
	})
	c.running.Go(s.serve)
	c.running.Go(s.keepAlive)
	c.running.Go(s.ping)
	if t := s.cmd.Terminal; t != nil {
		c.running.Go(func() { s.resize(t) })
	}
	s.unwatch = context.AfterFunc(ctx, func() { s.abort(context.Cause(ctx)) })
	return nil
}

// noContainer is in a node's answer if the container has ended. The API server may show the
// container as running for a moment longer. The error counts as the loss of the worker.
const noContainer = "container not found"

// serve receives output until the command has ended.
func (s *session) serve() {
	code, err := s.stream.Receive(s.out, s.errs)
	s.stream.Close()
	s.stop()
	s.forget(err)
	switch {
	case err == nil:
		s.status = remote.Status{Code: code}
		if s.in != nil {
			s.in.Shut()
		}
		close(s.done)
	case errors.Is(err, kube.ErrNotStarted):
		stage := remote.StageExec
		if strings.Contains(err.Error(), noContainer) {
			stage = remote.StageDial
		}
		s.abort(s.conn.fail(stage, err, 1))
	case errors.Is(err, kube.ErrCut):
		s.abort(s.conn.lost(err))
	default:
		s.abort(fmt.Errorf("write output of %s: %w", s.conn.Name(), err))
	}
}

// forget removes an ended session from its connection.
func (s *session) forget(err error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, s)
	if at := s.stream.Pulse().Heard; at.After(c.heard) {
		c.heard = at
	}
	select {
	case <-s.aborted: // this side ended the session
		c.broken = c.broken || errors.Is(s.cause, remote.ErrSilent)
	default:
		c.broken = errors.Is(err, kube.ErrCut)
	}
}

// feed sends the input of the command and ends it.
func (s *session) feed() {
	defer s.in.Done()
	<-s.ready
	buf := make([]byte, 32<<10)
	for {
		n, err := s.in.Read(buf)
		if n > 0 {
			if _, err := s.stream.Write(buf[:n]); err != nil {
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = s.stream.CloseInput()
			return
		case errors.Is(err, remote.ErrShut):
			return
		case err != nil:
			s.abort(fmt.Errorf("read input for %s: %w", s.conn.Name(), err))
			return
		}
	}
}

// resize tells the command the size of the terminal, at the beginning and after each
// change.
func (s *session) resize(t *remote.Terminal) {
	for {
		if columns, rows := t.Size(); s.stream.Resize(columns, rows) != nil {
			return
		}
		select {
		case <-s.ctx.Done():
			return
		case _, ok := <-t.Resized:
			if !ok {
				return
			}
		}
	}
}

// unanswered is the number of pings that may have no answer before the session counts as
// lost.
const unanswered = 3

// ping pings the server again and again. It waits while input is being sent.
func (s *session) ping() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.conn.dialer.Clock.After(s.conn.dialer.KeepAlive):
		}
		if s.stream.Ping() != nil {
			return // Receive returns the reason
		}
	}
}

// keepAlive ends a session whose server is silent.
func (s *session) keepAlive() {
	every := s.conn.dialer.KeepAlive
	excused := time.Now() // when the API server last answered while input was unread
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.conn.dialer.Clock.After(every):
		}
		now := s.stream.Pulse()
		quiet := time.Since(now.Heard)
		s.mute.Store(!now.Busy && !now.Unread && quiet > 2*every)
		switch {
		case now.Busy || quiet <= unanswered*every || s.ctx.Err() != nil:
		case now.Unread && s.alive(every):
			excused = time.Now()
		case now.Unread && time.Since(excused) <= unanswered*every:
			s.mute.Store(true)
		default:
			s.abort(s.conn.lost(remote.ErrSilent))
			return
		}
	}
}

// alive asks the API server for a sign of life.
func (s *session) alive(limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	return s.conn.dialer.Cluster.Alive(ctx) == nil
}

// abort ends the session. The command runs on, but nobody reads its streams.
func (s *session) abort(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.aborted)
		s.stop()
		s.stream.Close()
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
	case <-s.done: // if the command has ended too, its end counts
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
	<-w.s.ready
	if w.s.ended.Load() {
		return 0, io.ErrClosedPipe
	}
	n, err := w.s.stream.Write(p)
	return n, w.explain(err)
}

func (w stdin) Close() error {
	<-w.s.ready
	if w.s.ended.Swap(true) {
		return nil
	}
	return w.explain(w.s.stream.CloseInput())
}

// explain returns why the input is closed.
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

// closedStdin is the session.Stdin of a command with input from elsewhere.
type closedStdin struct{}

func (closedStdin) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (closedStdin) Close() error              { return nil }
