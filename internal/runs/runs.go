// Package runs finds runs on workers or in a bucket. It lists them, attaches to them, stops
// them and compares their logs.
//
// # Decisions
//
//   - Looking at a run changes nothing. top reads a run on its workers with the code of
//     attach, but keeps the output only in memory. The connections of top refuse every
//     command that may change the worker (sshfan.Config.ReadOnly). top does not record an
//     end that it has not seen. A byte of a log counts once, by its offset, whichever way
//     it came.
package runs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/mask"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/renewal"
	"multihost/internal/stage"
	"multihost/internal/teardown"
	"multihost/internal/tpu"
	"multihost/internal/workers"
	"multihost/internal/workloads"
)

// Deps holds what commands on runs work with.
type Deps struct {
	*workers.Reach
	*record.Keeper
	detach.Source
	Agents    program.Set        // multihost-agent for each architecture
	Workloads *workloads.Cluster // the cluster whose workloads List lists, too; nil: none
}

// Locate finds a run by its name, in this machine's records or else on the slices.
func Locate(ctx context.Context, d Deps, name, prefix string) (*record.Record, error) {
	rec, err := record.LoadRecord(d.StateDir, name)
	if err != nil {
		return nil, err
	}
	if rec != nil && rec.Project == d.Project && rec.Zone == d.Zone && (prefix == "" || prefix == rec.Prefix) {
		return rec, nil
	}
	if rec != nil && prefix == "" {
		return nil, &stage.Error{Stage: stage.Discover, Text: fmt.Sprintf("run %q was started in project %s, zone %s", name, rec.Project, rec.Zone),
			Advice: fmt.Sprintf("add --project=%s --zone=%s", rec.Project, rec.Zone)}
	}
	return locateOnWorkers(ctx, d, name, prefix)
}

// locateOnWorkers finds a run by asking the slices.
func locateOnWorkers(ctx context.Context, d Deps, name, prefix string) (*record.Record, error) {
	see, match := lookFor(ctx, d.Reach, name, prefix, func(f workers.FoundRun) bool { return f.Info.Run == name })
	if len(match) == 0 && see.err != nil {
		return nil, see.err
	}
	if len(match) == 0 {
		if err := notBegun(ctx, d, name); err != nil {
			return nil, err
		}
		text := fmt.Sprintf("no run %q on this machine's list or on the ready slices of %s", name, d.Zone)
		if _, err := os.Stat(record.RunDir(d.StateDir, name)); err == nil {
			text = fmt.Sprintf("run %q was never started: it was left while its workers were prepared, and the ready slices of %s know nothing of it", name, d.Zone)
		}
		return nil, stage.NoRun(text, "list the runs with: multihost ps --all")
	}
	f, other := choose(match)
	if other != nil {
		return nil, several(name, f, *other, see.slices)
	}
	rec := recordOf(d, f, see)
	if old, err := record.LoadRecord(d.StateDir, name); err == nil && old != nil {
		besides(rec, old)
	}
	switch {
	case rec.Unseen == nil && f.Info.Slices > 0: // the slices that did not answer have no part of the run
	case see.err != nil:
		var e *stage.Error
		text := see.err.Error()
		if errors.As(see.err, &e) {
			text = e.Text
		}
		event.Notef(d.Sink, event.Warn, "once they answer, do the same again", "run %s is known from %s; other slices, which may have a part of it, could not be asked: %s",
			name, sliceNames(see.slices, f), text)
	case rec.Unseen != nil:
		event.Notef(d.Sink, event.Warn, "once that has changed, do the same again", "run %s is known from %s only: %s", name, sliceNames(see.slices, f), partText(rec))
	}
	return rec, nil
}

// recordOf returns a record for a run on the slices of see.
func recordOf(d Deps, f workers.FoundRun, see sight) *record.Record {
	rec := &record.Record{Run: f.Info.Run, Attempt: f.Info.Attempt, Project: d.Project, Zone: d.Zone, Login: f.Info.Login, Owner: f.Info.Owner,
		Created: f.Info.Armed, Command: f.Info.Command, LogDir: record.RecordDir(d.StateDir, f.Info.Run, f.Info.Attempt), Unseen: unseen(f, see)}
	for _, id := range f.Workers {
		s := see.slices[id.Slice]
		rec.Slices = append(rec.Slices, record.Slice{Name: s.Name, UID: s.UID, Workers: len(s.Workers), Type: s.Type, Provider: s.Provider})
		rec.Workers += len(s.Workers)
	}
	return rec
}

