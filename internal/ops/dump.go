package ops

import (
	"cmp"
	"context"
	"strings"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/stage"
	"multihost/internal/workers"
)

// Dump collects the stacks of a run's processes on all its workers. It writes one file per
// worker below the run's log directory, and emits the folded stacks as a Result. The run
// continues. If workers cannot be reached and their provider shows serial consoles, Dump
// also emits what these say. The error names the workers that returned no stacks. If the
// run has ended, the error says how.
func Dump(ctx context.Context, d runs.Deps, name, prefix string) error {
	watch := stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	rec, err := dumpRecord(ctx, d, name, prefix)
	if err != nil {
		return err
	}
	sel, gone, err := runs.Recorded(ctx, d, rec)
	if err != nil {
		return err
	}
	if len(gone) == len(rec.Slices) {
		if e := runs.EndHere(d.StateDir, rec, rec.Attempt); e != nil {
			return e.NoStacks(d, name)
		}
	}
	if len(gone) > 0 {
		event.Notef(d.Sink, event.Warn, "", "slices of run %s are gone: %s", name, strings.Join(gone, ", "))
	}
	t, away, err := d.ConnectSome(ctx, &watch, sel)
	showConsoles(ctx, d.Reach, sel, away)
	if err != nil {
		return err
	}
	defer t.Close()
	_, lives, err := runs.NewestAttempt(ctx, d, t, rec)
	if err != nil {
		return err
	}
	if !lives {
		e := runs.EndHere(d.StateDir, rec, rec.Attempt)
		if e == nil {
			if err := workers.Unreached(sel, away); err != nil { // the command may still run there
				return err
			}
			e = runs.EndThere(ctx, t, d, rec, true)
		}
		if e != nil {
			return e.NoStacks(d, name)
		}
	}
	err = follow.DumpOn(ctx, follow.Deps{Reach: d.Reach, Keeper: d.Keeper}, t, rec, nil)
	return cmp.Or(err, workers.Unreached(sel, away), runs.Part(rec, stage.Dump, "multihost dump "+name))
}

// dumpRecord returns the record of a run. If the run's bucket says that the run has ended,
// that is an error.
func dumpRecord(ctx context.Context, d runs.Deps, name, prefix string) (*record.Record, error) {
	r, err := runs.FindBucketRun(ctx, d, name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return runs.Locate(ctx, d, name, prefix)
	}
	state, err := r.Store.State(ctx, name)
	if err != nil {
		return nil, err
	}
	if e := r.EndInBucket(state); e != nil {
		return nil, e.NoStacks(d, name)
	}
	return r.Record(ctx, state.Attempt)
}
