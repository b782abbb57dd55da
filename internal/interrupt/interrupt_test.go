package interrupt

import (
	"strings"
	"testing"

	"multihost/internal/stage"
)

func TestTheQuestionAfterCtrlC(t *testing.T) {
	base := stage.Status{Run: "r", Resource: "queued resource q", Ours: true, Waiting: "its slices delete themselves", Lease: "the workers delete them"}
	for _, tt := range []struct {
		story  string
		change func(*stage.Status)
		want   []string
		not    string
	}{
		{"it waits", func(*stage.Status) {}, []string{"has not started; nothing is billed yet", "keep the place in the queue"}, "has ended"},
		{"its slices are there", func(s *stage.Status) { s.Billed = "1 × v4-8" }, []string{"has not started; billed now: 1 × v4-8", "keep queued resource q with its slices: its slices"}, "the queue"},
		{"it runs", func(s *stage.Status) { s.Running = "s0w0" }, []string{"run r runs on s0w0", "end it on every worker and delete queued resource q"}, "queue:"},
		{"between two attempts", func(s *stage.Status) { s.Ended, s.Billed = true, "1 × v4-8" }, []string{"has ended and is to be started again; billed now: 1 × v4-8", "the workers delete them"}, "has not started"},
	} {
		st := base
		tt.change(&st)
		got := question(st)
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: it does not say %q:\n%s", tt.story, want, got)
			}
		}
		if strings.Contains(got, tt.not) {
			t.Errorf("%s: it says %q:\n%s", tt.story, tt.not, got)
		}
	}
}
