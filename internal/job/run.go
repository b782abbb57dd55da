// Package job starts a command on every worker and makes further attempts until one
// succeeds or the budget is spent. Run does so on slices that exist. Job creates the
// slices first and deletes them afterwards. Preflight prepares workers only.
//
// All or none: the command starts on no worker before every worker is connected, synced,
// tuned and armed. The workers and the cloud hold the truth: local files only save
// requests.
package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/mask"
	"multihost/internal/preflight"
	"multihost/internal/record"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// RunOptions describes one invocation of a command on slices that exist.
type RunOptions struct {
	Prefix       string
	Slices       tpu.Numbers // only the slices of the family whose names have these numbers; they are numbered anew
	AllowPartial bool
	Run          string // name; also the working directory below the login's home

	Dir         string // local directory to ship
	Home        string // the user's home directory, so that it is not shipped by accident
	UseExisting bool   // ship nothing, use the working directory as it is
	Adopt       bool   // sync into a directory that was not created by a sync
	NoIgnore    bool
	SyncTimeout time.Duration  // longest time without progress of one worker's copy
	Relay       codesync.Relay // whether workers pass files on to each other
	RelayFanout int            // how many workers get the files from this machine; 0: one of each slice

	Script  string   // exactly one of Script and Argv
	Argv    []string // run without a shell
	Env     []config.EnvVar
	Venv    bool // run in a Python virtual environment of the run
	MaxText bool // set the variables that MaxText's multihost_job.py sets

	XLAPresets, XLAFlags []string // see internal/xla

	Skew      SkewMode
	Preflight string // apply, require, check or off
	Platform  preflight.Platform
	Install   bool
	NUMA      preflight.NUMA

	Secrets []detach.Secret // read by the workers themselves

	LogDir     string // "": below Deps.StateDir
	Detach     bool
	Processes  int           // of the command on each worker; 0 and 1 both mean one
	Timeout    time.Duration // of the command, from its start; 0: no limit
	FailFast   bool
	Grace      time.Duration     // between TERM and KILL
	Replace    bool              // stop a run that is active on these slices
	MaxLog     int64             // bytes of output that a worker keeps; 0: the default, -1: no limit
	KillStale  launch.FreePolicy // whose processes may be stopped to free the TPU
	StrictExit bool
	Watch      follow.WatchOptions
	Patience   follow.Patience

	StartLimit  time.Duration // from the first supervisor to the last start; 0: no limit
	MaxRestarts int           // how many further attempts Run may make; Job has its own budget
}

// Run starts the command on every worker of the slices that o.Prefix names, follows it
// to its end and reports. A command that fails is an Outcome, not an error. When ctx
// ends with cause *Interrupted, Run stops the command on every worker, proves that it
// is gone, and returns that cause as the error. SIGHUP is the exception: it detaches.
func Run(ctx context.Context, d *workers.Deps, o RunOptions) (out stage.Outcome, err error) {
	defer func() { d.CloseJournal(out, err) }()
	r := &Runner{Deps: d, O: o, Watch: stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}, since: d.Clock.Now()}
	defer r.Close()
	return r.do(ctx)
}

// Close ends the connections and deletes the packed files of the sync.
func (r *Runner) Close() {
	r.leaveTeam()
	if r.Tree != nil {
		r.Tree.Close()
	}
}

