package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/ops"
	"multihost/internal/remote"
	"multihost/internal/tpu"
	"multihost/internal/ui"
	"multihost/internal/workers"
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

If standard input and output are no terminal, the program on the worker gets no
terminal, and both are passed on byte for byte. "~." at the beginning of a line
ends the connection, "~~" sends one "~". For a quick command on many workers:
multihost exec.

With --forward-agent, programs on the worker can use your ssh-agent while you are
logged in. Root of the worker can use it, too.`,
		Flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "forward-agent", Usage: "let programs on the worker use the ssh-agent of this machine"},
		}, quickFlags()),
		Action: withSession(func(s *session, c *call) error {
			o := ops.ShellOptions{Argv: c.Argv, Open: func(ctx context.Context) (*ops.Console, error) { return console(ctx, c, s) }}
			o.Workers = loginTo(&c.Call, s.hosts != nil)
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
			out, err := ops.Shell(c.Context, d, o)
			err = meantWorker(c.Words[0], err)
			return outcome(out, withoutPipe(interruptible(c.Context, err)))
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

// sliceName matches the names of slices. It matches no pattern of workers.
var sliceName = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)

// loginTo reads which worker to log in to. The name of a slice, which gcloud takes,
// stands for the slice's only worker.
func loginTo(c *Call, onHosts bool) (w workers.Workers) {
	if words := c.Words; len(words) > 1 && !c.Dashed {
		line := []string{"multihost", "ssh", words[0]}
		if prefix, typed := c.Values["tpu-prefix"]; typed {
			line = append(line, "--tpu-prefix="+prefix)
		}
		line = append(append(line, "--"), words[1:]...)
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("multihost ssh takes one worker, but got %q too", words[1]),
			Advice: "what is to run there comes after --: " + remote.CommandLine(line...)}, cmdline.Word)
	}
	name := c.OneWord("worker", "")
	only, wrong := tpu.ParsePattern(name)
	_, prefixed := c.Typed["tpu-prefix"]
	slice := wrong != nil && !onHosts && sliceName.MatchString(name)
	hint := ""
	if login, rest, at := strings.Cut(name, "@"); at {
		hint = "the login is a flag: " + remote.CommandLine("multihost", "ssh", rest, "--user="+login)
	}
	switch {
	case slice && !prefixed:
		w.Prefix = name
		only, _ = tpu.ParsePattern("all")
		slicesOf(c)
	case slice && tpu.LikelyPattern(name) == "":
		c.Refuse(&cmdline.UsageError{Err: wrong, Advice: "of a slice of that name: multihost ssh s0w0 --tpu-prefix=" + name}, cmdline.Word)
		slicesOf(c)
	default:
		if wrong != nil {
			c.Refuse(&cmdline.UsageError{Err: wrong, Advice: hint}, cmdline.Word)
		}
		w = namedWorkers(c, onHosts)
	}
	w.Only, w.Partial = only, c.Bool("allow-partial")
	return w
}

// meantWorker adds to an error about a slice that does not exist which worker its name
// may mean.
func meantWorker(name string, err error) error {
	var none *tpu.NoSlicesError
	likely := tpu.LikelyPattern(name)
	if !errors.As(err, &none) || none.Prefix != name || likely == "" || len(none.Present) == 0 {
		return err
	}
	return &noSliceError{error: err, Advice: "slices here: " + strings.Join(none.Present, ", ") + "; a worker of one of them: multihost ssh " + likely + " --tpu-prefix=" + none.Present[0]}
}

// A noSliceError is an error about slices that do not exist, with a better hint.
type noSliceError struct {
	error
	Advice string
}

func (e *noSliceError) Unwrap() error { return e.error }

// Hint returns what to type.
func (e *noSliceError) Hint() string { return e.Advice }

// console returns the local side of a login: the terminal, or the standard streams.
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
