package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/tpu"
)

// following is a started run whose output is brought home until it ends.
type following struct {
	*Deps
	team  *team
	ref   launch.Ref
	rec   *Record
	watch *stopwatch
	skew  time.Duration

	failFast bool
	timeout  time.Duration
	grace    time.Duration
	strict   bool
	attached bool // this command did not start the run: an interrupt leaves it running

	ends []ending
}

// ending is how the command ended on one worker.
type ending struct {
	known bool
	exit  launch.Exit
	err   error     // it could not be learned
	at    time.Time // by the worker's clock, corrected to the runner's
}

func (e ending) failed() bool { return e.err != nil || e.exit.Code != 0 }

// stopping is a stop of all workers under way.
type stopping struct {
	reason string
	cause  error // why, for the caller: *Interrupted, a timeout; nil is fail-fast
	done   chan error
}

func (f *following) do(ctx context.Context) (Outcome, error) {
	begin := f.Clock.Now()
	f.Sink.Emit(event.Phase{Name: "run", State: event.Started, Detail: f.rec.Command})
	stop, err := f.untilEnd(ctx)
	f.watch.times = append(f.watch.times, event.PhaseTime{Name: "run", Elapsed: f.Clock.Now().Sub(begin)})
	if err != nil {
		return Outcome{Started: true}, err
	}
	return f.conclude(stop)
}

// untilEnd waits until the command has ended on every worker. It starts at
// most one stop of all of them: at the first failure, at the deadline or when
// ctx ends. The error says that following ended before the command did.
func (f *following) untilEnd(ctx context.Context) (*stopping, error) {
	// Following outlives ctx: what the command prints while it is being stopped
	// is part of its log.
	followCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	n := len(f.team.ids)
	f.ends = make([]ending, n)
	type endOf struct {
		worker int
		ending
	}
	ended := make(chan endOf, n)
	for i := range n {
		go func() { ended <- endOf{i, f.followWorker(followCtx, i)} }()
	}
	waitAll := func(from int) {
		cancel()
		for range n - from {
			<-ended
		}
	}

	var (
		stop     *stopping
		stopped  chan error
		deadline <-chan time.Time
		overdue  <-chan time.Time
	)
	if f.timeout > 0 {
		deadline = f.Clock.After(f.timeout)
	}
	begin := func(reason string, cause error) {
		if stop == nil {
			stop = f.beginStop(ctx, reason, cause)
			stopped = stop.done
		}
	}
	interrupted := ctx.Done()
	for count := 0; count < n; {
		select {
		case end := <-ended:
			count++
			i, e := end.worker, end.ending
			f.ends[i] = e
			f.Sink.Emit(event.WorkerDone{
				Slice: f.team.ids[i].Slice, Worker: f.team.ids[i].Worker,
				Code: e.exit.Code, Signal: e.exit.Signal, Reason: e.exit.Reason, End: e.at,
			})
			f.Sink.Emit(event.Progress{Phase: "run", Done: count, Total: n, Waiting: f.unfinished(), Elapsed: f.Clock.Now().Sub(f.rec.Created)})
			if e.failed() && f.failFast {
				begin(fmt.Sprintf("fail-fast: %s failed first", f.team.ids[i]), nil)
			}
		case <-interrupted:
			interrupted = nil
			cause := context.Cause(ctx)
			var in *Interrupted
			if f.attached || errors.As(cause, &in) && in.Signal == syscall.SIGHUP {
				waitAll(count)
				note(f.Sink, event.Info, "follow it with: multihost attach "+f.ref.Run+"; end it with: multihost stop "+f.ref.Run,
					"left run %s: it goes on on %s", f.ref.Run, tpu.Fold(f.team.ids))
				return nil, cause
			}
			begin(cause.Error(), cause)
		case <-deadline:
			begin(fmt.Sprintf("--timeout=%s has passed", f.timeout), &Error{Stage: StageTimeout, Text: fmt.Sprintf("the command ran longer than %s and was stopped", f.timeout)})
		case err := <-stopped:
			stopped = nil
			if err != nil {
				waitAll(count)
				return nil, errors.Join(stop.cause, err)
			}
			overdue = f.Clock.After(30 * time.Second)
		case <-overdue:
			waitAll(count)
			return nil, errors.Join(stop.cause, &Error{Stage: StageStop, Text: "the command is gone, but the end of the log of " + f.unfinished() + " could not be read",
				HintTxt: "read it with: multihost logs " + f.ref.Run})
		case <-f.Leave:
			waiting := f.unfinished()
			waitAll(count)
			if stopped != nil {
				<-stopped
			}
			return nil, errors.Join(context.Cause(ctx), &Error{Stage: StageStop, Text: fmt.Sprintf("left before run %s was proven stopped; it may still run on %s", f.ref.Run, waiting),
				HintTxt: "end it with: multihost stop " + f.ref.Run})
		}
	}
	if stopped != nil {
		if err := <-stopped; err != nil {
			return nil, errors.Join(stop.cause, err)
		}
	}
	return stop, nil
}

