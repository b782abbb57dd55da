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
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A ground provides the slices of a run's attempts: either slices that exist, or slices
// that the job creates and creates again.
type ground interface {
	// ready returns the slices once a connection to every worker can be tried. after is
	// the failure for which the next attempt has been paid; it is nil the first time.
	ready(ctx context.Context, pay func(*stage.Failure) error, after *stage.Failure) (tpu.Selection, error)
	// look says what happened to the slices. reach says whether the workers of a slice
	// answer.
	look(ctx context.Context, used []tpu.Slice, reach func(slice string) provision.Reach) (provision.Decision, error)
}

// attempts runs the command on g until it succeeds, is stopped, or a budget is
// spent, and emits the summary of the last attempt.
func (r *Runner) attempts(ctx context.Context, g ground, b Budget) (stage.Outcome, error) {
	books := &ledger{Budget: b}
	r.patient = b.Restarts > 0 || b.Preemptions != 0
	var after *stage.Failure
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
			r.cutOff, r.unread = r.follow.CutOff(), r.follow.GoWithSlices()
		}
		pause := books.pause()
		r.leaveLease(ctx, pause)
		r.leaveTeam()
		if err := stage.Sleep(ctx, r.Clock, pause); err != nil {
			return stage.Outcome{}, err
		}
	}
}

// attemptOn makes one attempt: it waits for usable slices, connects to their workers,
// runs the command and follows it to its end.
func (r *Runner) attemptOn(ctx context.Context, g ground, books *ledger, after *stage.Failure) (stage.Outcome, error) {
	r.follow, r.rec, r.regained = nil, nil, false
	pay := func(f *stage.Failure) error {
		if refusal := books.spend(f); refusal != "" {
			return &stage.Failure{Cause: stage.Refused, Why: f.Error() + "; " + refusal, Err: f.Err}
		}
		return nil
	}
	sel, err := g.ready(ctx, pay, after)
	switch {
	case err != nil && ctx.Err() == nil && r.guard.expired(r.Clock.Now()): // the workers delete the slices
		return stage.Outcome{}, expiry(r.guard.terms.TTL)
	case err != nil:
		return stage.Outcome{}, &unready{err}
	}
	r.used = sel.Slices
	if r.missing != nil && r.missing() {
		r.workers, err = r.connectSome(ctx, sel)
	} else {
		r.workers, err = r.ConnectPhase(ctx, &r.Watch, sel, nil)
	}
	if err != nil {
		return stage.Outcome{}, err
	}
	return r.onTeam(ctx)
}

