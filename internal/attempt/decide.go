package attempt

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/hosts"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/record"
	"multihost/internal/settings"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A Decision has all that an attempt will do. The decider makes it before the first change,
// from reads alone. A run carries it out, and a dry run shows it. Neither decides anything
// else.
type Decision struct {
	attempt int
	living  *workers.FoundRun // attempt of this run to take over; if set, the fields below are unused
	evict   []eviction        // runs to stop first

	record   *record.Record
	env      []config.EnvVar // the user's variables and the compiler's flags
	commands []launch.Spec   // each worker's command, without the words that bind it to a NUMA node
	targets  []codesync.Target
	tune     bool // run the preflight
	tuning   settings.Options
	free     launch.FreeOptions
}

// An eviction is the stop of a run that holds the workers.
type eviction struct {
	workers.FoundRun
	reason string
}

func (d *Decision) ref(run string) launch.Ref { return launch.Ref{Run: run, Attempt: d.attempt} }

// A decider decides about the next attempt on connected workers.
type decider struct {
	*Run
	history *History
	workers *workers.Connected
	yields  bool // it may still wait for another runner of the same run
}

// decide makes the decision. Before the workers exist, it assumes that no runs exist.
func (r *decider) decide(ctx context.Context) (*Decision, error) {
	in := &Decision{attempt: r.history.next(record.LastLocalAttempt(r.StateDir, r.O.Run))}
	if r.workers.HangUp != nil {
		runs, err := r.runsOfAll(ctx)
		if err != nil {
			return nil, err
		}
		if err := r.settleWith(in, runs); err != nil {
			return nil, err
		}
	}
	if in.living != nil {
		in.attempt = in.living.Info.Ref.Attempt
	} else if err := r.compilerFlags(in); err != nil {
		return nil, err
	}
	var err error
	if in.record, err = r.newRecord(in.attempt, in.living != nil); err != nil {
		return nil, err
	}
	in.targets = r.workers.Targets(r.Access.Port)
	in.commands = make([]launch.Spec, len(r.workers.IDs))
	for i := range r.workers.IDs {
		in.commands[i] = r.command(in, i)
	}
	in.tune = r.O.Preflight != "off" || r.O.NUMA != preflight.NUMAOff
	in.tuning = settings.Options{
		Check:    r.O.Preflight == "check" || r.O.Preflight == "off",
		Require:  r.O.Preflight == "require",
		Ignore:   r.O.Preflight == "off",
		Platform: r.O.Platform,
		Install:  r.O.Install,
	}
	in.free = launch.FreeOptions{Policy: r.O.KillStale, Grace: r.O.Grace}
	return in, nil
}

// runsOfAll returns the runs that the workers know. It cannot read all workers at one
// moment. If another runner starts its command during the read, workers that were read
// early do not have the attempt yet, as if they had lost it. An attempt runs on no worker
// before it is prepared on all. So runsOfAll reads again after it has seen the attempt
// running: a worker that still does not have it has lost it.
func (r *decider) runsOfAll(ctx context.Context) ([]workers.FoundRun, error) {
	for seen := !r.Job; ; seen = true {
		runs, errs := r.workers.Runs(ctx)
		for i := range errs {
			if r.workers.IsAway(i) {
				errs[i] = nil
			}
		}
		if err := failed(ctx, stage.Busy, r.workers, errs); err != nil {
			return nil, err
		}
		if seen || !slices.ContainsFunc(runs, func(f workers.FoundRun) bool {
			return f.Info.Ref.Run == r.O.Run && f.Info.Phase == launch.Running && len(f.Workers) < r.workers.Reached()
		}) {
			return runs, nil
		}
	}
}

// settleWith decides about the runs that the workers know.
func (r *decider) settleWith(in *Decision, runs []workers.FoundRun) error {
	for _, f := range runs {
		if err := r.history.stoppedSince(f.Stopped, 0, r.Clock); err != nil && f.Info.Ref.Run == r.O.Run && f.Info.Mine {
			return err
		}
	}
	c := claimant{
		run: r.O.Run, owner: r.Owner, adopts: r.Job, replace: r.O.Replace,
		tried: r.history.Tried, last: r.history.Last, cutOff: r.history.CutOff, yields: r.yields, elsewhere: r.history.elsewhere(r.workers.Slices),
	}
	occupants := make([]occupant, len(runs))
	newest := true
	for i, found := range runs { // the newest comes first
		occupants[i].FoundRun = found
		if found.Info.Ref.Run == r.O.Run {
			occupants[i].unseen, occupants[i].differs = r.unseen(found, newest), r.sameCommand(found)
			newest = newest && found.Info.Phase == launch.Aborted
		}
	}
	s, err := c.settle(in.attempt, occupants)
	in.attempt, in.living, in.evict = s.attempt, s.living, s.evict
	return err
}

