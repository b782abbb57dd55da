// Package training reads the training steps of a run from the logs on this machine while
// they grow.
package training

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/journal"
	"multihost/internal/mask"
	"multihost/internal/metrics"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// TrainingOptions say how to read the logs of a run.
type TrainingOptions struct {
	LogDir  string           // directory of logs without a record; the name of the run is then not used
	Type    string           // accelerator type of a slice, for MFU; "": that of the record
	Pattern *metrics.Pattern // nil: MaxText's step lines
	Skip    int              // see metrics.Options
	Attempt int              // only this attempt; 0: all
	Compare string           // published figures for the comparison, by a name for metrics.CheckPublished; "": none
}

// A Training has the training steps of a run, from the run's log files on this machine. It
// asks no cloud and no worker.
type Training struct {
	StateDir, Run string
	O             TrainingOptions
	rec           *record.Record // nil: only a directory is known
	Far           *record.Record // the record of the run as the workers report it, if they were asked
	kind          tpu.Type
	past          []metrics.Attempt // attempts before the newest, read once
	newest        *attemptLogs
}

// attemptLogs reads the log files of one attempt while they grow.
type attemptLogs struct {
	number    int
	dir       string
	ids       []tpu.WorkerID
	collector *metrics.Collector
	logs      []*ReadLog // in the order of ids
	finished  bool
}

// A ReadLog says how much of one worker's log has been read. The local file and the
// worker's log have the same bytes, so each byte is taken once, from whichever is read
// first.
type ReadLog struct {
	mu     sync.Mutex // guards the fields below
	at     int64
	Stream *metrics.Stream
	end    []byte // the last bytes read
}

// readEnd is how many bytes at the end of a log are kept.
const readEnd = 4 << 10

// Offset returns how many bytes of the log have been read. It is safe for concurrent use.
func (l *ReadLog) Offset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

// take reads p, which are the bytes of the log from offset on. It skips bytes that it has read
// before.
func (l *ReadLog) take(offset int64, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.at - offset; known >= int64(len(p)) {
		return
	} else if known > 0 {
		p = p[known:]
	}
	_, _ = l.Stream.Write(p) // never fails
	l.at += int64(len(p))
	l.end = append(l.end, p[max(0, len(p)-readEnd):]...)
	if len(l.end) > 2*readEnd {
		l.end = append(l.end[:0], l.end[len(l.end)-readEnd:]...)
	}
}

// Finish says that the log has ended. Its last line may then lack a newline.
func (l *ReadLog) Finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Stream.Finish()
}

// LastLines returns the last n lines read.
func (l *ReadLog) LastLines(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return mask.EndOfText(bytes.TrimRight(l.end, "\n"), n, nil)
}

// From returns a writer for the bytes of the log from offset on.
func (l *ReadLog) From(offset int64) io.Writer { return &readFurther{l, offset} }

type readFurther struct {
	log *ReadLog
	at  int64
}

func (r *readFurther) Write(p []byte) (int, error) {
	r.log.take(r.at, p)
	r.at += int64(len(p))
	return len(p), nil
}

// OpenTraining finds the logs of a run on this machine. Update reads them.
func OpenTraining(stateDir, run string, o TrainingOptions) (*Training, error) {
	t := &Training{StateDir: stateDir, Run: run, O: o}
	if o.LogDir == "" {
		rec, err := record.LoadRecord(stateDir, run)
		if err != nil {
			return nil, &stage.Error{Stage: stage.Local, Err: err}
		}
		if rec == nil {
			return nil, stage.NoRun(fmt.Sprintf("this machine has no record of a run %q", run),
				"if it is one of multihost ps --all, bring its logs here with: multihost attach "+run+"; or name a directory of logs with --log-dir=DIR")
		}
		t.rec = rec
	}
	if o.Type != "" {
		if _, err := tpu.ParseType(o.Type); err != nil {
			return nil, &stage.Error{Stage: stage.Input, Err: err}
		}
	}
	t.kind = t.typeOfSlice()
	return t, nil
}

// typeOfSlice returns the accelerator type of a slice, or the zero Type if it is unknown so
// far.
func (t *Training) typeOfSlice() tpu.Type {
	name := t.O.Type
	if name == "" && t.rec != nil && len(t.rec.Slices) > 0 {
		name = t.rec.Slices[0].Type
	}
	kind, _ := tpu.ParseType(name)
	return kind
}

