package tpu

import (
	_ "embed"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	"multihost/internal/fault"
)

// A Generation describes one generation of hardware, with facts that hold for all its
// accelerator types. Sources: the Cloud TPU documentation and MaxText (NUMA rule:
// PREFLIGHT.md).
type Generation struct {
	Name           string // "v5e"
	Family         string // first part of the names of its accelerator types: "v5litepod"
	CountsCores    bool   // the number in the type counts TensorCores, two per chip; otherwise it counts chips
	MultiSlice     bool   // several slices can form one run over the data-center network
	NUMA           bool   // MaxText recommends binding the trainer to NUMA node 0
	CloudAPI       bool   // the Cloud TPU API and its queued resources have it
	VFIO           bool   // devices are /dev/vfio/N, otherwise /dev/accelN
	SparseCore     bool   // XLA can give a part of the work to its SparseCores
	RuntimeVersion string // default runtime version, or ""
	ChipType       string // its name in the API's acceleratorConfig: "V5LITE_POD"
	Quota          string // the beginning of the ids of its quotas in the TPU API, or ""
	ImageFamily    string // image family for the boot disks of its VMs on Compute Engine, or ""
	DiskType       string // type of these disks; "": Compute Engine chooses
	GKEAccelerator string // value of the node label cloud.google.com/gke-tpu-accelerator; "": GKE has no nodes of this generation
	ComputeQuota   string // its name in quotas of Compute Engine: "CT6E"; "": unknown
	// PeakTFLOPS is the dense bf16 peak of one chip, to which MFU is relative. JAX's own
	// table has 140 for v3, 920 for v6e and 2310 for tpu7x. MaxText's MFU figures are
	// relative to the values here.
	PeakTFLOPS float64
	PeakSource string
	Devices    int // JAX's devices on one chip: 1, or one for each core
}

const (
	cloudDocs  = "Cloud TPU documentation, system architecture"
	bothTables = "Cloud TPU documentation; the same in MaxText's benchmark uploader"

	computeImage = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
)

// Generations returns all generations, oldest first. To add a generation, add it here, its
// accelerator types to types.txt, its machine types to Machines and its prices to prices.txt. The
// tests name what is missing.
func Generations() []Generation {
	return []Generation{
		{
			Name: "v2", Family: "v2", CountsCores: true, CloudAPI: true,
			RuntimeVersion: "tpu-ubuntu2204-base", ChipType: "V2", Quota: "TPUV2s", PeakTFLOPS: 45, PeakSource: cloudDocs, Devices: 2,
		},
		{
			Name: "v3", Family: "v3", CountsCores: true, CloudAPI: true,
			RuntimeVersion: "tpu-ubuntu2204-base", ChipType: "V3", Quota: "TPUV3s", PeakTFLOPS: 123, PeakSource: cloudDocs, Devices: 2,
		},
		{
			Name: "v4", Family: "v4", CountsCores: true, MultiSlice: true, NUMA: true, CloudAPI: true,
			RuntimeVersion: "tpu-ubuntu2204-base", ChipType: "V4", Quota: "TPUV4s", GKEAccelerator: "tpu-v4-podslice", PeakTFLOPS: 275, PeakSource: bothTables, Devices: 1,
		},
		{
			Name: "v5e", Family: "v5litepod", MultiSlice: true, CloudAPI: true, VFIO: true,
			RuntimeVersion: "v2-alpha-tpuv5-lite", ChipType: "V5LITE_POD", Quota: "TPUV5s", GKEAccelerator: "tpu-v5-lite-podslice", PeakTFLOPS: 197, PeakSource: bothTables, Devices: 1,
		},
		{
			Name: "v5p", Family: "v5p", CountsCores: true, MultiSlice: true, NUMA: true, CloudAPI: true, VFIO: true, SparseCore: true,
			RuntimeVersion: "v2-alpha-tpuv5", ChipType: "V5P", Quota: "TPUV5P", GKEAccelerator: "tpu-v5p-slice", ImageFamily: computeImage, ComputeQuota: "CT5P", PeakTFLOPS: 459, PeakSource: bothTables, Devices: 1,
		},
		{
			Name: "v6e", Family: "v6e", MultiSlice: true, CloudAPI: true, VFIO: true, SparseCore: true,
			RuntimeVersion: "v2-alpha-tpuv6e", ChipType: "V6E", Quota: "TPUV6E", GKEAccelerator: "tpu-v6e-slice", ImageFamily: computeImage, ComputeQuota: "CT6E", PeakTFLOPS: 918, PeakSource: bothTables, Devices: 1,
		},
		{
			Name: "tpu7x", Family: "tpu7x", CountsCores: true, MultiSlice: true, VFIO: true, SparseCore: true,
			ChipType: "TPU7X", GKEAccelerator: "tpu7x", ImageFamily: "ubuntu-accel-2404-amd64-tpu-tpu7x", DiskType: "hyperdisk-balanced", ComputeQuota: "TPU7X", PeakTFLOPS: 2307, PeakSource: cloudDocs, Devices: 2,
		},
	}
}

