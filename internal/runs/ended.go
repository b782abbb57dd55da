package runs

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A RunEnd is what is known about the end of an attempt.
type RunEnd struct {
	at    time.Time // zero: unknown
	Text  string    // how the attempt ended
	First *tpu.WorkerID
}

// failedFirst sets First to the worker that the text of a verdict begins with, if any.
func (e *RunEnd) failedFirst(text string) {
	word, _, _ := strings.Cut(strings.ReplaceAll(text, ":", " "), " ")
	if id, err := tpu.ParseWorkerID(word); err == nil {
		e.First = &id
	}
}

// endOfAttempt returns the end of an attempt from the run's journal, or nil if the journal
// has none.
func endOfAttempt(s *journal.Story, attempt int) *RunEnd {
	for _, a := range s.Attempts {
		if a.Number() != attempt {
			continue
		}
		e := &RunEnd{at: a.Over}
		switch {
		case a.Summary != nil:
			e.Text = strings.TrimPrefix(strings.TrimPrefix(a.Summary.Text, "run "+a.Summary.Run), ":")
			e.failedFirst(a.Summary.FirstFail)
		case a.Outcome != nil:
			e.Text = a.Outcome.Reason()
		default:
			return nil
		}
		e.Text = strings.TrimSpace(e.Text)
		if e.First == nil {
			e.First = FirstOf(a.Ends)
		}
		return e
	}
	return nil
}

// FirstOf returns the worker on which the command failed first by itself, or nil if there
// is none.
func FirstOf(ends map[tpu.WorkerID]event.WorkerDone) *tpu.WorkerID {
	var first *tpu.WorkerID
	for id, e := range ends {
		if e.Code == 0 || e.Reason != "" {
			continue
		}
		if first == nil || cmp.Or(e.End.Compare(ends[*first].End), tpu.CompareWorkers(id, *first)) < 0 {
			first = &id
		}
	}
	return first
}

// EndHere returns the end of an attempt as this machine saw it, from the journal or else
// from the record. It returns nil if this machine saw no end.
func EndHere(stateDir string, rec *record.Record, attempt int) *RunEnd {
	entries, _ := journal.Read(record.RunDir(stateDir, rec.Run)) // an unreadable journal has no entries
	if e := endOfAttempt(journal.Tell(entries), attempt); e != nil {
		return e
	}
	for _, a := range rec.Attempts {
		if a.Attempt == attempt && !a.End.IsZero() {
			return &RunEnd{at: a.End, Text: cmp.Or(a.Why, launch.Exit{Code: a.Code}.String())}
		}
	}
	if attempt == rec.Attempt && rec.Ended {
		return &RunEnd{Text: launch.Exit{Code: rec.Code}.String()}
	}
	return nil
}

// EndThere returns the end of the record's attempt as its workers report it, or nil if they
// report none. The parameter all says that all workers of the run are connected. If so, and
// if no worker knows the verdict, EndThere uses how the command ended on each worker.
func EndThere(ctx context.Context, t *workers.Connected, d Deps, rec *record.Record, all bool) *RunEnd {
	found, _ := t.Runs(ctx)
	for _, f := range found {
		if f.Info.Run != rec.Run || f.Info.Attempt != rec.Attempt || f.Info.Exit == nil {
			continue
		}
		e := &RunEnd{Text: f.Ended()}
		e.failedFirst(f.Verdict)
		if end := f.Info.Exit.End; !end.IsZero() && !f.Info.Now.IsZero() {
			e.at = d.Clock.Now().Add(end.Sub(f.Info.Now))
		}
		if all && f.Verdict == "" {
			e.judge(Ends(ctx, t, f.Info.Ref))
		}
		return e
	}
	return nil
}

// judge sets when the command ended on the last worker, and which worker failed first.
func (e *RunEnd) judge(ends map[tpu.WorkerID]event.WorkerDone) {
	for _, w := range ends {
		if w.End.After(e.at) {
			e.at = w.End
		}
	}
	if e.First = FirstOf(ends); e.First != nil {
		w := ends[*e.First]
		e.Text = fmt.Sprintf("failed: %s was first, %s", e.First, launch.Exit{Code: w.Code, Signal: w.Signal})
	}
}

// Ends asks the workers how the command ended. It leaves out workers that do not answer,
// and those on which the command has not ended. It converts the times to this machine's
// clock.
func Ends(ctx context.Context, t *workers.Connected, ref launch.Ref) map[tpu.WorkerID]event.WorkerDone {
	states := make([]launch.State, len(t.IDs))
	t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) (err error) {
		states[i], err = launch.Status(ctx, t.Conns[i], ref)
		return err
	})
	ends := map[tpu.WorkerID]event.WorkerDone{}
	for i, id := range t.IDs {
		if exit := states[i].Exit; exit != nil {
			ends[id] = event.WorkerDone{Slice: id.Slice, Worker: id.Worker, Code: exit.Code, Signal: exit.Signal, Reason: exit.Reason, End: exit.End.Add(-t.Conns[i].ClockOffset())}
		}
	}
	return ends
}

// EndInBucket returns how the run ended, as its workers wrote it into the bucket, or nil if
// the run has not ended.
func (r *BucketRun) EndInBucket(state detach.State) *RunEnd {
	if !state.Over(r.Desc) {
		return nil
	}
	e := &RunEnd{Text: launch.Exit{}.String()}
	for _, w := range state.Ended {
		if w.At.After(e.at) {
			e.at = w.At
		}
	}
	if first := state.Blame(); first != nil {
		e.Text = fmt.Sprintf("failed: %s was first, %s", first.Worker, endText(*first))
		if first.Reason != "" {
			e.Text = first.Reason
		} else {
			e.First = &first.Worker
		}
	}
	return e
}

// Say says that a run has ended, when, and how.
func (e *RunEnd) Say(run string, now time.Time) string {
	when := ""
	if !e.at.IsZero() {
		when = fmt.Sprintf(" at %s, %s ago", e.at.UTC().Format("2006-01-02 15:04:05 UTC"), event.Age(max(0, now.Sub(e.at))))
	}
	return fmt.Sprintf("run %q has ended%s: %s", run, when, e.Text)
}

// logsHint returns how to read the logs of an ended run.
func (e *RunEnd) logsHint(run string) string {
	if e.First != nil {
		return fmt.Sprintf("the log of %s, which failed first: multihost logs %s --first-failure", e.First, run)
	}
	return "its logs: multihost logs " + run
}

// NoStacks returns the error for a dump of a run that has ended.
func (e *RunEnd) NoStacks(d Deps, run string) error {
	return &stage.Error{Stage: stage.Dump, Text: e.Say(run, d.Clock.Now()) + "; it has no living process", Advice: e.logsHint(run)}
}
