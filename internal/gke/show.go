package gke

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provision"
)

// An Info describes a cluster.
type Info struct {
	Name       string    `json:"name"`
	Region     string    `json:"region"`
	Zones      []string  `json:"zones"` // of its nodes
	State      string    `json:"state"` // GKE's word
	Reason     string    `json:"reason,omitempty"`
	Version    string    `json:"version"`
	Server     string    `json:"server,omitempty"` // of its Kubernetes API
	Network    string    `json:"network"`
	Subnetwork string    `json:"subnetwork"`
	Owned      bool      `json:"owned"` // made by multihost
	User       string    `json:"user,omitempty"`
	Created    time.Time `json:"created"`
	Pools      []Pool    `json:"node_pools"`
	Cost       Cost      `json:"cost"`

	// Workloads are the pods that ask for TPU chips. If they cannot be read, Workloads is null
	// and Unread says why.
	Workloads []string `json:"workloads"`
	Unread    string   `json:"workloads_unknown,omitempty"`
}

// Types returns the accelerator types of the slices, and the number of slices.
func (i Info) Types() (types []string, number int) {
	for _, p := range i.Pools {
		if p.Type == "" {
			continue
		}
		number++
		if !slices.Contains(types, p.Type) {
			types = append(types, p.Type)
		}
	}
	return types, number
}

func infoOf(k *container.Cluster) Info {
	i := Info{
		Name: k.Name, Region: k.Location, Zones: k.Locations, State: k.Status, Reason: clusterReason(k), Version: k.CurrentMasterVersion,
		Network: gcp.BaseName(k.Network), Subnetwork: gcp.BaseName(k.Subnetwork), Owned: isOurs(k.ResourceLabels), User: k.ResourceLabels[provision.LabelUser],
		Pools: poolsOf(k),
	}
	if t, err := time.Parse(time.RFC3339, k.CreateTime); err == nil {
		i.Created = t
	}
	if at, err := endpointOf(k); err == nil { // without an endpoint there is no address
		i.Server = at.Server
	}
	i.Cost = costs(i.Pools)
	return i
}

// Show returns a cluster with its node pools and their workloads. If it does not exist, the
// error is a *MissingError.
func (c *Client) Show(ctx context.Context, name string) (Info, error) {
	if err := CheckName(name); err != nil {
		return Info{}, err
	}
	k, err := c.cluster(ctx, name)
	if err != nil {
		return Info{}, err
	}
	if k == nil {
		return Info{}, c.missing(name)
	}
	i := infoOf(k)
	c.addWorkloads(ctx, k, &i)
	return i, context.Cause(ctx)
}

// NodePools returns the node pools of a cluster, with TPU chips and without. If the cluster
// does not exist, the error is a *MissingError.
func (c *Client) NodePools(ctx context.Context, name string) ([]Pool, error) {
	k, err := c.cluster(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case k == nil:
		return nil, c.missing(name)
	}
	return poolsOf(k), nil
}

// Context returns the name of the context that gcloud container clusters get-credentials
// adds to kubectl's configuration for a cluster.
func (c *Client) Context(name string) string {
	return strings.Join([]string{"gke", c.gcp.Project(), c.region(), name}, "_")
}

func (c *Client) addWorkloads(ctx context.Context, k *container.Cluster, i *Info) {
	pods, err := c.podsOf(ctx, k)
	if err != nil {
		i.Unread = err.Error()
		return
	}
	i.Workloads = []string{}
	for _, p := range pods {
		i.Workloads = append(i.Workloads, p.String())
		if n := slices.IndexFunc(i.Pools, func(pool Pool) bool { return pool.Name == p.Pool }); n >= 0 {
			i.Pools[n].Workloads = append(i.Pools[n].Workloads, p.String())
		}
	}
}

// List returns the clusters of the project, sorted by region and name, without their
// workloads. If the error matches gcp.ErrPartial, some regions could not be read.
func (c *Client) List(ctx context.Context) ([]Info, error) {
	list, err := c.clusters(ctx)
	all := []Info{}
	for _, k := range list {
		all = append(all, infoOf(k))
	}
	slices.SortFunc(all, func(a, b Info) int {
		return strings.Compare(a.Region+"/"+a.Name, b.Region+"/"+b.Name)
	})
	return all, err
}

// Owned returns the clusters of the project that multihost has made, with their workloads.
func (c *Client) Owned(ctx context.Context) ([]Info, error) {
	list, err := c.clusters(ctx)
	if err != nil && !errors.Is(err, gcp.ErrPartial) {
		return nil, err
	}
	var all []Info
	for _, k := range list {
		if !isOurs(k.ResourceLabels) {
			continue
		}
		i := infoOf(k)
		c.addWorkloads(ctx, k, &i)
		all = append(all, i)
	}
	return all, context.Cause(ctx)
}

// Table formats clusters for people.
func Table(all []Info, now time.Time) string {
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tREGION\tSTATE\tVERSION\tTYPE\tSLICES\tNODES\tNETWORK\tAGE\tSLICES PER HOUR")
	for _, i := range all {
		types, number := i.Types()
		nodes := 0
		for _, p := range i.Pools {
			nodes += p.Nodes
		}
		kind := strings.Join(types, ",")
		if kind == "" {
			kind = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", i.Name, i.Region, i.State, i.Version, kind, number, nodes, i.Network, event.Age(now.Sub(i.Created)), cost.Price(i.Cost.Slices))
	}
	w.Flush()
	return b.String()
}

// String returns the cluster as text for people.
func (i Info) String() string {
	var b strings.Builder
	maker := "not made by multihost"
	if i.Owned {
		maker = "made by multihost"
		if i.User != "" {
			maker += " for " + i.User
		}
	}
	fmt.Fprintf(&b, "cluster %s: %s, Kubernetes %s, region %s, nodes in %s, network %s, %s\n", i.Name, i.State, i.Version, i.Region, strings.Join(i.Zones, ", "), i.Network, maker)
	if i.Reason != "" {
		fmt.Fprintf(&b, "  %s\n", i.Reason)
	}
	for _, p := range i.Pools {
		kind := p.Machine
		if p.Type != "" {
			kind = fmt.Sprintf("%s (%s), %s", p.Type, p.Machine, tierWords(Options{Tier: p.Tier, Reservation: p.Reservation}))
		}
		fmt.Fprintf(&b, "  node pool %s: %s, %s of %s", p.Name, p.State, event.Count(p.Nodes, "node"), kind)
		if len(p.Workloads) > 0 {
			fmt.Fprintf(&b, ", used by %s", listed(p.Workloads))
		}
		if p.Reason != "" {
			meaning, _ := explain(p.Reason)
			fmt.Fprintf(&b, ": %s: %s", meaning, p.Reason)
		}
		b.WriteByte('\n')
	}
	switch {
	case i.Unread != "":
		fmt.Fprintf(&b, "  whether workloads run is not known: %s\n", i.Unread)
	case len(i.Workloads) == 0:
		b.WriteString("  no workload asks for TPU chips\n")
	}
	return b.String() + i.Cost.String()
}
