package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/network"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// JobOptions describes a run on slices that are created for it and deleted after it.
type JobOptions struct {
	Request provision.Request
	Network *network.Options // to create first; nil: none
	Run     RunOptions

	QueueLimit, ProvisionLimit, BootLimit time.Duration // as in provider.WaitOptions

	Budget Budget

	TTL time.Duration // from the request of the slices to their deletion, whatever is running; 0: no limit

	// Lease is how long the workers wait before they delete the slices themselves. The
	// time counts from the end of the command, or from their boot if no runner has
	// come, and only while nobody is attached; 0: never.
	Lease time.Duration

	Keep          bool          // leave the slices when the run has ended
	KeepOnFailure bool          // leave them if the run failed
	KeepFor       time.Duration // with KeepOnFailure: delete them after this time; 0: only the user deletes them
}

// Job creates slices, runs the command on them and deletes them. If slices are taken
// away, it creates them again and starts the command again, as far as the budget
// allows. It takes over what an earlier runner of the same job left: the queued
// resource, and the command if it is still running. The last lines name what is left
// behind.
func Job(ctx context.Context, d *workers.Deps, o JobOptions) (out stage.Outcome, err error) {
	defer func() { d.CloseJournal(out, err) }()
	release, err := d.Claim(o.Run.Run)
	if err != nil {
		return stage.Outcome{}, err
	}
	defer release()
	r := &Runner{Deps: d, O: o.Run, Watch: stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}, adopts: true, since: d.Clock.Now()}
	defer r.Close()
	if err := r.checkJob(ctx, o); err != nil {
		return stage.Outcome{}, err
	}
	r.ChecksDone()
	q := &queued{Deps: d, o: o, watch: &r.Watch, terms: leaseTerms(d, o)}
	d.SetStatus(func(s *stage.Status) { s.Tier = string(o.Request.Asks()) })
	right, over := AskRight(ctx, d, o, q.terms.On())
	defer over()
	first := func() error {
		there, mtu, err := outlook(ctx, d, o.Request, o.Network)
		TellRight(d, right(), o.Request.ID, whenRunnerDies)
		if q.mtu = mtu; err == nil && !there {
			err = q.announce(ctx)
		}
		if err == nil { // a job that nobody confirmed leaves no journal
			d.OpenJournal(o.Run.Run, "job", o.Run.Env)
		}
		return err
	}
	if err := r.MakeNetwork(ctx, o.Network, first); err != nil {
		if class := gcp.ClassOf(err); class == gcp.Unavailable || class == gcp.Timeout {
			sayUnknown(d, o.Request.ID, err)
		}
		return stage.Outcome{}, err
	}
	r.missing = q.commandLives
	q.deleting = func() {
		if r.sayLogsGo(); q.losesLogs(r.tried) {
			sayEarlierLogsGo(d)
		}
	}
	q.occupied = func(ctx context.Context) bool { return q.othersLive(ctx, r) }
	r.deletes = func() bool { return q.ours && !o.Keep }
	foreign := q.terms.On() && q.terms.Metadata(q.Agents, o.Request.Metadata) == nil
	r.lease = func() *guard {
		if !q.ours {
			return nil
		}
		return &guard{terms: q.terms, boot: bootAllowance(o), foreign: foreign}
	}
	out, err = r.attempts(ctx, q, o.Budget)
	var no *declined
	switch {
	case errors.As(err, &no): // a resource that is to be made again may still be there
		return out, notOurs(ctx, d, o, err, "is not made again")
	case r.raced(err):
		return out, notOurs(ctx, d, o, err, "is left to another runner of this job")
	case !q.ours || !q.made && stage.Is(err, stage.Busy):
		return out, notOurs(ctx, d, o, err, "was there before this job")
	case occupied(err):
		return out, notOurs(ctx, d, o, err, "has another run on it")
	}
	return afterRun(ctx, d, r, q, out, err)
}

// sayEarlierLogsGo warns that the slices that are about to be deleted may have the only copy
// of logs that this machine has not followed.
func sayEarlierLogsGo(d *workers.Deps) {
	event.Notef(d.Sink, event.Warn, "", "logs of an earlier runner's command may be not whole here; what is missing goes with the slices")
}

