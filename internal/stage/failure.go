package stage

import (
	"time"

	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/provision"
)

// A Cause is what ended an attempt.
type Cause string

// The causes. The first three are nobody's fault. Application and Stall are failures of the
// command. After UserStop, Expired and Refused, there is no further attempt.
const (
	Preempted      Cause = Cause(provision.Preempted)
	Maintenance    Cause = Cause(provision.Maintenance)
	Infrastructure Cause = Cause(provision.Infrastructure) // a host was lost, or SSH stopped working
	Application    Cause = "application"
	Stall          Cause = "stall"
	UserStop       Cause = "stopped by a user"
	Expired        Cause = Cause(provision.Expired) // the requested time of the slices has passed: --ttl, --max-run-duration
	Refused        Cause = "refused"                // another attempt would fail in the same way: a worker is busy, a disk is full, a key is wrong
)

// A Failure is why an attempt ended without success. Code that follows a run may cancel its
// context with a Failure as the cause.
type Failure struct {
	Cause Cause
	Why   string        // one clause: "slice t-1 is PREEMPTED"
	Code  int           // exit code of the first worker that failed; 0 if no command has ended
	Ran   time.Duration // how long the command ran; 0 if it did not start
	Err   error
}

func (f *Failure) Error() string {
	if f.Why == "" {
		return string(f.Cause)
	}
	return string(f.Cause) + ": " + f.Why
}

// Unwrap returns the underlying error, or nil.
func (f *Failure) Unwrap() error { return f.Err }

// Fault returns fault.Temporary for a stall, otherwise the kind of the error behind it, or
// fault.Unavailable without one.
func (f *Failure) Fault() fault.Kind {
	if f.Cause == Stall {
		return fault.Temporary
	}
	return known(gcp.FaultOf(f.Err))
}
