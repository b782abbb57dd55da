package complete

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/cmdline"
	"multihost/internal/tpu"
)

func texts(list []cmdline.Candidate) string {
	var all []string
	for _, c := range list {
		all = append(all, c.Text)
	}
	return strings.Join(all, " ")
}

// Kept names are used only for the same place, and only for a minute.
func TestHolds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	kept := Names{Place: "p/z", Read: now}
	for _, tt := range []struct {
		place string
		later time.Duration
		want  bool
	}{{"p/z", 0, true}, {"p/z", 59 * time.Second, true}, {"p/z", time.Minute, false}, {"p/z", -time.Second, false}, {"q/z", 0, false}} {
		if got := kept.holds(tt.place, now.Add(tt.later)); got != tt.want {
			t.Errorf("of %s after %s: %v", tt.place, tt.later, got)
		}
	}
}

// Ask asks the API at most once a minute. After an error of the API, it keeps no names.
func TestAsk(t *testing.T) {
	t.Parallel()
	asked := 0
	fails := errors.New("no")
	a := Asking{Place: "p/z", StateDir: filepath.Join(t.TempDir(), "state"), Limit: time.Minute,
		Slices: func(context.Context) ([]tpu.Slice, error) {
			asked++
			return []tpu.Slice{{Name: "t-0", Workers: make([]tpu.Worker, 2)}}, nil
		},
		Queued: func(context.Context) ([]string, error) { return []string{"t"}, fails }}
	if _, err := Ask(t.Context(), a); !errors.Is(err, fails) {
		t.Fatal(err)
	}
	fails = nil
	for range 3 {
		names, err := Ask(t.Context(), a)
		if err != nil || names.Slices["t-0"] != 2 || !slices.Equal(names.Queued, []string{"t"}) {
			t.Fatalf("%+v, %v", names, err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times, want 2", asked)
	}
}

func TestPrefixes(t *testing.T) {
	t.Parallel()
	s := Sources{Ask: func(*cmdline.Query) Names {
		return Names{Slices: map[string]int{"a-0": 4, "a-1": 4, "b": 1, "c-x": 2, "d-0": 1, "d": 1}}
	}}
	want := []cmdline.Candidate{{Text: "a", About: "2 slices"}, {Text: "a-0", About: "4 workers"}, {Text: "a-1", About: "4 workers"},
		{Text: "b", About: "1 worker"}, {Text: "c-x", About: "2 workers"}, {Text: "d", About: "1 worker"}, {Text: "d-0", About: "1 worker"}}
	if diff := cmp.Diff(want, s.prefixes(nil)); diff != "" {
		t.Error(diff)
	}
}

// A command with one argument gets no candidates for a second one. After the name of a fault,
// its arguments are completed.
func TestWords(t *testing.T) {
	t.Parallel()
	s := Sources{Faults: []Fault{{Name: "preempt", Args: []string{"node", "after"}}}, Ask: func(*cmdline.Query) Names { return Names{Queued: []string{"q1", "q2"}} }}
	for _, tt := range []struct {
		source cmdline.Source
		words  []string
		want   string
	}{
		{first(s.queued), nil, "q1 q2"},
		{first(s.queued), []string{"q1"}, ""},
		{s.faultWords, nil, "preempt clear"},
		{s.faultWords, []string{"preempt"}, "node= after="},
		{s.faultWords, []string{"other"}, ""},
	} {
		if got := texts(tt.source(&cmdline.Query{Words: tt.words})); got != tt.want {
			t.Errorf("after %q: %q, want %q", tt.words, got, tt.want)
		}
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	if got := texts(zones(nil)); !strings.Contains(got, "us-central2-b") {
		t.Errorf("zones: %s", got)
	}
	if got := texts(types(nil)); !strings.Contains(got, "v5litepod-16") {
		t.Errorf("types: %s", got)
	}
	if got := texts(chips(nil)); got == "" || strings.Contains(got, "tpu7x") {
		t.Errorf("chips: %s", got)
	}
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, ".config/gcloud/configurations"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, project := range map[string]string{"default": "my-project", "work": "other", "play": "my-project"} {
		path := filepath.Join(home, ".config/gcloud/configurations/config_"+name)
		if err := os.WriteFile(path, []byte("[core]\nproject = "+project+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := Sources{Lookup: func(string) (string, bool) { return "", false }, Home: home}
	if got := texts(s.projects(nil)); got != "my-project other" {
		t.Errorf("projects: %s", got)
	}
}
