package workloadcmd

import (
	"errors"

	"multihost/internal/cmdline"
	"multihost/internal/event"
	"multihost/internal/options"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/workloadrun"
	"multihost/internal/workloads"
	"multihost/internal/xla"
)

// Job makes a workload and follows it as a run. With --detach it only makes the workload.
// begin is called before the workload is made.
func (c *Call) Job(k options.KubeChoice, o options.ClusterJob, begin func()) (stage.Outcome, error) {
	cluster, err := c.Open(k)
	if err != nil {
		return stage.Outcome{}, err
	}
	defer cluster.Client.Close()
	if c.Bool("confirm") && !c.DryRun {
		if err := c.Confirm(c.Context, "make workload "+o.Spec.Name+"?"); err != nil {
			return stage.Outcome{}, err
		}
	}
	d := workloadrun.Deps{Keeper: c.Keeper, Cluster: cluster, At: recorded(k, cluster)}
	if c.Cloud != nil {
		d.Project, d.Zone = c.Cloud.Project(), c.Cloud.Zone()
	}
	as := workloadrun.Options{Ours: true, LogDir: o.Run.LogDir}
	if err := workloadrun.Check(d, o.Spec.Name, as); err != nil {
		return stage.Outcome{}, err
	}
	begin()
	for _, f := range o.XLA.Findings {
		if f.Severity > xla.Info {
			event.Notef(c.Sink, event.Warn, "look closer with: multihost xla check", "%s", f)
		}
	}
	for _, line := range o.XLA.Lines() {
		event.Notef(c.Sink, event.Info, "", "%s", line)
	}
	name, err := c.submit(cluster, o.Workload)
	var exists *workloads.ExistsError
	if errors.As(err, &exists) {
		err = &cmdline.UsageError{Err: exists, Advice: "follow it with: multihost attach " + o.Spec.Name + " " + cluster.Flags + "; end it with: multihost stop " + o.Spec.Name + " " + cluster.Flags +
			"; once it has ended, delete it with: multihost workload delete " + o.Spec.Name + " " + cluster.Flags}
	}
	if err != nil || c.DryRun {
		return stage.Outcome{}, err
	}
	later := "follow it with: multihost attach " + name + " " + cluster.Flags + "; end it with: multihost stop " + name + " " + cluster.Flags
	if c.Bool("detach") {
		if err := workloadrun.Keep(c.Context, d, name, as); err != nil {
			event.Notef(c.Sink, event.Warn, later, "the run goes on, but its record cannot be kept: %v", err)
		}
		event.Notef(c.Sink, event.Info, later, "run %s goes on without this machine, in the cluster", name)
		return stage.Outcome{Started: true, Detached: true}, nil
	}
	event.Notef(c.Sink, event.Info, later, "run %s needs this machine no more: the cluster has it", name)
	return workloadrun.Follow(c.Context, d, name, as)
}

// recorded returns the cluster for the record of a run.
func recorded(k options.KubeChoice, cluster *workloads.Cluster) record.Cluster {
	if k.Cluster != "" {
		return record.Cluster{Name: k.Cluster, Namespace: cluster.Client.Namespace()}
	}
	return record.Cluster{Kubeconfig: k.Config.Kubeconfig, Context: cluster.Client.Context(), Namespace: cluster.Client.Namespace()}
}
