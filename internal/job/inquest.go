package job

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"multihost/internal/attempt"
	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/renewal"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// An inquest finds out why an attempt ended without success.
type inquest struct {
	*workers.Reach
	ground  ground
	used    []tpu.Slice        // the slices of the attempt
	workers *workers.Connected // nil: no connection was made
	follow  *follow.Following  // nil: nobody followed the command
	patient bool               // further attempts may follow
}

func (r *runner) inquest() *inquest {
	return &inquest{Reach: r.Reach, ground: r.ground, used: r.used, workers: r.team, follow: r.followed(), patient: r.books.patient()}
}

// judge says why an attempt ended without success. It returns nil if the attempt succeeded
// or continues without this process. It asks the cloud. If slices may have been taken away,
// it waits until the cloud's state has settled, because a preemption first appears as a
// command that fails.
func (r *inquest) judge(ctx context.Context, out stage.Outcome, err error) *stage.Failure {
	if err == nil && (out.Code == 0 || out.Detached) {
		return nil
	}
	ended := context.Cause(ctx)
	f := &stage.Failure{Code: out.Code, Err: cmp.Or(err, ended)}
	if out.Started && r.follow != nil {
		f.Ran = r.Clock.Now().Sub(r.follow.Begin)
	}
	if f.Cause, f.Why = causeIn(err, ended); f.Cause != "" {
		return f
	}
	sign := r.signs(err)
	if taken := renewal.Taken(r.used, r.Clock.Now()); taken != nil && (sign.lost || sign.killed) { // this machine was asleep, or its clock is slow
		f.Cause, f.Why, f.Err = stage.Expired, taken.Error(), taken
		return f
	}
	switch {
	case sign.stopped:
		f.Cause, f.Why = stage.UserStop, sign.why
	case sign.final && !r.mayBeLoss(err):
		f.Cause, f.Why = stage.Refused, sign.why
	default:
		f.Cause, f.Why = r.settle(ctx, sign)
		if f.Cause == stage.Expired {
			f.Err = stage.SlicesOver(f.Why)
			f.Why = f.Err.Error()
		}
		if f.Cause == stage.Application && sign.final { // no slice was taken away, so it is the user's mistake
			f.Cause = stage.Refused
		}
		if ctx.Err() != nil { // something ended the wait early
			f.Err = context.Cause(ctx)
			f.Cause, f.Why = stage.UserStop, f.Err.Error()
		}
	}
	return f
}

// causeIn returns the cause that the error of an attempt itself names, or "" if only the
// workers and the cloud can tell the cause. ended says why this process must end, or is nil.
func causeIn(err, ended error) (cause stage.Cause, why string) {
	var interrupted *stage.Interrupted
	var raised *stage.Failure
	var never *unready
	reason, stopped := attempt.Stopped(err)
	switch {
	case ended != nil:
		return stage.UserStop, ended.Error()
	case errors.As(err, &interrupted):
		return stage.UserStop, interrupted.Error()
	case errors.Is(err, stage.ErrExpired):
		return stage.Expired, err.Error()
	case errors.As(err, &never), stage.Is(err, stage.Timeout):
		return stage.Refused, err.Error()
	case errors.As(err, &raised):
		return raised.Cause, raised.Why
	case stopped:
		return stage.UserStop, reason
	case stage.Is(err, stage.Stalled):
		return stage.Refused, err.Error()
	}
	return "", ""
}

// mayBeLoss reports whether an error before the start of the command may come from a loss,
// although the error shows no sign of one. While a slice is being taken away, its workers
// can report any error. A mistake of the user cannot be a loss.
func (r *inquest) mayBeLoss(err error) bool {
	var e *stage.Error
	var busy *launch.BusyError
	if r.follow != nil || r.workers == nil || len(r.used) == 0 || !errors.As(err, &e) || errors.As(err, &busy) {
		return false
	}
	switch e.Stage {
	case stage.Connect, stage.Busy, stage.Sync, stage.Folder, stage.Preflight, stage.Venv, stage.Free, stage.Start, stage.Follow:
		return len(e.Each) > 0
	}
	return false
}

// signs are facts about the workers that show why an attempt failed.
type signs struct {
	stopped bool // somebody else stopped the run
	final   bool // a mistake: another attempt would fail too
	lost    bool // a worker did not answer, or was rebooted
	killed  bool // a signal that multihost did not send ended a command
	why     string
}

func (r *inquest) signs(err error) signs {
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
		if by := end.Exit.Reason; end.Err == nil && strings.HasPrefix(by, follow.StopBy) { // even if other workers ended earlier
			s.stopped, s.why = true, f.Workers.IDs[i].String()+": "+by
		}
		s.lost = s.lost || end.Err != nil && end.Known || end.Exit.Lost
		// TERM or KILL ends the processes of a VM that is taken away.
		s.killed = s.killed || (end.Exit.Signal == "TERM" || end.Exit.Signal == "KILL") && end.Exit.Reason == "" && !end.Exit.OOM
	}
	return s
}

// lostContact reports whether an error before the start of the command means a loss of
// contact. It does if a worker or a service did not answer any more, or if a worker was
// rebooted. A refusal is no loss.
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
		return true // Secret Manager was unavailable for all of the worker's retries
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

// askedInVain reports whether multihost did not try to reach a worker, because the provider
// did not return its host keys.
func askedInVain(e *remote.ConnectError) bool {
	var changed *remote.HostKeyError
	return e.Stage == remote.StageHostKey && !errors.As(e, &changed)
}

const (
	// settleLimit is how long the cloud may take to report that it took a slice away. VMs
	// learn of it up to half a minute before they stop. The API shows only the stop.
	settleLimit = time.Minute
	settlePause = 2 * time.Second
	// answerLimit is how long a worker may take to answer.
	answerLimit = 10 * time.Second
)

// settle asks the cloud what happened to the slices, until the answer is final or
// settleLimit has passed. One answer is enough if no further attempt may follow, or if all
// workers answer and none shows a sign of a loss.
func (r *inquest) settle(ctx context.Context, sign signs) (stage.Cause, string) {
	reach := r.reach(ctx)
	for _, s := range r.used {
		sign.lost = sign.lost || reach(s.Name) == provision.Silent
	}
	begin, told := r.Clock.Now(), false
	for {
		d, err := r.ground.look(ctx, r.used, reach)
		if sign.lost && r.OnHosts() { // no cloud knows these hosts
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

// blame says what ended an attempt, from the signs of the workers and the answer of the
// cloud. The result final means that a later answer of the cloud would change nothing. The
// cloud reports a loss up to settleLimit late.
func (s signs) blame(d provision.Decision, err error) (cause stage.Cause, why string, final bool) {
	answered := err == nil
	switch {
	case answered && (d.Loss == provision.Preempted || d.Loss == provision.Maintenance || d.Loss == provision.Expired || d.Loss == provision.Infrastructure && d.Step == provision.StepRecreate):
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
func (r *inquest) reach(ctx context.Context) func(slice string) provision.Reach {
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
