// Package provider waits for slices, caches host keys and joins several providers. It does not
// depend on any cloud.
//
// # Decisions
//
//   - Wait tries a connection to every worker, although the run will connect again. That
//     costs one more login per worker, but keeps the end of the wait simple.
package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"

	"golang.org/x/sync/errgroup"
)

// The default limits of the phases. Waiting for capacity takes minutes to days, creating
// and booting VMs takes minutes.
const (
	DefaultProvisionLimit = time.Hour
	DefaultBootLimit      = 30 * time.Minute
)

// NoLimit means that a phase has no limit.
const NoLimit time.Duration = -1

const (
	probeRound    = 3 * time.Minute  // longest round of probes, after which Wait reads the states again
	earlyRound    = 45 * time.Second // longest round while other slices are still being created
	maxProbes     = 64               // limit of slices probed at once
	defaultAdvice = 3 * time.Minute
)

// WaitOptions say how long a wait may take and what "ready" means.
type WaitOptions struct {
	// The longest time in each phase. 0 means no limit for the queue, and the defaults
	// above for the others. NoLimit, or another negative value, means no limit.
	QueueLimit, ProvisionLimit, BootLimit time.Duration
	// SlicesLimit limits how long Wait keeps the first slices while others are missing. With 0,
	// QueueLimit applies instead.
	SlicesLimit time.Duration
	// Probe returns nil if every worker of a slice answers. Wait calls Probe for READY slices,
	// several at a time, and again after an error. If Probe is nil, READY is enough.
	Probe func(ctx context.Context, s tpu.Slice) error
	// Poll is the pause between reads. At each change of state, the pause starts again with its
	// first length. The zero value means PollDefaults.
	Poll gcp.Backoff
	// AdviceAfter is how long a phase lasts before Wait reports the probable reason. 0
	// means 3 minutes.
	AdviceAfter time.Duration

	Clock gcp.Clock  // nil: the system's
	Sink  event.Sink // gets the phases, states and notes; nil: they are dropped
}

func (o WaitOptions) withDefaults() WaitOptions {
	if o.ProvisionLimit == 0 {
		o.ProvisionLimit = DefaultProvisionLimit
	}
	if o.BootLimit == 0 {
		o.BootLimit = DefaultBootLimit
	}
	if o.AdviceAfter == 0 {
		o.AdviceAfter = defaultAdvice
	}
	o.Poll = PollDefaults(o.Poll)
	if o.Clock == nil {
		o.Clock = gcp.SystemClock
	}
	if o.Sink == nil {
		o.Sink = event.Discard
	}
	return o
}

// PollDefaults fills the unset fields of b. By default, the pause begins with 250 ms and grows to
// 15 s.
func PollDefaults(b gcp.Backoff) gcp.Backoff {
	return b.Or(gcp.Backoff{First: 250 * time.Millisecond, Max: 15 * time.Second, Factor: 1.4})
}

func (o WaitOptions) limit(phase string) time.Duration {
	switch phase {
	case provision.PhaseProvision:
		return o.ProvisionLimit
	case provision.PhaseBoot:
		return o.BootLimit
	case provision.PhaseSlices:
		return o.SlicesLimit
	case provision.PhaseRecover: // giving up would throw away capacity that the provider keeps
		return NoLimit
	}
	return o.QueueLimit
}

// Wait waits until every slice of a resource of p is ready. A ready slice is usable, its workers
// are known, and opts.Probe returns nil. It returns the slices in the order of their names in the
// resource, with Index set.
//
// Wait returns a *provision.StateError at once if the resource fails, loses its slices, is being
// deleted or does not exist. It returns a *provision.DeadlineError if a phase takes longer than
// its limit. It deletes nothing. While the provider itself restarts slices, there is no limit. If
// the provider does not answer, Wait continues until the limit. When ctx ends, Wait returns its
// cause.
func Wait(ctx context.Context, p provision.Provider, id string, opts WaitOptions) (provision.Resource, []tpu.Slice, error) {
	w := &waiter{p: p, what: p.Undoing(id).Commands, id: id, opts: opts.withDefaults(), probed: map[string]string{}, warned: map[string]bool{}}
	w.start = w.now()
	w.pace = Pacer{Policy: w.opts.Poll}
	w.enter(provision.PhaseQueue)
	for {
		done, err := w.step(gcp.Unattended(ctx)) // this loop has its own limits
		if err != nil {
			w.leave(event.Failed, err.Error())
			return w.res, w.res.Slices, err
		}
		if done {
			w.leave(event.Done, fmt.Sprintf("%d/%d slices ready", len(w.res.Slices), w.total()))
			return w.res, w.res.Slices, nil
		}
		if err := gcp.Sleep(ctx, w.opts.Clock, w.pause()); err != nil {
			w.leave(event.Failed, "interrupted")
			return w.res, w.res.Slices, fmt.Errorf("wait for %s %q: %w", w.what.Kind, id, err)
		}
	}
}

