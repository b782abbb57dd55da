package ui

import (
	"io"
	"reflect"
	"time"
)

// A dest is one of the two standard streams.
type dest uint8

const (
	toStdout dest = iota
	toStderr
)

func (d dest) String() string {
	if d == toStdout {
		return "standard output"
	}
	return "standard error"
}

// A segment is a part of a lane's queue that goes to one destination.
type segment struct {
	to  dest
	end int
}

// A lane is a queue of bytes and the goroutine that writes them. screen.mu guards the
// queue. All else belongs to the goroutine.
type lane struct {
	r    *Renderer
	tty  bool
	wake chan struct{}
	pen  chan struct{} // whoever writes holds it: the goroutine, or a question

	queue         []byte
	segments      []segment
	generation    uint64 // changes when the goroutine takes the queue
	outputQueued  int
	controlQueued int
	dropped       int  // number of bytes not shown since the last notice
	redraw        bool // the status changed

	spare     []byte
	spareSegs []segment
	wrote     time.Time
	drew      time.Time
	status    string // what the screen shows now
	inLine    bool   // the cursor is behind data without a newline at its end
	again     bool   // a redraw was postponed
	gone      [2]bool
}

func newLane(r *Renderer, tty bool) *lane {
	return &lane{r: r, tty: tty, wake: make(chan struct{}, 1), pen: make(chan struct{}, 1), generation: 1}
}

func (l *lane) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// put puts bytes for one destination into the queue. The caller holds screen.mu.
func (l *lane) put(to dest, b []byte) {
	if len(b) == 0 {
		return
	}
	if to == toStderr || l.r.out == l.r.err { // the verdict is on standard error
		l.r.verdict.buried = l.r.verdict.said != ""
	}
	wasEmpty := len(l.queue) == 0
	before := len(l.queue)
	l.queue = append(l.queue, b...)
	if n := len(l.segments); n > 0 && l.segments[n-1].to == to {
		l.segments[n-1].end = len(l.queue)
	} else {
		l.segments = append(l.segments, segment{to, len(l.queue)})
	}
	if wasEmpty || before < batchBytes && len(l.queue) >= batchBytes {
		l.kick()
	}
}

// control puts a message into the queue, unless too many wait already. A run of any size
// has few messages; the limit is for a flood of retries on a terminal that has stood still
// for hours. The caller holds screen.mu.
func (l *lane) control(to dest, b []byte) {
	if l.controlQueued+len(b) > controlBytes {
		l.dropped += len(b)
		return
	}
	l.controlQueued += len(b)
	l.put(to, b)
}

// room reports whether the queue has room for n more bytes of the output of s. If so, it
// counts these bytes. The caller holds screen.mu.
func (l *lane) room(s *stream, n int) bool {
	if s.generation != l.generation {
		s.generation, s.queued = l.generation, 0
	}
	// Any worker may use the first half of the room, so that a burst of one worker is shown
	// whole. All workers share the second half, so that the burst does not silence the
	// others.
	share := streamMost
	if l.outputQueued+n > viewBytes/2 {
		workers, _ := l.r.streams.size()
		share = max(viewBytes/2/max(workers, 1), streamLeast)
	}
	if s.queued+n > share || l.outputQueued+n > viewBytes {
		return false
	}
	s.queued += n
	l.outputQueued += n
	return true
}

