package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// Connected holds workers with an open connection to each. Conns[i] reaches IDs[i]. In a run,
// the index is the process number.
type Connected struct {
	Slices []tpu.Slice
	IDs    []tpu.WorkerID
	Conns  []remote.Conn
	HangUp func() // closes Conns; nil: no worker is connected

	// Away[i] says why worker IDs[i] could not be reached when the connections were made. The
	// first use of Conns[i] then tries again. If Away is nil, all workers were reached.
	Away []error

	readOnly bool // the connections only read
	breaks   breaks
}

// IsAway reports whether worker i could not be reached when the connections were made.
func (t *Connected) IsAway(i int) bool { return t.Away != nil && t.Away[i] != nil }

// Reached returns how many workers were reached when the connections were made.
func (t *Connected) Reached() int {
	n := len(t.IDs)
	for i := range t.IDs {
		if t.IsAway(i) {
			n--
		}
	}
	return n
}

func (t *Connected) Close() {
	if t.HangUp != nil {
		t.HangUp()
	}
}

// Slice returns the slice of worker i.
func (t *Connected) Slice(i int) tpu.Slice { return t.Slices[t.IDs[i].Slice] }

// Address returns the worker's address inside the network.
func (t *Connected) Address(i int) string { return t.Slice(i).Workers[t.IDs[i].Worker].Internal }

// Targets returns the workers as targets of a sync. port is for workers that do not name
// one.
func (t *Connected) Targets(port int) []codesync.Target {
	all := make([]codesync.Target, len(t.IDs))
	for i, id := range t.IDs {
		all[i].Slice = id.Slice
		if host := t.Address(i); host != "" {
			all[i].Addr = net.JoinHostPort(host, strconv.Itoa(cmp.Or(t.Slice(i).Workers[id.Worker].Port, port)))
		}
		if t.HangUp != nil && !t.IsAway(i) { // workers that are away get nothing
			all[i].Conn = t.Conns[i]
		}
	}
	return all
}

// Each calls f for all workers at the same time and waits for all of them. The number of
// concurrent calls is not limited, because f on one worker may need all the others. Each shows
// the progress of the phase and the silent workers.
func (t *Connected) Each(ctx context.Context, sink event.Sink, phase string, f func(ctx context.Context, i int) error) []error {
	errs := make([]error, len(t.IDs))
	progress := &count{over: make([]bool, len(t.IDs))}
	heard := &HeardSink{Sink: sink, Waits: progress.waits, last: event.Progress{Phase: phase, Total: len(t.IDs)}}
	if phase != "" {
		defer t.Listen(heard)()
	}
	var wg sync.WaitGroup
	for i := range t.IDs {
		wg.Go(func() {
			errs[i] = f(ctx, i)
			if phase != "" {
				progress.finish(i, func(done int) { heard.Emit(event.Progress{Phase: phase, Done: done, Total: len(t.IDs)}) })
			}
		})
	}
	wg.Wait()
	return errs
}

// Discover finds the slices with the prefix. It returns an error if the set may be
// incomplete or wrong, unless partial allows that.
func (d *Reach) Discover(ctx context.Context, prefix string, only tpu.Numbers, partial bool) (tpu.Selection, error) {
	sel, err := d.find(ctx, prefix, only, partial)
	if err != nil || len(sel.Problems) == 0 {
		return sel, err
	}
	problems := tpu.FoldProblems(sel.Problems)
	if partial && len(sel.Slices) > 0 {
		for _, p := range problems {
			event.Notef(d.Sink, event.Warn, "", "%s; going on without it (--allow-partial)", p)
		}
		return sel, nil
	}
	return sel, &stage.Error{
		Stage:  stage.Discover,
		Text:   strings.Join(problems, "; "),
		Advice: "look at the slices with: " + d.Cloud.Undoing("").Commands.List + "; to run on those that are ready all the same, add --allow-partial",
	}
}

// find lists the slices with the prefix, and what is wrong with them.
func (d *Reach) find(ctx context.Context, prefix string, only tpu.Numbers, partial bool) (tpu.Selection, error) {
	nodes, err := d.Cloud.Slices(ctx)
	if err != nil {
		return tpu.Selection{}, fmt.Errorf("list slices in %q: %w", d.Zone, err)
	}
	sel, err := tpu.SelectNumbered(nodes, prefix, only, partial)
	if err != nil {
		return sel, err
	}
	if d.number(ctx, slices.Concat(sel.Slices, sel.Unready)) {
		if nodes, err = d.Cloud.Slices(ctx); err != nil {
			return sel, fmt.Errorf("list slices in %q: %w", d.Zone, err)
		}
		if sel, err = tpu.SelectNumbered(nodes, prefix, only, partial); err != nil {
			return sel, err
		}
	}
	if len(sel.Slices) > 0 && sel.Slices[0].Name != prefix && only == nil { // a family, so check that it is complete
		if missing := d.missingFromQueue(ctx, sel); missing != "" {
			sel.Problems = append(sel.Problems, missing)
		}
	}
	return sel, nil
}

