package testkit

import (
	"slices"
	"strings"
	"sync"

	"multihost/internal/event"
)

// A Recorder is a Sink that keeps all events.
type Recorder struct {
	mu     sync.Mutex
	events []event.Event
}

// Emit implements event.Sink.
func (r *Recorder) Emit(e event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// Events returns the events so far.
func (r *Recorder) Events() []event.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Notes returns the notes among the events.
func (r *Recorder) Notes() (notes []event.Note) {
	for _, e := range r.Events() {
		if n, ok := e.(event.Note); ok {
			notes = append(notes, n)
		}
	}
	return notes
}

// Said reports whether the text or hint of a note of that level contains part.
func (r *Recorder) Said(level event.Level, part string) bool {
	return slices.ContainsFunc(r.Notes(), func(n event.Note) bool {
		return n.Level == level && strings.Contains(n.Text+"\n"+n.Hint, part)
	})
}
