package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"multihost/internal/event"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// ShellOptions is a login to one worker.
type ShellOptions struct {
	Workers
	Argv        []string // run without a shell of multihost's; empty: the login shell
	AgentSocket string   // socket of the agent that the worker may use; "": none

	// Open is called after the worker is reached.
	Open func(ctx context.Context) (*Console, error)
}

// A Console is the local side of a login.
type Console struct {
	Terminal       *remote.Terminal // nil: no terminal is requested
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Close          func() error // restores the terminal; a pending Read of it ends then
}

// codeLeft is the exit code when the user leaves the login with "~.", as ssh's.
const codeLeft = 255

// Shell logs in to the one worker that o names and returns the status of what ran there.
// It always closes the console.
func (d *Deps) Shell(ctx context.Context, o ShellOptions) (Outcome, error) {
	watch := stopwatch{sink: d.Sink, clock: d.Clock}
	sel, ids, err := d.choose(ctx, &watch, o.Workers)
	if err != nil {
		return Outcome{}, err
	}
	if len(ids) != 1 {
		login := fmt.Sprintf("multihost ssh %s", ids[0])
		if _, hosts := d.Cloud.(HostList); !hosts {
			login += " --tpu-prefix=" + o.Prefix
		}
		return Outcome{}, &Error{Stage: StageInput, Text: fmt.Sprintf("%s is %s; a login is to one", tpu.Fold(ids), event.Count(len(ids), "worker")),
			Advice: "to log in: " + login + "; for a command on all of them: multihost exec --workers=" + remote.Quote(o.Only.String())}
	}
	t, failed, err := d.reachSome(ctx, &watch, sel, ids)
	if err != nil {
		return Outcome{}, err
	}
	defer t.close()
	if len(failed) > 0 {
		return Outcome{}, failures(StageConnect, ids, failed)
	}
	c, err := o.Open(ctx)
	if err != nil {
		return Outcome{}, err
	}
	defer c.Close()
	return d.shell(ctx, t.conns[0], o, c)
}

func (d *Deps) shell(ctx context.Context, conn remote.Conn, o ShellOptions, c *Console) (Outcome, error) {
	cmd := remote.Cmd{Terminal: c.Terminal, Stdout: c.Stdout, Stderr: c.Stderr, AgentSocket: o.AgentSocket}
	if len(o.Argv) > 0 {
		cmd.Line = remote.Quote(o.Argv...)
	}
	if c.Terminal == nil {
		cmd.Stdin = c.Stdin
		status, err := conn.Run(ctx, cmd)
		return Outcome{Code: status.Code, Started: err == nil}, err
	}
	s, err := conn.Start(ctx, cmd)
	if err != nil {
		return Outcome{}, err
	}
	var typing sync.WaitGroup
	left := false
	typing.Go(func() {
		if _, err := io.Copy(s.Stdin(), c.Stdin); err == nil {
			left = true // the input has ended: the user wants to leave
			s.Close()
		}
	})
	status, err := s.Wait()
	closed := c.Close() // ends the reading
	typing.Wait()
	switch {
	case errors.Is(err, remote.ErrClosed) && left:
		return Outcome{Code: codeLeft, Started: true}, nil
	case err == nil && closed != nil:
		event.Notef(d.Sink, event.Warn, "", "give the terminal back: %v", closed)
	}
	return Outcome{Code: status.Code, Started: err == nil}, err
}
