// Package logs shows the logs of a run from this machine's copy, from the workers or from
// a bucket, and follows them.
package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/runs"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// LogOptions say which part of which log to read.
type LogOptions struct {
	Worker       tpu.WorkerID
	Named        bool // the user knows which worker's log this is
	All          bool // logs of all workers, merged
	FirstFailure bool // log of the worker that failed first
	Attempt      int  // 0: the newest
	Follow       bool
	Lost         time.Duration // how long the worker may be unreachable; 0: no limit

	Tail  int       // number of last lines of each log; negative: all
	Since time.Time // only lines that arrived then or later; zero: all
	Times bool      // the caller shows the times of lines
}

// timed reports whether the times of lines matter.
func (o LogOptions) timed() bool { return o.Times || o.All || !o.Since.IsZero() }

// A LogSink takes the text of logs. When the times of lines matter, or several logs are merged,
// each text is a line or a part of one line. The parameter at is then the time when the line
// arrived on this machine. Otherwise at is zero. The methods of a LogSink are not called
// concurrently.
type LogSink interface {
	WriteLog(id tpu.WorkerID, at time.Time, p []byte) error
	Flush() error
}

// Logs reads the log of one worker of a run, or the merged logs of all, from the workers or the
// bucket, and writes it to w. With o.Follow it follows the log to its end. If the worker's slice
// is gone, Logs writes this machine's copy. If the copy is final, LocalLog suffices.
func Logs(ctx context.Context, d runs.Deps, name, prefix string, o LogOptions, w LogSink) error {
	if r, err := runs.FindBucketRun(ctx, d, name); err != nil || r != nil {
		if err != nil {
			return err
		}
		return logs(ctx, r, o, w)
	}
	rec, err := runs.Locate(ctx, d, name, prefix)
	if err != nil {
		return err
	}
	l := newLogReader(d, o, w)
	defer l.tellUntimed()
	return cmp.Or(l.overSSH(ctx, rec), runs.Part(rec, stage.Follow, "multihost logs "+name))
}

// LocalLog writes this machine's copy of the logs to w if the copy is final, and reports whether
// it did. The copy is final if a command on this machine has followed the attempt to its end. It
// may lack output of workers that could not be reached.
func LocalLog(ctx context.Context, d runs.Deps, name string, o LogOptions, w LogSink) (bool, error) {
	rec, err := record.LoadRecord(d.StateDir, name)
	if err != nil || rec == nil {
		return false, err
	}
	attempt := cmp.Or(o.Attempt, rec.Attempt)
	dir, ended := rec.LogDirOf(attempt)
	if !ended {
		return false, nil
	}
	end := runs.EndHere(d.StateDir, rec, attempt)
	ids := []tpu.WorkerID{o.Worker}
	switch {
	case o.All:
		ids = rec.IDs()
	case o.FirstFailure && (end == nil || end.First == nil):
		return false, nil // the workers may know it
	case o.FirstFailure:
		ids[0] = *end.First
	}
	l := newLogReader(d, o, w)
	for _, id := range ids {
		src := localSource{record.LogPath(dir, id)}
		if _, err := src.size(ctx); errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		l.logs = append(l.logs, &oneLog{id: id, src: src})
	}
	if len(ids) == 0 {
		return false, nil
	}
	l.o.Follow = false
	l.tellWhich(ids[0], rec.IDs(), end)
	defer l.tellUntimed()
	return true, l.print(ctx, dir)
}

// A logReader reads the logs of one run.
type logReader struct {
	runs.Deps
	o     LogOptions
	w     LogSink
	now   time.Time // fetched lines count as arrived now
	logs  []*oneLog
	mu    sync.Mutex // guards w while logs are followed
	wrote bool
	told  bool

	// inBucket says that a bucket has more of the logs than this machine. Reading then fails if a
	// worker's VM is gone.
	inBucket bool
}

func newLogReader(d runs.Deps, o LogOptions, w LogSink) *logReader {
	return &logReader{Deps: d, o: o, w: w, now: d.Clock.Now()}
}

// oneLog is the state of reading one worker's log.
type oneLog struct {
	id   tpu.WorkerID
	src  logSource
	conn remote.Conn // nil: do not read from a worker
	text *logText
	end  int64 // offset at which to stop; -1: at the end
	err  error // the worker does not know the attempt, so there is nothing to show
}

