package follow

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
	"multihost/internal/mask"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// dumpLimit limits the time in which one worker returns its stacks.
const dumpLimit = time.Minute

// A Dumped holds the stacks of a run's processes on one worker.
type Dumped struct {
	Worker string         `json:"worker"`
	File   string         `json:"file,omitempty"`
	Stacks []launch.Stack `json:"stacks"`
	Error  string         `json:"error,omitempty"`
}

// DumpOn dumps the stacks of a run on connected workers. It masks secrets, because a
// process that dumps its stacks on a signal may print other text with them.
func DumpOn(ctx context.Context, d Deps, t *workers.Connected, rec *record.Record, secrets [][]byte) error {
	dir := filepath.Join(rec.LogDir, "stacks-"+d.Clock.Now().UTC().Format("20060102T150405Z"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &stage.Error{Stage: stage.Local, Text: err.Error(), Err: err}
	}
	d.Remember("dump", dir)
	ref := launch.Ref{Run: rec.Run, Attempt: rec.Attempt}
	stacks := make([][]launch.Stack, len(t.IDs))
	dumped := make([]Dumped, len(t.IDs))
	errs := t.Each(ctx, d.Sink, "dump", func(ctx context.Context, i int) error {
		ctx, cancel := context.WithTimeout(ctx, dumpLimit)
		defer cancel()
		dumped[i].Worker = t.IDs[i].String()
		all, phase, err := launch.Dump(ctx, t.Conns[i], ref, launch.DumpOptions{})
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("attempt %d has no living process (%s)", ref.Attempt, phase)
		}
		hide := func(text string) string {
			view := mask.Masker{Words: secrets}
			return string(view.Mask([]byte(text), false))
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
			dumped[i].File = filepath.Join(dir, fmt.Sprintf("stack_slice_%04d_worker_%04d.txt", t.IDs[i].Slice, t.IDs[i].Worker))
			err = os.WriteFile(dumped[i].File, stackText(all), 0o600)
		}
		if err != nil {
			dumped[i].Error = stage.CauseText(err, t.IDs[i])
		}
		stacks[i], dumped[i].Stacks = all, all
		return err
	})
	d.Sink.Emit(event.Result{Name: "stacks", Text: foldedText(t.IDs, stacks) + PrintedText(t.IDs, stacks, rec.Run) + "stacks of each worker: " + dir + "\n", Data: dumped})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return stage.WorkersError(stage.Dump, t.IDs, errs)
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

// mostFolded limits the places in the folded view. The files have all of them.
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

// PrintedText says that the command printed something while its stacks were collected.
func PrintedText(ids []tpu.WorkerID, stacks [][]launch.Stack, run string) string {
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

// beginDump collects the stacks of a run that has stalled, unless an earlier dump is in
// progress.
func (w *watcher) beginDump(ctx context.Context) {
	if w.dumping != nil {
		select {
		case <-w.dumping:
		default:
			return
		}
	}
	w.dumping = make(chan struct{})
	go func() {
		defer close(w.dumping)
		err := DumpOn(ctx, w.f.Deps, w.f.Workers, w.f.Rec, w.f.Secrets)
		if err != nil && !errors.Is(err, context.Canceled) {
			event.Notef(w.f.Sink, event.Warn, "", "%v", err)
		}
	}()
}

// Close waits for a dump in progress, which ends with its context.
func (w *watcher) Close() {
	if w.dumping != nil {
		<-w.dumping
	}
}
