package job

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// Workers selects the workers of a command such as exec, ssh or cp.
type Workers struct {
	Prefix  string      // of the slices
	Slices  tpu.Numbers // only the slices with these numbers in their names
	Partial bool        // accept that only some slices are ready, and use those
	Only    tpu.Pattern
	Except  tpu.Pattern
}

// choose returns the workers that w selects. A run numbers its slices anew; choose
// keeps their numbers whatever state they are in, and includes the workers of slices
// that are not healthy. Missing or unready slices are an error only if all workers were
// asked for.
func (d *Deps) choose(ctx context.Context, watch *stopwatch, w Workers) (sel tpu.Selection, ids []tpu.WorkerID, err error) {
	err = watch.phase("discover", func() (string, error) {
		nodes, err := d.Cloud.Slices(ctx)
		if err != nil {
			return "", fmt.Errorf("list slices in %q: %w", d.Zone, err)
		}
		if sel, err = tpu.SelectNumbered(nodes, w.Prefix, w.Slices, false); err != nil {
			return "", err
		}
		if sel.Slices[0].Name != w.Prefix && w.Slices == nil {
			if missing := d.missingFromQueue(ctx, sel); missing != "" {
				sel.Problems = append(sel.Problems, missing)
			}
		}
		if len(sel.Problems) > 0 && !w.Partial && (w.Only.IsZero() || w.Only.All()) {
			return "", &Error{Stage: StageDiscover, Text: strings.Join(tpu.FoldProblems(sel.Problems), "; "),
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
		text := describe(sel)
		if len(ids) < len(sel.Workers()) {
			text += "; chosen: " + tpu.Fold(ids)
		}
		return text, nil
	})
	return sel, ids, err
}

// call connects to the workers that w selects. failed holds the workers that could not
// be reached; if none could, that is an error. The caller closes the team.
func (d *Deps) call(ctx context.Context, watch *stopwatch, w Workers) (t *team, failed map[tpu.WorkerID]error, err error) {
	sel, ids, err := d.choose(ctx, watch, w)
	if err != nil {
		return nil, nil, err
	}
	return d.reachSome(ctx, watch, sel, ids)
}

// reachSome connects to workers of sel, as call does.
func (d *Deps) reachSome(ctx context.Context, watch *stopwatch, sel tpu.Selection, ids []tpu.WorkerID) (t *team, failed map[tpu.WorkerID]error, err error) {
	err = watch.phase("connect", func() (string, error) {
		only := func(id tpu.WorkerID) bool { return slices.Contains(ids, id) }
		if len(ids) == len(sel.Workers()) {
			only = nil
		}
		if t, failed, err = d.dial(ctx, sel, only, false); err != nil {
			return "", err
		}
		if len(t.ids) == 0 {
			t.close()
			return "", failures(StageConnect, ids, failed)
		}
		return fmt.Sprintf("%d/%d workers", len(t.ids), len(ids)), nil
	})
	return t, failed, err
}

// failures is workersError for the errors of some workers among ids.
func failures(during Stage, ids []tpu.WorkerID, failed map[tpu.WorkerID]error) error {
	errs := make([]error, len(ids))
	for i, id := range ids {
		errs[i] = failed[id]
	}
	return workersError(during, ids, errs)
}
