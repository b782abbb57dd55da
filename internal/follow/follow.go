// Package follow copies the logs of a command here until the command has ended on every
// worker, and judges who failed first. It stops the command on all workers when one has
// failed or the user says so, and waits out outages.
package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/mask"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/training"
	"multihost/internal/workers"
)

// A Following is a started run whose output is copied to this machine until it ends.
type Following struct {
	*workers.Deps
	Workers *workers.Connected
	Ref     launch.Ref
	Rec     *record.Record
	Watch   *stage.Stopwatch
	Skew    time.Duration

	FailFast bool
	Timeout  time.Duration
	Grace    time.Duration
	Strict   bool
	Watching WatchOptions
	Patience Patience
	Secrets  [][]byte   // masked in the output that is shown, never in its files
	Attached bool       // this command did not start the run, so an interrupt leaves it running
	Wraps    [][]string // per worker: words before the command, if this command started it
	Deletes  bool       // this command deletes the slices after a success, or sees only a part of the run: it does not mark it as seen

	// Reads, if set, takes the output of each worker in place of its log file. Such a
	// following changes nothing, neither on the workers nor on this machine, and stops
	// nobody.
	Reads []*training.ReadLog

	Begin    time.Time
	Ends     []Ending
	Outages  []Outage
	Stirred  chan struct{} // holds one token when outages have changed
	lowDisks LowDisks
	cutLogs  cutLogs
	logs     LogWait
	window   *launch.Window
	silent   workers.Silence // what the status line says now
	Sum      *event.Summary  // of an end that this process saw, for the caller to emit
	Watcher  *Watcher
}

// Ending is how the command ended on one worker.
type Ending struct {
	Known  bool
	Exit   launch.Exit
	Tail   bool      // it looks like a training's tail, see Leaves
	behind int       // processes that the command left behind and that were then killed
	part   *PartLog  // set when only the beginning of the log is here; nil: all of it
	Err    error     // why the end could not be learned
	at     time.Time // by the worker's clock, corrected to the runner's clock
}

// fate decides about a worker that is no longer followed.
func (e Ending) fate() fate {
	if !e.Known {
		return fateRetry
	}
	return fateOf(evidence{recorded: e.Err == nil, gone: errors.Is(e.Err, ErrSliceGone), trouble: strange}, 0)
}

func (e Ending) failed() bool { return e.Err != nil || e.Exit.Code != 0 || e.Exit.Lost }

// stopping is a stop of all workers in progress.
type stopping struct {
	reason string
	cause  error // why, for the caller: *Interrupted or a timeout; nil means fail-fast
	err    error // set if it could not be proven that all have stopped
	done   chan error
}

// Do follows the command until it has ended on every worker, and reports the outcome.
func (f *Following) Do(ctx context.Context) (stage.Outcome, error) {
	f.Begin = f.Clock.Now()
	defer f.runs()()
	f.Sink.Emit(event.Phase{Name: "run", State: event.Started, Detail: f.Rec.Command})
	f.Sink.Emit(f.progress())
	stop, err := f.untilEnd(ctx)
	elapsed := f.Clock.Now().Sub(f.Begin)
	f.Watch.Add("run", elapsed)
	if err != nil {
		end := event.Phase{Name: "run", State: event.Failed, Elapsed: elapsed}
		if stop == nil && ctx.Err() != nil {
			end.State, end.Detail = event.Done, "left running"
		}
		f.Sink.Emit(end)
		return stage.Outcome{Started: true}, err
	}
	end := event.Phase{Name: "run", State: event.Done, Elapsed: elapsed}
	if stop != nil {
		end.Detail = "stopped"
	}
	f.Sink.Emit(end)
	if stop == nil || stop.err == nil { // otherwise workers cannot be reached
		f.bringLogs(ctx)
	}
	return f.conclude(ctx, stop)
}

// WorkerEnded reports how the command ended on a worker, and the progress.
func (f *Following) WorkerEnded(e EndOf) {
	done := event.WorkerDone{
		Slice: f.Workers.IDs[e.Worker].Slice, Worker: f.Workers.IDs[e.Worker].Worker,
		Code: e.code(), Signal: e.Exit.Signal, Reason: e.Exit.Reason, End: e.at,
	}
	if e.Err != nil {
		done.Error = e.Err.Error()
	}
	f.Sink.Emit(done)
	f.Sink.Emit(f.progress())
}

