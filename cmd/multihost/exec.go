package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/hosts"
	"multihost/internal/launch"
	"multihost/internal/ops"
	"multihost/internal/remote"
	"multihost/internal/tpu"
	"multihost/internal/ui"
	"multihost/internal/workers"
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
	return slices.Concat(selectFlags(), hostFlags(), ssh)
}

// namedWorkers reads which slices or hosts the command works on.
func namedWorkers(c *Call, onHosts bool) (w workers.Workers) {
	w.Prefix, w.Slices, w.Partial = c.String("tpu-prefix"), slicesOf(c), c.Bool("allow-partial")
	switch {
	case onHosts && w.Prefix != "":
		c.Refuse(cmdline.Usagef("give either --tpu-prefix or --hosts, not both"), "tpu-prefix", "hosts", "hosts-file")
	case onHosts:
		w.Prefix = hosts.HostsPrefix
	case w.Prefix == "":
		c.Refuse(&cmdline.UsageError{Err: errors.New("which slices? --tpu-prefix is missing"), Advice: "add --tpu-prefix=NAME; multihost qr list shows what is there; machines without a cloud are named with --hosts"})
	}
	return w
}

func parsePattern(c *Call, flag string) tpu.Pattern {
	text := c.String(flag)
	if text == "" {
		return tpu.Pattern{}
	}
	pattern, err := tpu.ParsePattern(text)
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--%s: %w", flag, err)}, flag)
	}
	return pattern
}

func execCommand() *cli.Command {
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
		Flags: slices.Concat(workersFlags(), []cli.Flag{
			&cli.StringFlag{Name: "command", Aliases: []string{"COMMAND"}, Usage: "bash `SCRIPT` that the workers run; or give a program after --"},
			&cli.BoolFlag{Name: "sudo", Usage: "run it as root"},
			&cli.DurationFlag{Name: "timeout", Usage: "stop the command after this `TIME`"},
			graceFlag(),
			&cli.StringFlag{Name: "log-dir", Usage: "keep the whole output of each worker in the local `DIR`"},
		}, quickFlags()),
		Action: withSession(func(s *session, c *call) error {
			o := execOptions(&c.Call, s.hosts != nil)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			if s.view.Mode() != ui.JSON {
				out, errs := s.view.Stdout(), s.view.Stderr()
				defer out.Close()
				defer errs.Close()
				o.Stdout, o.Stderr = out, errs
			}
			out, err := ops.Exec(c.Context, d, o)
			return outcome(out, withoutPipe(interruptible(c.Context, err)))
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitIO, exitTempFail, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

func execOptions(c *Call, onHosts bool) ops.ExecOptions {
	if len(c.Words) > 0 {
		word := c.Words[0]
		err := strayWord(c, word)
		if _, is := tpu.ParsePattern(word); is == nil {
			err = &cmdline.UsageError{Err: err, Advice: "to choose workers: " + remote.CommandLine("--workers="+word)}
		}
		c.Refuse(err, cmdline.Word)
	}
	o := ops.ExecOptions{Argv: c.Argv, Sudo: c.Bool("sudo"), Grace: c.Duration("grace"), Timeout: c.Duration("timeout"), LogDir: c.String("log-dir")}
	script := c.String("command")
	switch {
	case refuseCommand(c, script):
	case script != "":
		o.Argv = []string{"bash", "-c", script}
	}
	for _, word := range o.Argv {
		if len(word) >= launch.LongestWord {
			c.Refuse(cmdline.Usagef("a word of the command has %d bytes, Linux takes %d; multihost cp brings longer scripts", len(word), launch.LongestWord-1), "command", cmdline.Dashes)
		}
	}
	c.NotNegative(c, "timeout", "grace")
	o.Workers = namedWorkers(c, onHosts)
	o.Only, o.Except = parsePattern(c, "workers"), parsePattern(c, "exclude-workers")
	return o
}

// refuseCommand refuses a command line that has nothing to run, or both a script and
// words after --, and reports whether it did. script is the value of --command.
func refuseCommand(c *Call, script string) bool {
	var err error
	switch argv := c.Argv; {
	case strings.TrimSpace(script) == "" && len(argv) == 0, len(argv) > 0 && argv[0] == "":
		err = &cmdline.UsageError{Err: errors.New("nothing to run"), Advice: "add --command='SCRIPT', or -- PROGRAM ARG…"}
	case script != "" && len(argv) > 0:
		err = cmdline.Usagef("give either --command or words after --, not both")
	}
	c.Refuse(err, "command", cmdline.Dashes)
	return err != nil
}
