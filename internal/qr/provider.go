package qr

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/nodes"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A Provider offers queued resources to packages that know no cloud.
type Provider struct {
	c    *Client
	root string // address of the API as workers reach it
}

var (
	_ provision.Provider   = Provider{}
	_ provision.Explainer  = Provider{}
	_ provision.Previewer  = Provider{}
	_ provision.Doorkeeper = Provider{}
)

// Provider returns c as a provider of slices. root is the address at which workers reach
// the API, as in [gcp.Roots]. "" means the client's address.
func (c *Client) Provider(root string) Provider {
	if root == "" {
		roots, _ := c.gcp.Roots() // if the address is not a URL, the first call fails
		root = roots.TPU
	}
	return Provider{c, root}
}

// Get implements provision.Provider. It takes one call if the resource cannot have slices,
// otherwise two.
func (p Provider) Get(ctx context.Context, id string) (provision.Resource, error) {
	r, err := p.c.read(ctx, id)
	if gcp.ClassOf(err) == gcp.NotFound {
		return provision.Resource{}, missing{err}
	}
	if err != nil {
		return provision.Resource{}, err
	}
	if LifeOf(r.State) == provision.Waiting || r.State == "CREATING" {
		return p.resource(r, nil), nil
	}
	nodes, err := p.c.Slices(ctx)
	return p.resource(r, nodes), err
}

// missing is the API's error about a queued resource that does not exist.
type missing struct{ error }

func (m missing) Unwrap() error { return m.error }

// Is reports whether target is provision.ErrNotFound.
func (m missing) Is(target error) bool { return target == provision.ErrNotFound }

// List implements provision.Provider.
func (p Provider) List(ctx context.Context) ([]provision.Resource, error) {
	all, err := p.c.listResources(ctx, gcp.PageSize)
	if err != nil {
		return nil, err
	}
	nodes, err := p.c.Slices(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]provision.Resource, len(all))
	for i, r := range all {
		list[i] = p.resource(r, nodes)
	}
	return list, nil
}

// resource returns r with its nodes.
func (p Provider) resource(r Resource, nodes []tpu.Slice) provision.Resource {
	own := slicesOf(r, nodes)
	r.Slices = statesOf(own)
	out := r.Neutral()
	out.Zone, out.Slices = p.c.gcp.Zone(), own
	return out
}

// Create implements provision.Provider.
func (p Provider) Create(ctx context.Context, r provision.Request) (provision.Resource, bool, error) {
	res, created, err := p.c.Create(ctx, requestOf(r))
	out := provision.Resource{}
	if res.ID != "" {
		out = p.resource(res, nil)
	}
	return out, created, err
}

// Restart implements provision.Provider.
func (p Provider) Restart(ctx context.Context, id string) error { return p.c.Reset(ctx, id) }

// Delete implements provision.Provider.
func (p Provider) Delete(ctx context.Context, id string, o provision.DeleteOptions) (bool, error) {
	return p.c.Delete(ctx, id, DeleteOptions{Force: true, OnlyRun: o.OnlyRun, Limit: o.Limit})
}

// Slices implements provision.Provider.
func (p Provider) Slices(ctx context.Context) ([]tpu.Slice, error) { return p.c.Slices(ctx) }

// HostKeys implements provision.Provider.
func (p Provider) HostKeys(ctx context.Context, s tpu.Slice, worker int) (keys []string, hostname string, err error) {
	return p.c.HostKeys(ctx, s, worker)
}

// Attributes implements provision.AttributeReader.
func (p Provider) Attributes(ctx context.Context, slice, key string) ([]string, error) {
	return p.c.Attributes(ctx, slice, key)
}

// Admit implements provision.Provider, with metadata or OS Login.
func (p Provider) Admit(ctx context.Context, s tpu.Slice, l provision.Login) (user string, changed bool, err error) {
	return p.c.Login(ctx, s, l.Name, l.PublicKey, nodes.OSLoginOptions{Account: l.Account})
}

// Door implements provision.Doorkeeper.
func (p Provider) Door(ctx context.Context, s tpu.Slice, l provision.Login) (provision.Door, error) {
	return p.c.Door(ctx, s, l.Name, l.PublicKey, nodes.OSLoginOptions{Account: l.Account})
}

// Undoing implements provision.Provider. force in Delete deletes the slices, too.
func (p Provider) Undoing(id string, _ ...string) provision.Undoing {
	base := p.root + "/v2alpha1/" + p.c.parent()
	return provision.Undoing{
		Commands: commands(id),
		Parts: []provision.Part{{
			Look:   base + "/queuedResources/" + id,
			Labels: "/tpu/nodeSpec/*/node/labels",
			Going:  provision.Field{Path: "/state/state", Value: "DELETING"},
			Delete: base + "/queuedResources/" + id + "?force=true",
			Probe:  base + fmt.Sprintf("/queuedResources/multihost-probe-%d", crc32.ChecksumIEEE([]byte(id))),
		}},
		Peers: provision.Peers{
			Read: base + "/nodes/{slice}:getGuestAttributes", Body: `{"queryPath":"multihost/lease"}`,
			Told: "/guestAttributes/*/queryValue/items/*/value",
		},
	}
}

// Explain implements provision.Explainer.
func (p Provider) Explain(ctx context.Context, r provision.Resource, waited time.Duration) (e provision.Explanation) {
	own, ok := r.Own.(Resource)
	if !ok {
		own = Resource{ID: r.ID, State: r.State, Type: r.Type, Tier: r.Tier, NodeCount: r.NodeCount, Labels: r.Labels, Failure: r.Failure}
	}
	why := p.c.inquire(ctx, own, waited)
	e.Reason, e.Hint = why.diagnose()
	e.Again = why.repeat()
	return e
}