// Runner is one invocation in progress.
type Runner struct {
	*workers.Deps
	O        RunOptions
	Watch    stage.Stopwatch
	Tree     *codesync.Tree
	syncing  *workers.HeardSink // shows the sync of the tree
	workers  *workers.Connected
	attempt  int
	decision *Decision
	wraps    [][]string    // per worker: numactl words before the command
	venvs    []launch.Venv // per worker, with RunOptions.Venv
	boots    []string      // per worker: id of the boot that the preflight tuned; "" if it tuned nothing
	started  []launch.Started
	skew     time.Duration
	Flags    *[]config.EnvVar // the variables that carry the compiler's flags; nil: not determined yet

	// Of the present or the last attempt:
	used    []tpu.Slice       // the slices that it was to run on
	rec     *record.Record    // nil until the attempt has one
	follow  *follow.Following // nil until the command is started
	vigil   *vigil            // set while the workers are prepared
	refusal string            // why no further attempt follows
	count   string            // which further attempt follows

	deletes   func() bool  // whether the slices are deleted after a success; nil: they are not
	since     time.Time    // when this command began; zero: it heeds no stop of somebody else
	tried     int          // attempts that were started or taken over
	begunLast int          // number of the last of them
	begunOn   []string     // ids of the slices that it ran on
	Number    int          // number of the next attempt if a bucket knows it; otherwise 0
	patient   bool         // further attempts may follow, so the cause of a failure matters
	adopts    bool         // an attempt of this run that is still running is taken over, not refused
	races     int          // how often in a row another runner of this run was first
	cutOff    bool         // the last attempt was given up because it could not be reached; it may still be running
	unread    follow.Parts // the logs of the last attempt that go with its slices
	regained  bool         // the present attempt is the one that was given up

	// missing reports whether the command may be running on slices of which some
	// workers do not answer. It is then taken over on the workers that do. nil: never.
	missing func() bool

	lease func() *guard // of slices that a job of this run made; nil, or returning nil, for other slices
	guard *guard        // the result of lease once the slices exist
}

func (r *Runner) do(ctx context.Context) (stage.Outcome, error) {
	if err := r.CheckInput(ctx, ""); err != nil {
		return stage.Outcome{}, err
	}
	r.ChecksDone()
	return r.attempts(ctx, r.standing(), Budget{Restarts: r.O.MaxRestarts, Preemptions: r.O.MaxRestarts, LossFlag: "--max-restarts"})
}

// standing returns the slices that Run works on.
func (r *Runner) standing() *standing {
	return &standing{Deps: r.Deps, watch: &r.Watch, prefix: r.O.Prefix, numbers: r.O.Slices, partial: r.O.AllowPartial}
}

// onTeam runs the command on the connected workers. If another runner of the same job
// was first, it follows that runner's command.
func (r *Runner) onTeam(ctx context.Context) (stage.Outcome, error) {
	for r.races = 0; ; r.races++ {
		out, err := r.tryTeam(ctx)
		if !r.adopts || !r.raced(err) || r.races == maxRaces {
			return out, err
		}
		if err := r.yield(ctx); err != nil {
			return out, err
		}
	}
}

func (r *Runner) tryTeam(ctx context.Context) (stage.Outcome, error) {
	in, err := r.decide(ctx)
	if err != nil {
		return stage.Outcome{}, err
	}
	if err := r.armLease(ctx); err != nil {
		return stage.Outcome{}, err
	}
	ctx, over := r.untilExpiry(ctx)
	defer over()
	return r.carryOut(ctx, in)
}

// carryOut does what was decided.
func (r *Runner) carryOut(ctx context.Context, in *Decision) (stage.Outcome, error) {
	r.decision, r.attempt = in, in.attempt
	if in.living == nil && r.workers.Away != nil { // the command that ran there has ended meanwhile
		return stage.Outcome{}, stage.WorkersError(stage.Connect, r.workers.IDs, r.workers.Away)
	}
	for _, e := range in.evict {
		if err := r.evict(ctx, e); err != nil {
			return stage.Outcome{}, err
		}
	}
	if in.living != nil {
		return r.takeOver(ctx, in.living)
	}
	if err := r.openRecord(); err != nil {
		return stage.Outcome{}, err
	}
	if err := r.prepare(ctx); err != nil {
		return stage.Outcome{}, err
	}
	r.begun()
	if r.O.Detach {
		return r.leaveRunning(), nil
	}
	return r.followed(ctx)
}

// leaveRunning ends a run with --detach once its command has started.
func (r *Runner) leaveRunning() stage.Outcome {
	event.Notef(r.Sink, event.Info, "follow it with: multihost attach "+r.O.Run+"; end it with: multihost stop "+r.O.Run,
		"run %s goes on without this machine on %s", r.O.Run, tpu.Fold(r.workers.IDs))
	return stage.Outcome{Started: true, Detached: true}
}

// prepare prepares every worker over its connection and starts the command there.
func (r *Runner) prepare(ctx context.Context) error {
	ctx, over := r.keepVigil(ctx)
	defer over()
	for _, step := range []func(context.Context) error{r.sync, r.preflight, r.makeVenvs, r.free} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	// The record is saved before the start: if this runner is killed during the start,
	// some workers may already have started the command.
	undo, err := r.decision.record.SaveAhead(r.StateDir)
	if err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
	left, err := r.start(ctx)
	if err != nil && !left {
		undo()
	}
	return err
}

