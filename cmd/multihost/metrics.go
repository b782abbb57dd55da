package main

import (
	"errors"
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/metrics"
	"multihost/internal/ops"
	"multihost/internal/options"
	"multihost/internal/training"
)

// trainingView limits how many points of the history --output=json, --output=csv and pages
// show.
var trainingView = metrics.View{Points: 256, WorkerPoints: 64}

func metricsCommand() *cli.Command {
	return command(cli.Command{
		Name:      "metrics",
		Usage:     "show how fast a run trains: step time, TFLOP/s, MFU, loss, who lags",
		ArgsUsage: "[RUN]",
		Description: `Reads the training steps from the logs that this machine has of the run. It asks
neither the workers nor the cloud. It knows the step lines of MaxText; give
--metrics-regex for others.

  multihost metrics my-run
  multihost metrics my-run --compare=v5e/32b --fail-below=0.95
  multihost metrics --log-dir=/tmp/2023-02-01 --tpu-type=v5litepod-256

--compare puts the run beside what MaxText published for a model on as many
slices: v4/22b, v4/52b, v5e/16b to 128b, v5p/32b to 1024b.`,
		Flags: slices.Concat(options.TrainingFlags(), []cli.Flag{
			&cli.StringFlag{Name: "output", Value: "table", Usage: "table, json or csv: `FORMAT` of stdout; csv and json have the figures over the steps"},
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "continue until the run ends; needs another command that follows the run on this machine"},
			&cli.BoolFlag{Name: "workers", Usage: "list every worker, also when there are many"},
			&cli.Float64Flag{Name: "fail-below", Usage: "end with status 1 if the run is below this `RATIO` of the published TFLOP/s, or cannot be compared"},
			&cli.IntFlag{Name: "attempt", Usage: "read only the attempt with this `NUMBER`; default: all"},
		}),
		Action: act(showMetrics),
	}, exitOK, exitBelow, exitUsage, exitUnavailable, exitIO, exitInterrupt)
}

// exitBelow is the exit status of a run that is slower than --fail-below allows.
const exitBelow = exitFindings

func showMetrics(c *call) error {
	if c.IsSet("fail-below") && c.String("compare") == "" {
		c.Refuse(&usageError{Err: errors.New("--fail-below needs the figures to compare with"), Advice: "add --compare=NAME, such as --compare=v5e/32b"}, "fail-below")
	}
	if c.Bool("follow") && c.String("output") == "csv" {
		c.Refuse(usagef("--follow and --output=csv: a table of figures over the steps is whole only at the end"), "follow", "output")
	}
	name, stateDir, o := options.Training(&c.Call, config.StateDir(c.lookup, c.home))
	if err := ready(c); err != nil {
		return err
	}
	o.Attempt = c.Int("attempt")
	t, err := training.OpenTraining(stateDir, name, o)
	if err != nil {
		return err
	}
	if _, err := t.Update(); err != nil {
		return err
	}
	view := newView(c)
	defer view.Close()
	if c.Bool("follow") {
		if err := t.Follow(c.Context, gcp.SystemClock, view, name); err != nil {
			return interruptible(c.Context, err)
		}
	}
	d := t.Document(trainingView, gcp.SystemClock.Now())
	if c.String("output") == "csv" {
		return withoutPipe(d.CSV(view.Stdout()))
	}
	view.Emit(event.Result{Name: "metrics", Text: d.Text(c.Bool("workers")), Data: d})
	return below(c, view, &d)
}

// below returns the error of --fail-below if the run is too slow or nothing can be
// compared.
func below(c *call, sink event.Sink, d *metrics.Document) error {
	if !c.IsSet("fail-below") {
		return nil
	}
	if why := d.Below(c.Float64("fail-below")); why != "" {
		event.Notef(sink, event.Warn, "", "%s", why)
		return &statusError{exitBelow}
	}
	return nil
}

func dumpCommand() *cli.Command {
	return command(cli.Command{
		Name:      "dump",
		Usage:     "show where the processes of a run stand, on every worker",
		ArgsUsage: "RUN",
		Description: `Collects the stacks of an active run from all workers, keeps them beside its logs
and shows equal stacks once. The stack that the fewest workers have comes first.
The run goes on.

If a worker has py-spy (pip install py-spy), py-spy reads the stacks of its Python
processes. Otherwise multihost sends SIGUSR1 to each process that catches it, and
collects what the process prints. A Python program prints its stacks at that signal
if it has called faulthandler.register(signal.SIGUSR1). Of every other process
you see only what its threads wait for.`,
		Flags: slices.Concat(options.HostFlags(), []cli.Flag{options.PrefixFlag()}, options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			name := options.RunWord(&c.Call)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			return interruptible(c.Context, ops.Dump(c.Context, runsDeps(d), name, c.String("tpu-prefix")))
		}),
	}, exitOK, exitUsage, exitUnavailable, exitIO, exitPermission, exitConfig, exitInterrupt)
}
