// Package follow copies the logs of a command to this machine until the command has ended
// on every worker, and finds out who failed first. It stops the command on all workers when
// one has failed, or when the user says so. It waits until outages are over.
//
// # Decisions
//
//   - Trouble on this side ends no command. Follow retries after every error. fate.go alone
//     decides whether a worker is asked again, lost or ended, and whether the others are
//     stopped. It decides from the error, the evidence and the time. Follow reports when
//     the kind of trouble changes.
//   - A worker that was lost for 10 minutes, or whose slice is gone according to the API,
//     fails the attempt. Its command continues until a new attempt begins. If this machine
//     reaches neither a worker nor the API, its own network has failed. The 10 minutes then
//     begin when the network is back.
//   - Training steps are read where the bytes of a log are written, and not from events. A
//     view may drop bytes, but the figures need all of them.
package follow

import (
	"context"
	"errors"
	"time"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/training"
	"multihost/internal/workers"
)

type Deps struct {
	*workers.Reach
	*record.Keeper
}

// A Following is a started run whose output is copied to this machine until it ends.
type Following struct {
	Deps
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
	Secrets  [][]byte   // masked in the output on the screen, never in files
	Attached bool       // this command did not start the run, so an interrupt does not stop it
	Wraps    [][]string // for each worker: words before the command, if this command started it
	Deletes  bool       // do not mark the run as seen: this command deletes the slices after a success, or sees only a part of the run

	// Reads, if set, takes the output of each worker in place of its log file. Such a
	// following changes nothing on the workers or on this machine, and stops no command.
	Reads []*training.ReadLog

	Begin time.Time
	Ends  Endings
	Sum   *event.Summary // summary of an end that this process saw, for the caller to emit

	outages  outages
	stirred  chan struct{} // has one token when outages have changed
	lowDisks LowDisks
	cutLogs  cutLogs
	logs     LogWait
	window   *launch.Window
	silent   workers.Silence // silent workers in the present status line
	watcher  *watcher
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
	if stop.proven() { // otherwise a worker may not have stopped
		f.bringLogs(ctx)
	}
	return f.conclude(ctx, stop)
}

// Once passes the present logs of the workers to Reads. It sets Sum if the run has ended on
// all of them.
func (f *Following) Once(ctx context.Context) {
	f.prepare()
	defer f.watcher.Close()
	f.Workers.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		f.Ends[i] = f.peekWorker(ctx, i)
		return nil
	})
	for i, e := range f.Ends {
		if e.Known {
			f.workerEnded(i)
		}
	}
	if f.Ends.known() == len(f.Ends) {
		sum, _ := f.judge(f.account(nil))
		f.Sum = &sum
	}
}

// prepare makes the values for following.
func (f *Following) prepare() {
	n := len(f.Workers.IDs)
	f.Ends, f.stirred = make(Endings, n), make(chan struct{}, 1)
	f.window = launch.NewWindow(followWindow, n)
	f.watcher = newWatcher(f, f.Watching)
}

// followWindow limits the bytes in transit from all workers together.
const followWindow = 128 << 20

// workerEnded reports how the command ended on a worker, and the progress.
func (f *Following) workerEnded(i int) {
	e := f.Ends[i]
	done := event.WorkerDone{
		Slice: f.Workers.IDs[i].Slice, Worker: f.Workers.IDs[i].Worker,
		Code: e.code(), Signal: e.Exit.Signal, Reason: e.Exit.Reason, End: e.at,
	}
	if e.Err != nil {
		done.Error = e.Err.Error()
	}
	f.Sink.Emit(done)
	f.Sink.Emit(f.progress())
}

// progress says on how many workers the command has ended, and which workers are silent.
func (f *Following) progress() event.Progress {
	p := event.Progress{Phase: "run", Total: len(f.Workers.IDs), Done: f.Ends.known()}
	if p.Done > 0 {
		p.Waiting = f.unfinished()
	}
	if f.Ends != nil {
		p.Elapsed = f.Clock.Now().Sub(f.Begin)
	}
	p.Silent, p.SilentSince = f.silent.Fields()
	return p
}

