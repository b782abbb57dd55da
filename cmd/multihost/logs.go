package main

import (
	"errors"
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/internal/logs"
	"multihost/internal/options"
	"multihost/internal/runs"
	"multihost/internal/ui"
	"multihost/internal/workloadrun"
)

func logsCommand() *cli.Command {
	return command(cli.Command{
		Name:      "logs",
		Usage:     "print the log of one worker of a run, or of all",
		ArgsUsage: "RUN",
		Description: `Prints the bytes that the command wrote on one worker. They come from the copy on
this machine if it is whole, otherwise from the worker or the bucket.

  multihost logs my-run --first-failure --tail=50
  multihost logs my-run --all --since=10m --timestamps

The time of a line is when it arrived on this machine, to the second: run, job and
attach keep it beside the logs while they follow. For any other line, logs shows
the time at which it fetched the line, and says so. --all sorts the lines of all
workers by these times. Lines with the same time are in the order of the workers.`,
		Flags: slices.Concat(options.HostFlags(), options.BucketFlags(), []cli.Flag{
			options.PrefixFlag(),
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the run ends"},
			&cli.StringFlag{Name: "worker", Value: "s0w0", Usage: "`WORKER` whose log to print"},
			&cli.BoolFlag{Name: "all", Usage: "print the logs of all workers merged, each line with its worker"},
			&cli.BoolFlag{Name: "first-failure", Usage: "print the log of the worker that failed first"},
			&cli.IntFlag{Name: "tail", Usage: "print only the last `N` lines (with --all: of each worker); default: all"},
			&cli.StringFlag{Name: "since", Usage: "print only lines that arrived here since `TIME`: a duration such as 10m, or a time such as 15:04, 2006-01-02 or 2006-01-02T15:04:05Z"},
			&cli.BoolFlag{Name: "timestamps", Usage: "begin each line with the time at which it arrived here"},
			&cli.IntFlag{Name: "attempt", Usage: "`NUMBER` of the attempt; default: the newest"},
			&cli.DurationFlag{Name: "lost-timeout", Usage: "longest `TIME` that the worker may be unreachable with --follow; default: no limit"},
			&cli.BoolFlag{Name: "verify", Usage: "print no log; compare this machine's copies with the workers' by digest"},
		}, options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			name := options.RunWord(&c.Call)
			o := options.Logs(&c.Call, s.view.Mode() == ui.JSON)
			d, err := s.access(c)
			if err != nil {
				return err
			}
			if c.Bool("verify") {
				if err := s.login(c, d); err != nil {
					return err
				}
				return interruptible(c.Context, runs.Verify(c.Context, runsDeps(d), name, c.String("tpu-prefix")))
			}
			show := ui.LogsOptions{Times: o.Times}
			if o.All {
				show.Tags = logs.RecordedIDs(s.stateDir, name)
			}
			out := s.view.Logs(show)
			whole, err := logs.LocalLog(c.Context, runsDeps(d), name, o, out)
			var run *workloadrun.Deps
			if !whole && err == nil {
				run, err = s.workloadRun(c, name)
			}
			if run != nil && err == nil {
				err = workloadrun.Logs(c.Context, *run, name, o, out)
			} else if !whole && err == nil {
				if err = s.login(c, d); err == nil {
					err = logs.Logs(c.Context, runsDeps(d), name, c.String("tpu-prefix"), o, out)
				}
			}
			return withoutPipe(errors.Join(interruptible(c.Context, err), out.Close()))
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig, exitInterrupt)
}