// missingFromQueue asks the queued resource how many slices there should be. The names do not
// show whether the last slices of a family are missing.
func (d *Reach) missingFromQueue(ctx context.Context, sel tpu.Selection) string {
	if !sel.Slices[0].MultiSlice || sel.Slices[0].QueuedResource == "" || d.OnHosts() {
		return ""
	}
	res, err := d.Cloud.Get(ctx, sel.Slices[0].QueuedResource)
	if err != nil || res.NodeCount <= len(sel.Slices) {
		return ""
	}
	return fmt.Sprintf("%s has %d slices, only %d are here", provision.QuotedNameOf(d.Cloud, res.ID), res.NodeCount, len(sel.Slices))
}

// Connect opens one connection to every worker of sel, or only to those for which only
// returns true, if it is not nil. After an error, no connection stays open.
func (d *Reach) Connect(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool) (*Connected, error) {
	t, err := d.DialAll(ctx, sel, only, true, d.Access.RetryFor)
	if err != nil || t.Away == nil {
		return t, err
	}
	defer t.Close()
	return nil, stage.WorkersError(stage.Connect, t.IDs, t.Away)
}

// Dial does what Connect does, for callers that can work with some of the workers. The
// result has the reached workers, and failed says why the others were not. With sendKeys,
// the user's key is first added to the slices' metadata, otherwise only after a worker has
// refused it.
func (d *Reach) Dial(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool, sendKeys bool) (*Connected, map[tpu.WorkerID]error, error) {
	return d.DialFor(ctx, sel, only, sendKeys, d.Access.RetryFor)
}

// DialFor is Dial with another limit for how long a worker may take to answer.
func (d *Reach) DialFor(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool, sendKeys bool, retryFor time.Duration) (*Connected, map[tpu.WorkerID]error, error) {
	t, err := d.DialAll(ctx, sel, only, sendKeys, retryFor)
	if err != nil {
		return nil, nil, err
	}
	reached := &Connected{Slices: t.Slices, HangUp: t.HangUp, readOnly: t.readOnly}
	failed := map[tpu.WorkerID]error{}
	for i, id := range t.IDs {
		if t.IsAway(i) {
			failed[id] = t.Away[i]
			continue
		}
		reached.IDs = append(reached.IDs, id)
		reached.Conns = append(reached.Conns, t.Conns[i])
	}
	return reached, failed, nil
}

// DialAll is DialFor, but keeps the workers that were not reached.
func (d *Reach) DialAll(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool, sendKeys bool, retryFor time.Duration) (*Connected, error) {
	t := &Connected{Slices: sel.Slices, readOnly: d.ReadOnly}
	for _, id := range sel.Workers() {
		if only == nil || only(id) {
			t.IDs = append(t.IDs, id)
		}
	}
	dialed, err := d.Dialer.Dial(ctx, remote.Request{
		Slices: t.Slices, Workers: t.IDs, Admit: sendKeys, RetryFor: retryFor, ReadOnly: d.ReadOnly, Sink: d.Sink,
	})
	if err != nil {
		return nil, err
	}
	d.greet(ctx, dialed, t.IDs)
	if ctx.Err() != nil {
		dialed.Close()
		return nil, context.Cause(ctx)
	}
	t.Conns, t.HangUp = dialed.Conns, dialed.Close
	if slices.ContainsFunc(dialed.Errs, func(err error) bool { return err != nil }) {
		t.Away = dialed.Errs
	}
	return t, nil
}

// greetIdle is how long the first commands may take before a line says which workers have
// not answered.
const greetIdle = time.Second

// greet runs a first command on every reached worker. While some logins do not answer, it
// emits Progress of the phase "connect". A worker counts as connected once it has answered.
func (d *Reach) greet(ctx context.Context, dialed *remote.Dialed, ids []tpu.WorkerID) {
	var mu sync.Mutex
	open := map[tpu.WorkerID]bool{}
	for i, id := range ids {
		if dialed.Errs[i] == nil {
			open[id] = true
		}
	}
	reached := len(open)
	all := make(chan struct{})
	go func() {
		defer close(all)
		dialed.Greet(ctx, func(i int) {
			mu.Lock()
			defer mu.Unlock()
			delete(open, ids[i])
		})
	}()
	for start := d.Clock.Now(); ; {
		select {
		case <-all:
			return
		case <-d.Clock.After(greetIdle):
		}
		mu.Lock()
		waiting := slices.SortedFunc(maps.Keys(open), tpu.WorkerID.Compare)
		mu.Unlock()
		d.Sink.Emit(event.Progress{Phase: "connect", Done: reached - len(waiting), Total: len(ids), Waiting: tpu.FoldShort(waiting),
			Detail: "the login has not answered yet", Elapsed: d.Clock.Now().Sub(start)})
	}
}

// breaks holds the connections that broke and are not reported yet.
type breaks struct {
	mu sync.Mutex
	of map[string][]tpu.WorkerID // by text of the warning
}

