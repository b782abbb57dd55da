package job

import (
	"cmp"
	"fmt"
	"time"

	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/provision"
)

// A Cause is what ended an attempt.
type Cause string

// The causes. The first three are nobody's fault. Application and Stall are failures of
// the command. After UserStop and Refused, nothing is tried again.
const (
	Preempted      Cause = Cause(provision.Preempted)
	Maintenance    Cause = Cause(provision.Maintenance)
	Infrastructure Cause = Cause(provision.Infrastructure) // a host was lost, or SSH stopped working
	Application    Cause = "application"
	Stall          Cause = "stall"
	UserStop       Cause = "stopped by a user"
	Refused        Cause = "refused" // another attempt would fail in the same way: a busy worker, a full disk, a wrong key
)

// A Failure says that an attempt ended without success, and why. A part that watches a
// run may end it with a Failure as the cause of the stop.
type Failure struct {
	Cause Cause
	Why   string        // one clause: "slice t-1 is PREEMPTED"
	Code  int           // of the first worker to fail; 0 when it is not about a command's end
	Ran   time.Duration // how long the command ran; 0 when it did not start
	Err   error
}

func (f *Failure) Error() string {
	if f.Why == "" {
		return string(f.Cause)
	}
	return string(f.Cause) + ": " + f.Why
}

// Unwrap returns the error behind it, or nil.
func (f *Failure) Unwrap() error { return f.Err }

// Fault returns fault.Temporary for a stall, otherwise the kind of the error behind it, or
// fault.Unavailable without one.
func (f *Failure) Fault() fault.Kind {
	if f.Cause == Stall {
		return fault.Temporary
	}
	return known(gcp.FaultOf(f.Err))
}

// Budget is how many further attempts a run may make.
type Budget struct {
	Restarts    int // after failures of the command
	Preemptions int // after losses for which the command is not to blame; negative: no limit

	// LossFlag is the flag that limits Preemptions; "" is --max-preemptions.
	LossFlag string
}

const (
	// quickFailure is "within seconds of the start": long enough for an
	// interpreter to load its modules and miss one.
	quickFailure = 15 * time.Second
	// maxQuick is how many quick failures in a row a run may have.
	maxQuick = 3
)

// A ledger counts how much of a budget was spent.
type ledger struct {
	Budget
	restarts, preemptions int
	quick                 int // failures within seconds of the start, in a row
}

// spend pays for one more attempt after f. refusal says why there is none; "" if it is
// paid.
func (l *ledger) spend(f *Failure) (refusal string) {
	l.countQuick(f)
	switch f.Cause {
	case Preempted, Maintenance, Infrastructure:
		if l.quick >= maxQuick {
			return fmt.Sprintf("no further attempt: %d in a row were lost within %s of their start", l.quick, quickFailure)
		}
		if l.Preemptions >= 0 && l.preemptions >= l.Preemptions {
			return spent(cmp.Or(l.LossFlag, "--max-preemptions"), l.Preemptions)
		}
		l.preemptions++
		return ""
	case Application, Stall:
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

// refund returns what the last loss cost, because nothing was lost after all.
func (l *ledger) refund() { l.preemptions-- }

// countQuick counts quick failures. A preemption does not count, because it says
// nothing about the attempt that it cut short.
func (l *ledger) countQuick(f *Failure) {
	switch {
	case f.Cause == Preempted || f.Cause == Maintenance:
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

// count describes, for people, which further attempt this is.
func (l *ledger) count(f *Failure) string {
	used, limit, what := l.preemptions, l.Preemptions, "loss"
	if f.Cause == Application || f.Cause == Stall {
		used, limit, what = l.restarts, l.Restarts, "restart"
	}
	if limit < 0 {
		return fmt.Sprintf("%s %d", what, used)
	}
	return fmt.Sprintf("%s %d of %d", what, used, limit)
}

// pause is how long to wait before the next attempt. After quick failures the pause
// grows, so that they are not repeated at once.
func (l *ledger) pause() time.Duration {
	if l.quick == 0 {
		return 0
	}
	return time.Duration(1<<min(l.quick-1, 3)) * 5 * time.Second
}
