package job

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// A ground provides the slices of a run's attempts: either slices that exist, or slices
// that the job creates and creates again.
type ground interface {
	// ready returns the slices once a connection to every worker can be tried. after is
	// the failure for which the next attempt has been paid; it is nil the first time.
	ready(ctx context.Context, pay func(*Failure) error, after *Failure) (tpu.Selection, error)
	// look says what happened to the slices. reach says whether the workers of a slice
	// answer.
	look(ctx context.Context, used []tpu.Slice, reach func(slice string) provision.Reach) (provision.Decision, error)
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
		if r.follow != nil { // otherwise the last attempt that was followed may still be running
			r.cutOff, r.unread = r.follow.cutOff(), r.follow.goWithSlices()
		}
		pause := books.pause()
		r.leaveLease(ctx, pause)
		r.leaveTeam()
		if err := sleep(ctx, r.Clock, pause); err != nil {
			return Outcome{}, err
		}
	}
}

// attemptOn makes one attempt: it waits for usable slices, connects to their workers,
// runs the command and follows it to its end.
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
	case err != nil && ctx.Err() == nil && r.guard.expired(r.Clock.Now()): // the workers delete the slices
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

// connectSome connects to the workers that answer, in order to take over the command
// that runs on them. It warns about the other workers and names them; they are
// connected to when they are back.
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
		event.Notef(r.Sink, event.Warn, gcp.Hint(g.first), "the command of run %s lives, but %s cannot be reached and is waited for %s: %s", r.o.Run, tpu.FoldShort(g.workers), limit, g)
	}
	return t, nil
}

// An unready error ends a run because its slices could not be had. The ground has
// already tried what could be done about it.
type unready struct{ error }

func (e *unready) Unwrap() error { return e.error }

func (r *run) leaveTeam() {
	if r.team != nil {
		r.leaveLease(context.Background(), -1)
		r.team.close()
		r.team = nil
	}
}

