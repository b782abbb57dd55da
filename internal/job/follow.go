package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// A following is a started run whose output is copied to this machine until it ends.
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
	watching WatchOptions
	patience Patience
	secrets  [][]byte   // masked in the output that is shown, never in its files
	attached bool       // this command did not start the run, so an interrupt leaves it running
	wraps    [][]string // per worker: words before the command, if this command started it
	deletes  bool       // this command deletes the slices after a success, or sees only a part of the run: it does not mark it as seen

	// reads, if set, takes the output of each worker in place of its log file. Such a
	// following changes nothing, neither on the workers nor on this machine, and stops
	// nobody.
	reads []*readLog

	begin    time.Time
	ends     []ending
	outages  []outage
	stirred  chan struct{} // holds one token when outages have changed
	lowDisks lowDisks
	cutLogs  cutLogs
	logs     logWait
	window   *launch.Window
	silent   silence        // what the status line says now
	sum      *event.Summary // of an end that this process saw, for the caller to emit
	watcher  *watcher
}

// ending is how the command ended on one worker.
type ending struct {
	known  bool
	exit   launch.Exit
	tail   bool      // it looks like a training's tail, see leaves
	behind int       // processes that the command left behind and that were then killed
	part   *partLog  // set when only the beginning of the log is here; nil: all of it
	err    error     // why the end could not be learned
	at     time.Time // by the worker's clock, corrected to the runner's clock
}

// fate decides about a worker that is no longer followed.
func (e ending) fate() fate {
	if !e.known {
		return fateRetry
	}
	return fateOf(evidence{recorded: e.err == nil, gone: errors.Is(e.err, errSliceGone), trouble: strange}, 0)
}

func (e ending) failed() bool { return e.err != nil || e.exit.Code != 0 || e.exit.Lost }

// stopping is a stop of all workers in progress.
type stopping struct {
	reason string
	cause  error // why, for the caller: *Interrupted or a timeout; nil means fail-fast
	err    error // set if it could not be proven that all have stopped
	done   chan error
}

