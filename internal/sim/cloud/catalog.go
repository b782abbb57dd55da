package cloud

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

var (
	ProjectPattern = regexp.MustCompile(`^[a-z][-a-z0-9]{4,28}[a-z0-9]$`)
	ZonePattern    = regexp.MustCompile(`^[a-z]+-[a-z]+[0-9]+-[a-z]$`)
)

// offers returns the generations in each zone of the real service. The simulator's own zone
// offers every generation.
var offers = sync.OnceValue(func() map[string][]string {
	return map[string][]string{
		"us-central1-a": {"v2", "v3", "v5e", "v5p"}, "us-central1-b": {"v2", "v3", "v6e"}, "us-central1-c": {"v2"},
		"us-central2-b": {"v4"}, "us-east1-d": {"v6e"}, "us-east5-a": {"v5e", "v5p", "v6e"}, "us-east5-b": {"v5e", "v6e"},
		"us-east5-c": {"v5e"}, "us-south1-a": {"v5e"}, "us-west1-c": {"v5e"}, "us-west4-a": {"v5e"},
		"europe-west4-a": {"v2", "v3", "v6e"}, "europe-west4-b": {"v5e", "v5p"}, "asia-east1-c": {"v2"},
		"asia-northeast1-b": {"v6e"}, "southamerica-west1-a": {"v6e"},
	}
})

// RuntimeVersions returns names that the real service lists or has listed.
func RuntimeVersions() []string {
	return []string{
		"tpu-ubuntu2204-base", "tpu-vm-base", "tpu-vm-v4-base", "tpu-vm-v4-pt-2.0", "tpu-vm-pt-2.0",
		"tpu-vm-tf-2.16.1-pjrt", "tpu-vm-tf-2.16.1-pod-pjrt", "tpu-vm-tf-2.17.0-pjrt", "tpu-vm-tf-2.17.0-pod-pjrt",
		"v2-alpha-tpuv4", "v2-alpha-tpuv5", "v2-alpha-tpuv5-lite", "v2-alpha-tpuv6e", "v2-tpuv5-litepod",
	}
}

// Zones returns all zones, sorted.
func (s Catalog) Zones() []string {
	zones := []string{s.Config.Zone}
	for z := range offers() {
		if z != s.Config.Zone {
			zones = append(zones, z)
		}
	}
	slices.Sort(zones)
	return zones
}

// Regions returns the regions of all zones, sorted.
func (s Catalog) Regions() []string {
	var regions []string
	for _, z := range s.Zones() {
		regions = append(regions, RegionOf(z))
	}
	slices.Sort(regions)
	return slices.Compact(regions)
}

// RegionOf returns the region of a zone.
func RegionOf(zone string) string { return zone[:max(0, strings.LastIndexByte(zone, '-'))] }

// Offered returns the type called name if zone has it.
func (s Catalog) Offered(zone, name string) (tpu.Type, bool) {
	t, err := tpu.ParseType(name)
	if err != nil || t.Name != name || !t.OnCloudAPI() {
		return tpu.Type{}, false
	}
	return t, zone == s.Config.Zone || slices.Contains(offers()[zone], t.Generation.Name)
}

// typeOf finds the type that a node requests, by name or by version and topology.
func (s Catalog) typeOf(zone, field string, n *tpualpha.Node) (tpu.Type, error) {
	name := n.AcceleratorType
	if c := n.AcceleratorConfig; c != nil {
		if name != "" {
			return tpu.Type{}, wire.BadField(field+".accelerator_config", "only one of accelerator_type and accelerator_config can be set")
		}
		for _, t := range tpu.Types() {
			if t.Generation.ChipType == c.Type && t.Topology == c.Topology && t.Topology != "" {
				name = t.Name
			}
		}
		if name == "" {
			return tpu.Type{}, wire.BadField(field+".accelerator_config", "accelerator config %s %q could not be found in the zonal accelerator configurations", c.Type, c.Topology)
		}
	}
	if name == "" {
		return tpu.Type{}, wire.BadField(field+".accelerator_type", "accelerator_type or accelerator_config is required")
	}
	t, ok := s.Offered(zone, name)
	if !ok {
		return tpu.Type{}, wire.BadField(field+".accelerator_type", "accelerator type %q could not be found in the zonal accelerator configurations", name)
	}
	return t, nil
}