// occupied reports whether err says that another run lives on the slices. Deleting them
// would end it.
func occupied(err error) bool {
	var busy *launch.BusyError
	var e *stage.Error
	if errors.As(err, &busy) {
		return true
	}
	return errors.As(err, &e) && (e.Stage == stage.Busy && len(e.Each) == 0 || slices.ContainsFunc(e.Each, occupied))
}

// MakeNetwork creates the network of a job, if it is to create one. It calls first before
// it changes anything, and ends with its error.
func (r *Runner) MakeNetwork(ctx context.Context, o *network.Options, first func() error) error {
	var plan *network.Plan
	err := r.Watch.Span("network", func() (err error) {
		plan, err = PlanNetwork(ctx, r.Deps, o)
		return err
	})
	if err != nil {
		return err
	}
	if err := first(); err != nil || plan == nil {
		return err
	}
	return r.Watch.Span("network", func() error { return r.Networks.Apply(ctx, *plan) })
}

// PlanNetwork returns what has to be created for the network of a job; nil if the job
// creates none.
func PlanNetwork(ctx context.Context, d *workers.Deps, o *network.Options) (*network.Plan, error) {
	if o == nil {
		return nil, nil
	}
	plan, err := d.Networks.Plan(ctx, *o)
	if err == nil {
		err = plan.Err()
	}
	return &plan, err
}

// Probe reports whether every worker of a slice answers SSH.
func Probe(ctx context.Context, d *workers.Deps, s tpu.Slice) error {
	s.Index = 0
	t, err := d.Connect(ctx, tpu.Selection{Slices: []tpu.Slice{s}}, nil)
	if err != nil {
		return err
	}
	t.Close()
	return nil
}

// TeardownLimit limits the deletion of a queued resource with its nodes, which takes
// minutes on the real service.
const TeardownLimit = 20 * time.Minute

// teardownPatience is how long a job waits at its end for the API, and for the user to
// log in again. It spans a long weekend.
const teardownPatience = 4 * 24 * time.Hour

// notOurs ends a job whose queued resource another job or user has to delete. It warns
// that the resource stays and is billed.
func notOurs(ctx context.Context, d *workers.Deps, o JobOptions, runErr error, why string) error {
	var conflict *provision.ConflictError
	if errors.As(runErr, &conflict) {
		return runErr // it belongs to somebody else and was not used
	}
	look, cancel := d.Detached(ctx, time.Minute)
	defer cancel()
	res, err := d.Cloud.Get(look, o.Request.ID)
	switch {
	case err == nil:
		sayStays(d, res, DeleteHint(o.Request.ID, d), fmt.Sprintf("%s %s: it stays, %s", provision.NameOf(d.Cloud, o.Request.ID), why, res.Standing()))
	case gcp.ClassOf(err) != gcp.NotFound && !gcp.NoZone(err): // the answer to our own request may have been lost
		sayUnknown(d, o.Request.ID, err)
	}
	return runErr
}

// sayUnknown warns that a queued resource of the job's name may exist: nobody could read
// whether it does.
func sayUnknown(d *workers.Deps, id string, err error) {
	event.Notef(d.Sink, event.Warn, DeleteHint(id, d), "whether %s exists is not known; if it does, it is billed once it has slices: %v", provision.NameOf(d.Cloud, id), err)
}

