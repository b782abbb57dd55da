package follow

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
	"multihost/internal/remote"
	"multihost/internal/stage"
)

// A fate is the runner's decision about one worker of a started run.
type fate string

const (
	// fateRetry: request the output again. The command continues.
	fateRetry fate = "retry"
	// fateLost: follow the worker no more. The command may still be running.
	fateLost fate = "lost"
	// fateEnded: the command has ended on the worker.
	fateEnded fate = "ended"
)

// evidence has the known facts about the command on one worker.
type evidence struct {
	recorded bool          // the supervisor has recorded the end
	gone     bool          // the API says that the slice is gone or was taken away
	trouble  trouble       // why the worker cannot be followed; "" if it can
	away     time.Duration // how long it could not be followed
}

// fateOf decides about one worker. Only the supervisor's record, or the cloud's report
// about the slice, means that the command has ended. A failure on our side never does.
// limit is --lost-timeout, or 0 for no limit.
func fateOf(e evidence, limit time.Duration) fate {
	switch {
	case e.recorded || e.gone:
		return fateEnded
	case e.trouble == noTrouble || e.trouble == OurLogin:
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
	connection trouble = "connection" // there is no connection
	noAnswer   trouble = "no answer"  // the login runs no command, or its answer makes no sense
	OurLogin   trouble = "our login"  // our credentials have expired, which says nothing about the worker
	strange    trouble = "strange"    // the worker's first answer says that the command never started there
)

// TroubleOf returns the kind of an error of launch.Follow, reported or returned.
func TroubleOf(err error) trouble {
	var refused *launch.RemoteError
	var connect *remote.ConnectError
	switch {
	case err == nil:
		return noTrouble
	case gcp.ClassOf(err) == gcp.Unauthenticated:
		return OurLogin
	case errors.As(err, &connect) && connect.Stage != remote.StageExec && connect.Stage != remote.StageShell, errors.Is(err, remote.ErrConnectionLost):
		return connection
	case errors.As(err, &connect), errors.As(err, &refused), errors.Is(err, launch.ErrUnknownRun), errors.Is(err, launch.ErrNotStarted),
		errors.Is(err, remote.ErrFlood), errors.Is(err, remote.ErrNoStatus):
		return noAnswer
	}
	return connection
}

// Text is the message about workers that cannot be followed, with %s for their names. It
// says why, and what happens next. If the trouble was reported before, the text also says
// how long it has lasted.
func (t trouble) Text(cause string, away, limit time.Duration) string {
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
	case t == OurLogin || limit == 0:
	case away > 0:
		text += " for " + event.Age(max(limit-away, 0)) + " more (--lost-timeout)"
	default:
		text += " for up to " + stage.AsTyped(limit) + " (--lost-timeout)"
	}
	return text
}

// RuntimeWords match what the distributed runtime prints when it ends a process because
// other processes have left. Workers use them with grep -E.
const RuntimeWords = `JAX distributed service|[Cc]oordination ?[Ss]ervice|coordination_service|[Cc]oordination agent|[Ss]hutdown barrier`

var runtimeSays = regexp.MustCompile(RuntimeWords)

// leaves reports whether a command probably failed only because other processes had left. It
// returns true if SIGABRT killed the command or a program that its shell ran. It also returns
// true if the last lines match RuntimeWords.
func leaves(exit launch.Exit, lastLines []string) bool {
	return exit.Code != 0 && (exit.Signal == "ABRT" || exit.Code == 128+6 || slices.ContainsFunc(lastLines, runtimeSays.MatchString))
}

// excused reports whether the failure e only follows from the success of worker 0, whose end
// is lead. It is so if leaves was true for e, and e came within detach.ExcuseWindow after
// lead by corrected clocks. A failure is not excused if its cause is not known, or if
// multihost or a lack of memory caused it.
func excused(e, lead Ending) bool {
	known := func(e Ending) bool { return e.Known && e.Err == nil && !e.Exit.Lost && e.Exit.Reason == "" }
	after := e.at.Sub(lead.at)
	return known(lead) && !lead.failed() && known(e) && e.tail && !e.Exit.OOM && after >= 0 && after < detach.ExcuseWindow
}

// A step is the consequence of one worker's end for the others, with fail-fast.
type step string

const (
	stepNone  step = "none"
	stepStop  step = "stop all"  // the command has failed there, so stop it everywhere
	stepLeave step = "leave all" // the worker is lost, so leave the run as it is
)

// stepAfter is the only place where the end of one worker can stop the command on all. All
// other stops of a followed command are choices of the user: Ctrl-C or a signal
// (--on-interrupt), --timeout, --ttl, --on-stall=stop or restart, and multihost stop. A
// stall does not count the time in which a worker could not be followed. These errors on
// our side must never lead to a stop:
//
//   - following: the connection, the login's start-up files, a process limit, an answer
//     that is cut or makes no sense, another host key, too much output;
//   - the worker's files: a log that became shorter, an unreadable record;
//   - this machine: a log file that cannot be opened or written;
//   - requests: for the state of a silent run, its stacks, processes that it left behind,
//     or the worker's clock when a running command is taken over;
//   - a lost worker (--lost-timeout): the others continue without this runner.
func stepAfter(e Ending) step {
	switch {
	case e.fate() == fateLost:
		return stepLeave
	case e.fate() == fateEnded && e.failed():
		return stepStop
	}
	return stepNone
}

// stopReason says why the others are stopped when the command has ended on one worker.
// Somebody ordered that, perhaps from another machine, or the command has failed.
func (e Ending) stopReason() string {
	if e.Err == nil && e.Exit.Reason != "" && !e.Exit.Lost {
		return e.Exit.Reason
	}
	return failFastReason
}

// A lostError says why a worker is given up. The command there continues.
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
		return fmt.Sprintf("not reachable for %s (--lost-timeout): %v", stage.AsTyped(e.limit), e.err)
	}
	return fmt.Sprintf("not followed for %s (--lost-timeout): %v", stage.AsTyped(e.limit), e.err)
}

func (e *lostError) Unwrap() error { return e.err }
