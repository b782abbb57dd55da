package ui

import (
	"bufio"
	"cmp"
	"io"
	"maps"
	"slices"
	"time"

	"multihost/internal/tpu"
)

// LogsOptions say how logs are shown.
type LogsOptions struct {
	Times bool           // put its time at the beginning of each line, or in JSON into a field
	Tags  []tpu.WorkerID // the workers to show, if each line begins with its worker
}

// Logs writes logs to standard output, as Stdout does, or in JSON mode lines of kind
// "output". Its methods must not be called concurrently.
type Logs struct {
	r     *Renderer
	o     LogsOptions
	out   wholeWriter
	width int
	paint painter
	tty   bool

	streams map[tpu.WorkerID]*shownLog
	open    *shownLog // the log whose line is unfinished
}

// A wholeWriter writes the bytes of each Write at once. A note between two writes to
// standard output would split a line of JSON.
type wholeWriter struct{ *bufio.Writer }

func (w wholeWriter) Write(p []byte) (int, error) {
	if len(p) > w.Available() {
		if err := w.Flush(); err != nil {
			return 0, err
		}
	}
	return w.Writer.Write(p)
}

// A shownLog is the log of one worker.
type shownLog struct {
	id   tpu.WorkerID
	to   io.WriteCloser
	time time.Time // in JSON, the time of the text that is being written
}

// Logs returns a writer of logs.
func (r *Renderer) Logs(o LogsOptions) *Logs {
	l := &Logs{r: r, o: o, out: wholeWriter{bufio.NewWriterSize(&dataWriter{l: r.out, to: toStdout, w: r.o.Stdout}, 64<<10)}, streams: map[tpu.WorkerID]*shownLog{}}
	l.tty = r.o.IsTerminal(r.o.Stdout)
	l.paint = painter(r.o.Color && l.tty)
	for _, id := range o.Tags {
		l.width = max(l.width, len(id.String()))
	}
	return l
}

func (l *Logs) stream(id tpu.WorkerID) *shownLog {
	s := l.streams[id]
	if s == nil {
		s = &shownLog{id: id}
		s.to = printable(l.out, l.tty)
		if l.r.mode == JSON {
			s.to = OutputJSON(l.out, id, func() time.Time { return s.time })
		}
		l.streams[id] = s
	}
	return s
}

// WriteLog writes a part of a worker's log. With Times or Tags, the text must not have
// parts of two lines, and at is the time of the line.
func (l *Logs) WriteLog(id tpu.WorkerID, at time.Time, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	s := l.stream(id)
	if s.time = at; !l.o.Times || at.IsZero() {
		s.time = l.r.o.Now()
	}
	if l.r.mode != JSON && (l.o.Times || len(l.o.Tags) > 0) {
		if err := l.beginLine(s, at); err != nil {
			return err
		}
		l.open = s
		if p[len(p)-1] == '\n' {
			l.open = nil
		}
	}
	_, err := s.to.Write(p)
	return err
}

// beginLine writes the beginning of a line, unless s is within a line. First it ends the
// unfinished line of another worker.
func (l *Logs) beginLine(s *shownLog, at time.Time) error {
	if l.open == s {
		return nil
	}
	if err := l.endLine(); err != nil {
		return err
	}
	var b []byte
	if l.o.Times {
		b = at.Local().AppendFormat(b, lineTime)
	}
	if len(l.o.Tags) > 0 {
		b = append(b, l.paint.start(dim)...)
		tag := s.id.String()
		b = append(b, tag...)
		for n := len(tag); n < l.width; n++ {
			b = append(b, ' ')
		}
		b = append(b, " │"...)
		b = append(b, l.paint.end()...)
		b = append(b, ' ')
	}
	_, err := l.out.Write(b)
	return err
}

func (l *Logs) endLine() error {
	if l.open == nil {
		return nil
	}
	if err := l.open.to.Close(); err != nil {
		return err
	}
	l.open = nil
	_, err := l.out.WriteString("\n")
	return err
}

// Flush writes to standard output what WriteLog has received.
func (l *Logs) Flush() error { return l.out.Flush() }

// Close writes what is left. It ends an unfinished last line if lines begin with a time or
// a worker.
func (l *Logs) Close() error {
	if err := l.endLine(); err != nil {
		return err
	}
	var err error
	for _, id := range slices.SortedFunc(maps.Keys(l.streams), tpu.WorkerID.Compare) {
		err = cmp.Or(err, l.streams[id].to.Close())
	}
	return cmp.Or(err, l.Flush())
}
