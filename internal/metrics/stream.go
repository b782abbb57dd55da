package metrics

import "bytes"

// keepBytes is how much of an unfinished line is kept until its end comes. A
// step line is a tenth of it; of a longer line the part from a possible marker
// on is kept.
const keepBytes = 4 << 10

// splitter finds step lines in a stream of bytes that is cut anywhere.
//
// Nearly all bytes of a training log are not step lines. Chunks are therefore
// not split into lines: the marker is searched for, and only lines that have it
// are looked at.
type splitter struct {
	pattern *Pattern // nil: MaxText's lines
	partial []byte   // beginning of the line that no chunk has ended yet
	step    func(Step)
	eval    func()
}

// hint is in every line that could matter but those of the evaluations of old,
// which have evalHead and evalTail. A rare letter that both have is what is
// searched for: once, and twice as fast as "ompleted " would be.
var (
	hint     = []byte("pleted ")
	evalHead = []byte("metrics after ste")
	evalTail = []byte("p: ")
)

// feed takes the next bytes of the stream and keeps no reference to them.
func (s *splitter) feed(data []byte) {
	if len(s.partial) > 0 {
		end := lineEnd(data)
		if end < 0 {
			s.keep(data)
			return
		}
		s.keep(data[:end])
		s.line(s.partial)
		s.partial = s.partial[:0]
		data = data[end+1:]
	}
	last := bytes.LastIndexByte(data, '\n')
	if back := bytes.LastIndexByte(data[last+1:], '\r'); back >= 0 {
		last += 1 + back
	}
	if last >= 0 {
		s.lines(data[:last])
		data = data[last+1:]
	}
	s.keep(data)
}

// finish takes the last line of a stream that does not end it.
func (s *splitter) finish() {
	if len(s.partial) > 0 {
		s.line(s.partial)
		s.partial = s.partial[:0]
	}
}

// lineEnd is the place of the first end of a line, -1 for none. A progress bar
// ends its lines by \r.
func lineEnd(b []byte) int {
	nl := bytes.IndexByte(b, '\n')
	if cr := bytes.IndexByte(b[:max(nl, 0)], '\r'); cr >= 0 {
		return cr
	}
	if nl < 0 {
		return bytes.IndexByte(b, '\r')
	}
	return nl
}

// keep takes the beginning of a line that data does not end. Of a line that is
// too long, what a marker could begin in is kept, else its last bytes.
func (s *splitter) keep(data []byte) {
	const tail = 64 // the prefix of a growing batch, and half a marker
	for len(data) > 0 {
		if len(s.partial) == keepBytes {
			from := keepBytes - tail
			if s.pattern != nil {
				return
			}
			if at := bytes.LastIndex(s.partial, hint); at > tail {
				from = at - tail
			} else if at >= 0 {
				return
			}
			s.partial = append(s.partial[:0], s.partial[from:]...)
		}
		n := min(len(data), keepBytes-len(s.partial))
		s.partial = append(s.partial, data[:n]...)
		data = data[n:]
	}
}

// lines looks at whole lines, without the end of the last.
func (s *splitter) lines(data []byte) {
	if s.pattern != nil {
		for {
			end := lineEnd(data)
			if end < 0 {
				break
			}
			s.line(data[:end])
			data = data[end+1:]
		}
		s.line(data)
		return
	}
	for from := 0; ; {
		at := bytes.IndexByte(data[from:], hint[0])
		if at < 0 {
			return
		}
		at += from
		if !isHint(data, at) {
			from = at + 1
			continue
		}
		begin := bytes.LastIndexByte(data[:at], '\n') + 1
		if cr := bytes.LastIndexByte(data[begin:at], '\r'); cr >= 0 {
			begin += cr + 1
		}
		end := lineEnd(data[at:])
		if end < 0 {
			s.line(data[begin:])
			return
		}
		s.line(data[begin : at+end])
		data, from = data[at+end+1:], 0
	}
}

// isHint reports whether the letter at that place is that of a hint.
func isHint(data []byte, at int) bool {
	rest := data[at:]
	if len(rest) < len(evalTail) {
		return false
	}
	switch rest[1] { // which says no nearly always
	case hint[1]:
		return bytes.HasPrefix(rest, hint)
	case evalTail[1]:
		return bytes.HasPrefix(rest, evalTail) && bytes.HasSuffix(data[:at], evalHead)
	}
	return false
}

func (s *splitter) line(line []byte) {
	if s.pattern != nil {
		if step, ok := s.pattern.parse(line); ok {
			s.step(step)
		}
		return
	}
	if step, ok := ParseStep(line); ok {
		s.step(step)
	} else if isEvaluation(line) {
		s.eval()
	}
}
