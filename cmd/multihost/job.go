package main

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/network"
	"multihost/internal/notify"
	"multihost/internal/preflight"
	"multihost/internal/runs"
	"multihost/internal/stage"
	"multihost/internal/submit"
)

func jobCommand() *cli.Command {
	return command(cli.Command{
		Name:      "job",
		Usage:     "provision slices, run a command on them, delete them",
		ArgsUsage: "[-- PROGRAM ARG…]",
		Description: `Asks for a queued resource, waits until every worker of every slice answers,
does what multihost run does, and deletes the slices. If something is billed
after that, the last lines of the job say so.

  multihost job --num-slices=2 --tpu-type=v5litepod-16 --command='bash train.sh'

Before it asks for slices, it prints one line: what it asks for, the list price
an hour, and what ends the bill. --confirm asks you then; a no ends the job with
status 130. A job that uses slices which exist does neither.

MaxText's upper-case names work, too: multihost job --help=all lists them. If
you use one, --NUM_SLICES is 2 and --TPU_TYPE is v4-8 unless you set them, as in
multihost_job.py.

When slices are preempted or lost, or a host fails or is maintained, the job
waits for them, reboots them or makes them again. Then it starts the command
again on all workers as a new attempt (MULTIHOST_ATTEMPT), up to
--max-preemptions times; the command must go on from its own checkpoint. A
command that fails is started again only with --max-restarts. If a user deletes
the slices, the job does not make them again. If you type the same command line
with the same --run-name again, the job takes over what the earlier one left: the
slices, and the command if it still runs.

If this machine dies, the workers delete the slices: 30 minutes (--lease) after
the command has ended, unless somebody attaches; 30 minutes (--lease) after
their boot, if no command was started; and in all cases when --ttl has passed
since the request. Their service account needs roles/tpu.admin for this. If it
lacks that role, the job says so before the command starts.

--cqr-extra-args takes gcloud's flags of "queued-resources create" as one
string: --cqr-extra-args="--network=mtu9k --spot".

With --detach and --bucket-name the job needs no runner: the workers fetch the
code from the bucket, start the command, write their logs to the bucket and
delete the slices when all have ended. docs/detached.md says which rights they
need.`,
		Flags: jobFlags(),
		Action: withSession(func(s *session, c *call) error {
			o := jobOptions(&c.Call, s.machine(c))
			runnerless := o.Run.Detach && c.String("bucket-name") != ""
			var do submit.DetachOptions
			var told notify.Options
			if runnerless {
				refuseRunnerless(&c.Call)
				do = detachOptions(&c.Call, s.roots)
			} else {
				if _, typed := c.Typed["cloud-logging"]; typed {
					c.Refuse(usagef("--cloud-logging: it is for jobs without runner: add --detach and --bucket-name=BUCKET"), "cloud-logging")
				}
				told = s.notifyOptions(&c.Call, o.Run.Run, o.Run.Env)
			}
			refuseConfirm(s, c)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			confirms(s, c, d)
			o.Request.Metadata = withKey(o.Request.Metadata, d.Access.Login, publicKey(d.Access))
			d.Bucket, d.BucketDir = "", "" // the flags name the bucket for this job, not the bucket of an existing one
			if runnerless {
				defer warnOfLeftovers(s, c, d, o.Request.ID)()
				if s.dryRun {
					return s.showPlan(c, func() (job.Plan, error) { return submit.PlanDetach(c.Context, d, o, do) })
				}
				out, err := submit.Detach(c.Context, d, o, do)
				if err == nil && s.sim != nil {
					s.view.Emit(event.Note{Level: event.Info, Text: "the simulator ends with this command, and the workers with it: the job is followed to its end"})
					out, err = runs.Attach(c.Context, d, o.Run.Run, runs.AttachOptions{Grace: o.Run.Grace, Patience: o.Run.Patience, Watch: o.Run.Watch, Secret: c.lookup})
				}
				return outcome(out, err)
			}
			if c.String("bucket-name") != "" {
				s.view.Emit(event.Note{Level: event.Info, Text: "--bucket-name: nothing is uploaded to the bucket by an attached job; the logs come to this machine", Hint: "to have the job live without this machine, add --detach"})
			}
			onInterrupts(s, c, d)
			defer warnOfLeftovers(s, c, d, o.Request.ID)()
			if s.dryRun {
				return s.showPlan(c, func() (job.Plan, error) { return job.PlanJob(c.Context, d, o) })
			}
			return notified(c, told, d, func() (stage.Outcome, error) { return job.Job(c.Context, d, o) })
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitIO, exitTempFail, exitPreflight, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

// jobFlags returns the flags of job. The run names the slices: job has no flags for that.
func jobFlags() []cli.Flag {
	own := flagsOf(ownJobOptions())
	all := requestFlags(own...)
	rest := slices.Concat(all, flagsOf(jobRows()[len(own):]))
	return slices.DeleteFunc(rest, func(f cli.Flag) bool { return slices.Contains([]string{"node-prefix", "node-id"}, f.Names()[0]) })
}

// bucketFlags name the bucket of a job without runner that was started elsewhere.
func bucketFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "bucket-name", Usage: "`BUCKET` of a job without runner that another machine started"},
		&cli.StringFlag{Name: "bucket-dir", Usage: "`DIR` in the bucket"},
	}
}

func detachOptions(c *Call, roots gcp.Roots) submit.DetachOptions {
	do := submit.DetachOptions{Roots: roots, Every: c.Duration("upload-every"), CloudLogging: c.Bool("cloud-logging")}
	name, dir := c.String("bucket-name"), c.String("bucket-dir")
	if _, _, err := detach.CleanBucket(name, ""); err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "bucket-name")
	}
	var err error
	if do.Bucket, do.Dir, err = detach.CleanBucket(name, dir); err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "bucket-name", "bucket-dir")
	}
	if do.Every < time.Second {
		c.Refuse(cmdline.Usagef("--upload-every=%s: it must be 1s or more", do.Every), "upload-every")
	}
	return do
}

