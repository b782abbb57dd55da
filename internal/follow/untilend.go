package follow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// failFastReason names no worker: the first one to fail is known only after all have ended.
// The summary names it.
const failFastReason = detach.FailFast

// tailDoubt is how long fail-fast waits for the end of worker 0 after a failure that may only
// follow from the success of worker 0 (see leaves). The two ends come in any order.
const tailDoubt = 3 * time.Second

// unreadPause is how long the end of a log may take to arrive after the command is proven
// gone. A longer delay is reported.
const unreadPause = 30 * time.Second

type workerEnd struct {
	worker int
	Ending
}

// An endWait is the wait for the end of the command on every worker.
type endWait struct {
	*Following
	ctx    context.Context // the user's context, which a signal ends
	cancel func()          // ends following the workers that have not ended
	ended  chan workerEnd
	open   int // workers whose end is still to come

	stop    *stopping    // stop of all workers; nil: none
	stopped <-chan error // gets whether the stop is proven; nil: no stop in progress

	interrupted <-chan struct{}  // nil after the interrupt
	overdue     <-chan time.Time // fires if logs are incomplete although the command is gone
	doubt       <-chan time.Time // fires if worker 0 has not succeeded within tailDoubt
}

// errLeft ends a wait without a failure: this command stops following, and the run
// continues.
var errLeft = errors.New("left")

// untilEnd waits until the command has ended on every worker, as far as that is known. It
// stops all workers at most once: at the first failure, at the deadline or when ctx ends.
// An error means that this command has left the run, which may continue.
func (f *Following) untilEnd(ctx context.Context) (*stopping, error) {
	// Following outlives ctx, because the log also gets the output during a stop.
	followCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.prepare()
	n := len(f.Ends)
	defer f.watcher.Close()
	defer cancel() // also ends a dump; Close waits for it
	w := &endWait{Following: f, ctx: ctx, cancel: cancel, ended: make(chan workerEnd, n), open: n, interrupted: ctx.Done()}
	for i := range n {
		go func() { w.ended <- workerEnd{i, f.followWorker(followCtx, i)} }()
	}
	err := w.events(followCtx)
	if errors.Is(err, errLeft) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return w.stop, nil
}

