package job

import (
	"errors"
	"fmt"

	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/stage"
)

// stoppedCode is the exit status of a run that somebody else stops between two attempts. A
// command that SIGTERM has ended has the same status.
const stoppedCode = 128 + 15

// A last is the last attempt of a run.
type last struct {
	run      string
	out      stage.Outcome
	err      error
	failure  *stage.Failure // nil: it succeeded
	followed bool           // somebody followed its command
	sum      *event.Summary // nil: nobody saw its end
	gone     bool           // the summary names a slice that is gone as the cause
	status   func(error) int
	refusal  string // why there is no further attempt
	tried    int    // attempts started or taken over
	number   int    // number of the newest of them
	phases   []event.PhaseTime
}

// conclude returns how the run ends, and the summary to emit, or nil.
func (l last) conclude() (stage.Outcome, *event.Summary, error) {
	out, err := l.blame()
	reason, stopped := attempt.Stopped(err)
	if !stopped || l.followed {
		return out, l.sum, err
	}
	return stage.Outcome{Code: stoppedCode, Started: true}, &event.Summary{
		Run: l.run, Attempt: l.number, ExitCode: stoppedCode, CommandCode: stoppedCode, Phases: l.phases,
		Text: fmt.Sprintf("run %s was stopped: %s; no further attempt is begun", l.run, reason),
	}, nil
}

// blame completes the summary. It returns how the run ends, if nobody else has stopped it
// between two attempts.
func (l last) blame() (stage.Outcome, error) {
	f := l.failure
	if f == nil {
		return l.out, l.err
	}
	out, err := l.out, l.err
	switch {
	case f.Cause == stage.Expired:
		err = f.Err // f matters more than signs of vanishing workers
	case err != nil:
	case lost(f) && out.Started:
		out.Code = follow.LostCode
	case f.Cause == stage.UserStop:
		err = f.Err // an interrupt came while judge decided
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
	if f.Cause == stage.Expired && l.gone {
		l.sum.Text = fmt.Sprintf("run %s ended: %s", l.sum.Run, f.Why)
		l.sum.ExitCode = l.status(err)
	}
	if l.refusal != "" && (lost(f) || l.tried > 1) {
		l.sum.Text += "; " + l.refusal
	}
	return out, err
}

// lost reports whether f is a loss that the command did not cause.
func lost(f *stage.Failure) bool {
	return f.Cause == stage.Preempted || f.Cause == stage.Maintenance || f.Cause == stage.Infrastructure
}