// afterRun deletes the slices of a job, or reports why they stay and how to delete
// them. It reads the real state before it deletes anything.
func afterRun(ctx context.Context, d *workers.Deps, r *Runner, q *queued, out stage.Outcome, runErr error) (stage.Outcome, error) {
	o := q.o
	id := o.Request.ID
	// Wait here for an expired login and for an unavailable API, because nobody else
	// deletes what is billed.
	look, cancel := d.Detached(ctx, teardownPatience)
	var res provision.Resource
	err := outlast(look, d, func() (err error) {
		res, err = d.Cloud.Get(look, id)
		return err
	})
	cancel()
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		hint := ""
		if runErr != nil && o.Lease > 0 {
			hint = fmt.Sprintf("where no user deleted it, its workers did, since this machine was asleep or cut off for %s (--lease) and longer", stage.AsTyped(o.Lease))
		}
		event.Notef(d.Sink, event.Info, hint, "%s is gone: nothing of this job is billed", provision.NameOf(d.Cloud, id))
		return out, runErr
	case err != nil:
		return out, errors.Join(runErr, &stage.Error{Stage: stage.Teardown, Err: err,
			Text:   fmt.Sprintf("read %s: %v; if it exists it is billed", provision.QuotedNameOf(d.Cloud, id), err),
			Advice: DeleteHint(id, d)})
	}
	if runErr != nil && !out.Started {
		if why := q.leavesFor(ctx, r, res.Life, runErr); why != "" {
			sayStays(d, res, "go on with it by typing the same command again; end it with: multihost stop "+o.Run.Run+"; delete it with: "+d.Cloud.Undoing(id).Commands.Delete,
				fmt.Sprintf("%s stays as it was, %s: %s", provision.NameOf(d.Cloud, id), res.Standing(), why))
			return out, runErr
		}
	}
	if why := keep(ctx, d, r, o, out, runErr); why != "" {
		does := ""
		if text := r.guard.whoDeletes(); text != "" {
			does = ": " + text
		}
		hint := DeleteHint(id, d)
		if leftRunning(out, runErr) { // deleting would end the command
			hint = "end the command with: multihost stop " + o.Run.Run + "; once it has ended, the same deletes the slices"
		}
		sayStays(d, res, hint, fmt.Sprintf("%s stays (%s), %s%s", provision.NameOf(d.Cloud, id), why, res.Standing(), does))
		return out, runErr
	}
	if q.anotherLives(ctx, r, out, runErr) {
		look, cancel := d.Detached(ctx, time.Minute)
		if now, err := d.Cloud.Get(look, id); err == nil { // failed slices may have been kept since it was read
			res = now
		}
		cancel()
		sayStays(d, res, "end it with: multihost stop "+o.Run.Run+"; "+DeleteHint(id, d),
			fmt.Sprintf("%s stays, %s: a command lives on it that another one has started since", provision.NameOf(d.Cloud, id), res.Standing()))
		return out, runErr
	}
	if q.deleting(); q.unasked(res) {
		sayEarlierLogsGo(d)
	}
	if err := tearDown(ctx, d, id, o.Run.Run); err != nil {
		return out, errors.Join(runErr, err)
	}
	var secret *launch.SecretError // its cause is in the project, not in the slices
	if runErr != nil && !out.Started && !errors.As(runErr, &secret) {
		runErr = stage.WithoutSlices(runErr)
	}
	return out, runErr
}

// leftRunning reports whether the user has left a command that runs.
func leftRunning(out stage.Outcome, err error) bool {
	var in *stage.Interrupted
	return out.Started && (out.Detached || errors.As(err, &in) && in.Detaches(true))
}

// tearDown deletes the queued resource of a run, and says what is billed after that.
func tearDown(ctx context.Context, d *workers.Deps, id, run string) error {
	d.SetStatus(func(s *stage.Status) { s.Resource = "" }) // there is nothing left to decide
	// Limit limits the deletion itself; the context is only a backstop.
	cleanup, cancel := d.Detached(ctx, TeardownLimit+time.Minute)
	defer cancel()
	err := outlast(cleanup, d, func() error {
		_, err := d.Cloud.Delete(cleanup, id, provision.DeleteOptions{OnlyRun: run, Limit: TeardownLimit})
		return err
	})
	if err != nil {
		return &stage.Error{Stage: stage.Teardown, Err: err,
			Text:   fmt.Sprintf("delete %s: %v; it may still exist and be billed", provision.QuotedNameOf(d.Cloud, id), err),
			Advice: DeleteHint(id, d)}
	}
	what := fmt.Sprintf("%s and its slices are deleted: ", provision.NameOf(d.Cloud, id))
	if again, hint := MadeAgain(ctx, d, id); again == "" {
		event.Notef(d.Sink, event.Info, "", "%s%s", what, NothingBilled)
	} else {
		event.Notef(d.Sink, event.Warn, hint, "%s%s", what, again)
	}
	return nil
}