// progress says on how many workers the command has ended, and which are not heard.
func (f *Following) progress() event.Progress {
	p := event.Progress{Phase: "run", Total: len(f.Workers.IDs)}
	for _, end := range f.Ends {
		if end.Known {
			p.Done++
		}
	}
	if p.Done > 0 {
		p.Waiting = f.Unfinished()
	}
	if f.Ends != nil {
		p.Elapsed = f.Clock.Now().Sub(f.Begin)
	}
	p.Silent, p.SilentSince = f.silent.Fields()
	return p
}

// tellSilence shows from which workers nothing is heard, when that has changed.
func (f *Following) tellSilence() {
	now := f.Workers.Silence(func(i int) bool { return !f.Ends[i].Known }, f.Begin, f.Clock.Now())
	if now != f.silent {
		f.silent = now
		f.Sink.Emit(f.progress())
	}
}

// those names the workers whose end is as is says.
func (f *Following) those(is func(Ending) bool) string {
	var ids []tpu.WorkerID
	for i, e := range f.Ends {
		if is(e) {
			ids = append(ids, f.Workers.IDs[i])
		}
	}
	return tpu.Fold(ids)
}

// Unfinished names the workers whose end is not known.
func (f *Following) Unfinished() string { return f.those(func(e Ending) bool { return !e.Known }) }

// left names the workers on which the command may still be running.
func (f *Following) left() string {
	return f.those(func(e Ending) bool { return e.fate() != fateEnded })
}

// CutOff reports whether workers could not be reached and no failure of the command is
// known: it may still be running there.
func (f *Following) CutOff() bool {
	away := false
	for _, e := range f.Ends {
		if e.fate() == fateEnded && e.failed() {
			return false
		}
		away = away || e.Err != nil
	}
	return away
}

func (f *Following) beginStop(ctx context.Context, reason string, cause error) *stopping {
	s := &stopping{reason: reason, cause: cause, done: make(chan error, 1)}
	hint := ""
	if in := (*stage.Interrupted)(nil); errors.As(cause, &in) {
		hint = "the same signal once more leaves at once, without proof"
	}
	event.Notef(f.Sink, event.Warn, hint, "stopping run %s on all workers: %s", f.Ref.Run, reason)
	go func() {
		stopCtx, cancel := f.Detached(ctx, f.Grace+2*time.Minute)
		defer cancel()
		s.done <- f.Workers.StopAll(stopCtx, f.Sink, f.Ref, f.Grace, reason, func(i int) bool { return f.Outages[i].isGone() })
	}()
	return s
}

// followWorker copies the worker's output to its log file and to the view until the
// command has ended.
func (f *Following) followWorker(ctx context.Context, i int) Ending {
	workerCtx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	if f.Reads != nil {
		return f.readWorker(ctx, workerCtx, giveUp, i)
	}
	log := openLog(f.Rec, f.Workers.IDs[i], f.Sink, f.Secrets)
	log.arrivals = f.arrivals(i)
	log.cut = func(err error) {
		f.cutLogs.add(log.id, err)
		f.stir()
	}
	steps := f.Watcher.collector.Stream(i)
	defer steps.Finish()
	log.steps = steps
	if err := f.Watcher.catchUp(i, f.Rec.LogPath(f.Workers.IDs[i]), log.size); err != nil {
		event.Notef(f.Sink, event.Warn, "", "the training steps that %s printed before are not known: %v", f.Workers.IDs[i], err)
	}
	exit, err := f.stream(workerCtx, giveUp, i, log.size, log, log.cutThere)
	var part *PartLog
	if err == nil && log.broken { // now, since the worker may be gone a moment later
		part = f.mend(workerCtx, i, log)
	}
	log.close()
	behind := 0
	if err == nil && f.Rec.Bucket == "" { // with a bucket, the worker does this itself and reports it in the bucket
		behind = f.sweep(workerCtx, i)
	}
	e := f.EndingOf(ctx, workerCtx, i, exit, err)
	if e.Err == nil {
		e.part, e.behind, e.Tail = part, behind, exit.Code != 0 && Leaves(exit, LastLines(log.path, 20, nil))
	}
	return e
}

