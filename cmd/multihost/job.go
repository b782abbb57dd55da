package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/network"
	"multihost/internal/notify"
	"multihost/internal/preflight"
	"multihost/internal/qr"
	"multihost/internal/tpu"
)

func jobCommand() *cli.Command {
	return command(cli.Command{
		Name:      "job",
		Usage:     "provision slices, run a command on them, delete them",
		ArgsUsage: "[-- PROGRAM ARG…]",
		Description: `Asks for a queued resource, waits until every worker of every slice answers,
does what multihost run does, and deletes the slices. It never ends with
something billed without saying so in its last lines.

  multihost job --num-slices=2 --tpu-type=v5litepod-16 --command='bash train.sh'

Before it asks for slices, it prints one line: what it asks for, the list price
an hour, and what ends the bill. --confirm asks you then; a no ends the job with
status 130. A job that takes over slices which exist does neither.

MaxText's upper-case names work, too: multihost job --help=all lists them. If
you use one, --NUM_SLICES is 2 and --TPU_TYPE is v4-8 unless you set them, as in
multihost_job.py.

When slices are preempted or lost, or a host fails or is maintained, the job
waits for them, reboots them or makes them again. Then it starts the command
again on all workers as a new attempt (MULTIHOST_ATTEMPT), up to
--max-preemptions times; the command must go on from its own checkpoint. A
command that fails is started again only with --max-restarts. What a user
deletes is not made again. The same command line with the same --run-name takes
over what an earlier one left, also the running command.

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
		Flags: slices.Concat(jobFlags(), waitFlags(), commandFlags(), watchFlags(), sshFlags()),
		Action: withSession(func(s *session, c *call) error {
			o := jobOptions(s, c)
			runnerless := o.Run.Detach && c.String("bucket-name") != ""
			var do job.DetachOptions
			var told notify.Options
			if runnerless {
				for _, name := range []string{"notify", "notify-url", "max-restarts", "max-preemptions", "start-timeout", "queue-timeout", "provision-timeout", "boot-timeout", "on-stall", "log-dir", "replace", "skew", "lease"} {
					if _, typed := c.Typed[name]; typed {
						c.Refuse(usagef("--%s: it does nothing for a job without runner (--detach with --bucket-name)", name), name, "detach", "bucket-name")
					}
				}
				do = detachOptions(c, s.roots)
			} else {
				if _, typed := c.Typed["cloud-logging"]; typed {
					c.Refuse(usagef("--cloud-logging: it is for jobs without runner: add --detach and --bucket-name=BUCKET"), "cloud-logging")
				}
				told = notifyOptions(s, c, o.Run.Run, o.Run.Env)
			}
			refuseConfirm(s, c)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			confirms(s, c, d)
			setKey(&o.Request, d.Access.Login, publicKey(d.Access))
			d.Bucket, d.BucketDir = "", "" // the flags name the bucket for this job, not the bucket of an existing one
			if runnerless {
				defer warnOfLeftovers(s, c, d, o.Request.ID)()
				if s.dryRun {
					return s.showPlan(c, func() (job.Plan, error) { return d.PlanDetach(c.Context, o, do) })
				}
				out, err := d.Detach(c.Context, o, do)
				if err == nil && s.sim != nil {
					s.view.Emit(event.Note{Level: event.Info, Text: "the simulator ends with this command, and the workers with it: the job is followed to its end"})
					out, err = d.Attach(c.Context, o.Run.Run, job.AttachOptions{Grace: o.Run.Grace, Patience: o.Run.Patience, Watch: o.Run.Watch, Secret: c.lookup})
				}
				return outcome(out, err)
			}
			if c.String("bucket-name") != "" {
				s.view.Emit(event.Note{Level: event.Info, Text: "--bucket-name: nothing is uploaded to the bucket by an attached job; the logs come to this machine", Hint: "to have the job live without this machine, add --detach"})
			}
			onInterrupts(s, c, d)
			defer warnOfLeftovers(s, c, d, o.Request.ID)()
			if s.dryRun {
				return s.showPlan(c, func() (job.Plan, error) { return d.PlanJob(c.Context, o) })
			}
			return notified(c, told, d, func() (job.Outcome, error) { return d.Job(c.Context, o) })
		}),
	}, exitOK, statusOfCommand, exitUsage, exitUnavailable, exitIO, exitTempFail, exitPreflight, exitPermission, exitConfig, exitHangup, exitInterrupt, exitTerminate)
}

func jobFlags() []cli.Flag {
	all := requestFlags(
		&cli.IntFlag{Name: "num-slices", Aliases: []string{"NUM_SLICES", "node-count"}, Value: 1, Usage: "make `N` slices"},
		tpuTypeFlag(),
		runtimeFlag(),
		&cli.StringFlag{Name: "bucket-name", Aliases: []string{"BUCKET_NAME"}, Usage: "with --detach: Cloud Storage `BUCKET` that the job lives in, without this machine"},
		&cli.StringFlag{Name: "bucket-dir", Aliases: []string{"BUCKET_DIR"}, Usage: "`DIR` in the bucket"},
		&cli.DurationFlag{Name: "upload-every", Value: time.Minute, Usage: "`TIME` between two uploads of a worker's log to the bucket"},
		&cli.BoolFlag{Name: "cloud-logging", Usage: "send the logs of a job without runner to Cloud Logging, too, with Google's Ops Agent"},
		&cli.DurationFlag{Name: "ttl", Usage: "delete the slices this `TIME` after they were requested, whatever runs on them; default: never"},
		&cli.DurationFlag{Name: "lease", Value: 30 * time.Minute, Usage: "if this machine is gone and nobody is attached, let the workers delete the slices this `TIME` after the command has ended, or after their boot if it has not started; 0: never"},
		&cli.StringFlag{Name: "cqr-extra-args", Aliases: []string{"CQR_EXTRA_ARGS"}, Usage: "more `FLAGS` of gcloud's queued-resources create, in one string"},
		&cli.BoolFlag{Name: "enable-autocheckpoint", Aliases: []string{"ENABLE_AUTOCHECKPOINT", "autocheckpoint-enabled"}, Usage: "let the service trigger a checkpoint before maintenance"},
		&cli.BoolFlag{Name: "network-create", Usage: "make the network that --network names, or else mtu9k, if it does not exist"},
		&cli.StringFlag{Name: "ssh-source-ranges", Value: iapRange, Usage: "addresses `CIDR,…` that may reach port 22 in a network that --network-create makes; if yours is not among them, workers are reached through Identity-Aware Proxy"},
		confirmFlag(),
		maxRestartsFlag(),
		&cli.StringFlag{Name: "max-preemptions", Value: "unlimited", Usage: "start again when slices or hosts are lost, up to `NUMBER` times, or unlimited"},
		&cli.BoolFlag{Name: "keep", Usage: "keep the slices at the end"},
		&cli.GenericFlag{Name: "keep-on-failure", Value: &cmdline.Optional{}, Usage: "keep the slices after a failure; with =`TIME`, keep them for that time"},
	)
	return slices.DeleteFunc(all, func(f cli.Flag) bool { // the run names the slices
		return slices.Contains([]string{"node-prefix", "node-id"}, f.Names()[0])
	})
}

// parseLimit reads a number that is 0 or more; unlimited is -1.
func parseLimit(text string) (int, error) {
	if text == "unlimited" {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err == nil && n < 0 {
		err = strconv.ErrRange
	}
	return n, err
}

// bucketFlags name the bucket of a job without runner that was started elsewhere.
func bucketFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "bucket-name", Usage: "`BUCKET` of a job without runner that another machine started"},
		&cli.StringFlag{Name: "bucket-dir", Usage: "`DIR` in the bucket"},
	}
}

func detachOptions(c *call, roots gcp.Roots) job.DetachOptions {
	do := job.DetachOptions{Roots: roots, Every: c.Duration("upload-every"), CloudLogging: c.Bool("cloud-logging")}
	name, dir := c.String("bucket-name"), c.String("bucket-dir")
	if _, _, err := detach.CleanBucket(name, ""); err != nil {
		c.Refuse(&usageError{Err: err}, "bucket-name")
	}
	var err error
	if do.Bucket, do.Dir, err = detach.CleanBucket(name, dir); err != nil {
		c.Refuse(&usageError{Err: err}, "bucket-name", "bucket-dir")
	}
	if do.Every < time.Second {
		c.Refuse(usagef("--upload-every=%s: it must be 1s or more", do.Every), "upload-every")
	}
	return do
}

// leastTerm is the shortest --ttl and --lease, after which workers delete the slices of a
// runner that they do not hear from: a runner that is away for a moment must not lose
// them. Tests shorten it, because their scripts cannot wait a minute.
var leastTerm = time.Minute

// asMaxText reports whether the command line uses the flags of multihost_job.py.
func asMaxText(c *call) bool {
	for _, name := range []string{"command", "bucket-name", "bucket-dir", "run-name", "tpu-type", "num-slices", "runtime-version", "cqr-extra-args", "enable-autocheckpoint"} {
		if spelling := c.Typed[name]; spelling != "" && spelling == strings.ToUpper(spelling) {
			return true
		}
	}
	return false
}

func jobOptions(s *session, c *call) job.JobOptions {
	run := runOptions(s, c)
	run.MaxText = asMaxText(c)
	if run.MaxText && !c.IsSet("venv") {
		run.Venv = true
	}
	limits := waitLimits(c)
	o := job.JobOptions{
		Run:            run,
		Keep:           c.Bool("keep"),
		QueueLimit:     limits.QueueLimit,
		ProvisionLimit: limits.ProvisionLimit,
		BootLimit:      limits.BootLimit,
		TTL:            c.Duration("ttl"),
		Lease:          c.Duration("lease"),
	}
	for _, name := range []string{"ttl", "lease"} {
		if d := c.Duration(name); d != 0 && d < leastTerm {
			c.Refuse(usagef("--%s=%s: it must be 1m or more, or 0", name, d), name)
		}
	}
	o.Budget.Restarts = run.MaxRestarts
	var err error
	if o.Budget.Preemptions, err = parseLimit(c.String("max-preemptions")); err != nil {
		c.Refuse(usagef("--max-preemptions=%s: it is a number from 0, or unlimited", c.String("max-preemptions")), "max-preemptions")
	}
	if keep := c.Generic("keep-on-failure").(*cmdline.Optional); keep.Given && keep.Text != "false" {
		o.KeepOnFailure = true
		if keep.Text != "true" {
			if o.KeepFor, err = time.ParseDuration(keep.Text); err != nil || o.KeepFor <= 0 {
				c.Refuse(usagef("--keep-on-failure=%s: it is a time such as 2h or 30m", keep.Text), "keep-on-failure")
			}
		}
	}
	o.Request = jobRequest(s, c, run.Run)
	o.Run.Prefix = o.Request.ID
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

// jobRequest builds the queued resource of a job. MaxText's defaults apply if the user
// typed MaxText's flags.
func jobRequest(s *session, c *call, run string) qr.Request {
	upper := asMaxText(c)
	r := qr.Request{ID: run, NodeCount: c.Int("num-slices"), Autocheckpoint: c.Bool("enable-autocheckpoint")}
	if upper && !c.IsSet("num-slices") {
		r.NodeCount = 2
	}
	if r.NodeCount < 1 {
		c.Refuse(usagef("--num-slices=%d: at least 1 slice is needed", r.NodeCount), "num-slices")
	}
	if upper && c.String("tpu-type") == "" && c.String("type") == "" {
		r.Type, _ = tpu.ParseType("v4-8") // v4-8 is a known type: no error
	}
	if r.NodeCount > 1 {
		r.NodePrefix = run
	} else {
		r.NodeID = run
	}
	r = readRequest(c, r, c.String("cqr-extra-args"))
	login, _ := config.LocalUser(s.lookup, s.account)
	r.Mark(run, login)
	r.MarkJob(run)
	refuseRequest(c, r)
	return r
}

// setKey puts the user's key into the request, so that the workers accept it from their
// first boot.
func setKey(r *qr.Request, login, publicKey string) {
	metadata := map[string]string{}
	for k, v := range r.Metadata {
		metadata[k] = v
	}
	entry := login + ":" + publicKey + " " + login
	if old := metadata["ssh-keys"]; old != "" {
		entry = old + "\n" + entry
	}
	metadata["ssh-keys"] = entry
	r.Metadata = metadata
}