// copy writes the log from where the last copy stopped.
func (one *oneLog) copy(ctx context.Context, w io.Writer) error {
	if one.err != nil {
		return one.err
	}
	if one.end >= 0 && one.text.offset >= one.end {
		return nil
	}
	return one.src.copyFrom(ctx, one.text.offset, one.end, w)
}

// goOnIn makes src the source of the rest of the log. src may have less of the log than the last
// source.
func (one *oneLog) goOnIn(ctx context.Context, src logSource) error {
	one.src = src
	if one.end < 0 {
		return nil
	}
	size, err := src.size(ctx)
	one.end = min(one.end, size)
	return err
}

// tellWhich reports which worker's log is shown, if the user named no worker. end may be nil.
func (l *logReader) tellWhich(id tpu.WorkerID, ids []tpu.WorkerID, end *runs.RunEnd) {
	workers := len(ids)
	if l.told || l.o.All || workers <= 1 || l.o.Named && !l.o.FirstFailure {
		return
	}
	l.told = true
	switch hint := fmt.Sprintf("another one: --worker=%s; all of them: --all", ids[otherThan(id, ids)]); {
	case l.o.FirstFailure:
		event.Notef(l.Sink, event.Info, "", "log of %s, which failed first", id)
	case end != nil && end.First != nil && *end.First != id:
		event.Notef(l.Sink, event.Info, fmt.Sprintf("%s failed first: --first-failure; %s", end.First, hint), "log of %s, one of %d workers", id, workers)
	default:
		event.Notef(l.Sink, event.Info, hint, "log of %s, one of %d workers", id, workers)
	}
}

// otherThan returns the index of the first worker in ids that is not id.
func otherThan(id tpu.WorkerID, ids []tpu.WorkerID) int {
	return slices.IndexFunc(ids, func(other tpu.WorkerID) bool { return other != id })
}

// tellUntimed reports the lines whose arrival was not recorded. In the output and for
// --since, they have the time of their fetch.
func (l *logReader) tellUntimed() {
	if !l.o.Times && l.o.Since.IsZero() {
		return
	}
	var ids []tpu.WorkerID
	lines := 0
	for _, one := range l.logs {
		if one.text != nil && one.text.untimed > 0 {
			ids, lines = append(ids, one.id), lines+one.text.untimed
		}
	}
	if lines > 0 {
		slices.SortFunc(ids, tpu.CompareWorkers)
		event.Notef(l.Sink, event.Info, "", "%s of %s came while this machine did not follow: the time is that of the fetching", event.Count(lines, "line"), tpu.Fold(ids))
	}
}

// A logSource is the source of a log: a local file, a worker or a bucket.
type logSource interface {
	size(ctx context.Context) (int64, error)
	part(ctx context.Context, offset int64, p []byte) error // fills p

	// copyFrom writes the bytes from offset to end to w. An end of -1 means all present
	// bytes.
	copyFrom(ctx context.Context, offset, end int64, w io.Writer) error
}

type localSource struct{ path string }

func (s localSource) size(context.Context) (int64, error) {
	info, err := os.Stat(s.path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (s localSource) part(_ context.Context, offset int64, p []byte) error {
	file, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.ReadAt(p, offset)
	return err
}

func (s localSource) copyFrom(ctx context.Context, offset, end int64, w io.Writer) error {
	file, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err = file.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	var in io.Reader = file
	if end >= 0 {
		in = io.LimitReader(file, end-offset)
	}
	_, err = io.Copy(stage.WriterFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return w.Write(p)
	}), in)
	return err
}

type remoteSource struct {
	conn remote.Conn
	ref  launch.Ref
}

func (s remoteSource) size(ctx context.Context) (int64, error) {
	state, err := launch.Status(ctx, s.conn, s.ref)
	if err != nil {
		return 0, err
	}
	return sizeOf(state, s.conn.Name())
}

