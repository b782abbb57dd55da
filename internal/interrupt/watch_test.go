package interrupt

import (
	"context"
	"errors"
	"os"
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
		want    stage.Answer // answer in the cause; "-" if the command goes on
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
