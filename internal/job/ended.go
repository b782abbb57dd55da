package job

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
	"multihost/internal/tpu"
)

// A runEnd is what is known of the end of an attempt.
type runEnd struct {
	at    time.Time // zero: not known
	text  string    // how it ended
	first *tpu.WorkerID
}

// failedFirst sets first to the worker that a text names at its beginning, as verdicts do.
func (e *runEnd) failedFirst(text string) {
	word, _, _ := strings.Cut(strings.ReplaceAll(text, ":", " "), " ")
	if id, err := tpu.ParseWorkerID(word); err == nil {
		e.first = &id
	}
}

// endOfAttempt returns the end of an attempt as the run's journal tells it; nil if it
// tells none.
func endOfAttempt(s *journal.Story, attempt int) *runEnd {
	for _, a := range s.Attempts {
		if a.Number() != attempt {
			continue
		}
		e := &runEnd{at: a.Over}
		switch {
		case a.Summary != nil:
			e.text = strings.TrimPrefix(strings.TrimPrefix(a.Summary.Text, "run "+a.Summary.Run), ":")
			e.failedFirst(a.Summary.FirstFail)
		case a.Outcome != nil:
			e.text = a.Outcome.Reason()
		default:
			return nil
		}
		e.text = strings.TrimSpace(e.text)
		if e.first == nil {
			e.first = firstOf(a.Ends)
		}
		return e
	}
	return nil
}

// firstOf returns the worker whose command failed first by itself; nil if none did.
func firstOf(ends map[tpu.WorkerID]event.WorkerDone) *tpu.WorkerID {
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

// endHere returns the end of an attempt as this machine saw it: from the journal,
// otherwise from the record. It returns nil if it saw none.
func endHere(stateDir string, rec *Record, attempt int) *runEnd {
	entries, _ := journal.Read(RunDir(stateDir, rec.Run)) // an unreadable journal tells nothing
	if e := endOfAttempt(journal.Tell(entries), attempt); e != nil {
		return e
	}
	for _, a := range rec.Attempts {
		if a.Attempt == attempt && !a.End.IsZero() {
			return &runEnd{at: a.End, text: cmp.Or(a.Why, launch.Exit{Code: a.Code}.String())}
		}
	}
	if attempt == rec.Attempt && rec.Ended {
		return &runEnd{text: launch.Exit{Code: rec.Code}.String()}
	}
	return nil
}

// endThere returns the end of the record's attempt as its workers tell it; nil if they
// tell none. If all of them are in the team, and none was told the verdict, it judges by
// how the command ended on each.
func (t *team) endThere(ctx context.Context, d *Deps, rec *Record, all bool) *runEnd {
	found, _ := t.runs(ctx)
	for _, f := range found {
		if f.info.Run != rec.Run || f.info.Attempt != rec.Attempt || f.info.Exit == nil {
			continue
		}
		e := &runEnd{text: f.ended()}
		e.failedFirst(f.verdict)
		if end := f.info.Exit.End; !end.IsZero() && !f.info.Now.IsZero() {
			e.at = d.Clock.Now().Add(end.Sub(f.info.Now))
		}
		if all && f.verdict == "" {
			e.judge(t.ends(ctx, f.info.Ref))
		}
		return e
	}
	return nil
}

// judge sets when the command ended on the last worker, and which worker failed first.
func (e *runEnd) judge(ends map[tpu.WorkerID]event.WorkerDone) {
	for _, w := range ends {
		if w.End.After(e.at) {
			e.at = w.End
		}
	}
	if e.first = firstOf(ends); e.first != nil {
		w := ends[*e.first]
		e.text = fmt.Sprintf("failed: %s was first, %s", e.first, launch.Exit{Code: w.Code, Signal: w.Signal})
	}
}

// ends asks the workers of the team how the command ended. Those that do not answer, and
// those on which it has not ended, are left out. Times are corrected by the clocks.
func (t *team) ends(ctx context.Context, ref launch.Ref) map[tpu.WorkerID]event.WorkerDone {
	states := make([]launch.State, len(t.ids))
	t.each(ctx, event.Discard, "", func(ctx context.Context, i int) (err error) {
		states[i], err = launch.Status(ctx, t.conns[i], ref)
		return err
	})
	ends := map[tpu.WorkerID]event.WorkerDone{}
	for i, id := range t.ids {
		if exit := states[i].Exit; exit != nil {
			ends[id] = event.WorkerDone{Slice: id.Slice, Worker: id.Worker, Code: exit.Code, Signal: exit.Signal, Reason: exit.Reason, End: exit.End.Add(-t.conns[i].ClockOffset())}
		}
	}
	return ends
}

// endInBucket returns how the run ended, as its workers wrote into the bucket; nil if it
// has not.
func (r *detachedRun) endInBucket(state detach.State) *runEnd {
	if !state.Over(r.desc) {
		return nil
	}
	e := &runEnd{text: launch.Exit{}.String()}
	for _, w := range state.Ended {
		if w.At.After(e.at) {
			e.at = w.At
		}
	}
	if first := state.Blame(); first != nil {
		e.text = fmt.Sprintf("failed: %s was first, %s", first.Worker, endText(*first))
		if first.Reason != "" {
			e.text = first.Reason
		} else {
			e.first = &first.Worker
		}
	}
	return e
}

// say says that a run has ended, when, and how.
func (e *runEnd) say(run string, now time.Time) string {
	when := ""
	if !e.at.IsZero() {
		when = fmt.Sprintf(" at %s, %s ago", e.at.UTC().Format("2006-01-02 15:04:05 UTC"), event.Age(max(0, now.Sub(e.at))))
	}
	return fmt.Sprintf("run %q has ended%s: %s", run, when, e.text)
}

// logsHint returns how to read the logs of an ended run.
func (e *runEnd) logsHint(run string) string {
	if e.first != nil {
		return fmt.Sprintf("the log of %s, which failed first: multihost logs %s --first-failure", e.first, run)
	}
	return "its logs: multihost logs " + run
}

// noStacks is the error of a dump of a run that has ended.
func (e *runEnd) noStacks(d *Deps, run string) error {
	return &Error{Stage: StageDump, Text: e.say(run, d.Clock.Now()) + "; it has no living process", Advice: e.logsHint(run)}
}
