package tpu_test

import (
	"testing"

	"multihost/internal/tpu"
)

// Each type of a generation on Compute Engine has exactly one machine type, with one exception.
func TestEveryTypeOfComputeEngineHasAMachine(t *testing.T) {
	for _, ty := range tpu.Types() {
		m, err := tpu.MachineOf(ty)
		switch {
		case ty.Name == "v6e-8" || !ty.Generation.OnCompute():
			if err == nil {
				t.Errorf("%s: got %s, want a refusal", ty.Name, m.Name)
			}
		case err != nil:
			t.Errorf("%s: %v", ty.Name, err)
		default:
			if back, err := tpu.TypeOf(m.Name, ty.Topology); err != nil || back != ty || ty.Workers*m.Chips != ty.Chips {
				t.Errorf("%s: %s with topology %s is %+v, %v", ty.Name, m.Name, ty.Topology, back, err)
			}
		}
	}
	for _, g := range tpu.Generations() {
		if g.OnCompute() != (g.ImageFamily != "") || g.OnCompute() != (g.ComputeQuota != "") {
			t.Errorf("%s: a generation with machine types needs an image and a quota, and no other does", g.Name)
		}
	}
}

func TestMachineNames(t *testing.T) {
	for text, want := range map[string]tpu.Type{
		"ct6e-standard-4t:2x4":    {Name: "ct6e-standard-4t:2x4", Chips: 8, Workers: 2, Topology: "2x4", Machine: "ct6e-standard-4t"},
		"ct6e-standard-8t:2x4":    {Name: "ct6e-standard-8t:2x4", Chips: 8, Workers: 1, Topology: "2x4", Machine: "ct6e-standard-8t"},
		"CT6E-standard-4t:4x4":    {Name: "v6e-16", Chips: 16, Workers: 4, Topology: "4x4"},
		"tpu7x-standard-4t:2x2x2": {Name: "tpu7x-16", Chips: 8, Workers: 2, Topology: "2x2x2"},
		"tpu7x-standard-1t:1x1x1": {Name: "tpu7x-2", Chips: 1, Workers: 1, Topology: "1x1x1"},
	} {
		got, err := tpu.ParseType(text)
		got.Generation = tpu.Generation{}
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
		if back, err := tpu.ParseType(want.Name); err != nil || back.Workers != want.Workers {
			t.Errorf("%s is no name: %+v, %v", want.Name, back, err)
		}
	}
}

func TestRefusedMachines(t *testing.T) {
	refusal := func(text string) (string, string) {
		ty, err := tpu.ParseType(text)
		if err == nil {
			_, err = tpu.MachineOf(ty)
		}
		hinted, ok := err.(interface {
			error
			Hint() string
		})
		if !ok {
			return "", ""
		}
		return hinted.Error(), hinted.Hint()
	}
	for text, want := range map[string][2]string{
		"v6e-8": {`choose machine type of "v6e-8": on Compute Engine it is 2 VMs of ct6e-standard-4t or one VM of ct6e-standard-8t`,
			"name the machine type and the topology: --tpu-type=ct6e-standard-4t:2x4 or --tpu-type=ct6e-standard-8t:2x4"},
		"v5litepod-16": {`choose machine type of "v5litepod-16": Compute Engine offers none for v5e`,
			"Compute Engine offers v5p, v6e and tpu7x; other types are slices of the TPU API: --provider=tpu"},
		"tpu7x-standard-4t:4x2x1": {`parse accelerator type "tpu7x-standard-4t:4x2x1": no such type`, "did you mean tpu7x-standard-4t:2x2x1?"},
		"tpu7x-standart-4t:2x2x1": {`parse accelerator type "tpu7x-standart-4t:2x2x1": no such type`, "did you mean tpu7x-standard-4t:2x2x1?"},
	} {
		if text2, hint := refusal(text); text2 != want[0] || hint != want[1] {
			t.Errorf("%s: got %q, hint %q", text, text2, hint)
		}
	}
}
