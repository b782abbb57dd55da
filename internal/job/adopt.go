package job

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/lease"
	"multihost/internal/tpu"
)

// adoption keeps the lease of slices that are there while others are waited for.
// The zero value holds none. It may be used from several goroutines.
type adoption struct {
	mu     sync.Mutex
	slices map[string]tpu.Slice // that exist, by name
	stop   map[string]func()    // by UID, of slices on which every worker answers: ends the renewals and the connections
}

// release ends what keeps the lease. The slices may be gone after that.
func (a *adoption) release() {
	a.mu.Lock()
	stop := a.stop
	a.stop, a.slices = nil, nil
	a.mu.Unlock()
	for _, f := range stop {
		f()
	}
}

// adoptRound is how long a worker is tried before those of its slice that answer
// are told that a runner lives: --lease is a minute at least.
const adoptRound = 30 * time.Second

// adopt reports whether every worker of a slice answers, as Probe does. Each that
// does is told at once that a runner has come: the others may take longer than
// --lease. When all answer, that is renewed until release is called.
func (q *queued) adopt(ctx context.Context, s tpu.Slice) error {
	q.nowBilled(s)
	if !q.ours || !q.terms.On() {
		return q.Probe(ctx, s)
	}
	s.Index = 0
	sel := tpu.Selection{Slices: []tpu.Slice{s}}
	t, failed, err := q.dialFor(ctx, sel, nil, true, min(q.Access.RetryFor, adoptRound))
	if err != nil {
		return err
	}
	// What fails here is said when the run's own connections are made.
	t.each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		_, err := lease.Adopt(ctx, t.conns[i], q.terms)
		return err
	})
	if len(failed) > 0 {
		t.close()
		ids := sel.Workers()
		errs := make([]error, len(ids))
		for i, id := range ids {
			errs[i] = failed[id]
		}
		return workersError(StageConnect, ids, errs)
	}
	leave := func() {}
	if q.terms.Lasting() {
		leave = q.renewals(ctx, t, q.terms)
	}
	q.held.mu.Lock()
	before := q.held.stop[s.UID]
	if q.held.stop == nil {
		q.held.stop = map[string]func(){}
	}
	q.held.stop[s.UID] = func() {
		leave()
		t.close()
	}
	q.held.mu.Unlock()
	if before != nil {
		before()
	}
	return nil
}

// ifLeft says what becomes of a request that is left before the command has
// started.
func (q *queued) ifLeft() string {
	text := "nobody starts the command until the same command is typed again; "
	switch {
	case q.terms.Metadata(q.o.Request.Metadata) == nil:
		return text + "its slices are billed until then, or until it is deleted"
	case q.terms.Adopt > 0:
		return text + "its slices delete themselves " + asTyped(q.terms.Adopt) + " after their boot (--lease)"
	}
	return text + "its slices delete themselves " + asTyped(q.terms.TTL) + " after the request (--ttl)"
}

// nowBilled notes that a slice exists, for who asks what an interrupt means.
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
	q.setStand(func(st *Stand) { st.Billed = billed(all) })
}
