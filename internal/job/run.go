package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/sshfan"
	"multihost/internal/tpu"
)

// RunOptions is one invocation of a command on slices that exist.
type RunOptions struct {
	Prefix       string
	AllowPartial bool
	Run          string // name; also the working directory below the login's home

	Dir         string // local directory to ship
	Home        string // the user's home, not shipped by accident
	UseExisting bool   // ship nothing, use the working directory as it is
	NoIgnore    bool
	SyncTimeout time.Duration  // longest time without progress of one worker's copy
	Relay       codesync.Relay // whether workers pass files on to each other
	RelayFanout int            // how many of them get the files from here; 0: one of each slice

	Script string   // exactly one of Script and Argv
	Argv   []string // run without a shell
	Env    []config.EnvVar

	XLAPresets, XLAFlags []string // see internal/xla

	Skew      SkewMode
	Preflight string // apply, require, check or off
	Platform  preflight.Platform
	Install   bool
	NUMA      preflight.NUMA

	Secrets []detach.Secret // read by the workers themselves

	LogDir     string // "" is below Deps.StateDir
	Detach     bool
	Processes  int           // of the command on each worker; 0 and 1 are one
	Timeout    time.Duration // of the command, from its start; 0 is none
	FailFast   bool
	Grace      time.Duration     // between TERM and KILL
	Replace    bool              // stop a run that lives on these slices
	MaxLog     int64             // bytes of output that a worker keeps; 0 is the default, -1 no limit
	KillStale  launch.FreePolicy // whose processes may be stopped to free the TPU
	StrictExit bool
	Watch      WatchOptions
	Patience   Patience

	StartLimit  time.Duration // from the first supervisor to the last start; 0 is none
	MaxRestarts int           // further attempts of Run; see Job for its own
}

// Patience is how long a worker of a started run may be away or silent. 0 is no
// limit, and never.
type Patience struct {
	// Lost is how long a worker that cannot be reached is waited for before the
	// run has failed. A VM that reboots or migrates is back within minutes; a
	// network that is away for longer leaves the command running, and attach
	// finds it again.
	Lost time.Duration

	// Quiet is how long a worker may print nothing before that is said, and said
	// again. Compilation of large models is silent for ten minutes at most.
	Quiet time.Duration
}

// Outcome is how a run ended when it ran at all.
type Outcome struct {
	Code     int // status to exit with
	Started  bool
	Detached bool
}

// Run puts the command on every worker of the slices that o.Prefix names,
// follows it to its end and reports. A command that fails is an Outcome, not
// an error. When ctx ends with cause *Interrupted, the command is stopped on
// every worker and proven gone, except for SIGHUP, which detaches; the error
// is then that cause.
func (d *Deps) Run(ctx context.Context, o RunOptions) (out Outcome, err error) {
	defer func() { d.closeJournal(out, err) }()
	r := &run{Deps: d, o: o, watch: stopwatch{sink: d.Sink, clock: d.Clock}}
	defer r.close()
	return r.do(ctx)
}

// close ends the connections and drops the packed files of the sync.
func (r *run) close() {
	r.leaveTeam()
	if r.tree != nil {
		r.tree.Close()
	}
}

// run is one invocation under way.
type run struct {
	*Deps
	o       RunOptions
	watch   stopwatch
	tree    *codesync.Tree
	team    *team
	attempt int
	logDir  string
	wraps   [][]string // per worker: numactl words before the command
	boots   []string   // per worker: id of the boot that the preflight tuned; "" when it did not
	started []launch.Started
	skew    time.Duration

	// Of the attempt under way or just over:
	used    []tpu.Slice // the slices that it was to run on
	rec     *Record     // nil before it has one
	follow  *following  // nil before the command was started
	vigil   *vigil      // while the workers are prepared
	refusal string      // why no further attempt follows
	count   string      // which further attempt follows

	tried     int  // attempts that were started or taken over
	begunLast int  // number of the last of them
	patient   bool // further attempts may follow, so that their cause matters
	adopts    bool // a living attempt of this run is taken over, not refused
	races     int  // how often in a row another runner of this run was first

	lease func() *guard // of slices that a job of this run made; nil, or returning nil, for others
	guard *guard        // the same, once the slices are there
}

