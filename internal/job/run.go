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
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/remote"
	"multihost/internal/tpu"
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
	Watch      WatchOptions
	Patience   Patience

	StartLimit  time.Duration // from the first supervisor to the last start; 0: no limit
	MaxRestarts int           // how many further attempts Run may make; Job has its own budget
}

// Patience is how long a worker of a started run may be unreachable or silent. 0 means
// no limit for Lost, no wait for Log and no report for Quiet.
type Patience struct {
	// Lost is how long the run waits for a worker that cannot be reached before it
	// counts as failed. A VM that reboots or migrates is back within minutes. If a
	// network is down for longer, the command keeps running and attach finds it again.
	Lost time.Duration

	// Log is how long the run waits, after the command has ended, for logs that are not
	// complete here; 0: it does not wait.
	Log time.Duration

	// Quiet is how long a worker may print nothing before that is reported, and then
	// reported again. Compiling a large model is silent for ten minutes at most.
	Quiet time.Duration
}

// Outcome says how a run ended if its command was started.
type Outcome struct {
	Code     int // of the command
	Started  bool
	Detached bool
	PartLogs bool // some logs are not complete here
	KeepLogs bool // workers have the rest of them, and nobody has decided that it may go
}

// Status returns the exit status of this process.
func (o Outcome) Status() int {
	if o.Code == 0 && o.PartLogs {
		return partLogCode
	}
	return o.Code
}

// Run starts the command on every worker of the slices that o.Prefix names, follows it
// to its end and reports. A command that fails is an Outcome, not an error. When ctx
// ends with cause *Interrupted, Run stops the command on every worker, proves that it
// is gone, and returns that cause as the error. SIGHUP is the exception: it detaches.
func (d *Deps) Run(ctx context.Context, o RunOptions) (out Outcome, err error) {
	defer func() { d.closeJournal(out, err) }()
	r := &run{Deps: d, o: o, watch: stopwatch{sink: d.Sink, clock: d.Clock}, since: d.Clock.Now()}
	defer r.close()
	return r.do(ctx)
}

// close ends the connections and deletes the packed files of the sync.
func (r *run) close() {
	r.leaveTeam()
	if r.tree != nil {
		r.tree.Close()
	}
}

// run is one invocation in progress.
type run struct {
	*Deps
	o       RunOptions
	watch   stopwatch
	tree    *codesync.Tree
	syncing *heardSink // shows the sync of the tree
	team    *team
	attempt int
	intent  *intent
	wraps   [][]string    // per worker: numactl words before the command
	venvs   []launch.Venv // per worker, with RunOptions.Venv
	boots   []string      // per worker: id of the boot that the preflight tuned; "" if it tuned nothing
	started []launch.Started
	skew    time.Duration
	flags   *[]config.EnvVar // the variables that carry the compiler's flags; nil: not determined yet

	// Of the present or the last attempt:
	used    []tpu.Slice // the slices that it was to run on
	rec     *Record     // nil until the attempt has one
	follow  *following  // nil until the command is started
	vigil   *vigil      // set while the workers are prepared
	refusal string      // why no further attempt follows
	count   string      // which further attempt follows

	deletes   func() bool // whether the slices are deleted after a success; nil: they are not
	since     time.Time   // when this command began; zero: it heeds no stop of somebody else
	tried     int         // attempts that were started or taken over
	begunLast int         // number of the last of them
	begunOn   []string    // ids of the slices that it ran on
	number    int         // number of the next attempt if a bucket knows it; otherwise 0
	patient   bool        // further attempts may follow, so the cause of a failure matters
	adopts    bool        // an attempt of this run that is still running is taken over, not refused
	races     int         // how often in a row another runner of this run was first
	cutOff    bool        // the last attempt was given up because it could not be reached; it may still be running
	unread    parts       // the logs of the last attempt that go with its slices
	regained  bool        // the present attempt is the one that was given up

	// missing reports whether the command may be running on slices of which some
	// workers do not answer. It is then taken over on the workers that do. nil: never.
	missing func() bool

	lease func() *guard // of slices that a job of this run made; nil, or returning nil, for other slices
	guard *guard        // the result of lease once the slices exist
}

