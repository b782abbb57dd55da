package containerapi

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/sim/cloud"
	"multihost/internal/tpu"
)

// nodesOf returns the number of nodes of a pool. The pools of slices are never resized.
func nodesOf(p *container.NodePool) int64 {
	return p.InitialNodeCount * int64(max(1, len(p.Locations)))
}

func (c *call) pools() (any, error) {
	k := c.State.Clusters[c.name()]
	if k == nil {
		return nil, notFound(c.name())
	}
	if c.pool == "" {
		return &container.ListNodePoolsResponse{NodePools: c.render(k).NodePools}, nil
	}
	p := k.Pool(c.pool)
	if p == nil {
		return nil, notFound(c.poolName())
	}
	return copyOf(p), nil
}

func (c *call) poolName() string { return c.name() + "/nodePools/" + c.pool }

// changeable returns the cluster if its node pools can be changed now.
func (c *call) changeable() (*cloud.Cluster, error) {
	k := c.State.Clusters[c.name()]
	switch {
	case k == nil:
		return nil, notFound(c.name())
	case k.Msg.Status == provisioning:
		return nil, c.busy("creating cluster " + c.cluster)
	case k.Msg.Status == stopping:
		return nil, c.busy("deleting cluster " + c.cluster)
	}
	return k, nil
}

func (c *call) createPool() (any, error) {
	req := new(container.CreateNodePoolRequest)
	if err := c.decode(req); err != nil {
		return nil, err
	}
	k, err := c.changeable()
	if err != nil {
		return nil, err
	}
	p := req.NodePool
	if p == nil || !namePattern.MatchString(p.Name) {
		return nil, bad("Invalid value for field \"node_pool.name\": Must be 1 to 40 characters of [a-z0-9-], beginning with a letter and not ending in a dash.")
	}
	c.pool = p.Name
	if k.Pool(p.Name) != nil {
		return nil, exists(c.poolName())
	}
	if err := c.fillPool(k, p); err != nil {
		return nil, err
	}
	k.Pools = append(k.Pools, p)
	op := c.begin("CREATE_NODE_POOL", c.poolName())
	c.NextStep(func() {
		if k.Pool(p.Name) != p || p.Status != provisioning {
			c.end(op, "the node pool was deleted")
			return
		}
		c.settle(k, p)
		c.end(op, p.StatusMessage)
	})
	return op, nil
}

// fillPool checks a new node pool of k, and fills it in as the service does.
func (c *call) fillPool(k *cloud.Cluster, p *container.NodePool) error {
	if p.Status != "" || len(p.InstanceGroupUrls) > 0 {
		return bad("Output only fields are set.")
	}
	if p.Config == nil {
		p.Config = &container.NodeConfig{}
	}
	p.Config.MachineType = cmp.Or(p.Config.MachineType, "e2-medium")
	if len(p.Locations) == 0 {
		p.Locations = k.Msg.Locations
	}
	for _, zone := range p.Locations {
		if !slices.Contains(k.Msg.Locations, zone) {
			return bad("Node pool location %q is not one of the locations of the cluster.", zone)
		}
	}
	version, ok := versionOf(cmp.Or(p.Version, k.Msg.CurrentMasterVersion))
	if !ok {
		return bad("Node version %q is not supported.", p.Version)
	}
	p.Version = version
	if r := p.Config.ReservationAffinity; r != nil && r.ConsumeReservationType == "SPECIFIC_RESERVATION" && (r.Key != "compute.googleapis.com/reservation-name" || len(r.Values) != 1) {
		return bad("A specific reservation needs the key compute.googleapis.com/reservation-name and one value.")
	}
	if p.Config.Spot && p.Config.FlexStart {
		return bad("Spot and flex-start exclude each other.")
	}
	if isTPU(p.Config.MachineType) {
		if err := c.checkSlice(p); err != nil {
			return err
		}
	} else if !cpuMachine.MatchString(p.Config.MachineType) {
		return bad("Machine type with name '%s' does not exist in zone '%s'.", p.Config.MachineType, p.Locations[0])
	}
	p.Status = provisioning
	p.SelfLink = c.link(c.name() + "/nodePools/" + p.Name)
	p.Config.ImageType = cmp.Or(p.Config.ImageType, "COS_CONTAINERD")
	if p.Config.DiskSizeGb == 0 {
		p.Config.DiskSizeGb, p.Config.DiskType = 100, "pd-balanced"
	}
	return nil
}

var cpuMachine = regexp.MustCompile(`^(e2|n1|n2|n2d|n4|c3|c4)-[a-z]+(-[0-9]+)?$`)

func isTPU(machine string) bool {
	return strings.HasPrefix(machine, "ct") || strings.HasPrefix(machine, "tpu")
}

// sliceOf returns the nodes of a node pool that is a slice, and false for other pools.
func (c *call) sliceOf(p *container.NodePool) (tpu.Nodes, bool) {
	topology := ""
	if p.PlacementPolicy != nil {
		topology = p.PlacementPolicy.TpuTopology
		if name := p.PlacementPolicy.PolicyName; name != "" {
			policy := c.State.Policies[c.Networks().ComputePath("regions/"+cloud.RegionOf(p.Locations[0]), "resourcePolicies", last(name))]
			topology = policy.GetWorkloadPolicy().GetAcceleratorTopology()
		}
	}
	types := tpu.Types()
	if t, err := tpu.ParseType(p.Config.MachineType + ":2x4"); err == nil && t.Machine != "" {
		types = append(types, t)
	}
	for _, t := range types {
		n, err := tpu.NodesOf(t)
		if err == nil && n.Machine.Name == p.Config.MachineType && (topology == n.Topology || topology == "" && n.Count == 1) {
			return n, true
		}
	}
	return tpu.Nodes{}, false
}

