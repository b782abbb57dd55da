package qr

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"

	"golang.org/x/sync/semaphore"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// A Client works on the queued resources and slices of one project and zone.
// It is safe for concurrent use.
type Client struct {
	api
	hostKeys
	access
}

// New returns a Client that makes its calls through c. It does no I/O.
func New(c *gcp.Client) *Client {
	calls := api{gcp: c}
	return &Client{
		api:      calls,
		hostKeys: hostKeys{api: calls, attributes: semaphore.NewWeighted(attributeCalls)},
		access:   access{api: calls},
	}
}

// An api makes single calls for one project and zone.
type api struct{ gcp *gcp.Client }

func (c api) parent() string          { return parentName(c.gcp.Project(), c.gcp.Zone()) }
func (c api) qrName(id string) string { return c.parent() + "/queuedResources/" + id }
func (c api) nodeName(id string) string {
	return c.parent() + "/nodes/" + id
}
func (c api) now() time.Time     { return c.gcp.Clock().Now() }
func (c api) sink() event.Sink   { return c.gcp.Sink() }
func (c api) emit(e event.Event) { c.gcp.Sink().Emit(e) }

// sleep waits for d on the client's clock. When ctx ends first, it returns its cause.
func (c api) sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.gcp.Clock().After(d):
		return nil
	}
}

