package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"multihost/internal/announce"
	"multihost/internal/attempt"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/lease"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/renewal"
	"multihost/internal/stage"
	"multihost/internal/teardown"
	"multihost/internal/tpu"
)

// queued is the ground of Job. It requests a queued resource for the slices, and requests
// it again after a loss.
type queued struct {
	Deps
	o     JobOptions
	watch *stage.Stopwatch
	await func(context.Context, provision.Provider, string, provider.WaitOptions) (provision.Resource, []tpu.Slice, error) // provider.Wait
	terms lease.Terms                                                                                                      // terms for the workers of the requested slices
	held  adoption

	mine     *attempt.History           // attempts that this runner began
	deleting func()                     // called before the resource is deleted and requested again
	occupied func(context.Context) bool // whether another runner's command is active on the slices

	there bool // the resource is known to exist
	ours  bool // this process or an earlier runner of the job made it
	made  bool // this process made it
	left  bool // the last look found usable slices
	gone  bool // the last read found no resource
	known sighting

	resets  int // resets since the last answer of the workers
	remakes int // times the job made the resource again at no cost to the budget, since the workers last answered
	starved int // refusals in a row for lack of capacity
	settles time.Time
	asked   time.Time // time of the request

	mtu       int    // MTU of the network, if known
	announced string // line about the newest request
}

func newQueued(d Deps, o JobOptions, watch *stage.Stopwatch) *queued {
	q := &queued{Deps: d, o: o, watch: watch, await: provider.Wait, terms: leaseTerms(d.Reach, o), mine: &attempt.History{}, deleting: func() {}}
	q.occupied = q.othersLive
	return q
}

const (
	// maxRemakes limits how often the job makes a resource again that does not come up.
	maxRemakes = 3
	// suspendLimit limits how long the job waits while the API takes slices away.
	suspendLimit = 10 * time.Minute
	suspendPause = 5 * time.Second
)

// ready makes the slices usable, step by step. In each step it waits, reads the state and
// does what provision.Decide says.
func (q *queued) ready(ctx context.Context, pay func(*stage.Failure) error, after *stage.Failure) (tpu.Selection, error) {
	paid := after != nil
	q.held.forget()
	for {
		all, err := q.wait(ctx)
		if err == nil {
			q.held.worked, q.resets, q.remakes, q.starved, q.settles = true, 0, 0, 0, time.Time{}
			return tpu.Selection{Slices: all}, nil
		}
		if ctx.Err() != nil {
			return tpu.Selection{}, context.Cause(ctx)
		}
		if errors.Is(err, stage.ErrExpired) {
			return tpu.Selection{}, err
		}
		if wait := q.askAgain(err); wait > 0 {
			event.Notef(q.Sink, event.Warn, gcp.Hint(err), "%v; it is asked for again in %s", err, event.Duration(wait))
			if err := stage.Sleep(ctx, q.Clock, wait); err != nil {
				return tpu.Selection{}, err
			}
			continue
		}
		keepConsoles(q.Deps, q.o.Run.Run, err)
		d, known := q.diagnose(ctx, err)
		if !known {
			return tpu.Selection{}, err
		}
		if q.held.now().mayLive() && d.Loss == provision.Infrastructure {
			d.Why += "; whether the command of an earlier runner lives there, and has logs that are not whole here, is not known"
		}
		once := func(f *stage.Failure) error {
			if paid {
				paid = false
				return nil
			}
			return pay(f)
		}
		if err := q.act(ctx, d, err, once); err != nil {
			return tpu.Selection{}, err
		}
	}
}

// name is the resource's name in messages.
func (q *queued) name() string { return provision.NameOf(q.Cloud, q.o.Request.ID) }

// wait requests the resource if necessary, and waits for its slices.
func (q *queued) wait(ctx context.Context) (all []tpu.Slice, err error) {
	if !q.there {
		if err := q.request(ctx); err != nil {
			return nil, err
		}
	}
	expires := time.Time{}
	if q.ours && q.terms.TTL > 0 {
		expires = q.asked.Add(q.terms.TTL)
	}
	ctx, over := renewal.Until(ctx, q.Clock, expires, q.terms.TTL)
	defer over()
	defer q.held.release()
	err = q.watch.Span("provision", func() (err error) {
		var res provision.Resource
		res, all, err = q.await(ctx, q.Cloud, q.o.Request.ID, provider.WaitOptions{
			QueueLimit: q.o.QueueLimit, SlicesLimit: q.o.Request.SlicesDeadline, ProvisionLimit: q.o.ProvisionLimit, BootLimit: q.bootLimit(), Probe: q.adopt,
			Clock: q.Clock, Sink: q.Sink,
		})
		q.known = sightingOf(res)
		return err
	})
	for i := range all {
		all[i].Index = i
	}
	return all, err
}

