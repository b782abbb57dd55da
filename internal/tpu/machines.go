package tpu

import (
	"fmt"
	"slices"
	"strings"

	"multihost/internal/fault"
)

// A Machine is a machine type of Compute Engine with TPU chips.
type Machine struct {
	Name       string // "ct6e-standard-4t"
	Generation string // generation of its chips: "v6e"
	Chips      int    // chips of one VM
	Single     bool   // a slice is one VM
	NUMANodes  int    // NUMA nodes of a VM; 0: unknown
	OnlyGKE    bool   // only for node pools of Google Kubernetes Engine
}

// Machines returns the machine types from which Compute Engine makes slices, by generation.
// Sources: Google's documentation of TPU machine types, xpk's system_characteristics.py,
// and for NUMA nodes the documentation of GKE.
//
// Machine types whose names end in -tpu are left out, because their meaning is
// undocumented.
func Machines() []Machine {
	return slices.DeleteFunc(machines(), func(m Machine) bool { return m.OnlyGKE })
}

func machines() []Machine {
	return []Machine{
		{Name: "ct4p-hightpu-4t", Generation: "v4", Chips: 4, OnlyGKE: true},
		{Name: "ct5lp-hightpu-1t", Generation: "v5e", Chips: 1, Single: true, OnlyGKE: true},
		{Name: "ct5lp-hightpu-4t", Generation: "v5e", Chips: 4, OnlyGKE: true},
		{Name: "ct5p-hightpu-4t", Generation: "v5p", Chips: 4, NUMANodes: 2},
		{Name: "ct6e-standard-1t", Generation: "v6e", Chips: 1, Single: true},
		{Name: "ct6e-standard-4t", Generation: "v6e", Chips: 4},
		{Name: "ct6e-standard-8t", Generation: "v6e", Chips: 8, Single: true},
		{Name: "tpu7x-standard-1t", Generation: "tpu7x", Chips: 1, Single: true},
		{Name: "tpu7x-standard-4t", Generation: "tpu7x", Chips: 4, NUMANodes: 2},
	}
}

// OnCompute reports whether Compute Engine has machine types of the generation.
func (g Generation) OnCompute() bool {
	return slices.ContainsFunc(Machines(), func(m Machine) bool { return m.Generation == g.Name })
}

// OnCloudAPI reports whether the Cloud TPU API makes slices of the type.
func (t Type) OnCloudAPI() bool { return t.Generation.CloudAPI && t.Machine == "" }

// workers returns the number of VMs of a slice with this number of chips, or 0 if the
// machine type makes no such slice.
func (m Machine) workers(chips int) int {
	if chips%m.Chips != 0 || m.Single && chips != m.Chips {
		return 0
	}
	return chips / m.Chips
}

// A MachineError says that a type fits no machine type of Compute Engine, or several.
type MachineError struct {
	Type    Type
	Choices []Machine // the machine types for such a slice; nil: there is none
}

func (e *MachineError) Error() string {
	if len(e.Choices) == 0 {
		return fmt.Sprintf("choose machine type of %q: Compute Engine offers none for %s", e.Type.Name, e.Type.Generation.Name)
	}
	var ways []string
	for _, m := range e.Choices {
		vms := "one VM"
		if n := m.workers(e.Type.Chips); n > 1 {
			vms = fmt.Sprintf("%d VMs", n)
		}
		ways = append(ways, vms+" of "+m.Name)
	}
	return fmt.Sprintf("choose machine type of %q: on Compute Engine it is %s", e.Type.Name, strings.Join(ways, " or "))
}

// Fault returns fault.Usage.
func (e *MachineError) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type.
func (e *MachineError) Hint() string {
	var ways []string
	for _, m := range e.Choices {
		ways = append(ways, "--tpu-type="+m.Name+":"+e.Type.Topology)
	}
	if len(ways) == 0 {
		return "Compute Engine offers v5p, v6e and tpu7x; other types are slices of the TPU API: --provider=tpu"
	}
	return "name the machine type and the topology: " + strings.Join(ways, " or ")
}

// MachineOf returns the machine type of the VMs of a slice on Compute Engine. The error is
// a *MachineError.
func MachineOf(t Type) (Machine, error) {
	var fit []Machine
	for _, m := range Machines() {
		if m.Name == t.Machine {
			return m, nil
		}
		if m.Generation == t.Generation.Name && m.workers(t.Chips) > 0 {
			fit = append(fit, m)
		}
	}
	if len(fit) == 1 {
		return fit[0], nil
	}
	return Machine{}, &MachineError{Type: t, Choices: fit}
}

// TypeOf returns the type of slices with a topology on a machine type. Its name is the
// short name if that has no other meaning ("v6e-16"), otherwise "ct6e-standard-4t:2x4". The
// error is a *TypeError.
func TypeOf(machine, topology string) (Type, error) {
	whole := machine + ":" + topology
	var near []string
	for _, m := range Machines() {
		if m.Name != machine {
			continue
		}
		g, _ := GenerationOf(m.Generation)
		for _, e := range sizes(g.Family) {
			t := makeType(g, e)
			n := m.workers(t.Chips)
			if n == 0 {
				continue
			}
			if near = append(near, m.Name+":"+t.Topology); t.Topology != topology {
				continue
			}
			if only, err := MachineOf(t); err == nil && only == m {
				return t, nil
			}
			t.Name, t.Machine, t.Workers = whole, m.Name, n
			return t, nil
		}
	}
	if len(near) == 0 {
		for _, m := range Machines() {
			near = append(near, m.Name+":"+topology)
		}
	}
	e := &TypeError{Text: whole}
	if best := Suggest(whole, near); best != "" {
		e.Suggest = []string{best}
	}
	return Type{}, e
}
