package job

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/sshfan"
)

// A fate is what the runner does about one worker of a started run.
type fate string

const (
	// fateRetry: the output is asked for again. The command is not touched.
	fateRetry fate = "retry"
	// fateLost: nobody asks any more. The command is not touched and may go on.
	fateLost fate = "lost"
	// fateEnded: the command has ended on the worker.
	fateEnded fate = "ended"
)

// evidence is what is known of the command on one worker.
type evidence struct {
	recorded bool          // its supervisor has recorded the end
	gone     bool          // the API says that its slice is gone or was taken away
	trouble  trouble       // why it cannot be followed; "" when it is
	away     time.Duration // for how long that has been so
}

// fateOf decides about one worker. Only what its supervisor has recorded, or the
// cloud about its slice, says that the command has ended; trouble of ours never
// does. limit is --lost-timeout, 0 for none.
func fateOf(e evidence, limit time.Duration) fate {
	switch {
	case e.recorded || e.gone:
		return fateEnded
	case e.trouble == noTrouble || e.trouble == ourLogin:
		return fateRetry
	case e.trouble == strange, limit > 0 && e.away > limit:
		return fateLost
	}
	return fateRetry
}

// A trouble is a kind of error in following a worker.
type trouble string

const (
	noTrouble  trouble = ""
	connection trouble = "connection" // it cannot be connected to, or the connection broke
	noAnswer   trouble = "no answer"  // its login runs no command, or what it answers makes no sense
	ourLogin   trouble = "our login"  // our credentials have ended: that tells nothing of the worker
	strange    trouble = "strange"    // asked for the first time, it says that the command was never started there
)

// troubleOf tells the kind of an error that launch.Follow tells, or ends with.
func troubleOf(err error) trouble {
	var refused *launch.RemoteError
	var connect *sshfan.ConnectError
	switch {
	case err == nil:
		return noTrouble
	case gcp.ClassOf(err) == gcp.Unauthenticated:
		return ourLogin
	case errors.As(err, &connect) && connect.Stage != sshfan.StageExec && connect.Stage != sshfan.StageShell, errors.Is(err, sshfan.ErrConnectionLost):
		return connection
	case errors.As(err, &connect), errors.As(err, &refused), errors.Is(err, launch.ErrUnknownRun), errors.Is(err, launch.ErrNotStarted),
		errors.Is(err, sshfan.ErrFlood), errors.Is(err, sshfan.ErrNoStatus):
		return noAnswer
	}
	return connection
}

// text is what is said of workers, whose names %s stands for: why they cannot be
// followed, for how long if that was said before, and what happens next.
func (t trouble) text(cause string, away, limit time.Duration) string {
	cause = strings.ReplaceAll(cause, "%", "%%")
	text, again := "cannot follow %s", "trying again"
	if t == connection {
		text, again = "lost the connection to %s", "connecting again"
	}
	text += " (" + cause + ")"
	if away > 0 {
		text = "still " + strings.Replace(text, "lost the", "no", 1) + " for " + event.Age(away)
	}
	text += "; the command goes on there, " + again
	switch {
	case t == ourLogin || limit == 0:
	case away > 0:
		text += " for " + event.Age(max(limit-away, 0)) + " more (--lost-timeout)"
	default:
		text += " for up to " + asTyped(limit) + " (--lost-timeout)"
	}
	return text
}

// runtimeWords are what the distributed runtime itself prints when it ends a process
// since others have left. grep -E on workers reads it, too.
const runtimeWords = `JAX distributed service|[Cc]oordination ?[Ss]ervice|coordination_service|[Cc]oordination agent|[Ss]hutdown barrier`

var runtimeSays = regexp.MustCompile(runtimeWords)

// leaves reports whether an end looks like a training's tail: a death by SIGABRT, of
// the command or of what its shell ran, or the runtime's own words at the end of the
// output.
func leaves(exit launch.Exit, lastLines []string) bool {
	return exit.Code != 0 && (exit.Signal == "ABRT" || exit.Code == 128+6 || slices.ContainsFunc(lastLines, runtimeSays.MatchString))
}

// excused reports whether a failure is only the tail of a training that worker 0 has
// ended with success. Times are by corrected clocks. An end that is not known, or
// that we or the kernel's want of memory brought about, is not excused.
func excused(e, lead ending) bool {
	known := func(e ending) bool { return e.known && e.err == nil && !e.exit.Lost && e.exit.Reason == "" }
	after := e.at.Sub(lead.at)
	return known(lead) && !lead.failed() && known(e) && e.tail && !e.exit.OOM && after >= 0 && after < detach.ExcuseWindow
}

// A step is what one worker's end means for the others while fail-fast holds.
type step string

const (
	stepNone  step = "none"
	stepStop  step = "stop all"  // the command has failed there: it is stopped everywhere
	stepLeave step = "leave all" // the worker is lost: the run is left as it is
)

// stepAfter is the one place that lets the end of one worker stop the command on
// all. Besides it, a followed command is stopped by nothing but a choice of the
// user: Ctrl-C or a signal (--on-interrupt), --timeout, --ttl, --on-stall=stop or
// restart (which does not count the time in which a worker could not be
// followed), and multihost stop. These errors of ours have led to a stop, and must
// not:
//
//   - following: the connection, the login's start-up files, a process limit, an
//     answer that is cut or makes no sense, another host key, a flood;
//   - the worker's files: a log that became shorter, a record that cannot be read;
//   - this machine: a log file that cannot be opened or written;
//   - asking: the state of a silent run, its stacks, what it left behind, its clock
//     when a living run is taken over;
//   - a worker that was lost (--lost-timeout): the others go on without us.
func stepAfter(e ending) step {
	switch {
	case e.fate() == fateLost:
		return stepLeave
	case e.fate() == fateEnded && e.failed():
		return stepStop
	}
	return stepNone
}

// stopReason is why the others are stopped when the command has ended on one worker:
// somebody has ordered that, who may be on another machine, or it has failed.
func (e ending) stopReason() string {
	if e.err == nil && e.exit.Reason != "" && !e.exit.Lost {
		return e.exit.Reason
	}
	return failFastReason
}

// A lostError is why a worker is given up. What runs there is not touched.
type lostError struct {
	trouble trouble
	limit   time.Duration
	err     error
}

func (e *lostError) Error() string {
	switch e.trouble {
	case strange:
		return e.err.Error()
	case connection:
		return fmt.Sprintf("not reachable for %s (--lost-timeout): %v", asTyped(e.limit), e.err)
	}
	return fmt.Sprintf("not followed for %s (--lost-timeout): %v", asTyped(e.limit), e.err)
}

func (e *lostError) Unwrap() error { return e.err }
