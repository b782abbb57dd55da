package logs

import (
	"context"
	"errors"
	"sync"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/training"
)

// A Review collects the training figures of a run from its logs, and its story from its
// journal, during the run and afterwards. It reads the files on this machine. It asks the
// cloud or the workers only after Follow or Fetch.
type Review struct {
	stateDir, run string
	o             training.TrainingOptions

	mu       sync.Mutex // guards training
	training *training.Training

	far   *onlooker // nil: read only this machine's files
	end   context.CancelFunc
	group sync.WaitGroup
}

// A Look is the result of a Review at one moment.
type Look struct {
	Document *metrics.Document // nil without logs
	Story    *journal.Story    // never nil; empty without a journal
	// Ended says that nothing more will come. Both the run and the command that followed it have
	// ended.
	Ended bool

	// Away has the workers that the Review needs but cannot reach now, and the reasons.
	// Notices has one line for each reason why logs cannot be read, including those in
	// Away.
	Away    map[tpu.WorkerID]string
	Notices []string
}

// OpenReview returns a Review that has read nothing yet.
func OpenReview(stateDir, run string, o training.TrainingOptions) *Review {
	return &Review{stateDir: stateDir, run: run, o: o}
}

// Follow makes the Review read the logs from the workers, or from the bucket of a job without
// runner, until Close. While a command copies the logs to this machine, the Review reads only
// this machine's files. Follow changes nothing on the workers and stops no process. Look reports
// trouble. Follow returns an error if this machine, the workers and the bucket do not know the
// run.
func (r *Review) Follow(ctx context.Context, far Far) error {
	if err := r.turnTo(ctx, far, false); err != nil || r.far == nil {
		return err
	}
	if r.far.place() == placeThere {
		if _, err := r.far.open(); err != nil { // open may have to ask the user, which is possible only now
			r.far.say(err.Error())
		}
	}
	ctx, r.end = context.WithCancel(gcp.Unattended(ctx))
	r.group.Go(func() { r.far.keepOn(ctx) })
	return nil
}

// Fetch reads the logs as Follow does, but only once, and returns after that.
func (r *Review) Fetch(ctx context.Context, far Far) error {
	if err := r.turnTo(ctx, far, true); err != nil || r.far == nil || r.far.place() == placeHere {
		return err
	}
	err := r.far.read(gcp.Unattended(ctx))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		r.far.say(err.Error())
	}
	return nil
}

// turnTo sets r.far and checks that the run exists.
func (r *Review) turnTo(ctx context.Context, far Far, once bool) error {
	if r.o.LogDir != "" { // the user named a directory of logs, so there is no run to ask
		return nil
	}
	r.far = &onlooker{far: far, review: r, once: once}
	rec, err := record.LoadRecord(r.stateDir, r.run)
	if err != nil {
		return &stage.Error{Stage: stage.Local, Err: err}
	}
	if rec != nil {
		return nil
	}
	if entries, err := journal.Read(record.RunDir(r.stateDir, r.run)); err != nil || len(entries) > 0 {
		return nil // Look has something to show
	}
	if _, _, err := r.far.find(gcp.Unattended(ctx)); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

// Close ends the read of Follow. Look may still be called.
func (r *Review) Close() {
	if r.end != nil {
		r.end()
	}
	r.group.Wait()
}

// Look reads the new data on this machine, and adds what Follow or Fetch has read. Without Follow
// or Fetch, Look returns an error if this machine has neither a record of the run nor a journal.
func (r *Review) Look(v metrics.View, now time.Time) (Look, error) {
	var entries []journal.Entry
	if r.o.LogDir == "" { // with LogDir, the journal is not about these logs
		var err error
		if entries, err = journal.Read(record.RunDir(r.stateDir, r.run)); err != nil {
			return Look{Story: &journal.Story{}}, &stage.Error{Stage: stage.Local, Err: err}
		}
	}
	read, away, notices := r.far.sees()
	entries = append(entries, read...)
	look := Look{Story: journal.Tell(entries), Away: away, Notices: notices}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.training == nil {
		if len(entries) > 0 || r.far != nil {
			rec, err := record.LoadRecord(r.stateDir, r.run)
			if err != nil {
				return look, &stage.Error{Stage: stage.Local, Err: err}
			}
			if rec == nil { // the run has no record yet, or never will
				a := look.Story.Newest()
				look.Ended = r.far == nil && a != nil && a.End != nil
				return look, nil
			}
		}
		var err error
		if r.training, err = training.OpenTraining(r.stateDir, r.run, r.o); err != nil {
			return look, err
		}
	}
	// Without logs, the story is still shown.
	if _, err := r.training.Update(); err != nil && !((len(entries) > 0 || r.far != nil) && errors.Is(err, training.ErrNoLogs)) {
		return look, err
	}
	doc := r.training.Document(v, now)
	look.Document = &doc
	a := look.Story.Newest()
	look.Ended = r.training.Ended() && (a == nil || a.End != nil && !a.End.Detached)
	return look, nil
}
