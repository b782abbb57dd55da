// Package nodes works on existing slices, whoever made them. The Cloud TPU API calls them
// nodes. The package reads slices and the host keys of their workers, and gives a user's
// key access through metadata or OS Login.
//
// The cloud holds the state: between calls, a Client remembers only the project's metadata
// for logins (SSH keys and OS Login).
package nodes

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/tpu"
	"multihost/internal/zones"

	"golang.org/x/sync/semaphore"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// A Client works on the slices of one project and zone. It is safe for concurrent use.
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

func (c api) parent() string              { return gcp.Location(c.gcp.Project(), c.gcp.Zone()) }
func (c api) nodeName(name string) string { return c.parent() + "/nodes/" + name }
func (c api) now() time.Time              { return c.gcp.Clock().Now() }
func (c api) sink() event.Sink            { return c.gcp.Sink() }

// Slices returns all slices of the project and zone, whoever made them, in the API's order
// and with Index -1. It makes one call per page, not per slice.
func (c *Client) Slices(ctx context.Context) ([]tpu.Slice, error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return nil, err
	}
	all := []tpu.Slice{}
	for page := ""; ; {
		var list *tpuapi.ListNodesResponse
		err := c.gcp.Do(ctx, "list TPU slices", func(ctx context.Context) (err error) {
			list, err = svc.Projects.Locations.Nodes.List(c.parent()).PageSize(gcp.PageSize).PageToken(page).Context(ctx).Do()
			if err == nil {
				err = gcp.Partial(list.Unreachable)
			}
			return err
		})
		if err != nil {
			return nil, zones.Explain(ctx, c.gcp, err)
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
		Index: -1, Name: gcp.BaseName(n.Name), UID: strconv.FormatInt(n.Id, 10), Project: project, Zone: zone,
		Type: TypeOf(n), RuntimeVersion: n.RuntimeVersion,
		State: n.State, Health: n.Health, HealthDetail: n.HealthDescription, Condition: ConditionOf(n.State, n.Health),
		QueuedResource: gcp.BaseName(n.QueuedResource), MultiSlice: n.MultisliceNode,
		Labels: n.Labels, Metadata: n.Metadata, Tags: n.Tags,
	}
	if t, err := time.Parse(time.RFC3339, n.CreateTime); err == nil {
		s.Created = t
		if s.Condition == tpu.Usable || s.Condition == tpu.Serviced || s.Condition == tpu.Ill {
			s.Billed = t
		}
	}
	interfaces := 1
	switch {
	case n.NetworkConfig != nil:
		s.Network = gcp.BaseName(n.NetworkConfig.Network)
	case len(n.NetworkConfigs) > 0:
		s.Network = gcp.BaseName(n.NetworkConfigs[0].Network)
		interfaces = len(n.NetworkConfigs)
	}
	// A worker with several interfaces has several endpoints in a row. Take the first.
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

// TypeOf returns the accelerator type of a node, also if the node was requested by chip type
// and topology.
func TypeOf(n *tpuapi.Node) string {
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

// ConditionOf returns the condition of a slice from the API's words for its state and
// health. An empty state means that the API does not list the slice.
func ConditionOf(state, health string) tpu.Condition {
	switch state {
	case "READY":
		switch health {
		case "", "HEALTHY", "HEALTH_UNSPECIFIED":
			return tpu.Usable
		case "UNHEALTHY_MAINTENANCE":
			return tpu.Serviced
		}
		return tpu.Ill
	case "CREATING":
		return tpu.Making
	case "PREEMPTED", "TERMINATED": // its queued resource becomes SUSPENDING
		return tpu.Taken
	case "STOPPED", "STOPPING": // the API can restart only slices of one host
		return tpu.Halted
	case "DELETING":
		return tpu.Leaving
	}
	return tpu.Unclear // RESTARTING, REPAIRING and others
}