// stream writes a worker's output, from an offset on, to w until the command has ended.
// It keeps the worker's outage up to date.
func (f *Following) stream(workerCtx context.Context, giveUp context.CancelCauseFunc, i int, from int64, w io.Writer, shorter func(*launch.TruncatedError)) (launch.Exit, error) {
	id := f.Workers.IDs[i]
	defer f.Outages[i].over()
	return launch.Follow(workerCtx, f.Workers.Conns[i], f.Ref, from, w, launch.FollowOptions{
		Look:   f.Reads != nil,
		Window: f.window, QuietAfter: f.Patience.Quiet,
		Lost:    func(err error, _ int64) { f.Outages[i].Lost(f, i, giveUp, err) },
		Found:   func() { f.Outages[i].back(f) },
		Shorter: shorter,
		LowDisk: func(d launch.Disk) { f.lowDisks.Add(id, d) },
		Quiet: func(s launch.Silence) {
			f.quiet(id, s)
			if s.Err == nil && s.State.Disk.Low() {
				f.lowDisks.Add(id, s.State.Disk)
			}
		},
		Full: func(limit int64) {
			event.Notef(f.Sink, event.Warn, "", "the output of %s has reached %s (--max-log): the command goes on, more is not kept", id, event.Bytes(limit))
		},
	})
}

// EndingOf returns the end of a worker that was followed under workerCtx, a child of
// ctx.
func (f *Following) EndingOf(ctx, workerCtx context.Context, i int, exit launch.Exit, err error) Ending {
	if ctx.Err() != nil && err != nil { // not the worker's fault: following was given up
		return Ending{Err: err, at: f.Clock.Now()}
	}
	if cause := context.Cause(workerCtx); err != nil && cause != nil {
		err = cause
	} else if err != nil { // the worker's first answer was an error
		err = &lostError{trouble: strange, err: err}
	}
	if err != nil {
		return Ending{Known: true, Err: err, at: f.Clock.Now()}
	}
	at := exit.End.Add(-f.Workers.Conns[i].ClockOffset())
	if exit.Lost || exit.End.IsZero() { // nobody on the worker saw the end
		at = f.Clock.Now()
	}
	return Ending{Known: true, Exit: exit, at: at}
}

// readWorker is followWorker for a following that only reads.
func (f *Following) readWorker(ctx, workerCtx context.Context, giveUp context.CancelCauseFunc, i int) Ending {
	if f.Workers.IsAway(i) {
		f.Outages[i].Lost(f, i, giveUp, f.Workers.Away[i])
	}
	log := f.Reads[i]
	at := log.Offset()
	exit, err := f.stream(workerCtx, giveUp, i, at, log.From(at), nil)
	e := f.EndingOf(ctx, workerCtx, i, exit, err)
	e.Tail = e.Err == nil && exit.Code != 0 && Leaves(exit, log.LastLines(20))
	return e
}

// followWindow limits the bytes in transit from all workers together.
const followWindow = 128 << 20

func (f *Following) quiet(id tpu.WorkerID, s launch.Silence) {
	silent := event.Duration(s.Since)
	switch {
	case s.Err != nil:
		event.Notef(f.Sink, event.Warn, "", "%s: no output for %s, and it does not answer: %s", id, silent, stage.CauseText(s.Err, id))
	case s.State.Left == 0:
		event.Notef(f.Sink, event.Warn, "", "%s: no output for %s, and no process of the run is alive", id, silent)
	case s.CPU < 0:
		event.Notef(f.Sink, event.Warn, "", "%s: no output for %s, process alive", id, silent)
	default:
		event.Notef(f.Sink, event.Warn, "", "%s: no output for %s, process alive, CPU %.0f %%", id, silent, 100*s.CPU)
	}
}

// sweep stops what the command left behind on a worker, and reports what still holds
// the TPU. It returns how many processes it found.
func (f *Following) sweep(ctx context.Context, i int) (ended int) {
	id := f.Workers.IDs[i]
	rep, err := launch.Sweep(ctx, f.Workers.Conns[i], f.Ref, launch.StopOptions{Grace: f.Grace, Reason: "left behind by the command"})
	switch {
	case err != nil:
		event.Notef(f.Sink, event.Warn, "multihost stop "+f.Ref.Run, "%s: whether the command left processes is not known: %s", id, stage.CauseText(err, id))
	case len(rep.Survivors) > 0:
		event.Notef(f.Sink, event.Warn, "multihost stop "+f.Ref.Run, "%s: processes of the command are left: %v", id, rep.Survivors)
	}
	for _, p := range rep.Devices {
		event.Notef(f.Sink, event.Warn, "", "%s: %s is still held by process %d of %s: %s", id, p.Device, p.PID, p.User, p.Command)
	}
	return rep.Found
}

// leftBehind counts the processes that the command had left in the background when it
// ended by itself, and returns the workers they were on.
func (f *Following) leftBehind() (n int, ids []tpu.WorkerID) {
	for i, e := range f.Ends {
		if e.behind > 0 && e.Exit.Reason == "" {
			n, ids = n+e.behind, append(ids, f.Workers.IDs[i])
		}
	}
	return n, ids
}

