package main

import (
	"context"
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/cmd/multihost/workloadcmd"
	"multihost/internal/access"
	"multihost/internal/fault"
	"multihost/internal/options"
	"multihost/internal/stage"
	"multihost/internal/workloadrun"
	"multihost/internal/workloads"
)

func workloadCommand() *cli.Command {
	return workloadcmd.Command(workloadcmd.Kit{
		Group:    group,
		Command:  endsWith,
		Follower: follower,
		Act: func(f func(*workloadcmd.Call) error) cli.ActionFunc {
			return withSession(func(s *session, c *call) error {
				w := workloadCall(s, c)
				if !w.InKubeconfig() {
					c.Refuse(s.unset)
				}
				return interruptible(c.Context, f(w))
			})
		},
	})
}

// follower completes a command that can end with errors of these kinds, or with the exit
// status of the user's command.
func follower(c cli.Command, kinds ...fault.Kind) *cli.Command {
	return command(c, slices.Insert(append(statusesOf(kinds), exitHangup, exitInterrupt, exitTerminate), 1, statusOfCommand)...)
}

// clusterJob carries out a job that a cluster runs.
func clusterJob(s *session, c *call) error {
	w := workloadCall(s, c)
	k := options.NeededKube(&c.Call, s.machine(c))
	o := options.ClusterJobOf(&c.Call, s.machine(c))
	w.RefuseRepository(o.Workload)
	if !w.InKubeconfig() {
		c.Refuse(s.unset)
	}
	told := s.notifyOptions(&c.Call, o.Run.Run, o.Run.Env)
	if err := w.Ready(); err != nil {
		return err
	}
	d := s.deps(c)
	w.Keeper = d.Keeper
	return notified(c, told, d, func() (stage.Outcome, error) {
		return w.Job(k, o, func() { onInterrupts(s, c, d) })
	})
}

// workloads returns the cluster that the flags or the record of a run name, or nil.
func (s *session) workloads() *workloads.Cluster {
	if s.held == nil {
		return nil
	}
	return &workloads.Cluster{Client: s.held.Client, Name: s.cluster.Name, Flags: s.held.Flags, Sink: s.sink, Pools: access.NodePools(s.clusters, s.cluster.Name)}
}

// workloadRun returns what commands on a run work with if the run is a workload of the
// cluster that the flags or the run's record name, otherwise nil.
func (s *session) workloadRun(c *call, name string) (*workloadrun.Deps, error) {
	if s.held == nil || !c.Sound() {
		return nil, nil
	}
	d := s.deps(c)
	of := workloadrun.Deps{Keeper: d.Keeper, At: *s.cluster, Project: d.Project, Zone: d.Zone, Cluster: s.workloads()}
	w, rec, err := workloadrun.Find(c.Context, of, name)
	if err != nil || w == nil && rec == nil {
		return nil, interruptible(c.Context, err)
	}
	return &of, nil
}

func workloadCall(s *session, c *call) *workloadcmd.Call {
	return &workloadcmd.Call{
		Call: &c.Call, Machine: s.machine(c), View: s.view, Sink: s.sink, Clusters: s.clusters, Cloud: s.cloud, Agents: agents,
		DryRun: s.dryRun, UserAgent: "multihost/" + version(),
		Ready:   func() error { refuseConfirm(s, c); return ready(c) },
		Confirm: func(ctx context.Context, question string) error { return confirm(ctx, c, s.view, question) },
		Status:  func(code int) error { return &statusError{code} },
	}
}