func (f *following) do(ctx context.Context) (Outcome, error) {
	f.begin = f.Clock.Now()
	defer f.runs()()
	f.Sink.Emit(event.Phase{Name: "run", State: event.Started, Detail: f.rec.Command})
	f.Sink.Emit(f.progress())
	stop, err := f.untilEnd(ctx)
	elapsed := f.Clock.Now().Sub(f.begin)
	f.watch.add("run", elapsed)
	if err != nil {
		end := event.Phase{Name: "run", State: event.Failed, Elapsed: elapsed}
		if stop == nil && ctx.Err() != nil {
			end.State, end.Detail = event.Done, "left running"
		}
		f.Sink.Emit(end)
		return Outcome{Started: true}, err
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

func (f *following) workerEnded(e endOf) {
	done := event.WorkerDone{
		Slice: f.team.ids[e.worker].Slice, Worker: f.team.ids[e.worker].Worker,
		Code: e.code(), Signal: e.exit.Signal, Reason: e.exit.Reason, End: e.at,
	}
	if e.err != nil {
		done.Error = e.err.Error()
	}
	f.Sink.Emit(done)
	f.Sink.Emit(f.progress())
}

// progress says on how many workers the command has ended, and which are not heard.
func (f *following) progress() event.Progress {
	p := event.Progress{Phase: "run", Total: len(f.team.ids)}
	for _, end := range f.ends {
		if end.known {
			p.Done++
		}
	}
	if p.Done > 0 {
		p.Waiting = f.unfinished()
	}
	if f.ends != nil {
		p.Elapsed = f.Clock.Now().Sub(f.begin)
	}
	p.Silent, p.SilentSince = f.silent.fields()
	return p
}

// tellSilence shows from which workers nothing is heard, when that has changed.
func (f *following) tellSilence() {
	now := f.team.silence(func(i int) bool { return !f.ends[i].known }, f.begin, f.Clock.Now())
	if now != f.silent {
		f.silent = now
		f.Sink.Emit(f.progress())
	}
}

// those names the workers whose end is as is says.
func (f *following) those(is func(ending) bool) string {
	var ids []tpu.WorkerID
	for i, e := range f.ends {
		if is(e) {
			ids = append(ids, f.team.ids[i])
		}
	}
	return tpu.Fold(ids)
}

// unfinished names the workers whose end is not known.
func (f *following) unfinished() string { return f.those(func(e ending) bool { return !e.known }) }

// left names the workers on which the command may still be running.
func (f *following) left() string {
	return f.those(func(e ending) bool { return e.fate() != fateEnded })
}

// cutOff reports whether workers could not be reached and no failure of the command is
// known: it may still be running there.
func (f *following) cutOff() bool {
	away := false
	for _, e := range f.ends {
		if e.fate() == fateEnded && e.failed() {
			return false
		}
		away = away || e.err != nil
	}
	return away
}

func (f *following) beginStop(ctx context.Context, reason string, cause error) *stopping {
	s := &stopping{reason: reason, cause: cause, done: make(chan error, 1)}
	hint := ""
	if in := (*Interrupted)(nil); errors.As(cause, &in) {
		hint = "the same signal once more leaves at once, without proof"
	}
	event.Notef(f.Sink, event.Warn, hint, "stopping run %s on all workers: %s", f.ref.Run, reason)
	go func() {
		stopCtx, cancel := f.detached(ctx, f.grace+2*time.Minute)
		defer cancel()
		s.done <- f.team.stopAll(stopCtx, f.Sink, f.ref, f.grace, reason, func(i int) bool { return f.outages[i].isGone() })
	}()
	return s
}

// followWorker copies the worker's output to its log file and to the view until the
// command has ended.
func (f *following) followWorker(ctx context.Context, i int) ending {
	workerCtx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	if f.reads != nil {
		return f.readWorker(ctx, workerCtx, giveUp, i)
	}
	log := openLog(f.rec, f.team.ids[i], f.Sink, f.secrets)
	log.arrivals = f.arrivals(i)
	log.cut = func(err error) {
		f.cutLogs.add(log.id, err)
		f.stir()
	}
	steps := f.watcher.collector.Stream(i)
	defer steps.Finish()
	log.steps = steps
	if err := f.watcher.catchUp(i, f.rec.logPath(f.team.ids[i]), log.size); err != nil {
		event.Notef(f.Sink, event.Warn, "", "the training steps that %s printed before are not known: %v", f.team.ids[i], err)
	}
	exit, err := f.stream(workerCtx, giveUp, i, log.size, log, log.cutThere)
	var part *partLog
	if err == nil && log.broken { // now, since the worker may be gone a moment later
		part = f.mend(workerCtx, i, log)
	}
	log.close()
	behind := 0
	if err == nil && f.rec.Bucket == "" { // with a bucket, the worker does this itself and reports it in the bucket
		behind = f.sweep(workerCtx, i)
	}
	e := f.endingOf(ctx, workerCtx, i, exit, err)
	if e.err == nil {
		e.part, e.behind, e.tail = part, behind, exit.Code != 0 && leaves(exit, lastLines(log.path, 20, nil))
	}
	return e
}

// stream writes a worker's output, from an offset on, to w until the command has ended.
// It keeps the worker's outage up to date.
func (f *following) stream(workerCtx context.Context, giveUp context.CancelCauseFunc, i int, from int64, w io.Writer, shorter func(*launch.TruncatedError)) (launch.Exit, error) {
	id := f.team.ids[i]
	defer f.outages[i].over()
	return launch.Follow(workerCtx, f.team.conns[i], f.ref, from, w, launch.FollowOptions{
		Look:   f.reads != nil,
		Window: f.window, QuietAfter: f.patience.Quiet,
		Lost:    func(err error, _ int64) { f.outages[i].lost(f, i, giveUp, err) },
		Found:   func() { f.outages[i].back(f) },
		Shorter: shorter,
		LowDisk: func(d launch.Disk) { f.lowDisks.add(id, d) },
		Quiet: func(s launch.Silence) {
			f.quiet(id, s)
			if s.Err == nil && s.State.Disk.Low() {
				f.lowDisks.add(id, s.State.Disk)
			}
		},
		Full: func(limit int64) {
			event.Notef(f.Sink, event.Warn, "", "the output of %s has reached %s (--max-log): the command goes on, more is not kept", id, event.Bytes(limit))
		},
	})
}

// endingOf returns the end of a worker that was followed under workerCtx, a child of
// ctx.
func (f *following) endingOf(ctx, workerCtx context.Context, i int, exit launch.Exit, err error) ending {
	if ctx.Err() != nil && err != nil { // not the worker's fault: following was given up
		return ending{err: err, at: f.Clock.Now()}
	}
	if cause := context.Cause(workerCtx); err != nil && cause != nil {
		err = cause
	} else if err != nil { // the worker's first answer was an error
		err = &lostError{trouble: strange, err: err}
	}
	if err != nil {
		return ending{known: true, err: err, at: f.Clock.Now()}
	}
	at := exit.End.Add(-f.team.conns[i].ClockOffset())
	if exit.Lost || exit.End.IsZero() { // nobody on the worker saw the end
		at = f.Clock.Now()
	}
	return ending{known: true, exit: exit, at: at}
}

// readWorker is followWorker for a following that only reads.
func (f *following) readWorker(ctx, workerCtx context.Context, giveUp context.CancelCauseFunc, i int) ending {
	if f.team.isAway(i) {
		f.outages[i].lost(f, i, giveUp, f.team.away[i])
	}
	log := f.reads[i]
	at := log.offset()
	exit, err := f.stream(workerCtx, giveUp, i, at, log.from(at), nil)
	e := f.endingOf(ctx, workerCtx, i, exit, err)
	e.tail = e.err == nil && exit.Code != 0 && leaves(exit, log.lastLines(20))
	return e
}

// followWindow limits the bytes in transit from all workers together.
const followWindow = 128 << 20

func (f *following) quiet(id tpu.WorkerID, s launch.Silence) {
	silent := event.Duration(s.Since)
	switch {
	case s.Err != nil:
		event.Notef(f.Sink, event.Warn, "", "%s: no output for %s, and it does not answer: %s", id, silent, causeText(s.Err, id))
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
func (f *following) sweep(ctx context.Context, i int) (ended int) {
	id := f.team.ids[i]
	rep, err := launch.Sweep(ctx, f.team.conns[i], f.ref, launch.StopOptions{Grace: f.grace, Reason: "left behind by the command"})
	switch {
	case err != nil:
		event.Notef(f.Sink, event.Warn, "multihost stop "+f.ref.Run, "%s: whether the command left processes is not known: %s", id, causeText(err, id))
	case len(rep.Survivors) > 0:
		event.Notef(f.Sink, event.Warn, "multihost stop "+f.ref.Run, "%s: processes of the command are left: %v", id, rep.Survivors)
	}
	for _, p := range rep.Devices {
		event.Notef(f.Sink, event.Warn, "", "%s: %s is still held by process %d of %s: %s", id, p.Device, p.PID, p.User, p.Command)
	}
	return rep.Found
}

// leftBehind counts the processes that the command had left in the background when it
// ended by itself, and returns the workers they were on.
func (f *following) leftBehind() (n int, ids []tpu.WorkerID) {
	for i, e := range f.ends {
		if e.behind > 0 && e.exit.Reason == "" {
			n, ids = n+e.behind, append(ids, f.team.ids[i])
		}
	}
	return n, ids
}

const (
	// outageLook is how often the cloud is asked about slices with lost workers.
	outageLook = 10 * time.Second
	// longestLook limits the pause while the cloud does not answer: each try is
	// reported.
	longestLook = 2 * time.Minute
)

// errSliceGone marks the end of a worker whose slice the API reports as gone or taken
// away. Nothing of the command can be running there.
var errSliceGone = errors.New("nothing runs there any more")

// outage is the time during which one worker cannot be reached.
type outage struct {
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

func (o *outage) isGone() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.gone
}

// lost records a failed try to follow the worker.
func (o *outage) lost(f *following, i int, giveUp context.CancelCauseFunc, err error) {
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
	o.kind, o.cause = troubleOf(err), remote.LostText(errors.New(causeText(err, f.team.ids[i])))
	if o.told && o.kind != o.saidKind {
		f.stir()
	}
	if o.kind == ourLogin {
		o.begin = now // it is not the worker that is lost
	}
	limit := f.patience.Lost
	if fateOf(evidence{trouble: o.kind, away: now.Sub(o.begin)}, limit) == fateLost {
		giveUp(&lostError{o.kind, limit, err})
	}
}

// back records that the worker is followed, or followed again.
func (o *outage) back(f *following) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.giveUp == nil {
		return
	}
	o.giveUp = nil
	o.recovered, o.told = o.told, false
	f.stir()
}

// outagePause delays reporting an outage, or its end, so that workers lost together are
// reported in one line.
const outagePause = 300 * time.Millisecond

// stir causes the outages to be reported after outagePause.
func (f *following) stir() {
	select {
	case f.stirred <- struct{}{}:
	default:
	}
}

// tellOutages reports which workers have become impossible to follow since the last
// report, and which are followed again. Repeated outages of a worker are reported at
// most once a minute. A long outage is reported again each time its length has doubled.
func (f *following) tellOutages() {
	f.cutLogs.tell(f.Sink, f.ref.Run)
	var back []tpu.WorkerID
	texts := make([]string, len(f.outages))
	limit := f.patience.Lost
	for i := range f.outages {
		o, id := &f.outages[i], f.team.ids[i]
		o.mu.Lock()
		now := f.Clock.Now()
		away := now.Sub(o.begin)
		text := ""
		switch {
		case o.giveUp == nil:
		case !o.told && (o.said.IsZero() || now.Sub(o.said) > time.Minute):
			text = o.kind.text(o.cause, 0, limit)
		case o.told && o.kind != o.saidKind: // the kind of trouble has changed
			text = o.kind.text(o.cause, 0, limit)
		case o.told && now.Sub(o.said) >= max(away/2, time.Minute):
			text = o.kind.text(o.cause, away, limit)
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
			lost[i] = f.team.ids[at]
		}
		event.Notef(f.Sink, event.Warn, "", g.Text, tpu.FoldShort(lost))
	}
	if len(back) > 0 {
		event.Notef(f.Sink, event.Info, "", "connected to %s again; none of the output is lost", tpu.Fold(back))
	}
}

// away reports whether any worker cannot be followed now.
func (f *following) away() bool {
	for i := range f.outages {
		o := &f.outages[i]
		o.mu.Lock()
		away := o.giveUp != nil
		o.mu.Unlock()
		if away {
			return true
		}
	}
	return false
}

// outOfReach returns the workers that cannot be followed now, with the cause.
func (f *following) outOfReach() map[tpu.WorkerID]string {
	away := map[tpu.WorkerID]string{}
	for i := range f.outages {
		o := &f.outages[i]
		o.mu.Lock()
		if o.giveUp != nil {
			away[f.team.ids[i]] = o.cause
		}
		o.mu.Unlock()
	}
	return away
}

func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.giveUp = nil
}

// lookAtOutages asks the cloud, by one call for all, whether the slices of lost workers
// still exist. It gives up the workers whose slices do not. It returns the pause before
// the next look; pause is the one before this look.
func (f *following) lookAtOutages(ctx context.Context, pause time.Duration) time.Duration {
	var lost []int
	for i := range f.outages {
		f.outages[i].mu.Lock()
		if f.outages[i].giveUp != nil {
			lost = append(lost, i)
		}
		f.outages[i].mu.Unlock()
	}
	if len(lost) == 0 {
		return outageLook
	}
	f.tellOutages()
	ctx, cancel := context.WithTimeout(ctx, outageLook/2)
	defer cancel()
	nodes, err := f.Cloud.Slices(ctx)
	if err != nil {
		f.offline(lost, err)
		if limit := f.patience.Lost; limit > 0 { // the limit must not pass between two looks
			return min(2*pause, longestLook, max(limit/2, outageLook))
		}
		return min(2*pause, longestLook)
	}
	for _, i := range lost {
		if why := lostSlice(nodes, f.team.slice(i)); why != "" {
			f.outages[i].mu.Lock()
			f.outages[i].gone = true
			if giveUp := f.outages[i].giveUp; giveUp != nil {
				giveUp(fmt.Errorf("%s: %w", why, errSliceGone))
			}
			f.outages[i].mu.Unlock()
		}
	}
	return outageLook
}

// offline handles an outage of all workers at a time when the API cannot be reached
// either. It blames this machine's network: the outages count from now, so no worker is
// lost for it and what runs there goes on.
func (f *following) offline(lost []int, err error) {
	open := 0
	for _, e := range f.ends {
		if !e.known {
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
		f.outages[i].mu.Lock()
		f.outages[i].begin = now
		f.outages[i].mu.Unlock()
	}
}

// lostSlice says why the slice cannot run anything any more, or "".
func lostSlice(nodes []tpu.Slice, s tpu.Slice) string {
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

// lowDisks gathers the workers with little free space, to report them in one line and
// each worker only once. The zero value is ready for use. It is safe for concurrent
// use.
type lowDisks struct {
	mu    sync.Mutex
	known map[tpu.WorkerID]bool
	fresh []tpu.WorkerID // not yet reported
	least launch.Disk    // of the fresh workers
	on    tpu.WorkerID   // the worker that has it
}

func (l *lowDisks) add(id tpu.WorkerID, d launch.Disk) {
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
	outputDisk = "where the output is kept; when less than a fiftieth is, it is kept no more, and the run goes on"
	tmpDisk    = "in /tmp; a command that writes there fails when it is full"
)

func (l *lowDisks) tell(sink event.Sink, what string) {
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
	event.Notef(sink, event.Warn, diskCure, "%s: %s %s", tpu.Fold(fresh), much, what)
}

// tellDropped reports the workers whose log does not hold all that the command printed.
func (f *following) tellDropped() {
	var ids []tpu.WorkerID
	var most int64
	for i, e := range f.ends {
		if e.known && e.exit.Dropped > 0 {
			ids, most = append(ids, f.team.ids[i]), max(most, e.exit.Dropped)
		}
	}
	if len(ids) > 0 {
		event.Notef(f.Sink, event.Warn, "", "%s: up to %s of the output were not kept: it reached --max-log, or the disk was full", tpu.Fold(ids), event.Bytes(most))
	}
}

// conclude reports how the run ended and decides the exit status.
func (f *following) conclude(ctx context.Context, stop *stopping) (Outcome, error) {
	f.lowDisks.tell(f.Sink, outputDisk)
	f.cutLogs.tell(f.Sink, f.ref.Run)
	f.tellDropped()
	code, first := f.verdict()
	if f.reads == nil {
		f.keepEnd(stop, code)
	}
	sum, cause := f.judge(stop, code, first)
	f.sum = &sum
	if f.reads == nil && first >= 0 && f.ends[first].known && f.ends[first].exit.Reason == "" && len(f.ends) > 1 {
		f.keepVerdict(ctx, f.blame(first))
	}
	if f.reads == nil && !f.deletes && code == 0 && cause == nil && f.rec.Ended && f.partly() == nil {
		f.onFirst(ctx, func(ctx context.Context, c remote.Runner) error { return launch.KeepSeen(ctx, c, f.ref, f.Owner) })
	}
	return Outcome{Code: code, Started: true, PartLogs: f.partly() != nil, KeepLogs: f.partly().there() && !stop.slicesGo(f.deletes)}, cause
}

// keepVerdict stores how the attempt ended as a whole on worker 0 of each slice, which
// ps asks. A worker that it does not reach reports how the command ended there.
func (f *following) keepVerdict(ctx context.Context, text string) {
	f.onFirst(ctx, func(ctx context.Context, c remote.Runner) error { return launch.KeepVerdict(ctx, c, f.ref, text) })
}

// onFirst calls do for worker 0 of each slice that is connected.
func (f *following) onFirst(ctx context.Context, do func(ctx context.Context, c remote.Runner) error) {
	f.team.each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		if f.team.ids[i].Worker != 0 || f.team.isAway(i) {
			return nil
		}
		return do(ctx, f.team.conns[i])
	})
}

// keepEnd records how the run ended.
func (f *following) keepEnd(stop *stopping, code int) {
	unknown := f.unfinished()
	f.rec.Ended, f.rec.Code = unknown == "" && (stop == nil || stop.err == nil), code
	f.rec.Cut = f.partly() != nil
	for _, e := range f.ends {
		// If the slices of a job without a runner are gone, the bucket knows the end.
		if e.err != nil && (!errors.Is(e.err, errSliceGone) || f.rec.Bucket != "") {
			f.rec.Ended = false
		}
	}
	if err := f.rec.save(f.StateDir); err != nil {
		event.Notef(f.Sink, event.Warn, "", "%v", err)
	}
}

// judge returns the summary of the run and the error that the run ends with.
func (f *following) judge(stop *stopping, code, first int) (event.Summary, error) {
	sum := event.Summary{
		Run: f.ref.Run, Attempt: f.ref.Attempt, OK: code == 0, ExitCode: code, CommandCode: code,
		LogDir: f.rec.LogDir, Training: f.watcher.summary(), Phases: f.watch.times, Skew: f.skew,
	}
	n := len(f.team.ids)
	f.tellBinding(first)
	if first >= 0 && code != 0 {
		sum.Next = "multihost logs " + f.ref.Run + " --worker=" + f.team.ids[first].String()
		sum.FirstFail = f.team.ids[first].String() + ": " + f.ends[first].text()
		sum.LastLines = lastLines(f.rec.logPath(f.team.ids[first]), 20, f.secrets)
	}
	switch {
	case stop != nil && stop.err != nil:
		sum.OK = false
		if !f.ends[max(first, 0)].known { // the worker was left, which is no failure of its own
			sum.FirstFail, sum.LastLines = "", nil
		}
		sum.Text = fmt.Sprintf("run %s: %s", f.ref.Run, stop.err)
		sum.Next = "multihost stop " + f.ref.Run
	case stop != nil && stop.cause != nil:
		sum.OK = false
		sum.FirstFail, sum.LastLines = "", nil
		sum.Text = fmt.Sprintf("run %s was stopped on %s: %s; no process of it is left", f.ref.Run, onAll(n), stop.reason)
	case first >= 0 && f.ends[first].exit.Reason != "" && !f.ends[first].exit.Lost:
		sum.FirstFail, sum.LastLines, sum.Next = "", nil, ""
		sum.Text = fmt.Sprintf("run %s was stopped: %s", f.ref.Run, f.ends[first].exit.Reason)
	case first >= 0 && f.ends[first].fate() == fateLost:
		sum.Text = fmt.Sprintf("run %s: %s is lost, %s; the command was not touched and may go on on %s", f.ref.Run, f.team.ids[first], f.ends[first].text(), f.left())
		sum.Next = "follow it again with: multihost attach " + f.ref.Run + "; end it with: multihost stop " + f.ref.Run
	case first >= 0:
		sum.Text = fmt.Sprintf("run %s failed: %s", f.ref.Run, f.blame(first))
	case f.failedWorkers() != "":
		f.sayExcused(&sum, f.failedWorkers())
	default:
		sum.Text = fmt.Sprintf("run %s succeeded on %s", f.ref.Run, onAll(n))
	}
	behind, where := f.leftBehind()
	f.sayLeftBehind(&sum, behind, where, backgroundCure)
	if f.partly() != nil && !stop.slicesGo(f.deletes) {
		f.sayPart(&sum)
	}
	cause := stop.end(code)
	if cause != nil && f.ExitStatus != nil {
		sum.ExitCode = f.ExitStatus(cause)
	}
	return sum, cause
}

// blame says which end decided how the run ended: that of a slice or that of a worker.
func (f *following) blame(first int) string {
	e := f.ends[first]
	if errors.Is(e.err, errSliceGone) {
		return e.text()
	}
	return fmt.Sprintf("%s was first, %s", f.team.ids[first], e.text())
}

// tellBinding warns when the command was killed for lack of memory while it was bound
// to one NUMA node: the other half of the memory was not used.
func (f *following) tellBinding(first int) {
	if first < 0 || first >= len(f.wraps) || !f.ends[first].exit.OOM || !slices.Contains(f.wraps[first], "--membind=0") {
		return
	}
	event.Notef(f.Sink, event.Warn, "let it use the other nodes' memory too: --numa=preferred",
		"the command on %s was killed for want of memory while it was bound to that of NUMA node 0, half of the worker's", f.team.ids[first])
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
	backgroundCureDetached = foregroundCure + ": the job goes on without this machine"
)

// sayExcused makes the summary of a run that succeeded name the workers whose failure
// was excused.
func (d *Deps) sayExcused(sum *event.Summary, workers string) {
	sum.Text = fmt.Sprintf("run %s completed; unclean exit on %s after worker 0 had succeeded", sum.Run, workers)
	event.Notef(d.Sink, event.Warn, "to make it a failure: --strict-exit",
		"%s failed within a minute after worker 0 had succeeded, by SIGABRT or by words of the distributed runtime: taken for the training's tail", workers)
}

// sayLeftBehind makes the processes that the command left in the background the
// headline of the summary.
func (d *Deps) sayLeftBehind(sum *event.Summary, processes int, ids []tpu.WorkerID, cure string) {
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

// verdict returns the exit status and the index of the first worker to fail, or -1 if
// none failed. A worker that was stopped by multihost is not blamed for its end.
//
// The status is 0 only if every worker ended with 0 or its failure is excused. Failures
// are excused only if nobody was stopped and every end is known.
func (f *following) verdict() (code, first int) {
	excuse := !f.strict && !f.anyStopped() && !slices.ContainsFunc(f.ends, func(e ending) bool { return !e.known })
	bad := func(e ending) bool { return e.failed() && !(excuse && excused(e, f.ends[0])) }
	for _, i := range resultOrder(f.ends) {
		if e := f.ends[i]; bad(e) && e.known && (e.exit.Reason == "" || e.exit.Lost) {
			return e.code(), i
		}
	}
	for i, e := range f.ends {
		if bad(e) {
			return e.code(), i
		}
	}
	return 0, -1
}

// anyStopped reports whether multihost stopped the command on some worker.
func (f *following) anyStopped() bool {
	return slices.ContainsFunc(f.ends, func(e ending) bool { return e.exit.Reason != "" && !e.exit.Lost })
}

func onAll(workers int) string {
	if workers == 1 {
		return "its worker"
	}
	return fmt.Sprintf("all %d workers", workers)
}

func (f *following) failedWorkers() string { return f.those(ending.failed) }

// lostCode is the exit status for a worker whose end could not be learned:
// EX_UNAVAILABLE of sysexits.
const lostCode = 69

func (e ending) code() int {
	if e.err != nil || e.exit.Lost {
		return lostCode
	}
	return e.exit.Code
}

func (e ending) text() string {
	switch {
	case e.err != nil:
		return e.err.Error()
	}
	return e.exit.String()
}

// resultOrder lists the workers by the time when their command ended.
func resultOrder(ends []ending) []int {
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
	view   masker
	broken bool
	cut    func(error) // is told why the file is cut

	arrivals *arrivalWriter // nil: the times are not kept
}

// arrivals returns what keeps the times at which the output of worker i arrives.
func (f *following) arrivals(i int) *arrivalWriter {
	return &arrivalWriter{path: arrivalsPath(f.rec.LogDir, f.team.ids[i]), now: f.Clock.Now}
}

// keep writes p to the file.
func (l *logFile) keep(p []byte) (int, error) {
	l.arrivals.mark(l.size)
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// openLog opens the local copy to continue it. Failing to open it is reported and does
// not affect the run.
func openLog(rec *Record, id tpu.WorkerID, sink event.Sink, secrets [][]byte) *logFile {
	l := &logFile{run: rec.Run, id: id, path: rec.logPath(id), sink: sink, view: masker{words: secrets}}
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
	l.show(l.view.next(p))
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
	for _, g := range groupErrors(ids, errs) {
		event.Notef(sink, event.Warn, "free some space before the end of the run: the rest is brought here then; all of it now: multihost logs "+run+" --worker="+g.workers[0].String(),
			"the output of %s cannot be kept here any more: %s; the run goes on and the workers keep the whole log", tpu.FoldShort(g.workers), g.cause)
	}
}

func (l *logFile) show(p []byte) {
	if len(p) > 0 {
		l.sink.Emit(event.Output{Slice: l.id.Slice, Worker: l.id.Worker, Data: p})
	}
}

func (l *logFile) close() {
	l.show(l.view.rest())
	if l.file == nil {
		return
	}
	if err := l.file.Close(); err != nil && !l.broken {
		event.Notef(l.sink, event.Warn, "", "close the log of %s: %v", l.id, err)
	}
}

// lastLines returns the last n lines of a file with secrets masked. It reads at most
// the last 64 KiB. It drops a line that begins before them, because what remains of it
// may begin in the middle of a secret. If that line is the only one, it drops only as
// many bytes as the longest secret has.
func lastLines(path string, n int, secrets [][]byte) []string {
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
	return endOfText(data, n, secrets)
}

// endOfText returns the last n lines of a text with secrets masked.
func endOfText(data []byte, n int, secrets [][]byte) []string {
	whole := masker{words: secrets}
	lines := strings.Split(string(whole.mask(data, false)), "\n")
	return lines[max(0, len(lines)-n):]
}
