package gce

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

const (
	// recreateLimit limits how long Create waits for the end of an older resource of the
	// same name.
	recreateLimit = 30 * time.Minute
	// lastReadLimit limits the read that finds out, after the end of the caller's context,
	// whether something was made.
	lastReadLimit = 10 * time.Second
	// undoLimit limits the deletion of the parts of a refused or interrupted Create.
	undoLimit = 30 * time.Second
)

// Create implements provision.Provider. It makes the policy, the template and the groups
// that do not exist yet. So after a break at any place, the next call continues there.
// Create waits until Compute Engine has accepted all groups. It does not wait for their
// VMs.
//
// If a resource of the name fails or its slices were taken away, the error is a
// *provision.StateError. If Create is refused or interrupted before a group exists, it
// deletes what it has made. If a resource of the name is being deleted, Create waits until
// it is gone. With a read-only client, the error is a *gcp.ReadOnlyError if Create would
// have to make something. res then has the existing parts of an older request, or is zero.
func (p *Provider) Create(ctx context.Context, r provision.Request) (res provision.Resource, created bool, err error) {
	if err := check(r, p.at()); err != nil {
		return provision.Resource{}, false, err
	}
	res, ready, err := p.existing(ctx, r)
	if ready || err != nil {
		return res, false, err
	}
	image, err := p.image(ctx, r)
	if err != nil {
		return provision.Resource{}, false, err
	}
	parts, err := newPlan(r, p.at(), image)
	if err != nil {
		return provision.Resource{}, false, err
	}
	for _, part := range p.parts(parts) {
		made, err := p.ensure(ctx, part)
		created = created || made
		if err != nil && created && res.ID == "" && p.undo(ctx, r.ID, err) {
			return res, false, err
		}
		if err != nil && created {
			return provision.Resource{ID: r.ID, Commands: commands(r.ID), Life: provision.Requested, State: wordRequested, Labels: r.Labels}, true, err
		}
		if err != nil {
			return res, false, err
		}
	}
	res, err = p.Get(gcp.Unattended(ctx), r.ID)
	if err != nil { // Compute Engine has accepted all parts. If this read fails, the wait for the slices reports why.
		res, err = justMade(r, p.gcp.Clock().Now()), nil
	}
	return res, created, err
}

// undo deletes the parts of a Create that ended with err. It returns false if it leaves
// parts. It leaves groups, because they hold slices. If the API does not answer, undo
// leaves all parts, and the next Create continues with them.
func (p *Provider) undo(ctx context.Context, id string, err error) bool {
	if class := gcp.ClassOf(err); ctx.Err() == nil && (class == gcp.Unavailable || class == gcp.Timeout) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	v, err := p.look(ctx, id)
	if err == nil && len(v.groups) > 0 {
		return false
	}
	if err == nil {
		_, err = p.remove(ctx, id, "create", undoLimit)
	}
	if err != nil {
		event.Notef(p.gcp.Sink(), event.Warn, "delete them with: "+commands(id).Delete, "parts of %s %q, which cost nothing, may be left: %v", kind, id, err)
		return false
	}
	event.Notef(p.gcp.Sink(), event.Info, "", "%s %q was not made; its parts that were made are deleted again", kind, id)
	return true
}

func justMade(r provision.Request, at time.Time) provision.Resource {
	return provision.Resource{
		ID: r.ID, Commands: commands(r.ID), Life: provision.Requested, State: wordRequested, Type: r.Type.Name, Tier: r.Asks(), Network: r.Network,
		NodeCount: len(r.NodeNames()), Nodes: r.NodeNames(), Labels: r.Labels, Reclaimable: r.Asks().Reclaimable(), CreateTime: at,
	}
}

