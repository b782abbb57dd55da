package ui

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// jsonVersion is the "v" of every JSON line. It changes when a field gets another meaning
// or goes away, but not for new fields and new kinds.
const jsonVersion = 1

// maxRaw is the most output, in bytes, that one JSON line contains.
const maxRaw = 64 << 10

// appendJSONHead appends the beginning of a line, up to and with the kind.
func appendJSONHead(b []byte, now time.Time, kind string) []byte {
	b = append(b, `{"v":`...)
	b = strconv.AppendInt(b, jsonVersion, 10)
	b = append(b, `,"time":"`...)
	b = now.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","kind":`...)
	return appendJSONString(b, []byte(kind))
}

// A jsonView shows a run to programs, as lines of JSON.
type jsonView struct{ *screen }

func (v *jsonView) emit(e event.Event, now time.Time) {
	if n, ok := e.(event.Note); ok && n.Level == event.Debug && !v.o.Debug {
		return
	}
	line := appendJSONEvent(nil, e, now)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	switch e.(type) {
	case event.Result, event.Summary, event.WorkerDone, event.AttemptEnd:
	default:
		v.out.control(toStdout, line)
		return
	}
	v.out.put(toStdout, line)
}

// appendJSONEvent appends e as one line: first the common fields, then those of e.
func appendJSONEvent(b []byte, e event.Event, now time.Time) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	var fields any = e
	if s, ok := e.(event.Summary); ok {
		fields = summaryFields(s)
	}
	if err := enc.Encode(fields); err != nil {
		// Only a Result can fail, because its Data can be of any type. The reader must
		// learn that the answer is missing.
		b = appendJSONHead(b, now, "error")
		b = append(b, `,"text":`...)
		b = appendJSONString(b, fmt.Appendf(nil, "encode %s: %v", e.Kind(), err))
		return append(b, "}\n"...)
	}
	b = appendJSONHead(b, now, e.Kind())
	text := bytes.TrimSpace(buf.Bytes())
	if len(text) > 2 {
		b = append(b, ',')
	}
	b = appendHarmlessJSON(b, text[1:])
	return append(b, '\n')
}

// summaryFields returns the fields of a summary. Last lines that are not UTF-8 do not fit
// into a JSON string, so it adds them as bytes, too.
func summaryFields(s event.Summary) any {
	if utf8.ValidString(strings.Join(s.LastLines, "\n")) {
		return s
	}
	exact := make([][]byte, len(s.LastLines))
	for i, line := range s.LastLines {
		exact[i] = []byte(line)
	}
	return struct {
		event.Summary
		LastLinesBase64 [][]byte `json:"last_lines_base64"`
	}{s, exact}
}

// appendHarmlessJSON appends encoded JSON. It escapes what package json does not escape
// although a terminal acts on it: DEL, C1 controls and direction marks. These occur only in
// strings.
func appendHarmlessJSON(b, text []byte) []byte {
	for len(text) > 0 {
		n := plainPrefix(text)
		b = append(b, text[:n]...)
		text = text[n:]
		if len(text) == 0 {
			break
		}
		c, size := utf8.DecodeRune(text)
		if c == 0x7f || actsOnTerminal(c) {
			b = appendJSONEscape(b, c)
		} else {
			b = append(b, text[:size]...)
		}
		text = text[size:]
	}
	return b
}

func appendJSONEscape(b []byte, c rune) []byte {
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', hex[c>>12&15], hex[c>>8&15], hex[c>>4&15], hex[c&15])
}

// output queues bytes of s as JSON lines. If the chunk ends within a rune, the beginning of
// the rune waits in s.partial for the next chunk.
func (v *jsonView) output(s *stream, data []byte) {
	for len(data) > 0 {
		n := min(len(data), maxRaw)
		chunk := data[:n]
		data = data[n:]
		if len(s.partial) > 0 {
			s.partial = append(s.partial, chunk...)
			chunk = s.partial
		}
		whole := wholeRunes(chunk)
		v.put(s, whole)
		s.partial = append(s.partial[:0], chunk[len(whole):]...)
	}
}

func (v *jsonView) finish(s *stream) {
	v.put(s, s.partial)
	s.partial = s.partial[:0]
}

func (v *jsonView) dropped(n int, now time.Time) (dest, []byte) {
	return toStdout, appendDroppedJSON(nil, now, n)
}

func (*jsonView) tick(*lane, time.Time) time.Time { return time.Time{} }

