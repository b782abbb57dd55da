package interrupt

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"multihost/internal/stage"
)

func TestDecide(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer stage.Answer
		signal os.Signal
		want   stage.Answer
	}{
		{"Ctrl-C of a command that runs nothing", "", syscall.SIGINT, ""},
		{"Ctrl-C with an answer", stage.Detach, syscall.SIGINT, stage.Detach},
		{"SIGTERM with an answer", stage.Stop, syscall.SIGTERM, stage.Stop},
		{"a closed terminal has no answer", stage.Stop, syscall.SIGHUP, ""},
	} {
		w := &Watch{}
		w.Answer(tt.answer)
		if got := w.decide(tt.signal); got.Answer != tt.want || got.Signal != tt.signal {
			t.Errorf("%s: %q to %s, want %q", tt.name, got.Answer, got.Signal, tt.want)
		}
	}
}

// Each row is a sequence of signals and its effect: the command ends, asks, or leaves
// at once. A pause is at least a second.
func TestObey(t *testing.T) {
	const pause = syscall.Signal(0)
	answers := func(a stage.Answer, asked bool) func(context.Context) (stage.Answer, bool) {
		return func(context.Context) (stage.Answer, bool) { return a, asked }
	}
	silent := func(ctx context.Context) (stage.Answer, bool) {
		<-ctx.Done()
		return stage.Continue, true
	}
	for _, tt := range []struct {
		name    string
		ask     func(context.Context) (stage.Answer, bool)
		signals []syscall.Signal
		want    stage.Answer // answer in the cause; "-": the command continues
		leaves  bool
	}{
		{name: "nothing", want: "-"},
		{name: "Ctrl-C", signals: []syscall.Signal{syscall.SIGINT}},
		{name: "two signals for one action", signals: []syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}},
		{name: "twice", signals: []syscall.Signal{syscall.SIGINT, pause, syscall.SIGINT}, leaves: true},
		{name: "asked to stop", ask: answers(stage.Stop, true), signals: []syscall.Signal{syscall.SIGINT}, want: stage.Stop},
		{name: "asked to go on", ask: answers(stage.Continue, true), signals: []syscall.Signal{syscall.SIGINT}, want: "-"},
		{name: "nobody could be asked", ask: answers("", false), signals: []syscall.Signal{syscall.SIGINT}},
		{name: "the question is open", ask: silent, signals: []syscall.Signal{syscall.SIGINT}, want: "-"},
		{name: "Ctrl-C while the question is open", ask: silent, signals: []syscall.Signal{syscall.SIGINT, pause, syscall.SIGINT}, want: stage.Detach},
		{name: "SIGTERM while the question is open", ask: silent, signals: []syscall.Signal{syscall.SIGINT, pause, syscall.SIGTERM}},
		{name: "SIGTERM asks nothing", ask: silent, signals: []syscall.Signal{syscall.SIGTERM}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &Watch{Leave: make(chan struct{})}
				if tt.ask != nil {
					w.AskWith(tt.ask, func() stage.Answer { return stage.Detach })
				}
				signals := make(chan os.Signal)
				ctx, stop := w.Obey(t.Context(), signals, func() { t.Error("it exits") })
				for _, s := range tt.signals {
					if s == pause {
						time.Sleep(2 * deliberate)
						continue
					}
					signals <- s
					synctest.Wait()
				}
				synctest.Wait()
				got := stage.Answer("-")
				var in *stage.Interrupted
				if errors.As(context.Cause(ctx), &in) {
					got = in.Answer
				}
				left := false
				select {
				case <-w.Leave:
					left = true
				default:
				}
				if got != tt.want || left != tt.leaves {
					t.Errorf("answer %q, leaves %v; want %q, %v", got, left, tt.want, tt.leaves)
				}
				stop()
			})
		})
	}
}

func TestObeyEndsWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Watch{Leave: make(chan struct{})}
		signals, exited := make(chan os.Signal), make(chan struct{})
		_, stop := w.Obey(t.Context(), signals, func() { close(exited) })
		signals <- syscall.SIGINT
		time.Sleep(2 * deliberate)
		signals <- syscall.SIGINT
		began := time.Now()
		<-exited
		if took := time.Since(began); took != leaveLimit {
			t.Errorf("it was ended after %s, want %s", took, leaveLimit)
		}
		stop()
	})
}