// existing returns the resource of the name, and whether it is complete. If the resource is
// being deleted, existing waits until it is gone.
func (p *Provider) existing(ctx context.Context, r provision.Request) (res provision.Resource, ready bool, err error) {
	template, err := p.calls.Template(ctx, p.at().partName(r.ID))
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		return provision.Resource{}, false, p.dropPolicy(ctx, r)
	case err != nil:
		return provision.Resource{}, false, err
	}
	v, err := p.look(ctx, r.ID)
	if err != nil {
		return provision.Resource{}, false, err
	}
	if len(v.groups) > 0 {
		if res, err = p.resource(ctx, v, r.ID); err != nil {
			return res, false, err
		}
	}
	if res.Life == provision.Deleting {
		event.Notef(p.gcp.Sink(), event.Info, "", "%s %q exists and is %s: it is created anew when it is gone", kind, r.ID, res.State)
		_, err := p.remove(ctx, r.ID, "create", recreateLimit)
		var refused *gcp.ReadOnlyError
		if errors.As(err, &refused) {
			return res, false, err
		}
		return provision.Resource{}, false, err
	}
	diffs, run := differences(template, r), r.Labels[provision.LabelRun]
	if len(v.groups) == 0 && run != "" && template.GetProperties().GetLabels()[provision.LabelRun] == run && (len(diffs) > 0 || isOld(template.GetCreationTimestamp(), p.gcp.Clock().Now())) {
		_, err := p.remove(ctx, r.ID, "create", recreateLimit) // the rest of this run's older request
		return provision.Resource{}, false, err
	}
	if len(diffs) > 0 {
		return res, false, &provision.ConflictError{Commands: commands(r.ID), ID: r.ID, Owner: provision.Owner(template.GetProperties().GetLabels()), Differences: diffs}
	}
	half := res.State == wordHalfGone && res.Life == provision.Suspended // Create makes the missing groups
	if err := provision.NewStateError(res); err != nil && !half {
		return res, false, err
	}
	ready = len(v.groups) == len(r.NodeNames())
	if ready {
		event.Notef(p.gcp.Sink(), event.Info, "", "%s %q exists already and is what was asked for (%s): it is used", kind, r.ID, res.State)
	}
	return res, ready, nil
}

// isOld reports whether a part is the rest of an older request without groups. Another
// command may be about to delete it; see Sweep.
func isOld(created string, now time.Time) bool {
	made := timeOf(created)
	return !made.IsZero() && now.Sub(made) >= provision.MakingTime
}

// dropPolicy deletes a policy that an older request of the same run left when it broke off
// before its template. The policy stays if it is young and has the topology of r.
func (p *Provider) dropPolicy(ctx context.Context, r provision.Request) error {
	w, err := p.calls.Policy(ctx, p.at().partName(r.ID))
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		return nil
	case err != nil:
		return err
	case !sameOwner(w.GetDescription(), describe(r.ID, r.Labels)), r.Type.Workers > 1 && w.GetWorkloadPolicy().GetAcceleratorTopology() == r.Type.Topology && !isOld(w.GetCreationTimestamp(), p.gcp.Clock().Now()):
		return nil
	}
	return p.calls.DeletePolicy(ctx, w.GetName())
}

// image returns the boot image of r, after checking that the zone has its machine type.
func (p *Provider) image(ctx context.Context, r provision.Request) (string, error) {
	if _, err := p.Machine(ctx, r.Type); err != nil {
		return "", err
	}
	if given := settingsOf(r).Image; given != "" {
		return given, nil
	}
	return p.Image(ctx, r.Type)
}

// Machine implements provision.Catalog. If the zone does not have the machine type, the
// error is a *MachineError.
func (p *Provider) Machine(ctx context.Context, t tpu.Type) (string, error) {
	machine, err := tpu.MachineOf(t)
	if err != nil {
		return "", err
	}
	if _, err = p.calls.Machine(ctx, machine.Name); gcp.ClassOf(err) == gcp.NotFound {
		err = &MachineError{Machine: machine.Name, Zone: p.gcp.Zone(), Err: err}
	}
	return machine.Name, err
}

