package job

import (
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/testkit"
)

func TestSilenceOf(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	ago := func(seconds ...int) []time.Time {
		heard := make([]time.Time, len(seconds))
		for i, s := range seconds {
			if s > 0 {
				heard[i] = now.Add(-time.Duration(s) * time.Second)
			}
		}
		return heard
	}
	for _, tt := range []struct {
		story string
		heard []time.Time
		open  int
		who   string
		since int
	}{
		{"all answer", ago(0, 0, 0), 3, "", 0},
		{"one is silent", ago(0, 130, 0), 3, "s0w1", 130},
		{"the last time counts", ago(200, 130, 0), 3, "s0w[0-1]", 130},
		{"all are silent", ago(200, 130, 131), 3, "any worker", 130},
		{"all that have not ended are", ago(0, 130, 131), 2, "any worker", 130},
		{"the only one has a name", ago(130, 0, 0), 1, "s0w0", 130},
		{"a short break is no news", ago(9, 0, 0), 3, "", 0},
	} {
		got := silenceOf(ids(1, 3), tt.heard, tt.open, now)
		want := silence{who: tt.who}
		if tt.since > 0 {
			want.since = now.Add(-time.Duration(tt.since) * time.Second)
		}
		if got != want {
			t.Errorf("%s: got %+v, want %+v", tt.story, got, want)
		}
	}
}

// Who is silent stays shown when the phase goes on on others, until it is heard.
func TestACountKeepsTheSilence(t *testing.T) {
	t.Parallel()
	var shown []event.Progress
	c := &count{phase: "sync", over: make([]bool, 3), sink: event.SinkFunc(func(e event.Event) { shown = append(shown, e.(event.Progress)) })}
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	hear := func(who string) {
		c.hear(func(waited func(i int) bool) silence {
			if who == "" || !waited(1) {
				return silence{}
			}
			return silence{who, at}
		})
	}
	c.finish(0)
	hear("")
	hear("s0w1")
	hear("s0w1")
	c.finish(2)
	c.finish(1)
	hear("s0w1")
	want := []struct {
		done   int
		silent string
	}{{1, ""}, {1, "s0w1"}, {2, "s0w1"}, {3, "s0w1"}, {3, ""}}
	if len(shown) != len(want) {
		t.Fatalf("shown %+v", shown)
	}
	for i, p := range shown {
		if p.Phase != "sync" || p.Total != 3 || p.Done != want[i].done || p.Silent != want[i].silent || (p.SilentSince != nil) != (p.Silent != "") {
			t.Errorf("%d: %+v, want %+v", i, p, want[i])
		}
	}
}

// The progress of a copy, of exec and of a sync keeps its figures and says who is silent.
func TestEveryPhaseSaysWhoIsSilent(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	says := func(h hearer, who string) {
		h.hear(func(waited func(i int) bool) silence {
			if who == "" || !waited(1) {
				return silence{}
			}
			return silence{who, at}
		})
	}
	for _, phase := range []string{"copy", "sync"} {
		var shown []event.Progress
		sink := event.SinkFunc(func(e event.Event) { shown = append(shown, e.(event.Progress)) })
		var h hearer
		if phase == "sync" {
			s := &heardSink{Sink: sink}
			says(s, "s0w1") // before any progress there is nothing to show it in
			s.Emit(event.Progress{Phase: "sync", Done: 1, Total: 2, Bytes: 7, All: 9})
			h = s
		} else {
			w := newWaiting(&Deps{Sink: sink, Clock: testkit.NewJumpClock()}, "copy", ids(1, 2))
			w.expected(9)
			w.copied(7)
			w.done(0)
			says(w, "s0w1")
			h = w
		}
		last := shown[len(shown)-1]
		if last.Done != 1 || last.Bytes != 7 || last.All != 9 || last.Silent != "s0w1" || last.SilentSince == nil {
			t.Errorf("%s: %+v", phase, last)
		}
		n := len(shown)
		says(h, "s0w1")
		if len(shown) != n {
			t.Errorf("%s: the same is shown again", phase)
		}
		says(h, "")
		if last = shown[len(shown)-1]; len(shown) != n+1 || last.Silent != "" || last.Bytes != 7 {
			t.Errorf("%s: after it is heard: %+v", phase, last)
		}
	}
}
