package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/job"
	"multihost/internal/remote"
	"multihost/internal/tpu"
	"multihost/internal/ui"
)

func (p *program) sshCommand() *cli.Command {
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
		Flags: flags([]cli.Flag{
			&cli.BoolFlag{Name: "forward-agent", Usage: "let programs on the worker use the ssh-agent of this machine"},
		}, quickFlags()),
		Action: p.withSession(func(s *session, c *cli.Context) error {
			o := job.ShellOptions{Argv: p.inv.argv, Open: func(ctx context.Context) (*job.Console, error) { return p.console(ctx, s) }}
			o.Workers = p.loginTo(s, c)
			if p.inv.dashed && (len(o.Argv) == 0 || o.Argv[0] == "") {
				p.inv.refuse(usagef("multihost ssh: nothing to run after --"), dashes)
			}
			if c.Bool("forward-agent") {
				if o.AgentSocket, _ = s.lookup("SSH_AUTH_SOCK"); o.AgentSocket == "" {
					p.inv.refuse(&configError{err: errors.New("--forward-agent: there is no ssh-agent (SSH_AUTH_SOCK is not set)"), hint: `start one: eval "$(ssh-agent)"; ssh-add`}, "forward-agent")
				}
			}
			if s.view.Mode() == ui.JSON {
				p.inv.refuse(usagef("multihost ssh: --output=json: the bytes are those of the worker; for an answer as data: multihost exec"), "output")
			}
			d, err := s.workers(p, c)
			if err != nil {
				return err
			}
			out, err := d.Shell(c.Context, o)
			err = meantWorker(p.inv.positionals[0], err)
			return outcome(out, withoutPipe(interruptible(c.Context, err)))
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

// sliceName matches the names of slices. It matches no pattern of workers.
var sliceName = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)

// loginTo reads which worker to log in to. The name of a slice, which gcloud takes,
// stands for the slice's only worker.
func (p *program) loginTo(s *session, c *cli.Context) (w job.Workers) {
	if words := p.inv.positionals; len(words) > 1 && !p.inv.dashed {
		line := []string{"multihost", "ssh", words[0]}
		if prefix, typed := p.inv.values["tpu-prefix"]; typed {
			line = append(line, "--tpu-prefix="+prefix)
		}
		line = append(append(line, "--"), words[1:]...)
		p.inv.refuse(&usageError{err: fmt.Errorf("multihost ssh takes one worker, but got %q too", words[1]),
			hint: "what is to run there comes after --: " + remote.CommandLine(line...)}, positional)
	}
	name := p.oneArgument("multihost ssh", "worker")
	only, wrong := tpu.ParsePattern(name)
	_, prefixed := s.typed["tpu-prefix"]
	slice := wrong != nil && s.hosts == nil && sliceName.MatchString(name)
	hint := hintOf(wrong)
	if login, rest, at := strings.Cut(name, "@"); at {
		hint = "the login is a flag: " + remote.CommandLine("multihost", "ssh", rest, "--user="+login)
	}
	switch {
	case slice && !prefixed:
		w.Prefix = name
		only, _ = tpu.ParsePattern("all")
		p.slicesOf(c)
	case slice && likelyWorkers(name) == "":
		p.inv.refuse(&usageError{err: wrong, hint: "of a slice of that name: multihost ssh s0w0 --tpu-prefix=" + name}, positional)
		p.slicesOf(c)
	default:
		if wrong != nil {
			p.inv.refuse(&usageError{err: wrong, hint: hint}, positional)
		}
		w = p.namedWorkers(s, c)
	}
	w.Only, w.Partial = only, c.Bool("allow-partial")
	return w
}

// likelyWorkers returns the workers that were probably meant by words that name none,
// such as s0w0 for w0; "" if that is not clear.
func likelyWorkers(words string) string {
	_, err := tpu.ParsePattern(words)
	var wrong *tpu.PatternError
	if !errors.As(err, &wrong) {
		return ""
	}
	return wrong.Likely
}

// meantWorker adds to an error about a slice that does not exist which worker its name
// may mean.
func meantWorker(name string, err error) error {
	var none *tpu.NoSlicesError
	likely := likelyWorkers(name)
	if !errors.As(err, &none) || none.Prefix != name || likely == "" || len(none.Present) == 0 {
		return err
	}
	return &noSliceError{error: err, hint: "slices here: " + strings.Join(none.Present, ", ") + "; a worker of one of them: multihost ssh " + likely + " --tpu-prefix=" + none.Present[0]}
}

// A noSliceError is an error about slices that do not exist, with a better hint.
type noSliceError struct {
	error
	hint string
}

func (e *noSliceError) Unwrap() error { return e.error }

// Hint returns what to type.
func (e *noSliceError) Hint() string { return e.hint }

// console returns the local side of a login: the terminal, or the standard streams.
func (p *program) console(ctx context.Context, s *session) (*job.Console, error) {
	in, out, ok := ui.CanHandOver(p.stdin, p.stdout)
	if !ok {
		screen, errs := s.view.Stdout(), s.view.Stderr()
		return &job.Console{Stdin: p.stdin, Stdout: screen, Stderr: errs, Close: func() error { return errors.Join(screen.Close(), errs.Close()) }}, nil
	}
	kind, _ := s.lookup("TERM")
	if kind == "" {
		kind = "dumb"
	}
	c, err := s.view.Console(ctx, in, out)
	if err != nil {
		return nil, fmt.Errorf("multihost ssh: %w", err)
	}
	return &job.Console{
		Terminal: &remote.Terminal{Type: kind, Size: c.Size, Resized: c.Resized()},
		Stdin:    c, Stdout: c, Stderr: c, Close: c.Close,
	}, nil
}