func (q *queued) request(ctx context.Context) error {
	id := q.o.Request.ID
	return q.watch.Phase("request", func() (string, error) {
		res, created, err := q.create(ctx)
		if q.ours && !q.o.Keep {
			follow.Holds(q.Reach, q.o.Run.Run, id, q.ifLeft(), q.held.inherited)
		}
		if err != nil {
			return "", err
		}
		if !created {
			return fmt.Sprintf("%s is here already, state %s", q.name(), res.State), nil
		}
		return fmt.Sprintf("%s: %d × %s", q.name(), max(1, q.o.Request.NodeCount), q.o.Request.Type.Name), nil
	})
}

// announce tells the user what the job will request, unless the last request was the same.
// The user confirms only the first request of this command, and only before its slices have
// been up. Later the user may be away.
func (q *queued) announce(ctx context.Context) error {
	e := announce.Asking(q.o.Request, q.Project, q.Zone, q.mtu, announce.BilledUntil(q.o.Bill(), false), false)
	first := q.announced == ""
	if e.Text == q.announced {
		return nil
	}
	q.announced = e.Text
	if !first || q.held.worked {
		q.Sink.Emit(e)
		return nil
	}
	return announce.Announce(ctx, q.Deps.announce(), e)
}

// create requests the resource and records its owner.
func (q *queued) create(ctx context.Context) (res provision.Resource, created bool, err error) {
	q.terms.Asked = q.Clock.Now()
	q.o.Request.OwnMetadata = q.terms.Metadata(q.Agents, q.o.Request.Metadata)
	res, created, err = q.Cloud.Create(ctx, q.o.Request)
	var conflict *provision.ConflictError
	if errors.As(err, &conflict) {
		return res, false, err
	}
	q.gone, q.known = false, sighting{} // a new resource belongs to this job, even if the wait for it never begins
	q.made = q.made || created
	q.there = res.State != ""
	if created {
		q.there = err == nil // otherwise perhaps only a part exists, and Create must make the rest
	}
	q.ours = q.ours || created || q.there && res.JobMade()
	q.held.inherited = q.there && q.ours && !q.made
	if q.there {
		q.asked, q.terms.Asked = res.CreateTime, res.CreateTime
	}
	return res, created, err
}

// askAgain returns how long to wait before repeating a create request that failed for a
// temporary reason. 0 means to give up. A job that has had a resource waits for an
// unavailable API. It also waits for quota, because the project gets quota back some time
// after the end of the resource that used it.
func (q *queued) askAgain(err error) time.Duration {
	if q.there || !q.ours || q.asked.IsZero() { // the very first request has failed
		return 0
	}
	switch gcp.ClassOf(err) {
	case gcp.Unavailable, gcp.Timeout:
		return teardown.AwayPause
	case gcp.Quota, gcp.Capacity:
		return q.starve()
	}
	return 0
}

// starve returns how long to wait after a refusal for lack of capacity. 0 means not to
// wait. A job that has never run reports the refusal at once. A job that has lost its
// slices waits for the next ones, up to the limit of the queue.
func (q *queued) starve() time.Duration {
	if !q.held.worked || !q.o.Request.ValidUntilTime.IsZero() || q.o.Request.ValidUntilDuration != 0 {
		return 0
	}
	q.starved++
	return min(time.Minute<<min(q.starved-1, 4), 10*time.Minute)
}