// begun counts and records the attempt as started.
func (r *Runner) begun() {
	r.rec = r.decision.record
	r.tried, r.begunLast, r.begunOn = r.tried+1, r.attempt, record.SliceIDs(r.rec.Slices)
	r.rec.BeginAttempt(r.Clock.Now())
	if err := r.rec.Save(r.StateDir); err != nil {
		event.Notef(r.Sink, event.Warn, "", "the run goes on, but its record cannot be kept: %v", err)
	}
}

func (r *Runner) followed(ctx context.Context) (stage.Outcome, error) {
	secrets := slices.Clone(r.O.Env)
	if r.Flags != nil {
		secrets = append(secrets, *r.Flags...)
	}
	r.follow = &follow.Following{
		Deps: r.Deps, Workers: r.workers, Ref: r.ref(), Rec: r.rec, Watch: &r.Watch, Skew: r.skew,
		FailFast: r.O.FailFast, Timeout: r.O.Timeout, Grace: r.O.Grace, Strict: r.O.StrictExit, Watching: r.O.Watch,
		Secrets: mask.MaskedWords(secrets), Patience: r.O.Patience, Wraps: r.wraps, Deletes: r.deletes != nil && r.deletes(),
	}
	return r.follow.Do(ctx)
}

// stays reports whether --detach was given and the attempt found on the workers goes on:
// it is then left alone. One that has ended or failed on a worker is followed, so that its
// end and its slices are taken care of.
func (r *Runner) stays(living *workers.FoundRun) bool {
	return r.O.Detach && living.Info.Alive() && living.Alive+living.Well == len(living.Workers)
}

// takeOver follows an attempt that an earlier runner of this run started and did not
// see end. If stays reports true, it leaves the attempt running.
func (r *Runner) takeOver(ctx context.Context, living *workers.FoundRun) (stage.Outcome, error) {
	// A worker that does not answer now keeps the clock offset that was measured when
	// it was connected to: the command that runs there must not be given up because of
	// that.
	r.workers.Each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		if r.workers.IsAway(i) {
			return nil
		}
		_, err := r.workers.Conns[i].MeasureClock(ctx)
		return err
	})
	if ctx.Err() != nil {
		return stage.Outcome{}, context.Cause(ctx)
	}
	rec := r.decision.record
	if err := r.makeLogDir(rec); err != nil {
		return stage.Outcome{}, err
	}
	r.regained = r.cutOff && r.attempt == r.begunLast && !r.elsewhere()
	rec.Created = r.Clock.Now().Add(-living.Info.Age()).UTC()
	r.OpenJournal(rec.Run, "run", r.O.Env)
	r.Sink.Emit(rec.AttemptEvent())
	if r.stays(living) {
		event.Notef(r.Sink, event.Info, "", "run %s, attempt %d, was started %s ago and lives: it is left running", r.O.Run, r.attempt, event.Age(living.Info.Age()))
		r.begun()
		return r.leaveRunning(), nil
	}
	event.Notef(r.Sink, event.Info, "", "run %s, attempt %d, was started %s ago and is taken over: logs in %s; %s",
		r.O.Run, r.attempt, event.Age(living.Info.Age()), rec.LogDir, r.WhatCtrlCDoes(true))
	r.begun()
	return r.followed(ctx)
}

// scan reads the directory before anything is asked of the cloud, so that a local
// mistake costs nothing.
func (r *Runner) scan(ctx context.Context) error {
	if r.O.UseExisting {
		return nil
	}
	r.syncing = &workers.HeardSink{Sink: r.Sink, Waits: func(int) bool { return true }}
	tree, err := codesync.Scan(ctx, codesync.Options{
		Dir: r.O.Dir, NoIgnore: r.O.NoIgnore, Sink: r.syncing, Home: r.O.Home, Stall: r.O.SyncTimeout, Owner: r.Owner, Adopt: r.O.Adopt,
		Relay: r.O.Relay, RelayFanout: r.O.RelayFanout, Cache: filepath.Join(r.StateDir, "hashes"), Written: record.WrittenDir(r.StateDir), ReadOnly: r.ReadOnly,
	})
	if err != nil {
		return &stage.Error{Stage: stage.Scan, Err: err}
	}
	r.Tree = tree
	return nil
}

