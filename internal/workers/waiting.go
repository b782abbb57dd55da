package workers

import (
	"time"

	"multihost/internal/event"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// A Waiting shows, at most ten times a second, for which workers a phase still waits.
type Waiting struct {
	v     *stage.Invocation
	phase string
	ids   []tpu.WorkerID
	Heard *HeardSink
	begin time.Time

	count // its mu also guards the fields below
	shown time.Time
	bytes int64 // copied so far
	all   int64
}

// NewWaiting begins a phase that waits for every worker, and shows it.
func NewWaiting(v *stage.Invocation, phase string, ids []tpu.WorkerID) *Waiting {
	w := &Waiting{v: v, phase: phase, ids: ids, count: count{over: make([]bool, len(ids))}, begin: v.Clock.Now()}
	w.Heard = &HeardSink{Sink: v.Sink, Waits: w.waits}
	w.Heard.Emit(event.Progress{Phase: phase, Total: len(ids), Waiting: tpu.Fold(ids)})
	return w
}

// Done says that worker ids[i] is ready.
func (w *Waiting) Done(i int) {
	w.finish(i, func(done int) { w.show(done == len(w.ids)) })
}

// Copied adds n to the number of copied bytes.
func (w *Waiting) Copied(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes += n
	w.show(false)
}

// Expected adds n to the number of bytes to copy.
func (w *Waiting) Expected(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all += n
}

// show emits the progress, at most ten times a second unless now is true. The caller holds
// mu.
func (w *Waiting) show(now bool) {
	at := w.v.Clock.Now()
	if !now && at.Sub(w.shown) < 100*time.Millisecond {
		return
	}
	w.shown = at
	var open []tpu.WorkerID
	for i, id := range w.ids {
		if !w.over[i] {
			open = append(open, id)
		}
	}
	e := event.Progress{Phase: w.phase, Done: w.done, Total: len(w.ids), Waiting: tpu.Fold(open), Bytes: w.bytes, All: max(w.all, w.bytes)}
	if seconds := at.Sub(w.begin).Seconds(); w.bytes > 0 && seconds > 1 {
		e.Detail = event.Bytes(int64(float64(w.bytes)/seconds)) + "/s"
	}
	w.Heard.Emit(e)
}