// Broke returns a function that warns that the connection to worker i broke during a step, and
// that the step is tried again. The function delays a new warning a little, so that one line
// reports all workers that were lost together.
func (d *Reach) Broke(ctx context.Context, t *Connected, i int, during string) func(error) {
	return func(err error) {
		text := fmt.Sprintf("the connection broke during the %s (%s); trying again", during, remote.LostText(errors.New(stage.CauseText(err, t.IDs[i]))))
		t.breaks.mu.Lock()
		if t.breaks.of == nil {
			t.breaks.of = map[string][]tpu.WorkerID{}
		}
		first := len(t.breaks.of[text]) == 0
		t.breaks.of[text] = append(t.breaks.of[text], t.IDs[i])
		t.breaks.mu.Unlock()
		if !first {
			return
		}
		_ = stage.Sleep(ctx, d.Clock, OutagePause)
		t.breaks.mu.Lock()
		ids := t.breaks.of[text]
		delete(t.breaks.of, text)
		t.breaks.mu.Unlock()
		event.Notef(d.Sink, event.Warn, "", "%s: %s", tpu.FoldShort(ids), text)
	}
}

// clockLimit is how wrong a worker's clock may be without a warning.
const clockLimit = 10 * time.Second

// tellClocks warns about workers with a wrong clock, because they may refuse certificates and
// tokens. multihost corrects the times that it shows.
func (t *Connected) tellClocks(sink event.Sink) {
	type group struct {
		offset  time.Duration // offset of the first of these workers
		workers []tpu.WorkerID
	}
	var groups []*group
	for i, c := range t.Conns {
		offset := c.ClockOffset()
		at := slices.IndexFunc(groups, func(g *group) bool { return (g.offset - offset).Abs() < clockLimit })
		if at < 0 {
			at = len(groups)
			groups = append(groups, &group{offset: offset})
		}
		groups[at].workers = append(groups[at].workers, t.IDs[i])
	}
	for _, g := range groups {
		if g.offset.Abs() < clockLimit {
			continue
		}
		whose, hint := "of "+tpu.Fold(g.workers), "on the worker: timedatectl; sudo systemctl restart chrony"
		if len(groups) == 1 && len(t.IDs) > 1 {
			whose, hint = "of all workers", "the clock of this machine is the wrong one: timedatectl"
		}
		way := "ahead of"
		if g.offset < 0 {
			way = "behind"
		}
		event.Notef(sink, event.Warn, hint, "the clock %s is %s %s this machine's; what is shown is corrected, but certificates and tokens may be refused",
			whose, event.Duration(g.offset.Abs().Round(time.Second)), way)
	}
}

// ReachAll discovers the slices and connects to their workers, for commands that work on
// slices.
func (d *Reach) ReachAll(ctx context.Context, watch *stage.Stopwatch, prefix string, numbers tpu.Numbers, partial bool, only func(tpu.WorkerID) bool) (*Connected, error) {
	sel, err := d.DiscoverPhase(ctx, watch, prefix, numbers, partial)
	if err != nil {
		return nil, err
	}
	return d.ConnectPhase(ctx, watch, sel, only)
}

// DiscoverPhase runs the phase "discover", which finds the slices of a family.
func (d *Reach) DiscoverPhase(ctx context.Context, watch *stage.Stopwatch, prefix string, numbers tpu.Numbers, partial bool) (sel tpu.Selection, err error) {
	err = watch.Phase("discover", func() (string, error) {
		var err error
		if sel, err = d.Discover(ctx, prefix, numbers, partial); err != nil {
			return "", err
		}
		return Describe(sel), nil
	})
	return sel, err
}

// ConnectPhase runs the phase "connect": it connects to the workers of sel for which only
// returns true. The caller closes t.
func (d *Reach) ConnectPhase(ctx context.Context, watch *stage.Stopwatch, sel tpu.Selection, only func(tpu.WorkerID) bool) (t *Connected, err error) {
	err = watch.Phase("connect", func() (string, error) {
		var err error
		if t, err = d.Connect(ctx, sel, only); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d/%d workers", len(t.IDs), len(t.IDs)), nil
	})
	if err == nil {
		t.tellClocks(d.Sink)
	}
	return t, err
}

// ConnectSome is ConnectPhase for callers that can work with some of the workers. t has the
// reached workers, and failed says why the others were not. If none was reached, it returns
// an error.
func (d *Reach) ConnectSome(ctx context.Context, watch *stage.Stopwatch, sel tpu.Selection) (t *Connected, failed map[tpu.WorkerID]error, err error) {
	err = watch.Phase("connect", func() (string, error) {
		var err error
		if t, failed, err = d.Dial(ctx, sel, nil, true); err != nil {
			return "", err
		}
		if len(t.IDs) == 0 {
			t.Close()
			return "", Unreached(sel, failed)
		}
		return fmt.Sprintf("%d/%d workers", len(t.IDs), len(t.IDs)+len(failed)), nil
	})
	if err == nil {
		t.tellClocks(d.Sink)
	}
	return t, failed, err
}

// Unreached returns an error about the workers of sel that were not reached, or nil.
func Unreached(sel tpu.Selection, failed map[tpu.WorkerID]error) error {
	ids := sel.Workers()
	errs := make([]error, len(ids))
	for i, id := range ids {
		errs[i] = failed[id]
	}
	return stage.WorkersError(stage.Connect, ids, errs)
}