// sizeOf returns the size of an attempt's log. state is the worker's answer.
func sizeOf(state launch.State, worker string) (int64, error) {
	switch state.Phase {
	case launch.Unknown:
		return 0, fmt.Errorf("read %q on %s: %w", state.Ref.Label(), worker, launch.ErrUnknownRun)
	case launch.Aborted:
		return 0, fmt.Errorf("read %q on %s: %w", state.Ref.Label(), worker, launch.ErrNotStarted)
	}
	return state.LogSize, nil
}

func (s remoteSource) part(ctx context.Context, offset int64, p []byte) error {
	at := 0
	n, err := launch.ReadPart(ctx, s.conn, s.ref, offset, int64(len(p)), stage.WriterFunc(func(b []byte) (int, error) {
		at += copy(p[at:], b)
		return len(b), nil
	}))
	if err == nil && n < int64(len(p)) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (s remoteSource) copyFrom(ctx context.Context, offset, end int64, w io.Writer) error {
	if end >= 0 {
		_, err := launch.ReadPart(ctx, s.conn, s.ref, offset, end-offset, w)
		return err
	}
	_, err := launch.ReadLog(ctx, s.conn, s.ref, offset, w)
	return err
}

type bucketSource struct {
	bucket  *detach.Bucket
	run     string
	id      tpu.WorkerID
	attempt int
	piece   int64 // bytes of the log to hold at a time
}

// logsHeld limits how many bytes of all merged logs together are in memory.
const logsHeld = 64 << 20

// pieceOf limits the bytes of one read of a log when this many logs are read at the same time.
func pieceOf(logs int) int64 { return max(tailFirst, min(tailMost, logsHeld/int64(logs))) }

func (s bucketSource) size(ctx context.Context) (int64, error) {
	return s.bucket.LogSize(ctx, s.run, s.id, s.attempt)
}

func (s bucketSource) part(ctx context.Context, offset int64, p []byte) error {
	return s.bucket.LogPart(ctx, s.run, s.id, s.attempt, offset, p)
}

func (s bucketSource) copyFrom(ctx context.Context, offset, end int64, w io.Writer) error {
	if end < 0 {
		_, err := s.bucket.LogInPieces(ctx, s.run, s.id, s.attempt, offset, s.piece, w)
		return err
	}
	for offset < end {
		p := make([]byte, min(end-offset, s.piece))
		if err := s.part(ctx, offset, p); err != nil {
			return err
		}
		n, err := w.Write(p)
		if offset += int64(n); err != nil {
			return err
		}
	}
	return nil
}

const (
	tailFirst = 64 << 10 // bytes of tailOffset's first read
	tailMost  = 8 << 20  // limit of one read, in bytes
)

// tailOffset returns where the last n lines of a text of this size begin. It reads backwards from
// the end, about four times the bytes of these lines at most. The parameter most limits the bytes
// of one read.
func tailOffset(size int64, n int, most int64, part func(offset int64, p []byte) error) (int64, error) {
	if n <= 0 {
		return size, nil
	}
	at, window := size, int64(tailFirst)
	last := true // the newline at the very end ends the last line
	for at > 0 {
		p := make([]byte, min(window, at))
		at -= int64(len(p))
		if err := part(at, p); err != nil {
			return 0, err
		}
		for i := len(p) - 1; i >= 0; i-- {
			if p[i] == '\n' && !last {
				if n--; n == 0 {
					return at + int64(i) + 1, nil
				}
			}
			last = false
		}
		window = min(4*window, most)
	}
	return 0, nil
}

// prepare decides where the shown part of a log begins. dir has this machine's copy of the
// logs, or is "".
func (l *logReader) prepare(ctx context.Context, one *oneLog, dir string) error {
	t := &logText{lines: l.o.timed(), live: math.MaxInt64, now: l.now, clock: l.Clock.Now,
		emit: func(at time.Time, p []byte) error { return l.emit(one.id, at, p) }}
	one.text, one.end = t, -1
	cuts := l.o.Tail >= 0 || !l.o.Since.IsZero()
	var size, from int64 // from is where the wanted last lines begin
	if cuts || l.o.timed() && l.o.Follow {
		var err error
		if size, err = one.src.size(ctx); err != nil {
			return err
		}
		if l.o.Follow {
			t.live = size
		} else {
			one.end = size // the last lines are those of this moment, even if the log grows
		}
	}
	if l.o.Tail >= 0 {
		var err error
		if from, err = tailOffset(size, l.o.Tail, pieceOf(len(l.logs)), func(offset int64, p []byte) error { return one.src.part(ctx, offset, p) }); err != nil {
			return err
		}
	}
	if l.o.timed() {
		var err error
		if t.arrivals, err = record.ReadArrivals(dir, one.id, from, l.o.Since); err != nil {
			return &stage.Error{Stage: stage.Local, Err: err}
		}
	}
	if !l.o.Since.IsZero() {
		t.offset = min(t.arrivals.Since(l.o.Since), size)
		if t.offset > 0 {
			before := make([]byte, 1)
			if err := one.src.part(ctx, t.offset-1, before); err != nil {
				return err
			}
			t.skip = before[0] != '\n'
		}
	}
	if from >= t.offset {
		t.offset, t.skip = from, false
	}
	return nil
}

func (l *logReader) emit(id tpu.WorkerID, at time.Time, p []byte) error {
	l.wrote = true
	if err := l.w.WriteLog(id, at, p); err != nil {
		return &sinkError{err}
	}
	return nil
}

// print writes the present logs.
func (l *logReader) print(ctx context.Context, dir string) error {
	if err := l.prepareAll(ctx, dir); err != nil {
		return err
	}
	return l.printNow(ctx)
}

func (l *logReader) prepareAll(ctx context.Context, dir string) error {
	errs := make([]error, len(l.logs))
	var group errgroup.Group
	group.SetLimit(64)
	for i, one := range l.logs {
		group.Go(func() error {
			errs[i] = l.prepare(ctx, one, dir)
			return nil
		})
	}
	_ = group.Wait() // the goroutines return nil
	if l.withoutUnknown(errs) {
		return nil
	}
	return l.folded(errs)
}

// withoutUnknown reports whether --all can go on without the logs in errs. Some logs must have no
// error, and the workers of all others must not know the attempt. withoutUnknown stores each
// error with its log.
func (l *logReader) withoutUnknown(errs []error) bool {
	if !l.o.All || l.inBucket || !slices.Contains(errs, nil) {
		return false
	}
	for i, err := range errs {
		if err != nil && !errors.Is(err, launch.ErrUnknownRun) && !errors.Is(err, launch.ErrNotStarted) {
			return false
		}
		l.logs[i].err = err
	}
	return true
}

// folded joins the errors of the logs into one error.
func (l *logReader) folded(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	ids := make([]tpu.WorkerID, len(l.logs))
	for i, one := range l.logs {
		ids[i] = one.id
	}
	return stage.WorkersError(stage.Follow, ids, errs)
}

func (l *logReader) printNow(ctx context.Context) error {
	if l.o.All {
		return l.merge(ctx)
	}
	one := l.logs[0]
	return one.copy(ctx, l.flushed(one.text))
}

// flushed returns a writer that writes to w and flushes the output each time.
func (l *logReader) flushed(w io.Writer) io.Writer {
	return stage.WriterFunc(func(p []byte) (int, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		n, err := w.Write(p)
		if err == nil {
			err = l.flush()
		}
		return n, err
	})
}

// flush shows all written text.
func (l *logReader) flush() error {
	if err := l.w.Flush(); err != nil {
		return &sinkError{err}
	}
	return nil
}

// overSSH writes the logs of the run in rec, from the workers that it reaches. If a slice is
// gone, or --all cannot reach a worker, overSSH writes this machine's copy of that worker's log.
func (l *logReader) overSSH(ctx context.Context, rec *record.Record) error {
	attempt := cmp.Or(l.o.Attempt, rec.Attempt)
	end := runs.EndHere(l.StateDir, rec, attempt)
	if l.o.FirstFailure {
		var err error
		if end, err = l.firstFailure(ctx, rec, end); err != nil {
			return err
		}
		l.o.Worker = *end.First
	}
	sel, gone, err := runs.Recorded(ctx, l.Deps, rec)
	if err != nil {
		return err
	}
	wanted := func(id tpu.WorkerID) bool { return l.o.All || id == l.o.Worker }
	ids := slices.DeleteFunc(rec.IDs(), func(id tpu.WorkerID) bool { return !wanted(id) })
	if len(ids) == 0 {
		return l.noWorker(rec.Run, "")
	}
	lost := withoutMachine(rec, sel, gone, ids)
	if l.inBucket && len(lost) > 0 {
		return goneError(lost)
	}
	t := &workers.Connected{}
	failed := map[tpu.WorkerID]error{}
	if len(lost) < len(ids) {
		if t, failed, err = l.dialLogs(ctx, sel, wanted); err != nil {
			return err
		}
		defer t.Close()
		if _, _, err := runs.NewestAttempt(ctx, l.Deps, t, rec); err != nil {
			return err
		}
	}
	ref := launch.Ref{Run: rec.Run, Attempt: cmp.Or(l.o.Attempt, rec.Attempt)}
	dir, _ := rec.LogDirOf(ref.Attempt)
	for _, id := range ids {
		if i := slices.Index(t.IDs, id); i >= 0 {
			l.logs = append(l.logs, &oneLog{id: id, conn: t.Conns[i], src: remoteSource{t.Conns[i], ref}})
		} else if lost[id] == "" && failed[id] == nil { // the API's list has changed
			lost[id] = notListed(rec, id)
		}
	}
	l.addCopies(ctx, dir, ids, lost, failed)
	unread := workers.Failures(stage.Connect, ids, failed)
	if len(l.logs) == 0 && !l.o.All {
		return l.noWorker(rec.Run, lost[ids[0]])
	}
	if len(l.logs) == 0 {
		return unread
	}
	if unread != nil {
		event.Notef(l.Sink, event.Warn, "", "%v; going on without them, or with what this machine has of their logs", unread)
	}
	l.tellWhich(l.logs[0].id, rec.IDs(), end)
	err = l.read(ctx, ref, dir)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return cmp.Or(err, unread)
}

// addCopies adds this machine's copies of logs whose workers are lost or could not be reached. It
// adds the workers without a copy to failed.
func (l *logReader) addCopies(ctx context.Context, dir string, ids []tpu.WorkerID, lost map[tpu.WorkerID]string, failed map[tpu.WorkerID]error) {
	var told []string
	for _, id := range ids {
		why := lost[id]
		if why == "" && failed[id] == nil {
			continue // this worker was reached
		}
		src := localSource{record.LogPath(dir, id)}
		if _, err := src.size(ctx); errors.Is(err, os.ErrNotExist) || dir == "" {
			failed[id] = cmp.Or(failed[id], fmt.Errorf("%s, and this machine has no copy of the log", why))
			continue
		}
		l.logs = append(l.logs, &oneLog{id: id, src: src})
		if why != "" && !slices.Contains(told, why) {
			told = append(told, why)
			event.Notef(l.Sink, event.Warn, "", "%s: this machine's copy of the log ends where it was lost", why)
		}
	}
	slices.SortFunc(l.logs, func(a, b *oneLog) int { return tpu.CompareWorkers(a.id, b.id) })
}

// dialLogs connects to the wanted workers. With --all it continues without the workers that
// it cannot reach. It must reach at least one.
func (l *logReader) dialLogs(ctx context.Context, sel tpu.Selection, wanted func(tpu.WorkerID) bool) (*workers.Connected, map[tpu.WorkerID]error, error) {
	if !l.o.All {
		t, err := l.Connect(ctx, sel, wanted)
		return t, map[tpu.WorkerID]error{}, err
	}
	return l.Dial(ctx, sel, wanted, true)
}

// withoutMachine returns the workers whose VMs are gone, and the reasons.
func withoutMachine(rec *record.Record, sel tpu.Selection, gone []string, ids []tpu.WorkerID) map[tpu.WorkerID]string {
	there := sel.Workers()
	lost := map[tpu.WorkerID]string{}
	for _, id := range ids {
		if name := rec.Slices[id.Slice].Name; slices.Contains(gone, name) {
			lost[id] = fmt.Sprintf("slice %s is gone", name)
		} else if !slices.Contains(there, id) {
			lost[id] = notListed(rec, id)
		}
	}
	return lost
}

// goneError returns the error for workers whose VMs are gone.
func goneError(lost map[tpu.WorkerID]string) error {
	whys := slices.Sorted(maps.Values(lost))
	return &stage.Error{Stage: stage.Discover, Text: strings.Join(slices.Compact(whys), "; ")}
}

func notListed(rec *record.Record, id tpu.WorkerID) string {
	return fmt.Sprintf("worker %s is not among the machines of slice %s", id, rec.Slices[id.Slice].Name)
}

// noWorker returns the error for a missing log of o.Worker. The parameter why, if not "",
// says what happened to the worker.
func (l *logReader) noWorker(run, why string) error {
	if why != "" {
		return &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("run %q: %s, and this machine has no copy of the log of %s", run, why, l.o.Worker)}
	}
	return &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("run %q has no worker %s", run, l.o.Worker), Advice: "workers are written s0w0, s0w1, …"}
}

