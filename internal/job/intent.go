package job

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// An intent is the decision about all that an attempt will do. It is made by reading
// only, before anything is changed. A run carries it out and a dry run shows it;
// neither has another source for what it does.
type intent struct {
	attempt int
	living  *foundRun  // an attempt of this run that is taken over; if set, nothing below is done
	evict   []eviction // runs on the workers that are stopped first

	record   *Record
	env      []config.EnvVar // the user's own variables and the compiler's flags
	commands []launch.Spec   // by worker; without the words that bind to a NUMA node
	targets  []codesync.Target
	tune     bool // the preflight is done
	tuning   PreflightOptions
	free     launch.FreeOptions
}

// An eviction is the stop of a run that occupies the workers.
type eviction struct {
	foundRun
	reason string
}

// decide makes the intent of the next attempt on the team. If the workers do not exist
// yet, the team has no connections, and decide assumes that no runs exist.
func (r *run) decide(ctx context.Context) (*intent, error) {
	in := &intent{attempt: r.nextAttempt()}
	if r.team.hangUp != nil {
		runs, err := r.runsOfAll(ctx)
		if err != nil {
			return nil, err
		}
		if err := r.settleWith(in, runs); err != nil {
			return nil, err
		}
	}
	if in.living != nil {
		in.attempt = in.living.info.Ref.Attempt
	} else if err := r.compilerFlags(in); err != nil {
		return nil, err
	}
	var err error
	if in.record, err = r.newRecord(in.attempt); err != nil {
		return nil, err
	}
	in.targets = r.team.targets(r.Access.Port)
	in.commands = make([]launch.Spec, len(r.team.ids))
	for i := range r.team.ids {
		in.commands[i] = r.command(in, i)
	}
	r.wraps = make([][]string, len(r.team.ids))
	in.tune = r.o.Preflight != "off" || r.o.NUMA != preflight.NUMAOff
	in.tuning = PreflightOptions{
		Check:    r.o.Preflight == "check" || r.o.Preflight == "off",
		Require:  r.o.Preflight == "require",
		Ignore:   r.o.Preflight == "off",
		Platform: r.o.Platform,
		Install:  r.o.Install,
	}
	in.free = launch.FreeOptions{Policy: r.o.KillStale, Grace: r.o.Grace}
	return in, nil
}

// runsOfAll returns the runs that the workers know. It does not read all workers at one
// moment: another runner may start its command on all of them in between, and the
// attempt then looks as if it had lost the workers that were read first. An attempt
// runs on no worker before it is prepared on all. So runsOfAll reads again after it has
// seen the attempt running: if a worker still does not have it, it is missing there.
func (r *run) runsOfAll(ctx context.Context) ([]foundRun, error) {
	for seen := !r.adopts; ; seen = true {
		runs, errs := r.team.runs(ctx)
		for i := range errs {
			if r.team.isAway(i) {
				errs[i] = nil
			}
		}
		if err := r.failed(ctx, StageBusy, errs); err != nil {
			return nil, err
		}
		if seen || !slices.ContainsFunc(runs, func(f foundRun) bool {
			return f.info.Ref.Run == r.o.Run && f.info.Phase == launch.Running && len(f.workers) < r.team.reached()
		}) {
			return runs, nil
		}
	}
}

// nextAttempt is the number of the next attempt as far as this machine knows.
func (r *run) nextAttempt() int {
	if r.number > 0 {
		return r.number
	}
	return max(r.begunLast, lastLocalAttempt(r.StateDir, r.o.Run)) + 1
}

// A stoppedError says that somebody else has stopped the run since this command began.
type stoppedError struct{ reason string }

func (e *stoppedError) Error() string { return "it was stopped: " + e.reason }