// A waiter is one call of Wait.
type waiter struct {
	p     provision.Provider
	what  provision.Commands
	id    string
	opts  WaitOptions
	start time.Time

	phase      string
	phaseStart time.Time
	advised    bool

	res     provision.Resource  // the resource at the last successful read
	seen    bool                // res was read at least once
	lost    error               // why the last read failed, or nil
	missing []provision.Missing // slices that are not ready
	silent  []string            // READY slices in which some worker does not answer

	silentHint string // the first hint in the errors of silent slices

	probed map[string]string // slice name → UID that answered
	warned map[string]bool
	pace   Pacer
}

func (w *waiter) now() time.Time     { return w.opts.Clock.Now() }
func (w *waiter) emit(e event.Event) { w.opts.Sink.Emit(e) }

func (w *waiter) total() int { return max(w.res.NodeCount, 1) }

// step reads the state once and handles it.
func (w *waiter) step(ctx context.Context) (done bool, err error) {
	w.lost = nil
	res, err := w.p.Get(ctx, w.id)
	if err != nil && res.ID == "" {
		if err := w.outlive(ctx, err); err != nil {
			return false, err
		}
		return false, w.checkLimit(ctx)
	}
	known := w.res.Slices
	w.observe(res)
	if err := provision.NewStateError(res); err != nil {
		return false, w.explained(ctx, err)
	}
	switch {
	case res.Life.Queued():
	case err != nil:
		w.res.Slices = known
		if err := w.outlive(ctx, err); err != nil {
			return false, err
		}
	default:
		if err := w.look(ctx); err != nil {
			return false, err
		}
	}
	if res.Life == provision.Active && w.lost == nil && len(w.missing) == 0 {
		return true, nil
	}
	w.progress()
	w.advise(ctx)
	return false, w.checkLimit(ctx)
}

// explained adds the probable reason to the error of a failed resource.
func (w *waiter) explained(ctx context.Context, err error) error {
	var state *provision.StateError
	if errors.As(err, &state) && state.Life == provision.Failed {
		why := w.explain(ctx, w.now().Sub(w.start))
		state.Diagnosis, state.Command, state.Again = why.Reason, why.Hint, why.Again
	}
	return err
}

// explain asks the provider why the resource does not come up, if it can say so.
func (w *waiter) explain(ctx context.Context, waited time.Duration) provision.Explanation {
	if p, ok := provision.As[provision.Explainer](w.p); ok {
		return p.Explain(ctx, w.res, waited)
	}
	return provision.Explanation{}
}

// outlive returns nil if the wait continues after a failed read. That is so if the API or the
// network is at fault, or if credentials that worked before have expired.
func (w *waiter) outlive(ctx context.Context, err error) error {
	switch class := gcp.ClassOf(err); {
	case ctx.Err() != nil:
		return fmt.Errorf("wait for %s %q: %w", w.what.Kind, w.id, context.Cause(ctx))
	case class == gcp.NotFound:
		return &provision.StateError{Commands: w.what, ID: w.id, Life: provision.Absent, State: provision.NotFound}
	case Survivable(err):
	default:
		return err
	}
	w.lost = err
	if !gcp.Lapsed(err) && w.once("unreadable") { // the lapsed login was reported already
		event.Notef(w.opts.Sink, event.Warn, gcp.Hint(err), "the state of %s %q cannot be read; trying again: %v", w.what.Kind, w.id, err)
	}
	return nil
}

// Survivable reports whether a long wait continues after a read has failed with err.
func Survivable(err error) bool {
	switch gcp.ClassOf(err) {
	case gcp.Unavailable, gcp.Timeout:
		return true
	}
	return gcp.Lapsed(err)
}

// once returns true at its first call for what, and false later.
func (w *waiter) once(what string) bool {
	first := !w.warned[what]
	w.warned[what] = true
	return first
}