// errRebooted is the error of a worker that lost the settings of the preflight.
var errRebooted = errors.New("it was rebooted after the preflight, and its settings are the defaults again; nothing was started")

func (r *run) do(ctx context.Context) (Outcome, error) {
	if err := r.checkInput(ctx, ""); err != nil {
		return Outcome{}, err
	}
	r.checked()
	return r.attempts(ctx, r.standing(), Budget{Restarts: r.o.MaxRestarts, Preemptions: r.o.MaxRestarts, LossFlag: "--max-restarts"})
}

// standing returns the slices that Run works on.
func (r *run) standing() *standing {
	return &standing{Deps: r.Deps, watch: &r.watch, prefix: r.o.Prefix, numbers: r.o.Slices, partial: r.o.AllowPartial}
}

// onTeam runs the command on the connected workers. If another runner of the same job
// was first, it follows that runner's command.
func (r *run) onTeam(ctx context.Context) (Outcome, error) {
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

func (r *run) tryTeam(ctx context.Context) (Outcome, error) {
	in, err := r.decide(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if err := r.armLease(ctx); err != nil {
		return Outcome{}, err
	}
	ctx, over := r.untilExpiry(ctx)
	defer over()
	return r.carryOut(ctx, in)
}

// carryOut does what was decided.
func (r *run) carryOut(ctx context.Context, in *intent) (Outcome, error) {
	r.intent, r.attempt = in, in.attempt
	if in.living == nil && r.team.away != nil { // the command that ran there has ended meanwhile
		return Outcome{}, workersError(StageConnect, r.team.ids, r.team.away)
	}
	for _, e := range in.evict {
		if err := r.evict(ctx, e); err != nil {
			return Outcome{}, err
		}
	}
	if in.living != nil {
		return r.takeOver(ctx, in.living)
	}
	if err := r.openRecord(); err != nil {
		return Outcome{}, err
	}
	if err := r.prepare(ctx); err != nil {
		return Outcome{}, err
	}
	r.begun()
	if r.o.Detach {
		return r.leaveRunning(), nil
	}
	return r.followed(ctx)
}

// leaveRunning ends a run with --detach once its command has started.
func (r *run) leaveRunning() Outcome {
	event.Notef(r.Sink, event.Info, "follow it with: multihost attach "+r.o.Run+"; end it with: multihost stop "+r.o.Run,
		"run %s goes on without this machine on %s", r.o.Run, tpu.Fold(r.team.ids))
	return Outcome{Started: true, Detached: true}
}

// prepare prepares every worker over its connection and starts the command there.
func (r *run) prepare(ctx context.Context) error {
	ctx, over := r.keepVigil(ctx)
	defer over()
	for _, step := range []func(context.Context) error{r.sync, r.preflight, r.makeVenvs, r.free} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	// The record is saved before the start: if this runner is killed during the start,
	// some workers may already have started the command.
	undo, err := r.intent.record.saveAhead(r.StateDir)
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
func (r *run) begun() {
	r.rec = r.intent.record
	r.tried, r.begunLast, r.begunOn = r.tried+1, r.attempt, sliceIDs(r.rec.Slices)
	r.rec.beginAttempt(r.Clock.Now())
	if err := r.rec.save(r.StateDir); err != nil {
		event.Notef(r.Sink, event.Warn, "", "the run goes on, but its record cannot be kept: %v", err)
	}
}

func (r *run) followed(ctx context.Context) (Outcome, error) {
	secrets := slices.Clone(r.o.Env)
	if r.flags != nil {
		secrets = append(secrets, *r.flags...)
	}
	r.follow = &following{
		Deps: r.Deps, team: r.team, ref: r.ref(), rec: r.rec, watch: &r.watch, skew: r.skew,
		failFast: r.o.FailFast, timeout: r.o.Timeout, grace: r.o.Grace, strict: r.o.StrictExit, watching: r.o.Watch,
		secrets: maskedWords(secrets), patience: r.o.Patience, wraps: r.wraps, deletes: r.deletes != nil && r.deletes(),
	}
	return r.follow.do(ctx)
}

// stays reports whether --detach was given and the attempt found on the workers goes on:
// it is then left alone. One that has ended or failed on a worker is followed, so that its
// end and its slices are taken care of.
func (r *run) stays(living *foundRun) bool {
	return r.o.Detach && living.info.Alive() && living.alive+living.well == len(living.workers)
}

// takeOver follows an attempt that an earlier runner of this run started and did not
// see end. If stays reports true, it leaves the attempt running.
func (r *run) takeOver(ctx context.Context, living *foundRun) (Outcome, error) {
	// A worker that does not answer now keeps the clock offset that was measured when
	// it was connected to: the command that runs there must not be given up because of
	// that.
	r.team.each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		if r.team.isAway(i) {
			return nil
		}
		_, err := r.team.conns[i].MeasureClock(ctx)
		return err
	})
	if ctx.Err() != nil {
		return Outcome{}, context.Cause(ctx)
	}
	rec := r.intent.record
	if err := r.makeLogDir(rec); err != nil {
		return Outcome{}, err
	}
	r.regained = r.cutOff && r.attempt == r.begunLast && !r.elsewhere()
	rec.Created = r.Clock.Now().Add(-living.info.Age()).UTC()
	r.openJournal(rec.Run, "run", r.o.Env)
	r.Sink.Emit(rec.attempt())
	if r.stays(living) {
		event.Notef(r.Sink, event.Info, "", "run %s, attempt %d, was started %s ago and lives: it is left running", r.o.Run, r.attempt, event.Age(living.info.Age()))
		r.begun()
		return r.leaveRunning(), nil
	}
	event.Notef(r.Sink, event.Info, "", "run %s, attempt %d, was started %s ago and is taken over: logs in %s; %s",
		r.o.Run, r.attempt, event.Age(living.info.Age()), rec.LogDir, r.whatCtrlCDoes(true))
	r.begun()
	return r.followed(ctx)
}

// scan reads the directory before anything is asked of the cloud, so that a local
// mistake costs nothing.
func (r *run) scan(ctx context.Context) error {
	if r.o.UseExisting {
		return nil
	}
	r.syncing = &heardSink{Sink: r.Sink, waits: func(int) bool { return true }}
	tree, err := codesync.Scan(ctx, codesync.Options{
		Dir: r.o.Dir, NoIgnore: r.o.NoIgnore, Sink: r.syncing, Home: r.o.Home, Stall: r.o.SyncTimeout, Owner: r.Owner, Adopt: r.o.Adopt,
		Relay: r.o.Relay, RelayFanout: r.o.RelayFanout, Cache: filepath.Join(r.StateDir, "hashes"), Written: writtenDir(r.StateDir), ReadOnly: r.ReadOnly,
	})
	if err != nil {
		return &Error{Stage: StageScan, Err: err}
	}
	r.tree = tree
	return nil
}

func describe(sel tpu.Selection) string {
	names := make([]string, len(sel.Slices))
	for i, s := range sel.Slices {
		names[i] = s.Name
	}
	if len(names) > 6 {
		names = append(names[:3], "…", names[len(names)-1])
	}
	workers := sel.Workers()
	kind := ""
	if t := sel.Slices[0].Type; t != "" {
		kind = " (" + t + ")"
	}
	return fmt.Sprintf("%s%s: %s %s", strings.Join(names, ", "), kind, event.Count(len(workers), "worker"), tpu.Fold(workers))
}

// evict stops a run that occupies the workers.
func (r *run) evict(ctx context.Context, e eviction) error {
	event.Notef(r.Sink, event.Warn, "", "stopping run %s of %s: %s", e.info.Ref.Label(), e.info.Owner, e.reason)
	stopCtx, cancel := r.detached(ctx, r.o.Grace+2*time.Minute)
	defer cancel()
	return r.team.stopAll(stopCtx, r.Sink, e.info.Ref, r.o.Grace, e.reason, nil)
}

// failed turns the per-worker errors of a stage into one error. If ctx has ended, it
// returns the cause of that instead, because the workers' errors may only follow from
// it.
func (r *run) failed(ctx context.Context, during Stage, errs []error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return workersError(during, r.team.ids, errs)
}

func (r *run) sync(ctx context.Context) error {
	if r.o.UseExisting {
		return r.checkFolder(ctx)
	}
	return r.watch.phase("sync", func() (string, error) {
		defer r.team.listen(r.syncing)()
		reports, errs := r.tree.PushAll(ctx, r.intent.targets, r.o.Run)
		if err := r.failed(ctx, StageSync, errs); err != nil {
			return "", err
		}
		return r.synced(reports), nil
	})
}

// synced describes what the sync sent.
func (r *run) synced(reports []codesync.Report) string {
	var sent, uploaded int64
	var files, relayed int
	for _, rep := range reports {
		sent, files = max(sent, rep.SentBytes), max(files, rep.SentFiles)
		uploaded += rep.Uploaded
		if rep.From != "" {
			relayed++
		}
	}
	text := event.Count(r.tree.Count, "file")
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
func (r *run) checkFolder(ctx context.Context) error {
	errs := r.team.each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		status, err := r.team.conns[i].Run(ctx, folderCheck(r.o.Run))
		if err == nil && status.Code != 0 {
			err = fmt.Errorf("there is no folder ~/%s", r.o.Run)
		}
		return err
	})
	return r.failed(ctx, StageFolder, errs)
}

