package stage

import (
	"time"

	"multihost/internal/fault"
	"multihost/internal/gcp"
	"multihost/internal/provision"
)

// A Cause is what ended an attempt.
type Cause string

// The causes. The first three are nobody's fault. Application and Stall are failures of
// the command. After UserStop, Expired and Refused, nothing is tried again.
const (
	Preempted      Cause = Cause(provision.Preempted)
	Maintenance    Cause = Cause(provision.Maintenance)
	Infrastructure Cause = Cause(provision.Infrastructure) // a host was lost, or SSH stopped working
	Application    Cause = "application"
	Stall          Cause = "stall"
	UserStop       Cause = "stopped by a user"
	Expired        Cause = Cause(provision.Expired) // the time for which the slices were asked for is over: --ttl, --max-run-duration
	Refused        Cause = "refused"                // another attempt would fail in the same way: a busy worker, a full disk, a wrong key
)

// A Failure says that an attempt ended without success, and why. Code that watches a run
// may stop it with a Failure as the cause.
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
