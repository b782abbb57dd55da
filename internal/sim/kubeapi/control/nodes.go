package control

import (
	"fmt"

	"multihost/internal/sim/kubeapi/gkenode"
	"multihost/internal/sim/kubeapi/store"
)

// AddNode adds a node to a cluster.
func (c *Controllers) AddNode(pool string, n gkenode.Node) error {
	if err := c.create(store.Nodes, n.Object(pool, c.now())); err != nil {
		return fmt.Errorf("add node %q: %w", n.Name, err)
	}
	return nil
}

// Nodes returns the names of the nodes of a pool.
func (c *Controllers) Nodes(pool string) []string {
	var names []string
	objects, _ := c.store.List(store.Nodes, "")
	for _, o := range objects {
		if o.GetLabels()[gkenode.PoolLabel] == pool {
			names = append(names, o.GetName())
		}
	}
	return names
}
