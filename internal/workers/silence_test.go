package workers

import (
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/stage"
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
		got := silenceOf(testkit.WorkerIDs(1, 3), tt.heard, tt.open, now)
		want := Silence{who: tt.who}
		if tt.since > 0 {
			want.since = now.Add(-time.Duration(tt.since) * time.Second)
		}
		if got != want {
			t.Errorf("%s: got %+v, want %+v", tt.story, got, want)
		}
	}
}

// The phase continues on other workers. A silent worker stays shown until it answers or the
// phase no longer waits for it. The progress keeps its figures.
func TestEveryPhaseSaysWhoIsSilent(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	for _, phase := range []string{"free", "copy", "sync"} {
		var shown []event.Progress
		sink := event.SinkFunc(func(e event.Event) { shown = append(shown, e.(event.Progress)) })
		heard, finish := &HeardSink{Sink: sink, Waits: func(int) bool { return true }}, func(int) {}
		switch phase {
		case "free":
			c := &count{over: make([]bool, 3)}
			heard.Waits, heard.last = c.waits, event.Progress{Phase: phase, Total: 3}
			finish = func(i int) {
				c.finish(i, func(done int) { heard.Emit(event.Progress{Phase: phase, Done: done, Total: 3}) })
			}
		case "copy":
			w := NewWaiting(&stage.Invocation{Sink: sink, Clock: testkit.NewJumpClock()}, phase, testkit.WorkerIDs(1, 3))
			w.Expected(9)
			w.Copied(7)
			heard, finish = w.Heard, w.Done
		case "sync":
			heard.hear(Silence{"s0w1", at}) // before the first progress, no line can show the silence
			heard.Emit(event.Progress{Phase: phase, Total: 3, Bytes: 7, All: 9})
		}
		look := func(who string) { // as Listen does
			now := Silence{}
			if who != "" && heard.Waits(1) {
				now = Silence{who, at}
			}
			heard.hear(now)
		}
		last := func() event.Progress { return shown[len(shown)-1] }
		look("s0w1")
		first := last()
		if first.Phase != phase || first.Total != 3 || first.Silent != "s0w1" || first.SilentSince == nil || phase != "free" && (first.Bytes != 7 || first.All != 9) {
			t.Errorf("%s: %+v", phase, first)
		}
		n := len(shown)
		look("s0w1")
		if len(shown) != n {
			t.Errorf("%s: the same is shown again", phase)
		}
		finish(0)
		if last().Silent != "s0w1" {
			t.Errorf("%s: the silence is forgotten: %+v", phase, last())
		}
		if phase == "sync" {
			look("")
		} else {
			finish(1)
			look("s0w1")
		}
		if last().Silent != "" || last().SilentSince != nil || last().Bytes != first.Bytes {
			t.Errorf("%s: after it is over there: %+v", phase, last())
		}
	}
}
