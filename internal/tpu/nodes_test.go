package tpu_test

import (
	"testing"

	"multihost/internal/tpu"
)

func TestNodesOfASlice(t *testing.T) {
	for text, want := range map[string]struct {
		accelerator, topology, machine string
		count                          int
	}{
		"v4-8":                 {"tpu-v4-podslice", "2x2x1", "ct4p-hightpu-4t", 1},
		"v4-128":               {"tpu-v4-podslice", "4x4x4", "ct4p-hightpu-4t", 16},
		"v5litepod-1":          {"tpu-v5-lite-podslice", "1x1", "ct5lp-hightpu-1t", 1},
		"v5litepod-8":          {"tpu-v5-lite-podslice", "2x4", "ct5lp-hightpu-4t", 2},
		"v5litepod-16":         {"tpu-v5-lite-podslice", "4x4", "ct5lp-hightpu-4t", 4},
		"v5p-128":              {"tpu-v5p-slice", "4x4x4", "ct5p-hightpu-4t", 16},
		"v6e-1":                {"tpu-v6e-slice", "1x1", "ct6e-standard-1t", 1},
		"v6e-8":                {"tpu-v6e-slice", "2x4", "ct6e-standard-4t", 2},
		"ct6e-standard-8t:2x4": {"tpu-v6e-slice", "2x4", "ct6e-standard-8t", 1},
		"tpu7x-2":              {"tpu7x", "1x1x1", "tpu7x-standard-1t", 1},
		"tpu7x-128":            {"tpu7x", "4x4x4", "tpu7x-standard-4t", 16},
		"v3-8":                 {},
		"v5litepod-2":          {},
	} {
		ty, err := tpu.ParseType(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tpu.NodesOf(ty)
		if got.Accelerator != want.accelerator || got.Topology != want.topology || got.Machine.Name != want.machine || got.Count != want.count || (err == nil) != (want.count > 0) {
			t.Errorf("%s: got %+v, %v; want %+v", text, got, err, want)
		}
	}
}

// If a generation has nodes, each of its types can be a node pool, with one exception.
func TestEveryTypeOfAGenerationWithNodesHasNodes(t *testing.T) {
	for _, ty := range tpu.Types() {
		nodes, err := tpu.NodesOf(ty)
		switch has := ty.Generation.GKEAccelerator != "" && ty.Name != "v5litepod-2"; {
		case has != (err == nil):
			t.Errorf("%s: got %+v, %v", ty.Name, nodes, err)
		case has && nodes.Count*nodes.Machine.Chips != ty.Chips:
			t.Errorf("%s: %d nodes of %s for %d chips", ty.Name, nodes.Count, nodes.Machine.Name, ty.Chips)
		}
	}
}