// evict stops a run that occupies the workers.
func (r *Runner) evict(ctx context.Context, e eviction) error {
	event.Notef(r.Sink, event.Warn, "", "stopping run %s of %s: %s", e.Info.Ref.Label(), e.Info.Owner, e.reason)
	stopCtx, cancel := r.Detached(ctx, r.O.Grace+2*time.Minute)
	defer cancel()
	return r.workers.StopAll(stopCtx, r.Sink, e.Info.Ref, r.O.Grace, e.reason, nil)
}

// failed turns the per-worker errors of a stage into one error. If ctx has ended, it
// returns the cause of that instead, because the workers' errors may only follow from
// it.
func (r *Runner) failed(ctx context.Context, during stage.Stage, errs []error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return stage.WorkersError(during, r.workers.IDs, errs)
}

func (r *Runner) sync(ctx context.Context) error {
	if r.O.UseExisting {
		return r.checkFolder(ctx)
	}
	return r.Watch.Phase("sync", func() (string, error) {
		defer r.workers.Listen(r.syncing)()
		reports, errs := r.Tree.PushAll(ctx, r.decision.targets, r.O.Run)
		if err := r.failed(ctx, stage.Sync, errs); err != nil {
			return "", err
		}
		return r.synced(reports), nil
	})
}

// synced describes what the sync sent.
func (r *Runner) synced(reports []codesync.Report) string {
	var sent, uploaded int64
	var files, relayed int
	for _, rep := range reports {
		sent, files = max(sent, rep.SentBytes), max(files, rep.SentFiles)
		uploaded += rep.Uploaded
		if rep.From != "" {
			relayed++
		}
	}
	text := event.Count(r.Tree.Count, "file")
	if files == 0 {
		return text + ", nothing new to send"
	}
	text += fmt.Sprintf(", up to %d new (%s) to a worker, %s left this machine", files, event.Bytes(sent), event.Bytes(uploaded))
	if relayed > 0 {
		text += fmt.Sprintf("; %d of %d workers got theirs from another one", relayed, len(reports))
	}
	return text
}

// checkFolder returns an error if the folder of --use-existing-folder does not exist.
func (r *Runner) checkFolder(ctx context.Context) error {
	errs := r.workers.Each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		status, err := r.workers.Conns[i].Run(ctx, folderCheck(r.O.Run))
		if err == nil && status.Code != 0 {
			err = fmt.Errorf("there is no folder ~/%s", r.O.Run)
		}
		return err
	})
	return r.failed(ctx, stage.Folder, errs)
}

func (r *Runner) preflight(ctx context.Context) error {
	r.boots = make([]string, len(r.workers.IDs))
	if !r.decision.tune {
		return nil
	}
	return r.Watch.Phase("preflight", func() (string, error) {
		reports, err := preflightAll(ctx, r.Deps, r.workers, r.O.Prefix, r.decision.tuning)
		if reports != nil && r.O.Preflight != "off" {
			r.Journal.Emit(event.Result{Name: "preflight", Data: preflight.Rows(r.workers.IDs, reports)})
		}
		if err != nil {
			return "", err
		}
		notes, err := r.bindNUMA(reports)
		if err != nil {
			return "", err
		}
		for _, text := range notes {
			event.Notef(r.Sink, event.Info, "", "%s", text)
		}
		for i, rep := range reports {
			r.boots[i] = rep.BootID
		}
		return preflight.Fold(r.workers.IDs, reports), nil
	})
}

// makeVenvs creates the run's virtual environment on every worker, unless an earlier
// attempt created it.
func (r *Runner) makeVenvs(ctx context.Context) error {
	if !r.O.Venv {
		return nil
	}
	return r.Watch.Phase("venv", func() (string, error) {
		r.venvs = make([]launch.Venv, len(r.workers.IDs))
		errs := r.workers.Each(ctx, r.Sink, "venv", func(ctx context.Context, i int) error {
			return remote.Again(ctx, r.Broke(ctx, r.workers, i, "making of the virtual environment"), func() (err error) {
				r.venvs[i], err = launch.MakeVenv(ctx, r.workers.Conns[i], r.O.Run)
				return err
			})
		})
		if err := r.failed(ctx, stage.Venv, errs); err != nil {
			return "", r.adviseOnVenv(err)
		}
		return "~/" + launch.VenvDir(r.O.Run), nil
	})
}