// tellSilence shows the silent workers after a change.
func (f *Following) tellSilence() {
	now := f.Workers.Silence(func(i int) bool { return !f.Ends[i].Known }, f.Begin, f.Clock.Now())
	if now != f.silent {
		f.silent = now
		f.Sink.Emit(f.progress())
	}
}

// unfinished names the workers whose end is not known.
func (f *Following) unfinished() string { return f.Ends.on(f.Workers.IDs, unknown) }

// CutOff reports whether workers could not be reached and no failure of the command is
// known. The command may still be running there.
func (f *Following) CutOff() bool { return f.Ends.cutOff() }

// Verdict returns the exit status of the run, and the index of the first worker to fail, or
// -1.
func (f *Following) Verdict() (code, first int) { return f.Ends.verdict(f.Strict) }

// OutOfReach returns the workers that cannot be followed now, and the causes. It may be
// called during Do and Once.
func (f *Following) OutOfReach() map[tpu.WorkerID]string {
	away := map[tpu.WorkerID]string{}
	for i, cause := range f.outages.causes() {
		away[f.Workers.IDs[i]] = cause
	}
	return away
}

// stir makes Do report the outages after workers.OutagePause.
func (f *Following) stir() {
	select {
	case f.stirred <- struct{}{}:
	default:
	}
}

// tellOutages reports changes in two lists: the workers that cannot be followed, and the
// logs that this machine cannot copy.
func (f *Following) tellOutages() {
	f.cutLogs.tell(f.Sink, f.Ref.Run)
	f.outages.tell(f.Sink, f.Workers.IDs, f.Clock.Now(), f.Patience.Lost)
}

// lookAtOutages asks the cloud, in one call, whether the slices of lost workers exist. It
// gives up the workers whose slices are gone. If this machine has no network, no worker
// becomes lost, and the time of each outage begins anew. The parameter pause is the pause
// before this question, and the result is the pause before the next one.
func (f *Following) lookAtOutages(ctx context.Context, pause time.Duration) time.Duration {
	lost := f.outages.lostNow()
	if len(lost) == 0 {
		return OutageLook
	}
	f.tellOutages()
	ctx, cancel := context.WithTimeout(ctx, OutageLook/2)
	defer cancel()
	nodes, err := f.Cloud.Slices(ctx)
	if err != nil {
		if ourNetwork(len(lost), len(f.Ends)-f.Ends.known(), err) {
			f.outages.restart(lost, f.Clock.Now())
		}
		return nextLook(pause, f.Patience.Lost, err)
	}
	for _, i := range lost {
		if why := LostSlice(nodes, f.Workers.Slice(i)); why != "" {
			f.outages.gone(i, why)
		}
	}
	return nextLook(pause, f.Patience.Lost, nil)
}