const (
	// OutageLook is how often the cloud is asked about slices with lost workers.
	OutageLook = 10 * time.Second
	// longestLook limits the pause while the cloud does not answer: each try is
	// reported.
	longestLook = 2 * time.Minute
)

// ErrSliceGone marks the end of a worker whose slice the API reports as gone or taken
// away. Nothing of the command can be running there.
var ErrSliceGone = fault.New(fault.Unavailable, "nothing runs there any more")

// Outage is the time during which one worker cannot be reached.
type Outage struct {
	mu     sync.Mutex
	giveUp context.CancelCauseFunc // nil: no outage
	begin  time.Time               // start of the time that counts towards the limit
	kind   trouble                 // of the last failed try
	cause  string                  // of the last failed try, for people
	gone   bool                    // the worker's slice is gone

	said      time.Time // when it was last reported
	saidKind  trouble   // the kind that was then reported
	told      bool      // this outage was reported
	recovered bool      // it is over, and that was not reported yet
}

func (o *Outage) isGone() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.gone
}

// Lost records a failed try to follow the worker.
func (o *Outage) Lost(f *Following, i int, giveUp context.CancelCauseFunc, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := f.Clock.Now()
	if o.giveUp == nil {
		o.begin = now
		if o.recovered { // the recovery was too short to be reported
			o.recovered, o.told = false, true
		}
		f.stir()
	}
	o.giveUp = giveUp
	o.kind, o.cause = TroubleOf(err), remote.LostText(errors.New(stage.CauseText(err, f.Workers.IDs[i])))
	if o.told && o.kind != o.saidKind {
		f.stir()
	}
	if o.kind == OurLogin {
		o.begin = now // it is not the worker that is lost
	}
	limit := f.Patience.Lost
	if fateOf(evidence{trouble: o.kind, away: now.Sub(o.begin)}, limit) == fateLost {
		giveUp(&lostError{o.kind, limit, err})
	}
}

// back records that the worker is followed, or followed again.
func (o *Outage) back(f *Following) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.giveUp == nil {
		return
	}
	o.giveUp = nil
	o.recovered, o.told = o.told, false
	f.stir()
}

// stir causes the outages to be reported after workers.OutagePause.
func (f *Following) stir() {
	select {
	case f.Stirred <- struct{}{}:
	default:
	}
}

// tellOutages reports which workers have become impossible to follow since the last
// report, and which are followed again. Repeated outages of a worker are reported at
// most once a minute. A long outage is reported again each time its length has doubled.
func (f *Following) tellOutages() {
	f.cutLogs.tell(f.Sink, f.Ref.Run)
	var back []tpu.WorkerID
	texts := make([]string, len(f.Outages))
	limit := f.Patience.Lost
	for i := range f.Outages {
		o, id := &f.Outages[i], f.Workers.IDs[i]
		o.mu.Lock()
		now := f.Clock.Now()
		away := now.Sub(o.begin)
		text := ""
		switch {
		case o.giveUp == nil:
		case !o.told && (o.said.IsZero() || now.Sub(o.said) > time.Minute):
			text = o.kind.Text(o.cause, 0, limit)
		case o.told && o.kind != o.saidKind: // the kind of trouble has changed
			text = o.kind.Text(o.cause, 0, limit)
		case o.told && now.Sub(o.said) >= max(away/2, time.Minute):
			text = o.kind.Text(o.cause, away, limit)
		}
		if text != "" {
			o.told, o.said, o.saidKind = true, now, o.kind
			texts[i] = text
		}
		if o.recovered {
			o.recovered = false
			back = append(back, id)
		}
		o.mu.Unlock()
	}
	for _, g := range tpu.GroupAlike(texts) {
		lost := make([]tpu.WorkerID, len(g.At))
		for i, at := range g.At {
			lost[i] = f.Workers.IDs[at]
		}
		event.Notef(f.Sink, event.Warn, "", g.Text, tpu.FoldShort(lost))
	}
	if len(back) > 0 {
		event.Notef(f.Sink, event.Info, "", "connected to %s again; none of the output is lost", tpu.Fold(back))
	}
}

// away reports whether any worker cannot be followed now.
func (f *Following) away() bool {
	for i := range f.Outages {
		o := &f.Outages[i]
		o.mu.Lock()
		away := o.giveUp != nil
		o.mu.Unlock()
		if away {
			return true
		}
	}
	return false
}

