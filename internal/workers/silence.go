package workers

import (
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/tpu"
)

// A Silence says which workers are silent, and since when.
type Silence struct {
	who   string // names of the workers, folded; "": no worker is silent
	since time.Time
}

// Fields returns the silence in the form of event.Progress.
func (s Silence) Fields() (who string, since *time.Time) {
	if s.who == "" {
		return "", nil
	}
	return s.who, &s.since
}

// silenceFrom is how long a worker must be silent before that is shown. A connection that
// breaks and is restored at once is not shown.
const silenceFrom = 10 * time.Second

// silenceOf folds the workers that are silent at the time now. heard[i] is when silent worker
// ids[i] last sent something. It is zero if the worker answers or the phase does not wait for
// it. open is how many workers the phase still waits for.
func silenceOf(ids []tpu.WorkerID, heard []time.Time, open int, now time.Time) Silence {
	var silent []tpu.WorkerID
	var last time.Time
	for i, at := range heard {
		if at.IsZero() || now.Sub(at) < silenceFrom {
			continue
		}
		silent = append(silent, ids[i])
		if at.After(last) {
			last = at
		}
	}
	s := Silence{who: tpu.Fold(silent), since: last.UTC()}
	if len(silent) > 1 && len(silent) == open {
		s.who = "any worker"
	}
	return s
}

// Silence returns which workers are silent at the time now, among those for which waited
// returns true. A worker that was never reached is silent since begin.
func (t *Connected) Silence(waited func(i int) bool, begin, now time.Time) Silence {
	heard, open := make([]time.Time, len(t.IDs)), 0
	for i, conn := range t.Conns {
		if conn == nil || !waited(i) {
			continue
		}
		open++
		if since, silent := conn.Silence(); silent {
			heard[i] = since
			if since.IsZero() {
				heard[i] = begin
			}
		}
	}
	return silenceOf(t.IDs, heard, open, now)
}

// A count counts the workers that have finished a phase. It is safe for concurrent use.
type count struct {
	mu   sync.Mutex // guards the fields below
	over []bool     // by worker
	done int
}

// finish records that worker i has finished the phase. It calls show with the number of
// workers that have. No other finish runs meanwhile.
func (c *count) finish(i int, show func(done int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over[i] = true
	c.done++
	show(c.done)
}

// waits reports whether the phase waits for worker i.
func (c *count) waits(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.over[i]
}

// HeardSink adds the names of silent workers to the Progress of a phase. When the silent
// workers change, it emits the last Progress again. It is safe for concurrent use.
type HeardSink struct {
	event.Sink
	Waits func(i int) bool // reports whether the phase still waits for worker i; may take locks that are also held during Emit

	mu     sync.Mutex
	last   event.Progress // the progress shown last; without a phase: none
	silent Silence
}

// Emit emits e.
func (s *HeardSink) Emit(e event.Event) {
	p, ok := e.(event.Progress)
	if !ok {
		s.Sink.Emit(e)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = p
	s.show()
}

// hear emits the last Progress again if the silent workers have changed.
func (s *HeardSink) hear(now Silence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now == s.silent {
		return
	}
	if s.silent = now; s.last.Phase != "" {
		s.show()
	}
}

func (s *HeardSink) show() {
	p := s.last
	p.Silent, p.SilentSince = s.silent.Fields()
	s.Sink.Emit(p)
}

// Listen makes s check every second which workers are silent, until the caller calls over.
func (t *Connected) Listen(s *HeardSink) (over func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	begin := gcp.SystemClock.Now()
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-gcp.SystemClock.After(time.Second): // connections use this clock for the times at which something came, too
				s.hear(t.Silence(s.Waits, begin, gcp.SystemClock.Now()))
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}
