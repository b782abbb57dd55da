package qr

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/nodes"
	"multihost/internal/provision"
	"multihost/internal/tpu"
	"multihost/internal/zones"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// A Client works on the queued resources and slices of one project and zone.
// It is safe for concurrent use.
type Client struct {
	api
	*nodes.Client
}

// New returns a Client that makes its calls through c. It does no I/O.
func New(c *gcp.Client) *Client { return &Client{api{gcp: c}, nodes.New(c)} }

// An api makes single calls for one project and zone.
type api struct{ gcp *gcp.Client }

func (c api) parent() string          { return gcp.Location(c.gcp.Project(), c.gcp.Zone()) }
func (c api) qrName(id string) string { return c.parent() + "/queuedResources/" + id }
func (c api) now() time.Time          { return c.gcp.Clock().Now() }
func (c api) sink() event.Sink        { return c.gcp.Sink() }
func (c api) emit(e event.Event)      { c.gcp.Sink().Emit(e) }

// A Resource is a queued resource as the API reports it.
type Resource struct {
	ID             string            `json:"id"`
	State          string            `json:"state"`
	StateInitiator string            `json:"state_initiator,omitempty"` // USER or SERVICE
	Failure        string            `json:"failure,omitempty"`         // the API's text, if the state is FAILED
	Type           string            `json:"accelerator_type"`
	RuntimeVersion string            `json:"runtime_version"`
	Tier           Tier              `json:"tier"`
	Reservation    string            `json:"reservation,omitempty"`
	Network        string            `json:"network,omitempty"`
	Subnetwork     string            `json:"subnetwork,omitempty"`
	NodeCount      int               `json:"node_count"`
	Nodes          []string          `json:"nodes"`  // names of its slices, whether they exist or not
	Slices         []SliceState      `json:"slices"` // existing slices; only Get and List set them
	Labels         map[string]string `json:"labels,omitempty"`
	CreateTime     time.Time         `json:"create_time"`

	body *tpuapi.QueuedResource
}

// A SliceState is one slice of a queued resource.
type SliceState struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Health  string `json:"health,omitempty"`
	Workers int    `json:"workers"`
	Ready   bool   `json:"ready"`
}

// Owner describes the owner of the resource, from its labels.
func (r Resource) Owner() string { return provision.Owner(r.Labels) }

// Made reports whether multihost made the resource. run and user are the values of
// its labels, in the form of provision.LabelValue.
func (r Resource) Made() (run, user string, ok bool) { return r.Neutral().Made() }

// Metadata returns the metadata requested for its VMs, or nil if the API did not return
// any.
func (r Resource) Metadata() map[string]string {
	if r.body == nil || r.body.Tpu == nil || len(r.body.Tpu.NodeSpec) == 0 || r.body.Tpu.NodeSpec[0].Node == nil {
		return nil
	}
	return r.body.Tpu.NodeSpec[0].Node.Metadata
}

// ReadySlices counts the slices that are ready for a run.
func (r Resource) ReadySlices() int {
	n := 0
	for _, s := range r.Slices {
		if s.Ready {
			n++
		}
	}
	return n
}

// Dead reports whether the resource can give no more slices but still uses quota.
func (r Resource) Dead() bool { return LifeOf(r.State).Dead() }

func newResource(body *tpuapi.QueuedResource) Resource {
	r := Resource{ID: gcp.BaseName(body.Name), Tier: tierOf(body), Reservation: body.ReservationName, body: body}
	if t, err := time.Parse(time.RFC3339, body.CreateTime); err == nil {
		r.CreateTime = t
	}
	if s := body.State; s != nil {
		r.State, r.StateInitiator = s.State, s.StateInitiator
		if s.FailedData != nil && s.FailedData.Error != nil {
			r.Failure = s.FailedData.Error.Message
		}
	}
	if body.Tpu == nil {
		return r
	}
	// A request for several nodes has one entry at first, and later one for each node.
	for _, spec := range body.Tpu.NodeSpec {
		switch {
		case spec.MultiNodeParams != nil && spec.NodeId == "":
			prefix := cmp.Or(spec.MultiNodeParams.NodeIdPrefix, r.ID)
			r.Nodes = append(r.Nodes, expandPrefix(prefix, int(spec.MultiNodeParams.NodeCount))...)
		case spec.NodeId != "":
			r.Nodes = append(r.Nodes, spec.NodeId)
		}
		if n := spec.Node; n != nil && r.Type == "" {
			r.Type = nodes.TypeOf(n)
			r.RuntimeVersion, r.Labels = n.RuntimeVersion, n.Labels
			if nc := n.NetworkConfig; nc != nil {
				r.Network, r.Subnetwork = gcp.BaseName(nc.Network), gcp.BaseName(nc.Subnetwork)
			} else if len(n.NetworkConfigs) > 0 {
				r.Network, r.Subnetwork = gcp.BaseName(n.NetworkConfigs[0].Network), gcp.BaseName(n.NetworkConfigs[0].Subnetwork)
			}
		}
	}
	r.NodeCount = len(r.Nodes)
	return r
}

