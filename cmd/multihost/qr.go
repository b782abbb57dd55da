package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/access"
	"multihost/internal/announce"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/options"
	"multihost/internal/provider"
	"multihost/internal/qr"
	"multihost/internal/tpu"
	"multihost/internal/ui"
)

func qrCommand() *cli.Command {
	c := group(cli.Command{
		Name:  "qr",
		Usage: "make, watch, reset and delete queued resources: the requests that make slices",
		Subcommands: []*cli.Command{
			qrCreateCommand(), qrWaitCommand(), qrListCommand(), qrShowCommand(), qrDeleteCommand(), qrResetCommand(),
		},
	})
	return c
}

func qrCreateCommand() *cli.Command {
	return command(cli.Command{
		Name:      "create",
		Usage:     "ask for one or several slices",
		ArgsUsage: "ID",
		Description: `Makes a queued resource and ends when the service has taken the request. Add
--wait to wait until every worker answers.

  multihost qr create train --node-count=2 --node-prefix=train \
      --tpu-type=v5litepod-16 --network=mtu9k

If the same request exists already, multihost uses it. Otherwise it prints one
line before it makes the request: what it asks for, the list price an hour, and
what ends the bill. --confirm asks you then; a no ends the command with status
130.`,
		Flags: slices.Concat(options.RequestFlags(
			&cli.IntFlag{Name: "node-count", Value: 1, Usage: "make `N` slices"},
			options.TypeFlag(), options.RuntimeFlag(),
			&cli.BoolFlag{Name: "dry-run", Usage: "print the request and the gcloud command that does the same; change nothing"},
			options.ConfirmFlag(),
			&cli.BoolFlag{Name: "wait", Usage: "wait until every worker answers"},
			options.AsyncFlag("end when the request is sent; do not wait until the service takes it"),
		), options.WaitFlags(), options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			r := options.QueuedResource(&c.Call, s.machine(c))
			if c.Bool("async") && c.Bool("wait") {
				c.Refuse(usagef("--async and --wait exclude each other: give one of them"), "async", "wait")
			}
			limits := options.WaitLimits(&c.Call)
			d, err := asking(s, c)
			if err != nil {
				return err
			}
			r.Metadata = access.WithKey(r.Metadata, d.Access.Login, publicKey(d.Access))
			if err := r.Validate(); err != nil {
				return err
			}
			if s.dryRun {
				return s.qrPlan(c, d, r)
			}
			defer warnOfLeftovers(s, c, d, r.ID)()
			if err := announce.AskFor(c.Context, settingsDeps(d), r.Neutral()); err != nil {
				return interruptible(c.Context, err)
			}
			create := s.queue.Create
			if c.Bool("async") {
				create = s.queue.Submit
			}
			res, created, err := create(c.Context, r)
			if note, said := provider.Asked(res.Neutral(), created, c.Bool("async"), err); said {
				s.view.Emit(note)
			}
			if err != nil {
				return interruptible(c.Context, err)
			}
			if !c.Bool("wait") {
				return nil
			}
			return waitFor(s, c, d, res.ID, limits)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt, exitTerminate)
}

func qrWaitCommand() *cli.Command {
	return command(cli.Command{
		Name:      "wait",
		Usage:     "wait until every worker of a queued resource answers",
		ArgsUsage: "ID",
		Description: `Ready means: every slice READY and healthy, and every worker answers SSH. Ends
at once when the request fails, is suspended or is deleted.`,
		Flags: slices.Concat(options.WaitFlags(), options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			id, limits := options.IDWord(&c.Call), options.WaitLimits(&c.Call)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			return waitFor(s, c, d, id, limits)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt, exitTerminate)
}

func waitFor(s *session, c *call, d *deps, id string, o qr.WaitOptions) error {
	o.Probe = func(ctx context.Context, s tpu.Slice) error { return job.Probe(ctx, d.Reach, s) }
	_, slices, err := s.queue.Wait(c.Context, id, o)
	if err != nil {
		return interruptible(c.Context, err)
	}
	s.view.Emit(provider.Answering("queued resource "+id, slices))
	return nil
}

func qrListCommand() *cli.Command {
	return command(cli.Command{
		Name:  "list",
		Usage: "list the queued resources of a zone",
		Description: `--filter and --sort-by take paths of the API's fields, as gcloud's do:

  multihost qr list --filter='state.state=(ACTIVE FAILED) AND name:train' --sort-by=~createTime

A word without an operator is searched for in all fields. The list is sorted
first, then filtered, then cut off after --limit.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "filter", Usage: "only the resources that match `EXPRESSION`, in gcloud's language of filters"},
			&cli.StringFlag{Name: "sort-by", Usage: "sort by the fields `PATH,~PATH,…`; ~: in descending order"},
			&cli.StringFlag{Name: "limit", Value: "unlimited", Usage: "show at most `NUMBER` resources, or unlimited"},
			&cli.IntFlag{Name: "page-size", Value: 1000, Usage: "ask for `N` resources in one call"},
			&cli.BoolFlag{Name: "uri", Usage: "print only the address of each resource in the API"},
		},
		Action: withSession(func(s *session, c *call) error {
			c.NoWords()
			choice := options.Choice(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			list, err := s.queue.ListPaged(c.Context, int64(c.Int("page-size")))
			if err != nil {
				return interruptible(c.Context, err)
			}
			list = choice.Of(list)
			if len(list) == 0 && s.view.Mode() != ui.JSON {
				which := ""
				if c.IsSet("filter") {
					which = " that --filter takes"
				}
				s.view.Emit(event.Note{Level: event.Info, Text: fmt.Sprintf("no queued resources%s in project %s, zone %s", which, s.cloud.Project(), s.cloud.Zone())})
			}
			if !c.Bool("uri") {
				s.view.Emit(event.Result{Name: "queued_resources", Text: qr.Table(list, time.Now()), Data: list})
				return nil
			}
			uris := []string{}
			for _, r := range list {
				uri, err := s.queue.URI(c.Context, r.ID)
				if err != nil {
					return err
				}
				uris = append(uris, uri)
			}
			s.view.Emit(event.Result{Name: "queued_resource_uris", Text: strings.Join(append(uris, ""), "\n"), Data: uris})
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func qrShowCommand() *cli.Command {
	return command(cli.Command{
		Name:      "show",
		Aliases:   []string{"describe"},
		Usage:     "show one queued resource and its slices",
		ArgsUsage: "ID",
		Action: withSession(func(s *session, c *call) error {
			id := options.IDWord(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			res, err := s.queue.Get(c.Context, id)
			if err != nil {
				return interruptible(c.Context, missing(id, err))
			}
			s.view.Emit(event.Result{Name: "queued_resource", Text: qr.Detail(res, time.Now()), Data: res})
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func qrDeleteCommand() *cli.Command {
	return command(cli.Command{
		Name:      "delete",
		Usage:     "delete a queued resource; with --force also its slices",
		ArgsUsage: "ID",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "delete the slices too"},
			&cli.DurationFlag{Name: "delete-timeout", Value: 20 * time.Minute, Usage: "longest `TIME` to wait until it is gone"},
			options.AsyncFlag("end when the service has taken the request; do not wait for the deletion"),
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be deleted; change nothing"},
		},
		Action: withSession(func(s *session, c *call) error {
			id := options.IDWord(&c.Call)
			async := c.Bool("async")
			if _, typed := c.Typed["delete-timeout"]; typed && async {
				c.Refuse(usagef("--async and --delete-timeout exclude each other: --async does not wait"), "async", "delete-timeout")
			}
			if err := ready(c); err != nil {
				return err
			}
			if s.dryRun {
				plan, err := s.queue.PlanDelete(c.Context, id, c.Bool("force"))
				return s.showResult(c, "delete_plan", plan, err)
			}
			deleted, err := s.queue.Delete(c.Context, id, qr.DeleteOptions{Force: c.Bool("force"), Limit: c.Duration("delete-timeout"), Async: async})
			if err != nil {
				again := "multihost qr delete " + id
				if c.Bool("force") {
					again += " --force"
				}
				return deletes(c.Context, err, "queued resource "+id, again)
			}
			s.view.Emit(qr.Deleted(id, deleted, async))
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt)
}

func qrResetCommand() *cli.Command {
	return command(cli.Command{
		Name:      "reset",
		Usage:     "reboot all workers of a queued resource",
		ArgsUsage: "ID",
		Description: `Reboots the VMs of all slices and ends when the service reports that this is
done. Everything that runs on the workers ends. Disks and addresses stay. Settings
of the kernel are lost until the next start or preflight applies them. The queued
resource must be ACTIVE.`,
		Flags: []cli.Flag{
			options.AsyncFlag("end when the service has taken the request; do not wait for the reboot"),
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be rebooted; change nothing"},
		},
		Action: withSession(func(s *session, c *call) error {
			id := options.IDWord(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			if s.dryRun {
				plan, err := s.queue.PlanReset(c.Context, id)
				return s.showResult(c, "reset_plan", plan, err)
			}
			reset := s.queue.Reset
			if c.Bool("async") {
				reset = s.queue.SubmitReset
			}
			if err := reset(c.Context, id); err != nil {
				return interruptible(c.Context, missing(id, err))
			}
			s.view.Emit(qr.Rebooted(id, c.Bool("async")))
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt)
}

// missing replaces the API's not-found error by an error that names the queued resource.
func missing(id string, err error) error {
	if gcp.ClassOf(err) == gcp.NotFound {
		return qr.Missing(id)
	}
	return err
}

// qrPlan shows what qr create would create.
func (s *session) qrPlan(c *call, d *deps, r qr.Request) error {
	mtu, missing := announce.Check(c.Context, settingsDeps(d), r.Neutral(), nil)
	plan, err := s.queue.PlanCreate(c.Context, r)
	if err == nil && plan.Exists == nil {
		if missing != nil {
			return missing
		}
		announce.WouldAskFor(settingsDeps(d), r.Neutral(), mtu)
	}
	return s.showResult(c, "queued_resource_plan", plan, err)
}
