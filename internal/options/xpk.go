package options

import (
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gke"
	"multihost/internal/workload"
	"multihost/internal/xpk"
)

// xpkFlags returns the flags of a command of XPK: those given, and those that the command
// takes although they change nothing.
func xpkFlags(command string, flags ...cli.Flag) []cli.Flag {
	for _, f := range xpk.Ignored(command) {
		usage := "changes nothing: " + f.Why
		if f.Switch {
			flags = append(flags, &cli.BoolFlag{Name: f.Name, Usage: usage, Hidden: true})
		} else {
			flags = append(flags, &cli.StringFlag{Name: f.Name, Usage: "`VALUE` " + usage, Hidden: true})
		}
	}
	return flags
}

func xpkClusterFlag() cli.Flag {
	return &cli.StringFlag{Name: "cluster", Usage: "`NAME` of the cluster, in the region of --zone"}
}

func deviceTypeFlag() cli.Flag {
	return &cli.StringFlag{Name: "device-type", Usage: "`TYPE` of the slices, in place of --tpu-type: v5litepod-16, or with the topology v5p-2x2x2"}
}

// XPKClusterCreateFlags are the flags of xpk cluster create.
func XPKClusterCreateFlags() []cli.Flag {
	return xpkFlags("cluster create",
		xpkClusterFlag(), TypeFlag(), deviceTypeFlag(),
		&cli.IntFlag{Name: "num-slices", Aliases: []string{"NUM_SLICES"}, Value: 1, Usage: "make `N` slices, each of them a node pool"},
		&cli.BoolFlag{Name: "on-demand", Usage: "slices on demand: the default"},
		&cli.BoolFlag{Name: "spot", Usage: "slices that Google may take away at any time"},
		&cli.BoolFlag{Name: "flex", Usage: "slices that exist only while workloads ask for them"},
		&cli.StringFlag{Name: "reservation", Usage: "slices of the reservation `NAME`"},
		&cli.StringFlag{Name: "custom-cluster-arguments", Usage: "`ARGUMENTS` of gcloud, of which multihost takes --network=NAME and --subnetwork=NAME; default: the network " + xpk.DefaultNetwork},
		&cli.StringFlag{Name: "custom-nodepool-arguments", Usage: "`ARGUMENTS` of gcloud, of which multihost takes --spot and --reservation=NAME"},
		&cli.StringFlag{Name: "custom-tpu-nodepool-arguments", Usage: "`ARGUMENTS` of gcloud, of which multihost takes --spot and --reservation=NAME"},
		&cli.StringFlag{Name: "gke-version", Usage: "`VERSION` of GKE; default: the one that the channel RAPID recommends"},
		&cli.StringFlag{Name: "default-pool-cpu-machine-type", Value: gke.DefaultCPUMachine, Usage: "machine `TYPE` of the CPU nodes"},
		&cli.StringFlag{Name: "cluster-cpu-machine-type", Usage: "machine `TYPE` of the CPU nodes; the old name of --default-pool-cpu-machine-type"},
		&cli.IntFlag{Name: "default-pool-cpu-num-nodes", Value: gke.DefaultCPUNodes, Usage: "make `N` CPU nodes"},
		&cli.StringFlag{Name: "host-maintenance-interval", Value: gke.AsNeeded, Usage: "AS_NEEDED or PERIODIC: `WHEN` Google maintains the hosts"},
		&cli.BoolFlag{Name: "force", Usage: "delete node pools without a question, also those on which workloads run"},
		dryRunFlag())
}

// XPKClusterDeleteFlags are the flags of xpk cluster delete.
func XPKClusterDeleteFlags() []cli.Flag {
	return xpkFlags("cluster delete", xpkClusterFlag(),
		&cli.BoolFlag{Name: "force", Usage: "delete the cluster although workloads run there"},
		dryRunFlag())
}

// XPKClusterListFlags are the flags of xpk cluster list.
func XPKClusterListFlags() []cli.Flag { return xpkFlags("cluster list") }

