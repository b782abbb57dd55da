package kubeapi

import (
	"errors"
	"slices"

	"multihost/internal/sim/kubeapi/gkenode"
)

// A Node describes a node of a pool.
type Node = gkenode.Node

// SetPool replaces the nodes of a pool. It adds missing nodes and removes others with their
// pods. A pool without nodes does not exist.
func (s *Server) SetPool(pool string, nodes []Node) error {
	have := s.control.Nodes(pool)
	var errs []error
	for _, n := range nodes {
		if !slices.Contains(have, n.Name) {
			errs = append(errs, s.control.AddNode(pool, n))
		}
	}
	for _, name := range have {
		if !slices.ContainsFunc(nodes, func(n Node) bool { return n.Name == name }) {
			errs = append(errs, s.RemoveNode(name))
		}
	}
	return errors.Join(errs...)
}
