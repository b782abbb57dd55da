package follow

import (
	"context"
	"errors"
	"time"

	"multihost/internal/event"
	"multihost/internal/stage"
)

// stopping is a stop of all workers.
type stopping struct {
	reason string
	cause  error // *Interrupted or a timeout, for the caller; nil means fail-fast
	err    error // set if it is not proven that all have stopped
	done   chan error
}

// beginStop begins to stop the command on all workers. The channel done gets the result.
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

// proven reports whether a stop left nothing of the command. Without a stop it returns
// true.
func (s *stopping) proven() bool { return s == nil || s.err == nil }

// end returns the error of a stopped run. The error says why the run was stopped, and whether
// it may still be running somewhere. After fail-fast, end returns nil if the command failed,
// because the command's own failure is then the error.
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
// their workers. The parameter deletes says that this command deletes slices. The slices go
// after the end of --ttl, which limits the cost. They also go if the command may still be
// running: otherwise they would stay for a log, without a lease to limit the cost.
func (s *stopping) slicesGo(deletes bool) bool {
	return s != nil && (errors.Is(s.cause, stage.ErrExpired) || s.err != nil && deletes)
}
