package tpu_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/tpu"
)

func TestTypeTableIsWellFormed(t *testing.T) {
	types := tpu.Types()
	if got, want := len(types), 356; got != want {
		t.Errorf("table holds %d types, want %d", got, want)
	}
	for _, ty := range types {
		chips := 1
		for _, d := range strings.Split(ty.Topology, "x") {
			n := 0
			for _, r := range d {
				n = n*10 + int(r-'0')
			}
			chips *= n
		}
		if chips != ty.Chips {
			t.Errorf("%s: topology %s has %d chips, the name says %d", ty.Name, ty.Topology, chips, ty.Chips)
		}
		if ty.Workers*ty.ChipsPerWorker() != ty.Chips {
			t.Errorf("%s: %d workers of %d chips are not %d chips", ty.Name, ty.Workers, ty.ChipsPerWorker(), ty.Chips)
		}
		back, err := tpu.ParseType(ty.Name)
		if err != nil || back != ty {
			t.Errorf("ParseType(%q) = %v, %v", ty.Name, back, err)
		}
	}
}

func TestTypeArithmeticFollowsTheGeneration(t *testing.T) {
	for _, row := range []struct {
		name                      string
		canonical                 string
		chips, workers, perWorker int
		device                    string
	}{
		{"v2-8", "v2-8", 4, 1, 4, "/dev/accel0"},
		{"v4-128", "v4-128", 64, 16, 4, "/dev/accel0"},
		{"v5litepod-1", "v5litepod-1", 1, 1, 1, "/dev/vfio/0"},
		{"v5litepod-8", "v5litepod-8", 8, 1, 8, "/dev/vfio/0"},
		{"v5e-16", "v5litepod-16", 16, 4, 4, "/dev/vfio/0"},
		{"V5LITEPOD-256", "v5litepod-256", 256, 64, 4, "/dev/vfio/0"},
		{"v5p-8", "v5p-8", 4, 1, 4, "/dev/vfio/0"},
		{"v5p-12288", "v5p-12288", 6144, 1536, 4, "/dev/vfio/0"},
		{"v6e-8", "v6e-8", 8, 1, 8, "/dev/vfio/0"},
		{"tpu7x-2", "tpu7x-2", 1, 1, 1, "/dev/vfio/0"},
		{"tpu7x-8", "tpu7x-8", 4, 1, 4, "/dev/vfio/0"},
	} {
		ty, err := tpu.ParseType(row.name)
		if err != nil {
			t.Errorf("ParseType(%q): %v", row.name, err)
			continue
		}
		if ty.Name != row.canonical || ty.Chips != row.chips || ty.Workers != row.workers || ty.ChipsPerWorker() != row.perWorker || ty.Devices()[0] != row.device {
			t.Errorf("%s: got %+v, %d chips a worker, devices %v", row.name, ty, ty.ChipsPerWorker(), ty.Devices())
		}
	}
}

func TestUnknownTypeNamesTheNearest(t *testing.T) {
	for text, hint := range map[string]string{
		"v5litepod-17": "did you mean v5litepod-16 or v5litepod-32?",
		"v5litepd-16":  "did you mean v5litepod-16?",
		"v6e-512":      "did you mean v6e-256?",
		"gpu":          "types look like v4-128, v5litepod-256, v5p-128 or v6e-256",
		"v4":           "did you mean v4-8?",
	} {
		_, err := tpu.ParseType(text)
		var te *tpu.TypeError
		if !errors.As(err, &te) {
			t.Errorf("ParseType(%q) = %v, want a TypeError", text, err)
			continue
		}
		if te.Hint() != hint {
			t.Errorf("hint for %q is %q, want %q", text, te.Hint(), hint)
		}
	}
}

func TestFoldWritesWorkersShort(t *testing.T) {
	grid := func(slices, workers int) (all []tpu.WorkerID) {
		for s := range slices {
			for w := range workers {
				all = append(all, tpu.WorkerID{Slice: s, Worker: w})
			}
		}
		return all
	}
	for _, row := range []struct {
		workers []tpu.WorkerID
		want    string
	}{
		{nil, ""},
		{[]tpu.WorkerID{{0, 3}}, "s0w3"},
		{grid(1, 64), "s0w[0-63]"},
		{grid(32, 64), "s[0-31]w[0-63]"},
		{[]tpu.WorkerID{{1, 2}, {0, 3}, {0, 0}, {0, 2}}, "s0w[0,2-3],s1w2"},
		{[]tpu.WorkerID{{0, 1}, {2, 1}, {1, 0}, {0, 1}}, "s[0,2]w1,s1w0"},
	} {
		if got := tpu.Fold(row.workers); got != row.want {
			t.Errorf("Fold(%v) = %q, want %q", row.workers, got, row.want)
		}
	}
}