// connectSome connects to the workers that answer, in order to take over the command
// that runs on them. It warns about the other workers and names them; they are
// connected to when they are back.
func (r *Runner) connectSome(ctx context.Context, sel tpu.Selection) (t *workers.Connected, err error) {
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

// An unready error ends a run because its slices could not be had. The ground has
// already tried what could be done about it.
type unready struct{ error }

func (e *unready) Unwrap() error { return e.error }

func (r *Runner) leaveTeam() {
	if r.workers != nil {
		r.leaveLease(context.Background(), -1)
		r.workers.Close()
		r.workers = nil
	}
}

// next reports whether another attempt follows f, and pays for it.
func (r *Runner) next(ctx context.Context, books *ledger, f *stage.Failure) bool {
	if f == nil || f.Cause == stage.UserStop || f.Cause == stage.Refused || ctx.Err() != nil {
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
func (r *Runner) sayEnd(out stage.Outcome, f *stage.Failure, again bool) {
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
	e := event.AttemptEnd{Run: r.O.Run, Attempt: r.attempt, OK: f == nil, Again: again}
	if r.follow != nil {
		e.Elapsed = r.Clock.Now().Sub(r.follow.Begin)
	}
	if f != nil {
		e.Cause, e.Why, e.Code, e.Next = string(f.Cause), f.Why, f.Code, next
	}
	r.Sink.Emit(e)
	r.rec.EndAttempt(e, r.Clock.Now())
	if err := r.rec.Save(r.StateDir); err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
}

// finish ends the last attempt. Where the command is not the cause, the summary names
// the cause and the reason why nothing more was tried.
func (r *Runner) finish(out stage.Outcome, err error, f *stage.Failure) (stage.Outcome, error) {
	l := last{out: out, err: err, failure: f, refusal: r.refusal, several: r.tried > 1}
	if r.follow != nil && r.follow.Sum != nil {
		l.sum = r.follow.Sum
		_, first := r.follow.Verdict()
		l.gone = first >= 0 && errors.Is(r.follow.Ends[first].Err, follow.ErrSliceGone)
	}
	out, err = l.conclude()
	var stopped *stoppedError
	if errors.As(err, &stopped) && r.follow == nil {
		out, err = stage.Outcome{Code: stoppedCode, Started: true}, nil
		l.sum = &event.Summary{Run: r.O.Run, Attempt: r.begunLast, ExitCode: stoppedCode, CommandCode: stoppedCode, Phases: r.Watch.Times,
			Text: fmt.Sprintf("run %s was stopped: %s; no further attempt is begun", r.O.Run, stopped.reason)}
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
	out     stage.Outcome
	err     error
	failure *stage.Failure // why it failed; nil: it succeeded
	sum     *event.Summary // its summary; nil: it was not followed
	gone    bool           // the summary blames a slice that is gone
	refusal string         // why no further attempt was made; ""
	several bool           // it was not the first attempt
}

// conclude returns how the run ends, and completes the summary.
func (l last) conclude() (stage.Outcome, error) {
	f := l.failure
	if f == nil {
		return l.out, l.err
	}
	out, err := l.out, l.err
	switch {
	case err != nil:
	case lost(f) && out.Started:
		out.Code = follow.LostCode
	case f.Cause == stage.UserStop:
		err = f.Err // an interrupt while judge was deciding
	}
	if l.sum == nil {
		var raised *stage.Failure
		if err != nil && l.refusal != "" && lost(f) && !errors.As(err, &raised) {
			err = &stage.Failure{Cause: f.Cause, Why: f.Why + "; " + l.refusal, Err: err}
		}
		return out, err
	}
	if lost(f) {
		if l.gone { // otherwise the cause would appear twice
			l.sum.Text = fmt.Sprintf("run %s failed: %s", l.sum.Run, f.Error())
		} else {
			l.sum.Text += "; " + f.Error()
		}
		if err == nil {
			l.sum.ExitCode = out.Code
		}
	}
	if l.refusal != "" && (lost(f) || l.several) {
		l.sum.Text += "; " + l.refusal
	}
	return out, err
}

// lost reports whether f is a loss for which the command is not to blame.
func lost(f *stage.Failure) bool {
	return f.Cause == stage.Preempted || f.Cause == stage.Maintenance || f.Cause == stage.Infrastructure
}

// judge says why an attempt ended without success. It returns nil if the attempt
// succeeded or goes on without this process. It asks the cloud. If slices may have been
// taken away, it waits until the cloud's state has settled, because a preemption first
// shows as a command that fails.
func (r *Runner) judge(ctx context.Context, g ground, out stage.Outcome, err error) *stage.Failure {
	f := &stage.Failure{Code: out.Code, Err: err}
	if out.Started && r.follow != nil {
		f.Ran = r.Clock.Now().Sub(r.follow.Begin)
	}
	var interrupted *stage.Interrupted
	var raised *stage.Failure
	var never *unready
	var stopped *stoppedError
	switch {
	case err == nil && (out.Code == 0 || out.Detached):
		return nil
	case errors.As(err, &interrupted) || ctx.Err() != nil:
		f.Cause, f.Why = stage.UserStop, context.Cause(ctx).Error()
		return f
	case errors.As(err, &never), stage.Is(err, stage.Timeout):
		f.Cause, f.Why = stage.Refused, err.Error()
		return f
	case errors.As(err, &raised):
		f.Cause, f.Why = raised.Cause, raised.Why
		return f
	case errors.As(err, &stopped):
		f.Cause, f.Why = stage.UserStop, stopped.reason
		return f
	case stage.Is(err, stage.Stalled):
		f.Cause, f.Why = stage.Refused, err.Error()
		return f
	}
	sign := r.signs(err)
	switch {
	case sign.stopped:
		f.Cause, f.Why = stage.UserStop, sign.why
	case sign.final && !r.mayBeLoss(err):
		f.Cause, f.Why = stage.Refused, sign.why
	default:
		f.Cause, f.Why = r.settle(ctx, g, sign)
		if f.Cause == stage.Application && sign.final { // nothing was taken away, so it remains a mistake
			f.Cause = stage.Refused
		}
		if ctx.Err() != nil { // the wait was cut short
			f.Err = context.Cause(ctx)
			f.Cause, f.Why = stage.UserStop, f.Err.Error()
		}
	}
	return f
}

// mayBeLoss reports whether an error from before the start of the command may be a loss
// although it shows no sign of one: a worker can report any error while its slice is
// being taken away. A mistake of the user cannot be a loss.
func (r *Runner) mayBeLoss(err error) bool {
	var e *stage.Error
	var busy *launch.BusyError
	if r.follow != nil || r.workers == nil || len(r.used) == 0 || !errors.As(err, &e) || errors.As(err, &busy) {
		return false
	}
	switch e.Stage {
	case stage.Connect, stage.Busy, stage.Sync, stage.Folder, stage.Preflight, stage.Free, stage.Start, stage.Follow:
		return len(e.Each) > 0
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

func (r *Runner) signs(err error) signs {
	if r.follow == nil || len(r.follow.Ends) == 0 {
		lost := lostContact(err)
		return signs{lost: lost, final: !lost, why: err.Error()}
	}
	f := r.follow
	_, first := f.Verdict()
	s := signs{}
	if first >= 0 {
		end := f.Ends[first]
		s.why = f.Workers.IDs[first].String() + ": " + end.Text()
		s.stopped = end.Err == nil && end.Exit.Reason != "" && !end.Exit.Lost
	}
	for i, end := range f.Ends {
		if by := end.Exit.Reason; end.Err == nil && strings.HasPrefix(by, follow.StopBy) { // whatever ended elsewhere before
			s.stopped, s.why = true, f.Workers.IDs[i].String()+": "+by
		}
		s.lost = s.lost || end.Err != nil && end.Known || end.Exit.Lost
		// A VM that is being taken away ends its processes like this.
		s.killed = s.killed || (end.Exit.Signal == "TERM" || end.Exit.Signal == "KILL") && end.Exit.Reason == "" && !end.Exit.OOM
	}
	return s
}

// lostContact reports whether an error from before the start of the command says that
// something that had been reachable could not be reached any more, or was rebooted. It
// returns false if it refused instead.
func lostContact(err error) bool {
	var many *stage.Error
	if errors.As(err, &many) {
		if many.Lost || slices.ContainsFunc(many.Each, lostContact) {
			return true
		}
		err = many.Err
	}
	var refused *remote.ConnectError
	var name *remote.NameError
	if errors.As(err, &name) && name.Permanent() {
		return false
	}
	if errors.As(err, &refused) && !askedInVain(refused) {
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
	for _, sign := range []error{stage.ErrRebooted, remote.ErrConnectionLost, remote.ErrSilent, remote.ErrNoStatus, codesync.ErrStalled} {
		if errors.Is(err, sign) {
			return true
		}
	}
	return false
}

// askedInVain reports whether a worker was not asked at all, because the provider did not
// tell its host keys.
func askedInVain(e *remote.ConnectError) bool {
	var changed *remote.HostKeyError
	return e.Stage == remote.StageHostKey && !errors.As(e, &changed)
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
func (r *Runner) settle(ctx context.Context, g ground, sign signs) (stage.Cause, string) {
	reach := r.reach(ctx)
	for _, s := range r.used {
		sign.lost = sign.lost || reach(s.Name) == provision.Silent
	}
	begin, told := r.Clock.Now(), false
	for {
		d, err := g.look(ctx, r.used, reach)
		if sign.lost && r.OnHosts() { // no cloud knows more of them
			d = provision.Decision{}
		}
		over := !r.patient || r.Clock.Now().Sub(begin) >= settleLimit || ctx.Err() != nil
		if cause, why, final := sign.blame(d, err); final || over {
			return cause, why
		}
		if !told {
			told = true
			event.Notef(r.Sink, event.Info, "", "%s; waiting up to %s for the cloud to say whether it took a slice away", sign.why, stage.AsTyped(settleLimit))
		}
		_ = stage.Sleep(ctx, r.Clock, settlePause)
	}
}

// blame says what ended an attempt, given what the workers show and what the cloud
// answered. It is final if another answer of the cloud would not change it: the cloud
// reports a loss up to settleLimit late.
func (s signs) blame(d provision.Decision, err error) (cause stage.Cause, why string, final bool) {
	answered := err == nil
	switch {
	case answered && (d.Loss == provision.Preempted || d.Loss == provision.Maintenance):
		return stage.Cause(d.Loss), d.Why, true
	case answered && d.Loss == provision.Removed:
		return stage.UserStop, d.Why, true
	}
	final = answered && !s.lost && !s.killed
	switch {
	case answered && d.Loss == provision.Infrastructure && s.lost:
		return stage.Infrastructure, d.Why + ": " + s.why, final
	case answered && d.Loss == provision.Infrastructure:
		return stage.Infrastructure, d.Why, final
	case s.lost:
		return stage.Infrastructure, s.why, final
	}
	return stage.Application, s.why, final
}

// reach asks every worker whether it answers.
func (r *Runner) reach(ctx context.Context) func(slice string) provision.Reach {
	if r.workers == nil {
		return func(string) provision.Reach { return provision.Silent }
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	errs := r.workers.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		_, err := r.workers.Conns[i].Run(ctx, remote.Cmd{Line: "true"})
		return err
	})
	reached := map[string]provision.Reach{}
	for i, err := range errs {
		name := r.workers.Slice(i).Name
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
	*workers.Deps
	watch   *stage.Stopwatch
	prefix  string
	numbers tpu.Numbers
	partial bool
	found   tpu.Selection
}

// returnLimit is how long existing slices may take to be READY again after a loss.
const returnLimit = 15 * time.Minute

func (s *standing) ready(ctx context.Context, _ func(*stage.Failure) error, after *stage.Failure) (_ tpu.Selection, err error) {
	if after == nil {
		s.found, err = s.DiscoverPhase(ctx, s.watch, s.prefix, s.numbers, s.partial)
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
			return s.found, &stage.Error{Stage: stage.Discover, Err: err, Text: fmt.Sprintf("slices are not usable for %s: %s", returnLimit, why)}
		}
		if err := stage.Sleep(ctx, s.Clock, 5*time.Second); err != nil {
			return s.found, err
		}
	}
}

// absent says why the slices cannot be used now, or "". The error says that they can
// never be used again.
func (s *standing) absent(nodes []tpu.Slice) (why string, err error) {
	for i, have := range s.found.Slices {
		if gone := follow.LostSlice(nodes, have); gone != "" {
			return "", &stage.Error{Stage: stage.Discover, Text: gone, Advice: "multihost job makes slices again that were taken away"}
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

// sayLogsGo warns, before the slices are deleted, about the logs of the last attempt that
// go with them.
func (r *Runner) sayLogsGo() {
	if r.follow != nil {
		r.unread = r.follow.GoWithSlices()
	}
	if r.unread != nil {
		event.Notef(r.Sink, event.Warn, "", "%s; the rest goes with the slices", r.unread)
	}
	r.unread = nil
}
