package logs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/journal"
	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/training"
)

// Far tells a Review how to read logs from the workers or a bucket.
type Far struct {
	// Deps returns what is needed to reach the workers. The Review calls Deps when it first needs
	// it, and again later if Deps returned an error. The Review owns the result.
	Deps   func() (runs.Deps, error)
	Prefix string // name prefix of the slices, as in AttachOptions
	Clock  gcp.Clock
}

// An onlooker reads the logs of a run into a Review, from the workers or from a bucket. It
// changes nothing on the workers or in the bucket, and stops no process.
type onlooker struct {
	far    Far
	review *Review
	deps   *runs.Deps // nil until needed
	once   bool       // read what exists now and do not wait for more

	mu        sync.Mutex // guards the fields below
	entries   []journal.Entry
	following *follow.Following
	told      int                     // attempt whose start is in entries; 0: none
	over      int                     // attempt whose end was seen; 0: none
	gone      map[tpu.WorkerID]string // workers whose slices are gone, and why
	trouble   string                  // why nothing can be read now
	aside     string                  // another notice to the user
}

// A place says where to read the logs of a run.
type place string

const (
	placeHere  place = "here"  // on this machine: a command copies them, or no more will come
	placeThere place = "there" // on the workers, or in the bucket
)

// placeOf decides where to read the logs. The parameter rec is this machine's record of the run,
// or nil. The parameter brought says that a command copies the logs to this machine. The
// parameter over is the attempt that was seen to end on the workers or in the bucket, or 0.
func placeOf(rec *record.Record, brought bool, over int) place {
	switch {
	case brought, rec == nil && over > 0, rec != nil && over >= rec.Attempt, rec != nil && rec.Over():
		return placeHere
	}
	return placeThere
}

// firstReach is the time without an answer after which a worker is shown as out of reach.
// The onlooker continues to try.
const firstReach = 10 * time.Second

// Pauses of an onlooker.
const (
	onlookPause = time.Second // between two checks for a command that copies the logs
	longestRest = 30 * time.Second
)

func (o *onlooker) place() place {
	rec, err := record.LoadRecord(o.review.stateDir, o.review.run)
	if err != nil {
		return placeHere // the Review reports the error
	}
	o.mu.Lock()
	over := o.over
	o.mu.Unlock()
	return placeOf(rec, follow.SomeoneAt(o.review.stateDir, o.review.run), over)
}

// open returns the Deps for reaching the workers. The first call makes them.
func (o *onlooker) open() (runs.Deps, error) {
	if o.deps != nil {
		return *o.deps, nil
	}
	d, err := o.far.Deps()
	if err != nil {
		return d, err
	}
	d.ReadOnly, d.Journal, d.Sink = true, nil, event.SinkFunc(o.note)
	o.deps = &d
	return d, nil
}

// find looks for the run in the buckets and on the workers. It returns a *runs.BucketRun for a
// run in a bucket, and otherwise a record.
func (o *onlooker) find(ctx context.Context) (rec *record.Record, in *runs.BucketRun, err error) {
	d, err := o.open()
	if err != nil {
		return nil, nil, err
	}
	if in, err = runs.FindBucketRun(ctx, d, o.review.run); err != nil || in != nil {
		return nil, in, err
	}
	rec, err = runs.Locate(ctx, d, o.review.run, o.far.Prefix)
	return rec, nil, err
}

