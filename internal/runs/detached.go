package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/teardown"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A BucketRun is a job without runner, as its bucket describes it.
type BucketRun struct {
	Deps
	Store *detach.Bucket
	Desc  detach.Description

	gone bool // its slices have gone, so no further worker comes

	// For WarnUnable:
	asked  time.Time
	unable []detach.Seen
	warned string
}

// errElsewhere says that a run belongs to another project or zone than the command.
var errElsewhere = errors.New("started in another project or zone")

// FindBucketRun finds a job without runner by its name. It looks in the bucket that the user
// names, or else in the bucket of this machine's record. It returns nil for other runs.
func FindBucketRun(ctx context.Context, d Deps, name string) (*BucketRun, error) {
	if d.OpenBucket == nil {
		return nil, nil // no cloud knows these hosts
	}
	bucket, dir := d.Bucket, d.BucketDir
	if bucket == "" {
		rec, err := record.LoadRecord(d.StateDir, name)
		if err != nil || rec == nil || rec.Bucket == "" {
			return nil, err
		}
		bucket, dir = rec.Bucket, rec.BucketDir
	}
	b, err := d.OpenBucket(ctx, bucket, dir)
	if err != nil {
		return nil, &stage.Error{Stage: stage.Input, Err: err}
	}
	desc, err := b.Describe(ctx, name)
	if errors.Is(err, detach.ErrNoRun) {
		return nil, &stage.Error{Stage: stage.Discover, Err: err, Advice: "list the runs with: multihost ps --bucket-name=" + b.Name()}
	}
	if err != nil {
		return nil, err
	}
	if desc.Project != d.Project || desc.Zone != d.Zone {
		return nil, &stage.Error{Stage: stage.Discover, Err: errElsewhere, Text: fmt.Sprintf("run %q was started in project %s, zone %s", name, desc.Project, desc.Zone),
			Advice: fmt.Sprintf("add --project=%s --zone=%s", desc.Project, desc.Zone)}
	}
	if joined, ok := provision.As[interface{ Assume(kind, id string) }](d.Cloud); ok {
		joined.Assume(desc.Kind, desc.Resource)
	}
	return &BucketRun{Deps: d, Store: b, Desc: desc}, nil
}

// Record returns the record that this machine would have if it had started the run. A slice
// has a UID only if it is ready now. If the slices cannot be listed, Record returns an error,
// and the record has no slices.
func (r *BucketRun) Record(ctx context.Context, attempt int) (*record.Record, error) {
	rec := &record.Record{Run: r.Desc.Run, Attempt: max(1, attempt), Project: r.Desc.Project, Zone: r.Desc.Zone, Prefix: r.Desc.Resource, Login: r.Desc.Login,
		Owner: r.Desc.Owner, Created: r.Desc.Created, Command: r.Desc.Command, Workers: len(r.Desc.IDs()),
		LogDir: record.RecordDir(r.StateDir, r.Desc.Run, attempt), KeepGoing: true, Bucket: r.Store.Name(), BucketDir: r.Store.Dir()}
	nodes, err := r.Cloud.Slices(ctx)
	if err != nil {
		return rec, fmt.Errorf("list slices in %q: %w", r.Zone, err)
	}
	for _, name := range r.Desc.Nodes {
		slice := record.Slice{Name: name, Workers: r.Desc.Workers, Type: r.Desc.Type}
		for _, n := range nodes {
			if ok, _ := n.Ready(); ok && n.Name == name && n.Labels[provision.LabelRun] == provision.LabelValue(r.Desc.Run) {
				slice.UID = n.UID
			}
		}
		rec.Slices = append(rec.Slices, slice)
	}
	return rec, nil
}

// pace is the pause between two reads of the bucket.
func (r *BucketRun) pace() time.Duration {
	every := time.Duration(r.Desc.Every * float64(time.Second))
	return min(max(every/4, 500*time.Millisecond), 10*time.Second)
}

// Pause waits until the next read of the bucket is due. When ctx ends, it returns the
// cause.
func (r *BucketRun) Pause(ctx context.Context) error {
	return stage.Sleep(ctx, r.Clock, r.pace())
}

// attach follows the run to its end: over SSH while its workers can be reached, otherwise
// in the bucket. The logs in the bucket may be as old as Desc.Every.
func (r *BucketRun) attach(ctx context.Context, o AttachOptions) (stage.Outcome, error) {
	r.ComeTo(r.Desc.Run)
	o.StrictExit = o.StrictExit || r.Desc.StrictExit
	a := &attaching{BucketRun: r, o: o, begin: r.Clock.Now(), followed: -1, shown: map[tpu.WorkerID]int64{}}
	for {
		next, out, err := a.round(ctx)
		if next == afterPause {
			if err = r.Pause(ctx); err != nil {
				next = atEnd
			}
		}
		if next == atEnd {
			out.Started = out.Started || a.started
			return out, err
		}
	}
}