// begunAgain searches for a run whose recorded slices have gone. If another machine has
// started the run again, on slices with the record's name prefix, begunAgain returns a
// record of that run, otherwise nil.
func begunAgain(ctx context.Context, d Deps, rec *record.Record) (*record.Record, error) {
	see, match := lookFor(ctx, d.Reach, rec.Run, rec.Prefix, func(f workers.FoundRun) bool { return isAgain(rec, f) })
	var none *tpu.NoSlicesError
	if len(match) == 0 && (see.err == nil || errors.As(see.err, &none)) {
		return nil, nil
	}
	if len(match) == 0 {
		return nil, see.err
	}
	f, other := choose(match)
	if other != nil {
		return nil, several(rec.Run, f, *other, see.slices)
	}
	now := recordOf(d, f, see)
	now.Prefix, now.Partial, now.KeepGoing, now.SecretEnv = rec.Prefix, rec.Partial, rec.KeepGoing, rec.SecretEnv
	besides(now, rec)
	return now, nil
}

// besides copies the attempts of an older record of the same name into rec. It also gives rec
// a directory in which its logs do not mix with those of the older attempts.
func besides(rec, older *record.Record) {
	rec.Attempts, rec.LogDir = older.Attempts, older.Place(rec.Attempt, rec.Slices, rec.LogDir, false)
}

// isAgain reports whether a run on other slices is the recorded run, started again. If the
// job made the slices, they have the run's name. On them an ended run counts, too, because
// its logs may exist only there. Several users may share other slices. A run there must be
// active and have the same owner.
func isAgain(r *record.Record, f workers.FoundRun) bool {
	if f.Info.Run != r.Run || !f.Info.Mine || f.Info.Phase == launch.Aborted {
		return false
	}
	return r.Prefix == r.Run || f.Info.Alive() && f.Info.Owner == r.Owner
}

// several returns the error about two runs of one name.
func several(name string, a, b workers.FoundRun, ready []tpu.Slice) error {
	return &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("several runs are called %q: %s and %s", name, text(a, ready), text(b, ready)),
		Advice: "say which slices with --tpu-prefix=P"}
}

// notBegun returns the error about a job that has only a queued resource and no run on a
// worker: the job waits, or its runner ended during the wait. notBegun returns nil if there
// is no such resource.
func notBegun(ctx context.Context, d Deps, name string) error {
	if d.OnHosts() {
		return nil
	}
	res, err := d.Cloud.Get(ctx, name)
	if err != nil || !res.IsOf(name) {
		return nil
	}
	return &notBegunError{res: res, err: &stage.Error{Stage: stage.Discover, Text: fmt.Sprintf("no worker knows of run %q, but %s was made for it, %s", name, provision.NameOf(d.Cloud, res.ID), res.Standing()),
		Advice: "typing the same job again goes on with it; " + teardown.Hint(d.Reach, res.ID)}}
}

// notBegunError says that a queued resource was made for the run, but no worker knows the
// run.
type notBegunError struct {
	res provision.Resource
	err *stage.Error
}

func (e *notBegunError) Error() string { return e.err.Error() }
func (e *notBegunError) Unwrap() error { return e.err }

// choose returns the run that the user means among runs of one name: the active one, or
// else the newest. other is a run that the user could also mean: another active one, or one
// on other workers. The number of an attempt does not count: a worker can claim any number.
func choose(match []workers.FoundRun) (f workers.FoundRun, other *workers.FoundRun) {
	at := max(0, slices.IndexFunc(match, func(f workers.FoundRun) bool { return f.Info.Alive() }))
	f = match[at]
	for i, o := range match {
		if i == at {
			continue
		}
		if o.Info.Alive() {
			return f, &match[i]
		}
		known := 0
		for _, id := range o.Workers {
			if slices.Contains(f.Workers, id) {
				known++
			}
		}
		// A run whose workers are a subset of f's is an earlier run that f has replaced. If
		// a run shares only some workers with f, f has replaced it only if f is active. If
		// neither is active, the user may mean either.
		if known == 0 || known < len(o.Workers) && !f.Info.Alive() {
			return f, &match[i]
		}
	}
	return f, nil
}

