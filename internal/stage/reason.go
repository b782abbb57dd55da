package stage

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// Reasons for the stop of a run. A runner writes the reason on the workers, and a command that
// attaches reads it there.
const (
	timeoutOption = "--timeout="
	timeoutIsOver = " has passed"

	// StandsStill is the reason of a stop by --on-stall.
	StandsStill = "its training stands still"
)

// TimeoutPassed returns the error of a run whose command took longer than --timeout. Its
// Text is the reason of the stop.
func TimeoutPassed(limit time.Duration) *Error {
	return &Error{Stage: Timeout, Text: fmt.Sprintf("%s%s%s", timeoutOption, limit, timeoutIsOver)}
}

// SlicesTaken returns the error of a run whose slices the provider takes away at the time end,
// because of the user's flag. Its Text is the reason of the stop. It wraps [ErrExpired], as the
// error for --ttl does.
func SlicesTaken(end time.Time, flag string) *Error {
	return slicesOver("they are taken away at "+end.Local().Format("Mon 15:04:05"), flag)
}

// SlicesOver is like SlicesTaken, for a provider that reports that the time of the slices has
// passed. why is the provider's report, in one clause.
func SlicesOver(why string) *Error { return slicesOver(why, "--max-run-duration") }

func slicesOver(why, flag string) *Error {
	return &Error{Stage: Timeout, Err: ErrExpired, Text: fmt.Sprintf("%v: %s (%s)", ErrExpired, why, flag)}
}

// EndOfRunner returns the error of a runner that has stopped a run because of reason, such as a
// signal to the runner. It returns nil after fail-fast or a stop that a user has typed. The
// exit of the command then decides.
func EndOfRunner(reason string) error {
	for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if in := (&Interrupted{Signal: signal, Answer: Stop}); reason == in.Error() {
			return in
		}
	}
	switch {
	case strings.HasPrefix(reason, timeoutOption) && strings.HasSuffix(reason, timeoutIsOver):
		return &Error{Stage: Timeout, Text: reason}
	case reason == StandsStill:
		return &Error{Stage: Stalled, Text: reason}
	case strings.Contains(reason, ErrExpired.Error()):
		return &Error{Stage: Timeout, Err: ErrExpired, Text: strings.TrimPrefix(reason, string(Timeout)+": ")}
	}
	return nil
}