// sleep waits for d. It returns the cause when ctx has ended.
func sleep(ctx context.Context, clock gcp.Clock, d time.Duration) error {
	if d > 0 {
		select {
		case <-clock.After(d):
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

// sayEnd reports how the attempt ended, if it started; otherwise it reports only that
// another attempt follows, and why.
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

// finish ends the last attempt. Where the command is not the cause, the summary names
// the cause and the reason why nothing more was tried.
func (r *run) finish(out Outcome, err error, f *Failure) (Outcome, error) {
	l := last{out: out, err: err, failure: f, refusal: r.refusal, several: r.tried > 1}
	if r.follow != nil && r.follow.sum != nil {
		l.sum = r.follow.sum
		_, first := r.follow.verdict()
		l.gone = first >= 0 && errors.Is(r.follow.ends[first].err, errSliceGone)
	}
	out, err = l.conclude()
	var stopped *stoppedError
	if errors.As(err, &stopped) && r.follow == nil {
		out, err = Outcome{Code: stoppedCode, Started: true}, nil
		l.sum = &event.Summary{Run: r.o.Run, Attempt: r.begunLast, ExitCode: stoppedCode, CommandCode: stoppedCode, Phases: r.watch.times,
			Text: fmt.Sprintf("run %s was stopped: %s; no further attempt is begun", r.o.Run, stopped.reason)}
	}
	if l.sum != nil {
		r.Sink.Emit(*l.sum)
	}
	r.leaveTeam()
	return out, err
}

// stoppedCode is the exit status of a run that somebody else stopped between two of its
// attempts: that of a command that SIGTERM has ended.
const stoppedCode = 128 + 15

// A last is the last attempt of a run.
type last struct {
	out     Outcome
	err     error
	failure *Failure       // why it failed; nil: it succeeded
	sum     *event.Summary // its summary; nil: it was not followed
	gone    bool           // the summary blames a slice that is gone
	refusal string         // why no further attempt was made; ""
	several bool           // it was not the first attempt
}

// conclude returns how the run ends, and completes the summary.
func (l last) conclude() (Outcome, error) {
	f := l.failure
	if f == nil {
		return l.out, l.err
	}
	out, err := l.out, l.err
	switch {
	case err != nil:
	case f.lost() && out.Started:
		out.Code = lostCode
	case f.Cause == UserStop:
		err = f.Err // an interrupt while judge was deciding
	}
	if l.sum == nil {
		var raised *Failure
		if err != nil && l.refusal != "" && f.lost() && !errors.As(err, &raised) {
			err = &Failure{Cause: f.Cause, Why: f.Why + "; " + l.refusal, Err: err}
		}
		return out, err
	}
	if f.lost() {
		if l.gone { // otherwise the cause would appear twice
			l.sum.Text = fmt.Sprintf("run %s failed: %s", l.sum.Run, f.Error())
		} else {
			l.sum.Text += "; " + f.Error()
		}
		if err == nil {
			l.sum.ExitCode = out.Code
		}
	}
	if l.refusal != "" && (f.lost() || l.several) {
		l.sum.Text += "; " + l.refusal
	}
	return out, err
}

// lost reports whether f is a loss for which the command is not to blame.
func (f *Failure) lost() bool {
	return f.Cause == Preempted || f.Cause == Maintenance || f.Cause == Infrastructure
}

// judge says why an attempt ended without success. It returns nil if the attempt
// succeeded or goes on without this process. It asks the cloud. If slices may have been
// taken away, it waits until the cloud's state has settled, because a preemption first
// shows as a command that fails.
func (r *run) judge(ctx context.Context, g ground, out Outcome, err error) *Failure {
	f := &Failure{Code: out.Code, Err: err}
	if out.Started && r.follow != nil {
		f.Ran = r.Clock.Now().Sub(r.follow.begin)
	}
	var interrupted *Interrupted
	var raised *Failure
	var never *unready
	var stopped *stoppedError
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
	case errors.As(err, &stopped):
		f.Cause, f.Why = UserStop, stopped.reason
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
		if f.Cause == Application && sign.final { // nothing was taken away, so it remains a mistake
			f.Cause = Refused
		}
		if ctx.Err() != nil { // the wait was cut short
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

// mayBeLoss reports whether an error from before the start of the command may be a loss
// although it shows no sign of one: a worker can report any error while its slice is
// being taken away. A mistake of the user cannot be a loss.
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

// signs are what the workers show about why an attempt failed.
type signs struct {
	stopped bool // by somebody else
	final   bool // a mistake; another attempt would fail in the same way
	lost    bool // a worker could not be reached, or was rebooted
	killed  bool // a command was ended by a signal that multihost did not send
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
	for i, end := range f.ends {
		if by := end.exit.Reason; end.err == nil && strings.HasPrefix(by, stopBy) { // whatever ended elsewhere before
			s.stopped, s.why = true, f.team.ids[i].String()+": "+by
		}
		s.lost = s.lost || end.err != nil && end.known || end.exit.Lost
		// A VM that is being taken away ends its processes like this.
		s.killed = s.killed || (end.exit.Signal == "TERM" || end.exit.Signal == "KILL") && end.exit.Reason == "" && !end.exit.OOM
	}
	return s
}

// lostContact reports whether an error from before the start of the command says that
// something that had been reachable could not be reached any more, or was rebooted. It
// returns false if it refused instead.
func lostContact(err error) bool {
	var many *Error
	if errors.As(err, &many) {
		if many.lost || slices.ContainsFunc(many.each, lostContact) {
			return true
		}
		err = many.Err
	}
	var refused *remote.ConnectError
	var name *remote.NameError
	if errors.As(err, &name) && name.Permanent() {
		return false
	}
	if errors.As(err, &refused) {
		return refused.Stage == remote.StageDial || refused.Stage == remote.StageHandshake || errors.Is(err, remote.ErrBooting) || errors.Is(err, remote.ErrConnectionLost)
	}
	var secret *launch.SecretError
	if errors.As(err, &secret) && (secret.Status >= http.StatusInternalServerError || secret.Status == http.StatusTooManyRequests) {
		return true // Secret Manager has been unavailable for longer than the worker retries
	}
	switch gcp.ClassOf(err) {
	case gcp.NotFound, gcp.Unavailable, gcp.Timeout: // a slice does not exist, or the API is unavailable
		return true
	}
	for _, sign := range []error{errRebooted, remote.ErrConnectionLost, remote.ErrSilent, remote.ErrNoStatus, codesync.ErrStalled} {
		if errors.Is(err, sign) {
			return true
		}
	}
	return false
}

const (
	// settleLimit is how long the cloud may take to report that it took a slice away.
	// VMs are notified up to half a minute before they are stopped, and the API shows
	// it after that.
	settleLimit = time.Minute
	settlePause = 2 * time.Second
	// answerLimit is how long a worker may take to answer.
	answerLimit = 10 * time.Second
)

// settle asks the cloud what happened to the slices, until its answer is final or may not
// be waited for any longer. If the workers show no sign of a loss and all of them answer,
// one answer of the cloud is enough.
func (r *run) settle(ctx context.Context, g ground, sign signs) (Cause, string) {
	reach := r.reach(ctx)
	for _, s := range r.used {
		sign.lost = sign.lost || reach(s.Name) == provision.Silent
	}
	begin, told := r.Clock.Now(), false
	for {
		d, err := g.look(ctx, r.used, reach)
		if sign.lost && r.onHosts() { // no cloud knows more of them
			d = provision.Decision{}
		}
		over := !r.patient || r.Clock.Now().Sub(begin) >= settleLimit || ctx.Err() != nil
		if cause, why, final := sign.blame(d, err); final || over {
			return cause, why
		}
		if !told {
			told = true
			event.Notef(r.Sink, event.Info, "", "%s; waiting up to %s for the cloud to say whether it took a slice away", sign.why, asTyped(settleLimit))
		}
		_ = sleep(ctx, r.Clock, settlePause)
	}
}

// blame says what ended an attempt, given what the workers show and what the cloud
// answered. It is final if another answer of the cloud would not change it: the cloud
// reports a loss up to settleLimit late.
func (s signs) blame(d provision.Decision, err error) (cause Cause, why string, final bool) {
	answered := err == nil
	switch {
	case answered && (d.Loss == provision.Preempted || d.Loss == provision.Maintenance):
		return Cause(d.Loss), d.Why, true
	case answered && d.Loss == provision.Removed:
		return UserStop, d.Why, true
	}
	final = answered && !s.lost && !s.killed
	switch {
	case answered && d.Loss == provision.Infrastructure && s.lost:
		return Infrastructure, d.Why + ": " + s.why, final
	case answered && d.Loss == provision.Infrastructure:
		return Infrastructure, d.Why, final
	case s.lost:
		return Infrastructure, s.why, final
	}
	return Application, s.why, final
}

// reach asks every worker of the team whether it answers.
func (r *run) reach(ctx context.Context) func(slice string) provision.Reach {
	if r.team == nil {
		return func(string) provision.Reach { return provision.Silent }
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	errs := r.team.each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		_, err := r.team.conns[i].Run(ctx, remote.Cmd{Line: "true"})
		return err
	})
	reached := map[string]provision.Reach{}
	for i, err := range errs {
		name := r.team.slice(i).Name
		if err != nil {
			reached[name] = provision.Silent
		} else if reached[name] == provision.Untried {
			reached[name] = provision.Answers
		}
	}
	return func(slice string) provision.Reach { return reached[slice] }
}

// standing is the ground of Run. It provides slices that somebody else created and that
// are not created again.
type standing struct {
	*Deps
	watch   *stopwatch
	prefix  string
	numbers tpu.Numbers
	partial bool
	found   tpu.Selection
}

// returnLimit is how long existing slices may take to be READY again after a loss.
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
		if err := sleep(ctx, s.Clock, 5*time.Second); err != nil {
			return s.found, err
		}
	}
}

// absent says why the slices cannot be used now, or "". The error says that they can
// never be used again.
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

func (s *standing) look(ctx context.Context, used []tpu.Slice, reach func(string) provision.Reach) (provision.Decision, error) {
	nodes, err := s.Cloud.Slices(ctx)
	if err != nil {
		return provision.Decision{}, err
	}
	return lookAt(nodes, used, reach), nil
}

// lookAt decides what happened to the slices of an attempt, given the API's list.
func lookAt(nodes, used []tpu.Slice, reach func(string) provision.Reach) provision.Decision {
	return provision.Decide(provision.Sight{Life: provision.Active, Existed: true, Slices: sights(nodes, used, reach)})
}

// sights returns the slices of an attempt in their present state. A slice of the same
// name with another id is another slice.
func sights(nodes, used []tpu.Slice, reach func(string) provision.Reach) []provision.SliceSight {
	all := make([]provision.SliceSight, len(used))
	for i, s := range used {
		var now tpu.Slice
		for _, n := range nodes {
			if n.Name == s.Name && n.UID == s.UID {
				now = n
			}
		}
		now.Name = s.Name
		all[i] = provision.SightOf(now)
		all[i].Reach = reach(s.Name)
	}
	return all
}
