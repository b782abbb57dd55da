// Package groups makes TPU slices as Compute Engine does: a managed instance group that
// has as many VMs as the slice needs, and that makes all of them or none (BULK mode). A
// workload policy gives the slice its topology.
//
// The package holds no state of its own: the groups and their VMs are in the state of a
// cloud. Unless a comment says otherwise, the caller of a function holds its lock.
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

// A MachineType is the size of a VM with TPU chips.
type MachineType struct {
	Name        string
	Generation  string // of internal/tpu
	Accelerator string // guestAcceleratorType
	Chips       int
	CPUs        int
	MemoryGB    int
	Hyperdisk   bool // it takes no other disks
	zones       []string
}

// MachineTypes returns the types with TPU chips. The numbers of CPUs and GB of some small
// types are guesses: nobody has published them.
func MachineTypes() []MachineType {
	v5p := []string{"us-central1-a", "us-east5-a"}
	v6e := []string{"asia-northeast1-b", "europe-west4-a", "southamerica-west1-a", "us-central1-a", "us-central1-b", "us-east5-a", "us-east5-b"}
	return []MachineType{
		{"ct5p-hightpu-1t", "v5p", "ct5p", 1, 52, 112, false, v5p},
		{"ct5p-hightpu-2t", "v5p", "ct5p", 2, 104, 224, false, v5p},
		{"ct5p-hightpu-4t", "v5p", "ct5p", 4, 208, 448, false, v5p},
		{"ct6e-standard-1t", "v6e", "ct6e", 1, 44, 176, false, v6e},
		{"ct6e-standard-4t", "v6e", "ct6e", 4, 180, 720, false, v6e},
		{"ct6e-standard-8t", "v6e", "ct6e", 8, 360, 1440, false, v6e},
		{"tpu7x-standard-1t", "tpu7x", "tpu7x", 1, 56, 240, true, []string{"us-central1-c"}},
		{"tpu7x-standard-4t", "tpu7x", "tpu7x", 4, 224, 960, true, []string{"us-central1-c"}},
	}
}

// Offered returns the machine types of a zone. The simulator's own zone has all of them.
func Offered(s *cloud.Cloud, zone string) []MachineType {
	return slices.DeleteFunc(MachineTypes(), func(m MachineType) bool {
		return zone != s.Config.Zone && !slices.Contains(m.zones, zone)
	})
}

// Slice returns the accelerator type of a slice of n VMs of type m. An empty topology is
// that of a single VM.
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

// alone returns the topology of one VM with so many chips.
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

// Images returns the builds, the newest of each family first.
func Images() []Image {
	var all []Image
	for _, family := range []string{"ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", "ubuntu-accel-2404-amd64-tpu-tpu7x"} {
		for i, build := range []string{"v20261112", "v20261105"} {
			all = append(all, Image{Name: family + "-" + build, Family: family, Deprecated: i > 0})
		}
	}
	return all
}

// FindImage returns the image that a URL names, by family or by name.
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

// Fingerprint returns the fingerprint of a part of a VM that has changed so many times.
func Fingerprint(id uint64, changes int) *string {
	text := base64.URLEncoding.EncodeToString(fmt.Appendf(nil, "%x-%d", id, changes))
	return &text
}