// stoppedSince returns the error for a stop that a worker has noted since this command
// began; nil for an older one and for none. offset is that of the worker's clock. A mark
// from the future says nothing: the clock has been set back since.
func (r *run) stoppedSince(s launch.Stopped, offset time.Duration) error {
	at := s.At.Add(-offset)
	if r.since.IsZero() || s.At.IsZero() || !at.After(r.since) || at.Sub(r.Clock.Now()) > time.Minute {
		return nil
	}
	return &stoppedError{s.Reason}
}

// settleWith decides about the runs that the workers know.
func (r *run) settleWith(in *intent, runs []foundRun) error {
	for _, f := range runs {
		if err := r.stoppedSince(f.stopped, 0); err != nil && f.info.Ref.Run == r.o.Run && f.info.Mine {
			return err
		}
	}
	c := claimant{
		run: r.o.Run, owner: r.Owner, adopts: r.adopts, replace: r.o.Replace,
		tried: r.tried, last: r.begunLast, cutOff: r.cutOff, yields: r.races < maxRaces, elsewhere: r.elsewhere(),
	}
	occupants := make([]occupant, len(runs))
	newest := true
	for i, found := range runs { // the newest comes first
		occupants[i].foundRun = found
		if found.info.Ref.Run == r.o.Run {
			occupants[i].unseen, occupants[i].differs = r.unseen(found, newest), r.sameCommand(found)
			newest = newest && found.info.Phase == launch.Aborted
		}
	}
	s, err := c.settle(in.attempt, occupants)
	in.attempt, in.living, in.evict = s.attempt, s.living, s.evict
	return err
}

// elsewhere reports whether the attempt that this runner began last ran on none of the
// team's slices. Whatever runs on these is then another runner's, whatever its number.
func (r *run) elsewhere() bool {
	ids := sliceIDs(recordSlices(r.team.slices))
	return len(ids) > 0 && !slices.ContainsFunc(ids, r.hasBegunOn)
}

func (r *run) hasBegunOn(slice string) bool { return slices.Contains(r.begunOn, slice) }

// unseen reports whether an attempt of this run is on all workers that answer and
// nobody has seen its end: it is still running, or it ended while no runner was there.
// Without a record of the attempt on this machine, only a success of the newest attempt
// counts: its runner marks it, unless it deletes the slices next.
func (r *run) unseen(found foundRun, newest bool) bool {
	if !found.info.Mine || len(found.workers) < r.team.reached() {
		return false
	}
	if found.info.Alive() {
		return true
	}
	rec, err := loadRecord(r.StateDir, r.o.Run)
	if err == nil && rec != nil && rec.Attempt == found.info.Ref.Attempt {
		if !rec.Ended {
			return found.info.Phase == launch.Exited
		}
		if slices.Equal(sliceIDs(rec.Slices), sliceIDs(recordSlices(r.team.slices))) {
			return false
		}
	}
	return newest && found.well == len(found.workers) && !found.seen
}

// sameCommand returns an error if the attempt that was found runs another command.
func (r *run) sameCommand(found foundRun) error {
	want := launch.Spec{Argv: r.o.Argv, Script: r.o.Script, Env: launchEnv(r.o.Env)}.Title()
	asked := want
	if found.info.Venv != r.o.Venv {
		asked += map[bool]string{true: " in a virtual environment (--venv)", false: " without a virtual environment (--venv=false)"}[r.o.Venv]
	} else if found.info.Command == want {
		return nil
	}
	if !found.info.Alive() {
		return &Error{
			Stage: StageBusy,
			Text: fmt.Sprintf("run %q of %s has ended on %s while nobody saw it: %s; asked is another command: %s",
				found.info.Run, found.info.Owner, tpu.Fold(found.workers), found.info.Command, asked),
			Advice: "see how it ended with: multihost attach " + found.info.Run + "; to start this one all the same, add --replace",
		}
	}
	return busy(found, fmt.Sprintf("; asked is another command: %s", asked))
}

func busy(found foundRun, differs string) error {
	return &Error{
		Stage:  StageBusy,
		Text:   fmt.Sprintf("run %q of %s lives on %s, started %s ago: %s%s", found.info.Run, found.info.Owner, tpu.Fold(found.workers), event.Age(found.info.Age()), found.info.Command, differs),
		Advice: "follow it with: multihost attach " + found.info.Run + "; to stop it and start this one, add --replace",
	}
}