// loop writes the queue. It ends when the Renderer is closed and the queue is empty.
func (l *lane) loop() {
	r := l.r
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		l.pen <- struct{}{}
		r.mu.Lock()
		now := r.o.Now()
		next := r.view.tick(l, now)
		at, due := l.due(now)
		if !due {
			stop := r.closed && len(l.queue) == 0 && l.dropped == 0
			r.mu.Unlock()
			if stop {
				l.erase()
				<-l.pen
				return
			}
			<-l.pen
			if !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
			wait := time.Hour
			if !next.IsZero() {
				wait = max(next.Sub(now), time.Millisecond)
			}
			timer.Reset(wait)
			select {
			case <-l.wake:
			case <-timer.C:
			}
			continue
		}
		l.notice(now)
		buf, segs := l.queue, l.segments
		l.queue, l.segments = l.spare[:0], l.spareSegs[:0]
		l.generation++
		l.outputQueued, l.controlQueued = 0, 0
		status := ""
		if l.tty {
			status = r.view.status(now)
		}
		l.redraw = false
		r.mu.Unlock()

		l.write(buf, segs, status, now)
		l.wrote = r.o.Now()
		<-l.pen
		// Free the memory of a large burst: the run may last for days.
		if cap(buf) > 2*batchBytes && len(buf) < cap(buf)/4 {
			buf = nil
		}
		l.spare, l.spareSegs = buf, segs
	}
}

// drain erases the status line and writes what is in the queue now. The caller holds the
// pen.
func (l *lane) drain() {
	l.erase()
	l.r.mu.Lock()
	buf, segs := l.queue, l.segments
	l.queue, l.segments = nil, nil
	l.generation++
	l.outputQueued, l.controlQueued = 0, 0
	l.r.mu.Unlock()
	if len(segs) > 0 {
		l.endData()
	}
	start := 0
	for _, s := range segs {
		l.send(s.to, buf[start:s.end])
		start = s.end
	}
}

// due reports whether there is something to write now. If not, at is when to write what
// waits, or zero if nothing waits. The caller holds screen.mu.
func (l *lane) due(now time.Time) (at time.Time, due bool) {
	pending := len(l.queue) > 0 || l.dropped > 0
	switch {
	case pending && (l.r.closed || len(l.queue) >= batchBytes):
		return now, true
	case pending:
		pause := batchEvery
		if l.status != "" {
			pause = redrawEvery
		}
		at = l.wrote.Add(pause)
	case l.redraw && l.tty && !l.r.closed:
		at = l.drew.Add(redrawEvery)
	default:
		return time.Time{}, false
	}
	return at, !at.After(now)
}

// notice adds a line about dropped output to the end of the queue, if output was dropped.
// The caller holds screen.mu.
func (l *lane) notice(now time.Time) {
	if l.dropped == 0 {
		return
	}
	n := l.dropped
	l.dropped = 0
	l.put(l.r.view.dropped(n, now))
}

// write writes one batch. Neighbouring bytes for the same destination are one write.
func (l *lane) write(buf []byte, segs []segment, status string, now time.Time) {
	if len(segs) > 0 {
		l.erase()
		l.endData()
	}
	start := 0
	for _, s := range segs {
		l.send(s.to, buf[start:s.end])
		start = s.end
	}
	if !l.tty {
		return
	}
	if l.inLine {
		status = ""
	}
	if now.Sub(l.drew) < redrawEvery {
		l.again = status != l.status
		return
	}
	if status != l.status {
		l.erase()
		if status != "" {
			l.send(toStderr, []byte(status))
		}
		l.status = status
	}
	l.drew = now
}

func (l *lane) erase() {
	if l.status != "" {
		l.send(toStderr, []byte("\r\x1b[K"))
		l.status = ""
	}
}

// endData starts a new line before a message if data and messages share a terminal.
// Otherwise it adds no newline, because data in a file or a pipe must not change.
func (l *lane) endData() {
	if l.inLine && l.tty {
		l.send(toStderr, []byte("\n"))
		l.inLine = false
	}
}

func (l *lane) send(to dest, p []byte) {
	if l.gone[to] {
		return
	}
	w := l.r.o.Stdout
	if to == toStderr {
		w = l.r.o.Stderr
	}
	if _, err := writeAll(w, p); err != nil {
		l.gone[to] = true
		l.r.writeFailed(to, err)
	}
}

// sameWriter compares two writers. Unlike ==, it does not panic for types that cannot be
// compared.
func sameWriter(a, b io.Writer) bool {
	t := reflect.TypeOf(a)
	return t != nil && t == reflect.TypeOf(b) && t.Comparable() && a == b
}