// Image implements provision.Catalog. It returns the newest image:
// "projects/P/global/images/NAME".
func (p *Provider) Image(ctx context.Context, t tpu.Type) (string, error) {
	image, err := p.calls.Newest(ctx, imageProject, t.Generation.ImageFamily)
	if err != nil {
		return "", err
	}
	return "projects/" + imageProject + "/global/images/" + image.GetName(), nil
}

// A part is one part of a resource.
type part struct {
	kind, name, about string
	insert            func(context.Context) error
	read              func(ctx context.Context, name string) (description string, err error)
}

func (p *Provider) parts(all plan) (list []part) {
	if w := all.policy; w != nil {
		list = append(list, part{partPolicy, w.GetName(), w.GetDescription(), func(ctx context.Context) error { return p.calls.InsertPolicy(ctx, w) }, p.aboutPolicy})
	}
	t := all.template
	list = append(list, part{partTemplate, t.GetName(), t.GetDescription(), func(ctx context.Context) error { return p.calls.InsertTemplate(ctx, t) }, p.aboutTemplate})
	for _, g := range all.groups {
		list = append(list, part{partGroup, g.GetName(), g.GetDescription(), func(ctx context.Context) error { return p.calls.InsertGroup(ctx, g) }, p.aboutGroup})
	}
	return list
}

// ensure makes a part unless it exists. The result made is also true if the answer was lost
// and the part now exists.
func (p *Provider) ensure(ctx context.Context, part part) (made bool, err error) {
	is := func(ctx context.Context) (bool, error) {
		about, err := part.read(ctx, part.name)
		switch {
		case gcp.ClassOf(err) == gcp.NotFound:
			return false, nil
		case err != nil:
			return false, err
		case !sameOwner(about, part.about):
			return false, &TakenError{Kind: part.kind, Name: part.name, Of: about}
		}
		return true, nil
	}
	if there, err := is(ctx); there || err != nil {
		return false, err
	}
	err = part.insert(ctx)
	switch class := gcp.ClassOf(err); {
	case err == nil:
		return true, nil
	case class == gcp.AlreadyExists: // an earlier try with a lost answer has made it, or somebody else has
		there, e := is(ctx)
		if e == nil && !there {
			e = err
		}
		return there, e
	case ctx.Err() != nil, class == gcp.Unavailable, class == gcp.Timeout:
		read, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReadLimit)
		defer cancel()
		there, _ := is(read) // an unreadable part counts as not made: err says that the call failed
		if there && ctx.Err() == nil {
			err = nil
		}
		return there, err
	}
	return false, err
}

// sameOwner reports whether two descriptions name the same resource and run.
func sameOwner(a, b string) bool {
	id, run, ok := described(a)
	otherID, otherRun, otherOK := described(b)
	return ok && otherOK && id == otherID && run == otherRun
}

// Preview implements provision.Previewer. It names the image by its family. The result
// command is empty, because no single gcloud command does the same.
func (p *Provider) Preview(r provision.Request) (body []byte, command string) {
	image := settingsOf(r).Image
	if image == "" {
		image = "projects/" + imageProject + "/global/images/family/" + r.Type.Generation.ImageFamily
	}
	all, err := newPlan(r, p.at(), image)
	if err != nil {
		return []byte("null"), ""
	}
	bodies := struct {
		Policy   json.RawMessage   `json:"workload_policy,omitempty"`
		Template json.RawMessage   `json:"instance_template"`
		Groups   []json.RawMessage `json:"groups"`
	}{Template: wire(all.template)}
	if all.policy != nil {
		bodies.Policy = wire(all.policy)
	}
	for _, g := range all.groups {
		bodies.Groups = append(bodies.Groups, wire(g))
	}
	body, _ = json.Marshal(bodies) // every value in it is JSON
	return body, ""
}

// wire returns a message in the API's form.
func wire(m proto.Message) json.RawMessage {
	text, _ := protojson.Marshal(m) // cannot fail without required fields
	return text
}