// observe stores the resource that was just read, and reports a new state, which may begin
// a phase.
func (w *waiter) observe(res provision.Resource) {
	changed := !w.seen || res.State != w.res.State
	w.res, w.seen = res, true
	delete(w.warned, "unreadable")
	if !changed {
		return
	}
	w.pace.Reset()
	w.emit(event.State{Resource: w.what.Kind, Name: w.id, State: res.State,
		Detail: describe(res), Elapsed: w.now().Sub(w.start)})
	switch {
	case res.Life == provision.Provisioning && len(res.Missing) > 0:
		w.enter(provision.PhaseSlices)
		for _, s := range res.Slices { // the first slice may have come during an earlier command
			if !s.Billed.IsZero() && s.Billed.Before(w.phaseStart) {
				w.phaseStart = s.Billed
			}
		}
	case res.Life == provision.Provisioning:
		w.enter(provision.PhaseProvision)
	case res.Life == provision.Active:
		w.enter(provision.PhaseBoot)
	case res.Life == provision.Recovering:
		w.enter(provision.PhaseRecover)
		clear(w.probed) // other VMs may have the same id now
	case res.Life.Queued():
		w.enter(provision.PhaseQueue)
	}
}

// describe returns the text of a failure. Without a failure, it returns the request: "2 x v4-16,
// spot".
func describe(r provision.Resource) string {
	if r.Failure != "" {
		return r.Failure
	}
	if r.Tier == "" { // the provider has only one kind of slices
		return fmt.Sprintf("%d x %s", r.NodeCount, r.Type)
	}
	return fmt.Sprintf("%d x %s, %s", r.NodeCount, r.Type, r.Tier)
}

func (w *waiter) enter(phase string) {
	if w.phase == phase {
		return
	}
	if w.phase != "" {
		w.leave(event.Done, w.res.State)
	}
	w.phase, w.phaseStart, w.advised, w.missing = phase, w.now(), false, nil
	w.emit(event.Phase{Name: phase, State: event.Started})
}

func (w *waiter) leave(state event.PhaseState, detail string) {
	w.emit(event.Phase{Name: w.phase, State: state, Detail: detail, Elapsed: w.now().Sub(w.phaseStart)})
}

// A bound is the limit of a phase.
type bound struct {
	phase string
	since time.Time
	limit time.Duration // 0: none
}

func (w *waiter) bound() bound {
	b := bound{w.phase, w.phaseStart, max(w.opts.limit(w.phase), 0)}
	if w.phase == provision.PhaseSlices && b.limit == 0 { // missing slices are still in the queue
		return bound{provision.PhaseQueue, w.start, max(w.opts.QueueLimit, 0)}
	}
	return b
}

func (b bound) end() time.Time { return b.since.Add(b.limit) }

func (w *waiter) left() (d time.Duration, limited bool) {
	b := w.bound()
	return b.end().Sub(w.now()), b.limit > 0
}

// checkLimit returns a *DeadlineError if the phase has lasted longer than its limit. Call it
// right after a read, so that the error has the present state. After a failed read, SlicesLimit
// does not apply.
func (w *waiter) checkLimit(ctx context.Context) error {
	if left, limited := w.left(); !limited || left > 0 {
		return nil
	}
	b := w.bound()
	if b.phase == provision.PhaseSlices && w.lost != nil {
		return nil // the missing slices may have come by now
	}
	e := &provision.DeadlineError{Commands: w.what, ID: w.id, Phase: b.phase, Limit: b.limit, Life: w.res.Life, State: w.res.State,
		Detail: foldMissing(w.missing), Slices: w.res.Slices, Silent: w.silent, Err: w.lost, Missing: w.res.Missing, Total: w.total(), Cost: w.cost()}
	if w.lost != nil {
		e.Life, e.State = "", ""
	}
	switch {
	case b.phase == provision.PhaseSlices:
		why := w.explain(ctx, w.now().Sub(w.phaseStart))
		e.Again = "let them wait longer with --slices-deadline=TIME"
		if why.Hint != "" {
			e.Again += ", or " + why.Hint
		}
	case w.lost != nil:
	case b.phase == provision.PhaseQueue:
		why := w.explain(ctx, w.now().Sub(w.phaseStart))
		e.Detail, e.Again = why.Reason, "let it wait longer with --queue-timeout=TIME"
		if why.Again != "" {
			e.Again = why.Again + "; or " + e.Again
		}
	case b.phase == provision.PhaseProvision:
		e.Again = "let it take longer with --provision-timeout=TIME"
	case w.phase == provision.PhaseBoot && w.consoles(ctx, e):
	case len(w.silent) > 0:
		e.Again = "examine the way to the workers with: multihost doctor --network=" + cmp.Or(w.res.Network, "default")
	}
	return e
}

// consoleLimit limits the time for reading serial consoles.
const consoleLimit = 30 * time.Second

// consoles adds to e the serial consoles of a slice that is not ready. It reports whether there
// are any.
func (w *waiter) consoles(ctx context.Context, e *provision.DeadlineError) bool {
	e.Consoles = w.readConsoles(ctx)
	if len(e.Consoles) == 0 {
		return false
	}
	first := e.Consoles[0]
	e.Detail = strings.TrimPrefix(e.Detail+"; "+first.String(), "; ")
	e.Again = first.Hint
	return true
}

