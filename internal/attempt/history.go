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

// A History is this runner's knowledge of its own attempts of a run. The zero value has no
// attempts, and ignores stops by other commands.
type History struct {
	Since  time.Time // when this command began; zero: it ignores stops by other commands
	Number int       // number of the next attempt if a bucket knows it; otherwise 0
	Tried  int       // attempts that were started or taken over
	Last   int       // number of the last of these attempts
	CutOff bool      // the last attempt was given up because it could not be reached; it may still be running

	on   []string      // ids of the slices that the last attempt ran on
	skew time.Duration // spread of the starts of the last command that this runner started
}

// begun counts an attempt as started.
func (h *History) begun(attempt int, slices []record.Slice) {
	h.Tried, h.Last, h.on = h.Tried+1, attempt, record.SliceIDs(slices)
}

// HasBegunOn reports whether the last attempt runs on the slice of this id.
func (h *History) HasBegunOn(slice string) bool { return slices.Contains(h.on, slice) }

// elsewhere reports whether this runner's last attempt ran on none of these slices. Then
// any attempt on them belongs to another runner, even if it has the same number.
func (h *History) elsewhere(on []tpu.Slice) bool {
	ids := record.SliceIDs(record.SlicesOf(on))
	return len(ids) > 0 && !slices.ContainsFunc(ids, h.HasBegunOn)
}

// next returns the number of the next attempt, as far as this machine knows. recorded is
// the number of the last attempt that this machine has a record of.
func (h *History) next(recorded int) int {
	if h.Number > 0 {
		return h.Number
	}
	return max(h.Last, recorded) + 1
}

// A stoppedError says that somebody else has stopped the run since this command began.
type stoppedError struct{ reason string }

func (e *stoppedError) Error() string { return "it was stopped: " + e.reason }

// Stopped returns the reason of the stop, if err says that somebody else has stopped the
// run since this command began.
func Stopped(err error) (reason string, stopped bool) {
	var e *stoppedError
	if !errors.As(err, &e) {
		return "", false
	}
	return e.reason, true
}

// stoppedSince returns the error for a stop that a worker has noted since this command
// began. It returns nil for an older stop, and for no stop. offset is the offset of the
// worker's clock. A stop in the future does not count, because the clock has been set back
// since.
func (h *History) stoppedSince(s launch.Stopped, offset time.Duration, clock gcp.Clock) error {
	at := s.At.Add(-offset)
	if h.Since.IsZero() || s.At.IsZero() || !at.After(h.Since) || at.Sub(clock.Now()) > time.Minute {
		return nil
	}
	return &stoppedError{s.Reason}
}
