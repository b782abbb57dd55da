package tpu

import (
	"fmt"

	"multihost/internal/fault"
)

// A Nodes describes a slice as a node pool of Google Kubernetes Engine, with one node for
// each VM.
type Nodes struct {
	Accelerator string // value of the node label cloud.google.com/gke-tpu-accelerator
	Topology    string // value of the node label cloud.google.com/gke-tpu-topology
	Machine     Machine
	Count       int // nodes of one slice
}

// A NodesError says that no node pool can be a slice of a type.
type NodesError struct{ Type Type }

func (e *NodesError) Error() string {
	return fmt.Sprintf("choose nodes of %q: Google Kubernetes Engine has no node pools for it", e.Type.Name)
}

// Fault returns fault.Usage.
func (e *NodesError) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type instead.
func (e *NodesError) Hint() string {
	if e.Type.Generation.GKEAccelerator == "" {
		return "node pools have v4, v5e, v5p, v6e and tpu7x; other types are slices of the TPU API: multihost slices create"
	}
	return "node pools have slices of 1 chip, or of 4 chips and more"
}

// NodesOf returns the nodes of a slice. A node has one chip if the slice has one, otherwise
// four. If the type names its machine type, the nodes have it. The error is a *NodesError.
// Source: xpk's system_characteristics.py, revision 367c8382.
func NodesOf(t Type) (Nodes, error) {
	chips := 4
	if t.Chips == 1 {
		chips = 1
	}
	for _, m := range machines() {
		if m.Generation != t.Generation.Name || t.Machine != "" && t.Machine != m.Name || t.Machine == "" && m.Chips != chips {
			continue
		}
		if n := m.workers(t.Chips); n > 0 && t.Generation.GKEAccelerator != "" {
			return Nodes{Accelerator: t.Generation.GKEAccelerator, Topology: t.Topology, Machine: m, Count: n}, nil
		}
	}
	return Nodes{}, &NodesError{Type: t}
}
