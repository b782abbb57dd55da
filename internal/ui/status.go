package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/event"
)

// These times pace status lines where nothing can be redrawn. A phase shorter than
// statusFirst gets no line. Changes are shown at most once in statusEvery. Without a
// change, a line comes every statusSame, to show that the wait continues.
const (
	statusFirst = 5 * time.Second
	statusEvery = 30 * time.Second
	statusSame  = 10 * time.Minute
)

// A phaseView is a phase that has not ended.
type phaseView struct {
	name    string
	started time.Time
	begun   bool // a Phase event has announced it, so another one will end it
	last    event.Progress
	lastAt  time.Time // zero: no progress yet
	step    string    // the newest training step, or ""

	shown   string // in plain mode: the last line without times
	shownAt time.Time
	changed bool // may have changed since shown
}

// describe returns what the phase does, without times.
func (p *phaseView) describe() string {
	var parts []string
	if p.step != "" {
		parts = append(parts, p.step)
	}
	if !p.lastAt.IsZero() {
		e := &p.last
		if e.Total > 0 {
			parts = append(parts, fmt.Sprintf("%d/%d", e.Done, e.Total))
		}
		if e.All > 0 {
			parts = append(parts, fmt.Sprintf("%d %%, %s of %s", 100*e.Bytes/e.All, event.Bytes(e.Bytes), event.Bytes(e.All)))
		}
		if e.Detail != "" {
			parts = append(parts, e.Detail)
		}
		if e.Waiting != "" {
			parts = append(parts, "waiting for "+e.Waiting)
		}
		if e.Silent != "" {
			parts = append(parts, "nothing heard from "+e.Silent)
		}
	}
	return p.name + ": " + strings.Join(parts, ", ")
}

// silence returns how long the workers that describe names have sent nothing, or "" if all
// send something.
func (p *phaseView) silence(now time.Time) string {
	if p.last.Silent == "" || p.last.SilentSince == nil {
		return ""
	}
	return " for " + event.Age(now.Sub(*p.last.SilentSince))
}

// times returns how long the phase has lasted, and its limit if it has one.
func (p *phaseView) times(now time.Time) string {
	elapsed := now.Sub(p.started)
	if !p.lastAt.IsZero() && p.last.Elapsed > 0 {
		elapsed = p.last.Elapsed + now.Sub(p.lastAt)
	}
	// Tenths of a second would make every redraw different.
	text := event.Age(elapsed)
	if p.last.Limit > 0 {
		text += " of " + event.Duration(p.last.Limit)
	}
	return text
}

// phases are the phases that have not ended, the newest last.
type phases []*phaseView

func (all phases) find(name string) *phaseView {
	for _, p := range all {
		if p.name == name {
			return p
		}
	}
	return nil
}

// newest returns the phase that the status is about, or nil.
func (all phases) newest() *phaseView {
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// begin adds the phase that e announces. A phase that is there already begins again.
func (all *phases) begin(e event.Phase, now time.Time) {
	p := all.find(e.Name)
	if p == nil {
		p = &phaseView{}
		*all = append(*all, p)
	}
	*p = phaseView{name: e.Name, begun: true, started: now.Add(-e.Elapsed), shownAt: now.Add(statusFirst - statusEvery)}
}

// end removes the phase that e ends. It returns how long the phase took.
func (all *phases) end(e event.Phase, now time.Time) time.Duration {
	p := all.find(e.Name)
	all.remove(p)
	if e.Elapsed == 0 && p != nil {
		return now.Sub(p.started)
	}
	return e.Elapsed
}

// progress returns the phase of e. A phase that no event has announced begins with its
// first progress, and ends when everything is done.
func (all *phases) progress(e event.Progress, now time.Time) *phaseView {
	p := all.find(e.Phase)
	if p == nil {
		p = &phaseView{name: e.Phase, started: now.Add(-e.Elapsed), shownAt: now.Add(statusFirst - statusEvery)}
		*all = append(*all, p)
	}
	p.last, p.lastAt = e, now
	if !p.begun && e.Total > 0 && e.Done >= e.Total { // no other event ends this phase
		all.remove(p)
	}
	return p
}

// step records the newest training step in the phase "run". It returns that phase, or nil.
func (all phases) step(e event.Training) *phaseView {
	p := all.find("run")
	if p != nil {
		p.step = e.String()
	}
	return p
}

func (all *phases) remove(p *phaseView) {
	*all = slices.DeleteFunc(*all, func(q *phaseView) bool { return q == p })
}

// phaseEnd describes the end of a phase.
func phaseEnd(e event.Phase, elapsed time.Duration) string {
	detail := e.Detail
	switch {
	case e.State == event.Failed && detail == "":
		detail = "failed"
	case e.State == event.Failed:
		detail = "failed: " + detail
	case detail == "":
		detail = "done"
	}
	return fmt.Sprintf("%s: %s (%s)", e.Name, detail, event.Duration(elapsed))
}

// status returns the line that a terminal shows about the phase.
func (p *phaseView) status(now time.Time) string {
	text := strings.TrimSuffix(p.describe(), ": ")
	if p.last.All > 0 {
		text = bar(p.last.Bytes, p.last.All) + " " + text
	}
	if silence := p.silence(now); silence != "" {
		return text + silence // while workers are silent, the length of the phase does not matter
	}
	if strings.Contains(text, ": ") {
		return text + ", " + p.times(now)
	}
	return text + ": " + p.times(now)
}

// plainLine paces lines where nothing can be redrawn. due means that the text must be shown
// now. Otherwise at is the time for the next look.
func (p *phaseView) plainLine(now time.Time) (at time.Time, due bool) {
	text := p.describe()
	p.changed = p.changed && text != p.shown
	at = p.shownAt.Add(statusSame)
	if p.changed || p.shown == "" {
		at = p.shownAt.Add(statusEvery)
	}
	if at.After(now) {
		return at, false
	}
	p.shown, p.shownAt, p.changed = text, now, false
	return at, true
}

// barWidth is the number of columns of a bar without its brackets.
const barWidth = 20

// bar draws how much of the work is done.
func bar(done, all int64) string {
	full := int(barWidth * min(done, all) / all)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", barWidth-full) + "]"
}

// line appends the status as a line of its own.
func (p *phaseView) line(b []byte, now time.Time) []byte {
	times := p.silence(now)
	if times == "" {
		times = " (" + p.times(now) + ")"
	}
	return appendIndented(b, strings.TrimSuffix(p.describe(), ": ")+times, "  ")
}
