package attempt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/preflight"
	"multihost/internal/remote"
	"multihost/internal/settings"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A start prepares the workers of one attempt over their connections, and starts the
// command.
type start struct {
	*Run
	history  *History
	workers  *workers.Connected
	decision *Decision
	vigil    *vigil // set during the preparation

	wraps [][]string    // for each worker: words before the command
	venvs []launch.Venv // for each worker, with Options.Venv
	boots []string      // for each worker: id of the boot that the preflight tuned, or ""
	skew  time.Duration // time between the first and the last start
}

func (r *Run) start(h *History, t *workers.Connected, in *Decision) *start {
	return &start{Run: r, history: h, workers: t, decision: in, wraps: make([][]string, len(t.IDs)), boots: make([]string, len(t.IDs))}
}

// do prepares every worker and starts the command there.
func (r *start) do(ctx context.Context) error {
	ctx, watch, over := keepVigil(ctx, r.Reach, r.workers)
	r.vigil = watch
	defer over()
	for _, step := range []func(context.Context) error{r.sync, r.preflight, r.makeVenvs, r.free} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	// First save the record. If this runner is killed during the start, some workers may
	// already have started the command.
	undo, err := r.decision.record.SaveAhead(r.StateDir)
	if err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
	left, err := r.release(ctx)
	if err != nil && !left {
		undo()
	}
	return err
}

// failed turns the errors of all workers in a stage into one error. After the end of ctx,
// it returns the cause of ctx, which may have caused the workers' errors.
func failed(ctx context.Context, during stage.Stage, t *workers.Connected, errs []error) error {
	return stage.InterruptedOr(ctx, stage.WorkersError(during, t.IDs, errs))
}

func (r *start) sync(ctx context.Context) error {
	if r.O.UseExisting {
		return r.checkFolder(ctx)
	}
	return r.Watch.Phase("sync", func() (string, error) {
		defer r.workers.Listen(r.syncing)()
		reports, errs := r.Tree.PushAll(ctx, r.decision.targets, r.O.Run)
		if err := failed(ctx, stage.Sync, r.workers, errs); err != nil {
			return "", err
		}
		return r.synced(reports), nil
	})
}