// asMaxText reports whether the command line uses the flags of multihost_job.py.
func asMaxText(c *Call) bool {
	for _, name := range []string{"command", "bucket-name", "bucket-dir", "run-name", "tpu-type", "num-slices", "runtime-version", "cqr-extra-args", "enable-autocheckpoint"} {
		if spelling := c.Typed[name]; spelling != "" && spelling == strings.ToUpper(spelling) {
			return true
		}
	}
	return false
}

func jobOptions(c *Call, m Machine) job.JobOptions {
	o := runOptions(c, m, jobRows())
	run := &o.Run
	run.MaxText = asMaxText(c)
	if run.MaxText && !c.IsSet("venv") {
		run.Venv = true
	}
	o.Budget.Restarts = run.MaxRestarts
	o.Request = jobRequest(c, m, run.Run)
	run.Prefix = o.Request.ID
	if o.Request.Type.Name != "" {
		c.Refuse(preflight.CheckNUMA(run.NUMA, o.Request.Type.Generation), append(ownFlags(c, []string{"accelerator-type", "type", "topology"}), "numa")...)
	}
	if c.Bool("network-create") {
		n := network.Options{Name: o.Request.Network}
		if n.Name == "" {
			n.Name = defaultNetwork
			o.Request.Network = n.Name
		}
		n.MTU, n.SubnetMode, n.RoutingMode, n.SSHSourceRanges = defaultMTU, "auto", "regional", splitCommas(c.String("ssh-source-ranges"))
		refuseNetwork(c, network.Options{SSHSourceRanges: n.SSHSourceRanges}, "ssh-source-ranges", "network-create")
		refuseNetwork(c, n, "network", "network-create")
		o.Network = &n
	}
	return o
}

// withKey returns the metadata with the user's key in it, so that the workers accept the
// key from their first boot.
func withKey(metadata map[string]string, login, publicKey string) map[string]string {
	all := maps.Clone(metadata)
	if all == nil {
		all = map[string]string{}
	}
	entry := login + ":" + publicKey + " " + login
	if old := all["ssh-keys"]; old != "" {
		entry = old + "\n" + entry
	}
	all["ssh-keys"] = entry
	return all
}