// read writes the workers' logs, and follows them with o.Follow.
func (l *logReader) read(ctx context.Context, ref launch.Ref, dir string) error {
	if err := l.prepareAll(ctx, dir); err != nil {
		return err
	}
	if !l.o.Follow || l.o.All || l.logs[0].conn == nil {
		if err := l.printNow(ctx); err != nil || !l.o.Follow {
			return err
		}
	}
	return l.followAll(ctx, func(ctx context.Context, one *oneLog) error { return l.followLog(ctx, one, ref) })
}

// followAll follows the logs of all reached workers. If writing fails for one log, followAll
// stops following all of them, because a log without new text would not notice the failure.
func (l *logReader) followAll(ctx context.Context, follow func(context.Context, *oneLog) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	errs := make([]error, len(l.logs))
	var wg sync.WaitGroup
	for i, one := range l.logs {
		if one.conn == nil {
			continue
		}
		wg.Go(func() {
			errs[i] = follow(ctx, one)
			if failed := (*sinkError)(nil); errors.As(errs[i], &failed) {
				stop(failed)
			}
		})
	}
	wg.Wait()
	if failed := (*sinkError)(nil); errors.As(context.Cause(ctx), &failed) {
		return failed
	}
	return l.folded(errs)
}

func (l *logReader) followLog(ctx context.Context, one *oneLog, ref launch.Ref) error {
	follow, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var w io.Writer = one.text
	if l.o.All { // whole lines, so that lines of other workers do not come between
		held := &lineHold{w: w}
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			_ = errors.Join(held.rest(), l.flush()) // the last write has reported the error
		}()
		w = held
	}
	o := l.o
	o.Worker = one.id
	_, err := launch.Follow(follow, one.conn, ref, one.text.offset, l.flushed(w), sayLosses(l.Deps, o, giveUp))
	if cause := context.Cause(follow); err != nil && cause != nil {
		return cause
	}
	return err
}