// text describes a run for people.
func text(f workers.FoundRun, all []tpu.Slice) string {
	state := string(f.Info.Phase)
	if f.Info.Exit != nil {
		state = f.Ended()
	}
	return fmt.Sprintf("attempt %d of %s on %s (%s)", f.Info.Attempt, f.Info.Owner, sliceNames(all, f), state)
}

func sliceNames(all []tpu.Slice, f workers.FoundRun) string {
	names := make([]string, len(f.Workers))
	for i, id := range f.Workers {
		names[i] = all[id.Slice].Name
	}
	return strings.Join(names, ", ")
}

// Recorded returns the selection of workers for a record, with the record's slice numbers.
// A slice that no longer exists has no workers in sel, and gone has its name.
func Recorded(ctx context.Context, d Deps, rec *record.Record) (sel tpu.Selection, gone []string, err error) {
	if rec.Workload != "" {
		return sel, nil, &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("run %q is a job in a cluster: this command does not reach its pods", rec.Run),
			Advice: "its logs: multihost logs " + rec.Run + "; follow it with: multihost attach " + rec.Run}
	}
	nodes, err := d.Cloud.Slices(ctx)
	if err != nil {
		return sel, nil, fmt.Errorf("list slices in %q: %w", d.Zone, err)
	}
	for i, want := range rec.Slices {
		s := tpu.Slice{Name: want.Name, UID: want.UID}
		for _, n := range nodes {
			if n.Name == want.Name && n.UID == want.UID {
				s = n
			}
		}
		if len(s.Workers) == 0 {
			if p, ok := provision.As[provision.Partial](d.Cloud); ok && p.Unseen(want.Provider) != nil {
				return sel, nil, fmt.Errorf("read slice %q: %w", want.Name, p.Unseen(want.Provider))
			}
			gone = append(gone, want.Name)
		}
		s.Index = i
		sel.Slices = append(sel.Slices, s)
	}
	return sel, gone, nil
}

// AttachOptions say how to find the run and how to follow it.
type AttachOptions struct {
	Prefix     string // name prefix of the slices to look at; "" means all
	Grace      time.Duration
	StrictExit bool
	Patience   follow.Patience
	Watch      follow.WatchOptions

	// Secret returns the value of a variable in this machine's environment. Attach masks
	// the values of variables that were secret when the run started.
	Secret func(name string) (value string, ok bool)
}

// secrets returns the variables of the run with values to mask, and the names of those
// whose values this machine does not know.
func (o AttachOptions) secrets(rec *record.Record) (known []config.EnvVar, unknown []string) {
	for _, name := range rec.SecretEnv {
		if value, ok := o.Secret(name); ok {
			known = append(known, config.EnvVar{Name: name, Value: value, Secret: true})
		} else {
			unknown = append(unknown, name)
		}
	}
	return known, unknown
}

// Attach follows a run, which this or another machine has started, to its end. An interrupt
// does not stop the run.
func Attach(ctx context.Context, d Deps, name string, o AttachOptions) (out stage.Outcome, err error) {
	defer func() { d.CloseJournal(out, err) }()
	if r, err := FindBucketRun(ctx, d, name); err != nil || r != nil {
		if err != nil {
			return stage.Outcome{}, err
		}
		return r.attach(ctx, o)
	}
	rec, err := Locate(ctx, d, name, o.Prefix)
	if err != nil {
		return stage.Outcome{}, err
	}
	return attachTo(ctx, d, rec, o)
}

// attachTo follows the run of a record over SSH and emits its summary.
func attachTo(ctx context.Context, d Deps, rec *record.Record, o AttachOptions) (stage.Outcome, error) {
	out, sum, err := attachOver(ctx, d, rec, o)
	if sum != nil {
		d.Sink.Emit(*sum)
	}
	return out, err
}

