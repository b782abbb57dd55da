package job

import (
	"errors"
	"fmt"

	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/stage"
)

// Somebody else may stop a run between two of its attempts. stoppedCode is then the exit
// status of the run. A command that SIGTERM has ended has the same status.
const stoppedCode = 128 + 15

// A last is the last attempt of a run.
type last struct {
	run      string
	out      stage.Outcome
	err      error
	failure  *stage.Failure  // why it failed; nil: it succeeded
	followed bool            // its command was followed
	sum      *event.Summary  // its summary; nil: nobody saw its end
	gone     bool            // the summary blames a slice that is gone
	status   func(error) int // exit status of an error
	refusal  string          // why no further attempt was made; ""
	tried    int             // attempts that were started or taken over
	number   int             // number of the last of these attempts
	phases   []event.PhaseTime
}

// conclude returns how the run ends, and the summary to emit. The summary is nil if there
// is none.
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

// blame returns how the run ends, unless somebody else has stopped it between two attempts.
// It completes the summary.
func (l last) blame() (stage.Outcome, error) {
	f := l.failure
	if f == nil {
		return l.out, l.err
	}
	out, err := l.out, l.err
	switch {
	case f.Cause == stage.Expired:
		err = f.Err // it counts more than the signs of the vanishing workers
	case err != nil:
	case lost(f) && out.Started:
		out.Code = follow.LostCode
	case f.Cause == stage.UserStop:
		err = f.Err // an interrupt came while judge was deciding
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

// lost reports whether f is a loss for which the command is not to blame.
func lost(f *stage.Failure) bool {
	return f.Cause == stage.Preempted || f.Cause == stage.Maintenance || f.Cause == stage.Infrastructure
}
