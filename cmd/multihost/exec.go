package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/remote"
	"multihost/internal/tpu"
	"multihost/internal/ui"
)

// workersFlags select some of the workers of the slices.
func workersFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "workers", Usage: "only the workers that `PATTERN` names: s0w3, s0w*, s[0-1]w[0-3], separated by commas; default: all"},
		&cli.StringFlag{Name: "exclude-workers", Usage: "leave out the workers that `PATTERN` names"},
	}
}

// quickFlags are the flags of commands whose user waits for the result: --connect-timeout
// is 30 seconds.
func quickFlags() []cli.Flag {
	ssh := sshFlags()
	for _, f := range ssh {
		if d, ok := f.(*cli.DurationFlag); ok && d.Name == "connect-timeout" {
			d.Value = 30 * time.Second
		}
	}
	return flags(selectFlags(), hostFlags(), ssh)
}

// namedWorkers reads which slices or hosts the command works on.
func (p *program) namedWorkers(s *session, c *cli.Context) (w job.Workers) {
	w.Prefix, w.Slices, w.Partial = c.String("tpu-prefix"), p.slicesOf(c), c.Bool("allow-partial")
	switch {
	case s.hosts != nil && w.Prefix != "":
		p.inv.refuse(usagef("give either --tpu-prefix or --hosts, not both"), "tpu-prefix", "hosts", "hosts-file")
	case s.hosts != nil:
		w.Prefix = job.HostsPrefix
	case w.Prefix == "":
		p.inv.refuse(&usageError{err: errors.New("which slices? --tpu-prefix is missing"), hint: "add --tpu-prefix=NAME; multihost qr list shows what is there; machines without a cloud are named with --hosts"})
	}
	return w
}

func (p *program) parsePattern(c *cli.Context, flag string) tpu.Pattern {
	text := c.String(flag)
	if text == "" {
		return tpu.Pattern{}
	}
	pattern, err := tpu.ParsePattern(text)
	if err != nil {
		p.inv.refuse(&usageError{err: fmt.Errorf("--%s: %w", flag, err), hint: hintOf(err)}, flag)
	}
	return pattern
}

func (p *program) execCommand() *cli.Command {
	return command(cli.Command{
		Name:      "exec",
		Usage:     "run a quick command on workers and show equal outputs once",
		ArgsUsage: "[-- PROGRAM ARG…]",
		Description: `Runs the command on all workers at once, in the home directory of the login. It
copies no code, tunes nothing and frees no TPU. Equal outputs are shown once,
those of most workers first. Of the other outputs it shows what differs:

  multihost exec --tpu-prefix=train -- uname -r
  s[0-1]w[0-2],s0w3 (7): 5.19.0-1030-gcp
  s1w3: 5.19.0-1022-gcp

--command is one bash script. Words after -- are run as they are, without a
shell. Standard output shows what the workers print there. Standard error shows
their standard error, and which workers ended with another status than 0. The
output of a single worker is passed on byte for byte, as it comes. A very long
output loses its middle, with a note; --log-dir keeps all of it.

The command does not outlive this one: at Ctrl-C, at --timeout, and when the
connection or this program dies, nothing of it stays on the workers. Its
standard input is empty.`,
		Flags: flags(workersFlags(), []cli.Flag{
			&cli.StringFlag{Name: "command", Aliases: []string{"COMMAND"}, Usage: "bash `SCRIPT` that the workers run; or give a program after --"},
			&cli.BoolFlag{Name: "sudo", Usage: "run it as root"},
			&cli.DurationFlag{Name: "timeout", Usage: "stop the command after this `TIME`"},
			graceFlag(),
			&cli.StringFlag{Name: "log-dir", Usage: "keep the whole output of each worker in the local `DIR`"},
		}, quickFlags()),
		Action: p.withSession(func(s *session, c *cli.Context) error {
			o := p.execOptions(s, c)
			d, err := s.workers(p, c)
			if err != nil {
				return err
			}
			if s.view.Mode() != ui.JSON {
				out, errs := s.view.Stdout(), s.view.Stderr()
				defer out.Close()
				defer errs.Close()
				o.Stdout, o.Stderr = out, errs
			}
			out, err := d.Exec(c.Context, o)
			return outcome(out, withoutPipe(interruptible(c.Context, err)))
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitIO, exitTempFail, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

func (p *program) execOptions(s *session, c *cli.Context) job.ExecOptions {
	if len(p.inv.positionals) > 0 {
		word := p.inv.positionals[0]
		err := p.strayWord(word)
		if _, is := tpu.ParsePattern(word); is == nil {
			err = &usageError{err: err, hint: "to choose workers: " + remote.CommandLine("--workers="+word)}
		}
		p.inv.refuse(err, positional)
	}
	o := job.ExecOptions{Argv: p.inv.argv, Sudo: c.Bool("sudo"), Grace: c.Duration("grace"), Timeout: c.Duration("timeout"), LogDir: c.String("log-dir")}
	script := c.String("command")
	switch {
	case p.refuseCommand(script):
	case script != "":
		o.Argv = []string{"bash", "-c", script}
	}
	for _, word := range o.Argv {
		if len(word) >= launch.LongestWord {
			p.inv.refuse(usagef("a word of the command has %d bytes, Linux takes %d; multihost cp brings longer scripts", len(word), launch.LongestWord-1), "command", dashes)
		}
	}
	p.inv.notNegative(c, "timeout", "grace")
	o.Workers = p.namedWorkers(s, c)
	o.Only, o.Except = p.parsePattern(c, "workers"), p.parsePattern(c, "exclude-workers")
	return o
}

// refuseCommand refuses a command line that has nothing to run, or both a script and
// words after --, and reports whether it did. script is the value of --command.
func (p *program) refuseCommand(script string) bool {
	var err error
	switch argv := p.inv.argv; {
	case strings.TrimSpace(script) == "" && len(argv) == 0, len(argv) > 0 && argv[0] == "":
		err = &usageError{err: errors.New("nothing to run"), hint: "add --command='SCRIPT', or -- PROGRAM ARG…"}
	case script != "" && len(argv) > 0:
		err = usagef("give either --command or words after --, not both")
	}
	p.inv.refuse(err, "command", dashes)
	return err != nil
}
