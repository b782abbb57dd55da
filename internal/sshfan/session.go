package sshfan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/remote"
)

// errUnsent reports that a link ended before the command was sent over it. Only then can
// another link carry the command.
var errUnsent = fmt.Errorf("%w before the command was sent", remote.ErrConnectionLost)

// redials is how often start tries a new connection. If connections break three times in a
// row at the same point, that is no accident.
const redials = 2

// start starts command lines for remote.Shell.
func (c *Conn) start(ctx context.Context, cmd remote.Cmd) (remote.Session, error) {
	if cmd.LoginTo != nil {
		return c.startApart(ctx, cmd)
	}
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		l, err := c.live(ctx, nil)
		if err != nil {
			return nil, err
		}
		s, err := c.begin(ctx, newSession(c, l, cmd))
		if !errors.Is(err, errUnsent) || n == redials {
			return s, err
		}
	}
}

// begin starts a session and returns when the worker has accepted its command.
func (c *Conn) begin(ctx context.Context, s *session) (remote.Session, error) {
	if !c.fleet.spawn(s.serve) {
		return nil, c.fail(remote.StageExec, "", remote.ErrClosed)
	}
	s.unwatch = context.AfterFunc(ctx, func() { s.abort(context.Cause(ctx)) })
	var err error
	select {
	case <-s.opened:
		err = s.openErr
	case <-s.aborted:
		err = s.cause
	}
	if err == nil {
		return s, nil
	}
	s.unwatch()
	s.shutGates() // output may have arrived before ctx ended
	return nil, err
}

// A session is a running command. It implements remote.Session.
type session struct {
	conn      *Conn
	link      *link
	cmd       remote.Cmd
	apart     bool // no other session uses the link
	out, errs *remote.Gate
	in        *remote.Intake
	unwatch   func() bool // stops watching the context

	opened  chan struct{} // closed when the worker has accepted or refused the command
	openErr error         // nil: the worker has accepted the command; read it only after opened is closed
	done    chan struct{} // closed when the session is over
	status  remote.Status // read it only after done is closed
	err     error         // read it only after done is closed

	mu      sync.Mutex
	ch      ssh.Channel   // nil until the channel is open
	aborted chan struct{} // closed when this side ends the session
	cause   error         // why this side has ended the session; read it only after aborted is closed
}

func newSession(c *Conn, l *link, cmd remote.Cmd) *session {
	s := &session{
		conn:    c,
		link:    l,
		cmd:     cmd,
		opened:  make(chan struct{}),
		done:    make(chan struct{}),
		aborted: make(chan struct{}),
	}
	s.out, s.errs = remote.NewGates(cmd)
	return s
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
	case <-s.aborted:
		select {
		case <-s.done:
			// Both have happened: the end of the command counts.
		default:
			s.shutGates()
			return remote.Status{}, s.cause
		}
	}
	return s.status, s.err
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

// abort ends the session on our side, and asks the worker to do the same. It asks in another
// goroutine, because the request may block if the connection has stalled.
func (s *session) abort(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.aborted:
		return
	default:
	}
	s.cause = cause
	close(s.aborted)
	if s.apart {
		s.conn.fleet.spawn(func() { s.link.end(cause) })
	} else if ch := s.ch; ch != nil {
		s.conn.fleet.spawn(func() { _ = ch.Close() })
	}
}

// shutGates makes sure that nothing uses the caller's writers and reader any more.
func (s *session) shutGates() {
	s.out.Shut()
	s.errs.Shut()
	s.mu.Lock()
	in := s.in
	s.mu.Unlock()
	if in != nil {
		in.Shut()
	}
}

// serve runs a session, from the opening of its channel to its end.
func (s *session) serve() {
	defer close(s.done)
	if s.apart {
		defer s.link.end(nil)
	}
	ch, reqs, err := s.open()
	if err != nil {
		s.openErr, s.err = err, err
		close(s.opened)
		return
	}
	var copies sync.WaitGroup
	if err := s.exec(ch, &copies); err != nil {
		_ = ch.Close()
		s.openErr, s.err = err, err
		close(s.opened)
		discard(reqs)
		return
	}
	close(s.opened)
	end := follow(reqs)
	// The channel is closed now. The output ends with what has arrived, and the command
	// gets no more input.
	copies.Wait()
	if s.in != nil {
		s.in.Shut()
	}
	s.status, s.err = s.judge(end)
}

// sessionPatience is how long open repeats the request if sshd refuses the session. sshd also
// counts sessions of commands that have just ended.
const sessionPatience = 5 * time.Second