// keepOn reads the logs from the workers or the bucket whenever place returns placeThere. It
// returns when ctx ends.
func (o *onlooker) keepOn(ctx context.Context) {
	rest := onlookPause
	for {
		if o.place() == placeThere {
			err := o.read(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil && o.place() == placeThere {
				o.say(err.Error())
				rest = min(2*rest, longestRest)
			} else {
				rest = onlookPause
			}
		} else {
			o.say("")
			rest = onlookPause
		}
		if stage.Sleep(ctx, o.far.Clock, rest) != nil {
			return
		}
	}
}

// read reads the logs from the workers or the bucket, until the run has ended or a command copies
// its logs to this machine.
func (o *onlooker) read(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	if !o.once {
		group.Go(func() { o.giveWay(ctx, cancel) })
	}
	rec, in, err := o.find(ctx)
	if err != nil {
		return err
	}
	o.forget()
	defer o.settle()
	if in != nil {
		return readBy(ctx, in, o)
	}
	sum, err := o.overSSH(ctx, *o.deps, rec)
	if sum != nil {
		o.end(*sum)
		return nil // the summary says how the run has ended
	}
	return err
}

// giveWay cancels the read when two checks in a row find a command that copies the logs to this
// machine. One check is not enough, because a command that only looks at the run is found too,
// for a moment.
func (o *onlooker) giveWay(ctx context.Context, cancel context.CancelFunc) {
	for seen := 0; seen < 2; {
		if stage.Sleep(ctx, o.far.Clock, onlookPause) != nil {
			return
		}
		if seen++; o.place() == placeThere {
			seen = 0
		}
	}
	cancel()
}

// overSSH reads the logs on the workers until the command has ended on all of them. sum then says
// how. If no worker can be reached, it returns an error. If some cannot be reached and a bucket
// has their logs, it also returns an error. Otherwise it waits for them.
func (o *onlooker) overSSH(ctx context.Context, d runs.Deps, rec *record.Record) (sum *event.Summary, err error) {
	sel, gone, err := runs.Recorded(ctx, d, rec)
	if err != nil {
		return nil, err
	}
	if len(gone) == len(sel.Slices) {
		return nil, &stage.Error{Stage: stage.Discover, Text: fmt.Sprintf("the slices of run %q are gone", rec.Run), Advice: "its logs, as far as they came here: multihost logs " + rec.Run}
	}
	t, err := d.DialAll(ctx, sel, nil, false, min(d.Access.RetryFor, firstReach))
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if t.Reached() == 0 || t.Away != nil && rec.Bucket != "" {
		return nil, stage.WorkersError(stage.Connect, t.IDs, t.Away)
	}
	if _, _, err := runs.NewestAttempt(ctx, d, t, rec); err != nil {
		return nil, err
	}
	logs, err := o.takeUp(rec)
	if err != nil {
		return nil, err
	}
	o.tellGone(rec, gone)
	f := &follow.Following{Deps: follow.Deps{Reach: d.Reach, Keeper: d.Keeper}, Workers: t, Ref: launch.Ref{Run: rec.Run, Attempt: rec.Attempt}, Rec: rec, Watch: &stage.Stopwatch{Sink: d.Sink, Clock: d.Clock},
		Attached: true, Watching: follow.WatchOptions{StallTimeout: -1}}
	for _, id := range t.IDs {
		f.Reads = append(f.Reads, logs[id])
	}
	o.joins(f)
	o.tellStart(rec, t.IDs)
	if o.once {
		f.Once(ctx)
	} else {
		_, err = f.Do(ctx)
	}
	return f.Sum, cmp.Or(err, runs.EndOf(f))
}

// readBy reads the output of a job without runner: over SSH while all its workers can be
// reached, otherwise from the bucket.
func readBy(ctx context.Context, r *runs.BucketRun, o *onlooker) error {
	begin := r.Clock.Now()
	followed := -1 // attempt that was followed over SSH
	for {
		state, err := r.Store.State(ctx, r.Desc.Run)
		if err != nil {
			return err
		}
		state.StrictExit = r.Desc.StrictExit
		rec, err := r.Record(ctx, state.Attempt)
		if err != nil && !r.Over(state) {
			return err
		}
		ids := r.Desc.IDs()
		if followed != state.Attempt && r.Running(state) == len(ids) && !r.Over(state) {
			followed = state.Attempt
			if done, err := o.nearBy(ctx, r, rec); done {
				return err
			}
			continue
		}
		logs, err := o.takeUp(rec)
		if err != nil {
			return err
		}
		o.tellBegun(r, rec, state, followed == state.Attempt)
		if err := readLogs(ctx, r, rec.Attempt, logs); err != nil {
			return err
		}
		if r.Over(state) {
			o.mention("")
			o.end(r.Judge(rec, state, begin))
			return nil
		}
		if o.once {
			return nil
		}
		if err := r.StillThere(ctx, state); err != nil {
			_ = readLogs(ctx, r, rec.Attempt, logs) // the last output, before the error
			return err
		}
		if err := r.Pause(ctx); err != nil {
			return err
		}
	}
}

// nearBy reads the logs on the workers until the attempt has ended or the workers cannot be
// reached. done is true if the caller has nothing more to read. Otherwise the caller asks the
// bucket whether the run has ended.
func (o *onlooker) nearBy(ctx context.Context, r *runs.BucketRun, rec *record.Record) (done bool, err error) {
	o.mention("")
	_, err = o.overSSH(ctx, r.Deps, rec)
	if ctx.Err() != nil || err == nil && o.once {
		return true, err
	}
	if o.joins(nil); err != nil {
		o.mention(fmt.Sprintf("reading from the bucket, up to %s late, since over SSH: %v", event.Age(time.Duration(r.Desc.Every)*time.Second), err))
	}
	return false, nil
}

// tellBegun reports that the command has begun, or else the progress of the run. The parameter
// followed says that the attempt was read over SSH before. If so, tellBegun keeps the notice why
// SSH does not work any more.
func (o *onlooker) tellBegun(r *runs.BucketRun, rec *record.Record, state detach.State, followed bool) {
	begun := r.Running(state) > 0 || len(state.Ended) > 0
	if begun {
		o.tellStart(rec, r.Desc.IDs())
	}
	switch {
	case !begun:
		o.mention(r.Summary(state))
	case !followed:
		o.mention("")
	}
}

// readLogs reads the new bytes of the logs from the bucket.
func readLogs(ctx context.Context, r *runs.BucketRun, attempt int, logs map[tpu.WorkerID]*training.ReadLog) error {
	ids := r.Desc.IDs()
	errs := make([]error, len(ids))
	var group errgroup.Group
	group.SetLimit(16)
	for i, id := range ids {
		log := logs[id]
		if log == nil {
			continue
		}
		group.Go(func() error {
			at := log.Offset()
			_, errs[i] = r.Store.Log(ctx, r.Desc.Run, id, attempt, at, log.From(at))
			return nil
		})
	}
	_ = group.Wait() // the goroutines return nil
	return stage.WorkersError(stage.Follow, ids, errs)
}

// takeUp calls TakeUp of the Review's Training. It makes the Training if necessary.
func (o *onlooker) takeUp(rec *record.Record) (map[tpu.WorkerID]*training.ReadLog, error) {
	r := o.review
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.training == nil {
		r.training = &training.Training{StateDir: r.stateDir, Run: r.run, O: r.o}
	}
	return r.training.TakeUp(rec)
}

// tellStart adds the entries that the journal would have for the start of the attempt.
// Repeated calls for one attempt add nothing.
func (o *onlooker) tellStart(rec *record.Record, ids []tpu.WorkerID) {
	o.mu.Lock()
	told := o.told
	o.told = rec.Attempt
	o.mu.Unlock()
	if told == rec.Attempt {
		return
	}
	begin := rec.Created
	for _, a := range rec.Attempts {
		if a.Attempt == rec.Attempt {
			begin = a.Begin
		}
	}
	release := event.Release{Attempt: rec.Attempt, First: begin}
	for _, id := range ids {
		release.Workers = append(release.Workers, event.ReleasedOn{Slice: id.Slice, Worker: id.Worker})
	}
	for _, e := range []event.Event{journal.Begin{Command: "attach"}, rec.AttemptEvent(), release, event.Phase{Name: "run", State: event.Started}} {
		o.enter(begin, e)
	}
}

// end adds the entries for the end of the run and marks the Training's record as ended.
func (o *onlooker) end(sum event.Summary) {
	now := o.far.Clock.Now()
	o.enter(now, sum)
	o.enter(now, journal.End{ExitCode: sum.ExitCode})
	o.review.mu.Lock()
	defer o.review.mu.Unlock()
	far := *o.review.training.Far
	far.Ended, far.Code = true, sum.ExitCode
	o.review.training.Far = &far
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = far.Attempt
}

// note keeps WorkerDone events, which say how the command ended on a worker. It drops all other
// events.
func (o *onlooker) note(e event.Event) {
	if done, ok := e.(event.WorkerDone); ok {
		o.enter(o.far.Clock.Now(), done)
	}
}

func (o *onlooker) enter(at time.Time, e event.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entries = append(o.entries, journal.Entry{Time: at, By: "onlooker", Kind: e.Kind(), Event: e})
}

func (o *onlooker) joins(f *follow.Following) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.following = f
}

