package main

import (
	"github.com/urfave/cli/v2"

	"multihost/internal/access"
	"multihost/internal/event"
	"multihost/internal/job"
	"multihost/internal/notify"
	"multihost/internal/options"
	"multihost/internal/plan"
	"multihost/internal/runs"
	"multihost/internal/stage"
	"multihost/internal/submit"
)

func jobCommand() *cli.Command {
	return command(cli.Command{
		Name:      "job",
		Usage:     "provision slices, run a command on them, delete them",
		ArgsUsage: "[-- PROGRAM ARG…]",
		Description: `Asks for slices, waits until every worker of every slice answers, does what
multihost run does, and deletes the slices. If something is billed after that, the
last lines of the job say so.

  multihost job --num-slices=2 --tpu-type=v5litepod-16 --command='bash train.sh'

Before it asks for slices, it prints one line: what it asks for, the list price
an hour, and what ends the bill. --confirm asks you then; a no ends the job with
status 130. If the slices of the job exist already, it neither prints nor asks.

MaxText's upper-case names work, too: multihost job --help=all lists them. If
you use one, the defaults are --NUM_SLICES=2 and --TPU_TYPE=v4-8, as in
multihost_job.py.

When slices are preempted or lost, or a host fails or is maintained, the job
waits for them, reboots them or makes them again. Then it starts the command
again on all workers as a new attempt (MULTIHOST_ATTEMPT), up to
--max-preemptions times; the command must go on from its own checkpoint. A
command that fails is started again only with --max-restarts. If a user deletes
the slices, the job does not make them again. If you type the same command line
with the same --run-name again, the job takes over what the earlier one left: the
slices, and the command if it still runs. If the earlier one was ended on this
machine after the command had succeeded, the job only deletes the slices.

If this machine dies, the workers delete the slices: 30 minutes (--lease) after
the command has ended, unless somebody attaches; 30 minutes (--lease) after
their boot, if no command was started; and in all cases when --ttl has passed
since the request. Their service account needs roles/tpu.admin for this; on
Compute Engine, it needs roles/compute.instanceAdmin.v1. If it lacks that role,
the job says so before the command starts.

--cqr-extra-args takes gcloud's flags of "queued-resources create" as one
string: --cqr-extra-args="--network=mtu9k --spot".

With --cluster (or --context, --kubeconfig) the job is a workload of a Kubernetes
cluster, which starts the command and restarts it; this machine only follows it.
--docker-image or --base-docker-image says what is in the pods (docs/gke.md).

With --detach and --bucket-name the job needs no runner: the workers fetch the
code from the bucket, start the command, write their logs to the bucket and
delete the slices when all have ended. docs/detached.md says which rights they
need.`,
		Flags: options.JobFlags(),
		Action: withSession(func(s *session, c *call) error {
			if options.IsClusterJob(c.Line) {
				return clusterJob(s, c)
			}
			o := options.Job(&c.Call, s.machine(c))
			why := s.chooseProvider(c, o.Request)
			s.makeOnly()
			runnerless := o.Run.Detach && c.String("bucket-name") != ""
			var do submit.DetachOptions
			var told notify.Options
			if runnerless {
				options.RefuseRunnerless(&c.Call)
				do = options.Detach(&c.Call, s.roots)
			} else {
				if _, typed := c.Typed["cloud-logging"]; typed {
					c.Refuse(usagef("--cloud-logging: it is for jobs without runner: add --detach and --bucket-name=BUCKET"), "cloud-logging")
				}
				told = s.notifyOptions(&c.Call, o.Run.Run, o.Run.Env)
			}
			d, err := asking(s, c)
			if err != nil {
				return err
			}
			if why != "" {
				s.view.Emit(event.Note{Level: event.Info, Text: why})
			}
			o.Request.Metadata = access.WithKey(o.Request.Metadata, d.Access.Login, publicKey(d.Access))
			d.Bucket, d.BucketDir = "", "" // the flags name the bucket of this job; d.Bucket is for existing jobs
			if runnerless {
				defer warnOfLeftovers(s, c, d, o.Request.ID)()
				if s.dryRun {
					return s.showPlan(c, func() (plan.Plan, error) { return submit.PlanDetach(c.Context, submitDeps(d), o, do) })
				}
				out, err := submit.Detach(c.Context, submitDeps(d), o, do)
				if err == nil && s.sim != nil {
					s.view.Emit(event.Note{Level: event.Info, Text: "the simulator ends with this command, and the workers with it: the job is followed to its end"})
					out, err = runs.Attach(c.Context, runsDeps(d), o.Run.Run, runs.AttachOptions{Grace: o.Run.Grace, Patience: o.Run.Patience, Watch: o.Run.Watch, Secret: c.lookup})
				}
				return outcome(out, err)
			}
			if c.String("bucket-name") != "" {
				s.view.Emit(event.Note{Level: event.Info, Text: "--bucket-name: nothing is uploaded to the bucket by an attached job; the logs come to this machine", Hint: "to have the job live without this machine, add --detach"})
			}
			onInterrupts(s, c, d)
			defer warnOfLeftovers(s, c, d, o.Request.ID)()
			if s.dryRun {
				return s.showPlan(c, func() (plan.Plan, error) { return job.PlanJob(c.Context, jobDeps(d), o) })
			}
			return notified(c, told, d, func() (stage.Outcome, error) { return job.Job(c.Context, jobDeps(d), o) })
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitIO, exitTempFail, exitPreflight, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}
