package job

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/stage"
)

// raced reports whether an attempt was not started because another runner of the same
// job, on another machine, was first on some worker.
func (r *Runner) raced(err error) bool {
	var busy *launch.BusyError
	var code *launch.CodeError
	var inUse *codesync.InUseError
	return errors.Is(err, stage.ErrStarting) || errors.Is(err, launch.ErrAlreadyStarted) || errors.As(err, &busy) && busy.Info.Run == r.O.Run ||
		errors.As(err, &code) || errors.As(err, &inUse)
}

// maxRaces is how often two runners may hinder each other. After that, the obstacle
// counts as a remnant of a runner that has died.
const maxRaces = 8

// yield waits so that another runner of the job can go first. The time is random, so
// that two runners do not wait equally long.
func (r *Runner) yield(ctx context.Context) error {
	if r.races == 0 {
		event.Notef(r.Sink, event.Warn, "", "another runner of job %s starts its command, too", r.O.Run)
	}
	return stage.Sleep(ctx, r.Clock, time.Second+rand.N(time.Duration(r.races+1)*2*time.Second))
}
