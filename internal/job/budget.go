package job

import (
	"cmp"
	"fmt"
	"time"

	"multihost/internal/stage"
)

// Budget is how many further attempts a run may make.
type Budget struct {
	Restarts    int // after failures of the command
	Preemptions int // after losses that the command did not cause; negative: no limit

	// LossFlag is the flag that limits Preemptions; "" means --max-preemptions.
	LossFlag string
}

const (
	// A failure is quick if it comes within quickFailure of the start. In that time an
	// interpreter loads its modules and finds that one is missing.
	quickFailure = 15 * time.Second
	// maxQuick limits quick failures in a row.
	maxQuick = 3
)

// A ledger counts the spent part of a budget.
type ledger struct {
	Budget
	restarts, preemptions int
	quick                 int // quick failures in a row
}

// spend pays for a further attempt after f. refusal says why there may be no further
// attempt; "" if the budget has paid.
func (l *ledger) spend(f *stage.Failure) (refusal string) {
	l.countQuick(f)
	switch f.Cause {
	case stage.Preempted, stage.Maintenance, stage.Infrastructure:
		if l.quick >= maxQuick {
			return fmt.Sprintf("no further attempt: %d in a row were lost within %s of their start", l.quick, quickFailure)
		}
		if l.Preemptions >= 0 && l.preemptions >= l.Preemptions {
			return spent(cmp.Or(l.LossFlag, "--max-preemptions"), l.Preemptions)
		}
		l.preemptions++
		return ""
	case stage.Application, stage.Stall:
		switch {
		case f.Code == 126 || f.Code == 127:
			return fmt.Sprintf("no restart: exit code %d says that the command cannot be run", f.Code)
		case l.quick >= maxQuick:
			return fmt.Sprintf("no further restart: %d attempts in a row failed within %s of their start", l.quick, quickFailure)
		case l.restarts >= l.Restarts:
			return spent("--max-restarts", l.Restarts)
		}
		l.restarts++
		return ""
	}
	return "nothing is tried again"
}

// pay is spend for a loss before the begin of an attempt. The error says why the run ends.
func (l *ledger) pay(f *stage.Failure) error {
	if refusal := l.spend(f); refusal != "" {
		return &stage.Failure{Cause: stage.Refused, Why: f.Error() + "; " + refusal, Err: f.Err}
	}
	return nil
}

// patient reports whether further attempts may follow the first one.
func (l *ledger) patient() bool { return l.Restarts > 0 || l.Preemptions != 0 }

// refund gives back the cost of the last loss, because nothing was lost.
func (l *ledger) refund() { l.preemptions-- }

// countQuick counts quick failures. It ignores preemptions and maintenance, which say
// nothing about the attempt that they ended.
func (l *ledger) countQuick(f *stage.Failure) {
	switch {
	case f.Cause == stage.Preempted || f.Cause == stage.Maintenance:
	case f.Ran < quickFailure:
		l.quick++
	default:
		l.quick = 0
	}
}

func spent(flag string, n int) string {
	if n == 0 {
		return "no further attempt: " + flag + " is 0"
	}
	return fmt.Sprintf("no further attempt: %s=%d are used up", flag, n)
}

// count says in words how much of the budget is spent: "restart 1 of 2", "loss 3".
func (l *ledger) count(f *stage.Failure) string {
	used, limit, what := l.preemptions, l.Preemptions, "loss"
	if f.Cause == stage.Application || f.Cause == stage.Stall {
		used, limit, what = l.restarts, l.Restarts, "restart"
	}
	if limit < 0 {
		return fmt.Sprintf("%s %d", what, used)
	}
	return fmt.Sprintf("%s %d of %d", what, used, limit)
}

// pause returns how long to wait before the next attempt. It grows after quick failures.
func (l *ledger) pause() time.Duration {
	if l.quick == 0 {
		return 0
	}
	return time.Duration(1<<min(l.quick-1, 3)) * 5 * time.Second
}
