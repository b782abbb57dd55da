package job

import (
	"context"
	"errors"
	"sync"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/tpu"
)

// A Review is what is known of a run, while it goes on and after it: the figures of
// its training, from its logs, and its story, from its journal. It reads what this
// machine has of them, and asks no cloud and no worker unless it is told how: see
// Follow.
type Review struct {
	stateDir, run string
	o             TrainingOptions

	mu       sync.Mutex // guards training
	training *Training

	far   *onlooker // nil: nobody is asked
	end   context.CancelFunc
	group sync.WaitGroup
}

// A Look is what a Review has found.
type Look struct {
	Document *metrics.Document // nil while there are no logs
	Story    *journal.Story    // never nil; empty where there is no journal
	// Ended says that nothing more will come: the run is over and so is what
	// followed it.
	Ended bool

	// Away are the workers that cannot be reached now where they would have to be
	// asked, and why. Notices say so of all, and what else keeps the logs from
	// being read, in a line each.
	Away    map[tpu.WorkerID]string
	Notices []string
}

// OpenReview makes a Review that has not looked yet.
func OpenReview(stateDir, run string, o TrainingOptions) *Review {
	return &Review{stateDir: stateDir, run: run, o: o}
}

// Follow has the Review read the logs where they are, on the workers or in the bucket
// of a job without runner, whenever no command brings them to this machine, until
// Close. Nothing is changed there and nobody is stopped. Trouble on the way is told
// by Look; it is an error when nothing here and nothing there knows the run.
func (r *Review) Follow(ctx context.Context, far Far) error {
	if err := r.turnTo(ctx, far, false); err != nil || r.far == nil {
		return err
	}
	if r.far.place() == placeThere {
		if _, err := r.far.open(); err != nil { // tried again later; now the user can be asked
			r.far.say(err.Error())
		}
	}
	ctx, r.end = context.WithCancel(gcp.Unattended(ctx))
	r.group.Go(func() { r.far.keepOn(ctx) })
	return nil
}

// Fetch reads once what Follow reads.
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

// turnTo finds out that there is such a run.
func (r *Review) turnTo(ctx context.Context, far Far, once bool) error {
	if r.o.LogDir != "" { // somebody else's logs
		return nil
	}
	r.far = &onlooker{far: far, review: r, once: once}
	rec, err := loadRecord(r.stateDir, r.run)
	if err != nil {
		return &Error{Stage: StageLocal, Err: err}
	}
	if rec != nil {
		return nil
	}
	if entries, err := journal.Read(RunDir(r.stateDir, r.run)); err != nil || len(entries) > 0 {
		return nil // Look tells
	}
	if _, _, err := r.far.find(gcp.Unattended(ctx)); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

// Close ends what Follow has begun. The Review may be looked at on.
func (r *Review) Close() {
	if r.end != nil {
		r.end()
	}
	r.group.Wait()
}

// Look reads what is new on this machine, and takes what was read elsewhere. It is an
// error when there is neither a record of the run nor a journal, and nobody is asked.
func (r *Review) Look(v metrics.View, now time.Time) (Look, error) {
	var entries []journal.Entry
	if r.o.LogDir == "" { // else they are somebody else's logs
		var err error
		if entries, err = journal.Read(RunDir(r.stateDir, r.run)); err != nil {
			return Look{Story: &journal.Story{}}, &Error{Stage: StageLocal, Err: err}
		}
	}
	read, away, notices := r.far.sees()
	entries = append(entries, read...)
	look := Look{Story: journal.Tell(entries), Away: away, Notices: notices}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.training == nil {
		if len(entries) > 0 || r.far != nil {
			rec, err := loadRecord(r.stateDir, r.run)
			if err != nil {
				return look, &Error{Stage: StageLocal, Err: err}
			}
			if rec == nil { // it has not come so far yet, or never will
				a := look.Story.Newest()
				look.Ended = r.far == nil && a != nil && a.End != nil
				return look, nil
			}
		}
		var err error
		if r.training, err = OpenTraining(r.stateDir, r.run, r.o); err != nil {
			return look, err
		}
	}
	var none *Error // no logs yet, or none ever: the story is told all the same
	if _, err := r.training.Update(); err != nil && !((len(entries) > 0 || r.far != nil) && errors.As(err, &none) && none.Stage == StageInput) {
		return look, err
	}
	doc := r.training.Document(v, now)
	look.Document = &doc
	a := look.Story.Newest()
	look.Ended = r.training.Ended() && (a == nil || a.End != nil && !a.End.Detached)
	return look, nil
}
