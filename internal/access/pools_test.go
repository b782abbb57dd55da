package access

import (
	"testing"

	"multihost/internal/gke"
	"multihost/internal/provision"
	"multihost/internal/workload"
)

func TestWhatANodePoolMeans(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pool gke.Pool
		want workload.Pool
	}{
		{gke.Pool{Name: "default-pool", State: "RUNNING", Machine: "e2-standard-16"}, workload.Pool{Name: "default-pool", State: "RUNNING", Nodes: -1}},
		{gke.Pool{Name: "c-np-0", State: "ERROR", Reason: "no machines", Type: "v4-16", Topology: "2x2x2"},
			workload.Pool{Name: "c-np-0", State: "ERROR", Message: "no machines", Accelerator: "tpu-v4-podslice", Topology: "2x2x2", Nodes: -1}},
		{gke.Pool{Name: "flex", Type: "v5litepod-16", Topology: "4x4", Tier: provision.FlexStart},
			workload.Pool{Name: "flex", Accelerator: "tpu-v5-lite-podslice", Topology: "4x4", FlexStart: true, Nodes: -1}},
		{gke.Pool{Name: "new", Machine: "ct9-hightpu-4t", Topology: "8x8"}, workload.Pool{Name: "new", Nodes: -1, Unknown: true}},
	} {
		if got := poolOf(tt.pool); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.pool.Name, got, tt.want)
		}
	}
}
