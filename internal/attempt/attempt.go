package attempt

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/mask"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// An Attempt is one attempt of a run on connected workers.
type Attempt struct {
	*Run
	History *History
	Workers *workers.Connected
	Deletes bool // delete the slices after a success

	// Hold is called after the decision and before the first change. The attempt continues
	// with Hold's context, and at its end calls over. Hold may be nil.
	Hold func(ctx context.Context) (_ context.Context, over func(), err error)

	Number   int               // set after the decision
	Follow   *follow.Following // nil until the command is followed
	Regained bool              // this runner had given the attempt up
	rec      *record.Record    // nil until the command starts
	races    int               // number of times in a row that another runner of this run was first
}

// Do runs the command on the workers and follows it to its end. If another runner of the
// same job was first, Do follows that command.
func (r *Attempt) Do(ctx context.Context) (stage.Outcome, error) {
	for r.races = 0; ; r.races++ {
		out, err := r.try(ctx)
		if !r.Job || !Raced(err, r.O.Run) || r.races == maxRaces {
			return out, err
		}
		if err := r.yield(ctx); err != nil {
			return out, err
		}
	}
}

func (r *Attempt) try(ctx context.Context) (stage.Outcome, error) {
	d := &decider{Run: r.Run, history: r.History, workers: r.Workers, yields: r.races < maxRaces}
	in, err := d.decide(ctx)
	if err != nil {
		return stage.Outcome{}, err
	}
	if r.Hold != nil {
		var over func()
		if ctx, over, err = r.Hold(ctx); err != nil {
			return stage.Outcome{}, err
		}
		defer over()
	}
	return r.carryOut(ctx, in)
}

func (r *Attempt) carryOut(ctx context.Context, in *Decision) (stage.Outcome, error) {
	r.Number = in.attempt
	if in.living == nil && r.Workers.Away != nil { // the command there has ended meanwhile
		return stage.Outcome{}, stage.WorkersError(stage.Connect, r.Workers.IDs, r.Workers.Away)
	}
	for _, e := range in.evict {
		if err := r.evict(ctx, e); err != nil {
			return stage.Outcome{}, err
		}
	}
	if in.living != nil {
		return r.takeOver(ctx, in)
	}
	if err := r.openRecord(in.record); err != nil {
		return stage.Outcome{}, err
	}
	s := r.start(r.History, r.Workers, in)
	if err := s.do(ctx); err != nil {
		return stage.Outcome{}, err
	}
	r.begun(in.record)
	if r.O.Detach {
		return r.leaveRunning(), nil
	}
	r.History.skew = s.skew
	return r.followed(ctx, s.wraps, s.skew)
}

// leaveRunning ends this runner's part once the command has started, with --detach.
func (r *Attempt) leaveRunning() stage.Outcome {
	event.Notef(r.Sink, event.Info, "follow it with: multihost attach "+r.O.Run+"; end it with: multihost stop "+r.O.Run,
		"run %s goes on without this machine on %s", r.O.Run, tpu.Fold(r.Workers.IDs))
	return stage.Outcome{Started: true, Detached: true}
}

// begun records the attempt as started.
func (r *Attempt) begun(rec *record.Record) {
	r.rec = rec
	r.History.begun(r.Number, rec.Slices)
	r.rec.BeginAttempt(r.Clock.Now())
	if err := r.rec.Save(r.StateDir); err != nil {
		event.Notef(r.Sink, event.Warn, "", "the run goes on, but its record cannot be kept: %v", err)
	}
}

// Begun reports whether the command was started or taken over.
func (r *Attempt) Begun() bool { return r.rec != nil }

// End reports and records how a started attempt ended. The parameter f says why it failed;
// nil means success. The parameter again says that another attempt follows, and next says
// which one, or why none does.
func (r *Attempt) End(f *stage.Failure, again bool, next string) {
	e := event.AttemptEnd{Run: r.O.Run, Attempt: r.Number, OK: f == nil, Again: again}
	if r.Follow != nil {
		e.Elapsed = r.Clock.Now().Sub(r.Follow.Begin)
	}
	if f != nil {
		e.Cause, e.Why, e.Code, e.Next = string(f.Cause), f.Why, f.Code, next
	}
	r.Sink.Emit(e)
	r.rec.EndAttempt(e, r.Clock.Now())
	r.rec.Removing = r.rec.Removing && f == nil
	if err := r.rec.Save(r.StateDir); err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
}

// followed follows the command to its end. If this attempt has started the command, wraps
// are the words before the command, and skew is the time between the first and the last
// start.
func (r *Attempt) followed(ctx context.Context, wraps [][]string, skew time.Duration) (stage.Outcome, error) {
	secrets := slices.Concat(r.O.Env, r.flags)
	r.Follow = &follow.Following{
		Deps: follow.Deps{Reach: r.Reach, Keeper: r.Keeper}, Workers: r.Workers, Ref: r.ref(), Rec: r.rec, Watch: r.Watch, Skew: skew,
		FailFast: r.O.FailFast, Timeout: r.O.Timeout, Grace: r.O.Grace, Strict: r.O.StrictExit, Watching: r.O.Watch,
		Secrets: mask.MaskedWords(secrets), Patience: r.O.Patience, Wraps: wraps, Deletes: r.Deletes,
	}
	return r.Follow.Do(ctx)
}