// XPKWorkloadCreateFlags are the flags of xpk workload create.
func XPKWorkloadCreateFlags() []cli.Flag {
	return xpkFlags("workload create",
		&cli.StringFlag{Name: "workload", Usage: "`NAME` of the workload"},
		xpkClusterFlag(),
		&cli.StringFlag{Name: "command", Aliases: []string{"COMMAND"}, Usage: "`COMMAND` that bash runs on every worker"},
		TypeFlag(), deviceTypeFlag(),
		&cli.IntFlag{Name: "num-slices", Aliases: []string{"NUM_SLICES"}, Value: 1, Usage: "run on `N` slices"},
		&cli.StringFlag{Name: "docker-image", Usage: "`IMAGE` that has all of the program"},
		&cli.StringFlag{Name: "base-docker-image", Value: xpk.DefaultBaseImage, Usage: "without --docker-image: `IMAGE` that gets the files of --script-dir in /app"},
		&cli.StringFlag{Name: "script-dir", Aliases: []string{"SCRIPT_DIR"}, Value: ".", Usage: "`DIR` with the files for --base-docker-image"},
		&cli.StringFlag{Name: "image-repository", Usage: "`REPOSITORY` that gets the image with multihost-agent added; none: --docker-image has it already; default: gcr.io/PROJECT/USER-runner"},
		registryFlag(),
		&cli.StringFlag{Name: "docker-image-pull-secret", Usage: "`NAME` of the secret with which nodes pull the image"},
		&cli.StringFlag{Name: "docker-name", Value: workload.DefaultContainer, Usage: "`NAME` of the container in the pods"},
		&cli.StringFlag{Name: "priority", Value: workload.DefaultPriority, Usage: "`PRIORITY` of the workload: very-low, low, medium, high or very-high"},
		&cli.StringFlag{Name: "scheduler", Value: workload.DefaultScheduler, Usage: "`NAME` of the scheduler of the pods"},
		&cli.IntFlag{Name: "max-restarts", Usage: "start the command again up to `N` times when a worker is lost or ends with 42 or 127 to 255"},
		&cli.StringFlag{Name: "restart-on-exit-codes", Usage: "further exit `CODES` after which the command starts again: 1,2"},
		&cli.IntFlag{Name: "ttl-seconds-after-finished", Value: workload.DefaultTTL, Usage: "delete the workload `SECONDS` after its end"},
		&cli.IntFlag{Name: "termination-grace-period-seconds", Aliases: []string{"tgps"}, Value: workload.DefaultGrace, Usage: "`SECONDS` that the command has between TERM and KILL"},
		&cli.StringSliceFlag{Name: "env", Usage: "set the environment variable `NAME=VALUE` for the command"},
		&cli.StringFlag{Name: "env-file", Usage: "`FILE` with lines NAME=VALUE, or NAME for a variable of this machine"},
		&cli.BoolFlag{Name: "enable-debug-logs", Usage: "let libtpu log more"},
		&cli.BoolFlag{Name: "use-parallel-containers", Value: true, Usage: "use two containers on a worker of tpu7x; false: one"},
		&cli.BoolFlag{Name: "wait", Usage: "show the output, and end with the exit status of the command"},
		&cli.StringFlag{Name: "stream", Value: "first", Usage: "first, all or none: whose output --wait shows (`WHO`)"},
		dryRunFlag())
}

// filterFlags choose workloads.
func filterFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "filter-by-status", Value: xpk.Statuses[0], Usage: "only workloads of this `STATUS`: EVERYTHING, FINISHED, RUNNING, QUEUED, FAILED or SUCCESSFUL"},
		&cli.StringFlag{Name: "filter-by-job", Usage: "only workloads whose names match the regular `EXPRESSION`"},
	}
}

// XPKWorkloadListFlags are the flags of xpk workload list.
func XPKWorkloadListFlags() []cli.Flag {
	return xpkFlags("workload list", append(filterFlags(), xpkClusterFlag(),
		&cli.StringFlag{Name: "wait-for-job-completion", Usage: "wait until the workload `NAME` has ended; then the exit status is 0, 125 if it failed, or 124 after --timeout"},
		&cli.IntFlag{Name: "timeout", Value: 7 * 24 * 60 * 60, Usage: "wait at most `SECONDS`"})...)
}

// XPKWorkloadDeleteFlags are the flags of xpk workload delete.
func XPKWorkloadDeleteFlags() []cli.Flag {
	return xpkFlags("workload delete", append(filterFlags(), xpkClusterFlag(),
		&cli.StringFlag{Name: "workload", Usage: "`NAME` of the workload; without it, all workloads that the filters choose"},
		&cli.BoolFlag{Name: "force", Usage: "delete without a question"},
		dryRunFlag())...)
}

// TellIgnored says which flags of the line change nothing.
func TellIgnored(c *Call, command string, sink event.Sink) {
	for _, f := range xpk.Ignored(command) {
		if _, typed := c.Typed[f.Name]; typed {
			event.Notef(sink, event.Warn, "", "--%s changes nothing: %s", f.Name, f.Why)
		}
	}
}

// refuseAll refuses flags.
func refuseAll(c *Call, wrong []*xpk.FlagError) {
	for _, e := range wrong {
		c.Refuse(&cmdline.UsageError{Err: e, Advice: e.Advice}, e.Flag)
	}
}

