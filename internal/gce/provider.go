package gce

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"multihost/internal/gce/api"
	"multihost/internal/gcp"
	"multihost/internal/nodes"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A Provider makes and finds slices of one project and zone. It is safe for concurrent use.
type Provider struct {
	*reader
	rights
	logins *nodes.Client
	root   string // address of the API for workers
}

var (
	_ provision.Provider   = (*Provider)(nil)
	_ provision.Explainer  = (*Provider)(nil)
	_ provision.Previewer  = (*Provider)(nil)
	_ provision.Catalog    = (*Provider)(nil)
	_ provision.Doorkeeper = (*Provider)(nil)
	_ provision.Sweeper    = (*Provider)(nil)
	_ provision.Numberer   = (*Provider)(nil)
	_ provision.Permitted  = (*Provider)(nil)

	_ provision.ConsoleReader   = (*Provider)(nil)
	_ provision.AttributeReader = (*Provider)(nil)
	_ provision.Reserver        = (*Provider)(nil)
	_ provision.Itemizer        = (*Provider)(nil)
)

// New returns a Provider that makes its calls through c. root is the API's address for
// workers, as in [gcp.Roots]; "" means the client's address. New does no I/O.
func New(c *gcp.Client, root string) *Provider {
	if root == "" {
		roots, _ := c.Roots() // if an address is no URL, the first call fails
		root = roots.Compute
	}
	r := &reader{gcp: c, calls: api.New(c), turn: semaphore.NewWeighted(callsAtOnce), told: map[string]told{}, warned: map[string]bool{}}
	logins := nodes.New(c)
	return &Provider{reader: r, rights: rights{c, logins}, logins: logins, root: root}
}

// kind is the name of a resource in messages.
const kind = "slice request"

func commands(id string) provision.Commands {
	return provision.Commands{
		Service: "Compute Engine", Kind: kind, List: "multihost slices list", Show: "multihost slices list", Wait: "multihost slices wait " + id,
		Gone: "multihost slices delete " + id, Delete: "multihost slices delete " + id,
	}
}

// idle are the states of a VM without commands.
const idle = "PENDING PROVISIONING STAGING STOPPED SUSPENDED TERMINATED"

// Undoing implements provision.Provider. Workers delete the groups. They leave the template
// and the policy, which cost nothing, and are in use until the groups and the workers are
// gone. If a worker may not delete, the API refuses the Probe, provided that the API checks
// permissions before it looks for the group. Compute Engine chooses the names of the VMs,
// so a worker lists them.
func (p *Provider) Undoing(id string, slices ...string) provision.Undoing {
	zone := fmt.Sprintf("%s/compute/v1/projects/%s/zones/%s/", p.root, p.gcp.Project(), p.gcp.Zone())
	base := zone + "instanceGroupManagers/"
	u := provision.Undoing{Commands: commands(id), Peers: provision.Peers{
		List: base + "{slice}/listManagedInstances", Names: "/managedInstances/*/instance", States: "/managedInstances/*/instanceStatus",
		Idle: idle, More: "/nextPageToken",
		Read: zone + "instances/{vm}/getGuestAttributes?queryPath=multihost/lease", Told: "/queryValue/items/*/value",
	}}
	for _, name := range slices {
		u.Parts = append(u.Parts, provision.Part{
			Look: base + name, About: describe(id, nil), Delete: base + name,
			Probe: base + fmt.Sprintf("multihost-probe-%d", crc32.ChecksumIEEE([]byte(id))),
		})
	}
	return u
}

// Get implements provision.Provider. It costs four calls, one more for each slice, and one
// for each VM of slices that run for the first time.
func (p *Provider) Get(ctx context.Context, id string) (provision.Resource, error) {
	v, err := p.look(ctx, id)
	if err != nil {
		return provision.Resource{}, err
	}
	if len(v.groups) == 0 {
		return provision.Resource{}, missing{id}
	}
	return p.resource(ctx, v, id)
}

