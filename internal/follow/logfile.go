package follow

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/mask"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// logFile is the local copy of one worker's output. At every moment it is a prefix of the
// worker's file, until the command has ended. On a full local disk, the view continues
// without the copy.
type logFile struct {
	run    string
	id     tpu.WorkerID
	path   string
	file   *os.File // nil: not open
	size   int64
	sink   event.Sink
	steps  io.Writer // reads the training steps; may be nil
	view   mask.Masker
	broken bool
	cut    func(error) // called with the error that ends the copy

	arrivals *record.ArrivalWriter // nil: the times are not stored
}

func (l *logFile) keep(p []byte) (int, error) {
	l.arrivals.Mark(l.size)
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// openLog opens the local copy to continue it. It reports a failure, and the run continues.
func openLog(rec *record.Record, id tpu.WorkerID, sink event.Sink, secrets [][]byte) *logFile {
	l := &logFile{run: rec.Run, id: id, path: rec.LogPath(id), sink: sink, view: mask.Masker{Words: secrets}}
	if err := l.open(); err != nil {
		l.broken = true
		event.Notef(sink, event.Warn, "all of it now: multihost logs "+l.run+" --worker="+id.String(),
			"the log of %s cannot be kept here: %v; the run goes on and the worker keeps the whole log", id, err)
	}
	return l
}

func (l *logFile) open() error {
	if l.file != nil {
		return nil
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		file.Close()
		return err
	}
	l.file, l.size = file, size
	return nil
}

// cutThere reports that the worker's file is shorter than this copy.
func (l *logFile) cutThere(e *launch.TruncatedError) {
	there := ""
	if e.Size >= 0 {
		there = fmt.Sprintf(" to %d bytes", e.Size)
	}
	event.Notef(l.sink, event.Warn, "", "the output on %s was cut%s by the command or a crash: the %d bytes that came are kept here, what is printed from now on follows them, and what was cut off before it came is lost",
		l.id, there, e.Offset)
}

// Write never fails, because the run must continue without the local copy.
func (l *logFile) Write(p []byte) (int, error) {
	if !l.broken {
		if _, err := l.keep(p); err != nil {
			l.broken = true
			l.cut(err)
		}
	}
	if l.steps != nil {
		_, _ = l.steps.Write(p) // never fails
	}
	l.show(l.view.Next(p))
	return len(p), nil
}

// cutLogs gathers workers whose logs this machine cannot copy any more. So one line can
// report all workers with the same cause. The zero value is ready for use. It is safe for
// concurrent use.
type cutLogs struct {
	mu   sync.Mutex
	ids  []tpu.WorkerID // still to be reported
	errs []error
}

func (c *cutLogs) add(id tpu.WorkerID, err error) {
	if local := (*fs.PathError)(nil); errors.As(err, &local) { // the path contains the worker's name
		err = local.Err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids, c.errs = append(c.ids, id), append(c.errs, err)
}

func (c *cutLogs) tell(sink event.Sink, run string) {
	c.mu.Lock()
	ids, errs := c.ids, c.errs
	c.ids, c.errs = nil, nil
	c.mu.Unlock()
	for _, g := range stage.GroupErrors(ids, errs) {
		event.Notef(sink, event.Warn, "free some space before the end of the run: the rest is brought here then; all of it now: multihost logs "+run+" --worker="+g.Workers[0].String(),
			"the output of %s cannot be kept here any more: %s; the run goes on and the workers keep the whole log", tpu.FoldShort(g.Workers), g.Cause)
	}
}

func (l *logFile) show(p []byte) {
	if len(p) > 0 {
		l.sink.Emit(event.Output{Slice: l.id.Slice, Worker: l.id.Worker, Data: p})
	}
}

func (l *logFile) close() {
	l.show(l.view.Rest())
	if l.file == nil {
		return
	}
	if err := l.file.Close(); err != nil && !l.broken {
		event.Notef(l.sink, event.Warn, "", "close the log of %s: %v", l.id, err)
	}
}

// LastLines returns the last n lines of a file, with masked secrets. It reads at most the
// last 64 KiB. It drops a line that begins before these 64 KiB, because a secret may be cut
// there. If that is the only line, it drops only as many bytes as the longest secret has.
func LastLines(path string, n int, secrets [][]byte) []string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	const window = 64 << 10
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = file.Seek(max(0, size-window), io.SeekStart)
	}
	if err != nil {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(file, window))
	data = bytes.TrimRight(data, "\n")
	if err != nil || len(data) == 0 {
		return nil
	}
	if size > window {
		if _, rest, found := bytes.Cut(data, []byte("\n")); found {
			data = rest
		} else if len(secrets) > 0 {
			data = data[min(len(secrets[0]), len(data)):]
		}
	}
	return mask.EndOfText(data, n, secrets)
}