// adviseOnVenv adds advice to the error of workers on which the virtual environment
// cannot be created, for example because a package is missing.
func (r *Runner) adviseOnVenv(err error) error {
	var refused *launch.VenvError
	var e *stage.Error
	if errors.As(err, &refused) && errors.As(err, &e) && e.Stage == stage.Venv {
		e.Advice = "to do without it: --venv=false"
		if p := refused.Package; p != "" {
			e.Advice = "install it on the workers: multihost exec " + workersFlag(r.Deps, r.O.Prefix) + " --sudo -- apt-get install -y " + p + "; or do without it: --venv=false"
		}
	}
	return err
}

// bindNUMA determines the words that bind each worker's command to a NUMA node. The
// notes describe what was decided.
func (r *Runner) bindNUMA(reports []preflight.Report) (notes []string, err error) {
	for i := range r.workers.IDs {
		ty, err := tpu.ParseType(r.workers.Slice(i).Type)
		if err != nil {
			ty = tpu.Type{} // a type that is newer than our table has no NUMA rule
		}
		wrap, text, err := preflight.NUMAWrap(r.O.NUMA, ty.Generation, reports[i])
		if err != nil {
			return nil, &stage.Error{Stage: stage.Input, Err: err}
		}
		r.wraps[i] = wrap
		if text != "" && !slices.Contains(notes, text) {
			notes = append(notes, text)
		}
	}
	return notes, nil
}

// free makes sure that nothing holds the TPU when the command starts.
func (r *Runner) free(ctx context.Context) error {
	return r.Watch.Phase("free", func() (string, error) {
		stopped := make([]int, len(r.workers.IDs))
		blind := make([]error, len(r.workers.IDs))
		errs := r.workers.Each(ctx, r.Sink, "free", func(ctx context.Context, i int) error {
			var rep launch.FreeReport
			err := remote.Again(ctx, r.Broke(ctx, r.workers, i, "freeing of the TPU"), func() (err error) {
				rep, err = launch.FreeTPU(ctx, r.workers.Conns[i], r.decision.free)
				return err
			})
			stopped[i] = len(rep.Stopped)
			if rep.Blind != "" && rep.Devices > 0 {
				blind[i] = errors.New(rep.Blind)
			}
			return err
		})
		if err := r.failed(ctx, stage.Free, errs); err != nil {
			return "", err
		}
		for _, g := range stage.GroupErrors(r.workers.IDs, blind) {
			event.Notef(r.Sink, event.Warn, stage.Cure(g.Cause), "%s: processes of other users that hold the TPU are not seen: %s", tpu.FoldShort(g.Workers), g.Cause)
		}
		total := 0
		for _, n := range stopped {
			total += n
		}
		if total > 0 {
			return "stopped " + event.Count(total, "stale process"), nil
		}
		return "no process holds a TPU device", nil
	})
}

// startMoment returns when n workers are to start if the order is sent at now. The
// moment is late enough for every order to arrive, although some connections are slower
// than others. A single worker need not wait for others: the zero time makes it start
// at once, whatever its clock says.
func startMoment(now time.Time, n int) time.Time {
	if n == 1 {
		return time.Time{}
	}
	return now.Add(min(100*time.Millisecond+time.Duration(n)*time.Millisecond, 2*time.Second))
}

