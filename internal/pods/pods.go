// Package pods reaches workers that are pods: a command on a worker is an exec in the pod's
// container. It implements Conn and Dialer of package remote.
//
// # Decisions
//
//   - Each command has a WebSocket of its own, so Silence looks at the running commands. A
//     command without output gets pings, because front ends cut streams without traffic.
//   - A Conn never changes to another pod. If its pod has gone, so have the pod's files and
//     processes, and every later command fails at StageDial. A Dialer that dials again
//     finds the new pod.
//   - The API server writes command lines into its audit log, as sshd may do. So secrets
//     travel on the input.
//
// # What differs from SSH
//
//   - A node reports the exit code of a command and no signal: a death by KILL is exit code
//     137 without Status.Signal. The supervisor on the worker records the signals of the
//     user's command.
//   - A node closes a stream on which nothing has come for four hours. Pings do not prevent
//     that, because they reach only the API server. Followers then connect again, as after
//     any cut.
//   - Pods have no sshd: Cmd.LoginTo and Cmd.AgentSocket are refused, and HostKey is "".
package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/kube"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// Cluster has the calls of a Kubernetes API server that this package needs.
type Cluster interface {
	// Pod returns a pod. If there is none, kube.NotFound is true for the error.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)

	// Exec starts a command in a container.
	Exec(ctx context.Context, r kube.ExecRequest) (*kube.Stream, error)

	// Alive asks the API server for a sign of life.
	Alive(ctx context.Context) error
}

// Of returns the Cluster that a client calls.
func Of(c *kube.Client) Cluster { return cluster{c} }

type cluster struct{ *kube.Client }

func (c cluster) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return kube.Pods.In(c.Client, namespace).Get(ctx, name)
}

func (c cluster) Alive(ctx context.Context) error {
	_, err := c.Version(ctx)
	return err
}

// A Dialer connects to workers that are pods. tpu.Worker.Name is the name of the pod. It
// implements remote.Dialer.
type Dialer struct {
	Cluster   Cluster
	Namespace string // namespace of the pods
	Container string // container in which commands run
	User      string // user as which commands run
	KeepAlive time.Duration
	Clock     remote.Clock

	// Renew is a bash command without output that marks a pod as used; "" means none. It runs
	// before each command, and every RenewEvery while a remote.Dialed is open.
	Renew      string
	RenewEvery time.Duration
}

// KeepAlive is the usual pause between two pings of a stream. Front ends cut streams that are
// idle for minutes.
const KeepAlive = 15 * time.Second

// mostDials limits how many streams are opened at once. Each is a TLS handshake of its own.
const mostDials = 64

// Way implements remote.Dialer: there is only one way.
func (*Dialer) Way(context.Context, []tpu.Slice, event.Sink) string { return "" }

// Dial implements remote.Dialer. It waits for a pod that does not run yet, at most for
// r.RetryFor.
func (d *Dialer) Dial(ctx context.Context, r remote.Request) (*remote.Dialed, error) {
	dials := make(chan struct{}, mostDials)
	dialed := &remote.Dialed{Errs: make([]error, len(r.Workers))}
	conns := make([]*Conn, len(r.Workers))
	for i, id := range r.Workers {
		s := r.Slices[id.Slice]
		if id.Worker >= len(s.Workers) {
			return nil, fault.New(fault.Unavailable, fmt.Sprintf("slice %q has no worker %d", s.Name, id.Worker))
		}
		conns[i] = d.open(id.String(), s.Workers[id.Worker].Name, r, dials)
		dialed.Conns = append(dialed.Conns, conns[i])
	}
	var reaching sync.WaitGroup
	for i, c := range conns {
		reaching.Go(func() { dialed.Errs[i] = c.reach(ctx) })
	}
	reaching.Wait()
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	if d.Renew != "" && !r.ReadOnly {
		reaching.Go(func() { d.renew(renewing, conns) })
	}
	dialed.Close = func() {
		stop()
		reaching.Wait()
		for _, c := range conns {
			c.begin(remote.ErrClosed)
		}
		for _, c := range conns {
			c.running.Wait()
		}
	}
	if ctx.Err() != nil {
		dialed.Close()
		return nil, context.Cause(ctx)
	}
	return dialed, nil
}

// renew runs Renew in all pods every RenewEvery until ctx ends. It ignores failures, because a
// pod stays for many rounds without use.
func (d *Dialer) renew(ctx context.Context, conns []*Conn) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.Clock.After(d.RenewEvery):
		}
		var all sync.WaitGroup
		for _, c := range conns {
			all.Go(func() { c.renew(ctx) })
		}
		all.Wait()
	}
}

// renewLimit is how long one run of Renew may take.
const renewLimit = 30 * time.Second

func (c *Conn) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	select {
	case c.dials <- struct{}{}:
		defer func() { <-c.dials }()
	case <-ctx.Done():
		return
	}
	if c.isClosed() {
		return
	}
	stream, err := c.dialer.Cluster.Exec(ctx, kube.ExecRequest{Namespace: c.dialer.Namespace, Pod: c.pod, Container: c.dialer.Container, Command: []string{"bash", "-c", c.dialer.Renew}})
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, stream.Close)()
	_ = stream.CloseInput()
	_, _ = stream.Receive(io.Discard, io.Discard)
	stream.Close()
}

// shellLimit is how long a pod may take to run its first command.
const shellLimit = 30 * time.Second

