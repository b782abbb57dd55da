package ui

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// topRun returns a run for the view. step writes the steps of each worker.
func topRun(t *testing.T, slices, workers int, step func(tpu.WorkerID) int, entries ...event.Event) TopState {
	t.Helper()
	at := time.Date(2026, 3, 4, 9, 0, 0, 0, time.UTC)
	kind, err := tpu.ParseType("v5litepod-16")
	testkit.Must(t, err)
	var ids []tpu.WorkerID
	rel := event.Release{Attempt: 1, First: at}
	for s := range slices {
		for w := range workers {
			ids = append(ids, tpu.WorkerID{Slice: s, Worker: w})
			rel.Workers = append(rel.Workers, event.ReleasedOn{Slice: s, Worker: w})
		}
	}
	c := metrics.NewCollector(metrics.Options{Workers: ids, Type: kind})
	for i, id := range ids {
		for n := range step(id) {
			seconds := 1.2
			if id == (tpu.WorkerID{Slice: 1, Worker: 2}) {
				seconds = 2.4
			}
			fmt.Fprintf(c.Stream(i), "completed step: %d, seconds: %.3f, TFLOP/s/device: 120.0, loss: 2.5\n", n, seconds)
		}
	}
	doc := metrics.NewDocument("train", kind, at)
	doc.Attempts = append(doc.Attempts, c.Attempt(metrics.View{}))
	all := append([]event.Event{journal.Begin{Command: "run"}, event.Attempt{Run: "train", Attempt: 1, Begin: at}, rel,
		event.Phase{Name: "run", State: event.Started}}, entries...)
	var told []journal.Entry
	for _, e := range all {
		told = append(told, journal.Entry{Time: at, By: "a", Kind: e.Kind(), Event: e})
	}
	return TopState{Run: "train", Document: &doc, Story: journal.Tell(told), Now: at.Add(90 * time.Second)}
}

func hundred(tpu.WorkerID) int { return 100 }