func (r *run) preflight(ctx context.Context) error {
	r.boots = make([]string, len(r.team.ids))
	if !r.intent.tune {
		return nil
	}
	return r.watch.phase("preflight", func() (string, error) {
		reports, err := r.preflightAll(ctx, r.team, r.o.Prefix, r.intent.tuning)
		if reports != nil && r.o.Preflight != "off" {
			r.Journal.Emit(event.Result{Name: "preflight", Data: preflight.Rows(r.team.ids, reports)})
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
		return preflight.Fold(r.team.ids, reports), nil
	})
}

// makeVenvs creates the run's virtual environment on every worker, unless an earlier
// attempt created it.
func (r *run) makeVenvs(ctx context.Context) error {
	if !r.o.Venv {
		return nil
	}
	return r.watch.phase("venv", func() (string, error) {
		r.venvs = make([]launch.Venv, len(r.team.ids))
		errs := r.team.each(ctx, r.Sink, "venv", func(ctx context.Context, i int) error {
			return remote.Again(ctx, r.broke(ctx, r.team, i, "making of the virtual environment"), func() (err error) {
				r.venvs[i], err = launch.MakeVenv(ctx, r.team.conns[i], r.o.Run)
				return err
			})
		})
		if err := r.failed(ctx, StageVenv, errs); err != nil {
			return "", r.adviseOnVenv(err)
		}
		return "~/" + launch.VenvDir(r.o.Run), nil
	})
}

// adviseOnVenv adds advice to the error of workers on which the virtual environment
// cannot be created, for example because a package is missing.
func (r *run) adviseOnVenv(err error) error {
	var refused *launch.VenvError
	var e *Error
	if errors.As(err, &refused) && errors.As(err, &e) && e.Stage == StageVenv {
		e.Advice = "to do without it: --venv=false"
		if p := refused.Package; p != "" {
			e.Advice = "install it on the workers: multihost exec " + r.workersFlag(r.o.Prefix) + " --sudo -- apt-get install -y " + p + "; or do without it: --venv=false"
		}
	}
	return err
}

// bindNUMA determines the words that bind each worker's command to a NUMA node. The
// notes describe what was decided.
func (r *run) bindNUMA(reports []preflight.Report) (notes []string, err error) {
	for i := range r.team.ids {
		ty, err := tpu.ParseType(r.team.slice(i).Type)
		if err != nil {
			ty = tpu.Type{} // a type that is newer than our table has no NUMA rule
		}
		wrap, text, err := preflight.NUMAWrap(r.o.NUMA, ty.Generation, reports[i])
		if err != nil {
			return nil, &Error{Stage: StageInput, Err: err}
		}
		r.wraps[i] = wrap
		if text != "" && !slices.Contains(notes, text) {
			notes = append(notes, text)
		}
	}
	return notes, nil
}

// free makes sure that nothing holds the TPU when the command starts.
func (r *run) free(ctx context.Context) error {
	return r.watch.phase("free", func() (string, error) {
		stopped := make([]int, len(r.team.ids))
		blind := make([]error, len(r.team.ids))
		errs := r.team.each(ctx, r.Sink, "free", func(ctx context.Context, i int) error {
			var rep launch.FreeReport
			err := remote.Again(ctx, r.broke(ctx, r.team, i, "freeing of the TPU"), func() (err error) {
				rep, err = launch.FreeTPU(ctx, r.team.conns[i], r.intent.free)
				return err
			})
			stopped[i] = len(rep.Stopped)
			if rep.Blind != "" && rep.Devices > 0 {
				blind[i] = errors.New(rep.Blind)
			}
			return err
		})
		if err := r.failed(ctx, StageFree, errs); err != nil {
			return "", err
		}
		for _, g := range groupErrors(r.team.ids, blind) {
			event.Notef(r.Sink, event.Warn, cure(g.cause), "%s: processes of other users that hold the TPU are not seen: %s", tpu.FoldShort(g.workers), g.cause)
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
func (r *run) start(ctx context.Context) (left bool, err error) {
	if r.o.StartLimit > 0 {
		late := &Error{Stage: StageStart, Text: fmt.Sprintf("not every worker started within %s (--start-timeout)", r.o.StartLimit), Err: context.DeadlineExceeded, lost: true}
		limited, cancel := context.WithTimeoutCause(ctx, r.o.StartLimit, late)
		defer cancel()
		ctx = limited
	}
	err = r.watch.phase("start", func() (string, error) {
		n := len(r.team.ids)
		armed := make([]*launch.Armed, n)
		errs := r.team.each(ctx, r.Sink, "start", func(ctx context.Context, i int) error {
			// Measure once more, because a VM that has just booted may still set its
			// clock.
			err := remote.Again(ctx, r.broke(ctx, r.team, i, "start"), func() error {
				_, err := r.team.conns[i].MeasureClock(ctx)
				return err
			})
			if err == nil {
				armed[i], err = launch.Arm(ctx, r.team.conns[i], r.bound(i))
			}
			if err == nil && r.boots[i] != "" && armed[i].BootID() != r.boots[i] {
				err = errRebooted
			}
			return err
		})
		if err := r.failed(ctx, StageStart, errs); err != nil {
			unsure := r.abort(ctx, armed)
			left = unsure != nil
			return "", errors.Join(err, unsure)
		}
		err := r.checkSkew(armed)
		for i, a := range armed {
			err = cmp.Or[error](r.stoppedSince(a.Stopped(), r.team.conns[i].ClockOffset()), err)
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
			r.team.each(limited, r.Sink, "", func(ctx context.Context, i int) error {
				armed[i].MeasureClock(ctx)
				return nil
			})
		}
		at := startMoment(time.Now(), n) // by this clock, against which the workers' clocks were measured
		errs = r.team.each(limited, r.Sink, "", func(ctx context.Context, i int) (err error) {
			r.started[i], err = armed[i].ReleaseAt(ctx, at)
			return err
		})
		if err := r.failed(ctx, StageStart, errs); err != nil {
			stopCtx, cancel := r.detached(ctx, r.o.Grace+time.Minute)
			defer cancel()
			unsure := r.team.stopAll(stopCtx, r.Sink, r.ref(), r.o.Grace, "not every worker started", r.isGone)
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
func (r *run) released(armed []*launch.Armed) event.Release {
	at := make([]time.Time, len(r.started))
	for i, s := range r.started {
		at[i] = s.At.Add(-armed[i].ClockOffset())
	}
	first, last := slices.MinFunc(at, time.Time.Compare), slices.MaxFunc(at, time.Time.Compare)
	r.skew = last.Sub(first)
	e := event.Release{Attempt: r.attempt, First: first, Workers: make([]event.ReleasedOn, len(at))}
	for i, id := range r.team.ids {
		e.Workers[i] = event.ReleasedOn{Slice: id.Slice, Worker: id.Worker, After: at[i].Sub(first)}
	}
	return e
}

// tellDisks warns of low disks and returns how much room there is for output.
func (r *run) tellDisks(armed []*launch.Armed) string {
	var output, tmp lowDisks
	least, known := launch.Disk{}, false
	for i, a := range armed {
		d := a.Disk()
		if d.Size > 0 && (!known || d.Free < least.Free) {
			least, known = d, true
		}
		if d.Low() {
			output.add(r.team.ids[i], d)
		}
		if d := a.Tmp(); d.Low() {
			tmp.add(r.team.ids[i], d)
		}
	}
	output.tell(r.Sink, outputDisk)
	tmp.tell(r.Sink, tmpDisk)
	if !known {
		return ""
	}
	return fmt.Sprintf("; at least %s free for output", event.Bytes(least.Free))
}

// abort cancels every armed supervisor; they have started nothing. The error names the
// workers where it is not certain that the supervisor is gone.
func (r *run) abort(ctx context.Context, armed []*launch.Armed) error {
	ctx, cancel := r.detached(ctx, 30*time.Second)
	defer cancel()
	errs := r.team.each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		if armed[i] == nil || r.isGone(i) {
			return nil
		}
		return armed[i].Abort(ctx)
	})
	return workersError(StageStart, r.team.ids, errs)
}

func (r *run) ref() launch.Ref { return launch.Ref{Run: r.o.Run, Attempt: r.attempt} }

// stored returns the secrets that the workers read themselves.
func (r *run) stored() []launch.StoredSecret {
	all := make([]launch.StoredSecret, len(r.o.Secrets))
	for i, s := range r.o.Secrets {
		all[i] = launch.StoredSecret{Name: s.Name, Root: r.Roots.SecretManager, Project: s.Project, ID: s.ID, Version: s.Version}
	}
	return all
}

// sayUnmasked warns that secrets which the workers read from Secret Manager are shown
// if the command prints them, because this machine does not know their values.
func (r *run) sayUnmasked() {
	if len(r.o.Secrets) == 0 {
		return
	}
	names := make([]string, len(r.o.Secrets))
	for i, s := range r.o.Secrets {
		names[i] = s.Name
	}
	event.Notef(r.Sink, event.Info, "", "%s: read by the workers from Secret Manager and not known here: if the command prints the value, it is shown and logged", strings.Join(names, ", "))
}

// bound returns the command of worker i, bound to the NUMA node that the preflight
// found and in the virtual environment that was created.
func (r *run) bound(i int) launch.Spec {
	s := r.intent.commands[i]
	s.Wrap = slices.Concat(s.Wrap, r.wraps[i])
	if r.o.Venv {
		s.Env = append(r.venvs[i].Env(), s.Env...) // the user's own PATH goes last and wins
	}
	return s
}

// reachIn limits how long a stop tries to reach a worker, so that unreachable workers
// barely delay it.
func reachIn(grace time.Duration) time.Duration { return grace + 5*time.Second }

// stopAll stops a run on every worker and proves that it is gone. The error names the
// workers on which it may still be running.
//
// It skips a worker for which gone reports true, because its slice does not exist any
// more. gone may be nil.
func (t *team) stopAll(ctx context.Context, sink event.Sink, ref launch.Ref, grace time.Duration, reason string, gone func(i int) bool) error {
	return t.stopWith(ctx, sink, ref, launch.StopOptions{Grace: grace, Reason: reason}, gone)
}

func (t *team) stopWith(ctx context.Context, sink event.Sink, ref launch.Ref, o launch.StopOptions, gone func(i int) bool) error {
	o.Reach = reachIn(o.Grace)
	errs := t.each(ctx, sink, "stop", func(ctx context.Context, i int) error {
		if gone != nil && gone(i) {
			return nil
		}
		rep, err := launch.Stop(ctx, t.conns[i], ref, o)
		if err == nil && len(rep.Survivors) > 0 {
			err = fmt.Errorf("processes survive SIGKILL: %v", rep.Survivors)
		}
		if err == nil && rep.Unmarked {
			event.Notef(sink, event.Warn, "look with: multihost ps", "the stop cannot be noted on %s: a runner of run %s that is alive may start the command again", t.ids[i], ref.Run)
		}
		return err
	})
	return mayStillRun(workersError(StageStop, t.ids, errs), ref.Run)
}

func mayStillRun(err error, run string) error {
	var e *Error
	if errors.As(err, &e) {
		e.Text = "run " + run + " may still be running: " + e.Text
		e.Advice = "try again with: multihost stop " + run
	}
	return err
}

// probeLogDir detects early what openRecord would refuse later, after slices have been
// created and paid for.
func (r *run) probeLogDir() error {
	rec := &Record{LogDir: recordDir(r.StateDir, r.o.Run, 1)}
	if r.o.LogDir != "" {
		rec.LogDir = attemptDir(r.o.LogDir, r.nextAttempt())
	}
	err := rec.checkLogDir()
	if err == nil && r.adopts && !r.ReadOnly { // a job: its slices cost money from here on
		err = r.makeLogDir(rec)
	}
	if err == nil && r.adopts && r.o.LogDir != "" { // otherwise only the workers can tell which attempt it is
		err = rec.unused()
	}
	return err
}

// makeLogDir makes the log directory of a record.
func (r *run) makeLogDir(rec *Record) error {
	by := "run"
	if r.adopts {
		by = "job"
	}
	return r.makeLogs(by, rec.LogDir, rec.makeLogDir)
}

// openRecord creates the log directory and reports where the logs will be, before
// anything can fail on the workers.
func (r *run) openRecord() error {
	rec := r.intent.record
	if err := r.makeLogDir(rec); err != nil {
		return err
	}
	if err := rec.unused(); err != nil {
		return err
	}
	r.openJournal(rec.Run, "run", r.o.Env)
	r.Sink.Emit(rec.attempt())
	if r.tried == 0 {
		r.sayUnmasked()
	}
	how := r.whatCtrlCDoes(true)
	if r.o.Detach {
		how = "it goes on when this command ends"
	}
	event.Notef(r.Sink, event.Info, "", "run %s, attempt %d: logs in %s; %s", r.o.Run, r.attempt, rec.LogDir, how)
	return nil
}

// commandText returns the command as shown to people and written to records: its first
// line, with secrets masked.
func commandText(o RunOptions) string {
	text := o.Script
	if len(o.Argv) > 0 {
		text = strings.Join(o.Argv, " ")
	}
	text = maskSecrets(text, o.Env)
	if line, _, more := strings.Cut(text, "\n"); more {
		text = line + " …"
	}
	return text
}
