package options

import (
	"errors"
	"slices"

	"multihost/internal/attempt"
	"multihost/internal/cmdline"
	"multihost/internal/config"
	"multihost/internal/preflight"
	"multihost/internal/remote"
	"multihost/internal/workload"
	"multihost/internal/xla"
)

// IsClusterJob reports whether a command line is a job that a cluster runs.
func IsClusterJob(l *cmdline.Line) bool {
	return len(l.Path) == 1 && l.Path[0] == "job" && slices.ContainsFunc([]string{"cluster", "context", "kubeconfig"}, func(flag string) bool { return l.Setting(flag) != "" })
}

// clusterJobRows are the names of the options of job that a job in a cluster has, too.
var clusterJobRows = []string{"dry-run", "confirm", "command", "run-name", "script-dir", "env", "env-file", "secret-env", "preflight", "numa", "log-dir", "stream", "timestamps", "detach",
	"xla-preset", "xla-flag", "grace", "max-restarts", "on-interrupt", "tpu-type", "num-slices", "notify", "notify-url"}

// onlyInCluster are the flags that only a job in a cluster has.
func onlyInCluster() (names []string) {
	own := RequestFlags(FlagsOf(JobRows())...)
	for _, f := range WorkloadFlags() {
		if name := cmdline.Name(f); name != "workload" && !hasFlag(own, name) {
			names = append(names, name)
		}
	}
	return names
}

// refuseOutside refuses flags of a job in a cluster for a job on VMs.
func refuseOutside(c *Call) {
	for _, name := range onlyInCluster() {
		if _, typed := c.Typed[name]; typed {
			c.Refuse(&cmdline.UsageError{Err: errors.New("--" + name + ": only a job in a cluster has it"), Advice: "add --cluster=NAME, --context=NAME or --kubeconfig=FILE"}, name)
		}
	}
}

// A ClusterJob has the options of a job that a cluster runs.
type ClusterJob struct {
	Workload
	Run attempt.Options // what a job in a cluster has in common with other jobs
	XLA xla.Environment // variables with the compiler flags, which Spec.Env has, and what is striking about them
}

// ClusterJobOf reads the options of a job in a cluster, without the flags of the cluster.
// It refuses options that such a job lacks.
func ClusterJobOf(c *Call, m Machine) ClusterJob {
	rows := JobRows()
	allowed := onlyInCluster()
	for _, row := range rows {
		if name := row.Name(); !slices.Contains(clusterJobRows, name) {
			refuseInCluster(c, name)
		} else {
			allowed = append(allowed, name)
		}
	}
	for _, f := range RequestFlags() {
		if name := cmdline.Name(f); !slices.Contains(allowed, name) {
			refuseInCluster(c, name)
		}
	}
	run := readOptions(c, m, slices.DeleteFunc(rows, func(o Option) bool { return !slices.Contains(clusterJobRows, o.Name()) })).Run
	if len(c.Words) > 0 {
		c.Refuse(strayWord(c, c.Words[0]), cmdline.Word)
	}
	command := run.Script
	if len(run.Argv) > 0 {
		command = remote.Quote(run.Argv...)
	}
	if run.LogDir != "" {
		run.LogDir = absolute(run.LogDir)
	}
	if run.NUMA == preflight.NUMAAuto {
		run.NUMA = ""
	}
	s := workload.Spec{Name: run.Run, Namespace: c.String("namespace"), Slices: c.Int("num-slices"), Pods: c.Int("num-nodes"), Command: command, NUMA: string(run.NUMA),
		Queue: c.String("queue"), Priority: c.String("priority"), MaxRestarts: run.MaxRestarts, TTL: c.Int("ttl-seconds-after-finished"), Grace: c.Int("termination-grace-period-seconds")}
	if _, typed := c.Typed["grace"]; typed {
		s.Grace = int(run.Grace.Seconds())
	}
	if c.IsSet("secret-env") {
		c.Refuse(&cmdline.UsageError{Err: errors.New("--secret-env: whoever may read the workload could read the value"), Advice: "let the command read the secret itself, with the rights of its service account"}, "secret-env")
	}
	for _, v := range run.Env {
		s.Env = append(s.Env, workload.Variable{Name: v.Name, Value: v.Value})
	}
	o := ClusterJob{readWorkload(c, s, "run-name"), run, xla.Environment{}}
	o.readXLA(c)
	return o
}

// readXLA adds the variables with the compiler flags to the command's environment.
func (o *ClusterJob) readXLA(c *Call) {
	user := func(name string) (string, bool) { return config.ValueOf(o.Run.Env, name) }
	var err error
	if o.XLA, err = xla.Load().Environment(xla.Request{User: user, Presets: o.Run.XLAPresets, Flags: o.Run.XLAFlags, Generation: o.Spec.Type.Generation.Name}); err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, "xla-preset", "xla-flag")
	}
	for _, v := range o.XLA.Vars {
		o.Spec.Env = append(o.Spec.Env, workload.Variable{Name: v.Name, Value: v.Value})
	}
}

// refuseInCluster refuses a typed flag that a job in a cluster lacks.
func refuseInCluster(c *Call, name string) {
	if _, typed := c.Typed[name]; typed && name != "num-slices" && name != "tpu-type" {
		c.Refuse(&cmdline.UsageError{Err: errors.New("--" + name + ": a job in a cluster does not have it"), Advice: "leave it out; what such a job has: docs/gke.md"}, name)
	}
}
