package job

import (
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
	entries, err := journal.Read(RunDir(r.stateDir, r.run))
	if err != nil {
		return Look{}, &Error{Stage: StageLocal, Err: err}
	}
	look := Look{Story: journal.Tell(entries)}
	if r.training == nil {
		rec, err := loadRecord(r.stateDir, r.run)
		if err != nil {
			return look, &Error{Stage: StageLocal, Err: err}
		}
		if rec == nil && len(entries) > 0 && r.o.LogDir == "" { // it has not come so far yet, or never will
			a := look.Story.Newest()
			look.Ended = a != nil && a.End != nil
			return look, nil
		}
		if r.training, err = OpenTraining(r.stateDir, r.run, r.o); err != nil {
			return look, err
		}
	}
	if _, err := r.training.Update(); err != nil && len(entries) == 0 {
		return look, err
	}
	doc := r.training.Document(v, now)
	look.Document = &doc
	a := look.Story.Newest()
	look.Ended = r.training.Ended() && (a == nil || a.End != nil && !a.End.Detached)
	return look, nil
}
