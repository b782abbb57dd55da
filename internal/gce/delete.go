package gce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"
)

// DefaultDeleteLimit is the default limit of Delete.
const DefaultDeleteLimit = 30 * time.Minute

// A deletion without effect is repeated after reissueAfter.
const reissueAfter = 30 * time.Second

// Delete implements provision.Provider. It deletes the groups with their VMs. When these
// are gone, it deletes the template and then the policy.
func (p *Provider) Delete(ctx context.Context, id string, o provision.DeleteOptions) (deleted bool, err error) {
	labels, found, err := p.owner(ctx, id)
	if err != nil || !found {
		return false, err
	}
	if o.OnlyRun != "" && labels[provision.LabelRun] != provision.LabelValue(o.OnlyRun) {
		return false, &OwnerError{ID: id, Owner: provision.Owner(labels), Want: o.OnlyRun}
	}
	if o.Limit == 0 {
		o.Limit = DefaultDeleteLimit
	}
	start := p.gcp.Clock().Now()
	tell := func(s event.PhaseState, detail string) {
		p.gcp.Sink().Emit(event.Phase{Name: "delete", State: s, Detail: detail, Elapsed: p.gcp.Clock().Now().Sub(start)})
	}
	tell(event.Started, id)
	if deleted, err = p.remove(ctx, id, "delete", o.Limit); err != nil {
		tell(event.Failed, err.Error())
		return false, err
	}
	tell(event.Done, id+" is gone")
	return deleted, nil
}

// owner returns the labels of a resource's owner, and whether any part of the resource
// exists.
func (p *Provider) owner(ctx context.Context, id string) (labels map[string]string, found bool, err error) {
	var description string
	t, err := p.calls.Template(ctx, p.at().partName(id))
	if err == nil {
		if of, _, ok := described(t.GetDescription()); ok && of == id {
			return t.GetProperties().GetLabels(), true, nil
		}
	}
	if err != nil && gcp.ClassOf(err) != gcp.NotFound {
		return nil, false, err
	}
	w, err := p.calls.Policy(ctx, p.at().partName(id))
	if err == nil {
		description = w.GetDescription()
	} else if gcp.ClassOf(err) != gcp.NotFound {
		return nil, false, err
	}
	all, err := p.calls.Groups(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, g := range all {
		if of, _, ok := described(g.GetDescription()); ok && of == id {
			description = g.GetDescription()
		}
	}
	if of, _, ok := described(description); !ok || of != id {
		return nil, false, nil
	}
	return ownerIn(description), true, nil
}

// remove deletes all parts of a resource and waits until the last one is gone. phase is for
// events and errors.
func (p *Provider) remove(ctx context.Context, id, phase string, limit time.Duration) (deleted bool, err error) {
	ctx = gcp.Unattended(ctx) // this loop has a limit of its own
	clock := p.gcp.Clock()
	start := clock.Now()
	begin := start // the limit begins with the answer to the first request to delete
	asked := map[string]time.Time{}
	pace := provider.Pacer{Policy: provider.PollDefaults(gcp.Backoff{})}
	for {
		first := len(asked) == 0
		left, err := p.removeOnce(ctx, id, asked)
		deleted = deleted || len(asked) > 0
		switch {
		case err == nil && left == "":
			return deleted, nil
		case ctx.Err() != nil:
			return deleted, fmt.Errorf("wait until %s %q is gone: %w", kind, id, context.Cause(ctx))
		case err != nil && !provider.Survivable(err) && gcp.ClassOf(err) != gcp.Conflict:
			return deleted, err
		}
		now := clock.Now()
		if first && gcp.ClassOf(err) != gcp.Conflict {
			begin = now
		}
		remaining := limit - now.Sub(begin)
		if limit > 0 && remaining <= 0 {
			return deleted, &provision.DeadlineError{Commands: commands(id), ID: id, Phase: phase, Limit: limit, Life: provision.Deleting, State: wordDeleting, Detail: left + " is left", Err: err}
		}
		p.gcp.Sink().Emit(event.Progress{Phase: phase, Total: 1, Waiting: id, Detail: left, Elapsed: now.Sub(start), Limit: limit})
		pause := pace.Next()
		if limit > 0 {
			pause = min(pause, remaining)
		}
		select {
		case <-ctx.Done():
		case <-clock.After(pause):
		}
	}
}

// removeOnce requests the deletion of the parts whose turn it is. The result left names a
// part that still exists, or is "". The parameter asked has the time of the request to
// delete each group.
func (p *Provider) removeOnce(ctx context.Context, id string, asked map[string]time.Time) (left string, err error) {
	all, err := p.calls.Groups(ctx)
	if err != nil {
		return "a group", err
	}
	var errs []error
	for _, g := range all {
		if of, _, ok := described(g.GetDescription()); !ok || of != id {
			continue
		}
		left = partGroup + " " + g.GetName()
		if at, ok := asked[g.GetName()]; ok && p.gcp.Clock().Now().Sub(at) < reissueAfter {
			continue
		}
		if err := p.calls.DeleteGroup(ctx, g.GetName()); gcp.ClassOf(err) != gcp.NotFound && err != nil {
			errs = append(errs, err)
			continue
		}
		asked[g.GetName()] = p.gcp.Clock().Now()
	}
	if left != "" {
		return left, errors.Join(errs...)
	}
	return p.removeParts(ctx, id, asked, false)
}

// Sweep implements provision.Sweeper: it deletes the template and the policy after somebody
// else has deleted the groups. Before the run is over, Sweep deletes only parts that are
// too old for Create to use.
func (p *Provider) Sweep(ctx context.Context, id, run string, over bool) error {
	labels, found, err := p.owner(ctx, id)
	if err != nil || !found || labels[provision.LabelRun] != provision.LabelValue(run) {
		return err
	}
	v, err := p.look(ctx, id)
	if err != nil || len(v.groups) > 0 {
		return err
	}
	left, err := p.remains(ctx, v, nil)
	if err != nil || !over && !slices.ContainsFunc(left, func(r provision.Resource) bool { return r.ID == id && r.Life == provision.Failed }) {
		return err
	}
	_, err = p.removeParts(ctx, id, map[string]time.Time{}, !over)
	return err
}

// removeParts is removeOnce for a resource without groups. With onlyOld, it leaves parts
// that a command may have made anew since the caller looked.
func (p *Provider) removeParts(ctx context.Context, id string, asked map[string]time.Time, onlyOld bool) (left string, err error) {
	name := p.at().partName(id)
	type made interface {
		GetDescription() string
		GetCreationTimestamp() string
	}
	for _, part := range []struct {
		kind   string
		read   func() (made, error)
		delete func(context.Context, string) error
	}{
		{partTemplate, func() (made, error) { return p.calls.Template(ctx, name) }, p.calls.DeleteTemplate},
		{partPolicy, func() (made, error) { return p.calls.Policy(ctx, name) }, p.calls.DeletePolicy},
	} {
		found, err := part.read()
		of, _, ok := described(found.GetDescription())
		switch {
		case gcp.ClassOf(err) == gcp.NotFound:
			continue
		case err != nil:
			return part.kind + " " + name, err
		case !ok || of != id:
			continue // of another owner
		case onlyOld && !isOld(found.GetCreationTimestamp(), p.gcp.Clock().Now()):
			continue
		}
		asked[part.kind] = p.gcp.Clock().Now()
		if err := part.delete(ctx, name); err != nil && gcp.ClassOf(err) != gcp.NotFound {
			return part.kind + " " + name, err
		}
	}
	return "", nil
}