// unfinished folds the workers whose end is not known.
func (f *following) unfinished() string {
	var open []tpu.WorkerID
	for i, e := range f.ends {
		if !e.known {
			open = append(open, f.team.ids[i])
		}
	}
	return tpu.Fold(open)
}

func (f *following) beginStop(ctx context.Context, reason string, cause error) *stopping {
	s := &stopping{reason: reason, cause: cause, done: make(chan error, 1)}
	note(f.Sink, event.Warn, "", "stopping run %s on all workers: %s", f.ref.Run, reason)
	go func() {
		stopCtx, cancel := f.detached(ctx, f.grace+2*time.Minute)
		defer cancel()
		s.done <- f.team.stopAll(stopCtx, f.Sink, f.ref, f.grace, reason)
	}()
	return s
}

// followWorker copies the worker's output into its log file and to the view
// until the command has ended.
func (f *following) followWorker(ctx context.Context, i int) ending {
	log, err := openLog(f.rec, f.team.ids[i], f.Sink)
	if err != nil {
		return ending{known: true, err: err, at: f.Clock.Now()}
	}
	workerCtx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	out := outage{f: f, i: i, giveUp: giveUp}
	exit, err := launch.Follow(workerCtx, f.team.conns[i], f.ref, log.size, log, launch.FollowOptions{
		Lost: func(err error, _ int64) { out.lost(workerCtx, err) },
	})
	log.close()
	if cause := context.Cause(workerCtx); err != nil && cause != nil && ctx.Err() == nil {
		err = cause
	}
	if err != nil {
		return ending{known: ctx.Err() == nil, err: err, at: f.Clock.Now()}
	}
	return ending{known: true, exit: exit, at: exit.End.Add(-f.team.conns[i].ClockOffset())}
}

// lostLimit is how long a worker that cannot be reached is waited for. A VM
// that reboots or migrates is back within minutes; a network that is away for
// longer leaves the command running, and attach finds it again.
const lostLimit = 10 * time.Minute

// outage is the time during which one worker cannot be reached.
type outage struct {
	f           *following
	i           int
	giveUp      context.CancelCauseFunc
	begin, last time.Time
}

// lost is told of every failed try. It says once per outage that the worker is
// lost, and gives up when its slice is gone or the outage lasts too long.
func (o *outage) lost(ctx context.Context, err error) {
	now := o.f.Clock.Now()
	if o.begin.IsZero() || now.Sub(o.last) > o.f.Access.RetryFor+time.Minute {
		o.begin = now
		note(o.f.Sink, event.Warn, "", "lost the connection to %s (%v); its command goes on, connecting again", o.f.team.ids[o.i], err)
	}
	o.last = now
	s := o.f.team.slice(o.i)
	fresh, apiErr := o.f.Cloud.Slice(ctx, s.Name)
	switch {
	case gcp.ClassOf(apiErr) == gcp.NotFound, apiErr == nil && fresh.UID != s.UID:
		o.giveUp(fmt.Errorf("slice %q is gone", s.Name))
	case apiErr == nil && (fresh.State == "PREEMPTED" || fresh.State == "TERMINATED" || fresh.State == "DELETING" || fresh.State == "STOPPED"):
		o.giveUp(fmt.Errorf("slice %q is %s", s.Name, fresh.State))
	case now.Sub(o.begin) > lostLimit:
		o.giveUp(fmt.Errorf("worker not reachable for %s: %w", lostLimit, err))
	}
}

