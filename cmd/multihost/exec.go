package main

import (
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/internal/ops"
	"multihost/internal/options"
	"multihost/internal/ui"
)

func execCommand() *cli.Command {
	return command(cli.Command{
		Name:      "exec",
		Usage:     "run a quick command on workers and show equal outputs once",
		ArgsUsage: "[-- PROGRAM ARG…]",
		Description: `Runs the command on all workers at once, in the home directory of the login. It
copies no code, tunes nothing and frees no TPU. It shows equal outputs once. The
output that most workers have comes first. If another output is long, exec shows only
how it differs from the first one. For example:

  multihost exec --tpu-prefix=train -- uname -r
  s[0-1]w[0-2],s0w3 (7): 5.19.0-1030-gcp
  s1w3: 5.19.0-1022-gcp

--command is one bash script. Words after -- are run as they are, without a
shell. Standard output shows what the workers print there. Standard error shows
their standard error, and which workers ended with a status other than 0. The
output of a single worker is passed on byte for byte, as it comes. If an
output is very long, exec leaves out its middle and says so. With --log-dir it also
keeps the whole output in files.

The command on the workers ends when multihost exec ends: at Ctrl-C, at --timeout,
and when the connection or multihost itself dies. No process of the command stays.
The standard input of the command is empty.`,
		Flags: slices.Concat(options.WorkersFlags(), []cli.Flag{
			&cli.StringFlag{Name: "command", Aliases: []string{"COMMAND"}, Usage: "bash `SCRIPT` that the workers run; or give a program after --"},
			&cli.BoolFlag{Name: "sudo", Usage: "run the command as root"},
			&cli.DurationFlag{Name: "timeout", Usage: "stop the command after this `TIME`"},
			options.GraceFlag(),
			&cli.StringFlag{Name: "log-dir", Usage: "keep the whole output of each worker in the local `DIR`"},
		}, options.QuickFlags()),
		Action: withSession(func(s *session, c *call) error {
			o := options.Exec(&c.Call, s.hosts != nil)
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
			out, err := ops.Exec(c.Context, opsDeps(d), o)
			return outcome(out, withoutPipe(interruptible(c.Context, err)))
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitIO, exitTempFail, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}
