package tpuapi

import (
	"net/http"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

func (s API) serveLocations(c *call) (any, error) {
	if c.r.Method != http.MethodGet || c.verb != "" {
		return nil, wire.UnknownMethod()
	}
	if c.zone != "" {
		if err := wire.CheckQuery(c.query); err != nil {
			return nil, err
		}
		return s.location(c.zone), nil
	}
	if err := wire.CheckQuery(c.query, "pageSize", "pageToken", "filter", "extraLocationTypes"); err != nil {
		return nil, err
	}
	if c.query.Get("filter") != "" {
		return nil, wire.NotModelled("The filter of locations.list")
	}
	zones, next, err := wire.Page(s.Catalog().Zones(), c.query, "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	out := &tpualpha.ListLocationsResponse{NextPageToken: next}
	for _, z := range zones {
		out.Locations = append(out.Locations, s.location(z))
	}
	return out, nil
}

func (s API) location(zone string) *tpualpha.Location {
	return &tpualpha.Location{Name: s.LocationName(zone), LocationId: zone, Labels: map[string]string{"cloud.googleapis.com/region": cloud.RegionOf(zone)}}
}

func (s API) serveAcceleratorTypes(c *call) (any, error) {
	var all []*tpualpha.AcceleratorType
	for _, zone := range c.zonesListed() {
		for _, t := range tpu.Types() {
			if _, ok := s.Catalog().Offered(zone, t.Name); !ok {
				continue
			}
			a := &tpualpha.AcceleratorType{Name: s.LocationName(zone) + "/acceleratorTypes/" + t.Name, Type: t.Name}
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

func (s API) serveRuntimeVersions(c *call) (any, error) {
	var all []*tpualpha.RuntimeVersion
	for _, zone := range c.zonesListed() {
		for _, v := range cloud.RuntimeVersions() {
			all = append(all, &tpualpha.RuntimeVersion{Name: s.LocationName(zone) + "/runtimeVersions/" + v, Version: v})
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
		return nil, wire.UnknownMethod()
	}
	if c.id != "" {
		if err := wire.CheckQuery(c.query); err != nil {
			return nil, err
		}
		for _, item := range all {
			if name(item) == c.name() {
				return item, nil
			}
		}
		return nil, wire.NoSuch(c.name())
	}
	if err := wire.CheckQuery(c.query, "pageSize", "pageToken", "filter", "orderBy"); err != nil {
		return nil, err
	}
	if c.query.Get("filter") != "" || c.query.Get("orderBy") != "" {
		return nil, wire.NotModelled("filter and orderBy of this list")
	}
	items, next, err := wire.Page(all, c.query, "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	return list(items, next), nil
}
