package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/event"
	"multihost/internal/hosts"
	"multihost/internal/options"
	"multihost/internal/preflight"
	"multihost/internal/runs"
	"multihost/internal/settings"
	"multihost/internal/ui"
	"multihost/internal/workers"
	"multihost/internal/workloadrun"
)

func psCommand() *cli.Command {
	return command(cli.Command{
		Name:  "ps",
		Usage: "list the runs on the slices",
		Description: `Lists the runs that are active on the slices, whichever machine started them, and
marks the runs that no command follows. For this it asks worker 0 of every ready
slice. From the API it learns which jobs wait for slices, boot, or have ended and
keep their slices. If no command follows a job, it says when the slices of the job
are deleted.

` + pricesHelp,
		Flags: slices.Concat(options.HostFlags(), options.BucketFlags(), []cli.Flag{
			options.PrefixFlag(), options.SlicesFlag(),
			&cli.BoolFlag{Name: "all", Usage: "show runs that have ended too"},
		}, options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			c.NoWords()
			numbers := options.Slices(&c.Call)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			rd := runsDeps(d)
			rd.Workloads = s.workloads()
			return interruptible(c.Context, runs.List(c.Context, rd, c.String("tpu-prefix"), numbers, c.Bool("all")))
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func attachCommand() *cli.Command {
	return command(cli.Command{
		Name:      "attach",
		Usage:     "follow a run to its end, from where its local logs end",
		ArgsUsage: "RUN",
		Description: `Ends with the exit status of the run. On a terminal Ctrl-C asks what to do; elsewhere it leaves
the run going.`,
		Flags: slices.Concat(options.HostFlags(), options.BucketFlags(), []cli.Flag{
			options.PrefixFlag(), options.GraceFlag(), options.InterruptFlag("detach"),
			&cli.StringFlag{Name: "stream", Value: "first", Usage: "first, all or none: whose output is shown (`WHO`)"},
			options.TimestampsFlag(),
			&cli.BoolFlag{Name: "strict-exit", Usage: "fail if any worker ends with an error, even after worker 0 has succeeded"},
		}, options.FlagsOf(options.WatchingOptions()), options.FlagsOf(options.PatienceOptions()), options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			name := options.RunWord(&c.Call)
			o := options.Attach(&c.Call, c.lookup)
			if w, err := s.workloadRun(c, name); err != nil || w != nil {
				if err == nil {
					onInterrupts(s, c, &deps{Reach: &workers.Reach{Invocation: w.Of}, Keeper: w.Keeper})
					err = outcome(workloadrun.Follow(c.Context, *w, name, workloadrun.Options{}))
				}
				return err
			}
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			onInterrupts(s, c, d)
			return outcome(runs.Attach(c.Context, runsDeps(d), name, o))
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitIO, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

func stopCommand() *cli.Command {
	return command(cli.Command{
		Name:      "stop",
		Usage:     "end a run on every worker and check that none of its processes is left",
		ArgsUsage: "RUN",
		Description: `Sends TERM to every process of the run, KILL after --grace, and ends when none is
left. It may be repeated. Of a job, stop also deletes the slices with their request
in two cases: the command has not begun, or it has ended and the slices are kept. On
a terminal it asks before it deletes kept slices, and names logs that are not whole
on this machine. Without a terminal, slices with such logs stay.`,
		Flags: slices.Concat(options.HostFlags(), options.BucketFlags(), []cli.Flag{options.PrefixFlag(), options.GraceFlag()}, options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			name := options.RunWord(&c.Call)
			if w, err := s.workloadRun(c, name); err != nil || w != nil {
				if err == nil {
					err = interruptible(c.Context, workloadrun.Stop(c.Context, *w, name))
				}
				return err
			}
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			o := runs.StopOptions{Prefix: c.String("tpu-prefix"), Grace: c.Duration("grace")}
			if canConfirm(c, s.view) {
				o.Confirm = func(ctx context.Context, question string) error { return confirm(ctx, c, s.view, question) }
			}
			return interruptible(c.Context, runs.Stop(c.Context, runsDeps(d), name, o))
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig, exitInterrupt)
}

func preflightCommand() *cli.Command {
	sub := func(name, usage string, check bool) *cli.Command {
		return command(cli.Command{
			Name: name, Usage: usage,
			Flags:  options.PreflightFlags(),
			Action: withSession(func(s *session, c *call) error { return runPreflight(s, c, check) }),
		}, exitOK, exitUsage, exitUnavailable, exitPreflight, exitPermission, exitConfig)
	}
	return command(cli.Command{
		Name:      "preflight",
		Usage:     "tune or check the network settings of the workers, or print the script that does it",
		ArgsUsage: "[PLATFORM=gce|gke]",
		Description: `multihost preflight PLATFORM=GCE --tpu-prefix=P does the same as
multihost preflight apply --platform=gce --tpu-prefix=P.
Settings are not persistent: they are gone when a worker reboots.`,
		Flags: options.PreflightFlags(),
		Subcommands: []*cli.Command{
			sub("apply", "bring every setting to the wanted value", false),
			sub("check", "read every setting, change nothing", true),
			command(cli.Command{
				Name: "print", Usage: "print the script that applies the settings on a worker or in a pod",
				Description: `With --platform=gke the script is for the container of a TPU pod, which multihost
cannot reach. The first lines of the script say what the container needs. When the
script runs, it says what the container lacks (docs/gke.md).

  multihost preflight print --platform=gke > preflight.sh
  bash preflight.sh PLATFORM=GKE && python3 train.py

With --tpu=no the script expects no TPU: it ends with 0 on CPU and GPU hosts. Its
argument TPU=no does the same.`,
				Flags: []cli.Flag{options.PlatformFlag(), &cli.StringFlag{Name: "tpu", Value: "yes", Usage: "yes or no: whether a `TPU` is expected where the script runs"}},
				Action: act(func(c *call) error {
					on := options.Platform(&c.Call, c.String("platform"), "platform")
					o := preflight.Options{Platform: on}
					switch tpu := c.String("tpu"); strings.ToLower(tpu) {
					case "yes":
					case "no":
						o.ExpectChips = preflight.NoDevices
					default:
						c.Refuse(usagef("--tpu=%q: want yes or no", tpu), "tpu")
					}
					if err := ready(c); err != nil {
						return err
					}
					script := preflight.Print(o)
					return show(c, event.Result{Name: "preflight_script", Text: script, Data: preflightScript{string(on), script}})
				}),
			}, exitOK, exitUsage),
		},
		Action: withSession(func(s *session, c *call) error { return runPreflight(s, c, false) }),
	}, exitOK, exitUsage, exitUnavailable, exitPreflight, exitPermission, exitConfig)
}

type preflightScript struct {
	Platform string `json:"platform"`
	Script   string `json:"script"`
}

func runPreflight(s *session, c *call, check bool) error {
	on := options.Platform(&c.Call, c.String("platform"), "platform")
	for _, word := range c.Words {
		if value, ok := options.CutPlatform(word); ok {
			on = options.Platform(&c.Call, value, cmdline.Word)
		} else {
			c.Refuse(usagef("multihost preflight: %q is no command and not PLATFORM=gce or PLATFORM=gke", word), cmdline.Word)
		}
	}
	numbers := options.Slices(&c.Call)
	prefix := c.String("tpu-prefix")
	if s.hosts != nil {
		prefix = hosts.HostsPrefix
	}
	if prefix == "" {
		c.Refuse(&usageError{Err: fmt.Errorf("which slices? --tpu-prefix is missing"), Advice: "add --tpu-prefix=NAME; multihost slices list shows what is there"})
	}
	d, err := s.workers(c)
	if err != nil {
		return err
	}
	return interruptible(c.Context, settings.Preflight(c.Context, settingsDeps(d), prefix, c.Bool("allow-partial"), settings.Options{
		Check: check, Require: c.Bool("require"), Platform: on, Install: c.Bool("install"), Slices: numbers,
	}))
}

// withoutPipe drops the error of a closed pipe: its reader needs no more output.
func withoutPipe(err error) error {
	if ui.IsClosedPipe(err) {
		return nil
	}
	return err
}
