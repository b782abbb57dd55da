package job

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/qr"
	"multihost/internal/sshfan"
	"multihost/internal/tpu"
)

// A ground is where the attempts of a run take place: slices that are there, or
// slices that are made and made again.
type ground interface {
	// ready returns the slices when every worker can be tried. after is the
	// failure that a next attempt has been paid for; nil the first time.
	ready(ctx context.Context, pay func(*Failure) error, after *Failure) (tpu.Selection, error)
	// look says what has become of the slices; reach what their workers said.
	look(ctx context.Context, used []tpu.Slice, reach func(slice string) qr.Reach) (qr.Decision, error)
}

// attempts runs the command on g until it succeeds, is stopped, or a budget is
// spent, and emits the summary of the last attempt.
func (r *run) attempts(ctx context.Context, g ground, b Budget) (Outcome, error) {
	books := &ledger{Budget: b}
	r.patient = b.Restarts > 0 || b.Preemptions != 0
	var after *Failure
	for {
		out, err := r.attemptOn(ctx, g, books, after)
		if r.regained {
			books.refund()
		}
		f := r.judge(ctx, g, out, err)
		again := r.next(ctx, books, f)
		r.sayEnd(out, f, again)
		if !again {
			return r.finish(out, err, f)
		}
		after = f
		if r.follow != nil { // else the last one that was followed may still go on
			r.cutOff = r.follow.cutOff()
		}
		pause := books.pause()
		r.leaveLease(ctx, pause)
		r.leaveTeam()
		if err := r.wait(ctx, pause); err != nil {
			return Outcome{}, err
		}
	}
}

// attemptOn makes one attempt, from slices that can be tried to the end of the
// command.
func (r *run) attemptOn(ctx context.Context, g ground, books *ledger, after *Failure) (Outcome, error) {
	r.follow, r.rec, r.regained = nil, nil, false
	pay := func(f *Failure) error {
		if refusal := books.spend(f); refusal != "" {
			return &Failure{Cause: Refused, Why: f.Error() + "; " + refusal, Err: f.Err}
		}
		return nil
	}
	sel, err := g.ready(ctx, pay, after)
	switch {
	case err != nil && ctx.Err() == nil && r.guard.expired(r.Clock.Now()): // by the workers
		return Outcome{}, expiry(r.guard.terms.TTL)
	case err != nil:
		return Outcome{}, &unready{err}
	}
	r.used = sel.Slices
	if r.missing != nil && r.missing() {
		r.team, err = r.connectSome(ctx, sel)
	} else {
		r.team, err = r.connectPhase(ctx, &r.watch, sel, nil)
	}
	if err != nil {
		return Outcome{}, err
	}
	return r.onTeam(ctx)
}

// connectSome connects to the workers that answer, to take over what lives on
// them. The others are named, and connected to when they are back.
func (r *run) connectSome(ctx context.Context, sel tpu.Selection) (t *team, err error) {
	err = r.watch.phase("connect", func() (string, error) {
		if t, err = r.dialAll(ctx, sel, nil, true, min(r.Access.RetryFor, adoptRound)); err != nil {
			return "", err
		}
		if t.reached() == 0 {
			defer t.close()
			return "", workersError(StageConnect, t.ids, t.away)
		}
		return fmt.Sprintf("%d/%d workers", t.reached(), len(t.ids)), nil
	})
	if err != nil {
		return nil, err
	}
	for _, g := range groupErrors(t.ids, t.away) {
		limit := "for as long as it takes"
		if r.o.Patience.Lost > 0 {
			limit = "up to " + asTyped(r.o.Patience.Lost) + " (--lost-timeout)"
		}
		event.Notef(r.Sink, event.Warn, gcp.Hint(g.first), "the command of run %s lives, but %s cannot be reached and is waited for %s: %s", r.o.Run, tpu.Fold(g.workers), limit, g)
	}
	return t, nil
}

// unready is the end of a run because its slices could not be had. What could
// be done about them was done.
type unready struct{ error }

func (e *unready) Unwrap() error { return e.error }

func (r *run) leaveTeam() {
	if r.team != nil {
		r.leaveLease(context.Background(), -1)
		r.team.close()
		r.team = nil
	}
}