// OutOfReach returns the workers that cannot be followed now, with the cause.
func (f *Following) OutOfReach() map[tpu.WorkerID]string {
	away := map[tpu.WorkerID]string{}
	for i := range f.Outages {
		o := &f.Outages[i]
		o.mu.Lock()
		if o.giveUp != nil {
			away[f.Workers.IDs[i]] = o.cause
		}
		o.mu.Unlock()
	}
	return away
}

func (o *Outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.giveUp = nil
}

// lookAtOutages asks the cloud, by one call for all, whether the slices of lost workers
// still exist. It gives up the workers whose slices do not. It returns the pause before
// the next look; pause is the one before this look.
func (f *Following) lookAtOutages(ctx context.Context, pause time.Duration) time.Duration {
	var lost []int
	for i := range f.Outages {
		f.Outages[i].mu.Lock()
		if f.Outages[i].giveUp != nil {
			lost = append(lost, i)
		}
		f.Outages[i].mu.Unlock()
	}
	if len(lost) == 0 {
		return OutageLook
	}
	f.tellOutages()
	ctx, cancel := context.WithTimeout(ctx, OutageLook/2)
	defer cancel()
	nodes, err := f.Cloud.Slices(ctx)
	if err != nil {
		f.offline(lost, err)
		if limit := f.Patience.Lost; limit > 0 { // the limit must not pass between two looks
			return min(2*pause, longestLook, max(limit/2, OutageLook))
		}
		return min(2*pause, longestLook)
	}
	for _, i := range lost {
		if why := LostSlice(nodes, f.Workers.Slice(i)); why != "" {
			f.Outages[i].mu.Lock()
			f.Outages[i].gone = true
			if giveUp := f.Outages[i].giveUp; giveUp != nil {
				giveUp(fmt.Errorf("%s: %w", why, ErrSliceGone))
			}
			f.Outages[i].mu.Unlock()
		}
	}
	return OutageLook
}

// offline handles an outage of all workers at a time when the API cannot be reached
// either. It blames this machine's network: the outages count from now, so no worker is
// lost for it and what runs there goes on.
func (f *Following) offline(lost []int, err error) {
	open := 0
	for _, e := range f.Ends {
		if !e.Known {
			open++
		}
	}
	switch gcp.ClassOf(err) {
	case gcp.Permission, gcp.Invalid, gcp.NotFound, gcp.Quota: // the API has answered
		return
	}
	if len(lost) < open {
		return
	}
	now := f.Clock.Now()
	for _, i := range lost {
		f.Outages[i].mu.Lock()
		f.Outages[i].begin = now
		f.Outages[i].mu.Unlock()
	}
}

// LostSlice says why the slice cannot run anything any more, or "".
func LostSlice(nodes []tpu.Slice, s tpu.Slice) string {
	for _, n := range nodes {
		if n.Name != s.Name || n.UID != s.UID {
			continue
		}
		if n.Condition.Over() {
			return fmt.Sprintf("slice %q is %s", s.Name, n.State)
		}
		return ""
	}
	return fmt.Sprintf("slice %q is gone", s.Name)
}

// LowDisks gathers the workers with little free space, to report them in one line and
// each worker only once. The zero value is ready for use. It is safe for concurrent
// use.
type LowDisks struct {
	mu    sync.Mutex
	known map[tpu.WorkerID]bool
	fresh []tpu.WorkerID // not yet reported
	least launch.Disk    // of the fresh workers
	on    tpu.WorkerID   // the worker that has it
}

// Add notes a worker whose disk is low. It counts each worker once.
func (l *LowDisks) Add(id tpu.WorkerID, d launch.Disk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[id] {
		return
	}
	if l.known == nil {
		l.known = map[tpu.WorkerID]bool{}
	}
	l.known[id] = true
	if len(l.fresh) == 0 || d.Free < l.least.Free {
		l.least, l.on = d, id
	}
	l.fresh = append(l.fresh, id)
}

// What a low disk is used for, and what happens when it is full.
const (
	OutputDisk = "where the output is kept; when less than a fiftieth is, it is kept no more, and the run goes on"
	TmpDisk    = "in /tmp; a command that writes there fails when it is full"
)