// sayLosses returns options that warn once when the worker cannot be followed, and report
// when it is followed again. After o.Lost they call giveUp.
func sayLosses(d runs.Deps, o LogOptions, giveUp context.CancelCauseFunc) launch.FollowOptions {
	var since time.Time // Lost and Found are called by one goroutine
	return launch.FollowOptions{
		Lost: func(err error, _ int64) {
			t, now := follow.TroubleOf(err), d.Clock.Now()
			if since.IsZero() {
				since = now
				event.Notef(d.Sink, event.Warn, "", t.Text(remote.LostText(err), 0, o.Lost), o.Worker)
			} else if t != follow.OurLogin && o.Lost > 0 && now.Sub(since) >= o.Lost {
				giveUp(&stage.Error{Stage: stage.Follow, Err: err, Lost: true,
					Text: fmt.Sprintf("%s cannot be followed for %s (--lost-timeout): %s", o.Worker, stage.AsTyped(o.Lost), remote.LostText(err))})
			}
		},
		Found: func() {
			if !since.IsZero() {
				event.Notef(d.Sink, event.Info, "", "connected to %s again; none of the output is lost", o.Worker)
			}
			since = time.Time{}
		},
	}
}

// firstFailure returns the end of an attempt, with the worker that failed first. It uses this
// machine's record, or else the verdict on worker 0 of each slice, or else the ends on all
// workers.
func (l *logReader) firstFailure(ctx context.Context, rec *record.Record, end *runs.RunEnd) (*runs.RunEnd, error) {
	if end != nil && end.First != nil {
		return end, nil
	}
	sel, gone, err := runs.Recorded(ctx, l.Deps, rec)
	if err != nil {
		return nil, err
	}
	// Worker 0 of each slice has the verdict. Without one, all workers are asked.
	verdict := func(id tpu.WorkerID) bool { return id.Worker == 0 }
	for _, only := range []func(tpu.WorkerID) bool{verdict, nil} {
		if len(gone) == len(rec.Slices) || end != nil && end.First != nil {
			break
		}
		if end, err = l.failureAmong(ctx, rec, sel, only, end); err != nil {
			return nil, err
		}
	}
	if end == nil || end.First == nil {
		return nil, l.noFailure(rec.Run, end)
	}
	return end, nil
}

