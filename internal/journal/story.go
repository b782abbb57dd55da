package journal

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// A Story is the history of a run, from the entries of its journal.
type Story struct {
	Run string
	// Attempts are in the order of their numbers. Attempt 0 has the events of commands
	// without an attempt.
	Attempts []*Attempt
	Last     time.Time // time of the last entry
}

// An Attempt is one start of the command, with all that led to it and followed from it. It
// joins what all multihost commands saw of this start.
type Attempt struct {
	event.Attempt
	Commands  []string // multihost commands that saw it: run, job, attach
	Phases    []Phase  // by begin
	Notes     []Note   // warnings and other notes, by time
	States    []State  // states of cloud resources, by time
	Release   *event.Release
	Preflight json.RawMessage // rows of preflight; nil: it did not run
	Ends      map[tpu.WorkerID]event.WorkerDone
	Outcome   *event.AttemptEnd
	Summary   *event.Summary // only in the last attempt
	Over      time.Time      // time of outcome or summary

	// End is how the last command that saw the attempt ended. It is nil while a command
	// runs, and if the command was killed.
	End   *End
	Ended time.Time
}

// A Phase is a step of a command.
type Phase struct {
	Name   string
	State  event.PhaseState // Started while it lasts
	Detail string
	Begin  time.Time
	End    time.Time // zero while it lasts
	by     string
}

// A Note is a note and its time.
type Note struct {
	Time time.Time
	event.Note
}

// A State is a state of a cloud resource and its time.
type State struct {
	Time time.Time
	event.State
}

// Newest returns the last attempt, or nil.
func (s *Story) Newest() *Attempt {
	if len(s.Attempts) == 0 {
		return nil
	}
	return s.Attempts[len(s.Attempts)-1]
}

// Tell makes the story of entries in Read's order.
func Tell(entries []Entry) *Story {
	t := teller{story: &Story{}, writers: map[string]*writer{}}
	for _, e := range entries {
		if e.Time.After(t.story.Last) {
			t.story.Last = e.Time
		}
		t.take(e)
	}
	for _, e := range entries { // in the order of their first lines
		t.settle(t.writers[e.By])
	}
	slices.SortStableFunc(t.story.Attempts, func(a, b *Attempt) int { return cmp.Compare(a.Number(), b.Number()) })
	for _, a := range t.story.Attempts {
		slices.SortStableFunc(a.Phases, func(x, y Phase) int { return x.Begin.Compare(y.Begin) })
		slices.SortStableFunc(a.Notes, func(x, y Note) int { return x.Time.Compare(y.Time) })
		slices.SortStableFunc(a.States, func(x, y State) int { return x.Time.Compare(y.Time) })
	}
	return t.story
}

// Number returns the number of the attempt, from 1.
func (a *Attempt) Number() int { return a.Attempt.Attempt }

// Begins returns the beginning of the attempt or of its first phase, whichever is
// earlier.
func (a *Attempt) Begins() time.Time {
	if len(a.Phases) > 0 && (a.Begin.IsZero() || a.Phases[0].Begin.Before(a.Begin)) {
		return a.Phases[0].Begin
	}
	return a.Begin
}

// teller reads entries one by one and builds a story.
type teller struct {
	story   *Story
	writers map[string]*writer
}

// writer is one multihost command that wrote entries.
type writer struct {
	command string
	attempt *Attempt // the attempt of its present events
	// waiting has the events before an attempt, or after its end. If there is a next
	// attempt, they become its beginning.
	waiting *Attempt
}

// wait makes w collect the following events for the next attempt.
func (w *writer) wait() {
	if w.waiting == nil {
		w.waiting = &Attempt{}
	}
}

// settle adds events that waited for a next attempt to the last attempt of the command, or
// to attempt 0 if the command made none.
func (t *teller) settle(w *writer) {
	if w.waiting == nil {
		return
	}
	a := w.attempt
	if a == nil {
		a = t.attempt(0)
	}
	a.gain(w.waiting)
	w.waiting = nil
}