// conclude says how the run ended and decides the exit status.
func (f *following) conclude(stop *stopping) (Outcome, error) {
	code, first := f.verdict()
	f.rec.Ended, f.rec.Code = true, code
	if err := f.rec.save(f.StateDir); err != nil {
		note(f.Sink, event.Warn, "", "%v", err)
	}
	sum := event.Summary{
		Run: f.ref.Run, Attempt: f.ref.Attempt, OK: code == 0, ExitCode: code,
		LogDir: f.rec.LogDir, Phases: f.watch.times, Skew: f.skew,
	}
	n := len(f.team.ids)
	switch {
	case stop != nil && stop.cause != nil:
		sum.OK = false
		sum.Text = fmt.Sprintf("run %s was stopped on %s: %s; no process of it is left", f.ref.Run, onAll(n), stop.reason)
	case first >= 0 && code == 0:
		sum.Text = fmt.Sprintf("run %s completed; unclean exit on %s after worker 0 had succeeded", f.ref.Run, f.failedWorkers())
	case first >= 0:
		sum.FirstFail = f.team.ids[first].String() + ": " + f.ends[first].text()
		sum.LastLines = lastLines(f.rec.logPath(f.team.ids[first]), 20)
		sum.Text = fmt.Sprintf("run %s failed: %s was first, %s", f.ref.Run, f.team.ids[first], f.ends[first].text())
	default:
		sum.Text = fmt.Sprintf("run %s succeeded on %s", f.ref.Run, onAll(n))
	}
	var cause error
	if stop != nil {
		cause = stop.cause
	}
	var in *Interrupted
	if errors.As(cause, &in) {
		if sig, ok := in.Signal.(syscall.Signal); ok {
			sum.ExitCode = 128 + int(sig)
		}
	} else if cause != nil {
		sum.ExitCode = 75
	}
	f.Sink.Emit(sum)
	return Outcome{Code: code, Started: true}, cause
}

// uncleanWindow is how long after the success of worker 0 a failure elsewhere
// is taken for the others' noisy shutdown (barriers that lose their leader).
const uncleanWindow = time.Minute

// verdict returns the exit status and the index of the first worker to fail,
// -1 when none did. A worker that we stopped is not to blame for its end.
func (f *following) verdict() (code, first int) {
	first = -1
	for _, i := range resultOrder(f.ends) {
		if e := f.ends[i]; e.failed() && e.exit.Reason == "" {
			first = i
			break
		}
	}
	if first < 0 {
		for i, e := range f.ends {
			if e.failed() {
				return e.code(), i
			}
		}
		return 0, -1
	}
	lead := f.ends[0]
	after := f.ends[first].at.Sub(lead.at)
	if !lead.failed() && after >= 0 && after < uncleanWindow && !f.strict {
		return 0, first
	}
	return f.ends[first].code(), first
}

func onAll(workers int) string {
	if workers == 1 {
		return "its worker"
	}
	return fmt.Sprintf("all %d workers", workers)
}

func (f *following) failedWorkers() string {
	var ids []tpu.WorkerID
	for i, e := range f.ends {
		if e.failed() {
			ids = append(ids, f.team.ids[i])
		}
	}
	return tpu.Fold(ids)
}

func (e ending) code() int {
	if e.err != nil {
		return 69
	}
	return e.exit.Code
}

func (e ending) text() string {
	switch {
	case e.err != nil:
		return e.err.Error()
	case e.exit.Signal != "" && e.exit.OOM:
		return "killed by SIG" + e.exit.Signal + ": the worker ran out of memory"
	case e.exit.Signal != "":
		return "killed by SIG" + e.exit.Signal
	}
	return fmt.Sprintf("exit code %d", e.exit.Code)
}

// resultOrder lists the workers by when their command ended.
func resultOrder(ends []ending) []int {
	order := make([]int, len(ends))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return ends[a].at.Compare(ends[b].at) })
	return order
}

// logFile is the local copy of one worker's output. It is at every moment a
// prefix of the worker's file. When the disk takes no more, the view goes on
// and the file stays the prefix it was.
type logFile struct {
	id     tpu.WorkerID
	file   *os.File
	size   int64
	sink   event.Sink
	broken bool
}

func openLog(rec *Record, id tpu.WorkerID, sink event.Sink) (*logFile, error) {
	file, err := os.OpenFile(rec.logPath(id), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open log: %w", err)
	}
	return &logFile{id: id, file: file, size: size, sink: sink}, nil
}

// Write never fails: losing the local copy must not end the run.
func (l *logFile) Write(p []byte) (int, error) {
	if !l.broken {
		n, err := l.file.Write(p)
		l.size += int64(n)
		if err != nil {
			l.broken = true
			note(l.sink, event.Warn, "free some space, then fetch the whole log with: multihost logs",
				"the log of %s is cut at %d bytes: %v; the run goes on and the worker keeps the whole log", l.id, l.size, err)
		}
	}
	l.sink.Emit(event.Output{Slice: l.id.Slice, Worker: l.id.Worker, Data: p})
	return len(p), nil
}

func (l *logFile) close() {
	if err := l.file.Close(); err != nil && !l.broken {
		note(l.sink, event.Warn, "", "close the log of %s: %v", l.id, err)
	}
}

// lastLines returns the last n lines of a file, reading at most its last
// 64 KiB.
func lastLines(path string, n int) []string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	const window = 64 << 10
	if size, err := file.Seek(0, io.SeekEnd); err == nil {
		file.Seek(max(0, size-window), io.SeekStart)
	}
	data, err := io.ReadAll(file)
	if err != nil || len(data) == 0 {
		return nil
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}