// failureAmong asks workers which one failed first. The parameter only is a function that chooses
// the workers; nil means all. The parameter end has what the caller knows of the attempt's end.
func (l *logReader) failureAmong(ctx context.Context, rec *record.Record, sel tpu.Selection, only func(tpu.WorkerID) bool, end *runs.RunEnd) (*runs.RunEnd, error) {
	t, failed, err := l.Dial(ctx, sel, only, true)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if len(t.IDs) == 0 && only != nil {
		return end, nil
	}
	if len(t.IDs) == 0 {
		return nil, workers.Failures(stage.Connect, stage.Missing(failed), failed)
	}
	if _, _, err := runs.NewestAttempt(ctx, l.Deps, t, rec); err != nil {
		return nil, err
	}
	asked := *rec
	asked.Attempt = cmp.Or(l.o.Attempt, rec.Attempt)
	if there := runs.EndThere(ctx, t, l.Deps, &asked, only == nil); there != nil {
		end = there
	}
	if only != nil || end != nil && end.First != nil {
		return end, nil
	}
	if end == nil {
		end = &runs.RunEnd{}
	}
	end.First = runs.FirstOf(runs.Ends(ctx, t, launch.Ref{Run: rec.Run, Attempt: asked.Attempt}))
	return end, nil
}