// Tell warns about the workers added since the last call, in one line. what says what the
// disk is used for.
func (l *LowDisks) Tell(sink event.Sink, what string) {
	l.mu.Lock()
	fresh, least, on := l.fresh, l.least, l.on
	l.fresh = nil
	l.mu.Unlock()
	if len(fresh) == 0 {
		return
	}
	much := fmt.Sprintf("%s (%.0f %%) is free", event.Bytes(least.Free), 100*float64(least.Free)/float64(least.Size))
	if len(fresh) > 1 {
		much = fmt.Sprintf("less than a tenth is free (on %s %s, %.0f %%)", on, event.Bytes(least.Free), 100*float64(least.Free)/float64(least.Size))
	}
	event.Notef(sink, event.Warn, stage.DiskCure, "%s: %s %s", tpu.Fold(fresh), much, what)
}

// tellDropped reports the workers whose log does not hold all that the command printed.
func (f *Following) tellDropped() {
	var ids []tpu.WorkerID
	var most int64
	for i, e := range f.Ends {
		if e.Known && e.Exit.Dropped > 0 {
			ids, most = append(ids, f.Workers.IDs[i]), max(most, e.Exit.Dropped)
		}
	}
	if len(ids) > 0 {
		event.Notef(f.Sink, event.Warn, "", "%s: up to %s of the output were not kept: it reached --max-log, or the disk was full", tpu.Fold(ids), event.Bytes(most))
	}
}

// conclude reports how the run ended and decides the exit status.
func (f *Following) conclude(ctx context.Context, stop *stopping) (stage.Outcome, error) {
	f.lowDisks.Tell(f.Sink, OutputDisk)
	f.cutLogs.tell(f.Sink, f.Ref.Run)
	f.tellDropped()
	code, first := f.Verdict()
	if f.Reads == nil {
		f.keepEnd(stop, code)
	}
	sum, cause := f.Judge(stop, code, first)
	f.Sum = &sum
	if f.Reads == nil && first >= 0 && f.Ends[first].Known && f.Ends[first].Exit.Reason == "" && len(f.Ends) > 1 {
		f.keepVerdict(ctx, f.blame(first))
	}
	if f.Reads == nil && !f.Deletes && code == 0 && cause == nil && f.Rec.Ended && f.partly() == nil {
		f.onFirst(ctx, func(ctx context.Context, c remote.Runner) error { return launch.KeepSeen(ctx, c, f.Ref, f.Owner) })
	}
	return stage.Outcome{Code: code, Started: true, PartLogs: f.partly() != nil, KeepLogs: f.partly().there() && !stop.slicesGo(f.Deletes)}, cause
}

// keepVerdict stores how the attempt ended as a whole on worker 0 of each slice, which
// ps asks. A worker that it does not reach reports how the command ended there.
func (f *Following) keepVerdict(ctx context.Context, text string) {
	f.onFirst(ctx, func(ctx context.Context, c remote.Runner) error { return launch.KeepVerdict(ctx, c, f.Ref, text) })
}

// onFirst calls do for worker 0 of each slice that is connected.
func (f *Following) onFirst(ctx context.Context, do func(ctx context.Context, c remote.Runner) error) {
	f.Workers.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		if f.Workers.IDs[i].Worker != 0 || f.Workers.IsAway(i) {
			return nil
		}
		return do(ctx, f.Workers.Conns[i])
	})
}

// keepEnd records how the run ended.
func (f *Following) keepEnd(stop *stopping, code int) {
	unknown := f.Unfinished()
	f.Rec.Ended, f.Rec.Code = unknown == "" && (stop == nil || stop.err == nil), code
	f.Rec.Cut = f.partly() != nil
	for _, e := range f.Ends {
		// If the slices of a job without a runner are gone, the bucket knows the end.
		if e.Err != nil && (!errors.Is(e.Err, ErrSliceGone) || f.Rec.Bucket != "") {
			f.Rec.Ended = false
		}
	}
	if err := f.Rec.Save(f.StateDir); err != nil {
		event.Notef(f.Sink, event.Warn, "", "%v", err)
	}
}

