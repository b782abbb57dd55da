package options

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/attempt"
	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/network"
	"multihost/internal/notify"
	"multihost/internal/preflight"
	"multihost/internal/submit"

	"github.com/urfave/cli/v2"
)

// RunFlags returns the flags of run.
func RunFlags() []cli.Flag { return FlagsOf(RunRows()) }

// Run reads the options of run. onHosts reports whether machines replace slices.
func Run(c *Call, m Machine, onHosts bool) attempt.Options {
	o := runOrJob(c, m, RunRows()).Run
	w := Workers(c, onHosts)
	o.Prefix, o.Slices, o.AllowPartial = w.Prefix, w.Slices, w.Partial
	if o.UseExisting && c.String("run-name") == "" {
		c.Refuse(&cmdline.UsageError{Err: errors.New("--use-existing-folder needs the run whose folder it is"), Advice: "add --run-name=NAME"}, "use-existing-folder")
	}
	return o
}

// runOrJob reads the options of run or job, and refuses those that contradict each other.
func runOrJob(c *Call, m Machine, rows []Option) options {
	all := readOptions(c, m, rows)
	o := &all.Run
	o.Home = m.Home
	if len(c.Words) > 0 {
		c.Refuse(strayWord(c, c.Words[0]), cmdline.Word)
	}
	if o.Watch.OnStall == follow.StallRestart && o.MaxRestarts == 0 {
		c.Refuse(&cmdline.UsageError{Err: errors.New("--on-stall=restart: no restart is allowed"), Advice: "add --max-restarts=3, or some other number"}, "on-stall", "max-restarts")
	}
	if o.Detach && o.MaxRestarts > 0 {
		c.Refuse(cmdline.Usagef("--max-restarts and --detach: nobody would be there to start it again"), "max-restarts", "detach")
	}
	if c.Bool("sim") && o.Detach && c.String("bucket-name") == "" {
		c.Refuse(&cmdline.UsageError{Err: errors.New("--sim and --detach: the simulator ends with this command, and the run with it"),
			Advice: "start a simulator that stays: multihost sim up --background; eval \"$(multihost sim env)\""}, "sim", "detach")
	}
	return all
}

// strayWord returns the error for a word that is no flag and not after --.
func strayWord(c *Call, word string) error {
	hint := "quote the command: --command='…', or put its words after --"
	switch word {
	case "help":
		hint = "type: multihost " + strings.Join(c.Line.Path, " ") + " --help"
	case "true", "false":
		hint = "the value of a switch stands after =, as in --allow-partial=" + word + "; a program of that name after --"
	}
	return &cmdline.UsageError{Err: fmt.Errorf("word %q is neither a flag nor after --", word), Advice: hint}
}

// JobFlags returns the flags of job. There is none for the names of its slices: the slices
// have the name of the run.
func JobFlags() []cli.Flag {
	own := FlagsOf(ownJobOptions())
	all := RequestFlags(own...)
	rest := slices.Concat(all, FlagsOf(JobRows()[len(own):]))
	for _, f := range WorkloadFlags() {
		name := cmdline.Name(f)
		if name == "workload" || hasFlag(rest, name) {
			continue
		}
		if n, ok := f.(*cli.IntFlag); ok { // job uses some of these names for other flags
			n.Aliases = nil
		}
		rest = append(rest, f)
	}
	return slices.DeleteFunc(rest, func(f cli.Flag) bool { return slices.Contains([]string{"node-prefix", "node-id"}, cmdline.Name(f)) })
}

func hasFlag(all []cli.Flag, name string) bool {
	return slices.ContainsFunc(all, func(f cli.Flag) bool { return slices.Contains(cmdline.Names(f), name) })
}

// BucketFlags name the bucket of a job without runner that another machine may have
// started.
func BucketFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "bucket-name", Usage: "`BUCKET` of a job without runner that another machine started"},
		&cli.StringFlag{Name: "bucket-dir", Usage: "`DIR` in the bucket"},
	}
}

// Detach reads which bucket a job without runner uses, and where in it.
func Detach(c *Call, roots gcp.Roots) submit.DetachOptions {
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

// asMaxText reports whether the command line has flags of multihost_job.py.
func asMaxText(c *Call) bool {
	for _, name := range []string{"command", "bucket-name", "bucket-dir", "run-name", "tpu-type", "num-slices", "runtime-version", "cqr-extra-args", "enable-autocheckpoint"} {
		if spelling := c.Typed[name]; spelling != "" && spelling == strings.ToUpper(spelling) {
			return true
		}
	}
	return false
}

// Job reads the options of job, and refuses an invalid request.
func Job(c *Call, m Machine) job.JobOptions {
	refuseOutside(c)
	o := runOrJob(c, m, JobRows())
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
			n.Name = network.DefaultName
			o.Request.Network = n.Name
		}
		n.MTU, n.SubnetMode, n.RoutingMode, n.SSHSourceRanges = network.DefaultMTU, "auto", "regional", splitCommas(c.String("ssh-source-ranges"))
		refuseNetwork(c, network.Options{SSHSourceRanges: n.SSHSourceRanges}, "ssh-source-ranges", "network-create")
		refuseNetwork(c, n, "network", "network-create")
		o.Network = &n
	}
	return o
}

// Notify reads --notify and --notify-url, which say who gets the notifications
// about a run.
func Notify(c *Call, run string, env []config.EnvVar) notify.Options {
	o := notify.Options{Run: run}
	for _, v := range env {
		if v.Secret {
			o.Secrets = append(o.Secrets, v.Value)
		}
	}
	var err error
	if text := c.String("notify"); text != "" {
		if o.Program, err = notify.ParseProgram(text); err != nil {
			c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--notify: %w", err)}, "notify")
		}
	}
	if text := c.String("notify-url"); text != "" {
		if o.URL, err = notify.ParseURL(text); err != nil {
			c.Refuse(&cmdline.UsageError{Err: fmt.Errorf("--notify-url: %w", err)}, "notify-url")
		}
	}
	return o
}
