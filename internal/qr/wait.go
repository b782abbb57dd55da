package qr

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/tpu"

	"golang.org/x/sync/errgroup"
)

// The phases of a wait, as they are named in events and in DeadlineError.
const (
	PhaseQueue     = "queue"     // CREATING, ACCEPTED, WAITING_FOR_RESOURCES
	PhaseProvision = "provision" // PROVISIONING
	PhaseBoot      = "boot"      // ACTIVE, until every slice is READY and answers
)

// The default limits of the phases. Waiting for capacity takes minutes to days;
// creating and booting VMs takes minutes.
const (
	DefaultProvisionLimit = time.Hour
	DefaultBootLimit      = 30 * time.Minute
)

// NoLimit switches the limit of a phase off.
const NoLimit time.Duration = -1

const (
	probeRound    = 3 * time.Minute  // longest round of probes; then the states are read again
	earlyRound    = 45 * time.Second // the same, while other slices are being created
	maxProbes     = 64               // slices probed at once
	defaultAdvice = 3 * time.Minute
)

// WaitOptions say how long a wait may take and what "ready" means.
type WaitOptions struct {
	// The longest time in each phase. 0: no limit for the queue, the defaults
	// above for the others. NoLimit or any other negative value: no limit.
	QueueLimit, ProvisionLimit, BootLimit time.Duration
	// Probe returns nil if every worker of a slice answers. Wait calls it for
	// slices that are READY, for several at once, and again after an error.
	// nil: READY is enough.
	Probe func(ctx context.Context, s tpu.Slice) error
	// Poll is the pause between reads, which starts anew at each change of
	// state. The zero value means 250 ms growing to 15 s.
	Poll gcp.Backoff
	// AdviceAfter is how long a phase lasts before Wait reports the probable
	// reason. 0: 3 minutes.
	AdviceAfter time.Duration
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
	o.Poll = pollDefaults(o.Poll)
	return o
}

func pollDefaults(b gcp.Backoff) gcp.Backoff {
	if b.First <= 0 {
		b.First = 250 * time.Millisecond
	}
	if b.Max <= 0 {
		b.Max = 15 * time.Second
	}
	if b.Factor < 1 {
		b.Factor = 1.4
	}
	return b
}

func (o WaitOptions) limit(phase string) time.Duration {
	switch phase {
	case PhaseProvision:
		return o.ProvisionLimit
	case PhaseBoot:
		return o.BootLimit
	}
	return o.QueueLimit
}

// Wait waits until every slice of the queued resource is ready: READY, healthy,
// with its workers known and answering opts.Probe. It returns the slices in
// the order of the numbers in their names, with Index set.
//
// Wait returns a *StateError at once when the resource is FAILED, SUSPENDING,
// SUSPENDED, DELETING or does not exist. It returns a *DeadlineError when a phase
// takes longer than its limit; it deletes nothing. An API that does not answer
// never ends the wait before the limit. When ctx ends, Wait returns its cause.
func (c *Client) Wait(ctx context.Context, id string, opts WaitOptions) (Resource, []tpu.Slice, error) {
	w := &waiter{c: c, id: id, opts: opts.withDefaults(), start: c.now(), probed: map[string]string{}, warned: map[string]bool{}}
	w.pace = pacer{policy: w.opts.Poll}
	w.enter(PhaseQueue)
	for {
		done, err := w.step(gcp.Unattended(ctx)) // this loop has limits of its own
		if err != nil {
			w.leave(event.Failed, err.Error())
			return w.res, w.slices, err
		}
		if done {
			w.leave(event.Done, fmt.Sprintf("%d/%d slices ready", len(w.slices), w.total()))
			return w.res, w.slices, nil
		}
		if err := c.sleep(ctx, w.pause()); err != nil {
			w.leave(event.Failed, "interrupted")
			return w.res, w.slices, fmt.Errorf("wait for queued resource %q: %w", id, err)
		}
	}
}

// A waiter is one call of Wait.
type waiter struct {
	c     *Client
	id    string
	opts  WaitOptions
	start time.Time

	phase      string
	phaseStart time.Time
	advised    bool

	res     Resource // as last read
	seen    bool     // res has been read at least once
	lost    error    // why the last read failed, or nil
	slices  []tpu.Slice
	missing []string // what is not ready, in words
	silent  []string // slices that are READY but whose workers do not all answer

	silentHint string // the first hint among the errors of the silent slices

	probed map[string]string // slice name → UID that answered
	warned map[string]bool
	pace   pacer
}

func (w *waiter) total() int { return max(w.res.NodeCount, 1) }

// step reads the state once and acts on it.
func (w *waiter) step(ctx context.Context) (done bool, err error) {
	w.lost = nil
	res, err := w.c.read(ctx, w.id)
	if err != nil {
		if err := w.outlive(ctx, err); err != nil {
			return false, err
		}
		return false, w.checkLimit(ctx)
	}
	w.observe(res)
	if err := stateError(res); err != nil {
		return false, w.explained(ctx, err)
	}
	if res.State == "ACTIVE" || res.State == "PROVISIONING" {
		if err := w.look(ctx); err != nil {
			return false, err
		}
	}
	if res.State == "ACTIVE" && w.lost == nil && len(w.missing) == 0 {
		return true, nil
	}
	w.progress()
	w.advise(ctx)
	return false, w.checkLimit(ctx)
}

