// Package groups makes TPU slices as Compute Engine does. A slice is a managed instance
// group with as many VMs as the slice needs. The group makes all of them or none (BULK
// mode). A workload policy gives the slice its topology.
//
// The package has no state: the groups and their VMs are in the state of a cloud. Unless a
// comment says otherwise, the caller of a function holds the lock of the cloud.
package groups

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/sim/cloud"
	"multihost/internal/tpu"
)

// A MachineType is a machine type as the API describes it.
type MachineType struct {
	tpu.Machine
	Accelerator string // guestAcceleratorType
	CPUs        int
	MemoryGB    int
}

// sizeOf returns the CPUs and GB of a VM. For some small types these are guesses, because
// nobody has published them.
func sizeOf(machine string) (cpus, gb int) {
	size := map[string][2]int{
		"ct5p-hightpu-4t":  {208, 448},
		"ct6e-standard-1t": {44, 176}, "ct6e-standard-4t": {180, 720}, "ct6e-standard-8t": {360, 1440},
		"tpu7x-standard-1t": {56, 240}, "tpu7x-standard-4t": {224, 960},
	}[machine]
	return size[0], size[1]
}

// zonesOf returns the zones in which VMs of a generation are known to exist.
func zonesOf(generation string) []string {
	return map[string][]string{
		"v5p":   {"us-central1-a", "us-east5-a"},
		"v6e":   {"asia-northeast1-b", "europe-west4-a", "southamerica-west1-a", "us-central1-a", "us-central1-b", "us-east5-a", "us-east5-b"},
		"tpu7x": {"us-central1-c"},
	}[generation]
}

// Offered returns the machine types of a zone. The simulator's own zone has all of them.
func Offered(s *cloud.Cloud, zone string) []MachineType {
	var all []MachineType
	for _, m := range tpu.Machines() {
		if zone != s.Config.Zone && !slices.Contains(zonesOf(m.Generation), zone) {
			continue
		}
		accelerator, _, _ := strings.Cut(m.Name, "-")
		cpus, gb := sizeOf(m.Name)
		all = append(all, MachineType{Machine: m, Accelerator: accelerator, CPUs: cpus, MemoryGB: gb})
	}
	return all
}

// Hyperdisk reports whether the VMs take only Hyperdisks.
func (m MachineType) Hyperdisk() bool {
	g, _ := tpu.GenerationOf(m.Generation)
	return strings.HasPrefix(g.DiskType, "hyperdisk-")
}

// Slice returns the accelerator type of a slice of n VMs of type m. "" means the topology
// of a single VM.
func (m MachineType) Slice(n int, topology string) tpu.Type {
	g, _ := tpu.GenerationOf(m.Generation)
	t := tpu.Type{Generation: g, Chips: n * m.Chips, Workers: n, Topology: topology}
	if topology == "" {
		t.Topology = alone(g.Name, m.Chips)
	}
	number := t.Chips
	if g.CountsCores {
		number *= 2
	}
	t.Name = g.Family + "-" + strconv.Itoa(number)
	return t
}

// alone returns the topology of one VM with this number of chips.
func alone(generation string, chips int) string {
	text := map[int]string{1: "1x1", 2: "1x2", 4: "2x2", 8: "2x4"}[chips]
	if generation == "v5p" || generation == "tpu7x" {
		text += "x1"
	}
	return text
}

// ChipsOf returns the number of chips in a topology such as 2x2x4.
func ChipsOf(topology string) (int, error) {
	parts := strings.Split(topology, "x")
	if len(parts) < 2 || len(parts) > 3 {
		return 0, fmt.Errorf("parse topology %q: want AxB or AxBxC", topology)
	}
	n := 1
	for _, p := range parts {
		d, err := strconv.Atoi(p)
		if err != nil || d < 1 || strconv.Itoa(d) != p || n > 1<<20 {
			return 0, fmt.Errorf("parse topology %q: want AxB or AxBxC", topology)
		}
		n *= d
	}
	return n, nil
}

// ImageProject is the project of Google's images for VMs with TPU chips.
const ImageProject = "ubuntu-os-accelerator-images"

// An Image is one build of a family of images.
type Image struct {
	Name, Family string
	Deprecated   bool
}

// Images returns the builds, of each family the newest first.
func Images() []Image {
	var all []Image
	for _, g := range tpu.Generations() {
		family := g.ImageFamily
		if family == "" || slices.ContainsFunc(all, func(i Image) bool { return i.Family == family }) {
			continue
		}
		for i, build := range []string{"v20261112", "v20261105"} {
			all = append(all, Image{Name: family + "-" + build, Family: family, Deprecated: i > 0})
		}
	}
	return all
}

// FindImage returns the image at a URL, by family or by name.
func FindImage(link string) (Image, bool) {
	_, rest, ok := strings.Cut("/"+link, "/projects/"+ImageProject+"/global/images/")
	family, isFamily := strings.CutPrefix(rest, "family/")
	for _, i := range Images() {
		if ok && (isFamily && i.Family == family && !i.Deprecated || i.Name == rest) {
			return i, true
		}
	}
	return Image{}, false
}

// Fingerprint returns the fingerprint of a part of a VM that has changed this many times.
func Fingerprint(id uint64, changes int) *string {
	text := base64.URLEncoding.EncodeToString(fmt.Appendf(nil, "%x-%d", id, changes))
	return &text
}
