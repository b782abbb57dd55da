package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// A Clock tells the time and waits.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

// ShellConfig is what a Shell needs.
type ShellConfig struct {
	Name string // see Runner.Name
	User string // see Conn.User

	// Start starts a command that has a Line and no Program. If Cmd.Stdin is NoInput, it
	// closes the command's standard input at once. Otherwise it does what Conn.Start does.
	Start func(ctx context.Context, cmd Cmd) (Session, error)

	// ReadOnly makes the Shell run only commands that change nothing (Cmd.ReadOnly).
	ReadOnly bool

	// Timeout limits how long a login may take to run a first command (see
	// Shell.MeasureClock).
	Timeout time.Duration

	Clock Clock
}

// NoInput is the Cmd.Stdin of a command whose input is closed at once.
var NoInput io.Reader = noInput{}

type noInput struct{}

func (noInput) Read([]byte) (int, error) { return 0, io.EOF }

// A Shell runs Programs and measures the worker's clock over a connection that can only start
// command lines. Implementations of Conn embed a Shell. Its methods are safe for concurrent
// use.
type Shell struct {
	cfg ShellConfig
	kit kit

	mu      sync.Mutex
	offset  time.Duration // see ClockOffset
	greeted bool          // MeasureClock has succeeded, so the login can run commands
}

// NewShell returns a Shell. All fields of cfg are required.
func NewShell(cfg ShellConfig) *Shell { return &Shell{cfg: cfg} }

// Name implements Runner.
func (s *Shell) Name() string { return s.cfg.Name }

// User implements Conn.
func (s *Shell) User() string { return s.cfg.User }

// ClockOffset implements Runner.
func (s *Shell) ClockOffset() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offset
}

// Start implements Conn.
func (s *Shell) Start(ctx context.Context, cmd Cmd) (Session, error) {
	if s.cfg.ReadOnly && (!cmd.ReadOnly || cmd.LoginTo != nil) {
		return nil, s.fail(StageExec, ErrReadOnly)
	}
	return s.cfg.Start(ctx, cmd.whole(!s.cfg.ReadOnly))
}

// Run implements Runner.
func (s *Shell) Run(ctx context.Context, cmd Cmd) (Status, error) {
	if cmd.program != nil {
		return s.runProgram(ctx, cmd)
	}
	return s.run(ctx, cmd)
}

func (s *Shell) run(ctx context.Context, cmd Cmd) (Status, error) {
	if cmd.Stdin == nil {
		cmd.Stdin = NoInput
	}
	session, err := s.Start(ctx, cmd)
	if err != nil {
		return Status{}, err
	}
	return session.Wait()
}

// fail returns the error for a failed step of this connection.
func (s *Shell) fail(stage Stage, err error) *ConnectError {
	return &ConnectError{Host: s.cfg.Name, User: s.cfg.User, Stage: stage, Err: err}
}

// runProgram does what Run does, for commands made by Program.Cmd.
func (s *Shell) runProgram(ctx context.Context, cmd Cmd) (Status, error) {
	call := cmd.program
	if s.kit.has(call.Program) {
		input := &replay{r: cmd.Stdin}
		said := &firstWords{w: cmd.Stderr}
		named := cmd
		named.Line, named.Stderr, named.program = call.line(-len(call.text()), call.digest()), said, nil
		if cmd.Stdin != nil {
			named.Stdin = input.reader()
		}
		if sameWriter(cmd.Stdout, cmd.Stderr) {
			named.Stdout = said
		}
		status, err := s.run(ctx, named)
		if err != nil || status.Code != lacksStatus || !bytes.Contains(said.text, []byte(lacksText)) {
			return status, err
		}
		s.kit.lacks(call.Program)
		if cmd.Stdin != nil {
			again := input.reader()
			if again == nil {
				return Status{}, fmt.Errorf("run on %s: %w", s.cfg.Name, ErrProgramGone)
			}
			cmd.Stdin = again
		}
	}
	keep := !s.cfg.ReadOnly
	status, err := s.run(ctx, cmd.whole(keep))
	if err == nil && status.Code != tornStatus && keep {
		s.kit.sent(call.Program)
	}
	return status, err
}
