package kubelet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// maxLine is the longest part of a line in one record. Longer lines are split, and joined
// again by the reader.
const maxLine = 16 << 10

// A logFile is the log of a container, with a file for each run of it. The files have
// containerd's format: time, stream, F for a whole line or P for a part, text.
type logFile struct {
	dir string
	now func() time.Time

	mu      sync.Mutex
	f       *os.File
	run     int
	over    bool          // the present run has ended
	changed chan struct{} // closed at the next change
	closed  bool
}

func newLogFile(dir string, now func() time.Time) *logFile {
	return &logFile{dir: dir, now: now, run: -1, changed: make(chan struct{}), over: true}
}

func (l *logFile) file(run int) string { return filepath.Join(l.dir, strconv.Itoa(run)+".log") }

// start starts the log of the next run. Without a directory, it keeps nothing.
func (l *logFile) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.open(); err != nil {
		l.f = nil
	}
}

func (l *logFile) open() error {
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(l.file(l.run+1), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	l.f, l.over = f, false
	l.run++
	l.signal()
	return nil
}

func (l *logFile) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// copy writes a stream of the container to the log until the stream ends.
func (l *logFile) copy(stream string, from io.ReadCloser) {
	defer from.Close()
	r := bufio.NewReaderSize(from, maxLine)
	for {
		line, err := r.ReadSlice('\n')
		whole := bytes.HasSuffix(line, []byte("\n"))
		if len(line) > 0 {
			l.write(stream, bytes.TrimSuffix(line, []byte("\n")), whole)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (l *logFile) write(stream string, text []byte, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return
	}
	tag := "P"
	if whole {
		tag = "F"
	}
	_, _ = fmt.Fprintf(l.f, "%s %s %s %s\n", l.now().UTC().Format(time.RFC3339Nano), stream, tag, text) // on a full disk, lines are lost, as on a real node
	l.signal()
}

// end ends the log of the present run.
func (l *logFile) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		l.f.Close()
		l.f = nil
	}
	l.over = true
	l.signal()
}

// close ends the log: there will be no further run.
func (l *logFile) close() {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.signal()
}

// tail returns the last lines of the present run.
func (l *logFile) tail(lines, limit int) string {
	l.mu.Lock()
	file := l.file(l.run)
	l.mu.Unlock()
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	var out bytes.Buffer
	for _, r := range lastLines(records(b), int64(lines)) {
		out.Write(r.text)
		if r.whole {
			out.WriteByte('\n')
		}
	}
	text := out.Bytes()
	return string(text[max(0, len(text)-limit):])
}

// A Log is an open log. The caller closes it.
type Log struct {
	log  *logFile
	f    *os.File
	run  int
	opts LogOptions
}

// Log opens the log of a container. If there is none, the error says why, in the words of
// the kubelet.
func (k *Kubelet) Log(pod *corev1.Pod, container string, opts LogOptions) (*Log, error) {
	k.mu.Lock()
	p := k.pods[pod.UID]
	k.mu.Unlock()
	waiting := fmt.Errorf("container %q in pod %q is waiting to start: ContainerCreating", container, pod.Name)
	if p == nil {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return nil, fmt.Errorf("unable to retrieve container logs for containerd://%s-%s", pod.UID, container)
		}
		return nil, waiting
	}
	for _, c := range p.all() {
		if c.spec.Name == container {
			return c.openLog(pod.Name, opts)
		}
	}
	return nil, waiting
}

func (c *containerRun) openLog(pod string, opts LogOptions) (*Log, error) {
	c.mu.Lock()
	reason := ""
	if c.state.Waiting != nil {
		reason = c.state.Waiting.Reason
	}
	c.mu.Unlock()
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	run := c.log.run
	if opts.Previous {
		run--
		if run < 0 {
			return nil, fmt.Errorf("previous terminated container %q in pod %q not found", c.spec.Name, pod)
		}
	}
	if run < 0 {
		return nil, fmt.Errorf("container %q in pod %q is waiting to start: %s", c.spec.Name, pod, reason)
	}
	f, err := os.Open(c.log.file(run))
	if err != nil {
		return nil, err
	}
	return &Log{log: c.log, f: f, run: run, opts: opts}, nil
}

// Close closes the log.
func (l *Log) Close() error { return l.f.Close() }

// CopyTo writes the log to w. With Follow, it also writes what comes until the container
// has ended. It calls flush whenever there is nothing more for the moment.
func (l *Log) CopyTo(ctx context.Context, w io.Writer, flush func() error) error {
	out := &logWriter{w: w, opts: l.opts, left: l.opts.Limit, begin: true}
	var pending []byte
	first := true
	for {
		l.log.mu.Lock()
		changed, over := l.log.changed, l.log.over || l.log.run != l.run || l.log.closed
		l.log.mu.Unlock()
		b, err := io.ReadAll(l.f) // only after the check of over, so that nothing is missed
		if err != nil {
			return err
		}
		pending = append(pending, b...)
		cut := bytes.LastIndexByte(pending, '\n') + 1
		rs := records(pending[:cut])
		if first {
			rs, first = lastLines(selected(rs, l.opts), l.opts.Tail), false
		} else {
			rs = selected(rs, l.opts)
		}
		pending = pending[cut:]
		for _, r := range rs {
			if more, err := out.write(r); err != nil || !more {
				return errors.Join(err, flush())
			}
		}
		if err := flush(); err != nil {
			return err
		}
		if over || !l.opts.Follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A record is one line of a log file.
type record struct {
	at     time.Time
	stream string
	whole  bool
	text   []byte
}

// records parses whole lines of a log file.
func records(b []byte) []record {
	var rs []record
	for line := range bytes.SplitSeq(bytes.TrimSuffix(b, []byte("\n")), []byte("\n")) {
		parts := bytes.SplitN(line, []byte(" "), 4)
		if len(parts) < 4 {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, string(parts[0]))
		if err != nil {
			continue
		}
		rs = append(rs, record{at, string(parts[1]), string(parts[2]) == "F", parts[3]})
	}
	return rs
}

// selected returns the records with the stream and the time in the options.
func selected(rs []record, o LogOptions) []record {
	var kept []record
	for _, r := range rs {
		if !r.at.Before(o.Since) && (o.Stream == "" || o.Stream == r.stream) {
			kept = append(kept, r)
		}
	}
	return kept
}

// lastLines returns the records of the last n lines, or all if n is below 0.
func lastLines(rs []record, n int64) []record {
	if n < 0 {
		return rs
	}
	var lines int64
	for i := len(rs) - 1; i >= 0; i-- {
		if rs[i].whole || i == len(rs)-1 {
			if lines == n {
				return rs[i+1:]
			}
			lines++
		}
	}
	if n == 0 {
		return nil
	}
	return rs
}

// A logWriter writes records in the form of the API.
type logWriter struct {
	w     io.Writer
	opts  LogOptions
	left  int64 // number of bytes still allowed; below 0: no limit
	begin bool  // the next text begins a line
}

// write writes a record. more is false once the limit is reached.
func (l *logWriter) write(r record) (more bool, err error) {
	var out []byte
	if l.opts.Timestamps && l.begin {
		out = append(out, r.at.UTC().Format("2006-01-02T15:04:05.000000000Z07:00")+" "...)
	}
	out = append(out, r.text...)
	if r.whole {
		out = append(out, '\n')
	}
	l.begin = r.whole
	if l.opts.Limit >= 0 && int64(len(out)) >= l.left {
		_, err = l.w.Write(out[:l.left])
		return false, err
	}
	l.left -= int64(len(out))
	_, err = l.w.Write(out)
	return true, err
}
