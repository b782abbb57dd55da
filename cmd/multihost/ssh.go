package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/ops"
	"multihost/internal/options"
	"multihost/internal/remote"
	"multihost/internal/ui"
)

func sshCommand() *cli.Command {
	return command(cli.Command{
		Name:      "ssh",
		Usage:     "log in to one worker",
		ArgsUsage: "WORKER [-- PROGRAM ARG…]",
		Description: `Opens a terminal on the worker, by the same way and with the same check of its
host key as every other command:

  multihost ssh s0w0 --tpu-prefix=train
  multihost ssh s1w3 --tpu-prefix=train -- htop
  multihost ssh train-0                           a slice with one worker

If standard input and output are not a terminal, the program on the worker gets no
terminal, and both are passed on byte for byte. "~." at the beginning of a line
ends the connection, "~~" sends one "~". For a quick command on many workers:
multihost exec.

With --forward-agent, programs on the worker can use your ssh-agent while you are
logged in. Root of the worker can use it, too.`,
		Flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "forward-agent", Usage: "let programs on the worker use the ssh-agent of this machine"},
		}, options.QuickFlags()),
		Action: withSession(func(s *session, c *call) error {
			o := ops.ShellOptions{Argv: c.Argv, Open: func(ctx context.Context) (*ops.Console, error) { return console(ctx, c, s) }}
			o.Workers = options.LoginTo(&c.Call, s.hosts != nil)
			if c.Dashed && (len(o.Argv) == 0 || o.Argv[0] == "") {
				c.Refuse(usagef("multihost ssh: nothing to run after --"), cmdline.Dashes)
			}
			if c.Bool("forward-agent") {
				if o.AgentSocket, _ = s.lookup("SSH_AUTH_SOCK"); o.AgentSocket == "" {
					c.Refuse(&configError{Err: errors.New("--forward-agent: there is no ssh-agent (SSH_AUTH_SOCK is not set)"), Advice: `start one: eval "$(ssh-agent)"; ssh-add`}, "forward-agent")
				}
			}
			if s.view.Mode() == ui.JSON {
				c.Refuse(usagef("multihost ssh: --output=json: the bytes are those of the worker; for an answer as data: multihost exec"), "output")
			}
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			out, err := ops.Shell(c.Context, d.Reach, o)
			err = options.MeantWorker(c.Words[0], err)
			return outcome(out, withoutPipe(interruptible(c.Context, err)))
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

// console returns the local side of a login: the terminal or the standard streams.
func console(ctx context.Context, c *call, s *session) (*ops.Console, error) {
	in, out, ok := ui.CanHandOver(c.stdin, c.stdout)
	if !ok {
		screen, errs := s.view.Stdout(), s.view.Stderr()
		return &ops.Console{Stdin: c.stdin, Stdout: screen, Stderr: errs, Close: func() error { return errors.Join(screen.Close(), errs.Close()) }}, nil
	}
	kind, _ := s.lookup("TERM")
	if kind == "" {
		kind = "dumb"
	}
	screen, err := s.view.Console(ctx, in, out)
	if err != nil {
		return nil, fmt.Errorf("multihost ssh: %w", err)
	}
	return &ops.Console{
		Terminal: &remote.Terminal{Type: kind, Size: screen.Size, Resized: screen.Resized()},
		Stdin:    screen, Stdout: screen, Stderr: screen, Close: screen.Close,
	}, nil
}
