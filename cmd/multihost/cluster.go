package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/network"
	"multihost/internal/options"
	"multihost/internal/ui"
)

func clusterCommand() *cli.Command {
	return group(cli.Command{
		Name:  "cluster",
		Usage: "make, show and delete clusters of Google Kubernetes Engine with TPU slices",
		Subcommands: []*cli.Command{
			clusterCreateCommand(), clusterListCommand(), clusterShowCommand(), clusterDeleteCommand(),
		},
	})
}

func clusterCreateCommand() *cli.Command {
	return command(cli.Command{
		Name:      "create",
		Usage:     "make a cluster with a node pool for each slice, or complete one",
		ArgsUsage: "NAME",
		Description: `Makes a cluster in the region of --zone, with CPU nodes for the controllers and
one node pool for each slice, NAME-np-0, NAME-np-1, …, in the zone:

  multihost network create
  multihost cluster create team --tpu-type=v5litepod-16 --num-slices=2 --spot

The same command again changes nothing. After an interrupt or a failure it makes
what is missing: a node pool in state ERROR is deleted and made again. With another
--num-slices, it makes further node pools or deletes those with the highest
numbers, after a question. A cluster or node pool with other settings is an error.
Node pools on which workloads run stay, unless --force is given.

Then it installs JobSet and Kueue in the cluster, unless they are there, and makes
the queue for workloads. Names, requests and labels are those of XPK.`,
		Flags: slices.Concat(options.ClusterFlags(), []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "delete and remake node pools although workloads run on them or they have other settings"},
			&cli.BoolFlag{Name: "yes", Usage: "delete node pools without a question"},
			options.ConfirmFlag(),
			&cli.BoolFlag{Name: "dry-run", Usage: "print the plan, the requests (with --output=json) and the cost; change nothing"},
		}),
		Action: withSession(func(s *session, c *call) error {
			o := options.Cluster(&c.Call, s.machine(c))
			refuseConfirm(s, c)
			if err := ready(c); err != nil {
				return err
			}
			return interruptible(c.Context, s.createCluster(c, o))
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt)
}

func (s *session) createCluster(c *call, o gke.Options) error {
	if err := s.checkClusterNetwork(c.Context, o); err != nil {
		return err
	}
	plan, err := s.clusters.Plan(c.Context, o)
	if err != nil {
		return err
	}
	if s.dryRun {
		s.view.Emit(event.Result{Name: "cluster_plan", Text: plan.String(), Data: plan})
		return plan.Err()
	}
	if plan.Err() == nil && !plan.Done() {
		s.view.Emit(event.Note{Level: event.Info, Text: "the cluster will cost, an hour:\n" + strings.TrimSuffix(plan.Cost.String(), "\n")})
		if err := s.mayApply(c, plan); err != nil {
			return err
		}
	}
	return s.clusters.Apply(c.Context, plan)
}

// mayApply asks the user before node pools are lost. With --confirm, it also asks before
// slices are made.
func (s *session) mayApply(c *call, plan gke.Plan) error {
	lost := plan.Loses()
	switch {
	case len(lost) > 0 && !c.Bool("yes"):
		if !canConfirm(c, s.view) {
			return &usageError{Err: fmt.Errorf("node pools would be deleted (%s), and there is no terminal to ask on", strings.Join(lost, ", ")), Advice: "look with --dry-run; then add --yes"}
		}
		return confirm(c.Context, c, s.view, "delete the node pools "+strings.Join(lost, ", ")+"?")
	case c.Bool("confirm"):
		return confirm(c.Context, c, s.view, "make this cluster?")
	}
	return nil
}

// Before anything is billed, checkClusterNetwork finds a network that does not exist or is
// slow.
func (s *session) checkClusterNetwork(ctx context.Context, o gke.Options) error {
	info, err := s.networks.Show(ctx, o.Network)
	switch {
	case err != nil:
		return err
	case info.MTU < network.DefaultMTU:
		event.Notef(s.view, event.Warn, "make one with: multihost network create", "network %s has MTU %d: traffic between slices is faster with %d", o.Network, info.MTU, network.DefaultMTU)
	}
	return nil
}

func clusterListCommand() *cli.Command {
	return command(cli.Command{
		Name:  "list",
		Usage: "list the clusters of the project, in all regions",
		Description: `SLICES PER HOUR is the list price an hour of all slices, before discounts; "unknown"
if the price list has no price for their zone and tier. The CPU nodes and the
control plane cost more than that.`,
		Action: withSession(func(s *session, c *call) error {
			c.NoWords()
			if err := ready(c); err != nil {
				return err
			}
			all, err := s.clusters.List(c.Context)
			if errors.Is(err, gcp.ErrPartial) {
				s.view.Emit(event.Note{Level: event.Warn, Text: err.Error()})
				err = nil
			}
			if err != nil {
				return interruptible(c.Context, err)
			}
			if len(all) == 0 && s.view.Mode() != ui.JSON {
				s.view.Emit(event.Note{Level: event.Info, Text: "no clusters in project " + s.cloud.Project()})
			}
			s.view.Emit(event.Result{Name: "clusters", Text: gke.Table(all, time.Now()), Data: all})
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func clusterShowCommand() *cli.Command {
	return command(cli.Command{
		Name: "show", Usage: "show a cluster, its node pools, its workloads and its cost", ArgsUsage: "NAME",
		Action: withSession(func(s *session, c *call) error {
			name := options.ClusterName(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			info, err := s.clusters.Show(c.Context, name)
			return s.showResult(c, "cluster", info, err)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func clusterDeleteCommand() *cli.Command {
	return command(cli.Command{
		Name: "delete", Usage: "delete a cluster that multihost made, with all its node pools", ArgsUsage: "NAME",
		Description: `Ends when the cluster is gone. It is an error if workloads run on the slices, or if
nobody can tell whether they do; --force deletes the cluster all the same.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "delete the cluster although workloads run there"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be deleted; change nothing"},
		},
		Action: withSession(func(s *session, c *call) error {
			name := options.ClusterName(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			if s.dryRun {
				d, err := s.clusters.PlanDelete(c.Context, name, c.Bool("force"))
				if err != nil {
					return interruptible(c.Context, err)
				}
				s.view.Emit(event.Result{Name: "cluster_delete_plan", Text: d.Text(), Data: d})
				return nil
			}
			_, err := s.clusters.Delete(c.Context, name, c.Bool("force"))
			return interruptible(c.Context, err)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt)
}
