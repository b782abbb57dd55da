package job

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"multihost/internal/follow"
	"multihost/internal/lease"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// adoption keeps the lease of slices that exist while the job waits for others. The
// zero value holds none. It is safe for concurrent use.
type adoption struct {
	mu     sync.Mutex
	slices map[string]tpu.Slice // slices that exist, by name
	stop   map[string]func()    // by UID, for slices on which every worker answers: ends the renewals and the connections

	lives bool // the command of this run is running on some worker
	ended bool // it has ended on some worker, and no user was told its success
	asked bool // some worker has said whether the command is running there
}

// mayLive reports whether a command of an earlier runner may be running on the slices:
// a worker has said so, or none has answered yet.
func (q *queued) mayLive() bool {
	q.held.mu.Lock()
	defer q.held.mu.Unlock()
	return q.inherited && !q.worked && (q.held.lives || !q.held.asked)
}

// commandLives reports whether a worker has said, since the slices were last waited
// for, that the command of this run is running there.
func (q *queued) commandLives() bool {
	q.held.mu.Lock()
	defer q.held.mu.Unlock()
	return q.held.lives
}

// leavesFor is leaves after a look at the workers: on another machine the same job may
// have been typed meanwhile, and may have started the command before this one could.
func (q *queued) leavesFor(ctx context.Context, r *Runner, life provision.Life, err error) string {
	if r.tried == 0 {
		if why := q.leaves(life, err); why != "" {
			return why
		}
	}
	if life.Queued() || chosen(err) || !q.othersLive(ctx, r) {
		return ""
	}
	return "a command lives on it that this one has neither started nor taken over"
}

// chosen reports whether the user, or the time to live, ends whatever runs.
func chosen(err error) bool {
	var in *stage.Interrupted
	return errors.As(err, &in) && in.Answer == stage.Stop || errors.Is(err, stage.ErrExpired)
}

// anotherLives reports whether another runner's command lives on the slices that are about
// to be deleted. If nothing was started, leavesFor has just looked, unless failed slices
// were kept for a time since then.
func (q *queued) anotherLives(ctx context.Context, r *Runner, out stage.Outcome, err error) bool {
	looked := err != nil && !out.Started && !(q.o.KeepOnFailure && q.o.KeepFor > 0)
	return !looked && !chosen(err) && q.othersLive(ctx, r)
}

// othersLive asks worker 0 of each slice of the job whether another runner's command is
// running there, of this job or of another run. Workers that do not answer within
// answerLimit are taken for machines that boot.
func (q *queued) othersLive(ctx context.Context, r *Runner) bool {
	ctx, cancel := q.Detached(ctx, renewLimit)
	defer cancel()
	nodes, err := q.Cloud.Slices(ctx)
	if err != nil {
		return false
	}
	var sel tpu.Selection
	for _, s := range nodes {
		if ok, _ := s.Ready(); ok && s.QueuedResource == q.o.Request.ID {
			s.Index = len(sel.Slices)
			sel.Slices = append(sel.Slices, s)
		}
	}
	if len(sel.Slices) == 0 {
		return false
	}
	t, _, err := q.DialFor(ctx, sel, func(id tpu.WorkerID) bool { return id.Worker == 0 }, true, answerLimit)
	if err != nil {
		return false
	}
	defer t.Close()
	runs, _ := t.Runs(ctx)
	return slices.ContainsFunc(runs, func(f workers.FoundRun) bool {
		taken := f.Info.Attempt <= r.begunLast && slices.ContainsFunc(f.Workers, func(id tpu.WorkerID) bool { return r.hasBegunOn(sel.Slices[id.Slice].UID) })
		// What this runner began before its start failed is its own.
		return f.Info.Alive() && (f.Info.Run != q.o.Run.Run || f.Info.Owner != q.Owner && !taken)
	})
}

// mayHaveLogs reports whether the command of an earlier runner has been on the slices, and
// this command has not taken it over.
func (q *queued) mayHaveLogs() bool {
	q.held.mu.Lock()
	defer q.held.mu.Unlock()
	return q.inherited && !q.worked && (q.held.lives || q.held.ended)
}

// losesLogs reports whether logs of an earlier runner's command go with the slices, of which
// this machine may have only a part: this command, which has begun or taken over tried
// attempts, has brought none of them here.
func (q *queued) losesLogs(tried int) bool {
	q.held.mu.Lock()
	defer q.held.mu.Unlock()
	return q.inherited && tried == 0 && (q.held.lives || q.held.ended)
}

// unasked reports whether an earlier runner has left slices whose workers nobody has asked
// whether a command has run there. res is the resource as it is now.
func (q *queued) unasked(res provision.Resource) bool {
	q.held.mu.Lock()
	defer q.held.mu.Unlock()
	return q.inherited && !q.worked && !q.held.asked && !res.Life.Queued() && len(res.Slices) > 0
}