const NothingBilled = "nothing of this job is billed"

// MadeAgain says what there is of a queued resource that has just been deleted: another
// command may have made it again. It returns "" if there is nothing.
func MadeAgain(ctx context.Context, d *workers.Deps, id string) (text, hint string) {
	look, cancel := d.Detached(ctx, time.Minute)
	defer cancel()
	res, err := d.Cloud.Get(look, id)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		return "", ""
	case err != nil:
		return fmt.Sprintf("whether another command has made it again is not known: %v", err), "look with: multihost ps"
	case res.Life == provision.Deleting:
		return "", ""
	}
	return "another command has made it again, " + res.Standing(), DeleteHint(id, d)
}

// sayStays warns that a queued resource stays, unless it is being deleted.
func sayStays(d *workers.Deps, res provision.Resource, hint, text string) {
	if res.Life == provision.Deleting {
		hint, text = "", fmt.Sprintf("%s is being deleted, and is billed until it is gone", provision.NameOf(d.Cloud, res.ID))
	}
	event.Notef(d.Sink, event.Warn, hint, "%s", text)
}

// keep says why the slices are left, or "" if they are to be deleted now. It waits
// while failed slices are kept for a limited time.
func keep(ctx context.Context, d *workers.Deps, r *Runner, o JobOptions, out stage.Outcome, runErr error) string {
	var in *stage.Interrupted
	switch {
	case out.Detached:
		return "the run goes on"
	case errors.Is(runErr, stage.ErrExpired):
		return ""
	case o.Keep:
		return "--keep"
	case out.KeepLogs:
		return "logs are whole on its workers only"
	case out.Started && errors.As(runErr, &in) && in.Detaches(true):
		return in.Error() + ", the run goes on"
	case errors.As(runErr, &in) && in.Detaches(true):
		return in.Error() + ": the same command goes on with it"
	case in != nil: // a stop is no failure to look into
		return ""
	case !o.KeepOnFailure || runErr == nil && out.Code == 0:
		return ""
	case o.KeepFor == 0:
		return "--keep-on-failure"
	case ctx.Err() == nil:
		return holdFor(ctx, d, r, o.KeepFor, o.Request.ID)
	}
	return ""
}

// DeleteHint is the hint that says how to delete a resource.
func DeleteHint(id string, d *workers.Deps) string {
	return "delete it with: " + DeleteCommand(id, d)
}

// DeleteCommand is what a person types to delete a resource with its slices, from
// wherever.
func DeleteCommand(id string, d *workers.Deps) string {
	return fmt.Sprintf("%s --project=%s --zone=%s", d.Cloud.Undoing(id).Commands.Delete, d.Project, d.Zone)
}

// holdFor keeps failed slices so that the user can look at them. It returns why they
// are to stay longer, or "" if they are to be deleted. An interrupt ends the wait.
func holdFor(ctx context.Context, d *workers.Deps, r *Runner, limit time.Duration, id string) string {
	until := d.Clock.Now().Add(limit)
	cost := ""
	if text := follow.Billed(d.StatusOf().Tier, r.used); text != "" {
		cost = " (" + text + ")"
	}
	d.SetStatus(func(s *stage.Status) { s.Kept = until })
	how := "Ctrl-C deletes it now"
	if d.CtrlC == stage.Ask || d.CtrlC == stage.Detach {
		how = d.WhatCtrlCDoes(true)
	}
	event.Notef(d.Sink, event.Warn, "look at them with: multihost ps, multihost logs "+r.O.Run+", or ssh",
		"keeping the failed slices%s until %s (--keep-on-failure=%s), then deleting %s; %s", cost, until.Format(time.TimeOnly), limit, provision.NameOf(d.Cloud, id), how)
	select {
	case <-d.Clock.After(limit):
	case <-ctx.Done():
	case <-d.Leave:
	}
	d.SetStatus(func(s *stage.Status) { s.Kept, s.Resource = time.Time{}, "" })
	var in *stage.Interrupted
	if errors.As(context.Cause(ctx), &in) && in.Detaches(true) {
		return in.Error() + " while failed slices were kept"
	}
	return ""
}
