package follow

import (
	"context"
	"errors"
	"time"

	"multihost/internal/event"
	"multihost/internal/stage"
)

// stopping is a stop of all workers in progress.
type stopping struct {
	reason string
	cause  error // why, for the caller: *Interrupted or a timeout; nil means fail-fast
	err    error // set if it could not be proven that all have stopped
	done   chan error
}

// beginStop begins to stop the command on all workers. The channel done receives the
// result.
func (f *Following) beginStop(ctx context.Context, reason string, cause error) *stopping {
	s := &stopping{reason: reason, cause: cause, done: make(chan error, 1)}
	hint := ""
	if in := (*stage.Interrupted)(nil); errors.As(cause, &in) {
		hint = "the same signal once more leaves at once, without proof"
	}
	event.Notef(f.Sink, event.Warn, hint, "stopping run %s on all workers: %s", f.Ref.Run, reason)
	go func() {
		stopCtx, cancel := f.Detached(ctx, f.Grace+2*time.Minute)
		defer cancel()
		s.done <- f.Workers.StopAll(stopCtx, f.Sink, f.Ref, f.Grace, reason, f.outages.isGone)
	}()
	return s
}

// proven reports whether nothing of the command can be left after the stop. It is true
// when there was no stop, too.
func (s *stopping) proven() bool { return s == nil || s.err == nil }

// end returns the error that a stopped run ends with. It says why the run was stopped, and
// that it may still be running somewhere. After fail-fast it is nil if the command failed:
// then the command's own failure counts.
func (s *stopping) end(code int) error {
	switch {
	case s == nil:
		return nil
	case s.cause == nil && code != 0:
		return nil
	case s.cause == nil:
		return s.err
	case s.err == nil:
		return s.cause
	}
	return errors.Join(s.cause, s.err)
}

// slicesGo reports whether the slices are deleted after the stop even if logs exist only on
// their workers. deletes means that this command deletes slices. The slices go after the
// end of --ttl, which limits the bill. They also go if the command may still be running.
// Otherwise they would stay for a log, and no lease would limit their bill.
func (s *stopping) slicesGo(deletes bool) bool {
	return s != nil && (errors.Is(s.cause, stage.ErrExpired) || s.err != nil && deletes)
}
