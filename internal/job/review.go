package job

import (
	"errors"
	"time"

	"multihost/internal/journal"
	"multihost/internal/metrics"
)

// A Review is what this machine knows of a run, while it goes on and after it:
// the figures of its training, from its logs, and its story, from its journal.
// No cloud and no worker is asked.
type Review struct {
	stateDir, run string
	o             TrainingOptions
	training      *Training
}

// A Look is what a Review has found.
type Look struct {
	Document *metrics.Document // nil while there are no logs
	Story    *journal.Story    // never nil; empty where there is no journal
	// Ended says that nothing more will come: the run is over and so is what
	// followed it.
	Ended bool
}

// OpenReview makes a Review that has not looked yet.
func OpenReview(stateDir, run string, o TrainingOptions) *Review {
	return &Review{stateDir: stateDir, run: run, o: o}
}

// Look reads what is new. It is an error when there is neither a record of the
// run nor a journal.
func (r *Review) Look(v metrics.View, now time.Time) (Look, error) {
	var entries []journal.Entry
	if r.o.LogDir == "" { // else they are somebody else's logs
		var err error
		if entries, err = journal.Read(RunDir(r.stateDir, r.run)); err != nil {
			return Look{Story: &journal.Story{}}, &Error{Stage: StageLocal, Err: err}
		}
	}
	look := Look{Story: journal.Tell(entries)}
	if r.training == nil {
		if len(entries) > 0 {
			rec, err := loadRecord(r.stateDir, r.run)
			if err != nil {
				return look, &Error{Stage: StageLocal, Err: err}
			}
			if rec == nil { // it has not come so far yet, or never will
				a := look.Story.Newest()
				look.Ended = a != nil && a.End != nil
				return look, nil
			}
		}
		var err error
		if r.training, err = OpenTraining(r.stateDir, r.run, r.o); err != nil {
			return look, err
		}
	}
	var none *Error // no logs yet, or none ever: the story is told all the same
	if _, err := r.training.Update(); err != nil && !(len(entries) > 0 && errors.As(err, &none) && none.Stage == StageInput) {
		return look, err
	}
	doc := r.training.Document(v, now)
	look.Document = &doc
	a := look.Story.Newest()
	look.Ended = r.training.Ended() && (a == nil || a.End != nil && !a.End.Detached)
	return look, nil
}
