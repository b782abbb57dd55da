// Package teardown deletes the slices of a job at its end, or says why they stay and how to
// delete them. It reads the state of the slices before it decides. It deletes nothing that the
// job did not make.
//
// # Decisions
//
//   - A job deletes only what jobs of its name have made, as the label multihost-job says.
//     So a job that the user types again after its runner has died deletes what that runner
//     has made. If another resource matches the request, the job uses it, keeps it and
//     names it.
package teardown

import (
	"context"
	"errors"
	"fmt"
	"time"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/lease"
	"multihost/internal/provision"
	"multihost/internal/renewal"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

const (
	// Limit limits the deletion of a queued resource with its nodes, which takes minutes
	// on the real service.
	Limit = 20 * time.Minute
	// patience is how long a job waits at its end if the API is away or the user must log
	// in again: longer than a long weekend.
	patience = 4 * 24 * time.Hour
	// AwayPause is the pause between two calls while the API is away. Each call retries for
	// two minutes.
	AwayPause = 15 * time.Second
	// glance limits a read of the cloud that only adds something to a message.
	glance = time.Minute
)

// A Job is a job that ends, with the callbacks and settings that decide about its slices.
type Job struct {
	*workers.Reach
	ID, Run string // ID of the queued resource; Run: the run whose label it has
	Keeping Keeping
	Lease   time.Duration // --lease
	Used    []tpu.Slice   // slices of the last attempt, for their price

	// Leaves is called if the runner has started nothing and ends with err. It returns why the
	// runner must not delete the resource, or "".
	Leaves func(ctx context.Context, life provision.Life, err error) string
	// Taken returns a reason if another runner's command uses the slices, so that they must
	// stay, and otherwise "".
	Taken func(ctx context.Context) string
	// Remade reports whether the job's own resource is gone and another command has made
	// res, with the same name.
	Remade func(res provision.Resource) bool
	// WhoDeletes says what the workers do with slices that stay, or returns "" if they do
	// nothing.
	WhoDeletes func() string
	// Last is called directly before the deletion, with the present resource.
	Last func(res provision.Resource)
}

// End deletes the slices of the job, or reports why they stay. out and runErr say how the
// last attempt ended. End returns both, joined with its own errors.
func (j *Job) End(ctx context.Context, out stage.Outcome, runErr error) (stage.Outcome, error) {
	res, err := j.look(ctx)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		j.sweep(ctx)
		hint := ""
		if runErr != nil && j.Lease > 0 {
			hint = fmt.Sprintf("if no user deleted it, its workers did, because this machine was asleep or cut off for longer than %s (--lease)", stage.AsTyped(j.Lease))
		}
		event.Notef(j.Sink, event.Info, hint, "%s is gone: nothing of this job is billed", j.name())
		return out, runErr
	case err != nil:
		return out, errors.Join(runErr, &stage.Error{Stage: stage.Teardown, Err: err,
			Text:   fmt.Sprintf("read %s: %v; if it exists it is billed", provision.QuotedNameOf(j.Cloud, j.ID), err),
			Advice: Hint(j.Reach, j.ID)})
	}
	if j.stays(ctx, res, out, runErr) {
		return out, runErr
	}
	j.Last(res)
	if err := j.delete(ctx); err != nil {
		return out, errors.Join(runErr, err)
	}
	var secret *launch.SecretError // the cause is in the project, so keeping the slices would not help
	if runErr != nil && !out.Started && !errors.As(runErr, &secret) {
		runErr = stage.WithoutSlices(runErr)
	}
	return out, runErr
}

// sweep deletes the remaining parts of a resource whose slices somebody else has deleted. The
// parts cost nothing, so the job does not wait long.
func (j *Job) sweep(ctx context.Context) {
	p, ok := provision.As[provision.Sweeper](j.Cloud)
	if !ok {
		return
	}
	ctx, cancel := j.Detached(ctx, glance)
	defer cancel()
	if err := p.Sweep(ctx, j.ID, j.Run, true); err != nil {
		event.Notef(j.Sink, event.Warn, Hint(j.Reach, j.ID), "parts of %s, which cost nothing, may be left: %v", j.name(), err)
	}
}