// errRebooted is the error of a worker whose settings are gone again.
var errRebooted = errors.New("it was rebooted after the preflight, and its settings are the defaults again; nothing was started")

func (r *run) do(ctx context.Context) (Outcome, error) {
	if err := r.scan(ctx); err != nil {
		return Outcome{}, err
	}
	ground := &standing{Deps: r.Deps, watch: &r.watch, prefix: r.o.Prefix, partial: r.o.AllowPartial}
	return r.attempts(ctx, ground, Budget{Restarts: r.o.MaxRestarts, Preemptions: r.o.MaxRestarts})
}

// onTeam runs the command on the connected workers, or follows it where another
// runner of the same job was first.
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
	living, err := r.checkBusy(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if err := r.armLease(ctx); err != nil {
		return Outcome{}, err
	}
	ctx, over := r.untilExpiry(ctx)
	defer over()
	if living != nil {
		return r.takeOver(ctx, living)
	}
	if err := r.xlaFlags(); err != nil {
		return Outcome{}, err
	}
	rec, err := r.openRecord()
	if err != nil {
		return Outcome{}, err
	}
	if err := r.prepare(ctx, rec); err != nil {
		return Outcome{}, err
	}
	r.begun(rec)
	if r.o.Detach {
		event.Notef(r.Sink, event.Info, "follow it with: multihost attach "+r.o.Run+"; end it with: multihost stop "+r.o.Run,
			"run %s goes on without this machine on %s", r.o.Run, tpu.Fold(r.team.ids))
		return Outcome{Started: true, Detached: true}, nil
	}
	return r.followed(ctx)
}

// prepare brings every worker from a connection to a command that runs.
func (r *run) prepare(ctx context.Context, rec *Record) error {
	ctx, over := r.keepVigil(ctx)
	defer over()
	for _, step := range []func(context.Context) error{r.sync, r.preflight, r.free} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	// A runner that is killed during the start leaves a record, for some workers
	// may have started.
	undo, err := rec.saveAhead(r.StateDir)
	if err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
	left, err := r.start(ctx)
	if err != nil && !left {
		undo()
	}
	return err
}

// begun says and records that the attempt runs.
func (r *run) begun(rec *Record) {
	r.rec = rec
	r.tried, r.begunLast = r.tried+1, r.attempt
	rec.beginAttempt(r.Clock.Now())
	if err := rec.save(r.StateDir); err != nil {
		event.Notef(r.Sink, event.Warn, "", "the run goes on, but its record cannot be kept: %v", err)
	}
}

func (r *run) followed(ctx context.Context) (Outcome, error) {
	r.follow = &following{
		Deps: r.Deps, team: r.team, ref: r.ref(), rec: r.rec, watch: &r.watch, skew: r.skew,
		failFast: r.o.FailFast, timeout: r.o.Timeout, grace: r.o.Grace, strict: r.o.StrictExit, watching: r.o.Watch,
		secrets: maskedWords(r.o.Env), patience: r.o.Patience, wraps: r.wraps,
	}
	return r.follow.do(ctx)
}

// takeOver follows an attempt that an earlier runner of this run has started
// and that was not seen to its end.
func (r *run) takeOver(ctx context.Context, living *foundRun) (Outcome, error) {
	r.attempt = living.info.Ref.Attempt
	errs := r.team.each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		_, err := r.team.conns[i].MeasureClock(ctx)
		return err
	})
	if err := r.failed(ctx, StageFollow, errs); err != nil {
		return Outcome{}, err
	}
	rec, err := r.newRecord()
	if err != nil {
		return Outcome{}, err
	}
	rec.Created = r.Clock.Now().Add(-living.info.Age()).UTC()
	r.openJournal(rec.Run, "run", r.o.Env)
	r.Sink.Emit(rec.attempt())
	event.Notef(r.Sink, event.Info, "", "run %s, attempt %d, was started %s ago and is taken over: logs in %s; %s",
		r.o.Run, r.attempt, event.Age(living.info.Age()), rec.LogDir, r.whatCtrlCDoes(true))
	r.begun(rec)
	return r.followed(ctx)
}