// compilerFlags adds the requested compiler flags to the environment of the command.
func (r *run) compilerFlags(in *intent) error {
	vars, err := r.xlaFlags(r.team.slices[0].Type)
	in.env = append(in.env, r.o.Env...)
	in.env = append(in.env, vars...)
	return err
}

// targets returns the workers as targets of a sync. port is for workers that name none.
func (t *team) targets(port int) []codesync.Target {
	all := make([]codesync.Target, len(t.ids))
	for i, id := range t.ids {
		all[i].Slice = id.Slice
		if host := t.address(i); host != "" {
			all[i].Addr = net.JoinHostPort(host, strconv.Itoa(cmp.Or(t.slice(i).Workers[id.Worker].Port, port)))
		}
		if t.hangUp != nil && !t.isAway(i) { // who is away gets nothing
			all[i].Conn = t.conns[i]
		}
	}
	return all
}

// command returns what is started on worker i.
func (r *run) command(in *intent, i int) launch.Spec {
	set, unset := r.environment(i)
	s := launch.Spec{
		Run: r.o.Run, Attempt: in.attempt, Owner: r.Owner, WorkDir: r.o.Run,
		Argv: r.o.Argv, Script: r.o.Script, Env: launchEnv(append(set, in.env...)), Unset: unset, MaxLog: r.o.MaxLog, Stored: r.stored(),
		Code: r.o.UseExisting, Venv: r.o.Venv,
	}
	if r.o.Venv {
		s.Unset = append(s.Unset, launch.VenvUnset...)
	}
	if r.o.Skew == SkewCheck || r.o.Skew == SkewWarn {
		s.Python = pythonOf(r.o.Argv, r.o.Script)
	}
	if r.tree != nil {
		s.Synced = r.tree.Digest
	}
	if n := r.o.Processes; n > 1 {
		s.Processes, s.FirstProcess, s.Grace = n, i*n, r.o.Grace
	}
	return s
}

// launchEnv converts an environment to the type of package launch.
func launchEnv(vars []config.EnvVar) []launch.EnvVar {
	env := make([]launch.EnvVar, len(vars))
	for i, v := range vars {
		env[i] = launch.EnvVar{Name: v.Name, Value: v.Value, Secret: v.Secret}
	}
	return env
}

// environment returns the variables that the command of worker i gets besides the
// user's own, and the names of those that it must not inherit.
//
// The MEGASCALE variables tell each slice about the others. Slices of one multi-node
// queued resource have them in their metadata. A variable would override the metadata,
// so inherited ones are removed. Slices that were created separately, and a part of a
// queued resource, need all four set. A single slice must have none.
func (r *run) environment(i int) (set []config.EnvVar, unset []string) {
	id, s := r.team.ids[i], r.team.slice(i)
	coordinator := r.team.address(0)
	num := strconv.Itoa
	add := func(name, value string) { set = append(set, config.EnvVar{Name: name, Value: value}) }
	add("MULTIHOST_SLICE_ID", num(id.Slice))
	add("MULTIHOST_NUM_SLICES", num(len(r.team.slices)))
	add("MULTIHOST_WORKER_ID", num(id.Worker))
	add("MULTIHOST_NUM_WORKERS", num(len(s.Workers)))
	per := max(1, r.o.Processes)
	add("MULTIHOST_PROCESS_ID", num(i*per))
	add("MULTIHOST_NUM_PROCESSES", num(len(r.team.ids)*per))
	add("MULTIHOST_LOCAL_ID", "0")
	add("MULTIHOST_COORDINATOR_IP", coordinator)
	add("MULTIHOST_WORKER_IP", r.team.address(i))
	if r.o.MaxText { // MaxText's startup script takes them from the metadata
		add("SLICE_ID", num(id.Slice))
		add("WORKER_ID", num(id.Worker))
		add("NODE_ID", s.Name)
		add("ZONE", r.Zone)
		add("PROJECT", r.Project)
	}
	if r.onHosts() { // no metadata tells JAX which process it is
		add("JAX_COORDINATOR_ADDRESS", net.JoinHostPort(coordinator, num(jaxPort)))
		add("JAX_NUM_PROCESSES", num(len(r.team.ids)*per))
		add("JAX_PROCESS_ID", num(i*per))
	}
	if len(r.team.slices) > 1 && !r.oneQueuedResource() {
		add("MEGASCALE_COORDINATOR_ADDRESS", coordinator)
		add("MEGASCALE_NUM_SLICES", num(len(r.team.slices)))
		add("MEGASCALE_SLICE_ID", num(id.Slice))
		add("MEGASCALE_PORT", "8081")
		return set, nil
	}
	return set, []string{"MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_PORT"}
}