// checkSlice returns an error for a node pool with TPU chips that cannot be a slice.
func (c *call) checkSlice(p *container.NodePool) error {
	if policy := p.PlacementPolicy; policy != nil && policy.PolicyName != "" {
		name := c.Networks().ComputePath("regions/"+cloud.RegionOf(p.Locations[0]), "resourcePolicies", last(policy.PolicyName))
		if c.State.Policies[name] == nil {
			return bad("Resource policy %q not found.", name)
		}
		if policy.TpuTopology != "" || policy.Type != "" {
			return bad("A placement policy by name excludes type and TPU topology.")
		}
	}
	n, ok := c.sliceOf(p)
	if !ok {
		return bad("The TPU topology is not valid for machine type %q.", p.Config.MachineType)
	}
	want := int64(n.Count)
	switch {
	case len(p.Locations) != 1:
		return bad("A node pool with a TPU topology must be in one zone.")
	case p.Config.FlexStart && (p.Autoscaling == nil || p.Autoscaling.MaxNodeCount != want || p.InitialNodeCount != 0):
		return bad("A flex-start node pool of this topology starts with 0 nodes and has at most %d.", want)
	case !p.Config.FlexStart && p.InitialNodeCount != want && p.PlacementPolicy != nil:
		return bad("TPU topology %s needs %d nodes of %s, not %d.", n.Topology, want, n.Machine.Name, p.InitialNodeCount)
	}
	return nil
}

// settle gives a pool all its nodes or none.
func (c *call) settle(k *cloud.Cluster, p *container.NodePool) {
	if why := noRoom(c, k, p); why != nil {
		p.Status, p.StatusMessage, p.Conditions = failed, why.Message, []*container.StatusCondition{why}
		return
	}
	p.Status = running
	if c.Kubernetes == nil {
		return
	}
	name, nodes := c.name(), kubeNodes(c, k, p)
	c.Spawn(func() {
		if err := c.Kubernetes.SetPool(name, p.Name, nodes); err != nil {
			c.Mu.Lock()
			defer c.Mu.Unlock()
			p.Status, p.StatusMessage = "RUNNING_WITH_ERROR", err.Error()
		}
	})
}

func kubeNodes(c *call, k *cloud.Cluster, p *container.NodePool) (nodes []cloud.KubeNode) {
	slice, _ := c.sliceOf(p)
	for i := range nodesOf(p) {
		nodes = append(nodes, cloud.KubeNode{
			Name: cloud.NodeName(k.Msg.Name, p.Name, int(i)), Chips: slice.Machine.Chips, Labels: cloud.NodeLabels(p, slice.Accelerator, slice.Topology),
		})
	}
	return nodes
}

// noRoom returns why a pool gets no nodes, or nil. A pool that begins without nodes needs
// none.
func noRoom(c *call, k *cloud.Cluster, p *container.NodePool) *container.StatusCondition {
	if !isTPU(p.Config.MachineType) || p.InitialNodeCount == 0 {
		return nil
	}
	text := func(code, why string) *container.StatusCondition {
		return &container.StatusCondition{Code: code, CanonicalCode: "RESOURCE_EXHAUSTED", Message: fmt.Sprintf(
			"Google Compute Engine: Not all instances running in IGM. Expected %d, running 0, transitioning %d. Current errors: [%s]: Instance '%s' creation failed: %s",
			p.InitialNodeCount, p.InitialNodeCount, code, cloud.NodeName(k.Msg.Name, p.Name, 0), why)}
	}
	for _, a := range c.State.Faults {
		if a.Group == "" && a.QR != "" || !cloud.Glob(a.Group, p.Name) {
			continue
		}
		switch a.Name {
		case "no-capacity":
			return text("GCE_STOCKOUT", "the zone has a lack of capacity: Requested resource is exhausted.")
		case "group-quota":
			return text("GCE_QUOTA_EXCEEDED", fmt.Sprintf("Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region %s.", cloud.RegionOf(p.Locations[0])))
		case "group-error":
			c.Injection().Use(a)
			return text("UNKNOWN", cmp.Or(a.Message, "Internal error. Please try again or contact Google Support. (Code: '0')"))
		}
	}
	return nil
}

func (c *call) deletePool() (any, error) {
	k, err := c.changeable()
	if err != nil {
		return nil, err
	}
	p := k.Pool(c.pool)
	switch {
	case p == nil:
		return nil, notFound(c.poolName())
	case p.Status == stopping:
		return nil, c.busy("deleting node pool " + c.pool)
	}
	p.Status = stopping
	op := c.begin("DELETE_NODE_POOL", c.poolName())
	name := c.name()
	c.NextStep(func() {
		gone := func(err error) {
			k.Pools = slices.DeleteFunc(k.Pools, func(other *container.NodePool) bool { return other == p })
			c.end(op, errText(err))
		}
		if c.Kubernetes == nil {
			gone(nil)
			return
		}
		c.Spawn(func() {
			err := c.Kubernetes.SetPool(name, p.Name, nil)
			c.Mu.Lock()
			defer c.Mu.Unlock()
			gone(err)
		})
	})
	return op, nil
}