// scan reads the directory before anything is asked of the cloud: a local
// mistake must cost nothing.
func (r *run) scan(ctx context.Context) error {
	if r.o.UseExisting {
		return nil
	}
	tree, err := codesync.Scan(ctx, codesync.Options{
		Dir: r.o.Dir, NoIgnore: r.o.NoIgnore, Sink: r.Sink, Home: r.o.Home, Stall: r.o.SyncTimeout,
		Relay: r.o.Relay, RelayFanout: r.o.RelayFanout, Cache: filepath.Join(r.StateDir, "hashes"),
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

// checkBusy refuses to work beside a run that lives on these workers, or stops
// it when asked to, and finds the number of this attempt. It returns the attempt
// to take over, where there is one.
func (r *run) checkBusy(ctx context.Context) (*foundRun, error) {
	runs, errs := r.team.runs(ctx)
	if err := r.failed(ctx, StageBusy, errs); err != nil {
		return nil, err
	}
	r.attempt = max(r.begunLast, lastLocalAttempt(r.StateDir, r.o.Run)) + 1
	for _, found := range runs {
		own := found.info.Ref.Run == r.o.Run
		if own {
			r.attempt = max(r.attempt, found.info.Ref.Attempt+1)
		}
		newer := r.tried == 0 || found.info.Ref.Attempt > r.begunLast // not this runner's own
		if r.adopts && own && newer && r.unseen(found) {
			return &found, r.sameCommand(found)
		}
		if !found.info.Alive() {
			continue
		}
		if r.adopts && own && found.info.Mine && newer && (r.tried > 0 || found.info.Phase == launch.Starting) && r.races < maxRaces {
			return nil, &Error{Stage: StageBusy, Err: errStarting}
		}
		reason := "replaced by " + r.o.Run + " of " + r.Owner
		switch {
		case own && found.info.Mine && (r.tried > 0 || r.adopts):
			// It lost some of its workers: what is left of it cannot go on.
			reason = "a new attempt begins"
		case !r.o.Replace:
			return nil, busy(found, "")
		}
		if err := r.evict(ctx, found, reason); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// unseen reports whether an attempt of this run is on all workers and nobody
// has seen its end: it lives, or it ended while no runner was there.
func (r *run) unseen(found foundRun) bool {
	if !found.info.Mine || len(found.workers) < len(r.team.ids) {
		return false
	}
	if found.info.Alive() {
		return true
	}
	rec, err := loadRecord(r.StateDir, r.o.Run)
	return err == nil && rec != nil && !rec.Ended && rec.Attempt == found.info.Ref.Attempt && found.info.Phase == launch.Exited
}

// sameCommand refuses to take over what runs another command.
func (r *run) sameCommand(found foundRun) error {
	want := launch.Spec{Argv: r.o.Argv, Script: r.o.Script, Env: r.commandEnv(nil)}.Title()
	if found.info.Command == want {
		return nil
	}
	return busy(found, fmt.Sprintf("; asked is another command: %s", want))
}

func busy(found foundRun, differs string) error {
	return &Error{
		Stage:  StageBusy,
		Text:   fmt.Sprintf("run %q of %s lives on %s, started %s ago: %s%s", found.info.Run, found.info.Owner, tpu.Fold(found.workers), event.Age(found.info.Age()), found.info.Command, differs),
		Advice: "follow it with: multihost attach " + found.info.Run + "; to stop it and start this one, add --replace",
	}
}

// evict stops a run that holds the workers.
func (r *run) evict(ctx context.Context, found foundRun, reason string) error {
	if err := found.stoppable(); err != nil {
		return err
	}
	event.Notef(r.Sink, event.Warn, "", "stopping run %s of %s: %s", found.info.Ref.Label(), found.info.Owner, reason)
	stopCtx, cancel := r.detached(ctx, r.o.Grace+2*time.Minute)
	defer cancel()
	return r.team.stopAll(stopCtx, r.Sink, found.info.Ref, r.o.Grace, reason, nil)
}

// failed turns the per-worker errors of a stage into one error; the end of ctx
// comes before whatever it made the workers say.
func (r *run) failed(ctx context.Context, stage Stage, errs []error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return workersError(stage, r.team.ids, errs)
}

func (r *run) sync(ctx context.Context) error {
	if r.o.UseExisting {
		return r.checkFolder(ctx)
	}
	return r.watch.phase("sync", func() (string, error) {
		targets := make([]codesync.Target, len(r.team.ids))
		for i, id := range r.team.ids {
			targets[i] = codesync.Target{Conn: r.team.conns[i], Slice: id.Slice, Addr: r.relayAddress(i)}
		}
		reports, errs := r.tree.PushAll(ctx, targets, r.o.Run)
		if err := r.failed(ctx, StageSync, errs); err != nil {
			return "", err
		}
		return r.synced(reports), nil
	})
}

// relayAddress is where the other workers reach worker i.
func (r *run) relayAddress(i int) string {
	host := r.team.address(i)
	if host == "" {
		return ""
	}
	port := cmp.Or(r.team.slice(i).Workers[r.team.ids[i].Worker].Port, r.Access.Port)
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// synced is what the sync has cost, in words.
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

// checkFolder refuses --use-existing-folder where there is none: a misspelt name
// would run the command in an empty directory.
func (r *run) checkFolder(ctx context.Context) error {
	errs := r.team.each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		status, err := r.team.conns[i].Run(ctx, sshfan.Cmd{Line: "test -d " + sshfan.Quote(r.o.Run)})
		if err == nil && status.Code != 0 {
			err = fmt.Errorf("there is no folder ~/%s", r.o.Run)
		}
		return err
	})
	return r.failed(ctx, StageFolder, errs)
}

func (r *run) preflight(ctx context.Context) error {
	r.wraps, r.boots = make([][]string, len(r.team.ids)), make([]string, len(r.team.ids))
	if r.o.Preflight == "off" && r.o.NUMA == preflight.NUMAOff {
		return nil
	}
	return r.watch.phase("preflight", func() (string, error) {
		reports, err := r.preflightAll(ctx, r.team, PreflightOptions{
			Check:    r.o.Preflight == "check" || r.o.Preflight == "off",
			Require:  r.o.Preflight == "require",
			Ignore:   r.o.Preflight == "off",
			Platform: r.o.Platform,
			Install:  r.o.Install,
		})
		if reports != nil && r.o.Preflight != "off" {
			r.Journal.Emit(event.Result{Name: "preflight", Data: preflight.Rows(r.team.ids, reports)})
		}
		if err != nil {
			return "", err
		}
		if err := r.bindNUMA(reports); err != nil {
			return "", err
		}
		for i, rep := range reports {
			r.boots[i] = rep.BootID
		}
		return preflight.Fold(r.team.ids, reports), nil
	})
}

func (r *run) bindNUMA(reports []preflight.Report) error {
	seen := map[string]bool{}
	for i := range r.team.ids {
		ty, err := tpu.ParseType(r.team.slice(i).Type)
		if err != nil {
			ty = tpu.Type{} // a type newer than our table has no NUMA rule
		}
		wrap, text, err := preflight.NUMAWrap(r.o.NUMA, ty.Generation, reports[i])
		if err != nil {
			return &Error{Stage: StageInput, Err: err}
		}
		r.wraps[i] = wrap
		if text != "" && !seen[text] {
			seen[text] = true
			event.Notef(r.Sink, event.Info, "", "%s", text)
		}
	}
	return nil
}

// free makes sure that nothing holds the TPU when the command starts.
func (r *run) free(ctx context.Context) error {
	return r.watch.phase("free", func() (string, error) {
		stopped := make([]int, len(r.team.ids))
		blind := make([]error, len(r.team.ids))
		errs := r.team.each(ctx, r.Sink, "free", func(ctx context.Context, i int) error {
			var rep launch.FreeReport
			err := again(ctx, r.Sink, r.team.ids[i].String(), "freeing of the TPU", func() (err error) {
				rep, err = launch.FreeTPU(ctx, r.team.conns[i], launch.FreeOptions{Policy: r.o.KillStale, Grace: r.o.Grace})
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
			event.Notef(r.Sink, event.Warn, cure(g.cause), "%s: processes of other users that hold the TPU are not seen: %s", tpu.Fold(g.workers), g.cause)
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

// start arms the supervisors of all workers and then releases them by one
// write each. Unless all are released, none is left running; left reports that
// this is not sure.
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
			// Once more, since the clock of a VM that has just booted is set.
			err := again(ctx, r.Sink, r.team.ids[i].String(), "start", func() error {
				_, err := r.team.conns[i].MeasureClock(ctx)
				return err
			})
			if err == nil {
				armed[i], err = launch.Arm(ctx, r.team.conns[i], r.spec(i))
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
		if err := r.checkSkew(armed); err != nil {
			unsure := r.abort(ctx, armed)
			left = unsure != nil
			return "", errors.Join(err, unsure)
		}
		room := r.tellDisks(armed)
		r.started = make([]launch.Started, n)
		// A worker that goes away at this moment may have started the command.
		limited, cancel := context.WithTimeoutCause(ctx, r.Access.RetryFor+time.Minute, errors.New("it went away at the start and did not come back"))
		defer cancel()
		errs = r.team.each(limited, r.Sink, "", func(ctx context.Context, i int) (err error) {
			r.started[i], err = armed[i].Release(ctx)
			return err
		})
		if err := r.failed(ctx, StageStart, errs); err != nil {
			stopCtx, cancel := r.detached(ctx, r.o.Grace+time.Minute)
			defer cancel()
			unsure := r.team.stopAll(stopCtx, r.Sink, r.ref(), r.o.Grace, "not every worker started", r.isGone)
			left = unsure != nil
			return "", errors.Join(err, unsure)
		}
		r.Sink.Emit(r.released())
		return fmt.Sprintf("%s within %s%s", event.Count(n, "worker"), event.Duration(r.skew), room), nil
	})
	return left, err
}

// released says when the command started where, by the workers' clocks as they
// were measured against the runner's, and sets the skew.
func (r *run) released() event.Release {
	at := make([]time.Time, len(r.started))
	for i, s := range r.started {
		at[i] = s.At.Add(-r.team.conns[i].ClockOffset())
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

// abort takes back every armed supervisor; nothing was started by them. The
// error names the workers where that is not sure.
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

func (r *run) spec(i int) launch.Spec {
	set, unset := r.environment(i)
	wrap := r.wraps[i]
	if n := r.o.Processes; n > 1 {
		wrap = append(perWorker(n, i*n), wrap...)
	}
	python := ""
	if r.o.Skew == SkewCheck || r.o.Skew == SkewWarn {
		python = pythonOf(r.o.Argv, r.o.Script)
	}
	return launch.Spec{
		Python: python, Code: r.o.UseExisting,
		Run: r.o.Run, Attempt: r.attempt, Owner: r.Owner, WorkDir: r.o.Run,
		Argv: r.o.Argv, Script: r.o.Script, Env: r.commandEnv(set), Unset: unset, Wrap: wrap, MaxLog: r.o.MaxLog, Stored: r.stored(),
	}
}

// stored are the secrets that the workers read.
func (r *run) stored() []launch.StoredSecret {
	all := make([]launch.StoredSecret, len(r.o.Secrets))
	for i, s := range r.o.Secrets {
		all[i] = launch.StoredSecret{Name: s.Name, Root: r.Roots.SecretManager, Project: s.Project, ID: s.ID, Version: s.Version}
	}
	return all
}

// sayUnmasked says which values are shown when the command prints them.
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

// commandEnv is the environment of the command: set, then the user's own.
func (r *run) commandEnv(set []config.EnvVar) []launch.EnvVar {
	env := make([]launch.EnvVar, 0, len(set)+len(r.o.Env))
	for _, v := range append(set, r.o.Env...) {
		env = append(env, launch.EnvVar{Name: v.Name, Value: v.Value, Secret: v.Secret})
	}
	return env
}

// environment is what the command of worker i finds besides the user's own
// variables, and what must not be inherited.
//
// The MEGASCALE variables name the slices to each other. Slices of one
// multi-node queued resource have them in their metadata, and a variable would
// override it, so inherited ones are removed; slices made apart, and a part of
// a queued resource, need all four set; a single slice must have none.
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
	if r.onHosts() { // no metadata tells JAX who is who
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

// oneQueuedResource reports whether the slices are exactly those of one
// multi-node queued resource, so that their metadata is right. The last number
// in the names tells whether a partial set lost a member.
func (r *run) oneQueuedResource() bool {
	for i, s := range r.team.slices {
		if !s.MultiSlice || s.QueuedResource != r.team.slices[0].QueuedResource || !strings.HasSuffix(s.Name, "-"+strconv.Itoa(i)) {
			return false
		}
	}
	return !r.o.AllowPartial
}

// reachIn is how long a worker that is to be stopped is tried to be reached:
// whoever stops waits hardly longer for those that are away than for those that
// are there.
func reachIn(grace time.Duration) time.Duration { return max(grace, 0) + 5*time.Second }

// stopAll ends a run on every worker and proves it. The error names the
// workers on which it may still run.
//
// A worker for which gone reports true is left out: its slice is not there any
// more. gone may be nil.
func (t *team) stopAll(ctx context.Context, sink event.Sink, ref launch.Ref, grace time.Duration, reason string, gone func(i int) bool) error {
	errs := t.each(ctx, sink, "stop", func(ctx context.Context, i int) error {
		if gone != nil && gone(i) {
			return nil
		}
		rep, err := launch.Stop(ctx, t.conns[i], ref, launch.StopOptions{Grace: grace, Reach: reachIn(grace), Reason: reason})
		if err == nil && len(rep.Survivors) > 0 {
			err = fmt.Errorf("processes survive SIGKILL: %v", rep.Survivors)
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

// probeLogDir finds out early what openRecord would refuse later, when slices
// have been made and paid for.
func (r *run) probeLogDir() error {
	rec := &Record{LogDir: recordDir(r.StateDir, r.o.Run, 1)}
	if r.o.LogDir != "" {
		rec.LogDir = r.o.LogDir
	}
	if err := rec.makeLogDir(); err != nil {
		return err
	}
	if r.o.LogDir != "" {
		return rec.unused()
	}
	return nil
}

// openRecord makes the log directory and says where the logs will be, before
// anything can fail on the workers.
func (r *run) openRecord() (*Record, error) {
	rec, err := r.newRecord()
	if err != nil {
		return nil, err
	}
	if err := rec.unused(); err != nil {
		return nil, err
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
	event.Notef(r.Sink, event.Info, "", "run %s, attempt %d: logs in %s; %s", r.o.Run, r.attempt, r.logDir, how)
	return rec, nil
}

// newRecord is the record of the attempt, with those before it, and its log
// directory is made.
func (r *run) newRecord() (*Record, error) {
	rec := &Record{
		Run: r.o.Run, Attempt: r.attempt, Project: r.Project, Zone: r.Zone, Prefix: r.o.Prefix,
		Partial: r.o.AllowPartial, Login: r.Access.Login, Owner: r.Owner, Created: r.Clock.Now().UTC(),
		Command: commandText(r.o), Workers: len(r.team.ids), Hosts: r.hostsText(), Slices: recordSlices(r.team.slices),
		KeepGoing: !r.o.FailFast,
	}
	for _, v := range r.o.Env {
		if v.Secret {
			rec.SecretEnv = append(rec.SecretEnv, v.Name)
		}
	}
	if old, err := loadRecord(r.StateDir, r.o.Run); err == nil && old != nil {
		rec.Attempts = old.Attempts
	}
	dir := recordDir(r.StateDir, r.o.Run, r.attempt)
	if r.o.LogDir != "" {
		dir = attemptDir(r.o.LogDir, r.attempt)
	}
	var err error
	if rec.LogDir, err = filepath.Abs(dir); err != nil {
		return nil, &Error{Stage: StageLocal, Err: err}
	}
	r.logDir = rec.LogDir
	return rec, rec.makeLogDir()
}

func (d *Deps) hostsText() string {
	hosts, _ := d.Cloud.(HostList)
	return hosts.String()
}

// commandText is the command for people and records, secrets masked.
func commandText(o RunOptions) string {
	text := o.Script
	if len(o.Argv) > 0 {
		text = strings.Join(o.Argv, " ")
	}
	for _, v := range o.Env {
		if v.Secret && v.Value != "" {
			text = strings.ReplaceAll(text, v.Value, "***")
		}
	}
	if line, _, more := strings.Cut(text, "\n"); more {
		text = line + " …"
	}
	return text
}