// List implements provision.Provider. It also returns resources with a template or a policy
// but no group. If a part is younger than [provision.MakingTime], the resource counts as
// requested, because its groups may still come. Otherwise it counts as failed, and Delete
// removes the rest.
func (p *Provider) List(ctx context.Context) ([]provision.Resource, error) {
	v, err := p.look(ctx, "")
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, g := range v.groups {
		if id, _, ok := described(g.GetDescription()); ok {
			ids[id] = true
		}
	}
	all := []provision.Resource{}
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		r, err := p.resource(ctx, v, id)
		all, errs = append(all, r), append(errs, err)
	}
	left, err := p.remains(ctx, v, ids)
	all = append(all, left...)
	slices.SortFunc(all, byID)
	return all, errors.Join(append(errs, err)...)
}

// remains returns the resources of the zone without groups. The parameter living has the
// names of the other resources. The time of the newest part counts as the time of the
// resource.
func (p *Provider) remains(ctx context.Context, v view, living map[string]bool) ([]provision.Resource, error) {
	if len(v.groups) == 0 { // the function look has not read them
		if err := p.readTemplates(ctx, "", v.templates); err != nil {
			return nil, err
		}
	}
	policies, err := p.calls.Policies(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]provision.Resource{}
	note := func(name, description, created string, labels map[string]string) {
		id, _, ok := described(description)
		if !ok || living[id] || name != p.at().partName(id) {
			return
		}
		r, known := found[id]
		if !known {
			r = provision.Resource{ID: id, Commands: commands(id), Zone: p.gcp.Zone(), Labels: labels}
		}
		if made := timeOf(created); made.After(r.CreateTime) {
			r.CreateTime = made
		}
		found[id] = r
	}
	for _, t := range v.templates {
		labels := t.GetProperties().GetLabels()
		if labels == nil {
			labels = ownerIn(t.GetDescription())
		}
		note(t.GetName(), t.GetDescription(), t.GetCreationTimestamp(), labels)
	}
	for _, w := range policies {
		note(w.GetName(), w.GetDescription(), w.GetCreationTimestamp(), ownerIn(w.GetDescription()))
	}
	now := p.gcp.Clock().Now()
	all := []provision.Resource{}
	for _, r := range found {
		r.Life, r.State, r.Free = provision.Requested, wordNoGroups, true
		if now.Sub(r.CreateTime) >= provision.MakingTime {
			r.Life, r.Failure = provision.Failed, "its groups are gone; its template or its policy is left"
		}
		all = append(all, r)
	}
	slices.SortFunc(all, byID)
	return all, nil
}

func byID(a, b provision.Resource) int { return strings.Compare(a.ID, b.ID) }

// Slices implements provision.Provider. It returns all slices of several VMs, and those
// slices of one VM that multihost made.
func (p *Provider) Slices(ctx context.Context) ([]tpu.Slice, error) {
	v, err := p.look(ctx, "")
	if err != nil {
		return nil, err
	}
	all := []tpu.Slice{}
	seen := map[string]bool{}
	for _, g := range v.groups {
		id, _, ours := described(g.GetDescription())
		switch {
		case ours && seen[id]:
		case ours:
			seen[id] = true
			r, err := p.resource(ctx, v, id)
			if err != nil {
				return nil, err
			}
			all = append(all, r.Slices...)
		default:
			s := p.sight(v, g, record{})
			if len(s.vms) == 0 {
				continue
			}
			slice, err := p.slice(ctx, s, s.judge(), record{}, nil)
			if err != nil {
				return nil, err
			}
			all = append(all, slice)
		}
	}
	for i := range all {
		all[i].Index = -1
	}
	return all, nil
}

// Explain implements provision.Explainer. It makes no calls.
func (p *Provider) Explain(_ context.Context, r provision.Resource, _ time.Duration) provision.Explanation {
	st, _ := r.Own.(state)
	return reason(st, r, p.gcp.Zone())
}

// Restart implements provision.Provider: it resets all VMs.
func (p *Provider) Restart(ctx context.Context, id string) error {
	v, err := p.look(ctx, id)
	if err != nil {
		return err
	}
	if len(v.groups) == 0 {
		return missing{id}
	}
	resets, ctx := errgroup.WithContext(ctx)
	resets.SetLimit(callsAtOnce)
	for _, g := range v.groups {
		for _, vm := range p.sight(v, g, record{}).vms {
			resets.Go(func() error { return p.calls.Reset(ctx, vm.GetName()) })
		}
	}
	if err := resets.Wait(); err != nil {
		return fmt.Errorf("reboot slices %q: %w", id, err)
	}
	return nil
}