// leaves says why a job that ends before it has taken over the queued resource of an
// earlier runner must not delete it; "" if it may. Only the user's choice or the end of
// the time to live ends a running command.
func (q *queued) leaves(life provision.Life, err error) string {
	var in *stage.Interrupted
	switch {
	case !q.inherited || life.Queued():
		return ""
	case errors.As(err, &in) && in.Answer == stage.Stop, errors.Is(err, stage.ErrExpired):
		return ""
	case q.commandLives():
		return "the command of an earlier runner lives on it, and this command has not taken it over"
	case q.mayLive():
		return "whether the command of an earlier runner lives on it is not known yet"
	case q.mayHaveLogs():
		return "the command of an earlier runner has ended on it, and its logs may be not whole here"
	}
	return ""
}

// bootLimit is how long the workers of existing slices may take to answer. If a command
// may be running on them, the job waits as long as for the lost worker of a followed
// run.
func (q *queued) bootLimit() time.Duration {
	limit, lost := q.o.BootLimit, q.o.Run.Patience.Lost
	if !q.mayLive() {
		return limit
	}
	if limit <= 0 || lost <= 0 {
		return provider.NoLimit
	}
	return max(limit, lost)
}

// ask finds out whether the command of this run is running on the workers of t.
func (q *queued) ask(ctx context.Context, t *workers.Connected) {
	runs, errs := t.Runs(ctx)
	q.held.mu.Lock()
	defer q.held.mu.Unlock()
	for _, f := range runs {
		ours := f.Info.Run == q.o.Run.Run && f.Info.Mine
		q.held.lives = q.held.lives || ours && f.Info.Alive()
		q.held.ended = q.held.ended || ours && !f.Info.Alive() && !f.Seen
	}
	q.held.asked = q.held.asked || slices.Contains(errs, nil)
}

// forget makes an attempt whose slices were used look at them again: if the command
// could not be reached for long enough, it counts as lost.
func (a *adoption) forget(used bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lives = a.lives && !used
}

// release ends the renewals and the connections that keep the lease. The slices may be
// deleted after that.
func (a *adoption) release() {
	a.mu.Lock()
	stop := a.stop
	a.stop, a.slices = nil, nil
	a.mu.Unlock()
	for _, f := range stop {
		f()
	}
}

// adoptRound is how long the connection to a worker is tried before the workers of its
// slice that answer are told that a runner exists. It must be short, because --lease
// may be as short as a minute.
const adoptRound = 30 * time.Second

// adopt reports whether every worker of a slice answers, as Probe does. It tells each
// worker that answers at once that a runner has come, because the others may take
// longer than --lease. If all answer, it renews the lease until release is called.
func (q *queued) adopt(ctx context.Context, s tpu.Slice) error {
	q.nowBilled(s)
	if !q.ours || !q.terms.On() {
		return Probe(ctx, q.Deps, s)
	}
	s.Index = 0
	sel := tpu.Selection{Slices: []tpu.Slice{s}}
	t, failed, err := q.DialFor(ctx, sel, nil, true, min(q.Access.RetryFor, adoptRound))
	if err != nil {
		return err
	}
	// Errors here are reported when the run makes its own connections.
	armEach(ctx, t, q.Deps, q.o.Run, func(ctx context.Context, i int) error {
		_, err := lease.Adopt(ctx, t.Conns[i], q.Agents.Sums(), q.terms)
		return err
	})
	if q.inherited && !q.worked {
		q.ask(ctx, t)
	}
	if len(failed) > 0 {
		t.Close()
		if q.commandLives() {
			return nil // the command is taken over on the workers that answer
		}
		ids := sel.Workers()
		errs := make([]error, len(ids))
		for i, id := range ids {
			errs[i] = failed[id]
		}
		return stage.WorkersError(stage.Connect, ids, errs)
	}
	leave := func() {}
	if q.terms.Lasting() {
		leave = renewals(ctx, q.Deps, t, q.terms)
	}
	q.held.mu.Lock()
	before := q.held.stop[s.UID]
	if q.held.stop == nil {
		q.held.stop = map[string]func(){}
	}
	q.held.stop[s.UID] = func() {
		leave()
		t.Close()
	}
	q.held.mu.Unlock()
	if before != nil {
		before()
	}
	return nil
}

// ifLeft says what happens to the requested slices if this process is left before the
// command has started.
func (q *queued) ifLeft() string {
	text := "nobody starts the command until the same command is typed again; "
	switch {
	case q.terms.Metadata(q.Agents, q.o.Request.Metadata) == nil:
		return text + "its slices are billed until then, or until it is deleted"
	case q.terms.Adopt > 0:
		return text + "its slices delete themselves " + stage.AsTyped(q.terms.Adopt) + " after their boot (--lease)"
	}
	return text + "its slices delete themselves " + stage.AsTyped(q.terms.TTL) + " after the request (--ttl)"
}

// nowBilled records that a slice exists, for the Ctrl-C prompt.
func (q *queued) nowBilled(s tpu.Slice) {
	q.held.mu.Lock()
	if q.held.slices == nil {
		q.held.slices = map[string]tpu.Slice{}
	}
	q.held.slices[s.Name] = s
	names := slices.Sorted(maps.Keys(q.held.slices))
	all := make([]tpu.Slice, len(names))
	for i, name := range names {
		all[i] = q.held.slices[name]
	}
	q.held.mu.Unlock()
	q.SetStatus(func(st *stage.Status) { st.Billed = follow.Billed(st.Tier, all) })
}
