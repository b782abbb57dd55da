package job

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/journal"
	"multihost/internal/launch"
	"multihost/internal/tpu"
)

// Far says how a Review reads what no command brings to this machine.
type Far struct {
	// Deps makes what workers are reached with, at the first need; the Review owns it
	// from then on. An error is why they cannot be reached: they are asked for again
	// later.
	Deps   func() (*Deps, error)
	Prefix string // of the slices to look at, as of AttachOptions
	Clock  gcp.Clock
}

// An onlooker reads the logs of a run on its workers, or in its bucket, into a
// Review. It changes nothing there and stops nobody.
type onlooker struct {
	far    Far
	review *Review
	deps   *Deps
	once   bool // reads what there is now, and does not wait for more

	mu        sync.Mutex // guards what follows
	entries   []journal.Entry
	following *following
	told      int                     // the attempt whose start entries tells; 0: none
	over      int                     // the attempt whose end was seen; 0: none
	gone      map[tpu.WorkerID]string // workers whose slices are
	trouble   string                  // why nothing is read now
	aside     string                  // what else is to be known
}

// A place is where the logs of a run are read.
type place string

const (
	placeHere  place = "here"  // a command brings them, or nothing more comes
	placeThere place = "there" // on the workers, or in the bucket
)

// placeOf decides by this machine's record of the run, nil for none, by whether a
// command brings its logs here, and by the attempt whose end was seen where it ran, 0
// for none.
func placeOf(rec *Record, brought bool, over int) place {
	switch {
	case brought, rec == nil && over > 0, rec != nil && over >= rec.Attempt, rec != nil && rec.over():
		return placeHere
	}
	return placeThere
}

// firstReach is how long a worker may take to answer before it is shown as out of
// reach; it is tried on.
const firstReach = 10 * time.Second

// Pauses of an onlooker.
const (
	onlookPause = time.Second // between two looks whether a command brings the logs
	longestRest = 30 * time.Second
)

// place is where the logs are to be read now.
func (o *onlooker) place() place {
	rec, err := loadRecord(o.review.stateDir, o.review.run)
	if err != nil {
		return placeHere // the Review says why
	}
	o.mu.Lock()
	over := o.over
	o.mu.Unlock()
	return placeOf(rec, someoneAt(o.review.stateDir, o.review.run), over)
}

// open makes what workers are reached with.
func (o *onlooker) open() (*Deps, error) {
	if o.deps != nil {
		return o.deps, nil
	}
	d, err := o.far.Deps()
	if err != nil {
		return nil, err
	}
	d.ReadOnly, d.Journal, d.Sink = true, nil, event.SinkFunc(o.note)
	o.deps = d
	return d, nil
}

// find looks for the run where it may be: rec is of one on workers, in is one in a
// bucket.
func (o *onlooker) find(ctx context.Context) (rec *Record, in *detachedRun, err error) {
	d, err := o.open()
	if err != nil {
		return nil, nil, err
	}
	if in, err = d.detachedRun(ctx, o.review.run); err != nil || in != nil {
		return nil, in, err
	}
	rec, err = d.locate(ctx, o.review.run, o.far.Prefix)
	return rec, nil, err
}

// keepOn reads until ctx ends, where it is to be read.
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
		select {
		case <-ctx.Done():
			return
		case <-o.far.Clock.After(rest):
		}
	}
}

// read reads there until the run has ended, or a command brings its logs here.
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
		return in.readBy(ctx, o)
	}
	sum, err := o.overSSH(ctx, o.deps, rec)
	if sum != nil {
		o.end(*sum)
	}
	return err
}

// giveWay ends the reading when a command brings the logs here. Twice in a row: one
// that only asks looks the same for a moment.
func (o *onlooker) giveWay(ctx context.Context, cancel context.CancelFunc) {
	for seen := 0; seen < 2; {
		select {
		case <-ctx.Done():
			return
		case <-o.far.Clock.After(onlookPause):
		}
		if seen++; o.place() == placeThere {
			seen = 0
		}
	}
	cancel()
}