// unseen reports whether all workers that answer have an attempt of this run whose end
// nobody has seen. The attempt is running, or it ended while no runner was there. If this
// machine has no record of an attempt that has ended, the attempt is unseen only if it is the
// newest, has succeeded, and no runner has marked it. A runner that sees a success marks it on
// the workers, unless it deletes the slices next.
func (r *decider) unseen(found workers.FoundRun, newest bool) bool {
	if !found.Info.Mine || len(found.Workers) < r.workers.Reached() {
		return false
	}
	if found.Info.Alive() {
		return true
	}
	rec, err := record.LoadRecord(r.StateDir, r.O.Run)
	if err == nil && rec != nil && rec.Attempt == found.Info.Ref.Attempt {
		if !rec.Ended {
			return found.Info.Phase == launch.Exited
		}
		if slices.Equal(record.SliceIDs(rec.Slices), record.SliceIDs(record.SlicesOf(r.workers.Slices))) {
			return false
		}
	}
	return newest && found.Well == len(found.Workers) && !found.Seen
}

// sameCommand returns an error if the attempt has another command.
func (r *decider) sameCommand(found workers.FoundRun) error {
	want := launch.Spec{Argv: r.O.Argv, Script: r.O.Script, Env: LaunchEnv(r.O.Env)}.Title()
	asked := want
	if found.Info.Venv != r.O.Venv {
		asked += map[bool]string{true: " in a virtual environment (--venv)", false: " without a virtual environment (--venv=false)"}[r.O.Venv]
	} else if found.Info.Command == want {
		return nil
	}
	if !found.Info.Alive() {
		return &stage.Error{
			Stage: stage.Busy,
			Text: fmt.Sprintf("run %q of %s ended on %s while nobody followed it: %s; you asked for another command: %s",
				found.Info.Run, found.Info.Owner, tpu.Fold(found.Workers), found.Info.Command, asked),
			Advice: "see how it ended with: multihost attach " + found.Info.Run + "; to start this one all the same, add --replace",
		}
	}
	return busy(found, fmt.Sprintf("; you asked for another command: %s", asked))
}

func busy(found workers.FoundRun, differs string) error {
	return &stage.Error{
		Stage:  stage.Busy,
		Text:   fmt.Sprintf("run %q of %s lives on %s, started %s ago: %s%s", found.Info.Run, found.Info.Owner, tpu.Fold(found.Workers), event.Age(found.Info.Age()), found.Info.Command, differs),
		Advice: "follow it with: multihost attach " + found.Info.Run + "; to stop it and start this one, add --replace",
	}
}

// compilerFlags adds the requested compiler flags to the command's environment.
func (r *decider) compilerFlags(in *Decision) error {
	vars, err := r.xlaFlags(r.workers.Slices[0].Type)
	in.env = append(in.env, r.O.Env...)
	in.env = append(in.env, vars...)
	return err
}

// command returns the command for worker i.
func (r *decider) command(in *Decision, i int) launch.Spec {
	set, unset := r.environment(i)
	s := launch.Spec{
		Run: r.O.Run, Attempt: in.attempt, Owner: r.Owner, Slices: len(r.workers.Slices), WorkDir: r.O.Run,
		Argv: r.O.Argv, Script: r.O.Script, Env: LaunchEnv(append(set, in.env...)), Unset: unset, MaxLog: r.O.MaxLog, Stored: r.stored(),
		Code: r.O.UseExisting, Venv: r.O.Venv,
	}
	if r.O.Venv {
		s.Unset = append(s.Unset, launch.VenvUnset...)
	}
	if r.O.Skew == SkewCheck || r.O.Skew == SkewWarn {
		s.Python = pythonOf(r.O.Argv, r.O.Script)
	}
	if r.Tree != nil {
		s.Synced = r.Tree.Digest
	}
	if n := r.O.Processes; n > 1 {
		s.Processes, s.FirstProcess, s.Grace = n, i*n, r.O.Grace
	}
	return s
}

