package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"multihost/internal/event"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// ShellOptions is a login to one worker.
type ShellOptions struct {
	workers.Workers
	Argv        []string // program to run, without a shell; nil: the login shell
	AgentSocket string   // socket of the agent for the worker; "": none

	// Open is called once the worker is reached.
	Open func(ctx context.Context) (*Console, error)
}

// A Console is the local side of a login.
type Console struct {
	Terminal       *remote.Terminal // nil: without a terminal
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Close          func() error // restores the terminal; ends a pending Read of it
}

// codeLeft is the exit code when the user leaves the login with "~.", as in ssh.
const codeLeft = 255

// Shell logs in to the one worker that o names, and returns the status of the program that
// ran there. It always closes the console.
func Shell(ctx context.Context, d *workers.Reach, o ShellOptions) (stage.Outcome, error) {
	watch := stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	sel, ids, err := d.Choose(ctx, &watch, o.Workers)
	if err != nil {
		return stage.Outcome{}, err
	}
	if len(ids) != 1 {
		return stage.Outcome{}, &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("%s is %s; a login is to one", tpu.Fold(ids), event.Count(len(ids), "worker")),
			Advice: fmt.Sprintf("to log in: multihost ssh %s %s; for a command on all of them: multihost exec --workers=%s", ids[0], d.Flag(o.Prefix), remote.Quote(o.Only.String()))}
	}
	t, failed, err := d.ReachSome(ctx, &watch, sel, ids)
	if err != nil {
		return stage.Outcome{}, err
	}
	defer t.Close()
	if len(failed) > 0 {
		return stage.Outcome{}, workers.Failures(stage.Connect, ids, failed)
	}
	c, err := o.Open(ctx)
	if err != nil {
		return stage.Outcome{}, err
	}
	defer c.Close()
	return shell(ctx, d, t.Conns[0], o, c)
}

func shell(ctx context.Context, d *workers.Reach, conn remote.Conn, o ShellOptions, c *Console) (stage.Outcome, error) {
	cmd := remote.Cmd{Terminal: c.Terminal, Stdout: c.Stdout, Stderr: c.Stderr, AgentSocket: o.AgentSocket}
	if len(o.Argv) > 0 {
		cmd.Line = remote.Quote(o.Argv...)
	}
	if c.Terminal == nil {
		cmd.Stdin = c.Stdin
		status, err := conn.Run(ctx, cmd)
		return stage.Outcome{Code: status.Code, Started: err == nil}, err
	}
	s, err := conn.Start(ctx, cmd)
	if err != nil {
		return stage.Outcome{}, err
	}
	var typing sync.WaitGroup
	left := false
	typing.Go(func() {
		if _, err := io.Copy(s.Stdin(), c.Stdin); err == nil {
			left = true // the input has ended, so the user wants to leave
			s.Close()
		}
	})
	status, err := s.Wait()
	closed := c.Close() // ends the reading
	typing.Wait()
	switch {
	case errors.Is(err, remote.ErrClosed) && left:
		return stage.Outcome{Code: codeLeft, Started: true}, nil
	case err == nil && closed != nil:
		event.Notef(d.Sink, event.Warn, "", "give the terminal back: %v", closed)
	}
	return stage.Outcome{Code: status.Code, Started: err == nil}, err
}
