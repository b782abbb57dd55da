// Package gke makes, shows and deletes clusters of Google Kubernetes Engine whose node pools are
// TPU slices. Plan reads what exists and says what would change. Apply makes the changes.
// Applying the same options again changes nothing. If an Apply is interrupted, the next Plan and
// Apply continue from there.
//
// A cluster is regional, and its nodes are in one zone. Its default pool has CPU nodes for
// the controllers. Each slice is a node pool "<cluster>-np-<number>", because GKE makes,
// repairs and deletes the VMs of such a pool together.
//
// # Decisions
//
//   - Names, requests and labels are XPK's, so that both tools can share a cluster.
//   - Only pools with the names of slices are compared and deleted. Other pools belong to
//     the user.
//   - The state of a resource decides, and not its operation. The answer to a request may
//     be lost, and somebody else may have made the request.
//   - Apply never deletes the workload policy of a topology: it costs nothing, and pools of
//     other clusters in the region may use it.
package gke

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/gce/api"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// Defaults of Options, equal to XPK's.
const (
	DefaultNetwork    = "mtu9k"
	DefaultCPUMachine = "e2-standard-16"
	DefaultCPUNodes   = 6
	AsNeeded          = "AS_NEEDED"
	Periodic          = "PERIODIC"
)

// maxName is GKE's limit for the names of clusters and node pools, in characters. maxNetwork is
// Compute Engine's for the names of networks.
const (
	maxName    = 40
	maxNetwork = 63
)

// Options describe a cluster. Zero values mean the defaults in the comments.
type Options struct {
	Name        string
	Type        tpu.Type // of the slices; may be zero if Slices is 0
	Slices      int
	Tier        provision.Tier // default: on demand; or Spot, FlexStart, Reserved
	Reservation string         // R or projects/P/reservations/R, also with /reservationBlocks/B[/reservationSubBlocks/S]; for Tier Reserved
	Network     string         // default: DefaultNetwork
	Subnetwork  string         // default: the name of Network
	Version     string         // of Kubernetes; default: the recommendation of the channel RAPID
	CPUMachine  string         // of the default pool; default: DefaultCPUMachine
	CPUNodes    int            // of the default pool at its start; default: DefaultCPUNodes
	Maintenance string         // maintenance of hosts: AsNeeded (default) or Periodic
	User        string         // who makes the cluster, for labels
	Force       bool           // delete and remake node pools even if workloads run or may run on them
}

func (o Options) withDefaults() Options {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&o.Network, DefaultNetwork)
	set(&o.Subnetwork, o.Network)
	set(&o.CPUMachine, DefaultCPUMachine)
	set(&o.Maintenance, AsNeeded)
	if o.CPUNodes == 0 {
		o.CPUNodes = DefaultCPUNodes
	}
	switch {
	case o.Tier == "" && o.Reservation != "":
		o.Tier = provision.Reserved
	case o.Tier == "":
		o.Tier = provision.OnDemand
	}
	return o
}