// diagnose reads the real state after a failed wait and decides what to do. known is false
// for failures that are not about the resource.
func (q *queued) diagnose(ctx context.Context, cause error) (d provision.Decision, known bool) {
	var state *provision.StateError
	var late *provision.DeadlineError
	if !errors.As(cause, &late) && !errors.As(cause, &state) || !q.ours {
		return d, false
	}
	q.gone = state != nil && state.Life == provision.Absent
	sight := absence(q.Cloud, q.o.Request.ID)
	var res provision.Resource
	err := teardown.Outlast(ctx, q.Clock, func() (err error) {
		res, err = q.Cloud.Get(ctx, q.o.Request.ID)
		return err
	})
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		q.gone = true
	case err != nil, q.gone: // the present resource belongs to another command
		return d, false
	default:
		q.left = res.ReadySlices() > 0
		sight = res.Sight(func(name string) provision.Reach {
			switch {
			case late == nil || len(late.Silent) == 0:
				return provision.Untried
			case slices.Contains(late.Silent, name):
				return provision.Silent
			}
			return provision.Answers // the wait was for this slice too
		})
	}
	sight.Resets = q.resets
	sight.Overdue = overdue(late, sight, len(res.Missing)) || q.suspendingFor(sight.Life) > suspendLimit
	if d = provision.Decide(sight); provision.GivesBack(cause) && sight.Overdue {
		d.Why = late.Lack()
	}
	return d, true
}

// A sighting identifies the resource that the job has waited for. Other resources may have
// had the same name. The zero value identifies none.
type sighting struct {
	made   time.Time // zero: not known
	slices []string  // ids of the slices
}

func sightingOf(res provision.Resource) sighting {
	k := sighting{made: res.CreateTime}
	for _, s := range res.Slices {
		k.slices = append(k.slices, s.UID)
	}
	return k
}

// another reports whether res is a later resource of the same name. Then another command
// made it.
func (k sighting) another(res provision.Resource) bool {
	known := func(s tpu.Slice) bool { return slices.Contains(k.slices, s.UID) }
	return !k.made.IsZero() && res.CreateTime.After(k.made) && !slices.ContainsFunc(res.Slices, known)
}

// absence returns the sight of a resource of p that does not exist any more.
func absence(p provision.Provider, id string) provision.Sight {
	return provision.Absence(p.Undoing(id).Commands.Kind)
}

// overdue reports whether the limit that expired belongs to the resource's present state.
// The resource may have progressed since then. Only the limits of waiting for capacity
// count the time in which the API was unreachable. missing is the number of slices that have
// not come although others have.
func overdue(late *provision.DeadlineError, seen provision.Sight, missing int) bool {
	if late == nil {
		return false
	}
	switch late.Phase {
	case provision.PhaseSlices:
		return missing > 0
	case provision.PhaseQueue:
		return seen.Life.Queued() || missing > 0
	}
	return late.State == seen.Word
}

// suspendingFor returns how long the API has been taking the slices of the resource away.
func (q *queued) suspendingFor(life provision.Life) time.Duration {
	switch {
	case life != provision.Suspending:
		q.settles = time.Time{}
		return 0
	case q.settles.IsZero():
		q.settles = q.Clock.Now()
	}
	return q.Clock.Now().Sub(q.settles)
}

// act carries out the decision d. An error ends the run. cause is why the wait failed. The
// function pay charges a loss to the budget.
func (q *queued) act(ctx context.Context, d provision.Decision, cause error, pay func(*stage.Failure) error) error {
	switch {
	case d.Loss == provision.Removed, d.Step == provision.StepGiveUp:
		return cause
	case d.Loss == provision.Expired && q.held.worked: // the same job given again makes its slices again
		return stage.SlicesOver(d.Why)
	case d.Step == provision.StepWait:
		return stage.Sleep(ctx, q.Clock, suspendPause)
	case d.Loss == provision.Infrastructure && !q.held.now().mayLive() && q.occupied(ctx):
		return &stage.Error{Stage: stage.Busy, Advice: "follow it with: multihost attach " + q.o.Run.Run,
			Text: fmt.Sprintf("%s, but a command that another runner has started lives on %s and is left alone", d.Why, q.name())}
	case d.Step == provision.StepReset:
		if q.held.now().mayLive() { // a reboot may end a command, so it costs a loss
			if err := pay(&stage.Failure{Cause: stage.Infrastructure, Why: d.Why, Err: cause}); err != nil {
				return err
			}
		}
		q.resets++
		event.Notef(q.Sink, event.Warn, "", "%s: the VMs of %s are rebooted", d.Why, q.name())
		err := teardown.Outlast(ctx, q.Clock, func() error { return q.Cloud.Restart(ctx, q.o.Request.ID) })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil { // the API may be taking it away: its next state decides
			event.Notef(q.Sink, event.Warn, gcp.Hint(err), "%v", err)
		}
	case d.Step == provision.StepRecreate:
		return q.remake(ctx, d, cause, pay)
	}
	return nil // the caller waits for the slices again
}