// readConsoles returns the serial consoles of VMs of the first slice that is not ready. The
// console that explains most comes first. Unreadable consoles are left out.
func (w *waiter) readConsoles(ctx context.Context) []provision.Console {
	ctx, cancel := context.WithTimeout(ctx, consoleLimit)
	defer cancel()
	for _, s := range w.res.Slices {
		reader, ok := provision.As[provision.ConsoleReader](Of(w.p, s.Provider))
		if !ok || !slices.ContainsFunc(w.missing, func(m provision.Missing) bool { return m.Name == s.Name }) {
			continue
		}
		all, _ := reader.Consoles(ctx, s, nil) // an unreadable console explains nothing
		if len(all) == 0 {
			return nil
		}
		first := provision.Foremost(all)
		sorted := []provision.Console{first}
		for _, c := range all {
			if c.VM != first.VM {
				sorted = append(sorted, c)
			}
		}
		return sorted
	}
	return nil
}

// pause returns the time until the next read. It is the growing pause, or the time to the limit
// of the phase if that is shorter.
func (w *waiter) pause() time.Duration {
	d := w.pace.Next()
	if left, limited := w.left(); limited && left > 0 {
		d = min(d, max(left, time.Millisecond))
	}
	return d
}

func (w *waiter) progress() {
	b := w.bound()
	p := event.Progress{Phase: w.phase, Total: w.total(), Waiting: w.id, Detail: w.res.State,
		Elapsed: w.now().Sub(b.since), Limit: b.limit}
	if w.phase != provision.PhaseQueue {
		p.Done = w.total() - len(w.missing)
		if len(w.missing) > 0 {
			p.Waiting, p.Detail = foldMissing(w.missing), w.res.State
		}
	}
	if w.phase == provision.PhaseSlices {
		p.Detail += ", " + w.cost()
	}
	w.emit(p)
}

// cost says what the slices that have come cost.
func (w *waiter) cost() string { return cost.Running(w.res, w.res.Zone, w.now()) }

// foldMissing says why slices are missing.
func foldMissing(missing []provision.Missing) string {
	names, texts := make([]string, len(missing)), make([]string, len(missing))
	for i, m := range missing {
		names[i], texts[i] = m.Name, m.Why
	}
	return tpu.FoldTexts(names, texts)
}

// look probes the ready slices, and stores the slices that are not ready in w.missing.
func (w *waiter) look(ctx context.Context) error {
	w.silent = nil
	byName := make(map[string]tpu.Slice, len(w.res.Slices))
	for _, s := range w.res.Slices {
		byName[s.Name] = s
	}
	var missing []provision.Missing
	var unprobed []tpu.Slice
	for _, name := range w.res.Nodes {
		s, ok := byName[name]
		ready, why := s.Ready()
		switch {
		case !ok:
			missing = append(missing, provision.Missing{Name: name, Why: w.absent(name)})
		case !ready:
			missing = append(missing, provision.Missing{Name: name, Why: why})
		default:
			w.checkWorkers(s)
			if w.opts.Probe != nil && w.probed[name] != s.UID {
				unprobed = append(unprobed, s)
			}
		}
	}
	// Probe READY slices also while others are still being created.
	if mute := w.probe(ctx, unprobed); w.phase == provision.PhaseBoot {
		missing = append(missing, mute...)
	} else {
		w.silent = nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for %s %q: %w", w.what.Kind, w.id, context.Cause(ctx))
	}
	w.missing = missing
	return nil
}

// absent says why a slice does not exist yet.
func (w *waiter) absent(name string) string {
	for _, m := range w.res.Missing {
		if m.Name == name {
			return m.Why
		}
	}
	return "not made yet"
}

// checkWorkers warns if the slice has another number of workers than its accelerator type. The
// API is right, but the user may not expect that.
func (w *waiter) checkWorkers(s tpu.Slice) {
	t, err := tpu.ParseType(s.Type)
	if err != nil || len(s.Workers) == t.Workers || !w.once("workers of "+s.Name) {
		return
	}
	event.Notef(w.opts.Sink, event.Warn, "", "slice %s has %d workers where %s should have %d", s.Name, len(s.Workers), s.Type, t.Workers)
}

const probeFailed = "READY, but not all workers answer: "

var errProbeOver = errors.New("no answer within the limit")