// GenerationOf returns the generation of that name, or false.
func GenerationOf(name string) (Generation, bool) {
	for _, g := range Generations() {
		if g.Name == name {
			return g, true
		}
	}
	return Generation{}, false
}

// A Type is an accelerator type: how large one slice is.
type Type struct {
	Name       string // the API's name: "v5litepod-16"; "ct6e-standard-4t:2x4" if Machine is set
	Generation Generation
	Chips      int
	Workers    int // VMs of one slice
	Topology   string
	Machine    string // machine type of Compute Engine, if the name of the type has one
}

// ChipsPerWorker returns the number of chips that one worker sees.
func (t Type) ChipsPerWorker() int { return t.Chips / t.Workers }

// Devices returns the TPU device files of one worker, including the control node of
// vfio.
func (t Type) Devices() []string {
	var paths []string
	for i := range t.ChipsPerWorker() {
		if t.Generation.VFIO {
			paths = append(paths, "/dev/vfio/"+strconv.Itoa(i))
		} else {
			paths = append(paths, "/dev/accel"+strconv.Itoa(i))
		}
	}
	if t.Generation.VFIO {
		paths = append(paths, "/dev/vfio/vfio")
	}
	return paths
}

//go:embed types.txt
var typeTable string

// A TypeError says that a text is not an accelerator type.
type TypeError struct {
	Text    string
	Suggest []string // the most similar types, best first
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("parse accelerator type %q: no such type", e.Text)
}

// Fault returns fault.Usage.
func (e *TypeError) Fault() fault.Kind { return fault.Usage }

// Hint returns what to type instead.
func (e *TypeError) Hint() string {
	if len(e.Suggest) == 0 {
		return "types look like v4-128, v5litepod-256, v5p-128 or v6e-256"
	}
	return "did you mean " + strings.Join(e.Suggest, " or ") + "?"
}

// ParseType parses an accelerator type in any case. It also accepts MaxText's names v5e-N
// for v5litepod-N, and MACHINE:TOPOLOGY as TypeOf writes it. The error is a *TypeError.
func ParseType(text string) (Type, error) {
	name := strings.ToLower(strings.TrimSpace(text))
	if machine, topology, ok := strings.Cut(name, ":"); ok {
		return TypeOf(machine, topology)
	}
	if rest, ok := strings.CutPrefix(name, "v5e-"); ok {
		name = "v5litepod-" + rest
	}
	family, size, ok := strings.Cut(name, "-")
	n, err := strconv.Atoi(size)
	if !ok || err != nil || strconv.Itoa(n) != size {
		return Type{}, &TypeError{Text: text, Suggest: nearest(name)}
	}
	for _, g := range Generations() {
		if g.Family != family {
			continue
		}
		for _, e := range sizes(family) {
			if e.n == n {
				return makeType(g, e), nil
			}
		}
	}
	return Type{}, &TypeError{Text: text, Suggest: nearest(name)}
}

// Types returns every known accelerator type, sorted by generation and size.
func Types() []Type {
	var all []Type
	for _, g := range Generations() {
		for _, e := range sizes(g.Family) {
			all = append(all, makeType(g, e))
		}
	}
	return all
}

