package logs

import (
	"bytes"
	"container/heap"
	"context"
	"sync"
	"time"

	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// A logText takes the bytes of one log from an offset on, and passes them on. If the times
// of lines matter, it adds the time of each line.
type logText struct {
	offset int64 // offset of the next byte
	lines  bool  // pass on each line alone
	skip   bool  // omit the rest of a line
	emit   func(at time.Time, p []byte) error

	arrivals *record.Arrivals
	live     int64 // offset from which the lines have the time of clock
	now      time.Time
	clock    func() time.Time

	inLine  bool
	at      time.Time // time of the line
	untimed int       // number of lines with the time of their fetch
}

func (t *logText) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		piece, end := p, false
		if t.lines || t.skip {
			if i := bytes.IndexByte(p, '\n'); i >= 0 {
				piece, end = p[:i+1], true
			}
		}
		if !t.skip {
			if t.lines && !t.inLine {
				t.stamp()
			}
			if err := t.emit(t.at, piece); err != nil {
				return n - len(p), err
			}
			t.inLine = t.lines && !end
		} else if end {
			t.skip = false
		}
		t.offset += int64(len(piece))
		p = p[len(piece):]
	}
	return n, nil
}

// stamp sets at to the time of the line that begins at offset. That is the time when its first
// byte arrived, if it is known.
func (t *logText) stamp() {
	switch {
	case t.offset < t.arrivals.Known:
		t.at = t.arrivals.At(t.offset, t.now)
		if t.offset < t.arrivals.Unknown() {
			t.untimed++
		}
	case t.offset >= t.live:
		t.at = t.clock()
	default:
		t.at = t.now
		t.untimed++
	}
}

// longestHeld limits the bytes of an unfinished line in a lineHold.
const longestHeld = 64 << 10

// A lineHold passes on whole lines.
type lineHold struct {
	w    interface{ Write([]byte) (int, error) }
	held []byte
}

func (h *lineHold) Write(p []byte) (int, error) {
	h.held = append(h.held, p...)
	whole := bytes.LastIndexByte(h.held, '\n') + 1
	if len(h.held)-whole > longestHeld {
		whole = len(h.held)
	}
	if whole > 0 {
		if _, err := h.w.Write(h.held[:whole]); err != nil {
			return 0, err
		}
		h.held = append(h.held[:0], h.held[whole:]...)
	}
	return len(p), nil
}

// rest passes the remaining bytes on.
func (h *lineHold) rest() error {
	_, err := h.w.Write(h.held)
	h.held = nil
	return err
}

// A mergedLine is a line of the merged logs, or a part of a long line.
type mergedLine struct {
	at  time.Time
	p   []byte
	end bool // p ends the line
}

// linesAhead is how many lines of each log are read ahead of the merged text.
const linesAhead = 16

// merge writes all logs in the order of the times of their lines. Lines with the same time
// are in the order of the workers.
func (l *logReader) merge(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	errs := make([]error, len(l.logs))
	ids := make([]tpu.WorkerID, len(l.logs))
	m := &merger{l: l, from: make([]chan mergedLine, len(l.logs)), heads: make([]mergedLine, len(l.logs))}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i, one := range l.logs {
		ids[i], m.from[i] = one.id, make(chan mergedLine, linesAhead)
		wg.Go(func() {
			defer close(m.from[i])
			direct := one.text.emit
			one.text.emit = func(at time.Time, p []byte) error {
				select {
				case m.from[i] <- mergedLine{at, bytes.Clone(p), p[len(p)-1] == '\n'}:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			errs[i] = one.copy(ctx, one.text)
			one.text.emit = direct
		})
	}
	err := m.run()
	if err == nil {
		err = l.flush()
	}
	cancel()
	wg.Wait()
	if err != nil {
		return err
	}
	return stage.WorkersError(stage.Follow, ids, errs)
}

// A merger merges logs. order is a heap of the logs that have a next line.
type merger struct {
	l     *logReader
	from  []chan mergedLine
	heads []mergedLine
	order []int // indices of logs
}

func (m *merger) Len() int      { return len(m.order) }
func (m *merger) Swap(i, j int) { m.order[i], m.order[j] = m.order[j], m.order[i] }
func (m *merger) Push(any)      {}
func (m *merger) Pop() any {
	m.order = m.order[:len(m.order)-1]
	return nil
}

func (m *merger) Less(i, j int) bool {
	a, b := m.order[i], m.order[j]
	if c := m.heads[a].at.Compare(m.heads[b].at); c != 0 {
		return c < 0
	}
	return a < b
}

// next waits for the next line of log i. Meanwhile it shows the text that is already
// written.
func (m *merger) next(i int) (line mergedLine, ok bool, err error) {
	select {
	case line, ok = <-m.from[i]:
	default:
		if err = m.l.flush(); err == nil {
			line, ok = <-m.from[i]
		}
	}
	return line, ok, err
}

func (m *merger) run() error {
	for i := range m.from {
		line, ok, err := m.next(i)
		if err != nil {
			return err
		}
		if ok {
			m.heads[i], m.order = line, append(m.order, i)
		}
	}
	heap.Init(m)
	for len(m.order) > 0 {
		i := m.order[0]
		for ok := true; ok; {
			line := m.heads[i]
			if err := m.l.emit(m.l.logs[i].id, line.at, line.p); err != nil {
				return err
			}
			var err error
			if m.heads[i], ok, err = m.next(i); err != nil {
				return err
			}
			if !ok {
				heap.Pop(m) // removes log i, which is the first
			} else if line.end {
				break
			}
		}
		if len(m.order) > 0 {
			heap.Fix(m, 0)
		}
	}
	return nil
}
