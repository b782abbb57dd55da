package workers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"multihost/internal/event"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// Workers selects the workers of a command such as exec, ssh or cp.
type Workers struct {
	Prefix  string      // name prefix of the slices
	Slices  tpu.Numbers // only slices with these numbers in their names
	Partial bool        // use the slices that are ready, even if others are not
	Only    tpu.Pattern
	Except  tpu.Pattern
}

// Choose returns the workers that w selects, also those of unhealthy slices. Unlike a run, it
// keeps the numbers of all slices. Missing slices and slices that are not ready are an error
// only if w selects all workers.
func (d *Reach) Choose(ctx context.Context, watch *stage.Stopwatch, w Workers) (sel tpu.Selection, ids []tpu.WorkerID, err error) {
	err = watch.Phase("discover", func() (string, error) {
		if sel, err = d.find(ctx, w.Prefix, w.Slices, false); err != nil {
			return "", err
		}
		if len(sel.Problems) > 0 && !w.Partial && (w.Only.IsZero() || w.Only.All()) {
			return "", &stage.Error{Stage: stage.Discover, Text: strings.Join(tpu.FoldProblems(sel.Problems), "; "),
				Advice: "name the workers that are meant, as --workers=s0w*; or take those of the slices that are ready: --allow-partial"}
		}
		for _, p := range tpu.FoldProblems(sel.Problems) {
			event.Notef(d.Sink, event.Warn, "", "%s", p)
		}
		all := sel.Workers()
		if w.Partial {
			all = slices.DeleteFunc(all, func(id tpu.WorkerID) bool {
				ready, _ := sel.Slices[id.Slice].Ready()
				return !ready
			})
		}
		if ids, err = tpu.Choose(all, w.Only, w.Except); err != nil {
			return "", err
		}
		text := Describe(sel)
		if len(ids) < len(sel.Workers()) {
			text += "; chosen: " + tpu.Fold(ids)
		}
		return text, nil
	})
	return sel, ids, err
}

// Call connects to the workers that w selects. failed holds those that could not be
// reached. If none could, Call returns an error. The caller closes t.
func (d *Reach) Call(ctx context.Context, watch *stage.Stopwatch, w Workers) (t *Connected, failed map[tpu.WorkerID]error, err error) {
	sel, ids, err := d.Choose(ctx, watch, w)
	if err != nil {
		return nil, nil, err
	}
	return d.ReachSome(ctx, watch, sel, ids)
}

// ReachSome connects to workers of sel, and otherwise does what Call does.
func (d *Reach) ReachSome(ctx context.Context, watch *stage.Stopwatch, sel tpu.Selection, ids []tpu.WorkerID) (t *Connected, failed map[tpu.WorkerID]error, err error) {
	err = watch.Phase("connect", func() (string, error) {
		only := func(id tpu.WorkerID) bool { return slices.Contains(ids, id) }
		if len(ids) == len(sel.Workers()) {
			only = nil
		}
		if t, failed, err = d.Dial(ctx, sel, only, false); err != nil {
			return "", err
		}
		if len(t.IDs) == 0 {
			t.Close()
			return "", Failures(stage.Connect, ids, failed)
		}
		return fmt.Sprintf("%d/%d workers", len(t.IDs), len(ids)), nil
	})
	return t, failed, err
}

// Failures returns the stage.WorkersError for the errors in failed.
func Failures(during stage.Stage, ids []tpu.WorkerID, failed map[tpu.WorkerID]error) error {
	errs := make([]error, len(ids))
	for i, id := range ids {
		errs[i] = failed[id]
	}
	return stage.WorkersError(during, ids, errs)
}
