package job

import (
	"context"
	"errors"
	"slices"
	"time"

	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/renewal"
	"multihost/internal/stage"
	"multihost/internal/teardown"
	"multihost/internal/tpu"
)

// succeeded returns the record of this job's success if its runner on this machine ended
// before it was done with the slices, otherwise nil. A job with another command, code or
// slices is another job. The record does not count if another command has made the resource
// since.
func succeeded(ctx context.Context, r *attempt.Run, o JobOptions) *record.Record {
	rec, err := record.LoadRecord(r.StateDir, r.O.Run)
	if err != nil || rec == nil || o.Run.Replace || !repeats(rec, r.Work(), r.Project, r.Zone, o.Request) {
		return nil
	}
	var res provision.Resource
	err = teardown.Outlast(ctx, r.Clock, func() (err error) {
		res, err = r.Cloud.Get(ctx, o.Request.ID)
		return err
	})
	switch {
	case err == nil && (!res.IsOf(r.O.Run) || madeSince(rec, res)),
		errors.Is(err, provision.ErrNotFound) && r.Clock.Now().Sub(ended(rec)) > memory:
		return nil
	}
	return rec
}

// memory is how long a success without slices counts for the same job given again. After
// the death of a runner, a user repeats the job within hours. A daily job must run every
// day.
const memory = 6 * time.Hour

// repeats reports whether a request repeats the job of a record. The job must have
// succeeded, and its runner must not have finished with the slices. work says what the
// request runs on its slices.
func repeats(rec *record.Record, work, project, zone string, r provision.Request) bool {
	return rec.Removing && rec.Over() && rec.Code == 0 && rec.Work == work && rec.Project == project && rec.Zone == zone &&
		len(rec.Slices) == max(1, r.NodeCount) && (rec.Slices[0].Type == "" || rec.Slices[0].Type == r.Type.Name)
}

// madeSince reports whether res is newer than the record's slices, or has none of them. It
// compares only times of the provider's clock, because this machine's clock may be wrong.
func madeSince(rec *record.Record, res provision.Resource) bool {
	newest := time.Time{}
	for _, s := range rec.Slices {
		if s.Created.After(newest) {
			newest = s.Created
		}
	}
	ran := func(s tpu.Slice) bool { return slices.Contains(record.SliceIDs(rec.Slices), s.UID) }
	known := slices.DeleteFunc(slices.Clone(res.Slices), func(s tpu.Slice) bool { return s.UID == "" })
	return !newest.IsZero() && res.CreateTime.After(newest) || len(known) > 0 && !slices.ContainsFunc(known, ran)
}

// ended returns the end of a record's last attempt, or its begin if the end is not known.
func ended(rec *record.Record) time.Time {
	if n := len(rec.Attempts); n > 0 && !rec.Attempts[n-1].End.IsZero() {
		return rec.Attempts[n-1].End
	}
	return rec.Created
}

// saySucceeded reports that the runner of a job ended before it was done with the resource,
// and what follows from that.
func saySucceeded(sink event.Sink, rec *record.Record, resource, then string) {
	event.Notef(sink, event.Info, "to run the command once more, type the same again after that",
		"run %s, attempt %d, succeeded at %s, and its runner ended before it was done with %s: %s", rec.Run, rec.Attempt, ended(rec).Local().Format(time.DateTime), resource, then)
}

// resume does the rest of the runner's work for a job that has succeeded and has no runner.
func (q *queued) resume(ctx context.Context, r *runner, rec *record.Record) (stage.Outcome, error) {
	saySucceeded(q.Sink, rec, q.name(), "the command is not started again; logs in "+rec.LogDir)
	q.there, q.ours = true, true
	r.lease = &renewal.Lease{Deps: q.renewal(), How: delivery(q.o.Run), Terms: q.lease}
	return q.remove(ctx, r, stage.Outcome{Started: true}, nil)
}

// remove ends the job with out and runErr. It deletes the slices or says why they stay.
// After that, the same job given again is a new one, unless the deletion failed.
func (q *queued) remove(ctx context.Context, r *runner, out stage.Outcome, runErr error) (stage.Outcome, error) {
	out, err := q.ending(r).End(ctx, out, runErr)
	if !stage.Is(err, stage.Teardown) {
		if err := record.Removed(q.StateDir, q.o.Run.Run); err != nil {
			event.Notef(q.Sink, event.Warn, "", "%v", err)
		}
	}
	return out, err
}
