// Package workloadrun follows runs that are workloads of a cluster. The run has a record, a
// journal and logs on this machine, as other runs have, and ends with the status of the
// command. The cluster starts the command, restarts it, and needs no runner.
//
// # Decisions
//
//   - The name of the workload is the name of the run. The UID of its JobSet tells two runs
//     of one name apart.
//   - An attempt usually has the number of restarts plus one, as MULTIHOST_ATTEMPT says. If
//     Kueue takes the quota and gives it back, the number of restarts stays. The new attempt
//     then gets the next free number. The record has the UIDs of an attempt's pods, so that
//     each command on this machine uses the same numbers.
//   - If several commands on this machine follow a run, the one with the lock copies the logs.
//     The others only show the output.
//   - A stop deletes the workload, because a cluster offers no other way to end it. Output that
//     nobody has read would then be lost, so the command first connects to the pods.
package workloadrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/workload"
	"multihost/internal/workloads"
)

// Deps holds what all functions of this package need.
type Deps struct {
	*record.Keeper
	Cluster *workloads.Cluster
	At      record.Cluster // the same cluster, for the record
	Project string         // project of the cluster; "": unknown
	Zone    string
}

// Options say how a run is followed.
type Options struct {
	Ours   bool   // this command made the workload; if the user does not answer the Ctrl-C prompt, the run ends
	LogDir string // directory for the logs; "": that of the run
	Stop   string // why the run is to be stopped at once; "": it is not
}

// StoppedCode is the exit status of a run that somebody has stopped. A command that SIGTERM
// has ended has the same status.
const StoppedCode = 128 + 15

// Find returns the workload and the record of a run. w is nil if the cluster has no such
// workload. rec is nil if this machine has no record of the run as a workload. For a run on held
// slices, both are nil.
func Find(ctx context.Context, d Deps, name string) (w *workloads.Workload, rec *record.Record, err error) {
	rec, err = record.LoadRecord(d.StateDir, name)
	if err != nil {
		return nil, nil, err
	}
	if rec != nil && rec.Workload == "" && rec.Cluster != nil { // the run is on held slices
		return nil, nil, nil
	}
	if rec != nil && rec.Workload == "" {
		rec = nil
	}
	w, err = d.Cluster.Find(ctx, name)
	return w, rec, err
}

// Check returns an error if this machine cannot keep a new run of this name. Either another kind
// of run with this name has not ended, or the directory for the logs has logs of another run.
func Check(d Deps, name string, o Options) error {
	old, err := record.LoadRecord(d.StateDir, name)
	if err != nil {
		return err
	}
	if old != nil && old.Workload == "" && !old.Over() {
		return &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("run %q on this machine is no job in a cluster, and nobody here saw its end", name),
			Advice: "choose another name with --run-name=NAME; or see how it ends: multihost attach " + name}
	}
	if o.LogDir == "" {
		return nil
	}
	rec := record.Record{LogDir: o.LogDir}
	if err := rec.CheckLogDir(); err != nil {
		return err
	}
	return rec.Unused()
}

// Keep writes the record of a run that nobody follows yet. Commands on this machine then find the
// run by its name.
func Keep(ctx context.Context, d Deps, name string, o Options) error {
	w, rec, err := Find(ctx, d, name)
	if err != nil || w == nil {
		return err
	}
	return d.recordOf(w, rec, o).Save(d.StateDir)
}

// Follow follows a run to its end. Each worker's output goes to a file of the run and to the
// sink. The outcome has the status of the command. If ctx ends, the run goes on, unless the cause
// of ctx asks for a stop. Follow then stops the run and waits for its end.
func Follow(ctx context.Context, d Deps, name string, o Options) (out stage.Outcome, err error) {
	w, rec, err := Find(ctx, d, name)
	if err != nil && ctx.Err() != nil && o.Ours { // a signal has come since the workload was made
		w, rec, err = findAnyhow(ctx, d, name)
	}
	switch {
	case err != nil:
		return stage.Outcome{}, err
	case rec != nil && rec.Over() && (w == nil || w.UID == rec.Workload && !rec.Cut):
		return d.ended(rec), nil
	case w == nil:
		_, err := d.Cluster.Status(ctx, name) // its error says what there is in place of the workload
		return stage.Outcome{}, err
	}
	if rec == nil || rec.Workload != w.UID {
		rec = d.recordOf(w, rec, o)
	}
	release, owned, err := d.own(name)
	if err != nil {
		return stage.Outcome{}, err
	}
	defer release()
	if owned {
		d.OpenJournal(name, rec.Command, nil)
		defer func() { d.CloseJournal(out, err) }()
		if err := rec.Save(d.StateDir); err != nil {
			return stage.Outcome{}, err
		}
	} else {
		event.Notef(d.Of.Sink, event.Info, "", "another command on this machine copies the logs of run %s", name)
	}
	f := &following{Deps: d, Options: o, copies: owned, ids: rec.IDs(), base: d.base(rec, o), begin: d.Of.Clock.Now(), opened: make(chan struct{}, 2*rec.Workers), workload: w,
		rec: rec, numbers: map[int]int{}, first: map[string]string{}}
	return f.do(ctx)
}

// findLimit limits how long Follow looks for its new workload after a signal.
const findLimit = 10 * time.Second

// findAnyhow calls Find although ctx has ended.
func findAnyhow(ctx context.Context, d Deps, name string) (*workloads.Workload, *record.Record, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), findLimit)
	defer cancel()
	return Find(ctx, d, name)
}