func (d *Dialer) open(name, pod string, r remote.Request, dials chan struct{}) *Conn {
	c := &Conn{dialer: d, pod: pod, readOnly: r.ReadOnly, retryFor: r.RetryFor, dials: dials, sessions: map[*session]bool{}}
	c.Shell = remote.NewShell(remote.ShellConfig{
		Name: name, User: d.User, Start: c.start, ReadOnly: r.ReadOnly, Timeout: min(r.RetryFor, shellLimit), Clock: d.Clock,
	})
	return c
}

// A Conn reaches one pod. It implements remote.Conn.
type Conn struct {
	*remote.Shell
	dialer   *Dialer
	pod      string
	retryFor time.Duration
	readOnly bool
	dials    chan struct{} // has one element for each stream that is being opened

	running sync.WaitGroup // goroutines of sessions

	mu       sync.Mutex
	closed   bool
	broken   bool      // a session was lost, and no command has worked since
	heard    time.Time // when the pod last sent something
	sessions map[*session]bool
}

// HostKey implements remote.Conn: no worker can log in to a pod.
func (*Conn) HostKey() string { return "" }

// Silence implements remote.Conn. A pod without a running command is silent only if its
// last command was lost.
func (c *Conn) Silence() (since time.Time, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard.IsZero() || c.broken {
		return c.heard, true
	}
	for s := range c.sessions {
		if s.mute.Load() {
			return s.stream.Pulse().Heard, true
		}
	}
	return time.Time{}, false
}

// Close implements remote.Conn.
func (c *Conn) Close() {
	c.begin(remote.ErrClosed)
	c.running.Wait()
}

// begin refuses new commands and ends the running ones with cause.
func (c *Conn) begin(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for s := range c.sessions {
		s.abort(c.lost(cause))
	}
}

func (c *Conn) lost(cause error) error {
	return fmt.Errorf("run on %s: %w: %w", c.Name(), remote.ErrConnectionLost, cause)
}

func (c *Conn) fail(stage remote.Stage, err error, tries int) *remote.ConnectError {
	e := &remote.ConnectError{Host: c.Name(), User: c.User(), Stage: stage, Tries: tries, Err: err}
	if hints := fault.Hints(err); len(hints) > 0 {
		e.Advice = hints[0]
	}
	return e
}

// hear notes that the pod sent something at a time.
func (c *Conn) hear(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.After(c.heard) {
		c.heard = at
	}
	c.broken = false
}

// A stateError says that a pod cannot run a command now.
type stateError struct {
	pod, state string
	final      bool // the pod can never run a command
}

func (e *stateError) Error() string { return fmt.Sprintf("pod %q %s", e.pod, e.state) }

// Cause returns the text without the name of the pod, so that it is the same for all
// workers.
func (e *stateError) Cause() string     { return "the pod " + e.state }
func (e *stateError) Fault() fault.Kind { return fault.Unavailable }

// stateOf returns why a pod cannot run a command, or nil if it can.
func stateOf(pod *corev1.Pod, container string) error {
	switch {
	case pod.DeletionTimestamp != nil:
		return &stateError{pod.Name, "is being deleted", true}
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		state := "has ended"
		if pod.Status.Reason != "" {
			state += " (" + pod.Status.Reason + ")"
		}
		return &stateError{pod.Name, state, true}
	}
	for _, s := range pod.Status.ContainerStatuses {
		switch {
		case s.Name != container:
		case s.State.Running != nil:
			return nil
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			return &stateError{pod.Name, "waits to start: " + s.State.Waiting.Reason, false}
		}
	}
	return &stateError{pod.Name, "does not run yet", false}
}

// look reads the pod. It returns why the pod cannot run a command, or nil.
func (c *Conn) look(ctx context.Context) error {
	pod, err := c.dialer.Cluster.Pod(ctx, c.dialer.Namespace, c.pod)
	switch {
	case kube.NotFound(err):
		return &stateError{c.pod, "does not exist any more", true}
	case err != nil:
		return err
	}
	return stateOf(pod, c.dialer.Container)
}

// passes reports whether an error may pass by itself.
func passes(err error) bool {
	var state *stateError
	if errors.As(err, &state) {
		return !state.final
	}
	kind := fault.Of(err)
	return kind == fault.Unavailable || kind == fault.Temporary
}

// firstPause and mostPause bound the time between two tries to reach a pod.
const (
	firstPause = 250 * time.Millisecond
	mostPause  = 5 * time.Second
)

// persist calls f until f succeeds or fails for good, or retryFor has passed.
func (c *Conn) persist(ctx context.Context, stage remote.Stage, f func() error) error {
	begin, pause := c.dialer.Clock.Now(), firstPause
	for try := 1; ; try++ {
		err := f()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !passes(err) || c.dialer.Clock.Now().Add(pause).Sub(begin) > c.retryFor || c.isClosed():
			var state *stateError
			if errors.As(err, &state) { // the pod is lost; it has not refused a command
				stage = remote.StageDial
			}
			return c.fail(stage, err, try)
		}
		select {
		case <-c.dialer.Clock.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, mostPause)
	}
}

func (c *Conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// reach waits until the pod can run commands.
func (c *Conn) reach(ctx context.Context) error {
	err := c.persist(ctx, remote.StageDial, func() error { return c.look(ctx) })
	if err == nil {
		c.hear(time.Now())
	}
	return err
}