func (l *logReader) noFailure(run string, end *runs.RunEnd) error {
	text := fmt.Sprintf("no worker of run %q is known to have failed", run)
	if end != nil && end.Text != "" {
		text += ": " + end.Say(run, l.Clock.Now())
	}
	return &stage.Error{Stage: stage.Discover, Text: text, Advice: "any log: multihost logs " + run + " --worker=s0w0; all of them: --all"}
}

// logs writes the logs of a job without runner: from the workers while they can be
// reached, otherwise from the bucket.
func logs(ctx context.Context, r *runs.BucketRun, o LogOptions, w LogSink) error {
	state, err := r.Store.State(ctx, r.Desc.Run)
	if err != nil {
		return err
	}
	attempt := cmp.Or(o.Attempt, max(1, state.Attempt))
	l := newLogReader(r.Deps, o, w)
	defer l.tellUntimed()
	var end *runs.RunEnd
	if attempt == state.Attempt {
		end = r.EndInBucket(state)
	}
	id, ok := workerOf(o, r.Desc, state, attempt)
	switch {
	case !ok && o.FirstFailure:
		return l.noFailure(r.Desc.Run, end)
	case !ok:
		return l.noWorker(r.Desc.Run, "")
	}
	l.o.Worker = id
	ids := r.Desc.IDs()
	l.tellWhich(id, ids, end)
	runs.WarnUnable(ctx, r, state)
	rec, err := r.Record(ctx, attempt)
	if attempt == state.Attempt && !r.Over(state) {
		if done, err := l.nearBy(ctx, r, rec, err, attempt); done {
			return err
		}
	}
	if !l.o.All {
		ids = []tpu.WorkerID{id}
	}
	src := func(id tpu.WorkerID) logSource {
		return bucketSource{r.Store, r.Desc.Run, id, attempt, pieceOf(len(ids))}
	}
	if err := l.readBucket(ctx, src, ids, rec.LogDir); err != nil {
		return stage.InterruptedOr(ctx, err)
	}
	if err := l.printNow(ctx); err != nil || !o.Follow {
		return stage.InterruptedOr(ctx, err)
	}
	return stage.InterruptedOr(ctx, followBucket(ctx, r, l, state, attempt))
}

