// Package xpkcmd has the commands of XPK: xpk cluster create, xpk workload create and the
// others. They take the flags of XPK, and do their work with the commands of clusters and
// workloads.
package xpkcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/cmd/multihost/clustercmd"
	"multihost/cmd/multihost/workloadcmd"
	"multihost/internal/cmdline"
	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/kube"
	"multihost/internal/options"
	"multihost/internal/ui"
	"multihost/internal/workload"
	"multihost/internal/workloads"
	"multihost/internal/xpk"
)

// A Kit is what the program gives to the commands.
type Kit struct {
	// Command completes a command: it adds the kinds of errors with which it can end.
	// Follower completes one that may end with the exit status of the user's command, too.
	Command, Follower func(cli.Command, ...fault.Kind) *cli.Command
	Group             func(cli.Command) *cli.Command
	Act               func(func(*Call) error) cli.ActionFunc
}

// A Call is one command line of XPK.
type Call struct {
	*clustercmd.Call
	Workloads *workloadcmd.Call
}

// Statuses of xpk workload list --wait-for-job-completion, which are XPK's.
const (
	statusTimeout = 124
	statusFailed  = 125
)

// Command returns the command xpk with all commands below it.
func Command(k Kit) *cli.Command {
	return k.Group(cli.Command{
		Name:  "xpk",
		Usage: "take the command lines of XPK",
		Description: `A command line of XPK works when you type "multihost xpk" in place of "xpk" or
"python3 xpk.py". multihost and XPK can share a cluster: they have the same names,
labels, queue and priorities. A flag that multihost does not serve is an error.
--quiet on the command line answers questions with yes, and shows less.`,
		Subcommands: []*cli.Command{
			k.Group(cli.Command{
				Name: "cluster", Usage: "make, list and delete clusters, as XPK does",
				Subcommands: []*cli.Command{k.clusterCreate(), k.clusterList(), k.clusterDelete()},
			}),
			k.Group(cli.Command{
				Name: "workload", Usage: "submit, list and delete workloads, as XPK does",
				Subcommands: []*cli.Command{k.workloadCreate(), k.workloadList(), k.workloadDelete()},
			}),
		},
	})
}

// act returns the action of a command, such as "cluster create". If nothing is wrong with the
// flags, it says which of them change nothing.
func (k Kit) act(command string, f func(c *Call) error) cli.ActionFunc {
	return k.Act(func(c *Call) error {
		ready := c.Ready
		c.Ready = func() error {
			err := ready()
			if err == nil {
				options.TellIgnored(c.Call.Call, command, c.View)
			}
			return err
		}
		return f(c)
	})
}

// sure reports whether the user wants no question. --quiet says so only on the command
// line. In a file or a variable, it says only how much is shown.
func (c *Call) sure() bool {
	_, typed := c.Typed["quiet"]
	return c.Bool("force") || typed && c.Bool("quiet")
}

func (k Kit) clusterCreate() *cli.Command {
	return k.Command(cli.Command{
		Name: "create", Usage: "make a cluster with a node pool for each slice, or complete one",
		Description: `Does what multihost cluster create does, with XPK's flags and defaults:

  multihost xpk cluster create --cluster=team --tpu-type=v5litepod-16 \
    --custom-cluster-arguments=--network=mtu9k`,
		Flags: options.XPKClusterCreateFlags(),
		Action: k.act("cluster create", func(c *Call) error {
			o := options.XPKCluster(c.Call.Call, c.Machine)
			if err := c.Ready(); err != nil {
				return err
			}
			return c.Create(o, c.sure())
		}),
	}, clustercmd.Changes...)
}

func (k Kit) clusterList() *cli.Command {
	return k.Command(cli.Command{
		Name: "list", Usage: "list the clusters of the project, in all regions",
		Flags: options.XPKClusterListFlags(),
		Action: k.act("cluster list", func(c *Call) error {
			c.NoWords()
			if err := c.Ready(); err != nil {
				return err
			}
			return c.List()
		}),
	}, fault.Usage, fault.Unavailable, fault.Permission, fault.Configuration)
}