// stays reports whether --detach was given and the attempt on the workers is running. The
// runner then leaves it alone. Otherwise the runner follows the attempt, and takes care of
// its end and of the slices.
func (r *Run) stays(living *workers.FoundRun) bool {
	return r.O.Detach && living.Info.Alive() && living.Alive+living.Well == len(living.Workers)
}

// takeOver follows an attempt of an earlier runner of this run that did not see its end. If
// stays reports true, takeOver leaves the attempt running.
func (r *Attempt) takeOver(ctx context.Context, in *Decision) (stage.Outcome, error) {
	// For a worker without an answer, use the clock offset from its connection. A missing
	// answer is no reason to give up the command there.
	r.Workers.Each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		if r.Workers.IsAway(i) {
			return nil
		}
		_, err := r.Workers.Conns[i].MeasureClock(ctx)
		return err
	})
	if ctx.Err() != nil {
		return stage.Outcome{}, context.Cause(ctx)
	}
	living, rec := in.living, in.record
	if err := r.makeLogDir(rec); err != nil {
		return stage.Outcome{}, err
	}
	r.Regained = r.History.CutOff && r.Number == r.History.Last && !r.History.elsewhere(r.Workers.Slices)
	rec.Created = r.Clock.Now().Add(-living.Info.Age()).UTC()
	r.OpenJournal(rec.Run, "run", r.O.Env)
	r.Sink.Emit(rec.AttemptEvent())
	if r.stays(living) {
		event.Notef(r.Sink, event.Info, "", "run %s, attempt %d, was started %s ago and lives: it is left running", r.O.Run, r.Number, event.Age(living.Info.Age()))
		r.begun(rec)
		return r.leaveRunning(), nil
	}
	event.Notef(r.Sink, event.Info, "", "run %s, attempt %d, was started %s ago and is taken over: logs in %s; %s",
		r.O.Run, r.Number, event.Age(living.Info.Age()), rec.LogDir, r.WhatCtrlCDoes(true))
	r.begun(rec)
	skew := time.Duration(0) // another runner has started the command and knows the skew
	if r.Regained {
		skew = r.History.skew
	}
	return r.followed(ctx, make([][]string, len(r.Workers.IDs)), skew)
}

// evict stops a run that holds the workers.
func (r *Attempt) evict(ctx context.Context, e eviction) error {
	event.Notef(r.Sink, event.Warn, "", "stopping run %s of %s: %s", e.Info.Ref.Label(), e.Info.Owner, e.reason)
	stopCtx, cancel := r.Detached(ctx, r.O.Grace+2*time.Minute)
	defer cancel()
	return r.Workers.StopAll(stopCtx, r.Sink, e.Info.Ref, r.O.Grace, e.reason, nil)
}

func (r *Attempt) ref() launch.Ref { return launch.Ref{Run: r.O.Run, Attempt: r.Number} }

// sayUnmasked warns of secrets that the workers read from Secret Manager. If the command
// prints them, everybody sees them, because this machine does not know their values.
func (r *Attempt) sayUnmasked() {
	if len(r.O.Secrets) == 0 {
		return
	}
	names := make([]string, len(r.O.Secrets))
	for i, s := range r.O.Secrets {
		names[i] = s.Name
	}
	event.Notef(r.Sink, event.Info, "", "%s: read by the workers from Secret Manager and not known here: if the command prints the value, it is shown and logged", strings.Join(names, ", "))
}

// openRecord makes the log directory and reports where the logs will be, before anything
// can fail on the workers.
func (r *Attempt) openRecord(rec *record.Record) error {
	if err := r.makeLogDir(rec); err != nil {
		return err
	}
	if err := rec.Unused(); err != nil {
		return err
	}
	r.OpenJournal(rec.Run, "run", r.O.Env)
	r.Sink.Emit(rec.AttemptEvent())
	if r.History.Tried == 0 {
		r.sayUnmasked()
	}
	how := r.WhatCtrlCDoes(true)
	if r.O.Detach {
		how = "it goes on when this command ends"
	}
	event.Notef(r.Sink, event.Info, "", "run %s, attempt %d: logs in %s; %s", r.O.Run, r.Number, rec.LogDir, how)
	return nil
}

// Raced reports whether another runner of the same job, on another machine, was faster. It
// has started an attempt on some worker, so an attempt of this runner did not start.
func Raced(err error, run string) bool {
	var busy *launch.BusyError
	var code *launch.CodeError
	var inUse *codesync.InUseError
	return errors.Is(err, stage.ErrStarting) || errors.Is(err, launch.ErrAlreadyStarted) || errors.As(err, &busy) && busy.Info.Run == run ||
		errors.As(err, &code) || errors.As(err, &inUse)
}

// maxRaces limits how often two runners hinder each other. After that, the other attempt
// counts as left by a dead runner.
const maxRaces = 8

// yield waits for a random time, so that another runner of the job can go first.
func (r *Attempt) yield(ctx context.Context) error {
	if r.races == 0 {
		event.Notef(r.Sink, event.Warn, "", "another runner of job %s starts its command, too", r.O.Run)
	}
	return stage.Sleep(ctx, r.Clock, time.Second+rand.N(time.Duration(r.races+1)*2*time.Second))
}
