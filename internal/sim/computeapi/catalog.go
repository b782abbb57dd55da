package computeapi

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

// numbered returns the id of a resource that exists from the start.
func numbered(name string) *uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails, as its documentation says
	return proto.Uint64(h.Sum64() >> 2)
}

// imageSize is the size of Google's images in GB, and of the boot disk if a template names
// none.
const imageSize = 10

// serveImages answers for the project with the images for TPUs. No other project has
// images.
func (s machines) serveImages(c *computeCall) (any, error) {
	if c.r.Method != http.MethodGet {
		return nil, wire.NotModelled("Making images")
	}
	var all []proto.Message
	family := ""
	if c.id == "family" {
		family = c.verb
	} else if c.verb != "" {
		return nil, wire.UnknownMethod()
	}
	at := "projects/" + c.project + "/global/images/"
	for _, i := range groups.Images() {
		if c.project != groups.ImageProject {
			break
		}
		m := &computepb.Image{
			Kind: proto.String("compute#image"), Id: numbered(i.Name), Name: proto.String(i.Name), Family: proto.String(i.Family),
			Status: proto.String("READY"), DiskSizeGb: proto.Int64(imageSize), Architecture: proto.String("X86_64"), SourceType: proto.String("RAW"),
			CreationTimestamp: proto.String("2026-11-01T00:00:00.000-08:00"), SelfLink: proto.String(s.Networks().Link(at + i.Name)),
		}
		if i.Deprecated {
			m.Deprecated = &computepb.DeprecationStatus{State: proto.String("DEPRECATED")}
		}
		if i.Name == c.id || i.Family == family && !i.Deprecated {
			return m, wire.CheckQuery(c.query)
		}
		all = append(all, m)
	}
	if c.id != "" {
		return nil, noSuchCompute(strings.TrimSuffix(at+c.id+"/"+c.verb, "/"))
	}
	return s.list(c, "compute#imageList", all)
}

func (s machines) serveMachineTypes(c *computeCall) (any, error) {
	if err := s.checkPlace(c.scope); err != nil {
		return nil, err
	}
	if c.r.Method != http.MethodGet || c.verb != "" {
		return nil, wire.UnknownMethod()
	}
	zones := s.Catalog().Zones()
	if zone, ok := strings.CutPrefix(c.scope, "zones/"); ok {
		zones = []string{zone}
	}
	var all []message
	for _, zone := range zones {
		for _, m := range groups.Offered(s.Cloud, zone) {
			all = append(all, machineType(m, zone, s.Networks().Link(s.Networks().ComputePath("zones/"+zone, "machineTypes", m.Name))))
		}
	}
	if c.id == "" {
		return s.listOf(c, "machineType", all)
	}
	if err := wire.CheckQuery(c.query); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(m message) bool { return m.GetName() == c.id })
	if i < 0 {
		return nil, noSuchCompute(c.name())
	}
	return all[i], nil
}

func machineType(m groups.MachineType, zone, link string) *computepb.MachineType {
	return &computepb.MachineType{
		Kind: proto.String("compute#machineType"), Id: numbered(m.Name), Name: proto.String(m.Name), Zone: proto.String(zone),
		Description: proto.String(fmt.Sprintf("%d vCPUs, %d GB RAM, %d TPU chips", m.CPUs, m.MemoryGB, m.Chips)),
		GuestCpus:   proto.Int32(int32(m.CPUs)), MemoryMb: proto.Int32(int32(m.MemoryGB) << 10), IsSharedCpu: proto.Bool(false), Architecture: proto.String("X86_64"),
		Accelerators:      []*computepb.Accelerators{{GuestAcceleratorType: proto.String(m.Accelerator), GuestAcceleratorCount: proto.Int32(int32(m.Chips))}},
		CreationTimestamp: proto.String("2024-01-01T00:00:00.000-08:00"), SelfLink: proto.String(link),
	}
}