// environment returns the variables of worker i's command besides the user's, and the names
// of variables that the command must not inherit.
//
// The MEGASCALE variables tell each slice of the others. Slices of one multi-node queued
// resource have them in their metadata. A variable would override the metadata, so
// inherited ones are removed. Slices that were made separately, or are only a part of a
// queued resource, need all four. A single slice must have none.
func (r *decider) environment(i int) (set []config.EnvVar, unset []string) {
	id, s := r.workers.IDs[i], r.workers.Slice(i)
	coordinator := r.workers.Address(0)
	num := strconv.Itoa
	add := func(name, value string) { set = append(set, config.EnvVar{Name: name, Value: value}) }
	add("MULTIHOST_SLICE_ID", num(id.Slice))
	add("MULTIHOST_NUM_SLICES", num(len(r.workers.Slices)))
	add("MULTIHOST_WORKER_ID", num(id.Worker))
	add("MULTIHOST_NUM_WORKERS", num(len(s.Workers)))
	per := max(1, r.O.Processes)
	add("MULTIHOST_PROCESS_ID", num(i*per))
	add("MULTIHOST_NUM_PROCESSES", num(len(r.workers.IDs)*per))
	add("MULTIHOST_LOCAL_ID", "0")
	add("MULTIHOST_COORDINATOR_IP", coordinator)
	add("MULTIHOST_WORKER_IP", r.workers.Address(i))
	if r.O.MaxText { // MaxText's startup script takes them from the metadata
		add("SLICE_ID", num(id.Slice))
		add("WORKER_ID", num(id.Worker))
		add("NODE_ID", s.Name)
		add("ZONE", r.Zone)
		add("PROJECT", r.Project)
	}
	if r.OnHosts() { // no metadata tells JAX the number of its process
		add("JAX_COORDINATOR_ADDRESS", net.JoinHostPort(coordinator, num(hosts.JaxPort)))
		add("JAX_NUM_PROCESSES", num(len(r.workers.IDs)*per))
		add("JAX_PROCESS_ID", num(i*per))
	}
	if len(r.workers.Slices) > 1 && !r.oneQueuedResource() {
		add("MEGASCALE_COORDINATOR_ADDRESS", coordinator)
		add("MEGASCALE_NUM_SLICES", num(len(r.workers.Slices)))
		add("MEGASCALE_SLICE_ID", num(id.Slice))
		add("MEGASCALE_PORT", "8081")
		return set, nil
	}
	return set, []string{"MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_PORT"}
}

// oneQueuedResource reports whether the slices are exactly those of one multi-node queued
// resource, so that their metadata are right. The last number in each name shows whether an
// earlier slice is missing.
func (r *decider) oneQueuedResource() bool {
	for i, s := range r.workers.Slices {
		if !s.MultiSlice || s.QueuedResource != r.workers.Slices[0].QueuedResource || !strings.HasSuffix(s.Name, "-"+strconv.Itoa(i)) {
			return false
		}
	}
	return !r.O.AllowPartial && r.O.Slices == nil
}

// newRecord returns the record of an attempt that this command begins or takes over, with
// the attempts before it. It changes no file.
func (r *decider) newRecord(attempt int, takenOver bool) (*record.Record, error) {
	rec := &record.Record{
		Run: r.O.Run, Attempt: attempt, Project: r.Project, Zone: r.Zone, Prefix: r.O.Prefix,
		Partial: r.O.AllowPartial, Login: r.Access.Login, Owner: r.Owner, Created: r.Clock.Now().UTC(),
		Command: CommandText(r.O), Workers: len(r.workers.IDs), Hosts: r.Hosts(), Cluster: r.Cluster, Slices: record.SlicesOf(r.workers.Slices),
		KeepGoing: !r.O.FailFast, Work: r.Work(),
	}
	for _, v := range r.O.Env {
		if v.Secret {
			rec.SecretEnv = append(rec.SecretEnv, v.Name)
		}
	}
	dir := record.RecordDir(r.StateDir, r.O.Run, attempt)
	if r.O.LogDir != "" {
		dir = record.AttemptDir(r.O.LogDir, attempt)
	}
	old, err := record.LoadRecord(r.StateDir, r.O.Run)
	if takenOver {
		rec.Work = workOf(old, rec)
	}
	if err == nil && old != nil {
		rec.Attempts = old.Attempts
		dir = old.Place(attempt, rec.Slices, dir, r.O.LogDir != "")
	}
	if rec.LogDir, err = filepath.Abs(dir); err != nil {
		return nil, &stage.Error{Stage: stage.Local, Err: err}
	}
	return rec, nil
}

// workOf returns the Work of the attempt of rec, which is taken over, or "". Only the
// record of the runner that began it has the Work, because the code of this machine may
// have changed since.
func workOf(old, rec *record.Record) string {
	if old == nil || old.Attempt != rec.Attempt || !slices.Equal(record.SliceIDs(old.Slices), record.SliceIDs(rec.Slices)) {
		return ""
	}
	return old.Work
}