// synced describes the files that the sync sent.
func (r *start) synced(reports []codesync.Report) string {
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
func (r *start) checkFolder(ctx context.Context) error {
	errs := r.workers.Each(ctx, r.Sink, "", func(ctx context.Context, i int) error {
		status, err := r.workers.Conns[i].Run(ctx, folderCheck(r.O.Run))
		if err == nil && status.Code != 0 {
			err = fmt.Errorf("there is no folder ~/%s", r.O.Run)
		}
		return err
	})
	return failed(ctx, stage.Folder, r.workers, errs)
}

func (r *start) preflight(ctx context.Context) error {
	if !r.decision.tune {
		return nil
	}
	return r.Watch.Phase("preflight", func() (string, error) {
		reports, err := settings.Apply(ctx, r.settings(), r.workers, r.O.Prefix, r.decision.tuning)
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

// makeVenvs makes the run's virtual environment on every worker, unless an earlier attempt
// made it.
func (r *start) makeVenvs(ctx context.Context) error {
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
		if err := failed(ctx, stage.Venv, r.workers, errs); err != nil {
			return "", r.adviseOnVenv(err)
		}
		return "~/" + launch.VenvDir(r.O.Run), nil
	})
}

// adviseOnVenv adds advice to the error of workers that cannot make the virtual
// environment, for example because a package is missing.
func (r *start) adviseOnVenv(err error) error {
	var refused *launch.VenvError
	var e *stage.Error
	if errors.As(err, &refused) && errors.As(err, &e) && e.Stage == stage.Venv {
		e.Advice = "to do without it: --venv=false"
		if p := refused.Package; p != "" {
			e.Advice = "install it on the workers: multihost exec " + r.Flag(r.O.Prefix) + " --sudo -- apt-get install -y " + p + "; or do without it: --venv=false"
		}
	}
	return err
}

// bindNUMA finds the words that bind each worker's command to a NUMA node. The notes
// explain the decision for each worker.
func (r *start) bindNUMA(reports []preflight.Report) (notes []string, err error) {
	for i := range r.workers.IDs {
		ty, err := tpu.ParseType(r.workers.Slice(i).Type)
		if err != nil {
			ty = tpu.Type{} // a type that our table lacks has no NUMA rule
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
func (r *start) free(ctx context.Context) error {
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
		if err := failed(ctx, stage.Free, r.workers, errs); err != nil {
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

// startMoment returns when n workers start if the order is sent at now. Every order arrives
// before that moment, even over slow connections. For a single worker it returns zero: it
// starts at once, even if its clock is wrong.
func startMoment(now time.Time, n int) time.Time {
	if n == 1 {
		return time.Time{}
	}
	return now.Add(min(100*time.Millisecond+time.Duration(n)*time.Millisecond, 2*time.Second))
}

// release prepares a supervisor on every worker. Then it orders each of them, by one write,
// to start the command at the same moment. If it cannot release all of them, it stops those
// that it has released. The result left says that some commands may still run.
func (r *start) release(ctx context.Context) (left bool, err error) {
	if r.O.StartLimit > 0 {
		late := &stage.Error{Stage: stage.Start, Text: fmt.Sprintf("not every worker started within %s (--start-timeout)", r.O.StartLimit), Err: context.DeadlineExceeded, Lost: true}
		limited, cancel := context.WithTimeoutCause(ctx, r.O.StartLimit, late)
		defer cancel()
		ctx = limited
	}
	err = r.Watch.Phase("start", func() (string, error) {
		n := len(r.workers.IDs)
		armed := make([]*launch.Armed, n)
		// Another command may have seen no command on the workers and be deleting the slices
		// now. It sees a supervisor that is armed.
		gone, over := r.vigil.glance(ctx, r.Reach, r.workers)
		defer over()
		errs := r.workers.Each(ctx, r.Sink, "start", func(ctx context.Context, i int) error {
			// Measure the clock again: a VM that has just booted may have set its clock
			// since the first measurement.
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
		if err := failed(ctx, stage.Start, r.workers, errs); err != nil {
			unsure := r.abort(ctx, armed)
			left = unsure != nil
			return "", errors.Join(err, unsure)
		}
		err := r.checkSkew(armed)
		if why := gone(); why != "" {
			err = &stage.Error{Stage: stage.Start, Text: why, Lost: true}
		}
		for i, a := range armed {
			err = cmp.Or[error](r.history.stoppedSince(a.Stopped(), r.workers.Conns[i].ClockOffset(), r.Clock), err)
		}
		if err != nil {
			unsure := r.abort(ctx, armed)
			left = unsure != nil
			return "", errors.Join(err, unsure)
		}
		room := r.tellDisks(armed)
		started := make([]launch.Started, n)
		// A worker whose connection drops now may have started the command.
		limited, cancel := context.WithTimeoutCause(ctx, r.Access.RetryFor+time.Minute, errors.New("it went away at the start and did not come back"))
		defer cancel()
		if n > 1 {
			r.workers.Each(limited, r.Sink, "", func(ctx context.Context, i int) error {
				armed[i].MeasureClock(ctx)
				return nil
			})
		}
		at := startMoment(time.Now(), n) // the clock against which the workers' clocks were measured
		errs = r.workers.Each(limited, r.Sink, "", func(ctx context.Context, i int) (err error) {
			started[i], err = armed[i].ReleaseAt(ctx, at)
			return err
		})
		if err := failed(ctx, stage.Start, r.workers, errs); err != nil {
			stopCtx, cancel := r.Detached(ctx, r.O.Grace+time.Minute)
			defer cancel()
			unsure := r.workers.StopAll(stopCtx, r.Sink, r.decision.ref(r.O.Run), r.O.Grace, "not every worker started", r.isGone)
			left = unsure != nil
			return "", errors.Join(err, unsure)
		}
		r.Sink.Emit(r.released(armed, started))
		return startedText(n, r.skew) + room, nil
	})
	return left, err
}

// startedText says how many workers have started the command, and the time between the
// first and the last start.
func startedText(workers int, skew time.Duration) string {
	switch {
	case workers == 1:
		return "1 worker"
	case skew <= 0:
		return event.Count(workers, "worker") + " at the same moment"
	}
	return fmt.Sprintf("%s within %s", event.Count(workers, "worker"), event.Duration(skew))
}

// released reports when the command started on each worker and sets the skew. The times
// are from the workers' clocks, corrected to the runner's.
func (r *start) released(armed []*launch.Armed, started []launch.Started) event.Release {
	at := make([]time.Time, len(started))
	for i, s := range started {
		at[i] = s.At.Add(-armed[i].ClockOffset())
	}
	first, last := slices.MinFunc(at, time.Time.Compare), slices.MaxFunc(at, time.Time.Compare)
	r.skew = last.Sub(first)
	e := event.Release{Attempt: r.decision.attempt, First: first, Workers: make([]event.ReleasedOn, len(at))}
	for i, id := range r.workers.IDs {
		e.Workers[i] = event.ReleasedOn{Slice: id.Slice, Worker: id.Worker, After: at[i].Sub(first)}
	}
	return e
}

// tellDisks warns of low disks, and returns the room for output.
func (r *start) tellDisks(armed []*launch.Armed) string {
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

// abort cancels every armed supervisor before its start. The error names the workers that
// may still have the supervisor.
func (r *start) abort(ctx context.Context, armed []*launch.Armed) error {
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

// isGone reports whether the slice of worker i is gone.
func (r *start) isGone(i int) bool { return r.vigil.isGone(r.workers.Slice(i).Name) }

// bound returns the command of worker i, bound to the NUMA node that the preflight found,
// and in the virtual environment.
func (r *start) bound(i int) launch.Spec {
	s := r.decision.commands[i]
	s.Wrap = slices.Concat(s.Wrap, r.wraps[i])
	if r.O.Venv {
		s.Env = append(r.venvs[i].Env(), s.Env...) // the user's own PATH comes last, so it is used
	}
	return s
}

// folderCheck returns the command that tests whether the folder of --use-existing-folder
// exists. Without the test, a wrong name would run the command in an empty directory.
func folderCheck(run string) remote.Cmd {
	return remote.Cmd{Line: "test -d " + remote.Quote(run), ReadOnly: true}
}