// XPKCluster reads the flags of XPKClusterCreateFlags.
func XPKCluster(c *Call, m Machine) gke.Options {
	c.NoWords()
	o, wrong := xpk.Cluster{
		Name: c.String("cluster"), TPUType: c.String("tpu-type"), DeviceType: c.String("device-type"), Slices: c.Int("num-slices"),
		OnDemand: c.Bool("on-demand"), Spot: c.Bool("spot"), Flex: c.Bool("flex"), Reservation: c.String("reservation"),
		CPUMachine: c.String("default-pool-cpu-machine-type"), OldCPUMachine: c.String("cluster-cpu-machine-type"), CPUNodes: c.Int("default-pool-cpu-num-nodes"),
		Version: c.String("gke-version"), Maintenance: c.String("host-maintenance-interval"), Arguments: c.String("custom-cluster-arguments"),
		PoolArguments: c.String("custom-nodepool-arguments"), OldPoolArguments: c.String("custom-tpu-nodepool-arguments"), Force: c.Bool("force"),
	}.Options()
	refuseAll(c, wrong)
	o.User = m.User
	return o
}

// XPKClusterName reads --cluster of a command about an existing cluster.
func XPKClusterName(c *Call) string {
	c.NoWords()
	name := c.String("cluster")
	if err := xpk.CheckCluster(name); err != nil {
		refuseAll(c, []*xpk.FlagError{err})
	}
	return name
}

// XPKWorkload reads the flags of XPKWorkloadCreateFlags.
func XPKWorkload(c *Call, m Machine) Workload {
	c.NoWords()
	w := Workload{NamedPriority: c.IsSet("priority")}
	w.readRegistry(c)
	whole := c.String("docker-image")
	w.Base = whole == ""
	if w.Base && w.Repository == ImageAsIs {
		c.Refuse(cmdline.Usagef("--image-repository=%s: without --docker-image, the files of --script-dir go into an image that is pushed to a repository", ImageAsIs), "image-repository")
	}
	if w.Base {
		w.Dir, whole = scriptDir(c), c.String("base-docker-image")
	}
	spec, wrong := xpk.Workload{
		Name: c.String("workload"), Cluster: c.String("cluster"), Command: c.String("command"), TPUType: c.String("tpu-type"), DeviceType: c.String("device-type"),
		Slices: c.Int("num-slices"), Image: whole, Container: c.String("docker-name"), Priority: c.String("priority"), Scheduler: c.String("scheduler"),
		MaxRestarts: c.Int("max-restarts"), RestartOn: c.String("restart-on-exit-codes"), TTL: c.Int("ttl-seconds-after-finished"), Grace: c.Int("termination-grace-period-seconds"),
		Env: xpkEnv(c, m), PullSecret: c.String("docker-image-pull-secret"), DebugLogs: c.Bool("enable-debug-logs"), Parallel: c.Bool("use-parallel-containers"),
	}.Spec()
	refuseAll(c, wrong)
	w.Spec = spec
	return w
}

// xpkEnv reads --env-file and --env, of which XPK takes one.
func xpkEnv(c *Call, m Machine) (all []workload.Variable) {
	vars, err := config.ParseEnvAssignments(c.StringSlice("env"))
	if err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "env")
	}
	for _, v := range vars {
		all = append(all, workload.Variable{Name: v.Name, Value: v.Value})
	}
	file := c.String("env-file")
	switch {
	case file == "":
		return all
	case len(all) > 0:
		c.Refuse(cmdline.Usagef("--env and --env-file exclude each other: give one of them"), "env", "env-file")
		return all
	}
	text, err := config.ReadText(c.Context, file, envFileLimit)
	if err != nil {
		c.Refuse(err, "env-file")
		return nil
	}
	all, wrong := xpk.EnvFile(text, m.Lookup)
	if wrong != nil {
		refuseAll(c, []*xpk.FlagError{wrong})
	}
	return all
}

// envFileLimit is how many bytes a file of variables may have.
const envFileLimit = 1 << 20

// XPKFilter reads the flags that choose workloads.
func XPKFilter(c *Call) xpk.Filter {
	f, wrong := xpk.NewFilter(c.String("filter-by-status"), c.String("filter-by-job"))
	refuseAll(c, wrong)
	return f
}

// An XPKWait is what xpk workload list waits for.
type XPKWait struct {
	Name  string // "": it does not wait
	Limit time.Duration
}

// XPKWaiting reads --wait-for-job-completion and --timeout.
func XPKWaiting(c *Call) XPKWait {
	w := XPKWait{c.String("wait-for-job-completion"), time.Duration(c.Int("timeout")) * time.Second}
	if w.Limit <= 0 {
		c.Refuse(cmdline.Usagef("--timeout=%d: want 1 or more seconds", c.Int("timeout")), "timeout")
	}
	if _, typed := c.Typed["timeout"]; typed && w.Name == "" {
		c.Refuse(cmdline.Usagef("--timeout: it limits --wait-for-job-completion, which is missing"), "timeout")
	}
	return w
}

// xpkRefused returns the error for a flag of XPK that multihost does not take.
func xpkRefused(path []string, flag string) error {
	if len(path) > 0 && path[0] == "xpk" && !slices.Contains(path, "list") {
		if refused := xpk.Refused(flag); refused != nil {
			return refused
		}
	}
	return nil
}