// conclude reports how the run ended and decides the exit status.
func (f *Following) conclude(ctx context.Context, stop *stopping) (stage.Outcome, error) {
	f.lowDisks.Tell(f.Sink, OutputDisk)
	f.cutLogs.tell(f.Sink, f.Ref.Run)
	if most, on := f.Ends.dropped(f.Workers.IDs); len(on) > 0 {
		event.Notef(f.Sink, event.Warn, "", "%s: up to %s of the output were not kept: it reached --max-log, or the disk was full", tpu.Fold(on), event.Bytes(most))
	}
	f.goneWhileStopped(stop)
	a := f.account(stop)
	parts := f.Ends.partly()
	if f.Reads == nil {
		f.Rec.Ended, f.Rec.Code, f.Rec.Cut = stop.proven() && f.Ends.settled(f.Rec.Bucket != ""), a.code, parts != nil
		f.Rec.Removing = f.Deletes && f.Rec.Ended && a.code == 0 && stop == nil && parts == nil
		if err := f.Rec.Save(f.StateDir); err != nil {
			event.Notef(f.Sink, event.Warn, "", "%v", err)
		}
	}
	sum, cause := f.judge(a)
	f.Sum = &sum
	if f.Reads == nil && a.toKeep() {
		f.onFirst(ctx, func(ctx context.Context, c remote.Runner) error { return launch.KeepVerdict(ctx, c, f.Ref, a.blame()) })
	}
	seen := a.code != 0 || cause == nil // a run that was stopped after its last end has not succeeded
	if f.Reads == nil && !f.Deletes && seen && f.Rec.Ended && f.Ends.settled(true) && parts == nil {
		f.onFirst(ctx, func(ctx context.Context, c remote.Runner) error { return launch.KeepSeen(ctx, c, f.Ref, f.Owner) })
	}
	return stage.Outcome{Code: a.code, Started: true, PartLogs: parts != nil, KeepLogs: parts.there() && !stop.slicesGo(f.Deletes)}, cause
}

// goneWhileStopped notes logs that are not whole because their slices were deleted too
// early. After a stop by the user, the summary says only that the command was stopped. The
// summary of any other end names these slices.
func (f *Following) goneWhileStopped(stop *stopping) {
	if stop == nil || stop.cause == nil || f.Reads != nil || f.Rec.Bucket != "" { // a bucket may have the rest
		return
	}
	for i := range f.Ends {
		if e := &f.Ends[i]; e.part == nil && errors.Is(e.Err, ErrSliceGone) {
			e.part = f.copies().unread(i, e.Err)
			e.part.gone = true
		}
	}
}

// onFirst calls do for worker 0 of each slice, if it is connected. multihost ps asks these
// workers how the attempt ended.
func (f *Following) onFirst(ctx context.Context, do func(ctx context.Context, c remote.Runner) error) {
	f.Workers.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		if f.Workers.IDs[i].Worker != 0 || f.Workers.IsAway(i) {
			return nil
		}
		return do(ctx, f.Workers.Conns[i])
	})
}

func (f *Following) account(stop *stopping) account {
	a := account{run: f.Ref.Run, ids: f.Workers.IDs, ends: f.Ends, stop: stop}
	a.code, a.first = f.Verdict()
	return a
}

// judge returns the summary and the error of the run. It warns of everything that does not
// fit into the summary.
func (f *Following) judge(a account) (event.Summary, error) {
	if a.first >= 0 && a.first < len(f.Wraps) && outOfBoundMemory(a.ends[a.first].Exit, f.Wraps[a.first]) {
		event.Notef(f.Sink, event.Warn, "let it use the other nodes' memory too: --numa=preferred",
			"the command on %s was killed because memory was short: it was bound to the memory of NUMA node 0, half of the worker's", a.ids[a.first])
	}
	sum, lines := a.summary()
	sum.Attempt, sum.LogDir, sum.Training, sum.Phases, sum.Skew = f.Ref.Attempt, f.Rec.LogDir, f.watcher.summary(), f.Watch.Times, f.Skew
	if lines {
		sum.LastLines = LastLines(f.Rec.LogPath(a.ids[a.first]), 20, f.Secrets)
	}
	if sum.Text == "" {
		SayExcused(f.Sink, &sum, a.ends.on(a.ids, Ending.failed))
	}
	behind, where := a.ends.leftBehind(a.ids)
	SayLeftBehind(f.Sink, &sum, behind, where, backgroundCure)
	if parts := a.ends.partly(); parts != nil && !a.stop.slicesGo(f.Deletes) {
		if note := parts.addTo(&sum); note != nil {
			f.Sink.Emit(*note)
		}
	}
	cause := a.stop.end(a.code)
	if cause != nil && f.ExitStatus != nil {
		sum.ExitCode = f.ExitStatus(cause)
	}
	return sum, cause
}