func node(name, typ, qr string) tpu.Slice {
	return tpu.Slice{Name: name, Type: typ, Condition: tpu.Usable, State: "READY", Health: "HEALTHY", QueuedResource: qr, MultiSlice: qr != "", Workers: make([]tpu.Worker, 4)}
}

func TestSelect(t *testing.T) {
	creating := node("t-1", "v4-32", "q")
	creating.Condition, creating.State, creating.Workers = tpu.Making, "CREATING", nil
	sick := node("t-1", "v4-32", "q")
	sick.Condition, sick.Health = tpu.Serviced, "UNHEALTHY_MAINTENANCE"
	small := node("t-1", "v4-32", "q")
	small.Workers = small.Workers[:2]
	for _, row := range []struct {
		story        string
		nodes        []tpu.Slice
		prefix       string
		want         []string
		problems     []string
		partial      []string // names with partial; nil: the same as want
		wantNoSlices bool
	}{
		{story: "an exact name wins over a family", prefix: "t-0",
			nodes: []tpu.Slice{node("t-0", "v4-32", ""), node("t-0-0", "v4-32", "q"), node("t-0-1", "v4-32", "q")}, want: []string{"t-0"}},
		{story: "numbers sort as numbers", prefix: "t",
			nodes: []tpu.Slice{node("t-1", "v4-32", "q"), node("t-0", "v4-32", "q"), node("t-2", "v4-32", "q")}, want: []string{"t-0", "t-1", "t-2"}},
		{story: "a gap is named", prefix: "t",
			nodes: []tpu.Slice{node("t-0", "v4-32", "q"), node("t-2", "v4-32", "q"), node("t-3", "v4-32", "q")}, want: []string{"t-0", "t-2", "t-3"},
			problems: []string{`slice "t-1" is missing`}},
		{story: "a slice named after its type is foreign", prefix: "v4",
			nodes: []tpu.Slice{node("v4-0", "v4-32", "q"), node("v4-1", "v4-32", "q"), node("v4-2-old-0", "v4-32", "q"), node("v4-8", "v4-32", "")}, want: []string{"v4-0", "v4-1"},
			problems: []string{`slice "v4-8" shares the prefix but belongs to no request, "v4-0" to request "q"`}},
		{story: "another type is foreign", prefix: "t",
			nodes: []tpu.Slice{node("t-0", "v4-32", "q"), node("t-1", "v4-8", "q")}, want: []string{"t-0"},
			problems: []string{`slice "t-1" shares the prefix but is a v4-8, "t-0" is a v4-32`}},
		{story: "the prefix is no pattern", prefix: "t.", nodes: []tpu.Slice{node("tx-0", "v4-32", "q")}, wantNoSlices: true},
		{story: "a leading zero is another name", prefix: "t",
			nodes: []tpu.Slice{node("t-0", "v4-32", "q"), node("t-01", "v4-32", "q"), node("t-1", "v4-32", "q")}, want: []string{"t-0", "t-1"}},
		{story: "a slice being made is not one worker", prefix: "t", nodes: []tpu.Slice{node("t-0", "v4-32", "q"), creating}, want: []string{"t-0", "t-1"},
			problems: []string{`slice "t-1" is not ready: state CREATING`}, partial: []string{"t-0"}},
		{story: "maintenance is not ready", prefix: "t", nodes: []tpu.Slice{node("t-0", "v4-32", "q"), sick}, want: []string{"t-0", "t-1"},
			problems: []string{`slice "t-1" is not ready: health UNHEALTHY_MAINTENANCE`}, partial: []string{"t-0"}},
		{story: "unlike worker counts", prefix: "t", nodes: []tpu.Slice{node("t-0", "v4-32", "q"), small}, want: []string{"t-0", "t-1"},
			problems: []string{`slice "t-1" has 2 workers, "t-0" has 4`}},
	} {
		t.Run(row.story, func(t *testing.T) {
			sel, err := tpu.SelectNumbered(row.nodes, row.prefix, nil, false)
			if row.wantNoSlices {
				var none *tpu.NoSlicesError
				if !errors.As(err, &none) {
					t.Fatalf("err = %v, want a NoSlicesError", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, names(sel)); diff != "" {
				t.Errorf("slices (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.problems, sel.Problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			part, err := tpu.SelectNumbered(row.nodes, row.prefix, nil, true)
			if err != nil {
				t.Fatal(err)
			}
			want := row.partial
			if want == nil {
				want = row.want
			}
			if diff := cmp.Diff(want, names(part)); diff != "" {
				t.Errorf("partial slices (-want +got):\n%s", diff)
			}
			for i, s := range part.Slices {
				if s.Index != i {
					t.Errorf("slice %q has number %d, want %d", s.Name, s.Index, i)
				}
			}
		})
	}
}

func TestNoSlicesErrorSuggestsTheFamily(t *testing.T) {
	_, err := tpu.SelectNumbered([]tpu.Slice{node("train-0", "v4-32", "q"), node("train-1", "v4-32", "q")}, "trian", nil, false)
	var none *tpu.NoSlicesError
	if !errors.As(err, &none) || !strings.Contains(none.Hint(), "did you mean --tpu-prefix=train?") {
		t.Errorf("err = %v, hint %q", err, none.Hint())
	}
}

func names(s tpu.Selection) (all []string) {
	for _, x := range s.Slices {
		all = append(all, x.Name)
	}
	return all
}

func TestSelectByTheNumbersInTheNames(t *testing.T) {
	t.Parallel()
	nodes := []tpu.Slice{node("t-0", "v4-32", "q"), node("t-2", "v4-32", "q"), node("t-3", "v4-16", "q"), node("t-10", "v4-32", "q"), node("one", "v4-32", "q")}
	for text, want := range map[string]string{"0,2": "t-0 t-2", "2": "t-2", "10": "t-10", "10,0": "t-0 t-10", "2-2": "t-2"} {
		only, err := tpu.ParseNumbers(text)
		if err != nil {
			t.Fatal(err)
		}
		sel, err := tpu.SelectNumbered(nodes, "t", only, false)
		var names []string
		for i, s := range sel.Slices {
			names = append(names, s.Name)
			if s.Index != i {
				t.Errorf("--slices=%s: %s has index %d, want %d", text, s.Name, s.Index, i)
			}
		}
		if got := strings.Join(names, " "); err != nil || got != want || len(sel.Problems) > 0 {
			t.Errorf("--slices=%s: %s, %v, %v, want %s", text, got, sel.Problems, err, want)
		}
	}
	for _, c := range []struct {
		prefix, text, want, hint string
	}{
		{"t", "0-3", `there is no slice "t-1"`, "t-0, t-2, t-3, t-10"},
		{"t", "7", `there is no slice "t-7"`, "t-0"},
		{"one", "0", "that is the whole name of one slice", "one"},
		{"nope", "0", "no slice has that name", "t-0"},
	} {
		only, _ := tpu.ParseNumbers(c.text)
		_, err := tpu.SelectNumbered(nodes, c.prefix, only, true)
		hinted, ok := err.(interface{ Hint() string })
		if !ok || !strings.Contains(err.Error(), c.want) || !strings.Contains(hinted.Hint(), c.hint) {
			t.Errorf("%s, --slices=%s: %v, want %q", c.prefix, c.text, err, c.want)
		}
	}
	for _, text := range []string{"", "a", "1-", "3-1", "-1", "0,,1", "0 1", "*", "[0]"} {
		if _, err := tpu.ParseNumbers(text); err == nil {
			t.Errorf("ParseNumbers(%q): no error", text)
		}
	}
}

// A new generation must have everything that the packages need.
func TestEveryGenerationIsKnownEverywhere(t *testing.T) {
	typed := map[string]bool{}
	for _, typ := range tpu.Types() {
		typed[typ.Generation.Name] = true
	}
	for _, g := range tpu.Generations() {
		if g.ChipType == "" || g.PeakTFLOPS == 0 || g.PeakSource == "" || g.Devices == 0 {
			t.Errorf("%s has no chip type, or no peak with its source and number of devices", g.Name)
		}
		if g.CloudAPI && (g.RuntimeVersion == "" || g.Quota == "") {
			t.Errorf("%s is served by the Cloud TPU API, and has no runtime version or no quota", g.Name)
		}
		if g.CloudAPI && !typed[g.Name] {
			t.Errorf("%s is served by the Cloud TPU API, and types.txt has no type of it", g.Name)
		}
		if found, ok := tpu.GenerationOf(g.Name); !ok || found != g {
			t.Errorf("%s is not found by its name", g.Name)
		}
	}
}