func (s *session) open() (ssh.Channel, <-chan *ssh.Request, error) {
	clock := s.conn.fleet.cfg.Clock
	start := clock.Now()
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		ch, reqs, err := s.link.conn.OpenChannel("session", nil)
		if err == nil {
			return ch, reqs, s.register(ch, reqs)
		}
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) {
			// The link has ended or is unusable. End it, so that it is not used again.
			s.link.end(err)
			<-s.link.gone
			return nil, nil, s.conn.fail(remote.StageExec, "", fmt.Errorf("%w: %w", errUnsent, s.link.reason))
		}
		full := refused.Reason == ssh.ConnectionFailed || refused.Reason == ssh.ResourceShortage
		if !full {
			return nil, nil, s.conn.fail(remote.StageExec, "", err)
		}
		if clock.Now().Add(wait).Sub(start) > sessionPatience {
			full := s.conn.fail(remote.StageExec, "", fmt.Errorf("%w: %w", ErrTooManySessions, err))
			full.Advice = hintOf(full, s.conn.known())
			return nil, nil, full
		}
		select {
		case <-clock.After(wait):
		case <-s.aborted:
			return nil, nil, s.cause
		case <-s.link.gone:
		}
	}
}

// register makes the channel known to abort. If the session has ended meanwhile, register
// closes the channel.
func (s *session) register(ch ssh.Channel, reqs <-chan *ssh.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.aborted:
		_ = ch.Close()
		s.conn.fleet.spawn(func() { discard(reqs) })
		return s.cause
	default:
		s.ch = ch
		return nil
	}
}

// exec sends the command and starts to copy its streams.
func (s *session) exec(ch ssh.Channel, copies *sync.WaitGroup) error {
	if s.apart {
		ok, err := ch.SendRequest("auth-agent-req@openssh.com", true, nil)
		switch {
		case err != nil:
			return s.unanswered()
		case !ok:
			return s.conn.fail(remote.StageExec, "", ErrNoAgent)
		}
	}
	if err := s.furnish(ch); err != nil {
		return err
	}
	request, payload := "exec", ssh.Marshal(struct{ Line string }{s.cmd.Line})
	if s.cmd.Line == "" {
		request, payload = "shell", nil
	}
	ok, err := ch.SendRequest(request, true, payload)
	if err != nil {
		select {
		case <-s.aborted:
			return s.cause
		default:
			return s.unanswered()
		}
	}
	if !ok {
		return s.conn.fail(remote.StageExec, "", errors.New("sshd refuses to run commands for this login"))
	}
	if t := s.cmd.Terminal; t != nil && t.Resized != nil {
		s.conn.fleet.spawn(func() { s.resize(ch, t) })
	}
	copies.Go(func() { s.pump(ch, s.out) })
	copies.Go(func() { s.pump(ch.Stderr(), s.errs) })
	switch {
	case s.cmd.Stdin == remote.NoInput:
		// This fails only if the command is over.
		_ = ch.CloseWrite()
	case s.cmd.Stdin != nil:
		in := remote.NewIntake(s.cmd.Stdin)
		s.mu.Lock()
		s.in = in
		s.mu.Unlock()
		if !s.conn.fleet.spawn(func() { s.feed(ch, in) }) {
			in.Done()
		}
	}
	return nil
}

// furnish requests the agent and the terminal for the command.
func (s *session) furnish(ch ssh.Channel) error {
	if socket := s.cmd.AgentSocket; socket != "" {
		s.link.lend(func(rw io.ReadWriteCloser) { passToAgent(rw, socket) })
		switch ok, err := ch.SendRequest("auth-agent-req@openssh.com", true, nil); {
		case err != nil:
			return s.unanswered()
		case !ok:
			return s.conn.fail(remote.StageExec, "", ErrNoAgent)
		}
	}
	if t := s.cmd.Terminal; t != nil {
		columns, rows := t.Size()
		const noModes = "\x00" // the worker keeps its own terminal modes
		ok, err := ch.SendRequest("pty-req", true, ssh.Marshal(struct {
			Type                         string
			Columns, Rows, Width, Height uint32
			Modes                        string
		}{t.Type, uint32(columns), uint32(rows), 0, 0, noModes}))
		switch {
		case err != nil:
			return s.unanswered()
		case !ok:
			return s.conn.fail(remote.StageExec, "", errors.New("sshd gives this login no terminal"))
		}
	}
	return nil
}

// resize tells the worker the size of the terminal whenever it changes.
func (s *session) resize(ch ssh.Channel, t *remote.Terminal) {
	for {
		select {
		case <-s.done:
			return
		case _, ok := <-t.Resized:
			if !ok {
				return
			}
			columns, rows := t.Size()
			// This fails only if the command is over.
			_, _ = ch.SendRequest("window-change", false, ssh.Marshal(struct{ Columns, Rows, Width, Height uint32 }{uint32(columns), uint32(rows), 0, 0}))
		}
	}
}

// unanswered returns the error for a command that was sent and got no answer. The error is
// ErrConnectionLost if the connection is gone, and ErrNoStatus if only the channel is gone.
func (s *session) unanswered() error {
	if !s.link.sock.broken.Load() && s.link.answers() {
		return fmt.Errorf("run on %s: %w", s.conn.host.Name, remote.ErrNoStatus)
	}
	s.link.end(io.EOF)
	return s.link.lost(s.conn.host.Name)
}

// An ending is what the worker has said about the end of a command.
type ending struct {
	remote.Status
	known bool
}