// attachOver follows the run of a record over SSH. The caller emits sum, unless it is nil.
func attachOver(ctx context.Context, d Deps, rec *record.Record, o AttachOptions) (out stage.Outcome, sum *event.Summary, err error) {
	name, watch := rec.Run, stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	sel, gone, err := Recorded(ctx, d, rec)
	if err != nil {
		return stage.Outcome{}, nil, err
	}
	if len(gone) == len(sel.Slices) && rec.Bucket == "" && rec.Prefix != "" {
		if now, err := begunAgain(ctx, d, rec); err == nil && now != nil {
			return attachOver(ctx, d, now, o)
		}
	}
	if len(gone) > 0 {
		return stage.Outcome{}, nil, &stage.Error{Stage: stage.Discover, Text: fmt.Sprintf("slices of run %q are gone: %s", name, strings.Join(gone, ", ")),
			Advice: "its logs, as far as they came here: multihost logs " + name + "; to end what may be left of it: multihost stop " + name}
	}
	t, err := d.ConnectPhase(ctx, &watch, sel, nil)
	if err != nil {
		return stage.Outcome{}, nil, err
	}
	defer t.Close()
	known, lives, err := NewestAttempt(ctx, d, t, rec)
	if err != nil {
		return stage.Outcome{}, nil, err
	}
	if rec.Bucket == "" { // with a bucket, the workers need no lease to delete the slices
		held := renewal.Attach(ctx, renewal.Deps{Reach: d.Reach, Agents: d.Agents}, t, name)
		defer func() { teardown.SayBilled(ctx, d.Reach, name, t.Slices, held()) }()
	}
	end := renewal.End{}
	defer end.Warn(ctx, d.Reach, t.Slices)()
	if err := d.MakeLogs("attach", rec.LogDir, rec.MakeLogDir); err != nil {
		return stage.Outcome{}, nil, err
	}
	secrets, unknown := o.secrets(rec)
	if len(unknown) > 0 {
		event.Notef(d.Sink, event.Warn, "export "+strings.Join(unknown, " ")+", then attach again",
			"the value of %s is secret and not known here: if the command prints it, it is shown", strings.Join(unknown, ", "))
	}
	d.OpenJournal(rec.Run, "attach", secrets)
	d.Sink.Emit(rec.AttemptEvent())
	event.Notef(d.Sink, event.Info, "", "run %s, attempt %d: logs in %s; %s", rec.Run, rec.Attempt, rec.LogDir, d.WhatCtrlCDoes(false))
	partly := sayUnstarted(d, t, known, rec) // if true, a failure on one worker does not stop the others
	f := &follow.Following{Deps: follow.Deps{Reach: d.Reach, Keeper: d.Keeper}, Workers: t, Ref: launch.Ref{Run: rec.Run, Attempt: rec.Attempt}, Rec: rec, Watch: &watch,
		FailFast: !rec.KeepGoing && !partly && lives, Grace: o.Grace, Strict: o.StrictExit, Patience: o.Patience, Attached: true, Watching: o.Watch,
		Secrets: mask.MaskedWords(secrets), Deletes: rec.Unseen != nil} // do not mark the run as seen if only a part of it was seen
	out, err = f.Do(ctx)
	if err == nil {
		err = EndOf(f)
	}
	if f.Sum != nil && len(unknown) > 0 {
		f.Sum.LastLines = nil // the journal would keep these lines without a mask
	}
	return out, f.Sum, err
}

// EndOf returns the error for a command that has followed a run. It returns an error if only
// a part of the run succeeded, if the run's runner stopped the command, or if the provider
// took the slices away at the end of their time. EndOf then also changes f.Sum to match. It
// returns nil if the exit status of the run's command counts.
func EndOf(f *follow.Following) error {
	if f.Sum == nil || f.Sum.OK {
		return endOfAPart(f)
	}
	err := endOfRunner(f)
	if f.SliceGone() {
		if taken := renewal.Taken(f.Workers.Slices, f.Clock.Now()); taken != nil {
			err, f.Sum.Text = taken, fmt.Sprintf("run %s ended: %v", f.Sum.Run, taken)
		}
	}
	if err != nil && f.ExitStatus != nil {
		f.Sum.ExitCode = f.ExitStatus(err)
	}
	return err
}

// endOfRunner returns the error with which the run's runner ended. It returns nil if the
// exit status of the run's command counts.
func endOfRunner(f *follow.Following) error {
	_, first := f.Verdict()
	if first < 0 || f.Rec.Bucket != "" { // the bucket says how a job without runner ended
		return nil
	}
	return stage.EndOfRunner(f.Ends[first].Exit.Reason)
}