// probe asks all workers of the slices. It returns the slices in which at least one worker does
// not answer. It returns after one round at the latest, so that Wait then notices a deletion of
// the resource.
func (w *waiter) probe(ctx context.Context, list []tpu.Slice) []provision.Missing {
	if len(list) == 0 {
		return nil
	}
	round := probeRound
	if w.phase != provision.PhaseBoot {
		round = earlyRound
	}
	if left, limited := w.left(); limited {
		round = min(round, max(left, time.Millisecond))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timeUp, timerDone := w.opts.Clock.After(round), make(chan struct{})
	go func() { // ends with ctx, which is cancelled below
		defer close(timerDone)
		select {
		case <-timeUp:
			cancel(errProbeOver)
		case <-ctx.Done():
		}
	}()
	errs := make([]error, len(list))
	var group errgroup.Group
	group.SetLimit(maxProbes)
	for i, s := range list {
		group.Go(func() error {
			errs[i] = w.opts.Probe(ctx, s)
			return nil
		})
	}
	_ = group.Wait() // the goroutines return nil
	cancel(nil)
	<-timerDone
	var missing []provision.Missing
	w.silentHint = ""
	for i, s := range list {
		if errs[i] == nil {
			w.probed[s.Name] = s.UID
		} else {
			missing = append(missing, provision.Missing{Name: s.Name, Why: probeFailed + errs[i].Error()})
			w.silent = append(w.silent, s.Name)
			var hinted interface{ Hint() string }
			if errors.As(errs[i], &hinted) && w.silentHint == "" {
				w.silentHint = hinted.Hint()
			}
		}
	}
	return missing
}

// advise reports the probable reason if a phase has lasted opts.AdviceAfter. It does so once for
// each phase.
func (w *waiter) advise(ctx context.Context) {
	if w.advised || w.now().Sub(w.phaseStart) < w.opts.AdviceAfter {
		return
	}
	w.advised = true
	text, hint := w.diagnosis(ctx)
	event.Notef(w.opts.Sink, event.Info, hint, "%s", text)
}

func (w *waiter) diagnosis(ctx context.Context) (text, hint string) {
	waited := event.Age(w.now().Sub(w.phaseStart))
	name := fmt.Sprintf("%s %q", w.what.Kind, w.id)
	switch w.phase {
	case provision.PhaseSlices:
		text = fmt.Sprintf("%s has %d of %s: %s", name, w.total()-len(w.res.Missing), event.Count(w.total(), "slice"), w.cost())
		if b := w.bound(); b.phase == provision.PhaseSlices && b.limit > 0 {
			text += fmt.Sprintf("; they are given back at %s if the others have not come (--slices-deadline)", b.end().Local().Format("15:04:05"))
		}
		return text + "; " + foldMissing(w.missing), w.explain(ctx, w.now().Sub(w.phaseStart)).Hint
	case provision.PhaseProvision:
		return fmt.Sprintf("%s got its capacity %s ago, and its VMs are being made: %s",
			name, waited, cmp.Or(foldMissing(w.missing), "no slice is shown yet")), w.what.Show
	case provision.PhaseBoot:
		text, hint = fmt.Sprintf("%s has been %s for %s, but is not ready: %s", name, w.res.State, waited, foldMissing(w.missing)), w.bootHint()
		if all := w.readConsoles(ctx); len(all) > 0 {
			text, hint = text+"; "+all[0].String(), cmp.Or(all[0].Hint, "see the whole serial console with: "+all[0].Show)
		}
		return text, hint
	case provision.PhaseRecover:
		return fmt.Sprintf("%s has been %s for %s: it is restarted by itself", name, w.res.State, waited), w.what.Show
	}
	why := w.explain(ctx, w.now().Sub(w.phaseStart))
	return fmt.Sprintf("%s has been queued for %s in %s and is %s: %s", name, waited, w.res.Zone, w.res.State, cmp.Or(why.Reason, "why is not known")), why.Hint
}

// bootHint returns the first hint of a silent slice, or else the command that shows the resource.
func (w *waiter) bootHint() string {
	return cmp.Or(w.silentHint, "see: "+w.what.Show)
}

// A Pacer returns growing pauses. They vary a little at random, so that not all waiters read at
// the same moment.
type Pacer struct {
	Policy gcp.Backoff
	last   time.Duration
}

// Reset makes the next pause the shortest again.
func (p *Pacer) Reset() { p.last = 0 }

// Next returns the next pause.
func (p *Pacer) Next() time.Duration {
	if p.last == 0 {
		p.last = p.Policy.First
	} else {
		p.last = min(time.Duration(float64(p.last)*p.Policy.Factor), p.Policy.Max)
	}
	return time.Duration(float64(p.last) * (0.85 + 0.3*rand.Float64()))
}
