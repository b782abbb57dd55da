package follow

import (
	"context"
	"io"
	"os"
	"time"

	"multihost/internal/event"
	"multihost/internal/metrics"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/training"
)

// OnStall says what to do with a run whose training has stalled.
type OnStall string

// Choices for OnStall. Each reports the stall, and which worker stopped first.
const (
	StallReport  OnStall = "report"
	StallDump    OnStall = "dump"    // also collect the stacks of all workers
	StallRestart OnStall = "restart" // stop the attempt; the next one begins
	StallStop    OnStall = "stop"
)

// WatchOptions say how to watch the training of a run.
type WatchOptions struct {
	Pattern      *metrics.Pattern // of step lines; nil: MaxText's
	StallTimeout time.Duration    // 0: a multiple of the step time; negative: never
	OnStall      OnStall          // "" means StallReport
}

// trainingEvery is the time between two updates of the status line and two looks for
// stalls.
const trainingEvery = time.Second

type watcher struct {
	f         *Following
	o         WatchOptions
	collector *metrics.Collector
	shown     metrics.Sample
	dumping   chan struct{} // closed when the last dump is done; nil: no dump
}

func newWatcher(f *Following, o WatchOptions) *watcher {
	kind, _ := tpu.ParseType(f.Workers.Slices[0].Type) // hosts have no known type, so no MFU
	return &watcher{f: f, o: o, collector: metrics.NewCollector(metrics.Options{
		Workers: f.Workers.IDs, Type: kind, Pattern: o.Pattern, Now: f.Clock.Now,
	})}
}

// catchUp reads the part of a worker's log that an earlier command copied to this
// machine.
func (w *watcher) catchUp(i int, path string, size int64) error {
	if size == 0 {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w.collector.Stream(i), io.LimitReader(file, size))
	return err
}

// look shows the newest step and reports stalls. An error means that the command must stop:
// the training has stalled, and the user chose to stop in that case.
func (w *watcher) look(ctx context.Context) error {
	if last, ok := w.collector.Latest(); ok && (w.shown.At == nil || last.Step != w.shown.Step || !last.At.Equal(*w.shown.At)) {
		w.shown = last
		w.f.Sink.Emit(training.Event(last))
	}
	if w.o.StallTimeout < 0 {
		return nil
	}
	if len(w.f.outages.causes()) > 0 { // the training may continue where this machine cannot see it
		w.collector.Blind(w.f.Clock.Now())
	}
	s, change := w.collector.LookForStall(w.f.Clock.Now(), w.o.StallTimeout)
	if change == metrics.StallSame {
		return nil
	}
	told := event.Stall{Attempt: w.f.Ref.Attempt, Began: s.Began, Seen: s.Seen, Limit: s.Limit, First: s.First, Step: s.Step, Ended: s.Ended, Text: s.Text}
	if change == metrics.StallBegan && w.o.OnStall != StallDump {
		told.Hint = "where they stand: multihost dump " + w.f.Ref.Run
	}
	w.f.Sink.Emit(told)
	if change != metrics.StallBegan {
		return nil
	}
	switch w.o.OnStall {
	case StallDump:
		w.beginDump(ctx)
	case StallRestart, StallStop:
		return w.stallEnd(s)
	}
	return nil
}

// summary returns the lines about the training for the end of a run, or nil without steps.
func (w *watcher) summary() []string {
	a := w.collector.Attempt(metrics.View{})
	if a.Steps == 0 {
		return nil
	}
	return append([]string{a.Summary()}, a.Warnings()...)
}

// stallEnd returns the error that a stalled attempt ends with.
func (w *watcher) stallEnd(s metrics.Stall) error {
	err := &stage.Error{Stage: stage.Stalled, Text: s.Text + "; the command was stopped"}
	if w.o.OnStall == StallRestart {
		return &stage.Failure{Cause: stage.Stall, Why: s.Text, Err: err}
	}
	return err
}