// NewestAttempt updates rec if the workers know a newer attempt, which another machine may
// have started. The result known has the workers that know the attempt or did not answer. If
// no worker reports the attempt, known has all workers. lives reports whether the attempt
// may be active on a worker. NewestAttempt returns an error if the attempt belongs to
// another login, because this login may not read its files.
func NewestAttempt(ctx context.Context, d Deps, t *workers.Connected, rec *record.Record) (known []tpu.WorkerID, lives bool, err error) {
	found, errs := t.Runs(ctx)
	answered := 0
	for _, err := range errs {
		if err == nil {
			answered++
		}
	}
	for _, f := range found {
		if f.Info.Run != rec.Run || f.Info.Attempt <= rec.Attempt {
			continue
		}
		if !f.Info.Mine || len(f.Workers) < answered { // the start was interrupted, or one worker makes a false claim
			event.Notef(d.Sink, event.Warn, "multihost stop "+rec.Run+" ends it", "only %s knows an attempt %d of run %s: it is left alone",
				tpu.Fold(f.Workers), f.Info.Attempt, rec.Run)
			continue
		}
		rec.Attempt, rec.Owner, rec.Command, rec.Ended = f.Info.Attempt, f.Info.Owner, f.Info.Command, false
		rec.LogDir = record.RecordDir(d.StateDir, rec.Run, rec.Attempt)
	}
	for i, err := range errs { // a worker that did not answer may know the attempt
		if err != nil {
			known, lives = append(known, t.IDs[i]), true
		}
	}
	heard, mine := false, false
	var theirs workers.FoundRun
	for _, f := range found {
		if f.Info.Run == rec.Run && f.Info.Attempt == rec.Attempt && f.Info.Phase != launch.Aborted {
			known, heard, lives = append(known, f.Workers...), true, lives || f.Info.Alive()
			if mine = mine || f.Info.Mine; !mine {
				theirs = f
			}
		}
	}
	switch {
	case !heard:
		return t.IDs, true, nil
	case !mine:
		return nil, false, theirs.OfAnother(stage.Discover, "add --user="+remote.Quote(theirs.Info.Login))
	}
	return known, lives, nil
}

// sayUnstarted warns about workers on which the run did not start: its runner may have been
// killed during the start. It reports whether there are such workers.
func sayUnstarted(d Deps, t *workers.Connected, known []tpu.WorkerID, rec *record.Record) bool {
	unstarted := slices.DeleteFunc(slices.Clone(t.IDs), func(id tpu.WorkerID) bool { return slices.Contains(known, id) })
	if len(unstarted) == 0 {
		return false
	}
	event.Notef(d.Sink, event.Warn, "end it with: multihost stop "+rec.Run+"; then start it again",
		"run %s, attempt %d, was never started on %s: its start was cut short", rec.Run, rec.Attempt, tpu.Fold(unstarted))
	return true
}

// Stop ends every active attempt of a run on every worker, and checks that no process is
// left. It may be repeated. If the command of a job has not begun, or has ended and its
// slices are kept, Stop deletes the queued resource that the job has made, with its slices.
func Stop(ctx context.Context, d Deps, name string, o StopOptions) error {
	if r, err := FindBucketRun(ctx, d, name); err != nil || r != nil {
		if err != nil {
			return err
		}
		return r.stop(ctx, o)
	}
	rec, err := Locate(ctx, d, name, o.Prefix)
	if err == nil {
		return stopOn(ctx, d, rec, o)
	}
	return stopUnbegun(ctx, d, name, o.Prefix, err)
}

// stopUnbegun deletes the queued resource of a job that no worker knows. why is the error
// of the search on the workers. stopUnbegun returns why if there is no such resource.
func stopUnbegun(ctx context.Context, d Deps, name, prefix string, why error) error {
	var idle *notBegunError
	if errors.As(why, &idle) && idle.res.JobMade() && allAsked(idle.res) && prefix == "" {
		return stopRequest(ctx, d, name, idle.res)
	}
	return why
}