func (a *Attempt) gain(from *Attempt) {
	if from == nil {
		return
	}
	a.Phases = append(a.Phases, from.Phases...)
	a.Notes = append(a.Notes, from.Notes...)
	a.States = append(a.States, from.States...)
	if from.Preflight != nil {
		a.Preflight = from.Preflight
	}
	if from.End != nil {
		a.End, a.Ended = from.End, from.Ended
	}
}

func (t *teller) attempt(number int) *Attempt {
	for _, a := range t.story.Attempts {
		if a.Number() == number {
			return a
		}
	}
	a := &Attempt{Attempt: event.Attempt{Attempt: number}, Ends: map[tpu.WorkerID]event.WorkerDone{}}
	t.story.Attempts = append(t.story.Attempts, a)
	return a
}

func (t *teller) take(e Entry) {
	w := t.writers[e.By]
	if w == nil {
		w = &writer{}
		t.writers[e.By] = w
	}
	if w.attempt == nil {
		w.wait()
	}
	now := w.attempt
	if w.waiting != nil {
		now = w.waiting
	}
	switch ev := e.Event.(type) {
	case Begin:
		w.command = ev.Command
	case event.Attempt:
		t.begin(w, ev)
	case event.Phase:
		now.phase(e, ev)
	case event.Note:
		now.Notes = append(now.Notes, Note{e.Time, ev})
	case event.Request:
		now.Notes = append(now.Notes, Note{e.Time, event.Note{Level: event.Info, Text: ev.Text}})
	case event.State:
		now.States = append(now.States, State{e.Time, ev})
	case event.Release:
		t.attempt(ev.Attempt).Release = &ev
	case event.WorkerDone:
		w.ended(ev)
	case event.AttemptEnd:
		a := t.attempt(ev.Attempt)
		a.Outcome, a.Over = &ev, e.Time
		w.wait()
	case event.Summary:
		a := t.attempt(ev.Attempt)
		a.Summary, a.Over = &ev, e.Time
		w.wait()
	case event.Result:
		if raw, ok := ev.Data.(json.RawMessage); ok && ev.Name == "preflight" {
			now.Preflight = raw
		}
	case End:
		w.wait()
		w.waiting.End, w.waiting.Ended = &ev, e.Time
	}
}

// ended takes the end of a worker. If two commands followed the run, the report of the one
// that saw the end is used.
func (w *writer) ended(ev event.WorkerDone) {
	if w.attempt == nil {
		return
	}
	id := tpu.WorkerID{Slice: ev.Slice, Worker: ev.Worker}
	if old, seen := w.attempt.Ends[id]; !seen || old.Error != "" {
		w.attempt.Ends[id] = ev
	}
}

func (t *teller) begin(w *writer, ev event.Attempt) {
	a := t.attempt(ev.Attempt)
	if a.Run == "" || w.command != "attach" {
		a.Attempt = ev
	}
	a.End = nil // a command follows the attempt again
	for _, o := range t.writers {
		if o.attempt == a && o.waiting != nil {
			o.waiting.End = nil
		}
	}
	if !slices.Contains(a.Commands, w.command) {
		a.Commands = append(a.Commands, w.command)
	}
	t.story.Run = ev.Run
	a.gain(w.waiting)
	w.attempt, w.waiting = a, nil
}

func (a *Attempt) phase(e Entry, ev event.Phase) {
	for i := len(a.Phases) - 1; i >= 0; i-- {
		p := &a.Phases[i]
		if p.by == e.By && p.Name == ev.Name && p.State == event.Started {
			if ev.State != event.Started {
				p.State, p.End = ev.State, e.Time
			}
			if ev.Detail != "" {
				p.Detail = ev.Detail
			}
			return
		}
	}
	p := Phase{Name: ev.Name, State: ev.State, Detail: ev.Detail, Begin: e.Time, by: e.By}
	if ev.State != event.Started {
		p.Begin, p.End = e.Time.Add(-ev.Elapsed), e.Time
	}
	a.Phases = append(a.Phases, p)
}