// remake deletes the resource, so that the next wait requests it again.
func (q *queued) remake(ctx context.Context, d provision.Decision, cause error, pay func(*stage.Failure) error) error {
	wait, err := q.mayRemake(d, cause, pay)
	if err != nil {
		return err
	}
	id := q.o.Request.ID
	if err := q.announce(ctx); err != nil {
		return err
	}
	event.Notef(q.Sink, event.Warn, "", "%s (%s): %s is deleted and asked for again", d.Why, d.Loss, q.name())
	q.deleting()
	for {
		err = teardown.Outlast(ctx, q.Clock, func() error {
			_, err := q.Cloud.Delete(ctx, id, provision.DeleteOptions{OnlyRun: q.o.Run.Run, Limit: teardown.Limit})
			return err
		})
		var late *provision.DeadlineError
		if !q.held.worked || !errors.As(err, &late) {
			break
		}
		event.Notef(q.Sink, event.Warn, late.Hint(), "%v; waiting on", err) // if the job ended, the resource would stay too
	}
	if err != nil {
		return err
	}
	q.there, q.held.inherited, q.resets = false, false, 0
	q.SetStatus(func(s *stage.Status) { s.Billed = "" })
	q.begunBefore()
	return stage.Sleep(ctx, q.Clock, wait)
}

// begunBefore reduces valid-after of the next request by the time that the job has already
// waited.
func (q *queued) begunBefore() {
	r, now := &q.o.Request, q.Clock.Now()
	if r.ValidAfterDuration != 0 {
		r.ValidAfterDuration = max(0, q.asked.Add(r.ValidAfterDuration).Sub(now).Truncate(time.Second))
	}
	if !r.ValidAfterTime.After(now) {
		r.ValidAfterTime = time.Time{}
	}
}

// mayRemake returns how long to wait before requesting the resource again, or why the job
// may not.
func (q *queued) mayRemake(d provision.Decision, cause error, pay func(*stage.Failure) error) (wait time.Duration, err error) {
	if d.Loss == provision.Preempted || d.Loss == provision.Maintenance {
		return 0, pay(&stage.Failure{Cause: stage.Cause(d.Loss), Why: d.Why, Err: cause})
	}
	var state *provision.StateError
	var late *provision.DeadlineError
	mayLive := q.held.now().mayLive() && d.Loss != provision.Expired
	switch {
	case errors.As(cause, &late) && late.Phase == provision.PhaseQueue:
		return 0, cause
	case errors.As(cause, &state) && state.NoCapacity(), provision.GivesBack(cause) && !mayLive:
		if wait = q.starve(); wait == 0 {
			return 0, cause
		}
		return wait, nil
	case mayLive:
		return 0, pay(&stage.Failure{Cause: stage.Infrastructure, Why: d.Why, Err: cause})
	}
	if q.remakes++; q.remakes > maxRemakes {
		return 0, cause
	}
	return 0, nil
}

// look waits for an unavailable API. Without the API, the job can neither request slices
// nor delete the present ones.
func (q *queued) look(ctx context.Context, used []tpu.Slice, reach func(string) provision.Reach) (d provision.Decision, err error) {
	err = teardown.Outlast(ctx, q.Clock, func() (err error) {
		d, err = q.lookOnce(ctx, used, reach)
		return err
	})
	return d, err
}

func (q *queued) lookOnce(ctx context.Context, used []tpu.Slice, reach func(string) provision.Reach) (provision.Decision, error) {
	res, err := q.Cloud.Get(ctx, q.o.Request.ID)
	if gcp.ClassOf(err) == gcp.NotFound {
		q.gone = true
		return provision.Decide(absence(q.Cloud, q.o.Request.ID)), nil
	}
	if err != nil {
		return provision.Decision{}, err
	}
	nodes, err := q.Cloud.Slices(ctx)
	if err != nil {
		return provision.Decision{}, err
	}
	sight := res.Sight(reach)
	sight.Slices = sights(nodes, used, reach)
	return provision.Decide(sight), nil
}
