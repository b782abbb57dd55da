package ui

import (
	"bytes"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// maxLine is how many bytes of a line the view shows. It also limits what we hold for a
// worker that never ends its line.
const maxLine = 8 << 10

// A stream is the output of one worker on its way to the view. It splits the output into
// lines, wherever the chunks begin and end.
type stream struct {
	id    tpu.WorkerID
	tag   string
	first bool

	mu        sync.Mutex // held while a chunk is processed; taken before Renderer.mu
	partial   []byte     // raw bytes of the unfinished line, at most maxLine
	cut       int        // bytes of it beyond maxLine
	returned  bool       // the last byte was \r: it ends a CRLF or restarts the line
	trace     int        // lines of a traceback that may still follow
	tailShown bool
	scratch   // for the chunk being processed
	lent      *scratch

	// Guarded by Renderer.mu.
	generation uint64
	queued     int
	lastEntry  uint64 // fold window: 1 + sequence number of the last entry joined
}

// A scratch is the memory to process one chunk. A stream borrows it only while it works:
// with one scratch each, 2048 streams would hold 2048 chunks.
type scratch struct {
	stamped  []byte // lines, each with the time of its arrival
	lines    []byte // visible lines, each with its \n
	lineEnds []int
}

func (r *Renderer) borrow(s *stream) {
	if v, ok := r.scratches.Get().(*scratch); ok {
		s.scratch = *v
		s.lent = v
	} else {
		s.lent = new(scratch)
	}
	s.lines, s.lineEnds = s.lines[:0], s.lineEnds[:0]
}

func (r *Renderer) giveBack(s *stream) {
	*s.lent = s.scratch
	r.scratches.Put(s.lent)
	s.scratch, s.lent = scratch{}, nil
}

func (r *Renderer) stream(id tpu.WorkerID) *stream {
	if v, ok := r.streams.Load(id); ok {
		return v.(*stream)
	}
	s := &stream{id: id, tag: id.String(), first: id == tpu.WorkerID{}}
	v, loaded := r.streams.LoadOrStore(id, s)
	if !loaded {
		r.mu.Lock()
		r.nstream++
		r.width = max(r.width, len(s.tag))
		r.mu.Unlock()
	}
	return v.(*stream)
}

func (r *Renderer) output(e event.Output) {
	if r.mode == Quiet || r.o.Stream == None || len(e.Data) == 0 {
		return
	}
	id := tpu.WorkerID{Slice: e.Slice, Worker: e.Worker}
	if r.mode == JSON {
		if r.o.Stream == All || id == (tpu.WorkerID{}) {
			s := r.stream(id)
			s.mu.Lock()
			r.borrow(s)
			r.outputJSON(s, e.Data)
			r.giveBack(s)
			s.mu.Unlock()
		}
		return
	}
	s := r.stream(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r.borrow(s)
	defer r.giveBack(s)
	data := e.Data
	if r.o.Stream == First && !s.first {
		data = s.sift(data)
	}
	s.split(data)
	r.show(s)
}

// finishWorker shows the last line of a worker if it has no newline.
func (r *Renderer) finishWorker(id tpu.WorkerID) {
	if v, ok := r.streams.Load(id); ok {
		r.finish(v.(*stream))
	}
}

func (r *Renderer) finish(s *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.borrow(s)
	defer r.giveBack(s)
	if r.mode == JSON {
		r.finishJSON(s)
		return
	}
	if len(s.partial) > 0 {
		s.endLine(nil)
	}
	r.show(s)
}

// sift splits the whole lines of data, except those that keepErrors would drop: nearly
// all lines of a healthy run. Checking them in place costs a fraction of making them
// visible first. It returns the data that is left to split.
func (s *stream) sift(data []byte) []byte {
	// One search of the chunk saves a search of each line.
	if s.trace > 0 || bytes.IndexByte(data, '\r') >= 0 || isTraceback(data) {
		return data
	}
	if len(s.partial) > 0 || s.returned || s.cut > 0 {
		nl := bytes.IndexByte(data, '\n')
		if nl < 0 {
			return data
		}
		// Most chunks begin within a line.
		s.split(data[:nl+1])
		data = data[nl+1:]
		if isTraceback(s.lines) {
			return data
		}
	}
	for {
		nl := bytes.IndexByte(data, '\n')
		if nl < 0 {
			return data
		}
		if nl > maxLine || !isQuiet(data[:nl]) {
			s.endLine(data[:nl])
		}
		data = data[nl+1:]
	}
}

// isQuiet reports whether a line that is not part of a traceback does not look like an
// error, in its visible form either. A line whose visible form differs is not quiet,
// unless its glog level is I.
func isQuiet(line []byte) bool {
	return glogLevel(line) == 'I' || plainPrefix(line) == len(line) && !looksLikeError(line)
}

// split appends the visible form of the lines that data completes to s.lines.
func (s *stream) split(data []byte) {
	for len(data) > 0 {
		nl := bytes.IndexByte(data, '\n')
		if nl < 0 {
			s.hold(data)
			return
		}
		seg := data[:nl]
		data = data[nl+1:]
		seg = bytes.TrimRight(seg, "\r")
		if len(seg) > 0 && s.returned {
			s.restart()
		}
		// IndexByte first: it is several times as fast, and nearly always enough.
		if bytes.IndexByte(seg, '\r') >= 0 {
			s.restart()
			seg = seg[bytes.LastIndexByte(seg, '\r')+1:]
		}
		s.endLine(seg)
	}
}

// hold keeps the beginning of a line that data does not complete.
func (s *stream) hold(data []byte) {
	// The last \r may still turn out to be half of a CRLF, so the state before
	// it is kept until the next byte is known.
	text := bytes.TrimRight(data, "\r")
	if s.returned && len(text) > 0 {
		s.restart()
	}
	defer func(returned bool) { s.returned = returned }(len(text) < len(data))
	data = text
	if i := bytes.LastIndexByte(data, '\r'); i >= 0 {
		s.restart()
		data = data[i+1:]
	}
	n := min(len(data), maxLine-len(s.partial))
	s.partial = append(s.partial, data[:n]...)
	s.cut += len(data) - n
}

// restart drops the line so far, because what follows overwrites it.
func (s *stream) restart() {
	s.partial, s.cut, s.returned = s.partial[:0], 0, false
}

func (s *stream) endLine(rest []byte) {
	line, cut := rest, s.cut
	if len(s.partial) > 0 {
		n := min(len(rest), maxLine-len(s.partial))
		s.partial = append(s.partial, rest[:n]...)
		line, cut = s.partial, cut+len(rest)-n
	}
	if len(line) > maxLine {
		line, cut = line[:maxLine], cut+len(line)-maxLine
	}
	if cut > 0 {
		n := len(wholeRunes(line))
		line, cut = line[:n], cut+len(line)-n
	}
	s.lines = appendVisible(s.lines, line)
	if cut > 0 {
		s.lines = append(s.lines, "… (+"...)
		s.lines = strconv.AppendInt(s.lines, int64(cut), 10)
		s.lines = append(s.lines, " bytes)"...)
	}
	s.lines = append(s.lines, '\n')
	s.lineEnds = append(s.lineEnds, len(s.lines))
	s.restart()
}

// wholeRunes returns b without a rune that is cut off at its end.
func wholeRunes(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// show adds the lines of the chunk just split to the view. The caller holds s.mu.
func (r *Renderer) show(s *stream) {
	if r.o.Stream == First && !s.first {
		s.keepErrors()
	}
	tail := r.mode == TTY && s.first && r.o.Stream != None
	if len(s.lineEnds) == 0 && !(tail && (len(s.partial) > 0 || s.tailShown)) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if tail {
		r.tail = appendVisible(r.tail[:0], s.partial[:min(len(s.partial), 256)])
		s.tailShown = len(r.tail) > 0
		r.out.redraw = true
		if len(s.lineEnds) == 0 {
			r.out.kick()
		}
	}
	if r.o.Stream == First && s.first {
		r.showFirst(s)
		return
	}
	now := r.o.Now()
	start := 0
	idle := r.fold.empty()
	for _, end := range s.lineEnds {
		if r.fold.full() {
			r.flushFold(time.Time{})
		}
		r.fold.add(s, s.lines[start:end], now, false)
		start = end
	}
	if idle {
		r.out.kick()
	}
}

// lineTime is the form of the time at the beginning of a line.
const lineTime = "2006-01-02T15:04:05.000Z07:00 "

// stamp returns the lines of the chunk, with the time of their arrival if that is shown.
func (r *Renderer) stamp(s *stream) []byte {
	if !r.o.Timestamps {
		return s.lines
	}
	now := r.o.Now()
	s.stamped = s.stamped[:0]
	start := 0
	for _, end := range s.lineEnds {
		s.stamped = now.AppendFormat(s.stamped, lineTime)
		s.stamped = append(s.stamped, s.lines[start:end]...)
		start = end
	}
	return s.stamped
}

// showFirst shows s0w0's lines unchanged. Lines that look like an error also enter the
// fold window, hidden, so that an equal line of another worker is not shown as news.
func (r *Renderer) showFirst(s *stream) {
	shown := r.stamp(s)
	if !r.out.room(s, len(shown)) {
		r.out.dropped += len(s.lines)
		return
	}
	r.out.put(toStdout, shown)
	if r.nstream == 1 {
		return
	}
	s.keepErrors()
	now := r.o.Now()
	start := 0
	for _, end := range s.lineEnds {
		if r.fold.full() {
			r.flushFold(time.Time{})
		}
		r.fold.add(s, s.lines[start:end], now, true)
		start = end
	}
}

// traceLines limits how many lines count as part of one traceback.
const traceLines = 60

// keepErrors reduces the lines of the chunk to those that look like an error, and to the
// indented lines and the exception that follow the head of a traceback.
func (s *stream) keepErrors() {
	to, start, kept := 0, 0, s.lineEnds[:0]
	for _, end := range s.lineEnds {
		line := s.lines[start:end]
		start = end
		keep := false
		switch {
		case isTraceback(line):
			keep, s.trace = true, traceLines
		case s.trace > 0:
			keep = true
			s.trace--
			if c := line[0]; c != ' ' && c != '\t' {
				s.trace = 0
			}
		default:
			keep = looksLikeError(line)
		}
		if keep {
			to += copy(s.lines[to:], line)
			kept = append(kept, to)
		}
	}
	s.lines, s.lineEnds = s.lines[:to], kept
}