// attaching is a command that follows a job without runner.
type attaching struct {
	*BucketRun
	o       AttachOptions
	begin   time.Time
	told    string // the last text about progress
	started bool   // the command runs, or has ended, on all workers

	followed int // the attempt that was followed over SSH as long as possible; -1: none
	out      stage.Outcome
	sum      *event.Summary // summary of that attempt; nil: it was not followed to its end

	shown   map[tpu.WorkerID]int64 // bytes shown of each worker's log, for the attempt shownOf
	shownOf int
	logs    follow.LogWait
}

// A nextRound says when the next round of attaching comes.
type nextRound int

const (
	atOnce nextRound = iota
	afterPause
	atEnd // there is no further round
)

// A roundStep is what a round does once it knows the state of the run.
type roundStep int

const (
	followOverSSH roundStep = iota // follow the attempt until the connection or the command ends
	bringOverSSH                   // copy the rest of the logs of an ended run
	awaitLogs                      // wait until the bucket has the rest
	concludeRun
	lookOn
)

// A bucketLook is what a round knows about the run.
type bucketLook struct {
	over     bool // the run has ended on all workers
	running  bool // the run is active on all workers
	followed bool // its newest attempt was followed over SSH as long as possible
	part     bool // logs are not whole here, and the slices may have the rest
	patient  bool // --log-timeout is not over
}

func (l bucketLook) step() roundStep {
	switch {
	case !l.over && l.running && !l.followed:
		return followOverSSH
	case !l.over:
		return lookOn
	case l.part && !l.followed:
		return bringOverSSH
	case l.part && l.patient:
		return awaitLogs
	}
	return concludeRun
}

// round reads the state of the run once and acts on it.
func (a *attaching) round(ctx context.Context) (next nextRound, out stage.Outcome, err error) {
	fail := func(err error) (nextRound, stage.Outcome, error) {
		return atEnd, stage.Outcome{}, stage.InterruptedOr(ctx, err)
	}
	state, err := a.Store.State(ctx, a.Desc.Run)
	if err != nil {
		return fail(err)
	}
	state.StrictExit = a.o.StrictExit
	rec, err := a.Record(ctx, state.Attempt)
	if err != nil && !a.Over(state) {
		return fail(err)
	}
	if err := rec.MakeLogDir(); err != nil {
		return atEnd, stage.Outcome{}, err
	}
	a.tellProgress(state)
	WarnUnable(ctx, a.BucketRun, state)
	l := bucketLook{over: a.Over(state), running: a.Running(state) == len(a.Desc.IDs()), followed: a.followed == state.Attempt}
	a.started = l.over || l.running
	part := ""
	if l.step() != followOverSSH {
		if err := a.bring(ctx, rec); err != nil {
			return fail(err)
		}
		part = a.partly(rec, state)
		l.part = l.over && part != "" && a.exists(ctx)
		l.patient = l.part && a.logs.Left(a.Clock.Now(), a.o.Patience.Log) > 0
	}
	switch l.step() {
	case followOverSSH, bringOverSSH:
		return a.overSSH(ctx, rec, state.Attempt, l.over)
	case awaitLogs:
		if a.logs.Due(a.Clock.Now()) {
			event.Notef(a.Sink, event.Warn, "", "%s: waiting up to %s (--log-timeout) for the bucket to have the rest", part, stage.AsTyped(a.o.Patience.Log))
		}
		return afterPause, stage.Outcome{}, nil
	case concludeRun:
		out, err = a.end(ctx, rec, state)
		return atEnd, out, err
	}
	if err := a.StillThere(ctx, state); err != nil {
		_ = a.bring(ctx, rec) // workers that are shutting down have uploaded their last output meanwhile
		if a.gone {
			a.sweep(ctx, state)
		}
		return fail(err)
	}
	return afterPause, stage.Outcome{}, nil
}

// tellProgress says how far the run has come, if that has changed.
func (a *attaching) tellProgress(state detach.State) {
	text := a.Summary(state)
	if text == a.told {
		return
	}
	if a.told == "" && !a.Over(state) {
		event.Notef(a.Sink, event.Info, "", "run %s lives without a runner, in %s; Ctrl-C leaves it running", a.Desc.Run, a.Store.URL(a.Desc.Run))
	}
	a.told = text
	event.Notef(a.Sink, event.Info, "", "%s", text)
	a.warnRights(state)
}

// overSSH follows an attempt over SSH as long as possible. Afterwards the bucket says
// whether the run has ended or has another attempt. If over is true, the run has ended, and
// overSSH only copies the rest of the logs.
func (a *attaching) overSSH(ctx context.Context, rec *record.Record, attempt int, over bool) (nextRound, stage.Outcome, error) {
	out, sum, err := attachOver(ctx, a.Deps, rec, a.o)
	a.followed, a.out, a.sum = attempt, out, sum
	if err == nil || !over {
		clear(a.shown)
	}
	switch {
	case ctx.Err() != nil:
		if sum != nil {
			a.Sink.Emit(*sum)
		}
		return atEnd, out, err
	case err != nil && !over:
		event.Notef(a.Sink, event.Warn, "", "cannot follow over SSH (%v): following from the bucket, up to %s late", err, event.Age(time.Duration(a.Desc.Every)*time.Second))
	}
	if err != nil {
		a.sum = nil
	}
	return atOnce, stage.Outcome{}, nil
}