// TakeUp returns the logs of all workers of rec's newest attempt. It first reads the files on
// this machine. The caller can then add bytes that it reads from workers.
func (t *Training) TakeUp(rec *record.Record) (map[tpu.WorkerID]*ReadLog, error) {
	t.Far = rec
	if _, err := t.Update(); err != nil {
		return nil, err
	}
	a := t.newest
	if a.number != rec.Attempt {
		return nil, &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("attempt %d of run %q is read, its workers know attempt %d", a.number, t.Run, rec.Attempt)}
	}
	if a.finished || !slices.Equal(a.ids, a.workers(t.rec)) { // the attempt was read with the logs of only some workers
		t.newest = &attemptLogs{number: a.number, dir: a.dir}
		if _, err := t.newest.read(t); err != nil {
			return nil, err
		}
	}
	logs := map[tpu.WorkerID]*ReadLog{}
	for i, id := range t.newest.ids {
		logs[id] = t.newest.logs[i]
	}
	return logs, nil
}

// latest returns the newer of two records of the run: here, which is this machine's and may be
// nil, and the one that the workers report.
func (t *Training) latest(here *record.Record) *record.Record {
	far := t.Far
	switch {
	case far == nil, here != nil && (here.Attempt > far.Attempt || here.Attempt == far.Attempt && here.Ended):
		return here
	case here == nil:
		return far
	}
	both := *far
	both.Attempts = here.Attempts
	if here.Attempt == far.Attempt {
		both.LogDir = here.LogDir
	}
	return &both
}

// Ended reports whether the run had ended at the last Update. This machine must have
// followed it to its end.
func (t *Training) Ended() bool {
	if t.rec == nil {
		return true
	}
	return t.rec.Over()
}

// Latest returns the newest step of the newest attempt, or false if there is none yet.
func (t *Training) Latest() (metrics.Sample, bool) {
	if t.newest == nil {
		return metrics.Sample{}, false
	}
	return t.newest.collector.Latest()
}

// Update reads the bytes added to the log files, and reports whether there were any. If a newer
// attempt has begun, Update continues with that attempt.
func (t *Training) Update() (changed bool, err error) {
	if t.O.LogDir == "" {
		rec, err := record.LoadRecord(t.StateDir, t.Run)
		if err != nil {
			return false, &stage.Error{Stage: stage.Local, Err: err}
		}
		if rec = t.latest(rec); rec != nil {
			changed = t.rec == nil || rec.Ended != t.rec.Ended || rec.Attempt != t.rec.Attempt
			t.rec = rec
			if t.newest == nil {
				t.kind = t.typeOfSlice()
			}
		}
	}
	dirs := t.attemptDirs()
	if len(dirs) == 0 {
		return false, t.noLogs()
	}
	for _, d := range dirs {
		if t.newest != nil && d.number <= t.newest.number {
			continue
		}
		if t.newest != nil { // a later attempt has begun, so this one is complete
			if _, err := t.newest.read(t); err != nil {
				return changed, err
			}
			t.newest.close()
			t.past = append(t.past, t.attempt(t.newest, metrics.View{Points: pastPoints}))
		}
		t.newest, changed = d, true
	}
	grown, err := t.newest.read(t)
	if err != nil {
		return changed, err
	}
	changed = changed || grown
	if t.Ended() {
		t.newest.close()
	}
	return changed, nil
}

// pastPoints limits the points in a series of an attempt before the newest.
const pastPoints = 256

// ErrNoLogs says that this machine has no logs of a run.
var ErrNoLogs = fault.New(fault.Unavailable, "there are no logs")

func (t *Training) noLogs() error {
	if t.O.LogDir != "" {
		return &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("%q has no logs of workers (output_slice_0000_worker_0000.txt, …)", t.O.LogDir)}
	}
	e := stage.NoRun(fmt.Sprintf("this machine has no logs of run %q", t.Run), "bring them here with: multihost attach "+t.Run+"; look at them where they are with: multihost top "+t.Run)
	e.Err = ErrNoLogs
	return e
}

// attemptDirs finds the attempts with logs, oldest first.
func (t *Training) attemptDirs() []*attemptLogs {
	if t.O.LogDir != "" {
		return t.haveLogs(&attemptLogs{number: 1, dir: t.O.LogDir})
	}
	var all []*attemptLogs
	for _, a := range t.rec.Attempts {
		if a.Attempt < t.rec.Attempt {
			all = append(all, &attemptLogs{number: a.Attempt, dir: a.LogDir})
		}
	}
	all = append(all, &attemptLogs{number: t.rec.Attempt, dir: t.rec.LogDir})
	if t.O.Attempt > 0 {
		all = slices.DeleteFunc(all, func(a *attemptLogs) bool { return a.number != t.O.Attempt })
	}
	return t.haveLogs(all...)
}

// haveLogs returns the attempts whose logs are on this machine or are read elsewhere.
func (t *Training) haveLogs(all ...*attemptLogs) []*attemptLogs {
	return slices.DeleteFunc(all, func(a *attemptLogs) bool {
		if t.Far != nil && t.Far.Attempt == a.number {
			return false
		}
		names, _ := filepath.Glob(filepath.Join(a.dir, "output_slice_*_worker_*.txt"))
		return len(names) == 0
	})
}

