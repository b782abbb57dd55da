// Package clustercmd has the commands for clusters of Google Kubernetes Engine: cluster
// create, cluster list and the others.
package clustercmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/announce"
	"multihost/internal/cmdline"
	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/network"
	"multihost/internal/options"
	"multihost/internal/ui"
)

// A Kit is what the program gives to the commands.
type Kit struct {
	// Command completes a command with the kinds of errors with which it can end.
	Command func(cli.Command, ...fault.Kind) *cli.Command
	Group   func(cli.Command) *cli.Command
	Act     func(func(*Call) error) cli.ActionFunc
}

// A Call carries out one command line about clusters.
type Call struct {
	*options.Call
	Machine  options.Machine
	View     *ui.Renderer
	Clusters *gke.Client
	Networks *network.Client
	Project  string
	DryRun   bool

	Ready   func() error // ends the reading of flags; returns what is wrong with them
	CanAsk  func() bool  // there is a terminal for questions
	Confirm func(ctx context.Context, question string) error
}

// Command returns the command cluster with all commands below it.
func Command(k Kit) *cli.Command {
	return k.Group(cli.Command{
		Name:        "cluster",
		Usage:       "make, show and delete clusters of Google Kubernetes Engine with TPU slices",
		Subcommands: []*cli.Command{k.create(), k.list(), k.show(), k.delete()},
	})
}

// Kinds of errors: of commands that only read, and of commands that change something.
var (
	reads   = []fault.Kind{fault.Usage, fault.Unavailable, fault.Permission, fault.Configuration}
	Changes = []fault.Kind{fault.Usage, fault.Unavailable, fault.Temporary, fault.Permission, fault.Configuration, fault.Interrupted}
)

func (k Kit) create() *cli.Command {
	return k.Command(cli.Command{
		Name:      "create",
		Usage:     "make a cluster with a node pool for each slice, or complete one",
		ArgsUsage: "NAME",
		Description: `Makes a cluster in the region of --zone, with CPU nodes for the controllers and
one node pool for each slice, NAME-np-0, NAME-np-1, …, in the zone:

  multihost network create
  multihost cluster create team --tpu-type=v5litepod-16 --num-slices=2 --spot

The same command again changes nothing. After an interrupt or a failure it makes
what is missing: a node pool in state ERROR is deleted and made again. With a
larger --num-slices it makes further node pools. With a smaller one it asks, then
deletes those with the highest numbers. A cluster or node pool with other settings
is an error. Node pools on which workloads run stay, unless --force is given.

Then it installs JobSet and Kueue in the cluster, unless they are there, and makes
the queue for workloads. Names, requests and labels are those of XPK.`,
		Flags: slices.Concat(options.ClusterFlags(), []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "delete and remake node pools although workloads run on them or they have other settings"},
			&cli.BoolFlag{Name: "yes", Usage: "delete node pools without a question"},
			options.ConfirmFlag(),
			&cli.BoolFlag{Name: "dry-run", Usage: "print the plan, the requests (with --output=json) and the cost; change nothing"},
		}),
		Action: k.Act(func(c *Call) error {
			o := options.Cluster(c.Call, c.Machine)
			if err := c.Ready(); err != nil {
				return err
			}
			return c.Create(o, c.Bool("yes"))
		}),
	}, Changes...)
}

// Create makes or completes a cluster, or shows the plan for that. With sure, it deletes
// node pools without a question.
func (c *Call) Create(o gke.Options, sure bool) error {
	if err := c.checkNetwork(o); err != nil {
		return err
	}
	plan, err := c.Clusters.Plan(c.Context, o)
	if err != nil {
		return err
	}
	if c.DryRun {
		c.View.Emit(event.Result{Name: "cluster_plan", Text: plan.String(), Data: plan})
		return plan.Err()
	}
	if plan.Err() == nil && !plan.Done() {
		c.View.Emit(event.Note{Level: event.Info, Text: "the cluster will cost, an hour:\n" + strings.TrimSuffix(plan.Cost.String(), "\n")})
		if err := c.mayApply(plan, sure); err != nil {
			return err
		}
	}
	return c.Clusters.Apply(c.Context, plan)
}