// follow reads the requests of a channel until it is closed.
func follow(reqs <-chan *ssh.Request) ending {
	var end ending
	for req := range reqs {
		switch req.Type {
		case "exit-status":
			var msg struct{ Code uint32 }
			if ssh.Unmarshal(req.Payload, &msg) == nil {
				end = ending{remote.Status{Code: int(msg.Code)}, true}
			}
		case "exit-signal":
			var msg struct {
				Signal     string
				CoreDumped bool
				Message    string
				Language   string
			}
			if ssh.Unmarshal(req.Payload, &msg) == nil {
				end = ending{remote.SignalStatus(msg.Signal), true}
			}
		}
		if req.WantReply {
			_ = req.Reply(false, nil)
		}
	}
	return end
}

func discard(reqs <-chan *ssh.Request) { follow(reqs) }

// judge returns the result of the command. end is what the worker has said about its end.
func (s *session) judge(end ending) (remote.Status, error) {
	select {
	case <-s.aborted:
		return remote.Status{}, s.cause
	default:
	}
	switch {
	case s.link.sock.broken.Load():
		// The status may be known even here: sshd sends it at the end of the command, and
		// the last output may come later.
		return end.Status, s.link.lost(s.conn.host.Name)
	case end.known:
		return end.Status, nil
	default:
		return remote.Status{}, s.unanswered()
	}
}

// Sizes of the buffers for output. An idle session has the small buffer. A busy one borrows
// the big one.
const (
	smallBuffer = 1 << 10
	bigBuffer   = 32 << 10
)

// A copyBuffer is the buffer for copying a stream. It is small while little data arrives at
// a time, so that a waiting session needs almost no memory.
type copyBuffer struct {
	pool  *sync.Pool // of *[bigBuffer]byte
	small []byte
	big   *[bigBuffer]byte
}

func (c *Conn) newCopyBuffer() *copyBuffer {
	return &copyBuffer{pool: &c.fleet.buffers, small: make([]byte, smallBuffer)}
}

func (b *copyBuffer) bytes() []byte {
	if b.big != nil {
		return b.big[:]
	}
	return b.small
}

// adapt chooses the size for the next read after a read of n bytes.
func (b *copyBuffer) adapt(n int) {
	switch {
	case b.big == nil && n == len(b.small):
		b.big = b.pool.Get().(*[bigBuffer]byte)
	case b.big != nil && n < len(b.small):
		b.release()
	}
}

func (b *copyBuffer) release() {
	if b.big != nil {
		b.pool.Put(b.big)
		b.big = nil
	}
}

// pump copies one output stream until its end.
func (s *session) pump(r io.Reader, w *remote.Gate) {
	buf := s.conn.newCopyBuffer()
	defer buf.release()
	for {
		n, err := r.Read(buf.bytes())
		if n > 0 {
			if _, werr := w.Write(buf.bytes()[:n]); werr != nil {
				if !errors.Is(werr, remote.ErrShut) {
					s.abort(fmt.Errorf("write output of %s: %w", s.conn.host.Name, werr))
				}
				return
			}
		}
		if err != nil {
			return // io.EOF: the channel has no other error
		}
		buf.adapt(n)
	}
}

// feed copies Cmd.Stdin to the command and closes its input.
func (s *session) feed(ch ssh.Channel, in *remote.Intake) {
	defer in.Done()
	buf := s.conn.newCopyBuffer()
	defer buf.release()
	for {
		n, err := in.Read(buf.bytes())
		if n > 0 {
			if _, werr := ch.Write(buf.bytes()[:n]); werr != nil {
				return // the command or the connection has ended; serve handles that
			}
		}
		switch {
		case err == nil:
			buf.adapt(n)
		case errors.Is(err, io.EOF):
			_ = ch.CloseWrite()
			return
		case errors.Is(err, remote.ErrShut):
			return
		default:
			// Do not close the input: the command would take what it got for the whole
			// input. End the session with an error.
			s.abort(fmt.Errorf("read input for %s: %w", s.conn.host.Name, err))
			return
		}
	}
}

// stdin is session.Stdin.
type stdin struct{ s *session }

func (w stdin) Write(p []byte) (int, error) {
	select {
	case <-w.s.aborted:
		return 0, w.s.cause
	default:
	}
	n, err := w.s.ch.Write(p)
	return n, w.explain(err)
}

func (w stdin) Close() error {
	err := w.s.ch.CloseWrite()
	if errors.Is(err, io.EOF) {
		return nil // the command is over, so its input is closed
	}
	return w.explain(err)
}

// explain replaces the io.EOF of x/crypto/ssh by an error that says what has happened.
func (w stdin) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case w.s.link.ended():
		return fmt.Errorf("write to %s: %w", w.s.conn.host.Name, remote.ErrConnectionLost)
	default:
		return fmt.Errorf("write to %s: %w", w.s.conn.host.Name, io.ErrClosedPipe)
	}
}

// closedStdin is the session.Stdin of a command with input from elsewhere.
type closedStdin struct{}

func (closedStdin) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (closedStdin) Close() error              { return nil }
