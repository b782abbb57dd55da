package containerapi

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"

	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/sim/cloud"
)

// The states of clusters and node pools.
const (
	provisioning = "PROVISIONING"
	running      = "RUNNING"
	stopping     = "STOPPING"
	failed       = "ERROR"
)

// nowhere is the endpoint of a cluster whose Kubernetes API is not served.
const nowhere = "127.0.0.1:1"

var namePattern = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$`)

// render returns a cluster in the form of the API.
func (s API) render(k *cloud.Cluster) *container.Cluster {
	m := copyOf(k.Msg)
	m.NodePools = nil
	for _, p := range k.Pools {
		m.NodePools = append(m.NodePools, copyOf(p))
		if p.Status == running {
			m.CurrentNodeCount += nodesOf(p)
		}
	}
	return m
}

func (c *call) showCluster() (any, error) {
	k := c.State.Clusters[c.name()]
	if k == nil {
		return nil, notFound(c.name())
	}
	return c.render(k), nil
}

func (c *call) listClusters() (any, error) {
	list := &container.ListClustersResponse{}
	for _, k := range cloud.Sorted(c.State.Clusters, func(name string, _ *cloud.Cluster) bool { return c.covers(name) }) {
		list.Clusters = append(list.Clusters, c.render(k))
	}
	return list, nil
}

func (c *call) createCluster() (any, error) {
	req := new(container.CreateClusterRequest)
	if err := c.decode(req); err != nil {
		return nil, err
	}
	m := req.Cluster
	if m == nil || !namePattern.MatchString(m.Name) {
		return nil, bad("Invalid value for field \"cluster.name\": Must be 1 to 40 characters of [a-z0-9-], beginning with a letter and not ending in a dash.")
	}
	c.cluster = m.Name
	if c.State.Clusters[c.name()] != nil {
		return nil, exists(c.name())
	}
	if err := c.fillCluster(m); err != nil {
		return nil, err
	}
	k := &cloud.Cluster{Msg: m, Pools: m.NodePools}
	if len(k.Pools) == 0 {
		k.Pools = []*container.NodePool{{Name: "default-pool", InitialNodeCount: m.InitialNodeCount, Config: m.NodeConfig}}
	}
	m.NodePools = nil
	for _, p := range k.Pools {
		if err := c.fillPool(k, p); err != nil {
			return nil, err
		}
	}
	c.State.Clusters[c.name()] = k
	op := c.begin("CREATE_CLUSTER", c.name())
	c.NextStep(func() { c.open(k, op) })
	return op, nil
}

// fillCluster checks a new cluster, and fills it in as the service does.
func (c *call) fillCluster(m *container.Cluster) error {
	if m.Status != "" || m.Endpoint != "" || m.CurrentMasterVersion != "" {
		return bad("Output only fields are set.")
	}
	if len(m.NodePools) == 0 && m.InitialNodeCount < 1 {
		return bad("Cluster.initial_node_count must be greater than zero.")
	}
	network := c.Networks().ComputePath("global", "networks", cmp.Or(last(m.Network), "default"))
	if c.State.Networks[network] == nil {
		return bad("Network %q does not exist.", last(network))
	}
	region := c.location
	if !slices.Contains(c.Catalog().Regions(), region) {
		region = cloud.RegionOf(region)
	}
	sub := c.Networks().ComputePath("regions/"+region, "subnetworks", cmp.Or(last(m.Subnetwork), last(network)))
	if c.State.Subnetworks[sub] == nil {
		return bad("Subnetwork %q does not exist in region %q.", last(sub), region)
	}
	for _, zone := range m.Locations {
		if cloud.RegionOf(zone) != region || !slices.Contains(c.Catalog().Zones(), zone) {
			return bad("Location %q is not a zone of region %q.", zone, region)
		}
	}
	if len(m.Locations) == 0 {
		m.Locations = slices.DeleteFunc(c.Catalog().Zones(), func(z string) bool { return cloud.RegionOf(z) != region })
	}
	version, ok := versionOf(m.InitialClusterVersion)
	if !ok {
		return bad("No valid versions with the prefix %q found.", m.InitialClusterVersion)
	}
	m.InitialClusterVersion, m.CurrentMasterVersion, m.CurrentNodeVersion = version, version, version
	m.Network, m.Subnetwork = last(network), last(sub)
	if m.NetworkConfig == nil {
		m.NetworkConfig = &container.NetworkConfig{}
	}
	m.NetworkConfig.Network, m.NetworkConfig.Subnetwork = network, sub
	m.Status, m.CreateTime, m.Location, m.Zone = provisioning, c.Timestamp(), c.location, c.location
	m.SelfLink, m.Id = c.link(c.name()), fmt.Sprintf("%064x", cloud.NewID())
	m.LoggingService, m.MonitoringService = "logging.googleapis.com/kubernetes", "monitoring.googleapis.com/kubernetes"
	return nil
}

// versionOf returns the version of a cluster. want is a version or the beginning of one.
func versionOf(want string) (string, bool) {
	all := versions()
	if want == "" || want == "latest" || want == "-" {
		return all[0], true
	}
	i := slices.IndexFunc(all, func(v string) bool {
		return v == want || strings.HasPrefix(v, want+".") || strings.HasPrefix(v, want+"-")
	})
	if i < 0 {
		return "", false
	}
	return all[i], true
}

func last(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// open gives a new cluster its API and then its first nodes.
func (c *call) open(k *cloud.Cluster, op *container.Operation) {
	if k.Msg.Status != provisioning {
		c.end(op, "the cluster was deleted")
		return
	}
	name := c.name()
	done := func(address string, ca []byte, err error) {
		k.Msg.Endpoint, k.Msg.MasterAuth = address, &container.MasterAuth{ClusterCaCertificate: base64.StdEncoding.EncodeToString(ca)}
		if err != nil {
			k.Msg.Status, k.Msg.StatusMessage = failed, err.Error()
			c.end(op, err.Error())
			return
		}
		k.Msg.Status = running
		for _, p := range k.Pools {
			c.settle(k, p)
		}
		c.end(op, "")
	}
	if c.Kubernetes == nil {
		done(nowhere, nil, nil)
		return
	}
	c.Spawn(func() {
		address, ca, err := c.Kubernetes.Open(name)
		c.Mu.Lock()
		defer c.Mu.Unlock()
		done(address, ca, err)
	})
}

func (c *call) deleteCluster() (any, error) {
	k := c.State.Clusters[c.name()]
	if k == nil {
		return nil, notFound(c.name())
	}
	if k.Msg.Status == stopping {
		return nil, c.busy("deleting cluster " + c.cluster)
	}
	k.Msg.Status = stopping
	for _, p := range k.Pools {
		p.Status = stopping
	}
	op := c.begin("DELETE_CLUSTER", c.name())
	name := c.name()
	c.NextStep(func() {
		gone := func(err error) {
			delete(c.State.Clusters, name)
			c.end(op, errText(err))
		}
		if c.Kubernetes == nil {
			gone(nil)
			return
		}
		c.Spawn(func() {
			err := c.Kubernetes.Close(name)
			c.Mu.Lock()
			defer c.Mu.Unlock()
			gone(err)
		})
	})
	return op, nil
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// busy refuses a change during another change.
func (c *call) busy(doing string) error {
	running := cloud.Sorted(c.State.KubeOps, func(_ string, op *container.Operation) bool {
		return op.Status != "DONE" && strings.Contains(op.TargetLink, "/clusters/"+c.cluster)
	})
	name := "operation"
	if len(running) > 0 {
		name = running[0].Name
	}
	return bad("Operation %s is currently %s. Please wait and try again once it is done.", name, doing).WithStatus("FAILED_PRECONDITION")
}
