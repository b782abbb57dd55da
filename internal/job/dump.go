package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/tpu"
)

// dumpLimit limits how long one worker may take to return its stacks.
const dumpLimit = time.Minute

// A Dumped holds the stacks of a run's processes on one worker.
type Dumped struct {
	Worker string         `json:"worker"`
	File   string         `json:"file,omitempty"`
	Stacks []launch.Stack `json:"stacks"`
	Error  string         `json:"error,omitempty"`
}

// Dump collects the stacks of a run's processes on all its workers, writes one file for
// each worker below the run's log directory, and emits the folded stacks as a Result.
// The run continues. The error names the workers that returned none. Of a run that has
// ended, it says how.
func (d *Deps) Dump(ctx context.Context, name, prefix string) error {
	watch := stopwatch{sink: d.Sink, clock: d.Clock}
	rec, err := d.dumpRecord(ctx, name, prefix)
	if err != nil {
		return err
	}
	sel, gone, err := d.recorded(ctx, rec)
	if err != nil {
		return err
	}
	if len(gone) == len(rec.Slices) {
		if e := endHere(d.StateDir, rec, rec.Attempt); e != nil {
			return e.noStacks(d, name)
		}
	}
	if len(gone) > 0 {
		event.Notef(d.Sink, event.Warn, "", "slices of run %s are gone: %s", name, strings.Join(gone, ", "))
	}
	t, err := d.connectPhase(ctx, &watch, sel, nil)
	if err != nil {
		return err
	}
	defer t.close()
	_, lives, err := d.newestAttempt(ctx, t, rec)
	if err != nil {
		return err
	}
	if !lives {
		e := endHere(d.StateDir, rec, rec.Attempt)
		if e == nil {
			e = t.endThere(ctx, d, rec, true)
		}
		if e != nil {
			return e.noStacks(d, name)
		}
	}
	return d.dump(ctx, t, rec, nil)
}

// dumpRecord returns the record of a run, or the error that the run has ended, if its
// bucket tells so.
func (d *Deps) dumpRecord(ctx context.Context, name, prefix string) (*Record, error) {
	r, err := d.detachedRun(ctx, name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return d.locate(ctx, name, prefix)
	}
	state, err := r.bucket.State(ctx, name)
	if err != nil {
		return nil, err
	}
	if e := r.endInBucket(state); e != nil {
		return nil, e.noStacks(d, name)
	}
	return r.record(ctx, state.Attempt)
}

// dump is Dump on a connected team. A process that dumps its stacks on a signal may
// print more than those, so secrets are masked.
func (d *Deps) dump(ctx context.Context, t *team, rec *Record, secrets [][]byte) error {
	dir := filepath.Join(rec.LogDir, "stacks-"+d.Clock.Now().UTC().Format("20060102T150405Z"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &Error{Stage: StageLocal, Text: err.Error(), Err: err}
	}
	d.remember("dump", dir)
	ref := launch.Ref{Run: rec.Run, Attempt: rec.Attempt}
	stacks := make([][]launch.Stack, len(t.ids))
	dumped := make([]Dumped, len(t.ids))
	errs := t.each(ctx, d.Sink, "dump", func(ctx context.Context, i int) error {
		ctx, cancel := context.WithTimeout(ctx, dumpLimit)
		defer cancel()
		dumped[i].Worker = t.ids[i].String()
		all, phase, err := launch.Dump(ctx, t.conns[i], ref, launch.DumpOptions{})
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("attempt %d has no living process (%s)", ref.Attempt, phase)
		}
		hide := func(text string) string {
			view := masker{words: secrets}
			return string(view.mask([]byte(text), false))
		}
		for k := range all {
			all[k].Command = hide(all[k].Command)
			for _, lines := range [][]string{all[k].Lines, all[k].Printed} {
				for j, line := range lines {
					lines[j] = hide(line)
				}
			}
		}
		if err == nil {
			dumped[i].File = filepath.Join(dir, fmt.Sprintf("stack_slice_%04d_worker_%04d.txt", t.ids[i].Slice, t.ids[i].Worker))
			err = os.WriteFile(dumped[i].File, stackText(all), 0o600)
		}
		if err != nil {
			dumped[i].Error = causeText(err, t.ids[i])
		}
		stacks[i], dumped[i].Stacks = all, all
		return err
	})
	d.Sink.Emit(event.Result{Name: "stacks", Text: foldedText(t.ids, stacks) + printedText(t.ids, stacks, rec.Run) + "stacks of each worker: " + dir + "\n", Data: dumped})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return workersError(StageDump, t.ids, errs)
}

func stackText(all []launch.Stack) []byte {
	var b strings.Builder
	for _, s := range all {
		fmt.Fprintf(&b, "%s\n%s\n\n", s, strings.Join(s.Lines, "\n"))
		if len(s.Printed) > 0 {
			fmt.Fprintf(&b, "printed meanwhile, no part of the stacks:\n%s\n\n", strings.Join(s.Printed, "\n"))
		}
	}
	return []byte(b.String())
}

// mostFolded is how many places the folded view shows; the files contain all.
const mostFolded = 20

func foldedText(ids []tpu.WorkerID, stacks [][]launch.Stack) string {
	var b strings.Builder
	folded := launch.FoldStacks(stacks)
	for i, f := range folded {
		if i == mostFolded {
			fmt.Fprintf(&b, "… and %d more places\n\n", len(folded)-i)
			break
		}
		at := make([]tpu.WorkerID, len(f.Workers))
		for j, w := range f.Workers {
			at[j] = ids[w]
		}
		fmt.Fprintf(&b, "%s (%s)\n", tpu.Fold(at), event.Count(f.Threads, "thread"))
		for _, line := range f.Lines {
			fmt.Fprintf(&b, "  %s\n", line)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// printedText says that the command printed something while its stacks were collected.
func printedText(ids []tpu.WorkerID, stacks [][]launch.Stack, run string) string {
	var at []tpu.WorkerID
	lines := 0
	for i, all := range stacks {
		n := 0
		for _, s := range all {
			n += len(s.Printed)
		}
		if lines += n; n > 0 {
			at = append(at, ids[i])
		}
	}
	if lines == 0 {
		return ""
	}
	return fmt.Sprintf("left out: %s that the command printed meanwhile on %s; read it with: multihost logs %s --worker=%s\n", event.Count(lines, "line"), tpu.Fold(at), run, at[0])
}

// beginDump collects the stacks of a run that has stalled. It does nothing while an
// earlier dump is in progress.
func (w *watcher) beginDump(ctx context.Context) {
	if w.dumping != nil {
		select {
		case <-w.dumping:
		default:
			return // the last one is still in progress
		}
	}
	w.dumping = make(chan struct{})
	go func() {
		defer close(w.dumping)
		err := w.f.dump(ctx, w.f.team, w.f.rec, w.f.secrets)
		if err != nil && !errors.Is(err, context.Canceled) {
			event.Notef(w.f.Sink, event.Warn, "", "%v", err)
		}
	}()
}

// close waits for a dump in progress. The dump ends when its context ends.
func (w *watcher) close() {
	if w.dumping != nil {
		<-w.dumping
	}
}