// workers lists the workers with logs in the directory. For the recorded attempt, it also
// lists those whose logs have not come yet.
func (a *attemptLogs) workers(rec *record.Record) []tpu.WorkerID {
	var ids []tpu.WorkerID
	names, _ := filepath.Glob(filepath.Join(a.dir, "output_slice_*_worker_*.txt"))
	for _, name := range names {
		var id tpu.WorkerID
		if n, err := fmt.Sscanf(filepath.Base(name), "output_slice_%d_worker_%d.txt", &id.Slice, &id.Worker); n == 2 && err == nil {
			ids = append(ids, id)
		}
	}
	if rec != nil && rec.Attempt == a.number {
		for i, s := range rec.Slices {
			for j := range s.Workers {
				ids = append(ids, tpu.WorkerID{Slice: i, Worker: j})
			}
		}
	}
	slices.SortFunc(ids, tpu.CompareWorkers)
	return slices.Compact(ids)
}

// read reads what was added to the files.
func (a *attemptLogs) read(t *Training) (grown bool, err error) {
	if a.collector == nil {
		a.ids = a.workers(t.rec)
		a.collector = metrics.NewCollector(metrics.Options{Workers: a.ids, Type: t.kind, Pattern: t.O.Pattern, Skip: t.O.Skip})
		a.logs = make([]*ReadLog, len(a.ids))
		for i := range a.logs {
			a.logs[i] = &ReadLog{Stream: a.collector.Stream(i)}
		}
	}
	buffer := make([]byte, 1<<20)
	for i, id := range a.ids {
		offset := a.logs[i].Offset()
		n, err := readFrom(record.LogPath(a.dir, id), offset, a.logs[i].From(offset), buffer)
		grown = grown || n > 0
		if err != nil {
			return grown, &stage.Error{Stage: stage.Local, Text: err.Error(), Err: err}
		}
	}
	return grown, nil
}

// readFrom copies a file from offset on to w. A missing file counts as empty.
func readFrom(path string, offset int64, w io.Writer, buffer []byte) (int64, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	// The wrapper hides os.File's WriteTo, so that io.CopyBuffer uses the buffer.
	return io.CopyBuffer(w, struct{ io.Reader }{file}, buffer)
}

// close marks the attempt as finished: its files will not grow any more.
func (a *attemptLogs) close() {
	if a.finished || a.collector == nil {
		return
	}
	a.finished = true
	for _, l := range a.logs {
		l.Finish()
	}
}

func (t *Training) attempt(a *attemptLogs, v metrics.View) metrics.Attempt {
	at := a.collector.Attempt(v)
	at.Number, at.LogDir = a.number, a.dir
	at.Ended = a.finished
	if t.rec == nil {
		return at
	}
	for _, known := range t.rec.Attempts {
		if known.Attempt != a.number {
			continue
		}
		at.Began = &known.Begin
		if !known.End.IsZero() {
			at.End, at.ExitCode, at.Cause = &known.End, &known.Code, known.Why
		}
	}
	if t.rec.Attempt == a.number {
		if at.Began == nil {
			at.Began = &t.rec.Created
		}
		if t.rec.Ended {
			code := t.rec.Code
			at.ExitCode = &code
		}
		for i := range at.Slices {
			if n := at.Slices[i].Number; n < len(t.rec.Slices) {
				at.Slices[i].Name = t.rec.Slices[n].Name
			}
		}
	}
	return at
}

// Document returns what has been read so far.
func (t *Training) Document(v metrics.View, now time.Time) metrics.Document {
	d := metrics.NewDocument(t.Run, t.kind, now)
	if t.rec != nil {
		d.Command = t.rec.Command
	}
	d.Attempts = append(d.Attempts, t.past...)
	if t.newest != nil {
		d.Attempts = append(d.Attempts, t.attempt(t.newest, v))
	}
	t.addStalls(&d)
	if t.O.Compare != "" {
		_ = d.SetComparison(t.O.Compare) // without published figures, there is nothing to compare
	}
	return d
}

// addStalls adds the times without progress from the run's journal. If the journal cannot be
// read, it adds nothing.
func (t *Training) addStalls(d *metrics.Document) {
	if t.rec == nil {
		return
	}
	entries, _ := journal.Read(record.RunDir(t.StateDir, t.Run))
	for _, entry := range entries {
		s, ok := entry.Event.(event.Stall)
		if !ok {
			continue
		}
		for i := range d.Attempts {
			if a := &d.Attempts[i]; a.Number == s.Attempt {
				a.AddStall(metrics.Stall{Began: s.Began, Seen: s.Seen, Limit: s.Limit, First: s.First, Step: s.Step, Ended: s.Ended, Text: s.Text})
			}
		}
	}
}