// stays reports whether the resource stays, and says why.
func (j *Job) stays(ctx context.Context, res provision.Resource, out stage.Outcome, runErr error) bool {
	if j.remade(res) {
		return true
	}
	if runErr != nil && !out.Started {
		if why := j.Leaves(ctx, res.Life, runErr); why != "" {
			sayStays(j.Reach, res, "go on with it by typing the same command again; end it with: multihost stop "+j.Run+"; delete it with: "+j.Cloud.Undoing(j.ID).Commands.Delete,
				fmt.Sprintf("%s stays as it was, %s: %s", j.name(), res.Standing(), why))
			return true
		}
	}
	why, hold := j.Keeping.decide(out, runErr, ctx.Err() != nil)
	if hold && res.Life != provision.Deleting { // a resource that somebody is deleting cannot be kept
		why = j.hold(ctx)
		if res = j.again(ctx, res); j.remade(res) {
			return true
		}
	}
	if why != "" {
		does := ""
		if text := j.WhoDeletes(); text != "" {
			does = ": " + text
		}
		hint := Hint(j.Reach, j.ID)
		if leftRunning(out, runErr) { // deleting would end the command
			hint = "end the command with: multihost stop " + j.Run + "; once it has ended, the same deletes the slices"
		}
		sayStays(j.Reach, res, hint, fmt.Sprintf("%s stays (%s), %s%s", j.name(), why, res.Standing(), does))
		return true
	}
	// If nothing was started, Leaves was asked a moment ago. If failed slices were kept for a
	// time since, ask again.
	looked := runErr != nil && !out.Started && (!j.Keeping.OnFailure || j.Keeping.For == 0)
	if looked || Chosen(runErr) {
		return false
	}
	if why = j.Taken(ctx); why == "" {
		return false
	}
	sayStays(j.Reach, res, "end it with: multihost stop "+j.Run+"; "+Hint(j.Reach, j.ID),
		fmt.Sprintf("%s stays, %s: %s", j.name(), res.Standing(), why))
	return true
}

// remade reports whether another command has made the resource, and tells the user.
func (j *Job) remade(res provision.Resource) bool {
	if res.Life == provision.Absent || !j.Remade(res) {
		return false
	}
	sayStays(j.Reach, res, Hint(j.Reach, j.ID), fmt.Sprintf("%s stays, %s: it was deleted, and another command has made it again", j.name(), res.Standing()))
	return true
}

// again reads the resource again, because res is old. If it cannot, it returns res.
func (j *Job) again(ctx context.Context, res provision.Resource) provision.Resource {
	ctx, cancel := j.Detached(ctx, glance)
	defer cancel()
	now, err := j.Cloud.Get(ctx, j.ID)
	switch {
	case err == nil:
		return now
	case gcp.ClassOf(err) == gcp.NotFound:
		res.Life = provision.Absent
	}
	return res
}

func (j *Job) name() string { return provision.NameOf(j.Cloud, j.ID) }

// look reads the resource. It waits while a login has expired or the API is unavailable,
// because nobody else deletes what is billed.
func (j *Job) look(ctx context.Context) (res provision.Resource, err error) {
	if ctx.Err() == nil { // after ctx has ended, delete tells the user
		defer j.Persist(ctx, "the state of "+j.name()+" is being read, to delete it", "if it exists, it stays and is billed", "then "+Hint(j.Reach, j.ID))()
	}
	ctx, cancel := j.Detached(ctx, patience)
	defer cancel()
	err = Outlast(ctx, j.Clock, func() (err error) {
		res, err = j.Cloud.Get(ctx, j.ID)
		return err
	})
	return res, err
}

// Chosen reports whether the user or the time to live has ended the command.
func Chosen(err error) bool {
	var in *stage.Interrupted
	return errors.As(err, &in) && in.Answer == stage.Stop || errors.Is(err, stage.ErrExpired)
}

// Outlast repeats call while the API is unavailable, without a time limit, because these
// slices cost money. It ends with ctx.
func Outlast(ctx context.Context, clock gcp.Clock, call func() error) error {
	for {
		err := call()
		if class := gcp.ClassOf(err); class != gcp.Unavailable && class != gcp.Timeout || ctx.Err() != nil {
			return err
		}
		_ = stage.Sleep(ctx, clock, AwayPause)
	}
}