// Judge returns the summary of the run and the error that the run ends with.
func (f *Following) Judge(stop *stopping, code, first int) (event.Summary, error) {
	sum := event.Summary{
		Run: f.Ref.Run, Attempt: f.Ref.Attempt, OK: code == 0, ExitCode: code, CommandCode: code,
		LogDir: f.Rec.LogDir, Training: f.Watcher.summary(), Phases: f.Watch.Times, Skew: f.Skew,
	}
	n := len(f.Workers.IDs)
	f.tellBinding(first)
	if first >= 0 && code != 0 {
		sum.Next = "multihost logs " + f.Ref.Run + " --worker=" + f.Workers.IDs[first].String()
		sum.FirstFail = f.Workers.IDs[first].String() + ": " + f.Ends[first].Text()
		sum.LastLines = LastLines(f.Rec.LogPath(f.Workers.IDs[first]), 20, f.Secrets)
	}
	switch {
	case stop != nil && stop.err != nil:
		sum.OK = false
		if !f.Ends[max(first, 0)].Known { // the worker was left, which is no failure of its own
			sum.FirstFail, sum.LastLines = "", nil
		}
		sum.Text = fmt.Sprintf("run %s: %s", f.Ref.Run, stop.err)
		sum.Next = "multihost stop " + f.Ref.Run
	case stop != nil && stop.cause != nil:
		sum.OK = false
		sum.FirstFail, sum.LastLines = "", nil
		sum.Text = fmt.Sprintf("run %s was stopped on %s: %s; no process of it is left", f.Ref.Run, OnAll(n), stop.reason)
	case first >= 0 && f.Ends[first].Exit.Reason != "" && !f.Ends[first].Exit.Lost:
		sum.FirstFail, sum.LastLines, sum.Next = "", nil, ""
		sum.Text = fmt.Sprintf("run %s was stopped: %s", f.Ref.Run, f.Ends[first].Exit.Reason)
	case first >= 0 && f.Ends[first].fate() == fateLost:
		sum.Text = fmt.Sprintf("run %s: %s is lost, %s; the command was not touched and may go on on %s", f.Ref.Run, f.Workers.IDs[first], f.Ends[first].Text(), f.left())
		sum.Next = "follow it again with: multihost attach " + f.Ref.Run + "; end it with: multihost stop " + f.Ref.Run
	case first >= 0:
		sum.Text = fmt.Sprintf("run %s failed: %s", f.Ref.Run, f.blame(first))
	case f.failedWorkers() != "":
		SayExcused(f.Deps, &sum, f.failedWorkers())
	default:
		sum.Text = fmt.Sprintf("run %s succeeded on %s", f.Ref.Run, OnAll(n))
	}
	behind, where := f.leftBehind()
	SayLeftBehind(f.Deps, &sum, behind, where, backgroundCure)
	if f.partly() != nil && !stop.slicesGo(f.Deletes) {
		f.sayPart(&sum)
	}
	cause := stop.end(code)
	if cause != nil && f.ExitStatus != nil {
		sum.ExitCode = f.ExitStatus(cause)
	}
	return sum, cause
}

// blame says which end decided how the run ended: that of a slice or that of a worker.
func (f *Following) blame(first int) string {
	e := f.Ends[first]
	if errors.Is(e.Err, ErrSliceGone) {
		return e.Text()
	}
	return fmt.Sprintf("%s was first, %s", f.Workers.IDs[first], e.Text())
}

// tellBinding warns when the command was killed for lack of memory while it was bound
// to one NUMA node: the other half of the memory was not used.
func (f *Following) tellBinding(first int) {
	if first < 0 || first >= len(f.Wraps) || !f.Ends[first].Exit.OOM || !slices.Contains(f.Wraps[first], "--membind=0") {
		return
	}
	event.Notef(f.Sink, event.Warn, "let it use the other nodes' memory too: --numa=preferred",
		"the command on %s was killed for want of memory while it was bound to that of NUMA node 0, half of the worker's", f.Workers.IDs[first])
}

// end returns the error that a stopped run ends with: why it was stopped, and that it
// may still be running somewhere. After fail-fast it is nil if the command failed: then
// the command's own failure counts.
func (s *stopping) end(code int) error {
	switch {
	case s == nil:
		return nil
	case s.cause == nil && code != 0:
		return nil
	case s.cause == nil:
		return s.err
	case s.err == nil:
		return s.cause
	}
	return errors.Join(s.cause, s.err)
}

// Advice about a command that leaves its work in the background.
const (
	backgroundCure         = foregroundCure + "; what leaves a run going on without this machine is --detach"
	foregroundCure         = "keep the training in the foreground, without nohup, & and tmux new -d"
	BackgroundCureDetached = foregroundCure + ": the job goes on without this machine"
)

// SayExcused makes the summary of a run that succeeded name the workers whose failure
// was excused.
func SayExcused(d *workers.Deps, sum *event.Summary, workers string) {
	sum.Text = fmt.Sprintf("run %s completed; unclean exit on %s after worker 0 had succeeded", sum.Run, workers)
	event.Notef(d.Sink, event.Warn, "to make it a failure: --strict-exit",
		"%s failed within a minute after worker 0 had succeeded, by SIGABRT or by words of the distributed runtime: taken for the training's tail", workers)
}