// explained adds the probable reason to the error of a FAILED resource.
func (w *waiter) explained(ctx context.Context, err error) error {
	var state *StateError
	if errors.As(err, &state) && state.State == "FAILED" {
		p := w.c.inquire(ctx, w.res, w.c.now().Sub(w.start))
		state.Diagnosis, state.command = p.diagnose()
		state.again = p.repeat()
	}
	return err
}

// outlive decides whether the wait goes on after a failed read; it returns nil if
// so. The wait goes on when the API or the network to it is at fault, and when
// credentials that worked before have expired.
func (w *waiter) outlive(ctx context.Context, err error) error {
	switch class := gcp.ClassOf(err); {
	case ctx.Err() != nil:
		return fmt.Errorf("wait for queued resource %q: %w", w.id, context.Cause(ctx))
	case class == gcp.NotFound:
		return &StateError{ID: w.id, State: NotFound}
	case survivable(err):
	default:
		return err
	}
	w.lost = err
	if !gcp.Lapsed(err) && w.once("unreadable") { // the lapsed login was reported already
		event.Notef(w.c.sink(), event.Warn, gcp.Hint(err), "the state of queued resource %q cannot be read, it is tried further: %v", w.id, err)
	}
	return nil
}

// once returns true on its first call for what, and false after that.
func (w *waiter) once(what string) bool {
	first := !w.warned[what]
	w.warned[what] = true
	return first
}

// observe stores the resource that was read. It reports a new state, which may
// begin a phase.
func (w *waiter) observe(res Resource) {
	changed := !w.seen || res.State != w.res.State
	w.res, w.seen = res, true
	delete(w.warned, "unreadable")
	if !changed {
		return
	}
	w.pace.reset()
	w.c.emit(event.State{Resource: "queued resource", Name: w.id, State: res.State,
		Detail: describe(res), Elapsed: w.c.now().Sub(w.start)})
	switch res.State {
	case "PROVISIONING":
		w.enter(PhaseProvision)
	case "ACTIVE":
		w.enter(PhaseBoot)
	case "FAILED", "SUSPENDED", "SUSPENDING", "DELETING":
	default:
		w.enter(PhaseQueue)
	}
}