func (k Kit) clusterDelete() *cli.Command {
	return k.Command(cli.Command{
		Name: "delete", Usage: "delete a cluster that multihost made, with all its node pools",
		Flags: options.XPKClusterDeleteFlags(),
		Action: k.act("cluster delete", func(c *Call) error {
			name := options.XPKClusterName(c.Call.Call)
			if err := c.Ready(); err != nil {
				return err
			}
			return c.Delete(name, c.Bool("force"))
		}),
	}, clustercmd.Changes...)
}

// on opens a cluster and does something on it.
func (c *Call) on(name string, do func(*workloads.Cluster) error) error {
	if err := c.Ready(); err != nil {
		return err
	}
	cluster, err := c.Workloads.Open(options.KubeChoice{Named: true, Cluster: name, Config: kube.Config{Namespace: workload.DefaultNamespace}, Flags: "--cluster=" + name})
	if err != nil {
		return err
	}
	defer cluster.Client.Close()
	return do(cluster)
}

func (k Kit) workloadCreate() *cli.Command {
	return k.Follower(cli.Command{
		Name: "create", Usage: "submit a workload, and end",
		Description: `Does what multihost workload create --detach does, with XPK's flags and defaults.
With --wait it shows the output, and ends with the exit status of the command:

  multihost xpk workload create --cluster=team --workload=train \
    --tpu-type=v5litepod-16 --num-slices=2 --docker-image=gcr.io/p/i \
    --command="python3 train.py"

The cluster must have enough slices, as its ConfigMap says.`,
		Flags: options.XPKWorkloadCreateFlags(),
		Action: k.act("workload create", func(c *Call) error {
			o := options.XPKWorkload(c.Call.Call, c.Machine)
			return c.on(c.String("cluster"), func(cluster *workloads.Cluster) error {
				if err := c.fits(cluster, o.Spec); err != nil {
					return err
				}
				return c.Workloads.Submit(cluster, o, c.Bool("wait"))
			})
		}),
	}, fault.Usage, fault.Unavailable, fault.Permission, fault.Configuration, fault.IO, fault.Temporary)
}

// fits returns an error if the cluster has too few slices for a workload, as far as XPK's
// ConfigMap tells.
func (c *Call) fits(cluster *workloads.Cluster, s workload.Spec) error {
	m, err := kube.ConfigMaps.In(cluster.Client, workload.DefaultNamespace).Get(c.Context, xpk.ResourcesMap(cluster.Name))
	switch {
	case kube.NotFound(err), fault.Of(err) == fault.Permission:
		event.Notef(c.View, event.Debug, "", "cannot look whether the workload fits: %v", err)
		return nil
	case err != nil:
		return err
	}
	return xpk.Fits(cluster.Name, m.Data, s)
}

func (k Kit) workloadList() *cli.Command {
	return k.Follower(cli.Command{
		Name: "list", Usage: "list workloads, the newest last, or wait for one",
		Description: `Shows what multihost workload list shows. With --wait-for-job-completion it waits
first. It then ends with 0 if the workload succeeded, with 125 if it did not, and
with 124 if --timeout passed.`,
		Flags: options.XPKWorkloadListFlags(),
		Action: k.act("workload list", func(c *Call) error {
			name, filter, wait := options.XPKClusterName(c.Call.Call), options.XPKFilter(c.Call.Call), options.XPKWaiting(c.Call.Call)
			return c.on(name, func(cluster *workloads.Cluster) error {
				status, err := c.await(cluster, wait)
				if err != nil {
					return err
				}
				rows, err := chosen(c.Context, cluster, filter)
				if err != nil {
					return err
				}
				if len(rows) == 0 && c.View.Mode() != ui.JSON {
					event.Notef(c.View, event.Info, "", "no such workloads in cluster %s", name)
				}
				c.View.Emit(event.Result{Name: "workloads", Text: workloads.Table(rows, time.Now()), Data: rows})
				if status != 0 {
					return c.Workloads.Status(status)
				}
				return nil
			})
		}),
	}, fault.Usage, fault.Unavailable, fault.Permission, fault.Configuration)
}