func (*jsonView) status(time.Time) string { return "" }

func (*jsonView) close() {}

func (v *jsonView) put(s *stream, data []byte) {
	if len(data) == 0 {
		return
	}
	b := appendOutputJSON(s.lines[:0], s.id, data, v.o.Now())
	s.lines = b
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	if !v.out.room(s, len(b)) {
		v.out.dropped += len(data)
		return
	}
	v.out.put(toStdout, b)
}

// appendOutputJSON appends the line for bytes that a worker's command has written.
func appendOutputJSON(b []byte, id tpu.WorkerID, data []byte, now time.Time) []byte {
	b = appendJSONHead(b, now, event.Output{}.Kind())
	b = append(b, `,"slice":`...)
	b = strconv.AppendInt(b, int64(id.Slice), 10)
	b = append(b, `,"worker":`...)
	b = strconv.AppendInt(b, int64(id.Worker), 10)
	if utf8.Valid(data) {
		b = append(b, `,"text":`...)
		b = appendJSONString(b, data)
	} else {
		b = append(b, `,"base64":"`...)
		b = base64.StdEncoding.AppendEncode(b, data)
		b = append(b, '"')
	}
	return append(b, "}\n"...)
}

// OutputJSON returns a writer that writes a worker's log as JSON lines of kind "output".
// Unlike a Renderer, it waits for w and drops nothing. Close writes the bytes of an
// unfinished character, and does not close w.
func OutputJSON(w io.Writer, id tpu.WorkerID, now func() time.Time) io.WriteCloser {
	return &jsonBytes{w: w, id: id, now: now}
}

type jsonBytes struct {
	w    io.Writer
	id   tpu.WorkerID
	now  func() time.Time
	held []byte // the beginning of an unfinished character
}

func (j *jsonBytes) Write(p []byte) (int, error) {
	text := append(j.held, p...)
	for len(text) > 0 {
		chunk := text[:min(len(text), maxRaw)]
		whole := wholeRunes(chunk)
		if len(whole) == 0 {
			break
		}
		if err := j.put(whole); err != nil {
			return 0, err
		}
		text = text[len(whole):]
	}
	j.held = append([]byte(nil), text...)
	return len(p), nil
}

func (j *jsonBytes) Close() error { return j.put(j.held) }

func (j *jsonBytes) put(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	_, err := j.w.Write(appendOutputJSON(nil, j.id, data, j.now()))
	return err
}

func appendDroppedJSON(b []byte, now time.Time, n int) []byte {
	b = appendJSONHead(b, now, "dropped")
	b = append(b, `,"bytes":`...)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, `,"text":"view fell behind; the log files are complete"}`+"\n"...)
}

// appendJSONString appends s in quotes. s must be valid UTF-8. It also escapes everything
// on which a terminal would act, because people look at JSON, too.
func appendJSONString(b, s []byte) []byte {
	b = append(b, '"')
	for len(s) > 0 {
		n := 0
		for n < len(s) && s[n] >= 0x20 && s[n] < 0x7f && s[n] != '"' && s[n] != '\\' {
			n++
		}
		b = append(b, s[:n]...)
		s = s[n:]
		if len(s) == 0 {
			break
		}
		c, size := rune(s[0]), 1
		if c >= utf8.RuneSelf {
			c, size = utf8.DecodeRune(s)
		}
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', byte(c))
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < 0x20 || c == 0x7f || actsOnTerminal(c):
			b = appendJSONEscape(b, c)
		default:
			b = append(b, s[:size]...)
		}
		s = s[size:]
	}
	return append(b, '"')
}

// PrintErrorJSON writes err as a JSON line of kind "error". exitCode is the exit status of
// the program. hint may be "". It returns the error of w.
func PrintErrorJSON(w io.Writer, now time.Time, err error, hint string, exitCode int) error {
	b := appendJSONHead(nil, now, "error")
	b = append(b, `,"text":`...)
	b = appendJSONString(b, bytes.ToValidUTF8([]byte(err.Error()), []byte("\uFFFD")))
	if hint != "" {
		b = append(b, `,"hint":`...)
		b = appendJSONString(b, bytes.ToValidUTF8([]byte(hint), []byte("\uFFFD")))
	}
	b = append(b, `,"exit_code":`...)
	b = strconv.AppendInt(b, int64(exitCode), 10)
	b = append(b, "}\n"...)
	_, failed := w.Write(b)
	return failed
}