// bring brings the local logs of an attempt up to date with the bucket, and shows what is
// new.
func (a *attaching) bring(ctx context.Context, rec *record.Record) error {
	if a.shownOf != rec.Attempt {
		a.shownOf = rec.Attempt
		clear(a.shown)
	}
	return a.bringLogs(ctx, rec, a.shown)
}

// end reports the end of the run. If SSH has shown the end and the bucket agrees, end emits
// the summary from SSH. Otherwise it uses the reports in the bucket.
func (a *attaching) end(ctx context.Context, rec *record.Record, state detach.State) (stage.Outcome, error) {
	defer func() { // after the summary
		if !a.sayKept(ctx, state) {
			a.sweep(ctx, state)
		}
	}()
	if a.sum != nil && a.followed == state.Attempt && a.sum.OK == (state.Blame() == nil) {
		a.sayBackground(a.sum, state)
		a.Sink.Emit(*a.sum)
		return a.out, nil
	}
	return a.conclude(ctx, rec, state, a.begin)
}

// Running counts the workers on which the newest attempt is running, or has ended without
// its whole log in the bucket.
func (r *BucketRun) Running(state detach.State) int {
	n := 0
	for _, w := range state.Seen {
		if (w.Phase == "running" || w.Phase == "logs") && w.Attempt == state.Attempt {
			n++
		}
	}
	return n
}

// Over reports whether the run has ended on all workers that can still take part.
func (r *BucketRun) Over(state detach.State) bool {
	return state.Over(r.Desc) || r.gone && state.GivenUp()
}

// StillThere returns an error if no worker is left to bring the run to an end. It deletes
// nothing, because commands that only show something call it, too.
func (r *BucketRun) StillThere(ctx context.Context, state detach.State) error {
	res, err := r.Cloud.Get(ctx, r.Desc.Resource)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		again, err := r.Store.State(ctx, r.Desc.Run)
		r.gone = true
		if err != nil || r.Over(again) {
			return err
		}
		return &stage.Error{Stage: stage.Follow, Text: fmt.Sprintf("%s is gone, and only %d of %s ended in the bucket", provision.NameOf(r.Cloud, r.Desc.Resource), len(again.Ended), event.Count(len(r.Desc.IDs()), "worker")),
			Advice: goesOn(again) + "read what there is with: multihost logs " + r.Desc.Run}
	case err != nil:
		return err
	case !r.owns(res):
		return &stage.Error{Stage: stage.Follow, Text: fmt.Sprintf("%s is not of run %q", provision.QuotedNameOf(r.Cloud, r.Desc.Resource), r.Desc.Run)}
	case res.Dead():
		if again, err := r.Store.State(ctx, r.Desc.Run); err == nil {
			state = again
		}
		left := ", and no worker is left to ask for another"
		if !res.Spent() {
			left = "; the workers that are left cannot ask for another, and delete it when their command has ended"
		}
		return &stage.Error{Stage: stage.Follow, Text: fmt.Sprintf("%s is %s%s%s", provision.NameOf(r.Cloud, r.Desc.Resource), res.State, wentDown(state), left),
			Advice: fmt.Sprintf("type the same multihost job --detach again: the run goes on as its next attempt; or give it up with: multihost stop %s", r.Desc.Run)}
	}
	return nil
}