// workerOf returns the worker of a job without runner whose log the user wants. ok is false
// if the job has no such worker, or none is known to have failed.
func workerOf(o LogOptions, d detach.Description, state detach.State, attempt int) (id tpu.WorkerID, ok bool) {
	if !o.FirstFailure {
		return o.Worker, o.Worker.Slice < len(d.Nodes) && o.Worker.Worker < d.Workers
	}
	first := state.Blame()
	if attempt != state.Attempt || first == nil || first.Reason != "" {
		return id, false
	}
	return first.Worker, true
}

// nearBy writes the logs of an active attempt from its workers. recErr is why rec is not
// complete. If the workers cannot be reached, done is false. The caller then continues with the
// bucket at the same offset.
func (l *logReader) nearBy(ctx context.Context, r *runs.BucketRun, rec *record.Record, recErr error, attempt int) (done bool, err error) {
	near := newLogReader(r.Deps, l.o, l.w)
	near.o.Attempt, near.o.FirstFailure, near.told, near.inBucket = attempt, false, true, true
	if err = recErr; err == nil {
		err = near.overSSH(ctx, rec)
	}
	var failed *sinkError
	if err == nil || ctx.Err() != nil || errors.As(err, &failed) || l.o.All && near.wrote {
		near.tellUntimed()
		return true, err
	}
	who := l.o.Worker.String()
	if l.o.All {
		who = tpu.Fold(r.Desc.IDs())
	}
	event.Notef(r.Sink, event.Info, "", "worker %s cannot be reached (%v): its log from the bucket, up to %s old", who, err, event.Age(time.Duration(r.Desc.Every)*time.Second))
	l.logs = near.begun()
	return false, nil
}

// readBucket makes the bucket the source of logs. These are the logs that were partly read from
// workers, or if there are none, the logs of all ids.
func (l *logReader) readBucket(ctx context.Context, src func(tpu.WorkerID) logSource, ids []tpu.WorkerID, dir string) error {
	for _, one := range l.logs {
		if err := one.goOnIn(ctx, src(one.id)); err != nil {
			return err
		}
	}
	if len(l.logs) > 0 {
		return nil
	}
	for _, id := range ids {
		l.logs = append(l.logs, &oneLog{id: id, src: src(id)})
	}
	return l.prepareAll(ctx, dir)
}

// begun returns the logs that were read in part, or nil.
func (l *logReader) begun() []*oneLog {
	if !l.wrote {
		return nil
	}
	return l.logs
}

// followBucket writes the logs as they grow in the bucket, until they grow no more.
func followBucket(ctx context.Context, r *runs.BucketRun, l *logReader, state detach.State, attempt int) error {
	more := func() error {
		for _, one := range l.logs {
			if err := one.copy(ctx, l.flushed(one.text)); err != nil {
				return err
			}
		}
		return nil
	}
	for slices.ContainsFunc(l.logs, func(one *oneLog) bool { return !endedOn(r, state, one.id, attempt) }) {
		if err := r.Pause(ctx); err != nil {
			return err
		}
		if err := r.StillThere(ctx, state); err != nil {
			_ = more()
			return err
		}
		var err error
		if state, err = r.Store.State(ctx, r.Desc.Run); err != nil {
			return err
		}
		runs.WarnUnable(ctx, r, state)
		if err := more(); err != nil {
			return err
		}
	}
	return nil
}

// endedOn reports whether a worker's log in the bucket is complete. A worker writes its end after
// its log.
func endedOn(r *runs.BucketRun, state detach.State, id tpu.WorkerID, attempt int) bool {
	if attempt < state.Attempt || r.Over(state) {
		return true
	}
	return slices.ContainsFunc(state.Ended, func(e detach.End) bool { return e.Worker == id })
}

// A sinkError says that the logs could not be shown.
type sinkError struct{ error }

func (e *sinkError) Unwrap() error { return e.error }

// RecordedIDs returns the workers of a run from this machine's record. Without a record it
// returns only s0w0.
func RecordedIDs(stateDir, run string) []tpu.WorkerID {
	rec, err := record.LoadRecord(stateDir, run)
	if err != nil || rec == nil || len(rec.IDs()) == 0 {
		return []tpu.WorkerID{{}}
	}
	return rec.IDs()
}
