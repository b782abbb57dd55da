//go:build unix

package localworker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"multihost/internal/event"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// A Worker has processes on this machine. Set its fields before the first use. Its methods
// are safe for concurrent use.
type Worker struct {
	User string
	Home string
	Env  []string

	mu     sync.Mutex
	away   chan struct{} // closed when the worker returns; nil: the worker has not left
	conns  map[*Conn]bool
	reaped sync.WaitGroup // processes
}

// Cut breaks all connections. The processes continue.
func (w *Worker) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.cut()
	}
}

// Leave breaks all connections. New ones wait until Return.
func (w *Worker) Leave() {
	w.mu.Lock()
	w.away = make(chan struct{})
	w.mu.Unlock()
	w.Cut()
}

// Return lets connections work again after Leave.
func (w *Worker) Return() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.away)
	w.away = nil
}

// Wait returns when all processes of connections have ended.
func (w *Worker) Wait() { w.reaped.Wait() }

// Connect returns a connection to the worker. name is the worker's name. retryFor is how
// long the connection waits for a worker that has left.
func (w *Worker) Connect(name string, readOnly bool, retryFor time.Duration) *Conn {
	c := &Conn{worker: w, retryFor: retryFor, heard: time.Now(), sessions: map[*session]bool{}}
	c.Shell = remote.NewShell(remote.ShellConfig{
		Name: name, User: w.User, Start: c.start, ReadOnly: readOnly, Timeout: 30 * time.Second, Clock: systemClock{},
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		w.conns = map[*Conn]bool{}
	}
	w.conns[c] = true
	return c
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// A Conn is a connection to a Worker. It implements remote.Conn.
type Conn struct {
	*remote.Shell
	worker   *Worker
	retryFor time.Duration

	mu       sync.Mutex
	closed   bool
	broken   bool // no command has run since the connection broke
	heard    time.Time
	sessions map[*session]bool
	copying  sync.WaitGroup
}

// HostKey implements remote.Conn. It returns "", because no worker can log in to this one.
func (*Conn) HostKey() string { return "" }

// Silence implements remote.Conn.
func (c *Conn) Silence() (since time.Time, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard, c.broken
}

// Close implements remote.Conn.
func (c *Conn) Close() {
	c.worker.mu.Lock()
	delete(c.worker.conns, c)
	c.worker.mu.Unlock()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end(remote.ErrClosed)
	c.copying.Wait()
}

func (c *Conn) cut() { c.end(errors.New("it was cut")) }

// end ends all sessions.
func (c *Conn) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken, c.heard = true, time.Now()
	for s := range c.sessions {
		s.abort(fmt.Errorf("run on %s: %w: %w", c.Name(), remote.ErrConnectionLost, cause))
	}
}

func (c *Conn) fail(stage remote.Stage, err error) error {
	return &remote.ConnectError{Host: c.Name(), User: c.User(), Stage: stage, Err: err}
}

// reach waits for a worker that has left.
func (c *Conn) reach(ctx context.Context) error {
	c.worker.mu.Lock()
	away := c.worker.away
	c.worker.mu.Unlock()
	if away == nil {
		return nil
	}
	limit := time.NewTimer(c.retryFor)
	defer limit.Stop()
	select {
	case <-away:
		return nil
	case <-limit.C:
		return c.fail(remote.StageDial, errors.New("the worker has left"))
	case <-ctx.Done():
		return c.fail(remote.StageDial, context.Cause(ctx))
	}
}

// start starts command lines for remote.Shell.
func (c *Conn) start(ctx context.Context, cmd remote.Cmd) (remote.Session, error) {
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case cmd.Terminal != nil || cmd.LoginTo != nil || cmd.AgentSocket != "":
		return nil, c.fail(remote.StageExec, errors.New("a local process has no terminal and no agent"))
	}
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	s := &session{conn: c, cmd: cmd, done: make(chan struct{}), aborted: make(chan struct{})}
	s.out, s.errs = remote.NewGates(cmd)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, c.fail(remote.StageDial, remote.ErrClosed)
	}
	if err := s.exec(); err != nil {
		return nil, c.fail(remote.StageExec, err)
	}
	c.broken = false
	c.sessions[s] = true
	s.unwatch = context.AfterFunc(ctx, func() { s.abort(context.Cause(ctx)) })
	return s, nil
}

// process starts the command line like sshd: in a session of its own, with three pipes.
func (c *Conn) process(line string) (p *exec.Cmd, ours [3]*os.File, err error) {
	var theirs [3]*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		for _, f := range ours {
			if err != nil {
				f.Close()
			}
		}
	}()
	for i := range theirs {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, ours, err
		}
		if theirs[i], ours[i] = w, r; i == 0 {
			theirs[i], ours[i] = r, w
		}
	}
	p = exec.Command("/bin/bash", "-c", line)
	if line == "" {
		p.Args = p.Args[:1]
	}
	p.Args[0], p.Dir, p.Env = "bash", c.worker.Home, c.worker.Env
	p.Stdin, p.Stdout, p.Stderr = theirs[0], theirs[1], theirs[2]
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return p, ours, p.Start()
}

// A Dialer gets its workers from Find. It implements remote.Dialer.
type Dialer struct {
	Find func(s tpu.Slice, worker int) (*Worker, error)
}

// Way implements remote.Dialer. There is only one way.
func (*Dialer) Way(context.Context, []tpu.Slice, event.Sink) string { return "" }

// Dial implements remote.Dialer.
func (d *Dialer) Dial(ctx context.Context, r remote.Request) (*remote.Dialed, error) {
	conns := make([]*Conn, len(r.Workers))
	dialed := &remote.Dialed{Errs: make([]error, len(r.Workers))}
	for i, id := range r.Workers {
		w, err := d.Find(r.Slices[id.Slice], id.Worker)
		if err != nil {
			return nil, err
		}
		conns[i] = w.Connect(id.String(), r.ReadOnly, r.RetryFor)
		dialed.Conns = append(dialed.Conns, conns[i])
	}
	var reaching sync.WaitGroup
	for i, c := range conns {
		reaching.Go(func() { dialed.Errs[i] = c.reach(ctx) })
	}
	reaching.Wait()
	dialed.Close = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	return dialed, nil
}

func statusOf(state *os.ProcessState) remote.Status {
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return remote.SignalStatus(unix.SignalName(status.Signal()))
	}
	return remote.Status{Code: status.ExitStatus()}
}
