package workers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// Describe names slices and their workers in one line. sel must have a slice.
func Describe(sel tpu.Selection) string {
	names := make([]string, len(sel.Slices))
	for i, s := range sel.Slices {
		names[i] = s.Name
	}
	if len(names) > 6 {
		names = append(names[:3], "…", names[len(names)-1])
	}
	workers := sel.Workers()
	kind := ""
	if t := sel.Slices[0].Type; t != "" {
		kind = " (" + t + ")"
	}
	return fmt.Sprintf("%s%s: %s %s", strings.Join(names, ", "), kind, event.Count(len(workers), "worker"), tpu.Fold(workers))
}

// ReachIn limits how long a stop tries to reach a worker, so that unreachable workers
// barely delay it.
func ReachIn(grace time.Duration) time.Duration { return grace + 5*time.Second }

// StopAll stops a run on every worker and proves that it is gone. The error names the
// workers on which it may still be running.
//
// It skips workers for which gone returns true, because their slices no longer exist. gone
// may be nil.
func (t *Connected) StopAll(ctx context.Context, sink event.Sink, ref launch.Ref, grace time.Duration, reason string, gone func(i int) bool) error {
	return t.StopWith(ctx, sink, ref, launch.StopOptions{Grace: grace, Reason: reason}, gone)
}

// StopWith is StopAll with all options of a stop. It sets their field Reach.
func (t *Connected) StopWith(ctx context.Context, sink event.Sink, ref launch.Ref, o launch.StopOptions, gone func(i int) bool) error {
	o.Reach = ReachIn(o.Grace)
	errs := t.Each(ctx, sink, "stop", func(ctx context.Context, i int) error {
		if gone != nil && gone(i) {
			return nil
		}
		rep, err := launch.Stop(ctx, t.Conns[i], ref, o)
		if err == nil && len(rep.Survivors) > 0 {
			err = fmt.Errorf("processes survive SIGKILL: %v", rep.Survivors)
		}
		if err == nil && rep.Unmarked {
			event.Notef(sink, event.Warn, "look with: multihost ps", "the stop cannot be noted on %s: a runner of run %s that is alive may start the command again", t.IDs[i], ref.Run)
		}
		return err
	})
	return MayStillRun(stage.WorkersError(stage.Stopping, t.IDs, errs), ref.Run)
}

// MayStillRun adds to a *stage.Error in err that the run may still be running, and how to
// try again.
func MayStillRun(err error, run string) error {
	var e *stage.Error
	if errors.As(err, &e) {
		e.Text = "run " + run + " may still be running: " + e.Text
		e.Advice = "try again with: multihost stop " + run
	}
	return err
}