// A Resource is a queued resource as the API reports it.
type Resource struct {
	ID             string            `json:"id"`
	State          string            `json:"state"`
	StateInitiator string            `json:"state_initiator,omitempty"` // USER or SERVICE
	Failure        string            `json:"failure,omitempty"`         // the API's text when FAILED
	Type           string            `json:"accelerator_type"`
	RuntimeVersion string            `json:"runtime_version"`
	Tier           Tier              `json:"tier"`
	Reservation    string            `json:"reservation,omitempty"`
	Network        string            `json:"network,omitempty"`
	Subnetwork     string            `json:"subnetwork,omitempty"`
	NodeCount      int               `json:"node_count"`
	Nodes          []string          `json:"nodes"`  // names of its slices, existing or not
	Slices         []SliceState      `json:"slices"` // slices that exist; Get and List set it
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

// Owner returns the owner of the resource in words, from its labels.
func (r Resource) Owner() string { return provision.Owner(r.Labels) }

// Made reports whether multihost made the resource. run and user are the values of
// its labels, in the form of provision.LabelValue.
func (r Resource) Made() (run, user string, ok bool) { return r.Neutral().Made() }

// Metadata returns the metadata that was requested for its VMs, or nil if the API
// did not return it.
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

// Dead reports whether the resource can give no more slices but still counts
// against the quota.
func (r Resource) Dead() bool { return LifeOf(r.State).Dead() }

func newResource(body *tpuapi.QueuedResource) Resource {
	r := Resource{ID: lastPart(body.Name), Tier: tierOf(body), Reservation: body.ReservationName, body: body}
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
	// A request for several nodes has one entry before it is expanded and one
	// for each node afterwards.
	for _, spec := range body.Tpu.NodeSpec {
		switch {
		case spec.MultiNodeParams != nil && spec.NodeId == "":
			prefix := firstOf(spec.MultiNodeParams.NodeIdPrefix, r.ID)
			r.Nodes = append(r.Nodes, expandPrefix(prefix, int(spec.MultiNodeParams.NodeCount))...)
		case spec.NodeId != "":
			r.Nodes = append(r.Nodes, spec.NodeId)
		}
		if n := spec.Node; n != nil && r.Type == "" {
			r.Type = typeOf(n)
			r.RuntimeVersion, r.Labels = n.RuntimeVersion, n.Labels
			if nc := n.NetworkConfig; nc != nil {
				r.Network, r.Subnetwork = lastPart(nc.Network), lastPart(nc.Subnetwork)
			} else if len(n.NetworkConfigs) > 0 {
				r.Network, r.Subnetwork = lastPart(n.NetworkConfigs[0].Network), lastPart(n.NetworkConfigs[0].Subnetwork)
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

// typeOf returns the accelerator type of a node. Some requests give chip type and
// topology instead.
func typeOf(n *tpuapi.Node) string {
	if n.AcceleratorType != "" || n.AcceleratorConfig == nil {
		return n.AcceleratorType
	}
	family := strings.ToLower(strings.ReplaceAll(n.AcceleratorConfig.Type, "_", ""))
	for _, t := range tpu.Types() {
		if t.Generation.Family == family && t.Topology == n.AcceleratorConfig.Topology {
			return t.Name
		}
	}
	return n.AcceleratorConfig.Type + " " + n.AcceleratorConfig.Topology
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
		return Resource{}, c.zoned(ctx, err)
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
func (c *Client) List(ctx context.Context) ([]Resource, error) { return c.ListPaged(ctx, pageSize) }

// ListPaged is List with pages of size resources.
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

// IDs returns the names of all queued resources of the project and zone. Unlike
// List, it does not read the slices.
func (c *Client) IDs(ctx context.Context) ([]string, error) {
	all, err := c.listResources(ctx, pageSize)
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
				err = whole(list.Unreachable)
			}
			return err
		})
		if err != nil {
			return nil, c.zoned(ctx, err)
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

// pageSize is the largest page that the API's lists return.
const pageSize = 1000

// whole returns an error for an incomplete list: the caller would take anything
// missing from it for deleted.
func whole(unreachable []string) error {
	if len(unreachable) == 0 {
		return nil
	}
	return fmt.Errorf("%w: it could not reach %s", gcp.ErrPartial, strings.Join(unreachable, ", "))
}

// Slices returns all slices of the project and zone, whoever made them, in the
// API's order and with Index -1. It makes one call per page, not one per slice.
func (c *Client) Slices(ctx context.Context) ([]tpu.Slice, error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return nil, err
	}
	all := []tpu.Slice{}
	for page := ""; ; {
		var list *tpuapi.ListNodesResponse
		err := c.gcp.Do(ctx, "list TPU slices", func(ctx context.Context) (err error) {
			list, err = svc.Projects.Locations.Nodes.List(c.parent()).PageSize(pageSize).PageToken(page).Context(ctx).Do()
			if err == nil {
				err = whole(list.Unreachable)
			}
			return err
		})
		if err != nil {
			return nil, c.zoned(ctx, err)
		}
		for _, n := range list.Nodes {
			all = append(all, newSlice(n))
		}
		if page = list.NextPageToken; page == "" {
			return all, nil
		}
	}
}

// Slice returns one slice, with Index -1.
func (c *Client) Slice(ctx context.Context, name string) (tpu.Slice, error) {
	node, err := c.readNode(ctx, name)
	if err != nil {
		return tpu.Slice{}, err
	}
	return newSlice(node), nil
}

func (c api) readNode(ctx context.Context, name string) (node *tpuapi.Node, err error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return nil, err
	}
	err = c.gcp.Do(ctx, fmt.Sprintf("read TPU slice %q", name), func(ctx context.Context) (err error) {
		node, err = svc.Projects.Locations.Nodes.Get(c.nodeName(name)).Context(ctx).Do()
		return err
	})
	return node, err
}

func newSlice(n *tpuapi.Node) tpu.Slice {
	project, zone := placeOf(n.Name)
	s := tpu.Slice{
		Index: -1, Name: lastPart(n.Name), UID: strconv.FormatInt(n.Id, 10), Project: project, Zone: zone,
		Type: typeOf(n), RuntimeVersion: n.RuntimeVersion,
		State: n.State, Health: n.Health, HealthDetail: n.HealthDescription, Condition: conditionOf(n.State, n.Health),
		QueuedResource: lastPart(n.QueuedResource), MultiSlice: n.MultisliceNode,
		Labels: n.Labels, Metadata: n.Metadata, Tags: n.Tags,
	}
	if t, err := time.Parse(time.RFC3339, n.CreateTime); err == nil {
		s.Created = t
	}
	interfaces := 1
	switch {
	case n.NetworkConfig != nil:
		s.Network = lastPart(n.NetworkConfig.Network)
	case len(n.NetworkConfigs) > 0:
		s.Network = lastPart(n.NetworkConfigs[0].Network)
		interfaces = len(n.NetworkConfigs)
	}
	// A worker with several interfaces has one endpoint for each, one after the
	// other. Its first endpoint is the one to connect to.
	for i := 0; i < len(n.NetworkEndpoints); i += interfaces {
		e := n.NetworkEndpoints[i]
		w := tpu.Worker{Internal: e.IpAddress}
		if e.AccessConfig != nil {
			w.External = e.AccessConfig.ExternalIp
		}
		s.Workers = append(s.Workers, w)
	}
	return s
}

// placeOf returns the project and zone of a name projects/P/locations/Z/….
func placeOf(name string) (project, zone string) {
	parts := strings.Split(name, "/")
	if len(parts) >= 4 && parts[0] == "projects" && parts[2] == "locations" {
		return parts[1], parts[3]
	}
	return "", ""
}

// slicesOf returns the nodes that belong to r, in the order of r.Nodes, with Index
// set to their index in it. The name alone does not decide: a slice that another
// queued resource made never belongs to r.
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