// stopOn ends the run of a record over SSH.
func stopOn(ctx context.Context, d Deps, rec *record.Record, o StopOptions) error {
	name, watch := rec.Run, stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	sel, gone, err := Recorded(ctx, d, rec)
	if err != nil {
		return workers.MayStillRun(&stage.Error{Stage: stage.Stopping, Err: err}, name)
	}
	if len(gone) > 0 {
		event.Notef(d.Sink, event.Info, "", "slices of run %s are gone, nothing runs there: %s", name, tpu.FewNames(gone))
	}
	d.Access.RetryFor = min(d.Access.RetryFor, workers.ReachIn(o.Grace))
	if len(gone) == len(sel.Slices) {
		return stopElsewhere(ctx, d, rec, o)
	}
	t, failed, err := d.Dial(ctx, sel, nil, true)
	if err != nil {
		return workers.MayStillRun(&stage.Error{Stage: stage.Stopping, Err: err}, name)
	}
	defer t.Close()
	var left []kept
	err = watch.Phase("stop", func() (string, error) {
		found, stopped, err := stopNamed(ctx, d, t, name, o.Grace)
		if len(failed) > 0 {
			err = errors.Join(err, workers.MayStillRun(workers.Failures(stage.Stopping, stage.Missing(failed), failed), name))
		}
		if err == nil && !stopped && rec.Bucket == "" {
			left, err = keptOn(ctx, d, t, rec, found)
		}
		err = errors.Join(err, mayRunOn(rec))
		return fmt.Sprintf("run %s: no process of it is left on %s", name, tpu.Fold(t.IDs)), err
	})
	if len(left) == 0 && rec.Bucket == "" {
		teardown.SayBilled(ctx, d.Reach, name, t.Slices, renewal.HeldBy(t, renewal.Looks(ctx, t, d.Agents.Sums(), name)))
	}
	for _, k := range left {
		k.again = func(ctx context.Context) error { return idle(ctx, t, name) }
		err = errors.Join(err, deleteKept(ctx, d, o, k))
	}
	return err
}

// idle returns an error if a run is active on the workers, or if a worker could not be
// asked.
func idle(ctx context.Context, t *workers.Connected, name string) error {
	runs, errs := t.Runs(ctx)
	for _, f := range runs {
		if f.Info.Alive() {
			return &stage.Error{Stage: stage.Stopping, Text: fmt.Sprintf("the slices of run %s stay: run %q of %s lives on %s by now", name, f.Info.Run, f.Info.Owner, tpu.FoldShort(f.Workers))}
		}
	}
	return stage.WorkersError(stage.Stopping, t.IDs, errs)
}

// stopElsewhere stops a job whose recorded slices have gone. The job may have a waiting
// request, or new slices that another machine's runner or a later request has made.
func stopElsewhere(ctx context.Context, d Deps, rec *record.Record, o StopOptions) error {
	if rec.Bucket != "" {
		return nil
	}
	if res, waits := waitingRequest(ctx, d, rec.Run); waits {
		return stopRequest(ctx, d, rec.Run, res)
	}
	if rec.Prefix != "" {
		now, err := begunAgain(ctx, d, rec)
		if err != nil {
			return workers.MayStillRun(&stage.Error{Stage: stage.Stopping, Err: err}, rec.Run)
		}
		if now != nil {
			return stopOn(ctx, d, now, o)
		}
	}
	if d.OnHosts() {
		return nil
	}
	res, err := d.Cloud.Get(ctx, rec.Run)
	if err != nil && gcp.ClassOf(err) != gcp.NotFound {
		return workers.MayStillRun(&stage.Error{Stage: stage.Stopping, Err: err}, rec.Run)
	}
	if err != nil || !res.JobMade() || !res.IsOf(rec.Run) {
		return nil
	}
	there, err := locateOnWorkers(ctx, d, rec.Run, o.Prefix)
	if err != nil {
		return stopUnbegun(ctx, d, rec.Run, o.Prefix, err)
	}
	return stopOn(ctx, d, there, o)
}

// stopNamed stops the active runs of a name on the workers. If it cannot stop one of them,
// it still stops the others. It returns the runs that the workers knew before, and whether
// any of them was active.
//
// stopNamed also marks an ended newest attempt as stopped, because a runner may be about to
// begin the next attempt. A runner becomes visible on a worker before it reads the mark. So
// the second look at the workers finds every attempt that the mark has not stopped.
func stopNamed(ctx context.Context, d Deps, t *workers.Connected, name string, grace time.Duration) (found []workers.FoundRun, any bool, err error) {
	found, errs := t.Runs(ctx)
	stopped := map[launch.Ref]bool{}
	var refused []error
	stop := func(f workers.FoundRun) {
		stopped[f.Info.Ref] = true
		if err := t.StopWith(ctx, d.Sink, f.Info.Ref, launch.StopOptions{Grace: grace, Reason: follow.StopBy + d.Owner, Mark: true}, nil); err != nil {
			refused = append(refused, err)
		}
	}
	stopLiving := func(found []workers.FoundRun) {
		for _, f := range found {
			if f.Info.Run != name || stopped[f.Info.Ref] || !f.Info.Alive() {
				continue
			}
			if err := f.Stoppable(); err != nil {
				refused = append(refused, err)
				continue
			}
			any = true
			stop(f)
		}
	}
	stopLiving(found)
	ended := slices.IndexFunc(found, func(f workers.FoundRun) bool { return f.Info.Run == name && f.Info.Mine && !f.Info.Alive() })
	if ended >= 0 && !slices.ContainsFunc(found, func(f workers.FoundRun) bool { return f.Info.Run == name && f.Info.Phase == launch.Running }) {
		stop(found[ended])
		again, errs := t.Runs(ctx)
		stopLiving(again)
		if any { // the other workers answered before
			refused = append(refused, workers.MayStillRun(stage.WorkersError(stage.Stopping, t.IDs, errs), name))
		}
	}
	if len(stopped) == 0 { // otherwise StopWith has reported the workers that did not answer
		refused = append(refused, workers.MayStillRun(stage.WorkersError(stage.Stopping, t.IDs, errs), name))
	}
	return found, any, errors.Join(refused...)
}

