package job

import (
	"context"
	"fmt"

	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/renewal"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A runner makes attempts of a run until one succeeds, somebody stops the run, or a budget
// is spent.
type runner struct {
	*attempt.Run
	history attempt.History
	ground  ground
	books   ledger
	lease   *renewal.Lease // of slices that a job of this run made; nil: other slices
	end     renewal.End    // when the provider takes the slices away
	deletes func() bool    // whether the job deletes the slices after a success; nil: no

	// missing reports whether the command may be running on slices of which some workers do
	// not answer. The runner then takes it over on the other workers. nil: never.
	missing func() bool

	// decided is called when an attempt has asked its workers for their runs. It may be
	// nil.
	decided func()

	now    *attempt.Attempt   // present or last attempt; nil: no connection to its workers
	team   *workers.Connected // the current workers; nil after leaving them
	used   []tpu.Slice        // slices of now
	unread follow.Parts       // logs of the last attempt that are lost with its slices
}

// close ends the connections and deletes the packed files of the sync.
func (r *runner) close() {
	r.leaveTeam()
	r.Run.Close()
}

// run makes the attempts, and emits the summary of the last one.
func (r *runner) run(ctx context.Context) (stage.Outcome, error) {
	var after *stage.Failure
	for {
		out, err := r.attempt(ctx, after)
		if r.now != nil && r.now.Regained {
			r.books.refund()
		}
		f := r.inquest().judge(ctx, out, err)
		v := r.next(ctx, f)
		r.sayEnd(out, f, v)
		if !v.again {
			return r.finish(out, err, f, v.text)
		}
		after = f
		if f := r.followed(); f != nil { // the last followed attempt may still be running
			r.history.CutOff, r.unread = f.CutOff(), f.GoWithSlices()
		}
		pause := r.books.pause()
		r.lease.Leave(ctx, r.team, pause)
		r.leaveTeam()
		if err := stage.Sleep(ctx, r.Clock, pause); err != nil {
			return stage.Outcome{}, err
		}
	}
}

// followed returns the Following of the last attempt, or nil.
func (r *runner) followed() *follow.Following {
	if r.now == nil {
		return nil
	}
	return r.now.Follow
}

// attempt makes one attempt. It waits for usable slices, connects to their workers, runs
// the command and follows it to its end.
func (r *runner) attempt(ctx context.Context, after *stage.Failure) (stage.Outcome, error) {
	r.now = nil
	if taken := renewal.Taken(r.used, r.Clock.Now()); taken != nil { // something took the slices away between two attempts
		return stage.Outcome{}, taken
	}
	sel, err := r.ground.ready(ctx, r.books.pay, after)
	if err != nil && ctx.Err() == nil {
		if expired := r.lease.Expired(); expired != nil { // the workers delete the slices
			return stage.Outcome{}, expired
		}
	}
	if err != nil {
		return stage.Outcome{}, &unready{err}
	}
	r.used = sel.Slices
	if r.missing != nil && r.missing() {
		r.team, err = r.connectSome(ctx, sel)
	} else {
		r.team, err = r.ConnectPhase(ctx, r.Watch, sel, nil)
	}
	if err != nil {
		return stage.Outcome{}, err
	}
	r.now = &attempt.Attempt{Run: r.Run, History: &r.history, Workers: r.team, Hold: r.hold, Deletes: r.deletes != nil && r.deletes()}
	return r.now.Do(ctx)
}

// hold makes the workers hold the lease during an attempt. The attempt ends when the time
// to live of the slices has passed.
func (r *runner) hold(ctx context.Context) (_ context.Context, over func(), err error) {
	if r.decided != nil {
		r.decided()
	}
	if err := r.lease.Arm(ctx, r.team); err != nil {
		return ctx, nil, err
	}
	ctx, expired := r.lease.UntilExpiry(ctx)
	ctx, taken := r.end.Until(ctx, r.Reach, r.team.Slices, r.O.Grace)
	return ctx, func() { taken(); expired() }, nil
}

// connectSome connects to the workers that answer, to take over the command that runs on
// them. It warns about the other workers by name, and connects to them when they answer.
func (r *runner) connectSome(ctx context.Context, sel tpu.Selection) (t *workers.Connected, err error) {
	err = r.Watch.Phase("connect", func() (string, error) {
		if t, err = r.DialAll(ctx, sel, nil, true, min(r.Access.RetryFor, adoptRound)); err != nil {
			return "", err
		}
		if t.Reached() == 0 {
			defer t.Close()
			return "", stage.WorkersError(stage.Connect, t.IDs, t.Away)
		}
		return fmt.Sprintf("%d/%d workers", t.Reached(), len(t.IDs)), nil
	})
	if err != nil {
		return nil, err
	}
	for _, g := range stage.GroupErrors(t.IDs, t.Away) {
		limit := "for as long as it takes"
		if r.O.Patience.Lost > 0 {
			limit = "up to " + stage.AsTyped(r.O.Patience.Lost) + " (--lost-timeout)"
		}
		event.Notef(r.Sink, event.Warn, gcp.Hint(g.First), "the command of run %s lives, but %s cannot be reached and is waited for %s: %s", r.O.Run, tpu.FoldShort(g.Workers), limit, g)
	}
	return t, nil
}

// An unready error ends a run that could not get its slices. The ground has already tried
// everything.
type unready struct{ error }

func (e *unready) Unwrap() error { return e.error }

func (r *runner) leaveTeam() {
	if r.team != nil {
		r.lease.Leave(context.Background(), r.team, -1)
		r.team.Close()
		r.team = nil
	}
}

// A verdict says whether another attempt follows.
type verdict struct {
	again bool
	text  string // which attempt follows, or why none does; "": obvious
}

// next decides whether another attempt follows the failure f, and pays for it.
func (r *runner) next(ctx context.Context, f *stage.Failure) verdict {
	if f == nil || f.Cause == stage.UserStop || f.Cause == stage.Expired || f.Cause == stage.Refused || ctx.Err() != nil {
		return verdict{}
	}
	if refusal := r.books.spend(f); refusal != "" {
		return verdict{text: refusal}
	}
	return verdict{again: true, text: "trying again (" + r.books.count(f) + ")"}
}

// sayEnd reports how the attempt ended, if it started. Otherwise it reports only that
// another attempt follows, and why.
func (r *runner) sayEnd(out stage.Outcome, f *stage.Failure, v verdict) {
	if r.now == nil || !r.now.Begun() || !out.Started {
		if v.again {
			event.Notef(r.Sink, event.Warn, "", "%s; %s", f, v.text)
		}
		return
	}
	if !out.Detached {
		r.now.End(f, v.again, v.text)
	}
}

// finish ends the last attempt. If the command is not the cause, the summary names the
// cause, and why there is no further attempt.
func (r *runner) finish(out stage.Outcome, err error, f *stage.Failure, refusal string) (stage.Outcome, error) {
	l := last{run: r.O.Run, out: out, err: err, failure: f, refusal: refusal, tried: r.history.Tried, number: r.history.Last, phases: r.Watch.Times}
	if f := r.followed(); f != nil {
		l.followed = true
		l.status = func(err error) int { return f.ExitStatus(err) }
		if l.sum = f.Sum; l.sum != nil {
			l.gone = f.SliceGone()
		}
	}
	out, sum, err := l.conclude()
	if sum != nil {
		r.Sink.Emit(*sum)
	}
	r.leaveTeam()
	return out, err
}

// sayLogsGo warns, before the slices are deleted, of logs of the last attempt that are lost
// with them. With earlier, it also warns of logs of an earlier runner's command.
func (r *runner) sayLogsGo(earlier bool) {
	if f := r.followed(); f != nil {
		r.unread = f.GoWithSlices()
	}
	if r.unread != nil {
		event.Notef(r.Sink, event.Warn, "", "%s; the rest goes with the slices", r.unread)
	}
	r.unread = nil
	if earlier {
		event.Notef(r.Sink, event.Warn, "", "logs of an earlier runner's command may be not whole here; what is missing goes with the slices")
	}
}
