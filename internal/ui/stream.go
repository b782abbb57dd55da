package ui

import (
	"bytes"
	"iter"
	"strconv"
	"sync"
	"unicode/utf8"

	"multihost/internal/suspect"
	"multihost/internal/tpu"
)

// maxLine is how many bytes of a line the view shows at most. It also limits what is kept
// of a line that never ends.
const maxLine = 8 << 10

// A stream is the output of one worker on its way to the view. It splits the output into
// lines, wherever the chunks begin and end.
type stream struct {
	id    tpu.WorkerID
	tag   string
	first bool

	mu        sync.Mutex // held while a chunk is processed; taken before screen.mu
	partial   []byte     // raw bytes of the unfinished line, at most maxLine
	cut       int        // number of bytes of the line beyond maxLine
	returned  bool       // the last byte was \r: a part of CRLF, or the beginning of the line again
	trace     int        // how many lines of a traceback may still follow
	tailShown bool
	scratch   // memory for the present chunk
	lent      *scratch

	// Guarded by screen.mu.
	generation uint64
	queued     int
	lastEntry  uint64 // for the fold window: 1 + sequence number of the last joined entry
}

// A scratch is the memory for processing one chunk. A stream borrows it only while it works.
// Otherwise 2048 streams would hold 2048 chunks.
type scratch struct {
	stamped  []byte // lines, each with the time of its arrival
	lines    []byte // visible lines, each with its \n
	lineEnds []int
}

// streams are the streams of all workers with output so far. They are safe for concurrent
// use.
type streams struct {
	byID      sync.Map  // tpu.WorkerID → *stream
	scratches sync.Pool // of *scratch

	mu    sync.Mutex
	count int
	width int // width of the widest tag so far
}

// of returns the stream of a worker, and makes it if there is none.
func (t *streams) of(id tpu.WorkerID) *stream {
	if s := t.known(id); s != nil {
		return s
	}
	s := &stream{id: id, tag: id.String(), first: id == tpu.WorkerID{}}
	v, loaded := t.byID.LoadOrStore(id, s)
	if !loaded {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.count++
		t.width = max(t.width, len(s.tag))
	}
	return v.(*stream)
}

// known returns the stream of a worker, or nil.
func (t *streams) known(id tpu.WorkerID) *stream {
	v, _ := t.byID.Load(id)
	s, _ := v.(*stream)
	return s
}

func (t *streams) all() iter.Seq[*stream] {
	return func(yield func(*stream) bool) {
		t.byID.Range(func(_, v any) bool { return yield(v.(*stream)) })
	}
}

// size returns the number of streams, and the width of the widest tag.
func (t *streams) size() (count, width int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count, t.width
}

// hold locks a stream and gives it memory for a chunk.
func (t *streams) hold(s *stream) {
	s.mu.Lock()
	if v, ok := t.scratches.Get().(*scratch); ok {
		s.scratch = *v
		s.lent = v
	} else {
		s.lent = new(scratch)
	}
	s.lines, s.lineEnds = s.lines[:0], s.lineEnds[:0]
}

// release takes the memory back and unlocks the stream.
func (t *streams) release(s *stream) {
	*s.lent = s.scratch
	t.scratches.Put(s.lent)
	s.scratch, s.lent = scratch{}, nil
	s.mu.Unlock()
}

// sift handles the whole lines of data, and returns the rest of data for split. It splits
// only lines that keepErrors might keep, which are almost none in a healthy run. Checking
// lines in place costs much less than making all of them visible first.
func (s *stream) sift(data []byte) []byte {
	// One search of the chunk replaces a search of each line.
	if s.trace > 0 || bytes.IndexByte(data, '\r') >= 0 || suspect.Traceback(data) {
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
		if suspect.Traceback(s.lines) {
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

// isQuiet reports whether a line outside of a traceback does not look like an error, neither
// raw nor in its visible form. If the two forms differ, only a line of glog level I is quiet.
func isQuiet(line []byte) bool {
	return suspect.Info(line) || plainPrefix(line) == len(line) && !suspect.Line(line)
}

// split appends to s.lines the visible form of the lines that data completes.
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
		// IndexByte first: it is several times as fast, and almost always enough.
		if bytes.IndexByte(seg, '\r') >= 0 {
			s.restart()
			seg = seg[bytes.LastIndexByte(seg, '\r')+1:]
		}
		s.endLine(seg)
	}
}

// hold keeps the beginning of a line that data does not complete.
func (s *stream) hold(data []byte) {
	// The last \r may be half of a CRLF, so keep the state before it until the next byte is
	// known.
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

// restart drops the line so far, because the next text overwrites it.
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

// wholeRunes returns b without a rune that is incomplete at its end.
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

// traceLines limits the lines of one traceback.
const traceLines = 60

// keepErrors keeps only those lines of the chunk that look like an error, and the indented
// lines and the exception after the first line of a traceback.
func (s *stream) keepErrors() {
	to, start, kept := 0, 0, s.lineEnds[:0]
	for _, end := range s.lineEnds {
		line := s.lines[start:end]
		start = end
		keep := false
		switch {
		case suspect.Traceback(line):
			keep, s.trace = true, traceLines
		case s.trace > 0:
			keep = true
			s.trace--
			if c := line[0]; c != ' ' && c != '\t' {
				s.trace = 0
			}
		default:
			keep = suspect.Line(line)
		}
		if keep {
			to += copy(s.lines[to:], line)
			kept = append(kept, to)
		}
	}
	s.lines, s.lineEnds = s.lines[:to], kept
}
