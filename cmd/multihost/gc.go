package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/gc"
	"multihost/internal/options"
	"multihost/internal/tpu"
)

// pricesHelp explains the column PER HOUR of a table.
const pricesHelp = `PER HOUR is the list price an hour of the slices that exist, before discounts;
"unknown" if the price list has no price for their zone and tier. Prices are
` + tpu.PriceSource + `.`

func gcCommand() *cli.Command {
	return command(cli.Command{
		Name:  "gc",
		Usage: "list what your runs left in the project; with --delete remove it",
		Description: `Lists, with their age, the requests for slices that multihost made for you in the
zone: those that are FAILED or SUSPENDED and still hold quota, those that have
slices, and those that wait for slices. It also lists networks that no machine uses,
and clusters of the region in which no pod asks for TPU chips: --delete leaves these.

--look logs in to worker 0 of each slice. Slices on which no run has been active
for 30 minutes (or --older-than) are of no more use. Reserved capacity always
counts as useful.

--delete does what --look does, asks on a terminal, and deletes the resources that
have "yes" in the list. With --cluster or --context, gc is about slices that pods hold
there. Right before it deletes a resource, it reads the state of
that resource again. It never deletes what multihost did not make.

` + pricesHelp,
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "prefix", Usage: "only resources with names that begin with `P`"},
			&cli.DurationFlag{Name: "older-than", Usage: "only what is older than `TIME`, or has been idle for that long"},
			&cli.BoolFlag{Name: "all-users", Usage: "list what the runs of all users left, not only yours"},
			&cli.BoolFlag{Name: "look", Usage: "log in to the slices, to see whether a run is active there"},
			&cli.BoolFlag{Name: "delete", Usage: "delete what is of no more use"},
			&cli.BoolFlag{Name: "yes", Usage: "delete without a question"},
		}, options.KubeFlags(), options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			c.NoWords()
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			if s.all != nil {
				s.all.Expect()
			}
			o := gc.GCOptions{Prefix: c.String("prefix"), OlderThan: c.Duration("older-than"), Look: c.Bool("look") || c.Bool("delete")}
			if s.held == nil {
				o.Networks, o.Clusters = s.networks, s.clusters
			}
			if !c.Bool("all-users") {
				o.User, _ = config.LocalUser(s.lookup, s.account)
			}
			left, err := gc.Leftovers(c.Context, gcDeps(d), o)
			if err != nil {
				return interruptible(c.Context, err)
			}
			s.view.Emit(event.Result{Name: "leftovers", Text: gc.LeftoverTable(left), Data: left})
			useless := gc.Useless(left)
			if !c.Bool("delete") || useless == 0 {
				return nil
			}
			if !c.Bool("yes") {
				if !canConfirm(c, s.view) {
					return &usageError{Err: errors.New("there is no terminal to ask on"), Advice: "add --yes to delete without a question"}
				}
				if err := confirm(c.Context, c, s.view, fmt.Sprintf("delete %s?", event.Count(useless, "leftover"))); err != nil {
					return err
				}
			}
			return interruptible(c.Context, gc.Collect(c.Context, gcDeps(d), o, left))
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt)
}

// warnOfLeftovers looks for what earlier runs of the user have left, while a command that
// makes or uses slices does its work. The look starts when the command's input has been
// checked. The caller ends it with wait. A simulator started for this command has no
// leftovers.
func warnOfLeftovers(s *session, c *call, d *deps, except string) (wait func()) {
	ended := func() {}
	if s.queue == nil || s.sim != nil {
		return ended
	}
	login, _ := config.LocalUser(s.lookup, s.account)
	all, reach := gcDeps(d), *d.Reach
	all.Reach, reach.Cloud = &reach, s.all // search every provider, although d may use only one
	d.Checked = func() { ended = gc.WarnOfLeftovers(c.Context, all, login, except) }
	return func() { ended() }
}