// overSSH reads on the workers until the command has ended on all, which sum tells.
// Workers that cannot be reached are waited for, unless a bucket has their logs.
func (o *onlooker) overSSH(ctx context.Context, d *Deps, rec *Record) (sum *event.Summary, err error) {
	sel, gone, err := d.recorded(ctx, rec)
	if err != nil {
		return nil, err
	}
	if len(gone) == len(sel.Slices) {
		return nil, &Error{Stage: StageDiscover, Text: fmt.Sprintf("the slices of run %q are gone", rec.Run), Advice: "its logs, as far as they came here: multihost logs " + rec.Run}
	}
	t, err := d.dialAll(ctx, sel, nil, false, min(d.Access.RetryFor, firstReach))
	if err != nil {
		return nil, err
	}
	defer t.close()
	if t.reached() == 0 || t.away != nil && rec.Bucket != "" {
		return nil, workersError(StageConnect, t.ids, t.away)
	}
	if _, _, err := d.newestAttempt(ctx, t, rec); err != nil {
		return nil, err
	}
	logs, err := o.takeUp(rec)
	if err != nil {
		return nil, err
	}
	o.tellGone(rec, gone)
	f := &following{Deps: d, team: t, ref: launch.Ref{Run: rec.Run, Attempt: rec.Attempt}, rec: rec, watch: &stopwatch{sink: d.Sink, clock: d.Clock},
		attached: true, watching: WatchOptions{StallTimeout: -1}, outages: make([]outage, len(t.ids))}
	for _, id := range t.ids {
		f.reads = append(f.reads, logs[id])
	}
	o.joins(f)
	o.tellStart(rec, t.ids)
	if o.once {
		return f.readOnce(ctx), nil
	}
	_, err = f.do(ctx)
	return f.sum, err
}

// readOnce reads what the workers have now. sum is of a run that has ended on all of
// them.
func (f *following) readOnce(ctx context.Context) (sum *event.Summary) {
	f.ends = make([]ending, len(f.team.ids))
	f.stirred = make(chan struct{}, 1)
	f.watcher = newWatcher(f, f.watching)
	defer f.watcher.close()
	f.team.each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		nobody := func(error) {}
		if f.team.isAway(i) {
			f.outages[i].lost(f, i, nobody, f.team.away[i])
			return nil
		}
		log := f.reads[i]
		at := log.offset()
		_, exit, err := launch.Peek(ctx, f.team.conns[i], f.ref, at, log.from(at))
		if err != nil {
			f.outages[i].lost(f, i, nobody, err)
		} else if exit != nil {
			f.ends[i] = f.endingOf(ctx, ctx, i, *exit, nil)
			f.ends[i].tail = leaves(*exit, log.lastLines(20))
		}
		return nil
	})
	for i, e := range f.ends {
		if e.known {
			f.workerEnded(endOf{i, e})
		}
	}
	if f.unfinished() != "" {
		return nil
	}
	code, first := f.verdict()
	s, _ := f.judge(nil, code, first)
	return &s
}

// readBy reads what a job without runner prints: over SSH while all its workers can
// be reached, else from the bucket.
func (r *detachedRun) readBy(ctx context.Context, o *onlooker) error {
	begin := r.Clock.Now()
	followed := -1 // the attempt that was, over SSH
	for {
		state, err := r.bucket.State(ctx, r.desc.Run)
		if err != nil {
			return err
		}
		state.StrictExit = r.desc.StrictExit
		rec, err := r.record(ctx, state.Attempt)
		if err != nil && !state.Over(r.desc) {
			return err
		}
		ids := r.desc.IDs()
		if followed != state.Attempt && r.running(state) == len(ids) && !state.Over(r.desc) {
			followed = state.Attempt
			o.mention("")
			_, err := o.overSSH(ctx, r.Deps, rec) // the bucket tells whether that was the end
			if ctx.Err() != nil || err == nil && o.once {
				return err
			}
			if o.joins(nil); err != nil {
				o.mention(fmt.Sprintf("reading from the bucket, up to %s late, since over SSH: %v", event.Age(time.Duration(r.desc.Every)*time.Second), err))
			}
			continue
		}
		logs, err := o.takeUp(rec)
		if err != nil {
			return err
		}
		begun := r.running(state) > 0 || len(state.Ended) > 0
		if begun {
			o.tellStart(rec, ids)
		}
		switch {
		case !begun:
			o.mention(r.summary(state))
		case followed != state.Attempt:
			o.mention("")
		}
		if err := r.readLogs(ctx, rec.Attempt, logs); err != nil {
			return err
		}
		if state.Over(r.desc) {
			o.mention("")
			o.end(r.judge(rec, state, begin))
			return nil
		}
		if o.once {
			return nil
		}
		if err := r.stillThere(ctx, state); err != nil {
			_ = r.readLogs(ctx, rec.Attempt, logs) // their last words
			return err
		}
		if err := r.pause(ctx); err != nil {
			return err
		}
	}
}