// base returns the directory for the logs of the first attempt of a run. The directories of later
// attempts are below it.
func (d Deps) base(rec *record.Record, o Options) string {
	if o.LogDir != "" {
		return o.LogDir
	}
	if n := len(rec.Attempts); n > 0 && rec.Attempts[n-1].Attempt == 1 {
		return rec.Attempts[n-1].LogDir
	} else if n > 0 {
		return filepath.Dir(rec.Attempts[n-1].LogDir)
	}
	return record.RecordDir(d.StateDir, rec.Run, 1)
}

// recordOf returns the record of a run that this machine follows for the first time. old is
// the record of an earlier workload of the same name, or nil. The result keeps the attempts
// of old.
func (d Deps) recordOf(w *workloads.Workload, old *record.Record, o Options) *record.Record {
	rec := &record.Record{Run: w.Name, Project: d.Project, Zone: d.Zone, Owner: w.User, Created: w.Created, Command: w.Command,
		Workers: w.Slices * w.Workers, Cluster: &d.At, Workload: w.UID, KeepGoing: true, LogDir: o.LogDir}
	if o.Ours {
		rec.Owner = d.Owner
	}
	if rec.LogDir == "" {
		rec.LogDir = record.RecordDir(d.StateDir, w.Name, 1)
	}
	if old != nil {
		rec.Attempt, rec.Attempts = old.Attempt, old.Attempts
	}
	for i := range w.Slices {
		rec.Slices = append(rec.Slices, record.Slice{Name: workload.SliceName(w.Name, i), Workers: w.Workers})
	}
	return rec
}

// ended reports the end of a run from its record.
func (d Deps) ended(rec *record.Record) stage.Outcome {
	out := stage.Outcome{Code: rec.Code, Started: true, PartLogs: rec.Cut}
	sum := event.Summary{Run: rec.Run, Attempt: rec.Attempt, OK: rec.Code == 0, ExitCode: out.Status(), CommandCode: rec.Code, LogDir: rec.LogDir,
		Text: fmt.Sprintf("run %s succeeded on %s", rec.Run, follow.OnAll(rec.Workers))}
	if rec.Code != 0 {
		sum.Text = fmt.Sprintf("run %s has ended with exit status %d", rec.Run, rec.Code)
		if n := len(rec.Attempts); n > 0 && rec.Attempts[n-1].Why != "" {
			sum.Text += ": " + rec.Attempts[n-1].Why
		}
	}
	d.Of.Sink.Emit(sum)
	return out
}

// own takes the lock for copying a run's logs. The lock ends with release or with the process.
// owned is false if another process has the lock.
func (d Deps) own(run string) (release func(), owned bool, err error) {
	dir := record.RunDir(d.StateDir, run)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, &stage.Error{Stage: stage.Local, Err: err, Advice: "choose another place with --state-dir=DIR"}
	}
	file, err := os.OpenFile(filepath.Join(dir, "copying"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, &stage.Error{Stage: stage.Local, Err: err, Advice: "choose another place with --state-dir=DIR"}
	}
	taken, err := record.TryLock(file)
	if err != nil && !taken { // the file system has no locks
		event.Notef(d.Of.Sink, event.Debug, "", "lock the logs of run %s: %v", run, err)
	}
	return func() { file.Close() }, !taken, nil
}

// Stop copies the output of a run to this machine, ends the run, and returns when its pods are
// gone.
func Stop(ctx context.Context, d Deps, name string) error {
	w, rec, err := Find(ctx, d, name)
	switch {
	case err != nil:
		return err
	case w == nil && rec != nil && rec.Over():
		event.Notef(d.Of.Sink, event.Info, "", "run %s has ended already: exit status %d", name, rec.Code)
		return nil
	case w == nil:
		return stage.NoRun(fmt.Sprintf("the cluster has no workload %q", name), "list the runs with: multihost ps "+d.Cluster.Flags)
	case w.Ended:
		event.Notef(d.Of.Sink, event.Info, "delete what is left of it: multihost workload delete "+name+" "+d.Cluster.Flags, "run %s has ended already", name)
		return nil
	}
	_, err = Follow(ctx, d, name, Options{Stop: "multihost stop, by " + d.Owner})
	return err
}

// numberOf returns the attempt number of a pod. past are the recorded attempts. taken are the
// numbers that this command has already given. A pod that is not recorded belongs to the
// workload's last recorded attempt if that attempt has no pod of the worker yet, because an
// earlier command may have ended before this pod wrote. Otherwise the pod gets a new number.
func numberOf(past []record.PastAttempt, workload string, p workload.Pod, taken []int) int {
	worker, next, last := p.Worker.String(), p.Restart+1, -1
	for i, a := range past {
		if a.Workload == workload && a.Pods[worker] == p.UID {
			return a.Attempt
		}
		if a.Workload == workload {
			last = i
		}
		next = max(next, a.Attempt+1)
	}
	if last >= 0 && past[last].Restart == p.Restart && past[last].Pods[worker] == "" && !slices.Contains(taken, past[last].Attempt) {
		return past[last].Attempt
	}
	return next
}

// leaves reports whether the run goes on when this command ends because of cause. ours says that
// this command made the workload.
func leaves(cause error, ours bool) bool {
	var in *stage.Interrupted
	return !errors.As(cause, &in) || in.Detaches(ours)
}
