package ui

import (
	"fmt"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// A textView shows a run to people. screen.mu guards its fields.
type textView struct {
	*screen
	fold    foldWindow
	phases  phases
	tail    []byte // the unfinished line of s0w0, for the status line
	endings endings
}

func newTextView(s *screen) *textView {
	v := &textView{screen: s}
	v.fold.init(foldAll)
	if s.o.Stream == First {
		v.fold.window = foldErrors
	}
	return v
}

func (v *textView) emit(e event.Event, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	switch e := e.(type) {
	case event.Note:
		v.note(e)
	case event.Phase:
		v.phase(e, now)
	case event.Progress:
		v.changed(v.phases.progress(e, now))
	case event.Training:
		v.changed(v.phases.step(e))
	case event.Stall:
		v.stall(e)
	case event.Request:
		v.note(event.Note{Level: event.Info, Text: e.Text})
	case event.State:
		if v.mode != Quiet {
			v.control(stateLine(v.clock(), e))
		}
	case event.WorkerDone:
		v.workerDone(e)
	case event.Attempt:
		v.endings = endings{} // the summary is only about the last attempt
	case event.AttemptEnd:
		v.attemptEnd(e)
	case event.Result:
		v.out.put(toStdout, appendVisibleText(nil, endLine(e.Text)))
	case event.Summary:
		v.summary(e)
	}
}

func (v *textView) output(s *stream, data []byte) {
	if v.o.Stream == First && !s.first {
		data = s.sift(data)
	}
	s.split(data)
	v.show(s)
}

func (v *textView) finish(s *stream) {
	if len(s.partial) > 0 {
		s.endLine(nil)
	}
	v.show(s)
}

func (v *textView) close() {
	v.flushFold(time.Time{})
	v.phases = nil
}

func (v *textView) dropped(n int, _ time.Time) (dest, []byte) {
	return toStderr, v.warning(fmt.Sprintf("view fell behind, %d bytes not shown; the log files are complete", n))
}

func (v *textView) note(n event.Note) {
	if n.Level == event.Debug && !v.o.Debug || n.Level == event.Info && v.mode == Quiet {
		return
	}
	var b []byte
	if n.Level == event.Warn {
		b = v.clock()
	}
	b = appendMessage(b, v.paint(), string(n.Level), n.Text)
	if n.Hint != "" {
		b = appendMessage(b, v.paint(), "hint", n.Hint)
	}
	v.control(b)
}

func (v *textView) stall(s event.Stall) {
	level := event.Warn
	if s.Ended != nil {
		level = event.Info
	}
	v.note(event.Note{Level: level, Text: s.Text, Hint: s.Hint})
}

func (v *textView) workerDone(e event.WorkerDone) {
	// Report only the first failure at once. There may be 2048 workers, and the summary
	// folds the other failures.
	if v.endings.add(e) && v.mode != Quiet {
		id := tpu.WorkerID{Slice: e.Slice, Worker: e.Worker}
		v.flushFold(time.Time{}) // so that the last lines of the worker come before the warning
		v.control(v.warning(id.String() + ": " + ending(e)))
	}
}

// attemptEnd reports why an attempt ended, if another attempt follows. The summary has the
// end of the last attempt.
func (v *textView) attemptEnd(e event.AttemptEnd) {
	if e.Again {
		v.flushFold(time.Time{})
		v.control(v.warning(attemptText(e)))
	}
}

func (v *textView) summary(s event.Summary) {
	v.flushFold(time.Time{})
	if v.mode == Quiet && s.OK {
		return
	}
	columns := 0
	if v.mode == TTY {
		columns = v.o.Width()
	}
	v.err.put(toStderr, appendSummary(nil, v.paint(), s, v.endings.all, columns))
	lines := appendVerdict(nil, v.paint(), s)
	v.err.put(toStderr, lines)
	v.verdict = verdict{said: verdictText(s), lines: lines}
}

// show adds the lines of the split chunk to the view. The caller holds s.mu.
func (v *textView) show(s *stream) {
	if v.o.Stream == First && !s.first {
		s.keepErrors()
	}
	tail := v.mode == TTY && s.first && v.o.Stream != None
	if len(s.lineEnds) == 0 && !(tail && (len(s.partial) > 0 || s.tailShown)) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	if tail {
		v.tail = appendVisible(v.tail[:0], s.partial[:min(len(s.partial), 256)])
		s.tailShown = len(v.tail) > 0
		v.out.redraw = true
		if len(s.lineEnds) == 0 {
			v.out.kick()
		}
	}
	if v.o.Stream == First && s.first {
		v.showFirst(s)
		return
	}
	idle := v.fold.empty()
	v.foldLines(s, false)
	if idle {
		v.out.kick()
	}
}

// foldLines adds the lines of the chunk to the fold window.
func (v *textView) foldLines(s *stream, hidden bool) {
	now := v.o.Now()
	start := 0
	for _, end := range s.lineEnds {
		if v.fold.full() {
			v.flushFold(time.Time{})
		}
		v.fold.add(s, s.lines[start:end], now, hidden)
		start = end
	}
}

// lineTime is the format of the time at the beginning of a line.
const lineTime = "2006-01-02T15:04:05.000Z07:00 "

// stamp returns the lines of the chunk, each with the time of its arrival if times are
// shown.
func (v *textView) stamp(s *stream) []byte {
	if !v.o.Timestamps {
		return s.lines
	}
	now := v.o.Now()
	s.stamped = s.stamped[:0]
	start := 0
	for _, end := range s.lineEnds {
		s.stamped = now.AppendFormat(s.stamped, lineTime)
		s.stamped = append(s.stamped, s.lines[start:end]...)
		start = end
	}
	return s.stamped
}

// showFirst shows s0w0's lines unchanged. Lines that look like an error also enter the fold
// window, hidden, so that equal lines of other workers are not shown again.
func (v *textView) showFirst(s *stream) {
	shown := v.stamp(s)
	if !v.out.room(s, len(shown)) {
		v.out.dropped += len(s.lines)
		return
	}
	v.out.put(toStdout, shown)
	if count, _ := v.streams.size(); count == 1 {
		return
	}
	s.keepErrors()
	v.foldLines(s, true)
}

// flushFold shows the entries whose time in the window is over at now, or all entries if
// now is zero. The caller holds screen.mu.
func (v *textView) flushFold(now time.Time) {
	f := &v.fold
	_, width := v.streams.size()
	n := 0
	for ; n < len(f.entries); n++ {
		e := &f.entries[n]
		if !now.IsZero() && now.Sub(e.at) < f.window {
			break
		}
		if e.hidden {
			continue
		}
		tag := f.tagOf(e)
		line := f.text[e.start:e.end]
		size := max(len(tag), width) + len(" │ ") + len(line)
		if v.o.Timestamps {
			size += len(lineTime)
		}
		if !v.out.room(f.members[e.head].s, size) {
			v.out.dropped += len(line) * int(e.count)
			continue
		}
		v.putTagged(e.at, tag, width, line)
	}
	f.drop(n)
}

func (v *textView) putTagged(at time.Time, tag string, width int, line []byte) {
	l := v.out
	var buf [128]byte
	p := buf[:0]
	if v.o.Timestamps {
		p = at.AppendFormat(p, lineTime)
	}
	p = append(p, v.paint().start(dim)...)
	p = append(p, tag...)
	for n := len(tag); n < width; n++ {
		p = append(p, ' ')
	}
	p = append(p, " │"...)
	p = append(p, v.paint().end()...)
	p = append(p, ' ')
	l.put(toStdout, p)
	l.put(toStdout, line)
}

func (v *textView) phase(e event.Phase, now time.Time) {
	if v.out.tty {
		v.out.redraw = true
	}
	if e.State == event.Started {
		v.phases.begin(e, now)
		if v.mode == Plain && e.Detail != "" {
			v.control(appendIndented(v.clock(), e.Name+": "+e.Detail, "  "))
		}
		v.err.kick() // so that the goroutine sets its timer
		return
	}
	elapsed := v.phases.end(e, now)
	if v.mode != Quiet {
		v.control(appendIndented(v.clock(), phaseEnd(e, elapsed), "  "))
	}
}

// changed requests a redraw of the status line of p, which may be nil. Every worker sends
// progress, so it wakes the goroutine only for the first change since the last line.
func (v *textView) changed(p *phaseView) {
	switch {
	case p == nil:
	case v.out.tty && !v.out.redraw:
		v.out.redraw = true
		v.out.kick()
	case v.mode == Plain && !p.changed:
		p.changed = true
		v.err.kick()
	}
}

func (v *textView) status(now time.Time) string {
	p := v.phases.newest()
	if v.closed || p == nil {
		return ""
	}
	text := p.status(now)
	if v.endings.failed > 0 {
		text += fmt.Sprintf(", %d failed", v.endings.failed)
	}
	if len(v.tail) > 0 {
		text += " │ " + string(v.tail)
	}
	text = string(appendVisible(nil, []byte(strings.ReplaceAll(text, "\n", " "))))
	// The last column stays free: some terminals wrap when it is filled.
	return cutToWidth(text, v.o.Width()-1)
}

func (v *textView) tick(l *lane, now time.Time) (next time.Time) {
	if l == v.out && !v.fold.empty() {
		v.flushFold(now)
		if !v.fold.empty() {
			next = v.fold.entries[0].at.Add(v.fold.window)
		}
	}
	if l.again {
		l.redraw, l.again = true, false
	}
	p := v.phases.newest()
	if l != v.err || p == nil {
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
	case v.mode == Plain:
		if at, due := p.plainLine(now); due {
			v.control(p.line(v.clock(), now))
		} else {
			sooner(at)
		}
	}
	return next
}