// readLogs reads what the bucket has of the logs.
func (r *detachedRun) readLogs(ctx context.Context, attempt int, logs map[tpu.WorkerID]*readLog) error {
	ids := r.desc.IDs()
	errs := make([]error, len(ids))
	var group errgroup.Group
	group.SetLimit(16)
	for i, id := range ids {
		log := logs[id]
		if log == nil {
			continue
		}
		group.Go(func() error {
			at := log.offset()
			_, errs[i] = r.bucket.Log(ctx, r.desc.Run, id, attempt, at, log.from(at))
			return nil
		})
	}
	_ = group.Wait() // the goroutines return nil
	return workersError(StageFollow, ids, errs)
}

// takeUp is Training.takeUp for the Review, which may have had nothing to read.
func (o *onlooker) takeUp(rec *Record) (map[tpu.WorkerID]*readLog, error) {
	r := o.review
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.training == nil {
		r.training = &Training{stateDir: r.stateDir, run: r.run, o: r.o}
	}
	return r.training.takeUp(rec)
}

// tellStart tells the attempt that is read as its journal would. It may be repeated.
func (o *onlooker) tellStart(rec *Record, ids []tpu.WorkerID) {
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
	for _, e := range []event.Event{journal.Begin{Command: "attach"}, rec.attempt(), release, event.Phase{Name: "run", State: event.Started}} {
		o.enter(begin, e)
	}
}

// end tells how the run has ended.
func (o *onlooker) end(sum event.Summary) {
	now := o.far.Clock.Now()
	o.enter(now, sum)
	o.enter(now, journal.End{ExitCode: sum.ExitCode})
	o.review.mu.Lock()
	defer o.review.mu.Unlock()
	far := *o.review.training.far
	far.Ended, far.Code = true, sum.ExitCode
	o.review.training.far = &far
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = far.Attempt
}

// note takes what a following says: how the command ended on the workers. The rest is
// for who follows.
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

func (o *onlooker) joins(f *following) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.following = f
}

// tellGone keeps the workers whose slices are gone.
func (o *onlooker) tellGone(rec *Record, gone []string) {
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

// forget begins a new reading.
func (o *onlooker) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entries, o.told, o.gone, o.trouble, o.aside = nil, 0, nil, "", ""
}

// settle ends a reading: the journal tells the rest, but for an end that only we have
// seen.
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

// sees is what is known there at this moment.
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
		maps.Copy(away, f.outOfReach())
	}
	if o.trouble != "" {
		notices = append(notices, o.trouble)
	}
	if o.aside != "" {
		notices = append(notices, o.aside)
	}
	return slices.Clone(o.entries), away, append(notices, foldAway(away)...)
}

// foldAway says which workers are out of reach, those of one cause together.
func foldAway(away map[tpu.WorkerID]string) []string {
	byCause := map[string][]tpu.WorkerID{}
	for _, id := range slices.SortedFunc(maps.Keys(away), tpu.CompareWorkers) {
		byCause[away[id]] = append(byCause[away[id]], id)
	}
	causes := slices.SortedFunc(maps.Keys(byCause), func(a, b string) int {
		return cmp.Or(tpu.CompareWorkers(byCause[a][0], byCause[b][0]), cmp.Compare(a, b))
	})
	lines := make([]string, len(causes))
	for i, cause := range causes {
		lines[i] = "out of reach: " + tpu.Fold(byCause[cause]) + ": " + cause
	}
	return lines
}