// leftRunning reports whether the user has detached from a running command.
func leftRunning(out stage.Outcome, err error) bool {
	var in *stage.Interrupted
	return out.Started && (out.Detached || errors.As(err, &in) && in.Detaches(true))
}

// delete deletes the queued resource, and says what is billed afterwards.
func (j *Job) delete(ctx context.Context) error {
	j.SetStatus(func(s *stage.Status) { s.Resource = "" }) // Ctrl-C has nothing left to ask about
	// The provider keeps to Limit. The limit of the context is larger, for a provider that does
	// not.
	defer j.Persist(ctx, j.name()+" is being deleted", "what is not deleted by then may stay, and is billed", "then "+Hint(j.Reach, j.ID))()
	cleanup, cancel := j.Detached(ctx, Limit+time.Minute)
	defer cancel()
	err := Outlast(cleanup, j.Clock, func() error {
		_, err := j.Cloud.Delete(cleanup, j.ID, provision.DeleteOptions{OnlyRun: j.Run, Limit: Limit})
		return err
	})
	if err != nil {
		return &stage.Error{Stage: stage.Teardown, Err: err,
			Text:   fmt.Sprintf("delete %s: %v; it may still exist and be billed", provision.QuotedNameOf(j.Cloud, j.ID), err),
			Advice: Hint(j.Reach, j.ID)}
	}
	what := fmt.Sprintf("%s and its slices are deleted: ", j.name())
	if again, hint := MadeAgain(ctx, j.Reach, j.ID); again == "" {
		event.Notef(j.Sink, event.Info, "", "%s%s", what, NothingBilled)
	} else {
		event.Notef(j.Sink, event.Warn, hint, "%s%s", what, again)
	}
	return nil
}

// A Keeping says when the slices of a job stay at its end.
type Keeping struct {
	Always    bool          // --keep
	OnFailure bool          // --keep-on-failure
	For       time.Duration // with OnFailure: how long they stay; 0: until the user deletes them
}

// decide returns why the slices stay, or "" if they must be deleted. If hold is true, failed
// slices are first kept for a limited time. done is true if this command must end now.
func (k Keeping) decide(out stage.Outcome, runErr error, done bool) (why string, hold bool) {
	var in *stage.Interrupted
	switch {
	case out.Detached:
		return "the run goes on", false
	case errors.Is(runErr, stage.ErrExpired), provision.GivesBack(runErr): // no command has run on them
		return "", false
	case k.Always:
		return "--keep", false
	case out.KeepLogs:
		return "logs are whole on its workers only", false
	case out.Started && errors.As(runErr, &in) && in.Detaches(true):
		return in.Error() + ", the run goes on", false
	case errors.As(runErr, &in) && in.Detaches(true):
		return in.Error() + ": the same command goes on with it", false
	case in != nil: // after a stop there is no failure to examine
		return "", false
	case !k.OnFailure || runErr == nil && out.Code == 0:
		return "", false
	case k.For == 0:
		return "--keep-on-failure", false
	}
	return "", !done
}

// hold keeps failed slices for a while, so that the user can examine them. It returns why they
// should stay longer, or "" if they must be deleted. An interrupt ends the wait.
func (j *Job) hold(ctx context.Context) string {
	until := j.Clock.Now().Add(j.Keeping.For)
	cost := ""
	if text := follow.Billed(j.StatusOf().Tier, j.Used); text != "" {
		cost = " (" + text + ")"
	}
	j.SetStatus(func(s *stage.Status) { s.Kept = until })
	how := "Ctrl-C deletes it now"
	if j.CtrlC == stage.Ask || j.CtrlC == stage.Detach {
		how = j.WhatCtrlCDoes(true)
	}
	event.Notef(j.Sink, event.Warn, "look at them with: multihost ps, multihost logs "+j.Run+", or ssh",
		"keeping the failed slices%s until %s (--keep-on-failure=%s), then deleting %s; %s", cost, until.Format(time.TimeOnly), j.Keeping.For, j.name(), how)
	select {
	case <-j.Clock.After(j.Keeping.For):
	case <-ctx.Done():
	case <-j.Leave:
	}
	j.SetStatus(func(s *stage.Status) { s.Kept, s.Resource = time.Time{}, "" })
	var in *stage.Interrupted
	if errors.As(context.Cause(ctx), &in) && in.Detaches(true) {
		return in.Error() + " while failed slices were kept"
	}
	return ""
}