var (
	namePattern        = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	reservationPattern = regexp.MustCompile(`^(projects/[^/]+/reservations/)?[a-z][-a-z0-9]*(/reservationBlocks/[^/]+(/reservationSubBlocks/[^/]+)?)?$`)
	versionPattern     = regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+(-gke\.[0-9]+)?)?$`)
)

// Validate checks every option without calling any API.
func (o Options) Validate() error {
	o = o.withDefaults()
	if err := CheckName(o.Name); err != nil {
		return err
	}
	if last := PoolName(o.Name, max(0, o.Slices-1)); len(last) > maxName {
		return fmt.Errorf("cluster name %q: the node pool %s has more than %d characters", o.Name, last, maxName)
	}
	switch {
	case o.Slices < 0:
		return fmt.Errorf("%d slices: want 0 or more", o.Slices)
	case o.CPUNodes < 1 || o.CPUNodes > maxCPUNodes:
		return fmt.Errorf("%d CPU nodes: want 1 to %d", o.CPUNodes, maxCPUNodes)
	case o.Version != "" && !versionPattern.MatchString(o.Version):
		return fmt.Errorf("version %q: want a version of GKE such as 1.34 or 1.34.1-gke.100", o.Version)
	case o.Maintenance != AsNeeded && o.Maintenance != Periodic:
		return fmt.Errorf("host maintenance %q: want %s or %s", o.Maintenance, AsNeeded, Periodic)
	case !slices.Contains([]provision.Tier{provision.OnDemand, provision.Spot, provision.FlexStart, provision.Reserved}, o.Tier):
		return fmt.Errorf("tier %q: node pools have on-demand, spot, flex-start and reserved", o.Tier)
	case o.Tier == provision.Reserved && o.Reservation == "":
		return fmt.Errorf("tier %s: which reservation?", o.Tier)
	case o.Tier != provision.Reserved && o.Reservation != "":
		return fmt.Errorf("reservation %q and tier %s exclude each other", o.Reservation, o.Tier)
	case o.Reservation != "" && !reservationPattern.MatchString(o.Reservation):
		return fmt.Errorf("reservation %q: want NAME, projects/P/reservations/NAME, or one of these with /reservationBlocks/BLOCK", o.Reservation)
	}
	if o.Slices == 0 {
		return nil
	}
	_, err := tpu.NodesOf(o.Type)
	return err
}

// CheckName returns what is wrong with the name of a cluster, or nil.
func CheckName(name string) error { return check("cluster", name, maxName) }

// CheckNetwork returns what is wrong with the name of a network or subnetwork, or nil.
func CheckNetwork(name string) error { return check("network", name, maxNetwork) }

func check(kind, name string, most int) error {
	switch {
	case name == "":
		return fmt.Errorf("%s name is empty", kind)
	case len(name) > most:
		return fmt.Errorf("%s name %q: longer than %d characters", kind, name, most)
	case !namePattern.MatchString(name):
		return fmt.Errorf("%s name %q: want lower-case letters, digits and dashes, beginning with a letter and not ending in a dash", kind, name)
	}
	return nil
}

// PoolName returns the name of the node pool of a slice.
func PoolName(cluster string, number int) string { return fmt.Sprintf("%s-np-%d", cluster, number) }

// A Pod is a pod of a cluster that asks for TPU chips.
type Pod struct {
	Namespace, Name string
	Pool            string // node pool of its node; "": it has no node yet
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// An Endpoint is where a cluster's Kubernetes API is.
type Endpoint struct {
	Server string // "https://…"
	CA     []byte // PEM certificates of the server's authorities; nil: the public ones
}

// A Reader reads the pods of a cluster that ask for TPU chips and have not ended.
type Reader func(ctx context.Context, at Endpoint) ([]Pod, error)

// A Client works on the clusters of one project, and makes nodes in one zone. It is safe for
// concurrent use.
type Client struct {
	*calls
	compute *api.Client
	pods    Reader
}

// New returns a Client that makes its calls through g. pods reads the pods of a cluster. If pods
// is nil, the Client reads them from the cluster's API, with the credentials of g. New does no
// I/O.
func New(g *gcp.Client, pods Reader) *Client {
	if pods == nil {
		pods = podsThrough(g)
	}
	return &Client{calls: &calls{gcp: g}, compute: api.New(g), pods: pods}
}

// endpointOf returns the endpoint of a cluster. It prefers the DNS endpoint, which needs no route
// to the control plane. Some clusters refuse external traffic there; endpointOf then returns the
// IP address.
func endpointOf(k *container.Cluster) (Endpoint, error) {
	if d := k.ControlPlaneEndpointsConfig; d != nil && d.DnsEndpointConfig != nil && d.DnsEndpointConfig.AllowExternalTraffic && d.DnsEndpointConfig.Endpoint != "" {
		return Endpoint{Server: "https://" + d.DnsEndpointConfig.Endpoint}, nil
	}
	if k.Endpoint == "" || k.MasterAuth == nil {
		return Endpoint{}, fmt.Errorf("cluster %q has no endpoint yet", k.Name)
	}
	ca, err := decodeCA(k.MasterAuth.ClusterCaCertificate)
	if err != nil {
		return Endpoint{}, fmt.Errorf("read certificate of cluster %q: %w", k.Name, err)
	}
	return Endpoint{Server: "https://" + k.Endpoint, CA: ca}, nil
}

// Endpoint returns where a cluster's Kubernetes API is. If the cluster does not exist, the
// error is a *MissingError.
func (c *Client) Endpoint(ctx context.Context, name string) (Endpoint, error) {
	k, err := c.cluster(ctx, name)
	if err != nil {
		return Endpoint{}, err
	}
	if k == nil {
		return Endpoint{}, c.missing(name)
	}
	return endpointOf(k)
}

// numberOf returns the number in the name of a node pool. ok is false if the name is not that of
// a slice of the cluster.
func numberOf(cluster, pool string) (n int, ok bool) {
	text, ok := strings.CutPrefix(pool, cluster+"-np-")
	if !ok {
		return 0, false
	}
	_, err := fmt.Sscanf(text, "%d", &n)
	return n, err == nil && PoolName(cluster, n) == pool
}
