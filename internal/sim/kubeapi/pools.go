package kubeapi

import (
	"errors"
	"slices"

	"multihost/internal/sim/kubeapi/control"
)

// A Node describes a node of a pool.
type Node = control.Node

// SetPool makes these nodes the nodes of a pool: it adds those that are missing, and removes
// the others with their pods. A pool without nodes is gone.
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