// wait lets d pass before the next attempt.
func (r *run) wait(ctx context.Context, d time.Duration) error {
	if d > 0 {
		select {
		case <-r.Clock.After(d):
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// next reports whether another attempt follows f, and pays for it.
func (r *run) next(ctx context.Context, books *ledger, f *Failure) bool {
	if f == nil || f.Cause == UserStop || f.Cause == Refused || ctx.Err() != nil {
		return false
	}
	if r.refusal = books.spend(f); r.refusal != "" {
		return false
	}
	r.count = books.count(f)
	return true
}

// sayEnd tells the world how the attempt ended, if it began, and else what is
// tried again.
func (r *run) sayEnd(out Outcome, f *Failure, again bool) {
	next := r.refusal
	if again {
		next = "trying again (" + r.count + ")"
	}
	if r.rec == nil || !out.Started {
		if again {
			event.Notef(r.Sink, event.Warn, "", "%s; %s", f, next)
		}
		return
	}
	if out.Detached {
		return
	}
	e := event.AttemptEnd{Run: r.o.Run, Attempt: r.attempt, OK: f == nil, Again: again}
	if r.follow != nil {
		e.Elapsed = r.Clock.Now().Sub(r.follow.begin)
	}
	if f != nil {
		e.Cause, e.Why, e.Code, e.Next = string(f.Cause), f.Why, f.Code, next
	}
	r.Sink.Emit(e)
	r.rec.endAttempt(e, r.Clock.Now())
	if err := r.rec.save(r.StateDir); err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
}

// finish is the end of the last attempt. Its summary names the cause, where
// that is not the command, and why nothing more was tried.
func (r *run) finish(out Outcome, err error, f *Failure) (Outcome, error) {
	var raised *Failure
	if err == nil && f != nil && out.Started && f.lost() {
		out.Code = lostCode
	}
	if err == nil && f != nil && f.Cause == UserStop {
		err = f.Err // an interrupt while it was judged
	}
	if r.follow != nil && r.follow.sum != nil {
		sum := r.follow.sum
		if f != nil && f.lost() {
			_, first := r.follow.verdict()
			if first >= 0 && errors.Is(r.follow.ends[first].err, errSliceGone) { // else it is told twice
				sum.Text = fmt.Sprintf("run %s failed: %s", sum.Run, f.Error())
			} else {
				sum.Text += "; " + f.Error()
			}
			if err == nil {
				sum.ExitCode = out.Code
			}
		}
		if f != nil && r.refusal != "" && (f.lost() || r.tried > 1) {
			sum.Text += "; " + r.refusal
		}
		r.Sink.Emit(*sum)
	} else if f != nil && err != nil && !errors.As(err, &raised) && r.refusal != "" && f.lost() {
		err = &Failure{Cause: f.Cause, Why: f.Why + "; " + r.refusal, Err: err}
	}
	r.leaveTeam()
	return out, err
}

// lost reports whether f is a loss that the command is not to blame for.
func (f *Failure) lost() bool {
	return f.Cause == Preempted || f.Cause == Maintenance || f.Cause == Infrastructure
}

// judge says why an attempt ended without success; nil when it succeeded or
// goes on without us. It asks the cloud, and where something may have been
// taken away it waits until the cloud's state has settled: the first sign of a
// preemption is a command that fails.
func (r *run) judge(ctx context.Context, g ground, out Outcome, err error) *Failure {
	f := &Failure{Code: out.Code, Err: err}
	if out.Started && r.follow != nil {
		f.Ran = r.Clock.Now().Sub(r.follow.begin)
	}
	var interrupted *Interrupted
	var raised *Failure
	var never *unready
	switch {
	case err == nil && (out.Code == 0 || out.Detached):
		return nil
	case errors.As(err, &interrupted) || ctx.Err() != nil:
		f.Cause, f.Why = UserStop, context.Cause(ctx).Error()
		return f
	case errors.As(err, &never), isStage(err, StageTimeout):
		f.Cause, f.Why = Refused, err.Error()
		return f
	case errors.As(err, &raised):
		f.Cause, f.Why = raised.Cause, raised.Why
		return f
	case isStage(err, StageStall):
		f.Cause, f.Why = Refused, err.Error()
		return f
	}
	sign := r.signs(err)
	switch {
	case sign.stopped:
		f.Cause, f.Why = UserStop, sign.why
	case sign.final && !r.mayBeLoss(err):
		f.Cause, f.Why = Refused, sign.why
	default:
		f.Cause, f.Why = r.settle(ctx, g, sign)
		if f.Cause == Application && sign.final { // nothing was taken away: it stays a mistake
			f.Cause = Refused
		}
		if ctx.Err() != nil { // it was not waited for
			f.Err = context.Cause(ctx)
			f.Cause, f.Why = UserStop, f.Err.Error()
		}
	}
	return f
}

func isStage(err error, stage Stage) bool {
	var e *Error
	return errors.As(err, &e) && e.Stage == stage
}

// mayBeLoss reports whether an error that came before the command, and that says
// nothing of a loss, may be one all the same: what a worker says while its slice
// is taken away can be anything. A mistake of the user's is none.
func (r *run) mayBeLoss(err error) bool {
	var e *Error
	var busy *launch.BusyError
	if r.follow != nil || r.team == nil || len(r.used) == 0 || !errors.As(err, &e) || errors.As(err, &busy) {
		return false
	}
	switch e.Stage {
	case StageConnect, StageBusy, StageSync, StageFolder, StagePreflight, StageFree, StageStart, StageFollow:
		return len(e.each) > 0
	}
	return false
}

// signs are what the workers themselves show of why an attempt failed.
type signs struct {
	stopped bool // by somebody, not by us
	final   bool // a mistake, which stays one
	lost    bool // a worker could not be reached, or was rebooted
	killed  bool // a command was ended by a signal that is not ours
	why     string
}

func (r *run) signs(err error) signs {
	if r.follow == nil || len(r.follow.ends) == 0 {
		lost := lostContact(err)
		return signs{lost: lost, final: !lost, why: err.Error()}
	}
	f := r.follow
	_, first := f.verdict()
	s := signs{}
	if first >= 0 {
		end := f.ends[first]
		s.why = f.team.ids[first].String() + ": " + end.text()
		s.stopped = end.err == nil && end.exit.Reason != "" && !end.exit.Lost
	}
	for _, end := range f.ends {
		s.lost = s.lost || end.err != nil && end.known || end.exit.Lost
		// What a VM that is taken away does to its processes.
		s.killed = s.killed || (end.exit.Signal == "TERM" || end.exit.Signal == "KILL") && end.exit.Reason == "" && !end.exit.OOM
	}
	return s
}

// lostContact reports whether an error that came before the command says that
// something could not be reached any more that had been, or was rebooted, rather
// than that it refused.
func lostContact(err error) bool {
	var many *Error
	if errors.As(err, &many) {
		if many.lost || slices.ContainsFunc(many.each, lostContact) {
			return true
		}
		err = many.Err
	}
	var refused *sshfan.ConnectError
	if errors.As(err, &refused) {
		return refused.Stage == sshfan.StageDial || refused.Stage == sshfan.StageHandshake || errors.Is(err, sshfan.ErrBooting) || errors.Is(err, sshfan.ErrConnectionLost)
	}
	var secret *launch.SecretError
	if errors.As(err, &secret) && (secret.Status >= http.StatusInternalServerError || secret.Status == http.StatusTooManyRequests) {
		return true // Secret Manager is away, for longer than the worker asks
	}
	switch gcp.ClassOf(err) {
	case gcp.NotFound, gcp.Unavailable, gcp.Timeout: // a slice is not there, or the API is away
		return true
	}
	for _, sign := range []error{errRebooted, sshfan.ErrConnectionLost, sshfan.ErrSilent, sshfan.ErrNoStatus, codesync.ErrStalled} {
		if errors.Is(err, sign) {
			return true
		}
	}
	return false
}

const (
	// settleLimit is how long the cloud may take to say that it took a slice
	// away. VMs are told up to half a minute before they are stopped, and the
	// API shows it after that.
	settleLimit = time.Minute
	settlePause = 2 * time.Second
	// answerLimit is how long a worker may take to say that it is there.
	answerLimit = 10 * time.Second
)

// settle asks the cloud what became of the slices. Where the workers give no
// sign of a loss and all of them answer, one look is enough.
func (r *run) settle(ctx context.Context, g ground, sign signs) (Cause, string) {
	reach := r.reach(ctx)
	for _, s := range r.used {
		sign.lost = sign.lost || reach(s.Name) == qr.Silent
	}
	begin, told := r.Clock.Now(), false
	for {
		d, err := g.look(ctx, r.used, reach)
		over := !r.patient || r.Clock.Now().Sub(begin) >= settleLimit || ctx.Err() != nil
		switch {
		case err != nil && !over:
		case err == nil && (d.Loss == qr.Preempted || d.Loss == qr.Maintenance):
			return Cause(d.Loss), d.Why
		case err == nil && d.Loss == qr.Removed:
			return UserStop, d.Why
		case (sign.lost || sign.killed) && !over:
		case err == nil && d.Loss == qr.Infrastructure && sign.lost:
			return Infrastructure, d.Why + ": " + sign.why
		case err == nil && d.Loss == qr.Infrastructure:
			return Infrastructure, d.Why
		case sign.lost:
			return Infrastructure, sign.why
		default:
			return Application, sign.why
		}
		if !told {
			told = true
			event.Notef(r.Sink, event.Info, "", "%s; waiting up to %s for the cloud to say whether it took a slice away", sign.why, asTyped(settleLimit))
		}
		select {
		case <-r.Clock.After(settlePause):
		case <-ctx.Done():
		}
	}
}

// reach asks every worker of the team whether it is there.
func (r *run) reach(ctx context.Context) func(slice string) qr.Reach {
	if r.team == nil {
		return func(string) qr.Reach { return qr.Silent }
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	errs := r.team.each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		_, err := r.team.conns[i].Run(ctx, sshfan.Cmd{Line: "true"})
		return err
	})
	reached := map[string]qr.Reach{}
	for i, err := range errs {
		name := r.team.slice(i).Name
		if err != nil {
			reached[name] = qr.Silent
		} else if reached[name] == qr.Untried {
			reached[name] = qr.Answers
		}
	}
	return func(slice string) qr.Reach { return reached[slice] }
}

// standing is the ground of Run: slices that somebody else made and that stay
// what they are.
type standing struct {
	*Deps
	watch   *stopwatch
	prefix  string
	numbers tpu.Numbers
	partial bool
	found   tpu.Selection
}

// returnLimit is how long slices that exist may take to be READY again after a
// loss.
const returnLimit = 15 * time.Minute

func (s *standing) ready(ctx context.Context, _ func(*Failure) error, after *Failure) (_ tpu.Selection, err error) {
	if after == nil {
		s.found, err = s.discoverPhase(ctx, s.watch, s.prefix, s.numbers, s.partial)
		return s.found, err
	}
	begin := s.Clock.Now()
	for {
		var why string
		nodes, err := s.Cloud.Slices(ctx)
		if err == nil {
			if why, err = s.absent(nodes); err != nil {
				return s.found, err
			}
			if why == "" {
				return s.found, nil
			}
		}
		if s.Clock.Now().Sub(begin) > returnLimit {
			return s.found, &Error{Stage: StageDiscover, Err: err, Text: fmt.Sprintf("slices are not usable for %s: %s", returnLimit, why)}
		}
		select {
		case <-s.Clock.After(5 * time.Second):
		case <-ctx.Done():
			return s.found, context.Cause(ctx)
		}
	}
}

// absent says why the slices cannot be used now; the error that they never can.
func (s *standing) absent(nodes []tpu.Slice) (why string, err error) {
	for i, have := range s.found.Slices {
		if gone := lostSlice(nodes, have); gone != "" {
			return "", &Error{Stage: StageDiscover, Text: gone, Advice: "multihost job makes slices again that were taken away"}
		}
		for _, n := range nodes {
			if n.Name != have.Name {
				continue
			}
			if ok, text := n.Ready(); !ok {
				why = fmt.Sprintf("slice %q: %s", n.Name, text)
			}
			n.Index = have.Index
			s.found.Slices[i] = n
		}
	}
	return why, nil
}

func (s *standing) look(ctx context.Context, used []tpu.Slice, reach func(string) qr.Reach) (qr.Decision, error) {
	nodes, err := s.Cloud.Slices(ctx)
	if err != nil {
		return qr.Decision{}, err
	}
	return lookAt(nodes, used, reach), nil
}

// lookAt is what the API's list says of the slices of an attempt.
func lookAt(nodes, used []tpu.Slice, reach func(string) qr.Reach) qr.Decision {
	return qr.Decide(qr.Sight{State: "ACTIVE", Existed: true, Slices: sights(nodes, used, reach)})
}

// sights are the slices of an attempt as they are now. One of the same name
// with another id is another slice.
func sights(nodes, used []tpu.Slice, reach func(string) qr.Reach) []qr.SliceSight {
	all := make([]qr.SliceSight, len(used))
	for i, s := range used {
		all[i] = qr.SliceSight{Name: s.Name, Reach: reach(s.Name)}
		for _, n := range nodes {
			if n.Name == s.Name && n.UID == s.UID {
				all[i].State, all[i].Health = n.State, n.Health
			}
		}
	}
	return all
}
