package nodes_test

import (
	"testing"

	"multihost/internal/nodes"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/tpu"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// A cloud is a simulated cloud with a client of its slices.
type cloud struct {
	*simcloud.Cloud
	*nodes.Client
}

func start(t *testing.T, cfg sim.Config) *cloud {
	t.Helper()
	c := simcloud.Start(t, cfg)
	return &cloud{c, nodes.New(c.GCP)}
}

// make makes the slices t-0 and t-1, with two workers each and the given metadata.
func (c *cloud) make(metadata map[string]string) {
	c.T.Helper()
	svc, err := c.GCP.TPU(c.T.Context())
	testkit.Must(c.T, err)
	parent := "projects/" + sim.DefaultProject + "/locations/" + simcloud.Zone
	_, err = svc.Projects.Locations.QueuedResources.Create(parent, &tpuapi.QueuedResource{Tpu: &tpuapi.Tpu{NodeSpec: []*tpuapi.NodeSpec{{
		Parent: parent, MultiNodeParams: &tpuapi.MultiNodeParams{NodeCount: 2, NodeIdPrefix: "t"},
		Node: &tpuapi.Node{AcceleratorType: "v4-16", RuntimeVersion: "tpu-ubuntu2204-base", NetworkConfig: &tpuapi.NetworkConfig{Network: "mtu9k"}, Metadata: metadata},
	}}}}).QueuedResourceId("t").Do()
	testkit.Must(c.T, err)
	testkit.Eventually(c.T, "two slices", func() bool {
		all, err := c.Slices(c.T.Context())
		testkit.Must(c.T, err)
		ready := 0
		for _, s := range all {
			if ok, _ := s.Ready(); ok && s.Name != "other" {
				ready++
			}
		}
		return ready == 2
	})
}

func (c *cloud) slice(name string) tpu.Slice {
	c.T.Helper()
	s, err := c.Slice(c.T.Context(), name)
	testkit.Must(c.T, err)
	return s
}