// A Verified compares the local log of one worker with the log on the worker.
type Verified struct {
	Worker string `json:"worker"`
	Bytes  int64  `json:"bytes"`  // bytes in the local file
	Remote int64  `json:"remote"` // bytes in the worker's file
	Same   bool   `json:"same"`   // the local file is whole and equal
	Prefix bool   `json:"prefix"` // the local file is equal up to its end
}

// Verify compares the local log of every worker of a run with the log on the worker, by
// SHA-256, and emits the result. It returns an error if any local log is not whole and
// equal.
func Verify(ctx context.Context, d Deps, name, prefix string) error {
	watch := stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	rec, err := Locate(ctx, d, name, prefix)
	if err != nil {
		return err
	}
	sel, gone, err := Recorded(ctx, d, rec)
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		return &stage.Error{Stage: stage.Discover, Text: "slices are gone with their logs: " + strings.Join(gone, ", ")}
	}
	t, err := d.ConnectPhase(ctx, &watch, sel, nil)
	if err != nil {
		return err
	}
	defer t.Close()
	ref := launch.Ref{Run: rec.Run, Attempt: rec.Attempt}
	rows := make([]Verified, len(t.IDs))
	errs := t.Each(ctx, d.Sink, "verify", func(ctx context.Context, i int) error {
		rows[i] = Verified{Worker: t.IDs[i].String()}
		local, size, err := fileDigest(rec.LogPath(t.IDs[i]))
		if err != nil {
			return err
		}
		state, err := launch.Status(ctx, t.Conns[i], ref)
		if err != nil {
			return err
		}
		remote, n, err := launch.Digest(ctx, t.Conns[i], ref, size)
		if err != nil {
			return err
		}
		rows[i].Bytes, rows[i].Remote = size, state.LogSize
		rows[i].Prefix = n == size && remote == local
		rows[i].Same = rows[i].Prefix && size == state.LogSize
		if !rows[i].Prefix {
			return errors.New("the local log differs from the worker's")
		}
		if !rows[i].Same {
			return fmt.Errorf("the local log has %d of %d bytes", size, state.LogSize)
		}
		return nil
	})
	var b strings.Builder
	for _, r := range rows {
		word := "equal"
		if !r.Same {
			word = "NOT EQUAL"
		}
		fmt.Fprintf(&b, "%s  %d bytes  %s\n", r.Worker, r.Bytes, word)
	}
	d.Sink.Emit(event.Result{Name: "logs_verified", Text: b.String(), Data: rows})
	return cmp.Or(stage.WorkersError(stage.Verify, t.IDs, errs), Part(rec, stage.Verify, "multihost logs "+name+" --verify"))
}

func fileDigest(path string) (sum string, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	hash := sha256.New()
	size, err = io.Copy(hash, file)
	return hex.EncodeToString(hash.Sum(nil)), size, err
}

// ForgetHostKey removes the pinned host key of one worker. It reports whether there was
// one.
func ForgetHostKey(ctx context.Context, d Deps, prefix string, numbers tpu.Numbers, id tpu.WorkerID) (removed bool, err error) {
	sel, err := d.Discover(ctx, prefix, numbers, true)
	if err != nil {
		return false, err
	}
	if id.Slice >= len(sel.Slices) || id.Worker >= len(sel.Slices[id.Slice].Workers) {
		return false, &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("%s has no worker %s", workers.Describe(sel), id)}
	}
	return d.Access.Forget(sel.Slices[id.Slice], id)
}