func (w *endWait) events(followCtx context.Context) error {
	var deadline, tell <-chan time.Time
	if w.Timeout > 0 {
		deadline = w.Clock.After(w.Timeout)
	}
	pause := OutageLook
	look := w.Clock.After(pause)
	training := w.Clock.After(trainingEvery)
	for w.open > 0 || w.stopped != nil {
		var err error
		select {
		case e := <-w.ended:
			err = w.workerHasEnded(e)
		case <-w.doubt:
			w.doubt = nil
			w.failFastAfterDoubt()
		case <-w.stirred:
			if tell == nil {
				tell = w.Clock.After(workers.OutagePause)
			}
		case <-tell:
			tell = nil
			w.tellOutages()
		case <-look:
			pause = w.lookAtOutages(followCtx, pause)
			w.lowDisks.Tell(w.Sink, OutputDisk)
			look = w.Clock.After(pause)
		case <-training:
			training = w.Clock.After(trainingEvery)
			w.tellSilence()
			if err := w.watcher.look(followCtx); err != nil {
				w.begin(stage.StandsStill, err)
			}
		case <-w.interrupted:
			w.interrupted = nil
			err = w.interrupt(context.Cause(w.ctx))
		case <-deadline:
			passed := stage.TimeoutPassed(w.Timeout)
			w.begin(passed.Text, passed)
		case err := <-w.stopped:
			w.stopHasEnded(err)
		case <-w.overdue:
			w.logsAreOverdue()
		case <-w.Leave:
			err = w.leaveAtOnce()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *endWait) take(e workerEnd) {
	w.open--
	w.Ends[e.worker] = e.Ending
}

// leave stops following the workers that have not ended.
func (w *endWait) leave() {
	w.cancel()
	for w.open > 0 {
		w.take(<-w.ended)
	}
}

// leaveUnread stops following the workers whose logs are not whole. The logs stay
// incomplete.
func (w *endWait) leaveUnread() {
	var open []int
	for i, e := range w.Ends {
		if !e.Known {
			open = append(open, i)
		}
	}
	w.leave()
	for _, i := range open {
		w.Ends[i].part = w.copies().unread(i, w.Ends[i].Err)
	}
}

// begin stops the command on all workers, unless a stop has already begun or this command
// only reads.
func (w *endWait) begin(reason string, cause error) {
	if w.stop == nil && w.Reads == nil {
		w.stop = w.beginStop(w.ctx, reason, cause)
		w.stopped = w.stop.done
	}
}

// workerHasEnded stops the others if fail-fast says so.
func (w *endWait) workerHasEnded(e workerEnd) error {
	w.tellOutages() // report outages before the end of a worker
	w.take(e)
	w.workerEnded(e.worker)
	if w.open == 0 {
		return nil
	}
	if lost := errors.Is(e.Err, ErrSliceGone) || stepAfter(e.Ending) == stepLeave; lost && w.Rec.Bucket != "" && w.stop == nil {
		w.leave() // the bucket shows how the command ends on all of them
		return errLeft
	}
	if !w.FailFast {
		return nil
	}
	switch stepAfter(e.Ending) {
	case stepStop:
		switch {
		case !w.Strict && excused(e.Ending, w.Ends[0]):
		case !w.Strict && e.tail && !w.Ends[0].Known:
			w.doubt = w.Clock.After(tailDoubt) // worker 0 may have succeeded earlier
		default:
			w.begin(e.stopReason(), nil)
		}
	case stepLeave:
		if w.stop == nil { // a stop in progress proves the end itself
			w.leave()
			return errLeft
		}
	}
	return nil
}

// failFastAfterDoubt stops the others if a worker has failed and worker 0 does not
// excuse it.
func (w *endWait) failFastAfterDoubt() {
	if w.open > 0 && slices.ContainsFunc(w.Ends, func(e Ending) bool {
		return stepAfter(e) == stepStop && !excused(e, w.Ends[0])
	}) {
		w.begin(failFastReason, nil)
	}
}

// interrupt stops the command or leaves it running, depending on cause.
func (w *endWait) interrupt(cause error) error {
	var in *stage.Interrupted
	switch {
	case w.Reads != nil:
		w.leave()
		return cause
	case !errors.As(cause, &in) && w.Attached || in != nil && in.Detaches(!w.Attached):
		w.leave()
		event.Notef(w.Sink, event.Info, "follow it with: multihost attach "+w.Ref.Run+"; end it with: multihost stop "+w.Ref.Run,
			"left run %s: it continues on %s", w.Ref.Run, tpu.Fold(w.Workers.IDs))
		return cause
	}
	w.begin(cause.Error(), cause)
	return nil
}

func (w *endWait) stopHasEnded(err error) {
	w.stopped = nil
	w.stop.err = err
	if err != nil {
		w.leaveUnread()
	}
	w.overdue = w.Clock.After(unreadPause)
}

// logsAreOverdue continues to wait for logs. After an interrupt it does not, because the user
// does not want to wait.
func (w *endWait) logsAreOverdue() {
	if left := w.logs.Left(w.Clock.Now(), w.Patience.Log); left > 0 && w.interrupted != nil {
		event.Notef(w.Sink, event.Warn, "", "the command is gone, but the end of the log of %s cannot be read: waiting up to %s for it (--log-timeout)", w.unfinished(), stage.AsTyped(w.Patience.Log))
		w.overdue = w.Clock.After(min(left, time.Minute))
		return
	}
	w.leaveUnread()
}

// leaveAtOnce ends the wait for the proof that the command is gone.
func (w *endWait) leaveAtOnce() error {
	if w.stop != nil && w.stopped == nil && w.stop.err == nil {
		w.leaveUnread()
		return nil
	}
	waiting := w.unfinished()
	w.leave()
	if w.stopped != nil {
		<-w.stopped
	}
	return errors.Join(context.Cause(w.ctx), &stage.Error{Stage: stage.Stopping, Text: fmt.Sprintf("left before run %s was proven stopped; it may still run on %s", w.Ref.Run, waiting),
		Advice: "end it with: multihost stop " + w.Ref.Run})
}