// start prepares a supervisor on every worker and then releases each by one write, all
// for the same moment. If not all are released, start leaves none running; left reports
// that this is not certain.
func (r *Runner) start(ctx context.Context) (left bool, err error) {
	if r.O.StartLimit > 0 {
		late := &stage.Error{Stage: stage.Start, Text: fmt.Sprintf("not every worker started within %s (--start-timeout)", r.O.StartLimit), Err: context.DeadlineExceeded, Lost: true}
		limited, cancel := context.WithTimeoutCause(ctx, r.O.StartLimit, late)
		defer cancel()
		ctx = limited
	}
	err = r.Watch.Phase("start", func() (string, error) {
		n := len(r.workers.IDs)
		armed := make([]*launch.Armed, n)
		errs := r.workers.Each(ctx, r.Sink, "start", func(ctx context.Context, i int) error {
			// Measure once more, because a VM that has just booted may still set its
			// clock.
			err := remote.Again(ctx, r.Broke(ctx, r.workers, i, "start"), func() error {
				_, err := r.workers.Conns[i].MeasureClock(ctx)
				return err
			})
			if err == nil {
				armed[i], err = launch.Arm(ctx, r.workers.Conns[i], r.bound(i))
			}
			if err == nil && r.boots[i] != "" && armed[i].BootID() != r.boots[i] {
				err = stage.ErrRebooted
			}
			return err
		})
		if err := r.failed(ctx, stage.Start, errs); err != nil {
			unsure := r.abort(ctx, armed)
			left = unsure != nil
			return "", errors.Join(err, unsure)
		}
		err := r.checkSkew(armed)
		for i, a := range armed {
			err = cmp.Or[error](r.stoppedSince(a.Stopped(), r.workers.Conns[i].ClockOffset()), err)
		}
		if err != nil {
			unsure := r.abort(ctx, armed)
			left = unsure != nil
			return "", errors.Join(err, unsure)
		}
		room := r.tellDisks(armed)
		r.started = make([]launch.Started, n)
		// A worker whose connection drops now may have started the command.
		limited, cancel := context.WithTimeoutCause(ctx, r.Access.RetryFor+time.Minute, errors.New("it went away at the start and did not come back"))
		defer cancel()
		if n > 1 {
			r.workers.Each(limited, r.Sink, "", func(ctx context.Context, i int) error {
				armed[i].MeasureClock(ctx)
				return nil
			})
		}
		at := startMoment(time.Now(), n) // by this clock, against which the workers' clocks were measured
		errs = r.workers.Each(limited, r.Sink, "", func(ctx context.Context, i int) (err error) {
			r.started[i], err = armed[i].ReleaseAt(ctx, at)
			return err
		})
		if err := r.failed(ctx, stage.Start, errs); err != nil {
			stopCtx, cancel := r.Detached(ctx, r.O.Grace+time.Minute)
			defer cancel()
			unsure := r.workers.StopAll(stopCtx, r.Sink, r.ref(), r.O.Grace, "not every worker started", r.isGone)
			left = unsure != nil
			return "", errors.Join(err, unsure)
		}
		r.Sink.Emit(r.released(armed))
		return fmt.Sprintf("%s within %s%s", event.Count(n, "worker"), event.Duration(r.skew), room), nil
	})
	return left, err
}

// released reports when the command started on each worker and sets the skew. The times
// are from the workers' clocks, corrected to the runner's.
func (r *Runner) released(armed []*launch.Armed) event.Release {
	at := make([]time.Time, len(r.started))
	for i, s := range r.started {
		at[i] = s.At.Add(-armed[i].ClockOffset())
	}
	first, last := slices.MinFunc(at, time.Time.Compare), slices.MaxFunc(at, time.Time.Compare)
	r.skew = last.Sub(first)
	e := event.Release{Attempt: r.attempt, First: first, Workers: make([]event.ReleasedOn, len(at))}
	for i, id := range r.workers.IDs {
		e.Workers[i] = event.ReleasedOn{Slice: id.Slice, Worker: id.Worker, After: at[i].Sub(first)}
	}
	return e
}

// tellDisks warns of low disks and returns how much room there is for output.
func (r *Runner) tellDisks(armed []*launch.Armed) string {
	var output, tmp follow.LowDisks
	least, known := launch.Disk{}, false
	for i, a := range armed {
		d := a.Disk()
		if d.Size > 0 && (!known || d.Free < least.Free) {
			least, known = d, true
		}
		if d.Low() {
			output.Add(r.workers.IDs[i], d)
		}
		if d := a.Tmp(); d.Low() {
			tmp.Add(r.workers.IDs[i], d)
		}
	}
	output.Tell(r.Sink, follow.OutputDisk)
	tmp.Tell(r.Sink, follow.TmpDisk)
	if !known {
		return ""
	}
	return fmt.Sprintf("; at least %s free for output", event.Bytes(least.Free))
}

