package attempt

import (
	"errors"
	"slices"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/tpu"
)

// A History is what this runner knows of its own attempts of a run. The zero value has no
// attempts, and ignores stops by other commands.
type History struct {
	Since  time.Time // begin of this command; zero: ignore stops by other commands
	Number int       // of the next attempt, from a bucket; 0: not known
	Tried  int       // attempts started or taken over
	Last   int       // number of the newest of them
	CutOff bool      // the last attempt could not be reached and was given up; it may still be running

	on   []string      // ids of the last attempt's slices
	skew time.Duration // time between the first and the last start of the last command that this runner started
}

// begun notes an attempt as started.
func (h *History) begun(attempt int, slices []record.Slice) {
	h.Tried, h.Last, h.on = h.Tried+1, attempt, record.SliceIDs(slices)
}

// HasBegunOn reports whether the last attempt runs on the slice of this id.
func (h *History) HasBegunOn(slice string) bool { return slices.Contains(h.on, slice) }

// elsewhere reports whether this runner's last attempt ran on none of these slices. Then
// any attempt on them belongs to another runner, even with the same number.
func (h *History) elsewhere(on []tpu.Slice) bool {
	ids := record.SliceIDs(record.SlicesOf(on))
	return len(ids) > 0 && !slices.ContainsFunc(ids, h.HasBegunOn)
}

// next returns the number of the next attempt, as far as this machine knows. recorded is
// the last attempt of which this machine has a record.
func (h *History) next(recorded int) int {
	if h.Number > 0 {
		return h.Number
	}
	return max(h.Last, recorded) + 1
}

// A stoppedError says that somebody else has stopped the run since the begin of this
// command.
type stoppedError struct{ reason string }

func (e *stoppedError) Error() string { return "it was stopped: " + e.reason }

// If err says that somebody else has stopped the run since the begin of this command,
// Stopped returns the reason.
func Stopped(err error) (reason string, stopped bool) {
	var e *stoppedError
	if !errors.As(err, &e) {
		return "", false
	}
	return e.reason, true
}

// stoppedSince returns the error for a stop that a worker has noted since the begin of this
// command, otherwise nil. offset is the offset of the worker's clock. A stop in the future
// is ignored, because the clock was set back since.
func (h *History) stoppedSince(s launch.Stopped, offset time.Duration, clock gcp.Clock) error {
	at := s.At.Add(-offset)
	if h.Since.IsZero() || s.At.IsZero() || !at.After(h.Since) || at.Sub(clock.Now()) > time.Minute {
		return nil
	}
	return &stoppedError{s.Reason}
}