// A Ctrl-C while one question replaces another ends and deletes nothing about which the user
// was not asked.
func TestASecondInterruptCountsForWhatWasShown(t *testing.T) {
	waits := stage.Status{Run: "r", Resource: "queued resource r"}
	runs, over, spot := waits, stage.Status{Run: "r"}, waits
	runs.Running, spot.Tier = "s0w0", "spot"
	for _, tt := range []struct {
		name  string
		shown *stage.Status
		now   stage.Status
		want  stage.Answer
	}{
		{"nothing is shown yet", nil, waits, stage.Stop},
		{"it waits", &waits, waits, stage.Stop},
		{"no word of the question has changed", &waits, spot, stage.Stop},
		{"it runs", &runs, runs, stage.Detach},
		{"it ran, and waits for other slices", &runs, waits, stage.Detach},
		{"it waited, and runs", &waits, runs, stage.Detach},
		{"it is over", &runs, over, stage.Stop},
	} {
		if got := second(tt.shown, tt.now); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// When the status changes, the question is withdrawn and a new one is asked. An answer that
// comes too late is ignored. If nothing is left to ask about, the command continues.
func TestAQuestionIsAskedAnewWhenItsStateChanges(t *testing.T) {
	waits := stage.Status{Run: "r", Resource: "queued resource r", Waiting: "it stays"}
	billed, runs, over := waits, waits, waits
	billed.Billed, runs.Running, over.Resource = "1 × v4-8", "s0w0", ""
	kept := billed
	kept.Tier = "spot" // not in the question's text
	for _, tt := range []struct {
		name   string
		states []stage.Status // one after the other, during the questions
		late   stage.Answer   // to a question that has just been withdrawn
		want   stage.Answer
		asked  []string // words of each question
	}{
		{"it stays as it is", []stage.Status{waits}, "", stage.Stop, []string{"nothing is billed yet"}},
		{"the slices come", []stage.Status{waits, billed}, stage.Stop, stage.Stop, []string{"nothing is billed yet", "billed now: 1 × v4-8"}},
		{"the slices come and the command starts", []stage.Status{waits, billed, runs}, stage.Detach, stage.Stop, []string{"nothing is billed yet", "run r runs on s0w0"}},
		{"something else changes", []stage.Status{billed, kept}, "", stage.Stop, []string{"billed now"}},
		{"it is over", []stage.Status{runs, over}, stage.Stop, stage.Continue, []string{"run r runs on s0w0"}},
		{"there is nothing to ask about", []stage.Status{over}, "", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &stage.Invocation{}
				v.SetStatus(func(s *stage.Status) { *s = tt.states[0] })
				var texts []string
				typed := make(chan stage.Answer)
				done := make(chan stage.Answer)
				go func() {
					answer, _ := askWhile(t.Context(), v.WatchStatus, func(ctx context.Context, st stage.Status, again bool) stage.Answer {
						if again != (len(texts) > 0) {
							t.Errorf("question %d: again is %v", len(texts), again)
						}
						texts = append(texts, question(st))
						select {
						case a := <-typed:
							return a
						case <-ctx.Done():
							return tt.late
						}
					})
					done <- answer
				}()
				for _, st := range tt.states[1:] {
					synctest.Wait()
					v.SetStatus(func(s *stage.Status) { *s = st })
				}
				time.Sleep(2 * settle) // no real time passes in the bubble
				synctest.Wait()
				var got stage.Answer
				select {
				case typed <- stage.Stop:
					got = <-done
				case got = <-done:
				}
				if got != tt.want || len(texts) != len(tt.asked) {
					t.Fatalf("answer %q to %d questions, want %q to %d", got, len(texts), tt.want, len(tt.asked))
				}
				for i, words := range tt.asked {
					if !strings.Contains(texts[i], words) {
						t.Errorf("question %d: %q, want %q", i, texts[i], words)
					}
				}
			})
		})
	}
}