// abort cancels every armed supervisor; they have started nothing. The error names the
// workers where it is not certain that the supervisor is gone.
func (r *Runner) abort(ctx context.Context, armed []*launch.Armed) error {
	ctx, cancel := r.Detached(ctx, 30*time.Second)
	defer cancel()
	errs := r.workers.Each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		if armed[i] == nil || r.isGone(i) {
			return nil
		}
		return armed[i].Abort(ctx)
	})
	return stage.WorkersError(stage.Start, r.workers.IDs, errs)
}

func (r *Runner) ref() launch.Ref { return launch.Ref{Run: r.O.Run, Attempt: r.attempt} }

// stored returns the secrets that the workers read themselves.
func (r *Runner) stored() []launch.StoredSecret {
	all := make([]launch.StoredSecret, len(r.O.Secrets))
	for i, s := range r.O.Secrets {
		all[i] = launch.StoredSecret{Name: s.Name, Root: r.Roots.SecretManager, Project: s.Project, ID: s.ID, Version: s.Version}
	}
	return all
}

// sayUnmasked warns that secrets which the workers read from Secret Manager are shown
// if the command prints them, because this machine does not know their values.
func (r *Runner) sayUnmasked() {
	if len(r.O.Secrets) == 0 {
		return
	}
	names := make([]string, len(r.O.Secrets))
	for i, s := range r.O.Secrets {
		names[i] = s.Name
	}
	event.Notef(r.Sink, event.Info, "", "%s: read by the workers from Secret Manager and not known here: if the command prints the value, it is shown and logged", strings.Join(names, ", "))
}

// bound returns the command of worker i, bound to the NUMA node that the preflight
// found and in the virtual environment that was created.
func (r *Runner) bound(i int) launch.Spec {
	s := r.decision.commands[i]
	s.Wrap = slices.Concat(s.Wrap, r.wraps[i])
	if r.O.Venv {
		s.Env = append(r.venvs[i].Env(), s.Env...) // the user's own PATH goes last and wins
	}
	return s
}

// probeLogDir detects early what openRecord would refuse later, after slices have been
// created and paid for.
func (r *Runner) probeLogDir() error {
	rec := &record.Record{LogDir: record.RecordDir(r.StateDir, r.O.Run, 1)}
	if r.O.LogDir != "" {
		rec.LogDir = record.AttemptDir(r.O.LogDir, r.nextAttempt())
	}
	err := rec.CheckLogDir()
	if err == nil && r.adopts && !r.ReadOnly { // a job: its slices cost money from here on
		err = r.makeLogDir(rec)
	}
	if err == nil && r.adopts && r.O.LogDir != "" { // otherwise only the workers can tell which attempt it is
		err = rec.Unused()
	}
	return err
}

// makeLogDir makes the log directory of a record.
func (r *Runner) makeLogDir(rec *record.Record) error {
	by := "run"
	if r.adopts {
		by = "job"
	}
	return r.MakeLogs(by, rec.LogDir, rec.MakeLogDir)
}

// openRecord creates the log directory and reports where the logs will be, before
// anything can fail on the workers.
func (r *Runner) openRecord() error {
	rec := r.decision.record
	if err := r.makeLogDir(rec); err != nil {
		return err
	}
	if err := rec.Unused(); err != nil {
		return err
	}
	r.OpenJournal(rec.Run, "run", r.O.Env)
	r.Sink.Emit(rec.AttemptEvent())
	if r.tried == 0 {
		r.sayUnmasked()
	}
	how := r.WhatCtrlCDoes(true)
	if r.O.Detach {
		how = "it goes on when this command ends"
	}
	event.Notef(r.Sink, event.Info, "", "run %s, attempt %d: logs in %s; %s", r.O.Run, r.attempt, rec.LogDir, how)
	return nil
}

// CommandText returns the command as shown to people and written to records: its first
// line, with secrets masked.
func CommandText(o RunOptions) string {
	text := o.Script
	if len(o.Argv) > 0 {
		text = strings.Join(o.Argv, " ")
	}
	text = mask.MaskSecrets(text, o.Env)
	if line, _, more := strings.Cut(text, "\n"); more {
		text = line + " …"
	}
	return text
}