// wentDown returns what workers reported before their machines shut down. The text follows
// the state of a queued resource: " (s1w[0-3] preempted)", or "".
func wentDown(state detach.State) string {
	workers := map[string][]tpu.WorkerID{}
	for _, w := range state.Seen {
		if w.Phase == detach.Down {
			workers[w.Detail] = append(workers[w.Detail], w.Worker)
		}
	}
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(workers)) {
		parts = append(parts, tpu.Fold(workers[why])+" "+why)
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// Summary describes the run's progress in a sentence.
func (r *BucketRun) Summary(state detach.State) string {
	total := len(r.Desc.IDs())
	switch {
	case state.Over(r.Desc):
		return fmt.Sprintf("run %s, attempt %d: ended on %s", r.Desc.Run, state.Attempt, follow.OnAll(total))
	case r.Over(state):
		return fmt.Sprintf("run %s, attempt %d: ended on %d of %s; the others never came", r.Desc.Run, max(1, state.Attempt), len(state.Ended), event.Count(total, "worker"))
	}
	if len(state.Seen) == 0 {
		return fmt.Sprintf("run %s: no worker has reported yet", r.Desc.Run)
	}
	phases := map[string][]tpu.WorkerID{}
	var order []string
	for _, w := range state.Seen {
		phase := w.Phase
		switch {
		case phase == detach.Down:
			phase = "down, " + w.Detail + ","
		case w.Detail != "" && (phase == "boot" || phase == "preflight"): // what the phase waits for
			phase += " (" + w.Detail + ")"
		}
		if len(phases[phase]) == 0 {
			order = append(order, phase)
		}
		phases[phase] = append(phases[phase], w.Worker)
	}
	parts := make([]string, len(order))
	for i, p := range order {
		parts[i] = p + " on " + tpu.Fold(phases[p])
	}
	if missing := total - len(state.Seen); missing > 0 {
		parts = append(parts, event.Count(missing, "worker")+" not seen yet")
	}
	return fmt.Sprintf("run %s, attempt %d: %s", r.Desc.Run, max(1, state.Attempt), strings.Join(parts, ", "))
}

// noneMayDelete reports whether all workers have said that they may not delete the queued
// resource.
func noneMayDelete(state detach.State) bool {
	may := func(w detach.Seen) bool { return w.MayDelete == "yes" || w.MayDelete == "" }
	return len(state.Seen) > 0 && !slices.ContainsFunc(state.Seen, may)
}

// warnRights warns if no worker may delete the queued resource.
func (r *BucketRun) warnRights(state detach.State) {
	if noneMayDelete(state) {
		event.Notef(r.Sink, event.Warn, teardown.Hint(r.Reach, r.Desc.Resource), "no worker may delete %s when the run has ended: %s", provision.NameOf(r.Cloud, r.Desc.Resource), state.Seen[0].MayDelete)
	}
}

// whyKept returns why the slices of an ended run stay, or "" if the workers delete them.
func (r *BucketRun) whyKept(state detach.State) string {
	switch {
	case r.Desc.Keep == detach.KeepAlways:
		return "--keep"
	case r.Desc.Keep == detach.KeepOnFailure && state.Blame() != nil && r.Desc.KeepFor > 0:
		return "--keep-on-failure=" + stage.AsTyped(time.Duration(r.Desc.KeepFor*float64(time.Second)))
	case r.Desc.Keep == detach.KeepOnFailure && state.Blame() != nil:
		return "--keep-on-failure"
	case len(state.Unsent) > 0:
		return "the bucket has not taken the whole log of " + tpu.Fold(state.Unsent)
	}
	return ""
}

// sayKept reports that the queued resource of an ended run stays, if it does. It returns
// whether it should stay.
func (r *BucketRun) sayKept(ctx context.Context, state detach.State) bool {
	why := r.whyKept(state)
	if why == "" {
		return false
	}
	if res, err := r.Cloud.Get(ctx, r.Desc.Resource); err == nil && r.owns(res) {
		event.Notef(r.Sink, event.Warn, teardown.Hint(r.Reach, res.ID), "%s stays (%s), %s", provision.NameOf(r.Cloud, res.ID), why, res.Standing())
	}
	return true
}

// bringLogs brings the local logs up to date with the bucket. It shows what is new to a
// user who attaches. shown holds how much of each worker's log has been shown.
func (r *BucketRun) bringLogs(ctx context.Context, rec *record.Record, shown map[tpu.WorkerID]int64) error {
	ids := r.Desc.IDs()
	errs := make([]error, len(ids))
	at := make([]int64, len(ids))
	var group errgroup.Group
	group.SetLimit(16)
	for i, id := range ids {
		from, known := shown[id]
		if !known {
			from = -1
		}
		group.Go(func() error {
			at[i], errs[i] = r.bringLog(ctx, rec, id, from)
			return nil
		})
	}
	_ = group.Wait() // the goroutines return nil
	for i, id := range ids {
		if errs[i] == nil {
			shown[id] = at[i]
		}
	}
	return stage.WorkersError(stage.Follow, ids, errs)
}

// bringLog copies a worker's log from an offset on; -1 means the end of the local log. It
// returns the offset of the end. Several processes may copy one log at the same time,
// because each writes every byte at that byte's offset.
func (r *BucketRun) bringLog(ctx context.Context, rec *record.Record, id tpu.WorkerID, from int64) (int64, error) {
	file, err := os.OpenFile(rec.LogPath(id), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if from < 0 {
		info, err := file.Stat()
		if err != nil {
			return 0, err
		}
		from = info.Size()
	}
	n, err := r.Store.Log(ctx, r.Desc.Run, id, rec.Attempt, from, &localLog{r.Sink, file, id, from, &record.ArrivalWriter{Path: record.ArrivalsPath(rec.LogDir, id), Now: r.Clock.Now}})
	return from + n, err
}

// A localLog writes a log from an offset on, and shows what it writes.
type localLog struct {
	sink event.Sink
	file *os.File
	id   tpu.WorkerID
	at   int64

	arrivals *record.ArrivalWriter
}

func (l *localLog) Write(p []byte) (int, error) {
	l.arrivals.Mark(l.at)
	n, err := l.file.WriteAt(p, l.at)
	l.at += int64(n)
	if n > 0 {
		l.sink.Emit(event.Output{Slice: l.id.Slice, Worker: l.id.Worker, Data: p[:n]})
	}
	return n, err
}

// conclude reports how the run ended, from the reports of the workers.
func (r *BucketRun) conclude(ctx context.Context, rec *record.Record, state detach.State, begin time.Time) (stage.Outcome, error) {
	sum := r.Judge(rec, state, begin)
	part := r.partly(rec, state)
	if part != "" {
		r.sayPart(ctx, &sum, part)
	}
	rec.Ended, rec.Code, rec.Cut = true, sum.ExitCode, part != ""
	if err := rec.Save(r.StateDir); err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
	r.Sink.Emit(sum)
	return stage.Outcome{Code: sum.CommandCode, Started: true, PartLogs: part != ""}, nil
}

// partly says which logs are incomplete here although their workers have ended, or returns
// "".
func (r *BucketRun) partly(rec *record.Record, state detach.State) string {
	var all follow.Parts
	for _, e := range state.Ended {
		if have := rec.Have(e.Worker); have < e.LogSize {
			all = append(all, &follow.PartLog{ID: e.Worker, Have: have, Written: e.LogSize})
		}
	}
	return all.String()
}

// sayPart adds to the summary which logs are incomplete here. A success then becomes a
// failure.
func (r *BucketRun) sayPart(ctx context.Context, sum *event.Summary, part string) {
	sum.Text += "; " + part
	if !sum.OK {
		return
	}
	sum.OK, sum.ExitCode, sum.Next = false, stage.PartLogCode, "its slices are gone, and with them the rest"
	if r.exists(ctx) {
		sum.Next = "bring the rest with: multihost attach " + r.Desc.Run
	}
}

// exists reports whether the queued resource of the run exists. It returns true if that is
// unknown.
func (r *BucketRun) exists(ctx context.Context) bool {
	res, err := r.Cloud.Get(ctx, r.Desc.Resource)
	return err != nil && gcp.ClassOf(err) != gcp.NotFound || err == nil && r.owns(res)
}

// Judge emits how the run ended on each worker, and returns the summary of the run.
func (r *BucketRun) Judge(rec *record.Record, state detach.State, begin time.Time) event.Summary {
	for _, e := range state.Ended {
		r.Sink.Emit(event.WorkerDone{Slice: e.Worker.Slice, Worker: e.Worker.Worker, Code: e.Code, Signal: e.Signal, Reason: e.Reason, End: e.At})
	}
	sum := event.Summary{Run: r.Desc.Run, Attempt: rec.Attempt, OK: true, LogDir: rec.LogDir,
		Phases: []event.PhaseTime{{Name: "follow", Elapsed: r.Clock.Now().Sub(begin)}}}
	sum.Text = fmt.Sprintf("run %s succeeded on %s", r.Desc.Run, follow.OnAll(len(state.Ended)))
	if first := state.Blame(); first != nil {
		how := endText(*first)
		sum.OK, sum.ExitCode, sum.CommandCode = false, first.Code, first.Code
		if first.Reason != "" {
			sum.Text = fmt.Sprintf("run %s did not end by itself on %s: %s", r.Desc.Run, first.Worker, first.Reason)
		} else {
			sum.Text = fmt.Sprintf("run %s failed: %s was first, %s", r.Desc.Run, first.Worker, how)
			sum.FirstFail = first.Worker.String() + ": " + how
		}
		sum.LastLines = follow.LastLines(rec.LogPath(first.Worker), 20, nil)
		sum.Next = "multihost logs " + r.Desc.Run + " --worker=" + first.Worker.String()
		if len(sum.LastLines) == 0 { // for example, if the command never started
			sum.Next = "nothing was written there; once that is mended, type the job again"
		}
	}
	if excused := state.Excused(); sum.OK && len(excused) > 0 {
		follow.SayExcused(r.Sink, &sum, tpu.Fold(excused))
	}
	r.sayBackground(&sum, state)
	return sum
}

// endText says in a few words how the command ended on a worker. launch.Exit uses the same
// words.
func endText(e detach.End) string {
	return launch.Exit{Code: e.Code, Signal: e.Signal}.String()
}

// sayBackground reports the processes that the command has left in the background, as the
// workers counted them.
func (r *BucketRun) sayBackground(sum *event.Summary, state detach.State) {
	processes, ids := state.LeftBehind()
	follow.SayLeftBehind(r.Sink, sum, processes, ids, follow.BackgroundCureDetached)
}

// keptSlices returns the slices that stay although the run has ended on all workers. It
// returns nil if the workers delete them, or if there are none.
func (r *BucketRun) keptSlices(ctx context.Context, state detach.State) *kept {
	why := r.whyKept(state)
	res, err := r.Cloud.Get(ctx, r.Desc.Resource)
	if why == "" || err != nil || !r.owns(res) {
		return nil
	}
	k := &kept{run: r.Desc.Run, res: res, ended: "exit code 0, kept: " + why}
	if first := state.Blame(); first != nil {
		k.ended = fmt.Sprintf("failed: %s was first, %s, kept: %s", first.Worker, endText(*first), why)
	}
	if len(state.Unsent) > 0 {
		k.part = why
	}
	return k
}

// stillOver returns an error unless the bucket says that the run has ended.
func (r *BucketRun) stillOver(ctx context.Context) error {
	state, err := r.Store.State(ctx, r.Desc.Run)
	if err == nil && !state.Over(r.Desc) {
		err = fmt.Errorf("run %s has been started again", r.Desc.Run)
	}
	if err != nil {
		return &stage.Error{Stage: stage.Stopping, Err: err}
	}
	return nil
}

// stopKept deletes the slices kept after the end of the run.
func (r *BucketRun) stopKept(ctx context.Context, o StopOptions, k kept) error {
	k.again = r.stillOver
	err := deleteKept(ctx, r.Deps, o, k)
	if err == nil {
		r.forget()
	}
	return err
}

// stop ends the run for good. It writes the stop into the bucket, which all workers read,
// and also stops the workers that it reaches over SSH. It waits until every worker has
// ended. If no worker has reported yet, it does not wait. It deletes a queued resource
// without workers, because nobody else would.
func (r *BucketRun) stop(ctx context.Context, o StopOptions) error {
	watch := stage.Stopwatch{Sink: r.Sink, Clock: r.Clock}
	before, err := r.Store.State(ctx, r.Desc.Run)
	if err != nil && ctx.Err() != nil {
		return stage.InterruptedOr(ctx, workers.MayStillRun(&stage.Error{Stage: stage.Stopping, Err: err}, r.Desc.Run))
	}
	// The workers get the order to stop even if the bucket cannot be read.
	if err == nil && before.Over(r.Desc) {
		if k := r.keptSlices(ctx, before); k != nil {
			return r.stopKept(ctx, o, *k)
		}
	}
	e := &ending{BucketRun: r, o: o}
	err = watch.Phase("stop", func() (string, error) { return e.do(ctx) })
	if err != nil {
		return err
	}
	return finishStop(ctx, r, e.ours, e.later)
}

// An ending is a stop of a job without runner.
type ending struct {
	*BucketRun
	o     StopOptions
	told  bool                // workers that can be reached have the order to stop
	ours  *provision.Resource // what this command deletes
	later bool                // workers may still come, and will not start the command
}

// A stopStep is the next step of a stop.
type stopStep int

const (
	stopEnded    stopStep = iota // the run has ended on all workers
	stopGone                     // the queued resource has gone
	stopWithdraw                 // the resource has no machines, so stop deletes it
	stopTell                     // order the stop over SSH
	stopLater                    // no worker has begun; later workers read the stop
	stopAwait
)

// A stopLook is what a stop knows about the run.
type stopLook struct {
	over, gone, empty bool // the run has ended; its resource has gone; its resource has no machines
	seen              bool // some worker has reported
	told              bool // workers that can be reached have the order to stop
}

func (l stopLook) step() stopStep {
	switch {
	case l.over:
		return stopEnded
	case l.gone:
		return stopGone
	case l.empty:
		return stopWithdraw
	case l.seen && !l.told:
		return stopTell
	case !l.seen:
		return stopLater
	}
	return stopAwait
}

// do tells the workers to end the run, and waits as described at stop.
func (e *ending) do(ctx context.Context) (string, error) {
	unsure := func(err error) (string, error) {
		return "", stage.InterruptedOr(ctx, workers.MayStillRun(&stage.Error{Stage: stage.Stopping, Err: err}, e.Desc.Run))
	}
	if err := e.Store.Stop(ctx, e.Desc.Run, follow.StopBy+e.Owner); err != nil {
		return "", workers.MayStillRun(&stage.Error{Stage: stage.Stopping, Err: err}, e.Desc.Run)
	}
	limit := e.Clock.After(e.o.Grace + 3*time.Duration(e.Desc.Every*float64(time.Second)) + 5*time.Minute)
	for {
		state, err := e.Store.State(ctx, e.Desc.Run)
		if err != nil {
			return unsure(err)
		}
		l := stopLook{over: state.Over(e.Desc), seen: len(state.Seen) > 0, told: e.told}
		var res provision.Resource
		if !l.over {
			res, err = e.Cloud.Get(ctx, e.Desc.Resource)
			l.gone = gcp.ClassOf(err) == gcp.NotFound || err == nil && !e.owns(res)
			// If only some of the slices were taken away, the workers of the others must
			// end first.
			l.empty = err == nil && res.Life.Empty() && (e.told || res.ReadySlices() == 0)
		}
		switch l.step() {
		case stopEnded:
			var text string
			text, e.ours = afterEnd(ctx, e.BucketRun, state)
			return text, nil
		case stopGone:
			return fmt.Sprintf("run %s: %s is gone, nothing runs", e.Desc.Run, provision.NameOf(e.Cloud, e.Desc.Resource)), nil
		case stopWithdraw:
			return e.withdraw(ctx, res)
		case stopTell:
			e.tell(ctx, state)
			continue
		case stopLater:
			e.later = true
			return fmt.Sprintf("run %s: no worker has started yet; those that come will not start the command", e.Desc.Run), nil
		}
		select {
		case <-e.Clock.After(e.pace()):
		case <-limit:
			standing := ""
			if err == nil {
				standing = res.Standing()
			}
			return "", e.unstopped(state, standing)
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// tell stops the command over SSH on the workers that it can reach.
func (e *ending) tell(ctx context.Context, state detach.State) {
	e.told = true
	rec, err := e.Record(ctx, state.Attempt)
	if err == nil {
		err = stopOn(ctx, e.Deps, rec, e.o)
	}
	if err != nil && ctx.Err() == nil {
		event.Notef(e.Sink, event.Info, "", "not every worker can be reached (%v): those read it in the bucket", err)
	}
}

// finishStop deletes the queued resource ours, if it is not nil. Unless later says that
// workers may still come, it makes ps stop asking for the run.
func finishStop(ctx context.Context, r *BucketRun, ours *provision.Resource, later bool) error {
	if ours != nil {
		if err := deleteMade(ctx, r.Deps, r.Desc.Run, *ours, "which no worker may delete"); err != nil {
			return err
		}
	}
	if !later {
		r.forget()
	}
	return nil
}

// afterEnd says what happens to the queued resource of a run that has ended on all workers.
// It returns the resource if no worker may delete it.
func afterEnd(ctx context.Context, r *BucketRun, state detach.State) (text string, ours *provision.Resource) {
	text = fmt.Sprintf("run %s: ended on all workers", r.Desc.Run)
	if r.sayKept(ctx, state) {
		return text, nil
	}
	res, err := r.Cloud.Get(ctx, r.Desc.Resource)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound, err == nil && !r.owns(res):
		r.sweep(ctx, state)
		return text + fmt.Sprintf(", and %s is gone", provision.NameOf(r.Cloud, r.Desc.Resource)), nil
	case err == nil && noneMayDelete(state):
		return text, &res
	}
	return text + fmt.Sprintf(", which delete %s", provision.NameOf(r.Cloud, r.Desc.Resource)), nil
}

// sweepLimit limits how long sweep deletes parts that cost nothing.
const sweepLimit = 20 * time.Second

// sweep deletes the parts of a resource without slices. The workers could not delete the
// parts, because these were in use until the workers had gone. sweep deletes no slices:
// another command may be making the resource again.
func (r *BucketRun) sweep(ctx context.Context, state detach.State) {
	p, ok := provision.As[provision.Sweeper](provider.Of(r.Cloud, r.Desc.Kind))
	if !ok || r.ReadOnly {
		return
	}
	over := (&detach.Earlier{Description: r.Desc, State: state}).Ended() != "" // the run is over for good
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	if err := p.Sweep(ctx, r.Desc.Resource, r.Desc.Run, over); err != nil {
		event.Notef(r.Sink, event.Debug, "multihost gc", "parts of %s that cost nothing may be left: %v", provision.NameOf(r.Cloud, r.Desc.Resource), err)
	}
}

// forget makes ps stop asking for a run that was stopped.
func (r *BucketRun) forget() {
	rec, err := record.LoadRecord(r.StateDir, r.Desc.Run)
	if err == nil && rec != nil && rec.Bucket == r.Store.Name() && rec.BucketDir == r.Store.Dir() {
		rec.Ended = true
		err = rec.Save(r.StateDir)
	}
	if err != nil {
		event.Notef(r.Sink, event.Warn, "", "%v", err)
	}
}

// withdraw deletes the queued resource of a run without workers.
func (e *ending) withdraw(ctx context.Context, res provision.Resource) (string, error) {
	_, err := e.Cloud.Delete(ctx, res.ID, provision.DeleteOptions{OnlyRun: e.Desc.Run, Limit: teardown.Limit})
	if err != nil {
		return "", stage.InterruptedOr(ctx, &stage.Error{Stage: stage.Stopping, Err: err, Advice: teardown.Hint(e.Reach, res.ID)})
	}
	return fmt.Sprintf("run %s: no worker was there, and %s, which was %s, is deleted", e.Desc.Run, provision.NameOf(e.Cloud, res.ID), res.State), nil
}

// owns reports whether a queued resource of the run's name belongs to the run.
func (r *BucketRun) owns(res provision.Resource) bool {
	return res.IsOf(r.Desc.Run)
}

// detachedRows returns the jobs without runner: those in the bucket that the user names, or
// else those in this zone that this machine has a record of.
func detachedRows(ctx context.Context, d Deps, ended bool) ([]Seen, error) {
	var names []string
	if d.Bucket != "" {
		b, err := d.OpenBucket(ctx, d.Bucket, d.BucketDir)
		if err != nil {
			return nil, &stage.Error{Stage: stage.Input, Err: err}
		}
		if names, err = b.Runs(ctx); err != nil {
			return nil, err
		}
	} else {
		for _, rec := range record.LocalRecords(d.StateDir) {
			if rec.Bucket != "" && rec.Project == d.Project && rec.Zone == d.Zone && (ended || !rec.Ended) {
				names = append(names, rec.Run)
			}
		}
	}
	var rows []Seen
	errs := make([]error, len(names))
	for i, name := range names {
		row, err := detachedRow(ctx, d, name, ended)
		switch {
		case d.Bucket != "" && (errors.Is(err, errElsewhere) || errors.Is(err, detach.ErrNoRun)):
			// The bucket may have jobs of many zones, and other objects.
		case errors.Is(err, detach.ErrNoRun) && noneLeft(ctx, d, name):
			// Somebody has cleaned up the bucket.
		case err != nil: // report the error and show the rest
			errs[i] = err
		case row != nil:
			rows = append(rows, *row)
		}
	}
	return rows, stage.JoinNamed(names, errs)
}

// noneLeft reports whether the cloud has no queued resource of a run that this machine has
// a record of.
func noneLeft(ctx context.Context, d Deps, name string) bool {
	rec, err := record.LoadRecord(d.StateDir, name)
	if err != nil || rec == nil {
		return false
	}
	_, err = d.Cloud.Get(ctx, rec.Prefix)
	return gcp.ClassOf(err) == gcp.NotFound
}

// detachedRow returns the row of a run, or nil if the list does not show the run.
func detachedRow(ctx context.Context, d Deps, name string, ended bool) (*Seen, error) {
	r, err := FindBucketRun(ctx, d, name)
	if err != nil || r == nil {
		return nil, err
	}
	state, err := r.Store.State(ctx, name)
	if err != nil || state.Over(r.Desc) && !ended {
		return nil, err
	}
	row := r.row(ctx, state)
	if row.State == stoppedState && !ended {
		return nil, nil
	}
	return &row, nil
}

// stoppedState is the state of a stopped run without a report of its end: it had no
// workers, or they were taken away before they could report.
const stoppedState = "stopped"

// whenDeleted says when the workers delete the slices.
func whenDeleted(d detach.Description) string {
	switch {
	case d.Keep == detach.KeepAlways:
		return never
	case d.Keep == detach.KeepOnFailure && d.KeepFor == 0:
		return "at its end, never after a failure"
	case d.Keep == detach.KeepOnFailure:
		return "at its end, " + stage.AsTyped(time.Duration(d.KeepFor*float64(time.Second))) + " after a failure"
	}
	return "at its end"
}

// goesAfter says when the workers delete the slices of an ended run.
func goesAfter(r *BucketRun, state detach.State) string {
	switch {
	case r.whyKept(state) == "":
		return "at once"
	case r.Desc.Keep == detach.KeepOnFailure && state.Blame() != nil && r.Desc.KeepFor > 0:
		return stage.AsTyped(time.Duration(r.Desc.KeepFor*float64(time.Second))) + " after its end"
	case r.Desc.Keep == detach.KeepAlways, r.Desc.Keep == detach.KeepOnFailure && state.Blame() != nil:
		return never
	}
	return "once the bucket has its logs"
}

// row returns the run as a list shows it: from the bucket, or from the queued resource if
// no worker has reported yet or none is left.
func (r *BucketRun) row(ctx context.Context, state detach.State) Seen {
	row := Seen{Run: r.Desc.Run, Attempt: max(1, state.Attempt), Owner: r.Desc.Owner, Created: r.Desc.Created, Slices: r.Desc.Nodes, Command: r.Desc.Command,
		goes: whenDeleted(r.Desc), age: r.Clock.Now().Sub(r.Desc.Created)}
	switch first := state.Blame(); {
	case state.Over(r.Desc) && first != nil && first.Reason == "" && len(state.Ended) > 1:
		row.State = fmt.Sprintf("failed: %s was first, %s", first.Worker, endText(*first))
	case state.Over(r.Desc) && first != nil:
		row.State = fmt.Sprintf("exit code %d", first.Code)
	case state.Over(r.Desc):
		row.State = "exit code 0"
		if excused := state.Excused(); len(excused) > 0 {
			row.State += ", unclean on " + tpu.Fold(excused)
		}
		if processes, _ := state.LeftBehind(); processes > 0 {
			row.State += ", left " + event.Count(processes, "process") + " in the background"
		}
	default:
		row.State = r.underWay(ctx, state)
	}
	return row
}

// underWay returns the state of a run that has not ended, as one word for a list.
func (r *BucketRun) underWay(ctx context.Context, state detach.State) string {
	word := "queued"
	if len(state.Seen) > 0 {
		word = state.Seen[0].Phase
	}
	if slices.ContainsFunc(state.Seen, func(w detach.Seen) bool { return w.Phase == detach.Down }) {
		word = detach.Down
	}
	res, err := r.Cloud.Get(ctx, r.Desc.Resource)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound && state.Stopping != "" && !state.Taken():
		return stoppedState
	case gcp.ClassOf(err) == gcp.NotFound:
		return "gone"
	case err == nil && (res.Life != provision.Active || len(state.Seen) == 0):
		word = strings.ToLower(res.State)
	}
	if err == nil && res.Life == provision.Active {
		word = cmp.Or(WarnUnable(ctx, r, state), word)
	}
	return word
}

// goesOn returns advice on how to continue a run that has lost its slices for good. It
// comes before other advice. It is "" if the run was stopped.
func goesOn(state detach.State) string {
	if state.Stopping != "" && !state.Taken() {
		return ""
	}
	return "type the same multihost job --detach again, and it goes on as its next attempt; "
}