// mayApply asks the user before node pools are deleted, unless sure is set. With --confirm,
// it also asks before slices are made.
func (c *Call) mayApply(plan gke.Plan, sure bool) error {
	lost := plan.Loses()
	switch {
	case len(lost) > 0 && !sure:
		if !c.CanAsk() {
			return &cmdline.UsageError{Err: fmt.Errorf("node pools would be deleted (%s), and there is no terminal to ask on", strings.Join(lost, ", ")), Advice: "look with --dry-run; then add --yes"}
		}
		return c.Confirm(c.Context, "delete the node pools "+strings.Join(lost, ", ")+"?")
	case c.Bool("confirm"):
		return c.Confirm(c.Context, "make this cluster?")
	}
	return nil
}

// checkNetwork runs before anything is billed. It reports a network that does not exist or
// is slow.
func (c *Call) checkNetwork(o gke.Options) error {
	info, err := c.Networks.Show(c.Context, o.Network)
	switch {
	case err != nil:
		return announce.NamedNetwork(err)
	case info.MTU < network.DefaultMTU:
		event.Notef(c.View, event.Warn, "make one with: multihost network create", "network %s has MTU %d: traffic between slices is faster with %d", o.Network, info.MTU, network.DefaultMTU)
	}
	return nil
}

func (k Kit) list() *cli.Command {
	return k.Command(cli.Command{
		Name:  "list",
		Usage: "list the clusters of the project, in all regions",
		Description: `SLICES PER HOUR is the list price an hour of all slices, before discounts; "unknown"
if the price list has no price for their zone and tier. The CPU nodes and the
control plane cost more than that.`,
		Action: k.Act(func(c *Call) error {
			c.NoWords()
			if err := c.Ready(); err != nil {
				return err
			}
			return c.List()
		}),
	}, reads...)
}

// List shows the clusters of the project.
func (c *Call) List() error {
	all, err := c.Clusters.List(c.Context)
	if errors.Is(err, gcp.ErrPartial) {
		c.View.Emit(event.Note{Level: event.Warn, Text: err.Error()})
		err = nil
	}
	if err != nil {
		return err
	}
	if len(all) == 0 && c.View.Mode() != ui.JSON {
		c.View.Emit(event.Note{Level: event.Info, Text: "no clusters in project " + c.Project})
	}
	c.View.Emit(event.Result{Name: "clusters", Text: gke.Table(all, time.Now()), Data: all})
	return nil
}

func (k Kit) show() *cli.Command {
	return k.Command(cli.Command{
		Name: "show", Usage: "show a cluster, its node pools, its workloads and its cost", ArgsUsage: "NAME",
		Action: k.Act(func(c *Call) error {
			name := options.ClusterName(c.Call)
			if err := c.Ready(); err != nil {
				return err
			}
			info, err := c.Clusters.Show(c.Context, name)
			if err != nil {
				return err
			}
			c.View.Emit(event.Result{Name: "cluster", Text: info.String(), Data: info})
			return nil
		}),
	}, reads...)
}

func (k Kit) delete() *cli.Command {
	return k.Command(cli.Command{
		Name: "delete", Usage: "delete a cluster that multihost made, with all its node pools", ArgsUsage: "NAME",
		Description: `Ends when the cluster is gone. It is an error if workloads run on the slices, or if
nobody can tell whether they do; --force deletes the cluster all the same.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "delete the cluster although workloads run there"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be deleted; change nothing"},
		},
		Action: k.Act(func(c *Call) error {
			name := options.ClusterName(c.Call)
			if err := c.Ready(); err != nil {
				return err
			}
			return c.Delete(name, c.Bool("force"))
		}),
	}, Changes...)
}

// Delete deletes a cluster, or shows what would be deleted. With force, it does so even
// while workloads run there.
func (c *Call) Delete(name string, force bool) error {
	if c.DryRun {
		d, err := c.Clusters.PlanDelete(c.Context, name, force)
		if err != nil {
			return err
		}
		c.View.Emit(event.Result{Name: "cluster_delete_plan", Text: d.Text(), Data: d})
		return nil
	}
	_, err := c.Clusters.Delete(c.Context, name, force)
	return err
}