// Preview implements provision.Previewer.
func (p Provider) Preview(r provision.Request) (body []byte, command string) {
	own := requestOf(r)
	body, _ = json.Marshal(own.Body(p.c.gcp.Project(), p.c.gcp.Zone(), p.c.now())) // every value can be encoded as JSON
	return body, own.Gcloud(p.c.gcp.Project(), p.c.gcp.Zone())
}

// DefaultServiceAccount returns the service account of VMs whose request names none, or ""
// if the project cannot be read.
func (p Provider) DefaultServiceAccount(ctx context.Context) string {
	return p.c.Client.DefaultServiceAccount(ctx)
}

// Policy returns the bindings of the project's own policy.
func (p Provider) Policy(ctx context.Context) ([]gcp.Binding, error) { return p.c.gcp.Policy(ctx) }

// DeletionRoles returns the permission that workers need to delete queued resources, and the
// predefined roles with it. Queued resources have no permission of their own, so it is one
// on nodes.
func (p Provider) DeletionRoles() (permission string, roles []string) {
	return "tpu.nodes.delete", []string{"roles/tpu.admin", "roles/editor", "roles/owner"}
}

// MayCallAPI reports whether the scopes of the request let its workers delete it.
func (p Provider) MayCallAPI(r provision.Request) bool { return requestOf(r).MayCallTPU() }

// commands returns what a person types about a queued resource.
func commands(id string) provision.Commands {
	return provision.Commands{
		Service: "the Cloud TPU API", Kind: kind, List: "multihost qr list", Show: "multihost qr show " + id, Wait: "multihost qr wait " + id,
		Gone: "multihost qr delete " + id, Delete: "multihost qr delete " + id + " --force",
	}
}

// Neutral returns the request in the words of package provision.
func (r Request) Neutral() provision.Request {
	return provision.Request{
		ID: r.ID, NodeCount: r.NodeCount, Nodes: r.NodeNames(), Type: r.Type, Tier: r.Tier, Reservation: r.Reservation,
		MaxRunDuration: r.MaxRunDuration, ValidAfterDuration: r.ValidAfterDuration, ValidUntilDuration: r.ValidUntilDuration,
		ValidAfterTime: r.ValidAfterTime, ValidUntilTime: r.ValidUntilTime,
		Network: r.Network, Subnetwork: r.Subnetwork, Interfaces: r.Interfaces, ServiceAccount: r.ServiceAccount, Scopes: r.Scopes,
		Labels: r.Labels, Metadata: r.Metadata, OwnMetadata: r.OwnMetadata, Own: r,
	}
}

// requestOf returns the queued resource for n.
func requestOf(n provision.Request) Request {
	r, _ := n.Own.(Request)
	r.ID, r.NodeCount, r.Type, r.Tier, r.Reservation = n.ID, n.NodeCount, n.Type, n.Tier, n.Reservation
	r.MaxRunDuration, r.ValidAfterDuration, r.ValidUntilDuration = n.MaxRunDuration, n.ValidAfterDuration, n.ValidUntilDuration
	r.ValidAfterTime, r.ValidUntilTime = n.ValidAfterTime, n.ValidUntilTime
	r.Network, r.Subnetwork, r.Interfaces, r.ServiceAccount, r.Scopes = n.Network, n.Subnetwork, n.Interfaces, n.ServiceAccount, n.Scopes
	r.Labels, r.Metadata, r.OwnMetadata = n.Labels, n.Metadata, n.OwnMetadata
	return r
}

// Neutral returns the resource in the words of package provision.
func (r Resource) Neutral() provision.Resource {
	out := provision.Resource{
		ID: r.ID, Commands: commands(r.ID), Life: LifeOf(r.State), State: r.State, Failure: r.Failure,
		ByUser: r.StateInitiator == "USER", Reclaimable: r.Tier.Reclaimable(), Starved: starved(r.Failure),
		Type: r.Type, Tier: r.Tier, Network: r.Network, NodeCount: r.NodeCount, Nodes: r.Nodes, Labels: r.Labels,
		Metadata: r.Metadata(), CreateTime: r.CreateTime, Own: r,
	}
	switch r.StateInitiator {
	case "SERVICE":
		out.By = "Google (preemption or maintenance)"
	case "USER":
		out.By = "a user"
	}
	for _, s := range r.Slices {
		n := tpu.Slice{Name: s.Name, State: s.State, Health: s.Health, Condition: nodes.ConditionOf(s.State, s.Health), Workers: make([]tpu.Worker, s.Workers)}
		if s.Ready && len(n.Workers) == 0 {
			n.Workers = make([]tpu.Worker, 1)
		}
		out.Slices = append(out.Slices, n)
	}
	return out
}

// Wait waits until every slice of the queued resource is ready, as [provider.Wait] does.
func (c *Client) Wait(ctx context.Context, id string, opts WaitOptions) (Resource, []tpu.Slice, error) {
	opts.Clock, opts.Sink = c.gcp.Clock(), c.sink()
	res, all, err := provider.Wait(ctx, c.Provider(""), id, opts)
	own, _ := res.Own.(Resource)
	return own, all, err
}

// WaitOptions say how long a wait may take and what "ready" means. Clock and sink are those
// of the client.
type WaitOptions = provider.WaitOptions

// NoLimit means that a phase has no limit.
const NoLimit = provider.NoLimit