func screenText(lines []topLine) string {
	var b strings.Builder
	for _, l := range lines {
		for _, p := range l {
			b.WriteString(p.text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestTopShowsEachWorkerByAStateOfItsOwn(t *testing.T) {
	t.Parallel()
	s := topRun(t, 2, 4, func(id tpu.WorkerID) int {
		switch id {
		case tpu.WorkerID{Slice: 0, Worker: 3}:
			return 0
		case tpu.WorkerID{Slice: 1, Worker: 1}:
			return 97
		}
		return 100
	}, event.WorkerDone{Slice: 0, Worker: 1, Code: 137, Signal: "KILL"}, event.WorkerDone{Slice: 1, Worker: 0}, event.WorkerDone{Slice: 1, Worker: 3, Reason: "fail-fast"})
	v := topView{state: s}
	got := screenText(v.lines(120, 24))
	for _, want := range []string{
		"train  running  run for 1m30s\n", "s0   oxo.  s1   +3S-", "steps 0 to 99, median 1.200 s", "s1w2 takes 2.400 s a step",
		"STATE (slowest first)\ns0w1                 99      1.200 s    60.91 %          2.5  killed by KILL\ns1w2                 99      2.400 s    60.91 %          2.5  slow\n",
		"3 steps behind", "no step yet", "ended well", "q quit",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the view does not say %q:\n%s", want, got)
		}
	}
	v.order = byStep
	if got := screenText(v.lines(120, 24)); !strings.Contains(got, "STATE (furthest behind first)\ns0w1 ") || strings.Index(got, "\ns1w1 ") > strings.Index(got, "\ns0w0 ") {
		t.Errorf("by step:\n%s", got)
	}
}

func TestTopShowsWhoIsOutOfReachUntilItsEndIsKnown(t *testing.T) {
	t.Parallel()
	s := topRun(t, 2, 2, hundred, event.WorkerDone{Slice: 1, Worker: 1, Code: 3})
	gone := "slice \"t-1\" is gone"
	s.Away = map[tpu.WorkerID]string{{Worker: 1}: "connection refused", {Slice: 1, Worker: 1}: gone}
	s.Notices = []string{"out of reach: s0w1: connection refused"}
	v := topView{state: s}
	got := screenText(v.lines(120, 24))
	for _, want := range []string{"s0   o?  s1   ox", "\nout of reach: s0w1: connection refused\n", "out of reach: connection refused", "exit code 3"} {
		if !strings.Contains(got, want) {
			t.Errorf("the view does not say %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, gone) {
		t.Errorf("a worker that has ended is shown as out of reach:\n%s", got)
	}
}

// TestTopFitsEveryTerminal lays the view out for every size, and checks the number of lines
// and the width of each.
func TestTopFitsEveryTerminal(t *testing.T) {
	t.Parallel()
	hostile := "\x1b]0;owned\x07日本語\u202e\n" + strings.Repeat("x", 300)
	for name, s := range map[string]TopState{
		"few":         topRun(t, 2, 4, hundred),
		"one a slice": topRun(t, 40, 1, hundred),
		"hostile": topRun(t, 3, 5, hundred, event.WorkerDone{Slice: 0, Worker: 0, Error: hostile},
			event.Summary{Attempt: 1, ExitCode: 69, Text: hostile, FirstFail: hostile}, journal.End{Error: hostile + "!"}),
		"nothing":  {Run: hostile, Story: journal.Tell(nil), Now: time.Now()},
		"starting": {Run: "r", Story: journal.Tell([]journal.Entry{{By: "a", Event: event.Phase{Name: "provision", State: event.Started, Detail: hostile}}}), Now: time.Now()},
	} {
		for _, width := range append(upTo(40), 60, 80, 100, 130) {
			for _, height := range append(upTo(14), 24, 50) {
				v := topView{state: s, scroll: width - 20}
				lines := v.lines(width, height)
				if len(lines) > height {
					t.Fatalf("%s: %d lines on %d×%d", name, len(lines), width, height)
				}
				for _, l := range lines {
					n := 0
					for _, p := range l {
						n += textWidth(strings.TrimRight(p.text, " "))
						if strings.ContainsAny(p.text, "\x1b\x07\n\u202e") {
							t.Fatalf("%s: a line would act on the terminal: %q", name, p.text)
						}
					}
					if n > width {
						t.Fatalf("%s: a line of %d columns on %d×%d: %q", name, n, width, height, screenText([]topLine{l}))
					}
				}
			}
		}
	}
}

// On a narrow terminal, the list drops its least important columns, so that the state has
// enough space.
func TestTopKeepsWhatMatters(t *testing.T) {
	t.Parallel()
	s := topRun(t, 2, 4, hundred, event.WorkerDone{Slice: 0, Worker: 1, Code: 137, Signal: "KILL"})
	for width, want := range map[int][2]string{
		120: {"WORKER STEP STEP TIME MFU LOSS STATE (slowest first)", "s0w1 99 1.200 s 60.91 % 2.5 killed by KILL"},
		80:  {"WORKER STEP STEP TIME MFU LOSS STATE (slowest fi…", "s0w1 99 1.200 s 60.91 % 2.5 killed by KILL"},
		70:  {"WORKER STEP STEP TIME LOSS STATE (slowest fir…", "s0w1 99 1.200 s 2.5 killed by KILL"},
		60:  {"WORKER STEP LOSS STATE (slowest first)", "s0w1 99 2.5 killed by KILL"},
		50:  {"WORKER LOSS STATE (slowest first)", "s0w1 2.5 killed by KILL"},
		30:  {"WORKER STATE (slowest fi…", "s0w1 killed by KILL"},
		20:  {"WORKER STATE (…", "s0w1 killed …"},
	} {
		v := topView{state: s}
		var got [2]string
		for line := range strings.Lines(screenText(v.lines(width, 24))) {
			switch words := strings.Join(strings.Fields(line), " "); {
			case strings.HasPrefix(words, "WORKER"):
				got[0] = words
			case got[0] != "" && got[1] == "":
				got[1] = words
			}
		}
		if got != want {
			t.Errorf("at %d columns %q, want %q", width, got, want)
		}
	}
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func TestTopShows2048Workers(t *testing.T) {
	t.Parallel()
	v := topView{state: topRun(t, 32, 64, func(id tpu.WorkerID) int { return 6 })}
	got := v.lines(100, 50)
	cells := 0
	for _, l := range got {
		for _, p := range l {
			if p.text == "o" || p.text == "S" {
				cells++
			}
		}
	}
	if cells != 2048 {
		t.Errorf("%d cells on 100×50, want 2048:\n%s", cells, screenText(got))
	}
	if got := screenText(v.lines(100, 24)); !strings.Contains(got, "of 32: arrow keys") {
		t.Errorf("a lower screen does not say that there is more:\n%s", got)
	}
}

// topScreen is a screen that a test can read.
type topScreen struct {
	tcell.SimulationScreen
	mu    sync.Mutex
	shown string
}

// Show keeps the content of the screen at a moment without drawing.
func (s *topScreen) Show() {
	s.SimulationScreen.Show()
	cells, width, _ := s.GetContents()
	var b strings.Builder
	for i, c := range cells {
		if i%width == 0 && i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(string(c.Runes))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = b.String()
}

func (s *topScreen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown
}

func TestTopFollowsTheRunUntilQ(t *testing.T) {
	testkit.NoLeaks(t)
	var mu sync.Mutex
	state, fault := topRun(t, 2, 4, hundred), error(nil)
	set := func(s TopState, err error) {
		mu.Lock()
		defer mu.Unlock()
		state, fault = s, err
	}
	source := func() (TopState, error) {
		mu.Lock()
		defer mu.Unlock()
		return state, fault
	}
	for name, end := range map[string]struct {
		how  func(tcell.SimulationScreen, context.CancelCauseFunc)
		want error
	}{
		"q":        {func(s tcell.SimulationScreen, _ context.CancelCauseFunc) { s.InjectKey(tcell.KeyRune, 'q', 0) }, nil},
		"Ctrl-C":   {func(s tcell.SimulationScreen, _ context.CancelCauseFunc) { s.InjectKey(tcell.KeyCtrlC, 0, 0) }, nil},
		"a signal": {func(_ tcell.SimulationScreen, cancel context.CancelCauseFunc) { cancel(context.DeadlineExceeded) }, context.DeadlineExceeded},
	} {
		set(topRun(t, 2, 4, hundred), nil)
		screen := &topScreen{SimulationScreen: tcell.NewSimulationScreen("UTF-8")}
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Top(ctx, TopOptions{Source: source, screen: screen, After: testkit.NewFastClock().After})
		}()
		testkit.Eventually(t, "the view", func() bool { return strings.Contains(screen.text(), "steps 0 to 99") })
		set(TopState{}, errors.New("the disk is away for a moment"))
		set(topRun(t, 2, 4, func(tpu.WorkerID) int { return 123 }), nil)
		testkit.Eventually(t, "a new step", func() bool { return strings.Contains(screen.text(), "steps 0 to 122") })
		screen.InjectKey(tcell.KeyRune, 'n', 0)
		testkit.Eventually(t, "another order", func() bool { return strings.Contains(screen.text(), "by name") })
		end.how(screen, cancel)
		if err := <-done; !errors.Is(err, end.want) {
			t.Errorf("%s: %v, want %v", name, err, end.want)
		}
		cancel(nil)
	}
	if err := Top(t.Context(), TopOptions{Source: func() (TopState, error) { return TopState{}, errors.New("no such run") }}); err == nil || err.Error() != "no such run" {
		t.Errorf("a run that is not there: %v", err)
	}
}

func TestTopTellsNothingByColourAlone(t *testing.T) {
	t.Parallel()
	seen := map[tcell.Style]look{}
	for l := lookPlain; l <= lookInfo; l++ {
		if s := topStyle(l, false); s != tcell.StyleDefault {
			if fg, bg, _ := s.Decompose(); fg != tcell.ColorDefault || bg != tcell.ColorDefault {
				t.Errorf("look %d has a colour where none is wanted", l)
			}
		}
		s := topStyle(l, true)
		if other, twice := seen[s]; twice {
			t.Errorf("looks %d and %d look the same in colour", l, other)
		}
		seen[s] = l
	}
}