// tellGone records the workers whose slices are gone.
func (o *onlooker) tellGone(rec *record.Record, gone []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone = map[tpu.WorkerID]string{}
	for i, s := range rec.Slices {
		for j := range s.Workers {
			if slices.Contains(gone, s.Name) {
				o.gone[tpu.WorkerID{Slice: i, Worker: j}] = fmt.Sprintf("slice %q is gone", s.Name)
			}
		}
	}
}

// forget clears the results of the last read.
func (o *onlooker) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entries, o.told, o.gone, o.trouble, o.aside = nil, 0, nil, "", ""
}

// settle ends a read. It drops the entries, because the next read or the journal has them. If the
// onlooker has seen the run's end, settle keeps them.
func (o *onlooker) settle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.once {
		return
	}
	o.following, o.gone, o.aside = nil, nil, ""
	if o.told != o.over {
		o.entries, o.told = nil, 0
	}
}

func (o *onlooker) say(trouble string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trouble = trouble
}

func (o *onlooker) mention(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.aside = text
}

// sees returns the results of reading from the workers or the bucket: journal entries, the
// workers out of reach with the cause, and notices. o may be nil.
func (o *onlooker) sees() (entries []journal.Entry, away map[tpu.WorkerID]string, notices []string) {
	if o == nil {
		return nil, nil, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	away = maps.Clone(o.gone)
	if f := o.following; f != nil {
		if away == nil {
			away = map[tpu.WorkerID]string{}
		}
		maps.Copy(away, f.OutOfReach())
	}
	if o.trouble != "" {
		notices = append(notices, o.trouble)
	}
	if o.aside != "" {
		notices = append(notices, o.aside)
	}
	return slices.Clone(o.entries), away, append(notices, foldAway(away)...)
}

// foldAway returns one line for each cause, with the workers that are out of reach because
// of it.
func foldAway(away map[tpu.WorkerID]string) []string {
	ids := slices.SortedFunc(maps.Keys(away), tpu.CompareWorkers)
	causes := make([]string, len(ids))
	for i, id := range ids {
		causes[i] = away[id]
	}
	var lines []string
	for _, g := range tpu.GroupAlike(causes) {
		who := make([]tpu.WorkerID, len(g.At))
		for i, at := range g.At {
			who[i] = ids[at]
		}
		lines = append(lines, "out of reach: "+tpu.FoldShort(who)+": "+g.Text)
	}
	return lines
}
