package follow

import (
	"context"
	"fmt"
	"io"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// A follower follows the command on one worker until it has ended there.
type follower struct {
	*Following
	i    int
	id   tpu.WorkerID
	conn remote.Conn

	ctx    context.Context // ends when the worker is given up, with the reason as its cause
	giveUp context.CancelCauseFunc
}

func (f *Following) follower(ctx context.Context, i int) *follower {
	w := &follower{Following: f, i: i, id: f.Workers.IDs[i], conn: f.Workers.Conns[i]}
	w.ctx, w.giveUp = context.WithCancelCause(ctx)
	return w
}

// followWorker follows the command on worker i until it has ended there, or ctx ends.
func (f *Following) followWorker(ctx context.Context, i int) Ending {
	w := f.follower(ctx, i)
	defer w.giveUp(nil)
	if f.Reads != nil {
		return w.read(ctx)
	}
	return w.keep(ctx)
}

// keep copies the worker's output to its log file and to the view.
func (w *follower) keep(ctx context.Context) Ending {
	copies := w.copies()
	log := copies.open(w.i)
	log.cut = func(err error) {
		w.cutLogs.add(w.id, err)
		w.stir()
	}
	steps := w.watcher.collector.Stream(w.i)
	defer steps.Finish()
	log.steps = steps
	if err := w.watcher.catchUp(w.i, w.Rec.LogPath(w.id), log.size); err != nil {
		event.Notef(w.Sink, event.Warn, "", "the training steps that %s printed before are not known: %v", w.id, err)
	}
	exit, err := w.stream(log.size, log, log.cutThere)
	var part *PartLog
	if err == nil && log.broken { // do this now, because the worker may soon be gone
		part = copies.mend(w.ctx, w.i, log)
	}
	log.close()
	behind := 0
	if err == nil && w.Rec.Bucket == "" { // with a bucket, the worker itself sweeps and reports in the bucket
		behind = w.sweep()
	}
	e := w.ending(ctx, exit, err)
	if e.Err == nil {
		e.part, e.behind, e.tail = part, behind, exit.Code != 0 && leaves(exit, LastLines(log.path, 20, nil))
	}
	return e
}

// read takes the worker's output into memory.
func (w *follower) read(ctx context.Context) Ending {
	if w.Workers.IsAway(w.i) {
		w.lost(w.Workers.Away[w.i])
	}
	log := w.Reads[w.i]
	at := log.Offset()
	exit, err := w.stream(at, log.From(at), nil)
	e := w.ending(ctx, exit, err)
	e.tail = e.Err == nil && exit.Code != 0 && leaves(exit, log.LastLines(20))
	return e
}

// peekWorker reads the present log of worker i into memory. While the command runs, the end
// is not known.
func (f *Following) peekWorker(ctx context.Context, i int) (end Ending) {
	w := f.follower(ctx, i)
	defer w.giveUp(nil)
	if w.Workers.IsAway(w.i) {
		w.lost(w.Workers.Away[w.i])
		return Ending{}
	}
	log := w.Reads[w.i]
	at := log.Offset()
	_, exit, err := launch.Peek(ctx, w.conn, w.Ref, at, log.From(at))
	if err != nil {
		w.lost(err)
	}
	if err != nil || exit == nil {
		return Ending{}
	}
	end = w.ending(ctx, *exit, nil)
	end.tail = leaves(*exit, log.LastLines(20))
	return end
}

// stream writes the worker's output, from an offset on, to out until the command has ended.
// It updates the worker's outage.
func (w *follower) stream(from int64, out io.Writer, shorter func(*launch.TruncatedError)) (launch.Exit, error) {
	defer w.outages.over(w.i)
	return launch.Follow(w.ctx, w.conn, w.Ref, from, out, launch.FollowOptions{
		Look:   w.Reads != nil,
		Window: w.window, QuietAfter: w.Patience.Quiet,
		Lost: func(err error, _ int64) { w.lost(err) },
		Found: func() {
			if w.outages.back(w.i) {
				w.stir()
			}
		},
		Shorter: shorter,
		LowDisk: func(d launch.Disk) { w.lowDisks.Add(w.id, d) },
		Quiet: func(s launch.Silence) {
			event.Notef(w.Sink, event.Warn, "", "%s", quietText(w.id, s))
			if s.Err == nil && s.State.Disk.Low() {
				w.lowDisks.Add(w.id, s.State.Disk)
			}
		},
		Full: func(limit int64) {
			event.Notef(w.Sink, event.Warn, "", "the output of %s has reached %s (--max-log): the command goes on, more is not kept", w.id, event.Bytes(limit))
		},
	})
}

// lost records that the worker could not be followed because of err.
func (w *follower) lost(err error) {
	if w.outages.lost(w.i, w.id, w.giveUp, err, w.Clock.Now(), w.Patience.Lost) {
		w.stir()
	}
}

// ending returns the worker's end. exit and err are the results of following it. The
// parameter ctx is the parent of w.ctx.
func (w *follower) ending(ctx context.Context, exit launch.Exit, err error) Ending {
	offset := time.Duration(0)
	if err == nil {
		offset = w.conn.ClockOffset()
	}
	return endingOf(exit, err, ctx.Err() != nil, context.Cause(w.ctx), offset, w.Clock.Now())
}

// endingOf returns the end of a worker. exit and err are the results of following it. The
// parameter left says that this command stopped following all workers. The parameter cause
// says why this worker was given up, and offset how far its clock is ahead.
func endingOf(exit launch.Exit, err error, left bool, cause error, offset time.Duration, now time.Time) Ending {
	switch {
	case err != nil && left: // not the worker's fault
		return Ending{Err: err, at: now}
	case err != nil && cause != nil:
		return Ending{Known: true, Err: cause, at: now}
	case err != nil: // the worker's first answer was an error
		return Ending{Known: true, Err: &lostError{trouble: strange, err: err}, at: now}
	case exit.Lost || exit.End.IsZero(): // nobody on the worker saw the end
		return Ending{Known: true, Exit: exit, at: now}
	}
	return Ending{Known: true, Exit: exit, at: exit.End.Add(-offset)}
}

// quietText says that a worker has printed nothing for a while, and whether the command
// still works.
func quietText(id tpu.WorkerID, s launch.Silence) string {
	text := fmt.Sprintf("%s: no output for %s, ", id, event.Duration(s.Since))
	switch {
	case s.Err != nil:
		return text + "and it does not answer: " + stage.CauseText(s.Err, id)
	case s.State.Left == 0:
		return text + "and no process of the run is alive"
	case s.CPU < 0:
		return text + "process alive"
	}
	return text + fmt.Sprintf("process alive, CPU %.0f %%", 100*s.CPU)
}

// sweep ends the processes that the command left behind on the worker, and reports the
// processes that still hold the TPU. It returns the number of ended processes.
func (w *follower) sweep() (ended int) {
	rep, err := launch.Sweep(w.ctx, w.conn, w.Ref, launch.StopOptions{Grace: w.Grace, Reason: "left behind by the command"})
	switch {
	case err != nil:
		event.Notef(w.Sink, event.Warn, "multihost stop "+w.Ref.Run, "%s: whether the command left processes is not known: %s", w.id, stage.CauseText(err, w.id))
	case len(rep.Survivors) > 0:
		event.Notef(w.Sink, event.Warn, "multihost stop "+w.Ref.Run, "%s: processes of the command are left: %v", w.id, rep.Survivors)
	}
	for _, p := range rep.Devices {
		event.Notef(w.Sink, event.Warn, "", "%s: %s is still held by process %d of %s: %s", w.id, p.Device, p.PID, p.User, p.Command)
	}
	return rep.Found
}