// oneQueuedResource reports whether the slices are exactly those of one multi-node
// queued resource, so that their metadata is right. The last number in each name shows
// whether a slice before it is missing.
func (r *run) oneQueuedResource() bool {
	for i, s := range r.team.slices {
		if !s.MultiSlice || s.QueuedResource != r.team.slices[0].QueuedResource || !strings.HasSuffix(s.Name, "-"+strconv.Itoa(i)) {
			return false
		}
	}
	return !r.o.AllowPartial && r.o.Slices == nil
}

// newRecord returns the record of an attempt together with those before it. It changes
// no file.
func (r *run) newRecord(attempt int) (*Record, error) {
	rec := &Record{
		Run: r.o.Run, Attempt: attempt, Project: r.Project, Zone: r.Zone, Prefix: r.o.Prefix,
		Partial: r.o.AllowPartial, Login: r.Access.Login, Owner: r.Owner, Created: r.Clock.Now().UTC(),
		Command: commandText(r.o), Workers: len(r.team.ids), Hosts: r.hostsText(), Slices: recordSlices(r.team.slices),
		KeepGoing: !r.o.FailFast,
	}
	for _, v := range r.o.Env {
		if v.Secret {
			rec.SecretEnv = append(rec.SecretEnv, v.Name)
		}
	}
	dir := recordDir(r.StateDir, r.o.Run, attempt)
	if r.o.LogDir != "" {
		dir = attemptDir(r.o.LogDir, attempt)
	}
	if old, err := loadRecord(r.StateDir, r.o.Run); err == nil && old != nil {
		rec.Attempts = old.Attempts
		dir = old.place(attempt, rec.Slices, dir, r.o.LogDir != "")
	}
	var err error
	if rec.LogDir, err = filepath.Abs(dir); err != nil {
		return nil, &Error{Stage: StageLocal, Err: err}
	}
	return rec, nil
}

func (d *Deps) hostsText() string {
	hosts, _ := d.Cloud.(HostList)
	return hosts.String()
}

// folderCheck returns the command that tests whether the folder of
// --use-existing-folder exists. Without it, a misspelt name would run the command in an
// empty directory.
func folderCheck(run string) remote.Cmd {
	return remote.Cmd{Line: "test -d " + remote.Quote(run), ReadOnly: true}
}

// expected returns the slices that a request will create, as far as they are known
// beforehand.
func expected(o provision.Request, project, zone string) []tpu.Slice {
	all := make([]tpu.Slice, len(o.NodeNames()))
	for i, name := range o.NodeNames() {
		all[i] = tpu.Slice{
			Index: i, Name: name, Project: project, Zone: zone, Type: o.Type.Name, Network: o.Network,
			QueuedResource: o.ID, MultiSlice: len(all) > 1, Workers: make([]tpu.Worker, o.Type.Workers),
		}
		for w := range all[i].Workers {
			all[i].Workers[w].Internal = fmt.Sprintf("<address of %s>", tpu.WorkerID{Slice: i, Worker: w})
		}
	}
	return all
}
