package metrics

import "bytes"

// keepBytes is how many bytes of an unfinished line are kept until its end arrives. A step
// line has a tenth of that. Of a longer line, the part that may begin with a marker is
// kept.
const keepBytes = 4 << 10

// splitter finds step lines in a stream of bytes that may be cut anywhere.
//
// Nearly all bytes of a training log are not step lines. So it does not split chunks into
// lines: it searches for the marker, and reads only the lines that have it.
type splitter struct {
	pattern *Pattern // nil: MaxText's lines
	partial []byte   // beginning of a line whose end has not arrived
	step    func(Step)
	eval    func()
}

// hint is in every line that can matter, except the old evaluation lines, which have
// evalHead and evalTail. The search is for a rare letter of all of them. One search is
// enough, and twice as fast as one for "ompleted ".
var (
	hint     = []byte("pleted ")
	evalHead = []byte("metrics after ste")
	evalTail = []byte("p: ")
)

// feed reads the next bytes of the stream and keeps no reference to them.
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

// finish reads the last line of a stream if it has no newline.
func (s *splitter) finish() {
	if len(s.partial) > 0 {
		s.line(s.partial)
		s.partial = s.partial[:0]
	}
}

// lineEnd returns the index of the first end of a line, or -1. A progress bar ends its
// lines with \r.
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

// keep stores the beginning of an unfinished line. Of a line that is too long, it keeps the
// part in which a marker could begin, or else the last bytes.
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

// lines reads whole lines. data is without the end of the last line.
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

// isHint reports whether the letter of data at the index belongs to a hint.
func isHint(data []byte, at int) bool {
	rest := data[at:]
	if len(rest) < len(evalTail) {
		return false
	}
	switch rest[1] { // nearly always no
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
