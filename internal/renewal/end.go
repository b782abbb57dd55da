package renewal

import (
	"context"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

const (
	// warnAhead is how long before the provider takes slices away the user is warned:
	// enough time to write a checkpoint.
	warnAhead = time.Hour
	// stopAhead, and the grace period, is how long before that moment multihost stops a
	// command. So the command's logs arrive here before the VMs go.
	stopAhead = time.Minute
)

// An End watches for the moment at which the provider takes the slices of a run away
// (--max-run-duration, or --ttl of held slices). The zero value is ready. Its methods must not be called
// concurrently.
type End struct {
	told time.Time // the end of which the user was last warned
}

// Warn warns of the end of the slices in all, an hour before it, or at once if it is
// nearer. It warns of each end only once. The caller must call over.
func (e *End) Warn(ctx context.Context, d *workers.Reach, all []tpu.Slice) (over func()) {
	_, over = e.watch(ctx, d, all, -1)
	return over
}

// Until warns as Warn does. It returns a context that ends shortly before the provider
// takes the first slice away, early enough to stop a command within grace. Its cause then
// has stage.ErrExpired. over ends the context earlier, and the caller must call it.
func (e *End) Until(ctx context.Context, d *workers.Reach, all []tpu.Slice, grace time.Duration) (_ context.Context, over func()) {
	return e.watch(ctx, d, all, grace)
}

// watch does what Until does. If grace is negative, the context does not end.
func (e *End) watch(ctx context.Context, d *workers.Reach, all []tpu.Slice, grace time.Duration) (_ context.Context, over func()) {
	end, flag := tpu.FirstEnd(all), tpu.EndFlag(all)
	if end.IsZero() {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		left := end.Sub(d.Clock.Now())
		ahead := stopAheadOf(left, grace)
		if !e.told.Equal(end) {
			if left > warnAhead && stage.Sleep(ctx, d.Clock, left-warnAhead) != nil {
				return
			}
			e.told = end
			e.warn(d, end, flag, ahead)
		}
		if grace >= 0 && stage.Sleep(ctx, d.Clock, end.Sub(d.Clock.Now())-ahead) == nil {
			cancel(stage.SlicesTaken(end, flag))
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
	}
}

func (e *End) warn(d *workers.Reach, end time.Time, flag string, ahead time.Duration) {
	stop := ""
	if ahead > 0 {
		stop = "; the command is stopped " + event.Duration(ahead) + " before"
	}
	event.Notef(d.Sink, event.Warn, "what the command has to keep must be in a bucket by then", "the slices are taken away, with their disks, in %s, at %s (%s)%s",
		event.Age(max(0, end.Sub(d.Clock.Now()))), end.Local().Format("Mon 15:04:05"), flag, stop)
}

// stopAheadOf returns how long before the end of its slices a command is stopped, or 0 if
// it is not stopped. grace is how long the command may take to end. The result is at most a
// tenth of the time left, so that a command on slices of a few minutes still has time to
// run.
func stopAheadOf(left, grace time.Duration) time.Duration {
	if grace < 0 {
		return 0
	}
	return max(0, min(grace+stopAhead, left/10)).Truncate(time.Second)
}

// Taken returns an error if the provider has taken slices away at the end of the time that
// the user asked for, and nil before that end.
func Taken(all []tpu.Slice, now time.Time) error {
	if end := tpu.FirstEnd(all); !end.IsZero() && !now.Before(end) {
		return stage.SlicesTaken(end, tpu.EndFlag(all))
	}
	return nil
}