func tierOf(body *tpuapi.QueuedResource) Tier {
	switch {
	case body.Spot != nil || body.ProvisioningModel == "SPOT":
		return Spot
	case body.BestEffort != nil:
		return BestEffort
	case body.ProvisioningModel == "FLEX_START":
		return FlexStart
	case body.ProvisioningModel == "RESERVATION_BOUND":
		return ReservationBound
	case body.Guaranteed != nil && body.Guaranteed.Reserved, body.ReservationName != "":
		return Reserved
	case body.Guaranteed != nil:
		return Guaranteed
	}
	return OnDemand
}

// read gets the queued resource without its slices.
func (c api) read(ctx context.Context, id string) (Resource, error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return Resource{}, err
	}
	var body *tpuapi.QueuedResource
	err = c.gcp.Do(ctx, fmt.Sprintf("read queued resource %q", id), func(ctx context.Context) (err error) {
		body, err = svc.Projects.Locations.QueuedResources.Get(c.qrName(id)).Context(ctx).Do()
		return err
	})
	if err != nil {
		return Resource{}, zones.Explain(ctx, c.gcp, err)
	}
	return newResource(body), nil
}

// Get returns one queued resource with the states of its slices. If there is none,
// the error is of class gcp.NotFound.
func (c *Client) Get(ctx context.Context, id string) (Resource, error) {
	r, err := c.read(ctx, id)
	if err != nil {
		return Resource{}, err
	}
	nodes, err := c.Slices(ctx)
	if err != nil {
		return Resource{}, err
	}
	r.Slices = statesOf(slicesOf(r, nodes))
	return r, nil
}

// List returns all queued resources of the project and zone, sorted by name, with
// the states of their slices.
func (c *Client) List(ctx context.Context) ([]Resource, error) { return c.ListPaged(ctx, gcp.PageSize) }

// ListPaged does what List does, with pages of size resources.
func (c *Client) ListPaged(ctx context.Context, size int64) ([]Resource, error) {
	all, err := c.listResources(ctx, size)
	if err != nil {
		return nil, err
	}
	nodes, err := c.Slices(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Slices = statesOf(slicesOf(all[i], nodes))
	}
	return all, nil
}

// URI returns the address of a queued resource in the API.
func (c *Client) URI(ctx context.Context, id string) (string, error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return "", err
	}
	return svc.BasePath + "v2alpha1/" + c.qrName(id), nil
}

// IDs returns the names of all queued resources of the project and zone, without a look at
// their slices.
func (c *Client) IDs(ctx context.Context) ([]string, error) {
	all, err := c.listResources(ctx, gcp.PageSize)
	ids := make([]string, len(all))
	for i, r := range all {
		ids[i] = r.ID
	}
	return ids, err
}

func (c *Client) listResources(ctx context.Context, size int64) ([]Resource, error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return nil, err
	}
	all := []Resource{}
	for page := ""; ; {
		var list *tpuapi.ListQueuedResourcesResponse
		err := c.gcp.Do(ctx, "list queued resources", func(ctx context.Context) (err error) {
			list, err = svc.Projects.Locations.QueuedResources.List(c.parent()).PageSize(size).PageToken(page).Context(ctx).Do()
			if err == nil {
				err = gcp.Partial(list.Unreachable)
			}
			return err
		})
		if err != nil {
			return nil, zones.Explain(ctx, c.gcp, err)
		}
		for _, body := range list.QueuedResources {
			all = append(all, newResource(body))
		}
		if page = list.NextPageToken; page == "" {
			break
		}
	}
	slices.SortFunc(all, func(a, b Resource) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// slicesOf returns the nodes of r, in the order of r.Nodes. Their Index is the position in
// r.Nodes. A slice that another queued resource has made never belongs to r, even if its name
// is in r.Nodes.
func slicesOf(r Resource, nodes []tpu.Slice) []tpu.Slice {
	index := make(map[string]int, len(r.Nodes))
	for i, name := range r.Nodes {
		index[name] = i
	}
	var own []tpu.Slice
	for _, s := range nodes {
		i, named := index[s.Name]
		switch {
		case s.QueuedResource == r.ID && named:
			s.Index = i
		case s.QueuedResource == r.ID:
			s.Index = len(r.Nodes)
		case named && s.QueuedResource == "":
			s.Index = i
		default:
			continue
		}
		own = append(own, s)
	}
	slices.SortStableFunc(own, func(a, b tpu.Slice) int { return a.Index - b.Index })
	return own
}

func statesOf(own []tpu.Slice) []SliceState {
	states := make([]SliceState, len(own))
	for i, s := range own {
		ready, _ := s.Ready()
		states[i] = SliceState{Name: s.Name, State: s.State, Health: s.Health, Workers: len(s.Workers), Ready: ready}
	}
	return states
}
