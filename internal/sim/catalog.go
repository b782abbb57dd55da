package sim

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

var (
	projectPattern = regexp.MustCompile(`^[a-z][-a-z0-9]{4,28}[a-z0-9]$`)
	zonePattern    = regexp.MustCompile(`^[a-z]+-[a-z]+[0-9]+-[a-z]$`)
)

// offers returns the generations that each zone of the real service has. The simulator's
// own zone also offers every generation.
func offers() map[string][]string {
	return map[string][]string{
		"us-central1-a": {"v2", "v3", "v5e", "v5p"}, "us-central1-b": {"v2", "v3", "v6e"}, "us-central1-c": {"v2"},
		"us-central2-b": {"v4"}, "us-east1-d": {"v6e"}, "us-east5-a": {"v5e", "v5p", "v6e"}, "us-east5-b": {"v5e", "v6e"},
		"us-east5-c": {"v5e"}, "us-south1-a": {"v5e"}, "us-west1-c": {"v5e"}, "us-west4-a": {"v5e"},
		"europe-west4-a": {"v2", "v3", "v6e"}, "europe-west4-b": {"v5e", "v5p"}, "asia-east1-c": {"v2"},
		"asia-northeast1-b": {"v6e"}, "southamerica-west1-a": {"v6e"},
	}
}

// runtimeVersions returns names that the real service lists or has listed.
func runtimeVersions() []string {
	return []string{
		"tpu-ubuntu2204-base", "tpu-vm-base", "tpu-vm-v4-base", "tpu-vm-v4-pt-2.0", "tpu-vm-pt-2.0",
		"tpu-vm-tf-2.16.1-pjrt", "tpu-vm-tf-2.16.1-pod-pjrt", "tpu-vm-tf-2.17.0-pjrt", "tpu-vm-tf-2.17.0-pod-pjrt",
		"v2-alpha-tpuv4", "v2-alpha-tpuv5", "v2-alpha-tpuv5-lite", "v2-alpha-tpuv6e", "v2-tpuv5-litepod",
	}
}

func (s *Cloud) zones() []string {
	zones := []string{s.cfg.Zone}
	for z := range offers() {
		if z != s.cfg.Zone {
			zones = append(zones, z)
		}
	}
	slices.Sort(zones)
	return zones
}

func (s *Cloud) regions() []string {
	var regions []string
	for _, z := range s.zones() {
		regions = append(regions, regionOf(z))
	}
	slices.Sort(regions)
	return slices.Compact(regions)
}

func regionOf(zone string) string { return zone[:max(0, strings.LastIndexByte(zone, '-'))] }

// offered returns the type called name if zone has it.
func (s *Cloud) offered(zone, name string) (tpu.Type, bool) {
	t, err := tpu.ParseType(name)
	if err != nil || t.Name != name || !t.Generation.CloudAPI {
		return tpu.Type{}, false
	}
	return t, zone == s.cfg.Zone || slices.Contains(offers()[zone], t.Generation.Name)
}

// typeOf finds the type that a node requests, by name or by version and topology.
func (s *Cloud) typeOf(zone, field string, n *tpualpha.Node) (tpu.Type, error) {
	name := n.AcceleratorType
	if c := n.AcceleratorConfig; c != nil {
		if name != "" {
			return tpu.Type{}, badField(field+".accelerator_config", "only one of accelerator_type and accelerator_config can be set")
		}
		for _, t := range tpu.Types() {
			if t.Generation.ChipType == c.Type && t.Topology == c.Topology && t.Topology != "" {
				name = t.Name
			}
		}
		if name == "" {
			return tpu.Type{}, badField(field+".accelerator_config", "accelerator config %s %q could not be found in the zonal accelerator configurations", c.Type, c.Topology)
		}
	}
	if name == "" {
		return tpu.Type{}, badField(field+".accelerator_type", "accelerator_type or accelerator_config is required")
	}
	t, ok := s.offered(zone, name)
	if !ok {
		return tpu.Type{}, badField(field+".accelerator_type", "accelerator type %q could not be found in the zonal accelerator configurations", name)
	}
	return t, nil
}

func (s *Cloud) serveLocations(c *call) (any, error) {
	if c.r.Method != http.MethodGet || c.verb != "" {
		return nil, unknownMethod()
	}
	if c.zone != "" {
		if err := checkQuery(c.query); err != nil {
			return nil, err
		}
		return s.location(c.zone), nil
	}
	if err := checkQuery(c.query, "pageSize", "pageToken", "filter", "extraLocationTypes"); err != nil {
		return nil, err
	}
	if c.query.Get("filter") != "" {
		return nil, notModelled("The filter of locations.list")
	}
	zones, next, err := page(s.zones(), c.query, "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	out := &tpualpha.ListLocationsResponse{NextPageToken: next}
	for _, z := range zones {
		out.Locations = append(out.Locations, s.location(z))
	}
	return out, nil
}

func (s *Cloud) location(zone string) *tpualpha.Location {
	return &tpualpha.Location{Name: s.locationName(zone), LocationId: zone, Labels: map[string]string{"cloud.googleapis.com/region": regionOf(zone)}}
}

func (s *Cloud) serveAcceleratorTypes(c *call) (any, error) {
	var all []*tpualpha.AcceleratorType
	for _, zone := range c.zonesListed() {
		for _, t := range tpu.Types() {
			if _, ok := s.offered(zone, t.Name); !ok {
				continue
			}
			a := &tpualpha.AcceleratorType{Name: s.locationName(zone) + "/acceleratorTypes/" + t.Name, Type: t.Name}
			if t.Topology != "" {
				a.AcceleratorConfigs = []*tpualpha.AcceleratorConfig{{Type: t.Generation.ChipType, Topology: t.Topology}}
			}
			all = append(all, a)
		}
	}
	return serveCatalog(c, all, func(a *tpualpha.AcceleratorType) string { return a.Name },
		func(items []*tpualpha.AcceleratorType, next string) any {
			return &tpualpha.ListAcceleratorTypesResponse{AcceleratorTypes: items, NextPageToken: next}
		})
}

func (s *Cloud) serveRuntimeVersions(c *call) (any, error) {
	var all []*tpualpha.RuntimeVersion
	for _, zone := range c.zonesListed() {
		for _, v := range runtimeVersions() {
			all = append(all, &tpualpha.RuntimeVersion{Name: s.locationName(zone) + "/runtimeVersions/" + v, Version: v})
		}
	}
	return serveCatalog(c, all, func(v *tpualpha.RuntimeVersion) string { return v.Name },
		func(items []*tpualpha.RuntimeVersion, next string) any {
			return &tpualpha.ListRuntimeVersionsResponse{RuntimeVersions: items, NextPageToken: next}
		})
}

// serveCatalog answers get and list for items that never change.
func serveCatalog[T any](c *call, all []T, name func(T) string, list func([]T, string) any) (any, error) {
	if c.r.Method != http.MethodGet || c.verb != "" {
		return nil, unknownMethod()
	}
	if c.id != "" {
		if err := checkQuery(c.query); err != nil {
			return nil, err
		}
		for _, item := range all {
			if name(item) == c.name() {
				return item, nil
			}
		}
		return nil, noSuch(c.name())
	}
	if err := checkQuery(c.query, "pageSize", "pageToken", "filter", "orderBy"); err != nil {
		return nil, err
	}
	if c.query.Get("filter") != "" || c.query.Get("orderBy") != "" {
		return nil, notModelled("filter and orderBy of this list")
	}
	items, next, err := page(all, c.query, "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	return list(items, next), nil
}