func makeType(g Generation, e size) Type {
	t := Type{Name: g.Family + "-" + strconv.Itoa(e.n), Generation: g, Chips: e.n, Topology: e.topology}
	if g.CountsCores {
		t.Chips = e.n / 2
	}
	// A VM has four chips, with two exceptions. In generations that count chips, a slice of up to
	// eight chips is one VM. A tpu7x slice of a single chip is one VM.
	t.Workers = max(1, t.Chips/4)
	if !g.CountsCores && t.Chips <= 8 {
		t.Workers = 1
	}
	return t
}

type size struct {
	n        int
	topology string
}

// sizes returns the sizes of a family, in the order of the table, or nil.
func sizes(family string) []size { return sizeTable()[family] }

var sizeTable = sync.OnceValue(func() map[string][]size {
	table := map[string][]size{}
	for line := range strings.Lines(typeTable) {
		fields := strings.Fields(line)
		if len(fields) == 0 || table[fields[0]] != nil {
			continue
		}
		list := make([]size, 0, len(fields)-1)
		for _, f := range fields[1:] {
			n, topology, _ := strings.Cut(f, ":")
			v, err := strconv.Atoi(n)
			if err != nil {
				continue // TestTypeTableIsWellFormed reports it
			}
			list = append(list, size{v, topology})
		}
		table[fields[0]] = list
	}
	return table
})

// nearest returns up to two types for a misspelt name. If the family is right, these are the
// sizes below and above the requested one. Otherwise nearest returns the type with the most
// similar spelling.
func nearest(name string) []string {
	name = canonical(name)
	family, rest, _ := strings.Cut(name, "-")
	if list := sizes(family); list != nil {
		n, err := strconv.Atoi(rest)
		if err != nil {
			return []string{family + "-" + strconv.Itoa(list[0].n)}
		}
		i := sort.Search(len(list), func(i int) bool { return list[i].n >= n })
		var near []string
		for _, j := range []int{i - 1, i} {
			if j >= 0 && j < len(list) {
				near = append(near, family+"-"+strconv.Itoa(list[j].n))
			}
		}
		return near
	}
	best, score := "", 4
	for _, g := range Generations() {
		for _, e := range sizes(g.Family) {
			candidate := g.Family + "-" + strconv.Itoa(e.n)
			if d := editDistance(name, candidate); d < score {
				best, score = candidate, d
			}
		}
	}
	if best == "" {
		return nil
	}
	return []string{best}
}

// Suggest returns the candidate most similar to word, or "" if none is similar enough. Different
// names of one generation count as the same word: v5e-16 is v5litepod-16, and trillium-16 is
// v6e-16. If two candidates are equally similar, Suggest returns the one whose spelling is closer
// to word.
func Suggest(word string, candidates []string) string {
	best, score, spelled := "", max(2, len(word)/3)+1, 0
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		plain := editDistance(word, c)
		d := min(plain, editDistance(canonical(word), canonical(c)))
		if d < score || best != "" && d == score && plain < spelled {
			best, score, spelled = c, d, plain
		}
	}
	return best
}

// aliases maps people's names for generations to the families of the types. If one name
// begins with another, the longer one comes first.
var aliases = [][2]string{
	{"v5litepod", "v5litepod"}, {"v5lite", "v5litepod"}, {"v5e", "v5litepod"},
	{"trillium", "v6e"}, {"v6e", "v6e"}, {"ironwood", "tpu7x"}, {"tpu7x", "tpu7x"}, {"tpu7", "tpu7x"},
	{"v7x", "tpu7x"}, {"v7", "tpu7x"}, {"v5p", "v5p"},
}

// canonical replaces the generation at the beginning of word by the API's name. It adds a missing
// dash, as in v5e16, and drops a leading "tpu-", as in tpu-v5e-16.
func canonical(word string) string {
	word = strings.TrimPrefix(strings.ToLower(word), "tpu-")
	for _, a := range aliases {
		rest, ok := strings.CutPrefix(word, a[0])
		if !ok {
			continue
		}
		if rest = strings.TrimLeft(rest, "-_ "); rest == "" {
			return a[1]
		}
		if rest[0] < '0' || rest[0] > '9' {
			return word
		}
		return a[1] + "-" + rest
	}
	return word
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
