package interrupt

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"multihost/internal/job"
)

// What a signal means when nobody is asked.
func TestDecide(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer job.Answer
		signal os.Signal
		want   job.Answer
	}{
		{"Ctrl-C of a command that runs nothing", "", syscall.SIGINT, ""},
		{"Ctrl-C with an answer", job.Detach, syscall.SIGINT, job.Detach},
		{"SIGTERM with an answer", job.Stop, syscall.SIGTERM, job.Stop},
		{"a closed terminal has no answer", job.Stop, syscall.SIGHUP, ""},
	} {
		w := &Watch{}
		w.Answer(tt.answer)
		if got := w.decide(tt.signal); got.Answer != tt.want || got.Signal != tt.signal {
			t.Errorf("%s: %q to %s, want %q", tt.name, got.Answer, got.Signal, tt.want)
		}
	}
}

// What a row of signals does: it ends the command, asks, or leaves at once. A pause is a
// second and more.
func TestObey(t *testing.T) {
	const pause = syscall.Signal(0)
	answers := func(a job.Answer, asked bool) func(context.Context) (job.Answer, bool) {
		return func(context.Context) (job.Answer, bool) { return a, asked }
	}
	silent := func(ctx context.Context) (job.Answer, bool) {
		<-ctx.Done()
		return job.Continue, true
	}
	for _, tt := range []struct {
		name    string
		ask     func(context.Context) (job.Answer, bool)
		signals []syscall.Signal
		want    job.Answer // in the cause; "-" if the command goes on
		leaves  bool
	}{
		{name: "nothing", want: "-"},
		{name: "Ctrl-C", signals: []syscall.Signal{syscall.SIGINT}},
		{name: "two signals for one action", signals: []syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}},
		{name: "twice", signals: []syscall.Signal{syscall.SIGINT, pause, syscall.SIGINT}, leaves: true},
		{name: "asked to stop", ask: answers(job.Stop, true), signals: []syscall.Signal{syscall.SIGINT}, want: job.Stop},
		{name: "asked to go on", ask: answers(job.Continue, true), signals: []syscall.Signal{syscall.SIGINT}, want: "-"},
		{name: "nobody could be asked", ask: answers("", false), signals: []syscall.Signal{syscall.SIGINT}},
		{name: "the question is open", ask: silent, signals: []syscall.Signal{syscall.SIGINT}, want: "-"},
		{name: "Ctrl-C while the question is open", ask: silent, signals: []syscall.Signal{syscall.SIGINT, pause, syscall.SIGINT}, want: job.Detach},
		{name: "SIGTERM while the question is open", ask: silent, signals: []syscall.Signal{syscall.SIGINT, pause, syscall.SIGTERM}},
		{name: "SIGTERM asks nothing", ask: silent, signals: []syscall.Signal{syscall.SIGTERM}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &Watch{Leave: make(chan struct{})}
				if tt.ask != nil {
					w.AskWith(tt.ask, func() job.Answer { return job.Detach })
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
				got := job.Answer("-")
				var in *job.Interrupted
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

// A program that does not end once the user wants to leave is ended.
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
