package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/event"
)

// Pacing of status lines where nothing can be redrawn. A phase shorter than statusFirst
// gets no line. A change is shown at most every statusEvery. Without a change there is a
// line every statusSame, which shows that the wait goes on.
const (
	statusFirst = 5 * time.Second
	statusEvery = 30 * time.Second
	statusSame  = 10 * time.Minute
)

// A phaseView is a phase that has not ended.
type phaseView struct {
	name    string
	started time.Time
	begun   bool // announced by a Phase event, so another one ends it
	last    event.Progress
	lastAt  time.Time // zero: no progress yet
	step    string    // the newest training step; "": none

	shown   string // plain: the last line, without times
	shownAt time.Time
	changed bool // perhaps changed since then
}

// describe says what the phase does, without times.
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

// silence says for how long the workers of describe have not been heard; "" if all are.
func (p *phaseView) silence(now time.Time) string {
	if p.last.Silent == "" || p.last.SilentSince == nil {
		return ""
	}
	return " for " + event.Age(now.Sub(*p.last.SilentSince))
}

// times says how long the phase has taken, and its limit if it has one.
func (p *phaseView) times(now time.Time) string {
	elapsed := now.Sub(p.started)
	if !p.lastAt.IsZero() && p.last.Elapsed > 0 {
		elapsed = p.last.Elapsed + now.Sub(p.lastAt)
	}
	// Tenths of a second would make every redraw differ.
	text := event.Age(elapsed)
	if p.last.Limit > 0 {
		text += " of " + event.Duration(p.last.Limit)
	}
	return text
}

func (r *Renderer) findPhase(name string) *phaseView {
	for _, p := range r.phases {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (r *Renderer) phase(e event.Phase, now time.Time) {
	if r.out.tty {
		r.out.redraw = true
	}
	p := r.findPhase(e.Name)
	if e.State == event.Started {
		if p == nil {
			p = &phaseView{name: e.Name}
			r.phases = append(r.phases, p)
		}
		*p = phaseView{name: e.Name, begun: true, started: now.Add(-e.Elapsed), shownAt: now.Add(statusFirst - statusEvery)}
		if r.mode == Plain && e.Detail != "" {
			r.control(appendIndented(r.clock(), e.Name+": "+e.Detail, "  "))
		}
		r.err.kick() // the goroutine must set its timer
		return
	}
	elapsed := e.Elapsed
	if elapsed == 0 && p != nil {
		elapsed = now.Sub(p.started)
	}
	r.phases = slices.DeleteFunc(r.phases, func(q *phaseView) bool { return q == p })
	if r.mode == Quiet {
		return
	}
	detail := e.Detail
	switch {
	case e.State == event.Failed && detail == "":
		detail = "failed"
	case e.State == event.Failed:
		detail = "failed: " + detail
	case detail == "":
		detail = "done"
	}
	r.control(appendIndented(r.clock(), fmt.Sprintf("%s: %s (%s)", e.Name, detail, event.Duration(elapsed)), "  "))
}

func (r *Renderer) progress(e event.Progress, now time.Time) {
	p := r.findPhase(e.Phase)
	if p == nil {
		p = &phaseView{name: e.Phase, started: now.Add(-e.Elapsed), shownAt: now.Add(statusFirst - statusEvery)}
		r.phases = append(r.phases, p)
	}
	p.last, p.lastAt = e, now
	r.changed(p)
	if !p.begun && e.Total > 0 && e.Done >= e.Total { // no other event ends it
		r.phases = slices.DeleteFunc(r.phases, func(q *phaseView) bool { return q == p })
	}
}

// training shows the newest step in the phase "run".
func (r *Renderer) training(e event.Training) {
	p := r.findPhase("run")
	if p == nil {
		return
	}
	p.step = e.String()
	r.changed(p)
}

// changed requests a redraw of p's status line. Every worker sends progress, so it wakes
// the goroutine only for the first change since the last line.
func (r *Renderer) changed(p *phaseView) {
	if r.out.tty && !r.out.redraw {
		r.out.redraw = true
		r.out.kick()
	} else if r.mode == Plain && !p.changed {
		p.changed = true
		r.err.kick()
	}
}

// status returns the line to draw on a terminal, cut to its width; "" means none. The
// caller holds r.mu.
func (r *Renderer) status(now time.Time) string {
	if r.closed || len(r.phases) == 0 {
		return ""
	}
	p := r.phases[len(r.phases)-1]
	text := strings.TrimSuffix(p.describe(), ": ")
	if p.last.All > 0 {
		text = bar(p.last.Bytes, p.last.All) + " " + text
	}
	if silence := p.silence(now); silence != "" {
		text += silence // the time of a phase that is not heard of says nothing
	} else if strings.Contains(text, ": ") {
		text += ", " + p.times(now)
	} else {
		text += ": " + p.times(now)
	}
	if r.failed > 0 {
		text += fmt.Sprintf(", %d failed", r.failed)
	}
	if len(r.tail) > 0 {
		text += " │ " + string(r.tail)
	}
	text = string(appendVisible(nil, []byte(strings.ReplaceAll(text, "\n", " "))))
	// The last column stays free: some terminals wrap when it is filled.
	return cutToWidth(text, r.o.Width()-1)
}

// tick does what is due at now for lane l and returns when to call it again; zero means
// never. The caller holds r.mu.
func (r *Renderer) tick(l *lane, now time.Time) (next time.Time) {
	if l == r.out && !r.fold.empty() {
		r.flushFold(now)
		if !r.fold.empty() {
			next = r.fold.entries[0].at.Add(r.fold.window)
		}
	}
	if l.again {
		l.redraw, l.again = true, false
	}
	if l != r.err || len(r.phases) == 0 {
		return next
	}
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	switch {
	case l.tty:
		if at := l.drew.Add(time.Second); at.After(now) {
			sooner(at)
		} else {
			l.redraw = true
		}
	case r.mode == Plain:
		p := r.phases[len(r.phases)-1]
		text := p.describe()
		p.changed = p.changed && text != p.shown
		at := p.shownAt.Add(statusSame)
		if p.changed || p.shown == "" {
			at = p.shownAt.Add(statusEvery)
		}
		if at.After(now) {
			sooner(at)
			break
		}
		p.shown, p.shownAt, p.changed = text, now, false
		r.control(p.line(r.clock(), now))
	}
	return next
}

// barWidth is the number of columns of a bar, without its brackets.
const barWidth = 20

// bar draws which part of all is done.
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