// SayLeftBehind makes the processes that the command left in the background the
// headline of the summary.
func SayLeftBehind(d *workers.Deps, sum *event.Summary, processes int, ids []tpu.WorkerID, cure string) {
	if processes == 0 {
		return
	}
	sum.LeftBehind = processes
	text := fmt.Sprintf("the command ended and left %s in the background, which ended with it, on %s", event.Count(processes, "process"), tpu.Fold(ids))
	event.Notef(d.Sink, event.Warn, cure, "%s", text)
	if sum.OK {
		sum.Text = fmt.Sprintf("warning: run %s: %s; its own status was 0", sum.Run, text)
		sum.Next = cure
	}
}

// Verdict returns the exit status and the index of the first worker to fail, or -1 if
// none failed. A worker that was stopped by multihost is not blamed for its end.
//
// The status is 0 only if every worker ended with 0 or its failure is excused. Failures
// are excused only if nobody was stopped and every end is known.
func (f *Following) Verdict() (code, first int) {
	excuse := !f.Strict && !f.anyStopped() && !slices.ContainsFunc(f.Ends, func(e Ending) bool { return !e.Known })
	bad := func(e Ending) bool { return e.failed() && !(excuse && excused(e, f.Ends[0])) }
	for _, i := range resultOrder(f.Ends) {
		if e := f.Ends[i]; bad(e) && e.Known && (e.Exit.Reason == "" || e.Exit.Lost) {
			return e.code(), i
		}
	}
	for i, e := range f.Ends {
		if bad(e) {
			return e.code(), i
		}
	}
	return 0, -1
}

// anyStopped reports whether multihost stopped the command on some worker.
func (f *Following) anyStopped() bool {
	return slices.ContainsFunc(f.Ends, func(e Ending) bool { return e.Exit.Reason != "" && !e.Exit.Lost })
}

// OnAll names all workers of a run.
func OnAll(workers int) string {
	if workers == 1 {
		return "its worker"
	}
	return fmt.Sprintf("all %d workers", workers)
}

func (f *Following) failedWorkers() string { return f.those(Ending.failed) }

// LostCode is the exit status for a worker whose end could not be learned:
// EX_UNAVAILABLE of sysexits.
const LostCode = 69

func (e Ending) code() int {
	if e.Err != nil || e.Exit.Lost {
		return LostCode
	}
	return e.Exit.Code
}

// Text says how the command ended, or why that is not known.
func (e Ending) Text() string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	}
	return e.Exit.String()
}

// resultOrder lists the workers by the time when their command ended.
func resultOrder(ends []Ending) []int {
	order := make([]int, len(ends))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return ends[a].at.Compare(ends[b].at) })
	return order
}

// logFile is the local copy of one worker's output. It is a prefix of the worker's file
// at every moment. If the local disk is full, the view continues and the file remains a
// prefix until the command has ended.
type logFile struct {
	run    string
	id     tpu.WorkerID
	path   string
	file   *os.File // nil: it could not be opened
	size   int64
	sink   event.Sink
	steps  io.Writer // reads the training steps; nil: nobody does
	view   mask.Masker
	broken bool
	cut    func(error) // is told why the file is cut

	arrivals *record.ArrivalWriter // nil: the times are not kept
}

// arrivals returns what keeps the times at which the output of worker i arrives.
func (f *Following) arrivals(i int) *record.ArrivalWriter {
	return &record.ArrivalWriter{Path: record.ArrivalsPath(f.Rec.LogDir, f.Workers.IDs[i]), Now: f.Clock.Now}
}

// keep writes p to the file.
func (l *logFile) keep(p []byte) (int, error) {
	l.arrivals.Mark(l.size)
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// openLog opens the local copy to continue it. Failing to open it is reported and does
// not affect the run.
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

// Write never fails: losing the local copy must not end the run.
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

// cutLogs gathers the workers whose logs cannot be kept here any more, to report those
// with one cause in one line. The zero value is ready for use. It is safe for concurrent
// use.
type cutLogs struct {
	mu   sync.Mutex
	ids  []tpu.WorkerID // not yet reported
	errs []error
}

func (c *cutLogs) add(id tpu.WorkerID, err error) {
	if local := (*fs.PathError)(nil); errors.As(err, &local) { // its path contains the worker's name
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

// LastLines returns the last n lines of a file with secrets masked. It reads at most
// the last 64 KiB. It drops a line that begins before them, because what remains of it
// may begin in the middle of a secret. If that line is the only one, it drops only as
// many bytes as the longest secret has.
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
