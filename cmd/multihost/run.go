package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"multihost/internal/event"
	"multihost/internal/job"
	"multihost/internal/options"
	"multihost/internal/plan"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

func runCommand() *cli.Command {
	return command(cli.Command{
		Name:      "run",
		Usage:     "run a command on every worker of slices that exist",
		ArgsUsage: "[-- PROGRAM ARG…]",
		Description: `Ships the current directory to every worker of the slices, tunes the workers'
network, frees the TPU, starts the command on all workers at once and follows
it to its end. Nothing starts anywhere before every worker is ready.

  multihost run --tpu-prefix=train --command='bash setup.sh && python3 train.py'
  multihost run --tpu-prefix=train -- python3 train.py --steps=100

--command is one bash script. Words after -- are run as they are, without a
shell.

MaxText's upper-case names work, too: multihost run --help=all lists them.

The environment of the command has MULTIHOST_RUN, MULTIHOST_ATTEMPT,
MULTIHOST_SLICE_ID, MULTIHOST_NUM_SLICES, MULTIHOST_WORKER_ID,
MULTIHOST_NUM_WORKERS (of its slice), MULTIHOST_PROCESS_ID,
MULTIHOST_NUM_PROCESSES, MULTIHOST_WORKER_IP and MULTIHOST_COORDINATOR_IP.

When the command fails, --max-restarts lets multihost start it again on the same
slices. The same applies when a worker is lost and its slice comes back. If the
slices are taken away, the run ends; multihost job would make new slices.

On a terminal, Ctrl-C asks whether to stop the command or to leave it running.
Without a terminal, Ctrl-C stops the command on every worker, and multihost checks
that no process of it is left; a second Ctrl-C ends multihost at once. If you close
the terminal, the command goes on: see multihost attach.`,
		Flags: options.RunFlags(),
		Action: withSession(func(s *session, c *call) error {
			o := options.Run(&c.Call, s.machine(c), s.hosts != nil)
			told := s.notifyOptions(&c.Call, o.Run, o.Env)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			onInterrupts(s, c, d)
			defer warnOfLeftovers(s, c, d, o.Prefix)()
			if s.dryRun {
				return s.showPlan(c, func() (plan.Plan, error) { return job.PlanRun(c.Context, jobDeps(d), o) })
			}
			return notified(c, told, d, func() (stage.Outcome, error) { return job.Run(c.Context, jobDeps(d), o) })
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitIO, exitTempFail, exitPreflight, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

// showPlan shows the plan of a dry run.
func (s *session) showPlan(c *call, plan func() (plan.Plan, error)) error {
	made, err := plan()
	return s.showResult(c, "plan", made, err)
}

// showResult shows what a call has returned, or returns the error of the call. data.String is
// the text for people.
func (s *session) showResult(c *call, name string, data fmt.Stringer, err error) error {
	if err != nil {
		return interruptible(c.Context, err)
	}
	s.view.Emit(event.Result{Name: name, Text: data.String(), Data: data})
	return nil
}

// withSession returns the action of a command that needs a session.
func withSession(action func(s *session, c *call) error) cli.ActionFunc {
	return act(func(c *call) error {
		s, err := open(c)
		if err != nil {
			return err
		}
		defer s.close()
		return withSimSlices(c, withPods(s, action(s, c)))
	})
}

// withPods adds a hint to an error about missing slices of a cluster: how to make some.
func withPods(s *session, err error) error {
	var none *tpu.NoSlicesError
	if s.held == nil || !errors.As(err, &none) || len(none.Present) > 0 {
		return err
	}
	return &options.NoSliceError{Err: err, Advice: "there are none in " + s.where() + "; make some with: multihost slices create " + none.Prefix + " --tpu-type=TYPE --node-count=2 " + s.held.Flags}
}

// withSimSlices adds a hint to an error about missing slices: how to start a simulator that
// has some.
func withSimSlices(c *call, err error) error {
	var none *tpu.NoSlicesError
	if !c.Bool("sim") || !errors.As(err, &none) || len(none.Present) > 0 {
		return err
	}
	return &options.NoSliceError{Err: err, Advice: "--sim starts a simulator without slices; give it some with: --sim-slices=" + none.Prefix + ":1xv5litepod-16"}
}

// outcome turns the result of a run into the error that sets the exit status.
func outcome(out stage.Outcome, err error) error {
	if status := out.Status(); err == nil && status != 0 {
		return &statusError{status}
	}
	return err
}

// deletes returns the error of a command that deletes a resource. If the command was
// interrupted, the error says that the resource may still exist. name is what messages call
// the resource. again is the command that continues the deletion.
func deletes(ctx context.Context, err error, name, again string) error {
	if err != nil && ctx.Err() != nil {
		err = &stage.Error{Stage: stage.Teardown, Err: context.Cause(ctx), Text: name + " may still exist and be billed", Advice: "go on with: " + again}
	}
	return interruptible(ctx, err)
}

// interruptible returns the error of a wait. If the wait failed and ctx has ended, it returns
// the cause of ctx instead. It joins a *stage.Error to that cause.
func interruptible(ctx context.Context, err error) error {
	var told *stage.Error
	if err == nil || ctx.Err() == nil {
		return err
	}
	if errors.As(err, &told) {
		return errors.Join(context.Cause(ctx), err)
	}
	return context.Cause(ctx)
}
