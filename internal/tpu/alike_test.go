package tpu

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestTextsAboutManyThingsAreFolded(t *testing.T) {
	t.Parallel()
	names, each := make([]string, 1001), make([]string, 1001)
	for i := range names {
		names[i], each[i] = fmt.Sprintf("t-%d", i), fmt.Sprintf("cause %d", i)
	}
	same := slices.Repeat([]string{"gone"}, 1001)
	mixed := slices.Clone(same)
	mixed[0], mixed[7], mixed[9] = "off", "", "off"
	for name, c := range map[string]struct {
		texts []string
		want  string
	}{
		"nothing":         {make([]string, 1001), ""},
		"equal":           {same, "t-0, t-1, t-2 and 998 more: gone"},
		"few":             {append(slices.Repeat([]string{"gone"}, 4), make([]string, 997)...), "t-0, t-1, t-2, t-3: gone"},
		"two causes":      {mixed, "t-0, t-9: off; t-1, t-2, t-3 and 995 more: gone"},
		"all different":   {each, "t-0: cause 0; t-1: cause 1; t-2: cause 2; t-3: cause 3; t-4, t-5, t-6 and 994 more: 997 other causes, such as: cause 4"},
		"five causes":     {append([]string{"a", "b", "c", "d", "e"}, make([]string, 996)...), "t-0: a; t-1: b; t-2: c; t-3: d; t-4: e"},
		"the most counts": {append([]string{"a", "b", "c", "d", "e", "f", "f", "f"}, make([]string, 993)...), "t-0: a; t-1: b; t-2: c; t-5, t-6, t-7: f; t-3, t-4: 2 other causes, such as: d"},
	} {
		if got := FoldTexts(names, c.texts); got != c.want {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
	}
}

func TestEqualProblemsOfSlicesAreFolded(t *testing.T) {
	t.Parallel()
	all := []string{"a gap: t-1 is missing"}
	for i := range 64 {
		all = append(all, fmt.Sprintf("slice \"t-%d\" is not ready: it is CREATING", i+2))
	}
	all = append(all, `slice "t-99" has 2 workers, "t-2" has 4`)
	want := []string{"a gap: t-1 is missing", `slice "t-2", like "t-3", "t-4", "t-5" and 60 more, is not ready: it is CREATING`, `slice "t-99" has 2 workers, "t-2" has 4`}
	if got := FoldProblems(all); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestALongSetOfWorkersIsCut(t *testing.T) {
	t.Parallel()
	var even, all, odd []WorkerID
	for w := range 1001 {
		all = append(all, WorkerID{Worker: w})
		if w%2 == 0 {
			even = append(even, WorkerID{Worker: w})
		}
	}
	for s := range 64 {
		for w := range s%5 + 1 {
			odd = append(odd, WorkerID{Slice: s, Worker: w * 2})
		}
	}
	if got, want := FoldShort(all), "s0w[0-1000]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := FoldShort(even), "s0w[0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,…] (501 workers)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := FoldShort(odd); len(got) > 100 || strings.Count(got, "[") != strings.Count(got, "]") || !strings.HasSuffix(got, "(190 workers)") {
		t.Errorf("%s (%d workers)", got, len(odd))
	}
}