// describe returns the failure text, or else the request: "2 x v4-16, spot".
func describe(r Resource) string {
	if r.Failure != "" {
		return r.Failure
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
	w.phase, w.phaseStart, w.advised, w.missing = phase, w.c.now(), false, nil
	w.c.emit(event.Phase{Name: phase, State: event.Started})
}

func (w *waiter) leave(state event.PhaseState, detail string) {
	w.c.emit(event.Phase{Name: w.phase, State: state, Detail: detail, Elapsed: w.c.now().Sub(w.phaseStart)})
}

func (w *waiter) limit() time.Duration { return max(w.opts.limit(w.phase), 0) }

func (w *waiter) left() (d time.Duration, limited bool) {
	limit := w.limit()
	return limit - w.c.now().Sub(w.phaseStart), limit > 0
}

// checkLimit returns a *DeadlineError if the phase has lasted longer than its
// limit. It runs right after a read, so that the error gives the current state.
func (w *waiter) checkLimit(ctx context.Context) error {
	if left, limited := w.left(); !limited || left > 0 {
		return nil
	}
	e := &DeadlineError{ID: w.id, Phase: w.phase, Limit: w.limit(), State: w.res.State,
		Detail: foldMissing(w.missing), Resource: w.res, Slices: w.slices, Silent: w.silent, Err: w.lost}
	switch {
	case w.lost != nil:
		e.State = ""
	case w.phase == PhaseQueue:
		p := w.c.inquire(ctx, w.res, w.c.now().Sub(w.phaseStart))
		e.Detail, _ = p.diagnose()
		e.again = p.repeat()
	case len(w.silent) > 0:
		e.again = "examine the way to the workers with: multihost doctor --network=" + firstOf(w.res.Network, "default")
	}
	return e
}

// pause returns the time until the next read: the growing pause, cut at the limit
// of the phase.
func (w *waiter) pause() time.Duration {
	d := w.pace.next()
	if left, limited := w.left(); limited {
		d = min(d, max(left, time.Millisecond))
	}
	return d
}

func (w *waiter) progress() {
	p := event.Progress{Phase: w.phase, Total: w.total(), Waiting: w.id, Detail: w.res.State,
		Elapsed: w.c.now().Sub(w.phaseStart), Limit: w.limit()}
	if w.phase != PhaseQueue {
		p.Done = w.total() - len(w.missing)
		if len(w.missing) > 0 {
			p.Waiting, p.Detail = foldMissing(w.missing), w.res.State
		}
	}
	w.c.emit(p)
}

// foldMissing joins texts of the form "SLICE: what is missing".
func foldMissing(missing []string) string {
	names, texts := make([]string, len(missing)), make([]string, len(missing))
	for i, m := range missing {
		names[i], texts[i], _ = strings.Cut(m, ": ")
	}
	return tpu.FoldTexts(names, texts)
}

// look reads the slices, probes the ready ones, and notes what is missing.
func (w *waiter) look(ctx context.Context) error {
	nodes, err := w.c.Slices(ctx)
	if err != nil {
		return w.outlive(ctx, err)
	}
	w.slices, w.silent = slicesOf(w.res, nodes), nil
	byName := make(map[string]tpu.Slice, len(w.slices))
	for _, s := range w.slices {
		byName[s.Name] = s
	}
	var missing []string
	var unprobed []tpu.Slice
	for _, name := range w.res.Nodes {
		s, ok := byName[name]
		ready, why := s.Ready()
		switch {
		case !ok:
			missing = append(missing, name+": not made yet")
		case !ready:
			missing = append(missing, name+": "+why)
		default:
			w.checkWorkers(s)
			if w.opts.Probe != nil && w.probed[name] != s.UID {
				unprobed = append(unprobed, s)
			}
		}
	}
	// Slices that are READY early are probed too: the user may want to know that
	// they answer while others are still being created.
	if texts := w.probe(ctx, unprobed); w.phase == PhaseBoot {
		missing = append(missing, texts...)
	} else {
		w.silent = nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for queued resource %q: %w", w.id, context.Cause(ctx))
	}
	w.missing = missing
	w.res.Slices = statesOf(w.slices)
	return nil
}

// checkWorkers warns when the number of workers that the API reports for a slice
// is not that of its type. The API is right, but the user may not expect it.
func (w *waiter) checkWorkers(s tpu.Slice) {
	t, err := tpu.ParseType(s.Type)
	if err != nil || len(s.Workers) == t.Workers || !w.once("workers of "+s.Name) {
		return
	}
	event.Notef(w.c.sink(), event.Warn, "", "slice %s has %d workers where %s should have %d", s.Name, len(s.Workers), s.Type, t.Workers)
}

const probeFailed = ": READY, but not all workers answer: "

var errProbeOver = errors.New("no answer within the limit")

// probe asks the slices whether their workers answer. It returns one text for each
// slice whose workers do not all answer. It takes at most one round, so that Wait
// notices a resource that is deleted meanwhile.
func (w *waiter) probe(ctx context.Context, list []tpu.Slice) []string {
	if len(list) == 0 {
		return nil
	}
	round := probeRound
	if w.phase != PhaseBoot {
		round = earlyRound
	}
	if left, limited := w.left(); limited {
		round = min(round, max(left, time.Millisecond))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timeUp, timerDone := w.c.gcp.Clock().After(round), make(chan struct{})
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
	var missing []string
	w.silentHint = ""
	for i, s := range list {
		if errs[i] == nil {
			w.probed[s.Name] = s.UID
		} else {
			missing = append(missing, s.Name+probeFailed+errs[i].Error())
			w.silent = append(w.silent, s.Name)
			var hinted interface{ Hint() string }
			if errors.As(errs[i], &hinted) && w.silentHint == "" {
				w.silentHint = hinted.Hint()
			}
		}
	}
	return missing
}

// advise reports the probable reason of a long phase, once a phase, after
// opts.AdviceAfter.
func (w *waiter) advise(ctx context.Context) {
	if w.advised || w.c.now().Sub(w.phaseStart) < w.opts.AdviceAfter {
		return
	}
	w.advised = true
	text, hint := w.diagnosis(ctx)
	event.Notef(w.c.sink(), event.Info, hint, "%s", text)
}

func (w *waiter) diagnosis(ctx context.Context) (text, hint string) {
	waited := event.Age(w.c.now().Sub(w.phaseStart))
	switch w.phase {
	case PhaseProvision:
		return fmt.Sprintf("queued resource %q got its capacity %s ago, and its VMs are being made: %s",
			w.id, waited, firstOf(foldMissing(w.missing), "no slice is shown yet")), "multihost qr show " + w.id
	case PhaseBoot:
		return fmt.Sprintf("queued resource %q has been ACTIVE for %s, but is not ready: %s", w.id, waited, foldMissing(w.missing)), w.bootHint()
	}
	reason, hint := w.c.inquire(ctx, w.res, w.c.now().Sub(w.phaseStart)).diagnose()
	return fmt.Sprintf("queued resource %q has been queued for %s in %s and is %s: %s", w.id, waited, w.c.gcp.Zone(), w.res.State, reason), hint
}

// bootHint returns the hint of the first silent slice that has one.
func (w *waiter) bootHint() string {
	return firstOf(w.silentHint, "see: multihost qr show "+w.id)
}

// A pacer gives growing pauses. It varies them a little at random, so that many
// waiters do not read at the same moment.
type pacer struct {
	policy gcp.Backoff
	last   time.Duration
}

func (p *pacer) reset() { p.last = 0 }

func (p *pacer) next() time.Duration {
	if p.last == 0 {
		p.last = p.policy.First
	} else {
		p.last = min(time.Duration(float64(p.last)*p.policy.Factor), p.policy.Max)
	}
	return time.Duration(float64(p.last) * (0.85 + 0.3*rand.Float64()))
}