// NotOurs says that a queued resource stays and is billed, and that another job or user
// must delete it. why describes the resource.
func NotOurs(ctx context.Context, d *workers.Reach, id string, why string) {
	look, cancel := d.Detached(ctx, glance)
	defer cancel()
	res, err := d.Cloud.Get(look, id)
	switch {
	case err == nil:
		sayStays(d, res, Hint(d, id), fmt.Sprintf("%s %s: it stays, %s", provision.NameOf(d.Cloud, id), why, res.Standing()))
	case gcp.ClassOf(err) != gcp.NotFound && !gcp.NoZone(err): // the answer to our own request may have been lost
		SayUnknown(d, id, err)
	}
}

// SayUnknown warns that a queued resource of the job's name may exist, because nobody could
// read whether it does.
func SayUnknown(d *workers.Reach, id string, err error) {
	event.Notef(d.Sink, event.Warn, Hint(d, id), "whether %s exists is not known; if it does, it is billed once it has slices: %v", provision.NameOf(d.Cloud, id), err)
}

// NothingBilled is the text about the bill of a job whose slices were deleted.
const NothingBilled = "nothing of this job is billed"

// MadeAgain describes a queued resource that another command has made since the job deleted
// its own of the same name. It returns "" if there is none, or if it is being deleted. If
// the API does not say, the text says so.
func MadeAgain(ctx context.Context, d *workers.Reach, id string) (text, hint string) {
	look, cancel := d.Detached(ctx, glance)
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
	return "another command has made it again; it is in " + res.Standing(), Hint(d, id)
}

// sayStays warns that a queued resource stays, unless it is being deleted or is gone.
func sayStays(d *workers.Reach, res provision.Resource, hint, text string) {
	switch res.Life {
	case provision.Absent:
		event.Notef(d.Sink, event.Info, "", "%s is gone: %s", provision.NameOf(d.Cloud, res.ID), NothingBilled)
		return
	case provision.Deleting:
		hint, text = "", fmt.Sprintf("%s is being deleted, and is billed until it is gone", provision.NameOf(d.Cloud, res.ID))
	}
	event.Notef(d.Sink, event.Warn, hint, "%s", text)
}

// Hint returns a hint that says how to delete a resource.
func Hint(d *workers.Reach, id string) string {
	return "delete it with: " + Command(d, id)
}

// Command returns what a person on any machine types to delete a resource with its slices.
func Command(d *workers.Reach, id string) string {
	return fmt.Sprintf("%s --project=%s --zone=%s", d.Cloud.Undoing(id).Commands.Delete, d.Project, d.Zone)
}

// SayBilled is about slices that a job made for this run. It warns that they stay and are
// billed, or says who deletes them. A user who attaches to a run or stops it may not know this.
func SayBilled(ctx context.Context, d *workers.Reach, run string, all []tpu.Slice, held map[string]lease.Held) {
	if d.OnHosts() {
		return
	}
	look, cancel := d.Detached(ctx, 30*time.Second)
	defer cancel()
	seen := map[string]bool{"": true}
	for _, s := range all {
		if seen[s.QueuedResource] {
			continue
		}
		seen[s.QueuedResource] = true
		res, err := d.Cloud.Get(look, s.QueuedResource)
		if err != nil || !res.IsOf(run) {
			continue
		}
		does := "unless its job still runs somewhere to delete it, it stays and is billed"
		if text := renewal.Text(held[s.QueuedResource], res.Until); text != "" {
			does = "it is billed until its job, if that still runs somewhere, deletes it; else " + text
		}
		event.Notef(d.Sink, event.Warn, Hint(d, res.ID), "%s was made for this run: %s", provision.NameOf(d.Cloud, res.ID), does)
	}
}
