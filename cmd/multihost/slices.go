package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"multihost/internal/access"
	"multihost/internal/announce"
	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/options"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/tpu"
	"multihost/internal/ui"
)

func slicesCommand() *cli.Command {
	return group(cli.Command{
		Name:        "slices",
		Usage:       "make, watch and delete slices, of the Cloud TPU API and of Compute Engine",
		Subcommands: []*cli.Command{slicesCreateCommand(), slicesWaitCommand(), slicesListCommand(), slicesDeleteCommand()},
	})
}

func slicesCreateCommand() *cli.Command {
	return command(cli.Command{
		Name:      "create",
		Usage:     "ask for one or several slices",
		ArgsUsage: "ID",
		Description: `Asks for slices and ends when the service has taken the request. Add --wait to
wait until every worker answers. TPU7x slices exist on Compute Engine only:

  multihost slices create train --node-count=2 --node-prefix=train \
      --tpu-type=tpu7x-16 --network=mtu9k --spot

On Compute Engine, a slice is a managed instance group. All slices of ID share
an instance template and, if a slice has several VMs, a workload policy.
--max-run-duration ends the slices whatever happens: Compute Engine deletes the
VMs with their boot disks.

If a command was interrupted, the same command again makes what is missing. If
the same request exists already, multihost uses it.`,
		Flags: slices.Concat(options.SliceFlags(
			&cli.BoolFlag{Name: "dry-run", Usage: "print the request; change nothing"},
			options.ConfirmFlag(),
			&cli.BoolFlag{Name: "wait", Usage: "wait until every worker answers"},
			options.SlicesDeadlineFlag(0),
		), options.HeldFlags(), options.WaitFlags(), options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			if s.held != nil {
				return s.hold(c)
			}
			r := options.SliceRequest(&c.Call, s.machine(c))
			why := s.chooseProvider(c, r)
			limits := options.SliceLimits(&c.Call)
			d, err := asking(s, c)
			if err != nil {
				return err
			}
			if why != "" {
				s.view.Emit(event.Note{Level: event.Info, Text: why})
			}
			r.Metadata = access.WithKey(r.Metadata, d.Access.Login, publicKey(d.Access))
			if s.dryRun {
				return s.slicesPlan(c.Context, d, r)
			}
			defer warnOfLeftovers(s, c, d, r.ID)()
			if err := announce.AskFor(c.Context, settingsDeps(d), r); err != nil {
				return interruptible(c.Context, err)
			}
			res, created, err := d.Cloud.Create(c.Context, r)
			if note, said := provider.Asked(res, created, false, err); said {
				s.view.Emit(note)
			}
			if err != nil {
				return interruptible(c.Context, err)
			}
			if !c.Bool("wait") {
				return nil
			}
			return s.waitForSlices(c, d, d.Cloud, res, limits)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt, exitTerminate)
}

// hold makes slices held by pods of a cluster.
func (s *session) hold(c *call) error {
	r, limits := options.HeldRequest(&c.Call, s.machine(c)), options.SliceLimits(&c.Call)
	d, err := s.workers(c)
	if err != nil {
		return err
	}
	res, created, err := s.held.Create(c.Context, r)
	if err != nil {
		return interruptible(c.Context, err)
	}
	if s.dryRun {
		plan := provider.Plan{ID: r.ID, Creates: true, Slices: []string{}}
		plan.Request, _ = s.held.Preview(r)
		s.view.Emit(event.Result{Name: "slices_plan", Text: plan.Text(provision.NameOf(s.held, r.ID)), Data: plan})
		return nil
	}
	if created {
		s.view.Emit(s.held.Asked(res))
	}
	if !c.Bool("wait") {
		return nil
	}
	return s.waitForSlices(c, d, s.held, res, limits)
}

// chooseProvider sets the provider of the session: the one of --provider, or else one that
// offers the type of r. It refuses the flags if that provider cannot make r. why gives the
// reason for the choice, or is "" if the user made it.
func (s *session) chooseProvider(c *call, r provision.Request) (why string) {
	on, why := options.Provider(&c.Call, r.Type)
	s.makeOn(on)
	if on == options.OnGCE && s.compute != nil && c.Sound() {
		c.Refuse(s.compute.Check(r), "provider", "tpu-type")
	}
	return why
}

// slicesPlan shows what slices create would make.
func (s *session) slicesPlan(ctx context.Context, d *deps, r provision.Request) error {
	mtu, missing := announce.Check(ctx, settingsDeps(d), r, nil)
	res, _, err := d.Cloud.Create(ctx, r)
	name := provision.NameOf(d.Cloud, r.ID)
	var refused *gcp.ReadOnlyError
	switch {
	case err == nil:
		s.view.Emit(event.Result{Name: "slices_plan", Text: fmt.Sprintf("%s is there already, state %s: nothing to create\n", name, res.State), Data: provider.Plan{ID: r.ID, Exists: true, Slices: []string{}}})
		return nil
	case !errors.As(err, &refused):
		return interruptible(ctx, err)
	case missing != nil:
		return missing
	}
	announce.WouldAskFor(settingsDeps(d), r, mtu)
	plan := provider.Plan{ID: r.ID, Creates: true, Slices: []string{}}
	if p, ok := provision.As[provision.Previewer](d.Cloud); ok {
		plan.Request, plan.Gcloud = p.Preview(r)
	}
	if p, ok := provision.As[provision.Itemizer](d.Cloud); ok {
		plan.Parts = cost.Parts(p.ItemsOf(r), r.Type.Name, string(r.Asks()), s.cloud.Zone())
	}
	s.view.Emit(event.Result{Name: "slices_plan", Text: plan.Text(name), Data: plan})
	return nil
}

func slicesWaitCommand() *cli.Command {
	return command(cli.Command{
		Name:      "wait",
		Usage:     "wait until every worker of the slices of a request answers",
		ArgsUsage: "ID",
		Description: `Waits until every slice is healthy, every VM shows which worker it is, and every
worker answers SSH. Ends at once when the request fails, when its slices are taken
away, and when somebody deletes it. With --slices-deadline, it deletes the request
if some slices have come and others have not.`,
		Flags: slices.Concat([]cli.Flag{options.SlicesDeadlineFlag(0)}, options.KubeFlags(), options.WaitFlags(), options.SSHFlags()),
		Action: withSession(func(s *session, c *call) error {
			id, limits := options.IDWord(&c.Call), options.SliceLimits(&c.Call)
			d, err := s.workers(c)
			if err != nil {
				return err
			}
			p, res, err := s.all.Sole(c.Context, id, "wait for")
			if errors.Is(err, provision.ErrNotFound) {
				of := provision.Provider(s.compute)
				if s.held != nil {
					of = s.held
				}
				err = &provision.StateError{Commands: of.Undoing(id).Commands, ID: id, Life: provision.Absent, State: provision.NotFound}
			}
			if err != nil {
				return interruptible(c.Context, err)
			}
			return s.waitForSlices(c, d, p, res, limits)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt, exitTerminate)
}

func (s *session) waitForSlices(c *call, d *deps, p provision.Provider, res provision.Resource, o provider.WaitOptions) error {
	if err := mayGiveBack(res, o); err != nil {
		return err
	}
	o.Clock, o.Sink = gcp.SystemClock, s.sink
	o.Probe = func(ctx context.Context, slice tpu.Slice) error { return job.Probe(ctx, d.Reach, slice) }
	_, all, err := provider.WaitTogether(c.Context, s.all.LedBy(p), res.ID, o)
	if err != nil {
		return interruptible(c.Context, err)
	}
	s.view.Emit(provider.Answering(provision.NameOf(p, res.ID), all))
	return nil
}

// mayGiveBack returns an error if the wait might delete the slices of a job.
func mayGiveBack(res provision.Resource, o provider.WaitOptions) error {
	if o.SlicesLimit > 0 && res.JobMade() {
		return usagef("--slices-deadline: the slices %s belong to a job, of %s: only its own --slices-deadline gives them back", res.ID, res.Owner())
	}
	return nil
}

func slicesListCommand() *cli.Command {
	return command(cli.Command{
		Name:  "list",
		Usage: "list the requests for slices of a zone, with all providers, or of a cluster",
		Flags: options.KubeFlags(),
		Action: withSession(func(s *session, c *call) error {
			c.NoWords()
			if err := ready(c); err != nil {
				return err
			}
			s.all.Expect()
			all, err := s.all.List(c.Context)
			if err != nil {
				return interruptible(c.Context, err)
			}
			if len(all) == 0 && s.view.Mode() != ui.JSON {
				s.view.Emit(event.Note{Level: event.Info, Text: "no slices in " + s.where()})
			}
			now := time.Now()
			list := provider.List(all, s.gcloud.Zone, now)
			s.view.Emit(event.Result{Name: "slices", Text: provider.Table(list, now), Data: list})
			if text, hint := provision.Remains(all); text != "" {
				s.view.Emit(event.Note{Level: event.Info, Text: text, Hint: hint})
			}
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

// where says where the session looks for slices.
func (s *session) where() string {
	if s.held != nil {
		return "namespace " + s.held.Client.Namespace() + " of " + s.held.Client.Server()
	}
	return fmt.Sprintf("project %s, zone %s", s.cloud.Project(), s.cloud.Zone())
}

func slicesDeleteCommand() *cli.Command {
	return command(cli.Command{
		Name:        "delete",
		Usage:       "delete the slices of a request, and all that was made for them",
		ArgsUsage:   "ID",
		Description: `Ends when all parts are gone. On Compute Engine these are the groups with their VMs and boot disks, then the instance template and the workload policy.`,
		Flags: append(options.KubeFlags(),
			&cli.DurationFlag{Name: "delete-timeout", Value: 20 * time.Minute, Usage: "longest `TIME` to wait until all is gone"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be deleted; change nothing"},
		),
		Action: withSession(func(s *session, c *call) error {
			id := options.IDWord(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			if s.dryRun {
				return s.slicesDeletePlan(c.Context, id)
			}
			deleted, err := s.all.Delete(c.Context, id, provision.DeleteOptions{Limit: c.Duration("delete-timeout")})
			if err != nil {
				return deletes(c.Context, err, id, "multihost slices delete "+id)
			}
			note := event.Note{Level: event.Info, Text: "deleted the slices of " + id}
			if !deleted { // the user may have meant another slice, which is still billed
				note = event.Note{Level: event.Warn, Text: "there are no slices of " + id + ": nothing to delete", Hint: "what there is: multihost slices list"}
			}
			s.view.Emit(note)
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig, exitInterrupt)
}

// slicesDeletePlan shows what slices delete would delete.
func (s *session) slicesDeletePlan(ctx context.Context, id string) error {
	res, err := s.all.Doomed(ctx, id)
	plan := provider.Plan{ID: id, Slices: []string{}}
	text := "there are no slices of " + id + ": nothing to delete\n"
	switch {
	case err == nil:
		for _, slice := range res.Slices {
			plan.Slices = append(plan.Slices, slice.Name)
		}
		plan.Deletes = true
		if p, ok := provision.As[provision.Itemizer](provider.Of(s.all, res.Commands.Kind)); ok {
			items, err := p.Items(ctx, id)
			if err != nil {
				return interruptible(ctx, err)
			}
			plan.Parts = cost.Parts(items, res.Type, string(res.Tier), s.cloud.Zone())
		}
		text = fmt.Sprintf("would delete %s %s (%s, of %s) with %s\n", res.Commands.Kind, id, res.State, res.Owner(), event.Count(len(plan.Slices), "slice")) + cost.PartLines(plan.Parts)
	case !errors.Is(err, provision.ErrNotFound):
		return interruptible(ctx, err)
	}
	s.view.Emit(event.Result{Name: "slices_plan", Text: text, Data: plan})
	return nil
}