// errLate ends a wait that has taken too long.
var errLate = errors.New("the time is over")

// await waits until a workload has ended, and returns XPK's exit status. If that is not 0,
// await has said why.
func (c *Call) await(cluster *workloads.Cluster, w options.XPKWait) (status int, err error) {
	if w.Name == "" {
		return 0, nil
	}
	ctx, cancel := context.WithTimeoutCause(c.Context, w.Limit, errLate)
	defer cancel()
	o, err := cluster.Follow(ctx, w.Name, workloads.FollowOptions{})
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errLate):
		event.Notef(c.View, event.Warn, "", "workload %s has not ended within %s", w.Name, w.Limit)
		return statusTimeout, nil
	case err != nil:
		return 0, err
	case o.Code() != 0:
		event.Notef(c.View, event.Warn, "", "workload %s: %s", w.Name, o)
		return statusFailed, nil
	}
	event.Notef(c.View, event.Info, "", "workload %s: %s", w.Name, o)
	return 0, nil
}

// chosen returns the workloads that a filter chooses.
func chosen(ctx context.Context, cluster *workloads.Cluster, f xpk.Filter) ([]workloads.Row, error) {
	rows, err := cluster.List(ctx)
	return slices.DeleteFunc(rows, func(r workloads.Row) bool { return !f.Takes(r.Name, r.State) }), err
}

func (k Kit) workloadDelete() *cli.Command {
	return k.Command(cli.Command{
		Name: "delete", Usage: "delete workloads and wait until their pods are gone",
		Description: `Without --workload it deletes all workloads of the cluster that the filters choose,
after a question. --force answers it.`,
		Flags: options.XPKWorkloadDeleteFlags(),
		Action: k.act("workload delete", func(c *Call) error {
			name, filter := options.XPKClusterName(c.Call.Call), options.XPKFilter(c.Call.Call)
			return c.on(name, func(cluster *workloads.Cluster) error {
				return c.deleteWorkloads(cluster, c.String("workload"), filter)
			})
		}),
	}, fault.Usage, fault.Unavailable, fault.Permission, fault.Configuration, fault.Interrupted)
}

// deleteWorkloads deletes the workload with the name one, or all that f chooses.
func (c *Call) deleteWorkloads(cluster *workloads.Cluster, one string, f xpk.Filter) error {
	var rows []workloads.Row
	var err error
	if one == "" {
		rows, err = chosen(c.Context, cluster, f)
	} else {
		var s workloads.Status
		s, err = cluster.Status(c.Context, one)
		rows = append(rows, s.Row)
	}
	if err != nil {
		return err
	}
	var names []string
	for _, r := range rows {
		names = append(names, r.Name)
	}
	all := strings.Join(names, ", ")
	switch {
	case len(names) == 0:
		event.Notef(c.View, event.Info, "", "there are no such workloads: nothing to delete")
		return nil
	case c.DryRun:
		c.View.Emit(event.Result{Name: "workloads", Text: "would delete:\n" + workloads.Table(rows, time.Now()), Data: rows})
		return nil
	case one == "" && !c.sure() && !c.CanAsk():
		return &cmdline.UsageError{Err: fmt.Errorf("all of these workloads would be deleted, and there is no terminal to ask on: %s", all), Advice: "name one with --workload, or add --force"}
	case one == "" && !c.sure():
		if err := c.Confirm(c.Context, "delete the workloads "+all+"?"); err != nil {
			return err
		}
	}
	return cluster.Delete(c.Context, names...)
}
