package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"multihost/internal/agent/deliver"
	"multihost/internal/agent/program"
	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/lease"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// leaseTerms returns what the workers of a job are told, so that they delete the queued
// resource when nobody else does.
func leaseTerms(d *workers.Deps, o JobOptions) lease.Terms {
	label, value := o.Request.RunLabel()
	t := lease.Terms{
		Run: o.Run.Run, Undoing: d.Cloud.Undoing(o.Request.ID, o.Request.NodeNames()...),
		Label: label + "=" + value, Nodes: o.Request.NodeNames(), Workers: max(1, o.Request.NodeCount) * o.Request.Type.Workers,
		Adopt: o.Lease, Lease: o.Lease, TTL: o.TTL, Grace: o.Run.Grace, KeepOnFailure: o.KeepOnFailure, KeepFor: o.KeepFor,
	}
	if o.Keep { // the slices stay at the end of the job; TTL still holds
		t.Lease = 0
	}
	return t
}

// bootAllowance returns how long after the boot of the first worker the last one may
// answer. Without limits it is a day.
func bootAllowance(o JobOptions) time.Duration {
	if o.ProvisionLimit <= 0 || o.BootLimit <= 0 {
		return 24 * time.Hour
	}
	return o.ProvisionLimit + o.BootLimit
}

// A guard is this machine's part of the lease of a job's slices.
type guard struct {
	terms   lease.Terms
	boot    time.Duration // how long the slices of a next attempt may take to answer
	foreign bool          // the slices have another startup script, so a rebooted worker does not watch
	holds   bool          // some worker may delete the slices

	stop func() // ends the renewals; nil: there are none
	told string // the messages about the workers' rights so far

	expires time.Time // when the time to live of the slices ends; zero: never
}

// armLease makes every worker a lease holder and warns, before the command starts,
// about workers that may not delete the slices. A failure here ends no run, because the
// lease matters only if this machine dies.
func (r *Runner) armLease(ctx context.Context) error {
	if r.lease != nil {
		if now := r.lease(); r.guard == nil || now == nil {
			r.guard = now
		} else {
			r.guard.terms = now.terms // the slices may have been replaced
		}
	}
	g := r.guard
	if g == nil || !g.terms.On() {
		return nil
	}
	r.leaveLease(ctx, -1)
	armed := make([]lease.Armed, len(r.workers.IDs))
	errs := armEach(ctx, r.workers, r.Deps, r.O, func(ctx context.Context, i int) (err error) {
		armed[i], err = lease.Arm(ctx, r.workers.Conns[i], r.Agents.Sums(), g.terms)
		return err
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	g.holds, g.expires = false, time.Time{}
	rights, apart := make([]error, len(errs)), make([]error, len(errs))
	for i, a := range armed {
		if errs[i] != nil || r.workers.IsAway(i) {
			continue
		}
		rights[i] = a.Right
		if a.Apart != "" {
			apart[i] = errors.New(a.Apart)
		}
		g.holds = g.holds || a.Right == nil
		if end := r.Clock.Now().Add(g.terms.TTL - a.Age); g.terms.TTL > 0 && (g.expires.IsZero() || end.Before(g.expires)) {
			g.expires = end
		}
	}
	id := r.workers.Slices[0].QueuedResource
	r.SetStatus(func(s *stage.Status) { s.Lease = g.whoDeletes() })
	r.tellLease(errs, rights, apart, id)
	if g.terms.Lasting() {
		g.stop = renewals(ctx, r.Deps, r.workers, g.terms)
	}
	return nil
}

// armEach gives the terms of a lease to every worker of t that is not away, by arm, and
// brings the agent to those that lack it.
func armEach(ctx context.Context, t *workers.Connected, d *workers.Deps, o RunOptions, arm func(ctx context.Context, i int) error) []error {
	how := codesync.Options{Relay: o.Relay, RelayFanout: o.RelayFanout, Stall: o.SyncTimeout}
	return deliver.Each(ctx, d.Agents, how, targets(t, d.Access.Port), arm)
}

// tellLease reports what the lease can do. It gives each message only once.
func (r *Runner) tellLease(errs, rights, apart []error, id string) {
	g, b, name := r.guard, &strings.Builder{}, provision.NameOf(r.Cloud, id)
	tell := func(level event.Level, hint, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		b.WriteString(text)
		if !strings.Contains(g.told, text) {
			event.Notef(r.Sink, level, hint, "%s", text)
		}
	}
	for _, f := range stage.GroupErrors(r.workers.IDs, errs) {
		tell(event.Warn, "", "%s", unwatched(tpu.FoldShort(f.Workers), name, f.String(), r.workers.Slices[0]))
	}
	for _, f := range stage.GroupErrors(r.workers.IDs, rights) {
		how := "whether %s may delete %s is not known; if not, and this machine dies, it is billed on: %s"
		if refused(f.First) {
			how = "%s may not delete %s: if this machine dies, it is billed on: %s"
		}
		tell(event.Warn, rightCure(f.First, r.Project), how, tpu.FoldShort(f.Workers), name, f)
	}
	if g.terms.Lease > 0 {
		for _, f := range stage.GroupErrors(r.workers.IDs, apart) {
			tell(event.Warn, "limit it with --ttl=TIME", "%s cannot tell the others whether its command runs, so a lease that nobody renews ends nothing: %s", tpu.FoldShort(f.Workers), f)
		}
	}
	if g.holds && g.foreign {
		tell(event.Warn, "start that script from the command instead", "the slices of %s have a startup script that is not ours: "+
			"after a reboot a worker does not watch them until this machine reaches it again. If this machine dies and all workers reboot, the slices are billed on", name)
	}
	if g.holds && g.terms.Lease > 0 {
		tell(event.Info, "", "if this machine is not heard of, the workers delete %s %s after the command has ended (--lease)", name, stage.AsTyped(g.terms.Lease))
	}
	if !g.expires.IsZero() {
		tell(event.Info, "", "%s is deleted at %s whatever runs (--ttl=%s)", name, g.expires.Format("Mon 15:04:05"), stage.AsTyped(g.terms.TTL))
	}
	g.told += b.String()
}

// unwatched says what happens if this machine dies to a resource that workers do not watch
// because of why. s is one of its slices: only with our startup script a guard is there.
func unwatched(who, resource, why string, s tpu.Slice) string {
	if _, guarded := lease.ReadTerms(s.Metadata); guarded {
		return fmt.Sprintf("%s: no watch runs there: %s; if this machine dies, the guard in the startup script deletes %s in its place", who, why, resource)
	}
	return fmt.Sprintf("%s: nobody there will delete %s if this machine dies: %s", who, resource, why)
}

// refused reports whether the API has said that a worker lacks the right.
func refused(err error) bool {
	var e *lease.RightError
	return errors.As(err, &e) && (e.Status == 401 || e.Status == 403)
}

// rightCure returns the command or flag that gives a worker the right that it lacks.
func rightCure(err error, project string) string {
	var e *lease.RightError
	switch {
	case !errors.As(err, &e):
		return ""
	case strings.Contains(e.Text, "SCOPE") || strings.Contains(e.Text, "scopes"):
		return "make the slices with the scope cloud-platform: --scopes=cloud-platform"
	case e.Status == 403 && e.Account != "":
		return grantCommand(project, e.Account)
	}
	return ""
}

// renewals renews the lease on every worker of t until stop is called. Each worker is
// renewed independently, so that one that is unreachable does not delay another. A
// worker that was rebooted, or whose watch process was killed, is armed again.
func renewals(ctx context.Context, d *workers.Deps, t *workers.Connected, terms lease.Terms) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() {
		t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
			for stage.Sleep(ctx, d.Clock, terms.Every()) == nil {
				// A failure is tried again in the next round.
				if held, err := renewOne(ctx, t, d.Agents, i, terms.Run, 0); err == nil && !held.Watched {
					_ = lease.ArmOne(ctx, t.Conns[i], d.Agents, terms)
				}
			}
			return nil
		})
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// renewLimit limits one renewal; an unreachable worker is renewed in the next round.
const renewLimit = 30 * time.Second

func renewOne(ctx context.Context, t *workers.Connected, agents program.Set, i int, run string, silent time.Duration) (lease.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	return lease.RenewOne(ctx, t.Conns[i], agents, run, silent)
}

// renew renews the lease of a run on all workers that can be reached, for at least
// silent, the time without further renewals. It returns what the workers know about the
// lease.
func renew(ctx context.Context, t *workers.Connected, agents program.Set, run string, silent time.Duration) []lease.Held {
	all := make([]lease.Held, len(t.IDs))
	t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) (err error) {
		all[i], err = renewOne(ctx, t, agents, i, run, silent)
		return err
	})
	return all
}

// leaveLease ends the renewals. silent is how long no renewal will come before the next
// attempt, whose slices may have to be created first; negative: no attempt follows.
func (r *Runner) leaveLease(ctx context.Context, silent time.Duration) {
	if r.guard == nil || r.guard.stop == nil {
		return
	}
	r.guard.stop()
	r.guard.stop = nil
	if silent >= 0 {
		ctx, cancel := context.WithTimeout(ctx, renewLimit/3)
		defer cancel()
		renew(ctx, r.workers, r.Agents, r.guard.terms.Run, silent+r.guard.boot+r.guard.terms.Lease)
	}
}

func expiry(ttl time.Duration) error {
	return &stage.Error{Stage: stage.Timeout, Err: stage.ErrExpired, Text: fmt.Sprintf("%v (--ttl=%s)", stage.ErrExpired, stage.AsTyped(ttl))}
}

// expired reports whether the time to live is over.
func (g *guard) expired(now time.Time) bool {
	return g != nil && !g.expires.IsZero() && !now.Before(g.expires)
}

// untilExpiry returns a context that ends with the time to live of the slices.
func (r *Runner) untilExpiry(ctx context.Context) (_ context.Context, over func()) {
	if r.guard == nil {
		return ctx, func() {}
	}
	return until(ctx, r.Deps, r.guard.expires, r.guard.terms.TTL)
}

// until returns a context that ends at expires, the end of the time to live ttl, with
// expiry as its cause. A zero expires means never. over ends the context earlier; the
// caller must call it.
func until(ctx context.Context, d *workers.Deps, expires time.Time, ttl time.Duration) (_ context.Context, over func()) {
	if expires.IsZero() {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	end := d.Clock.After(max(0, expires.Sub(d.Clock.Now())))
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-end:
			cancel(expiry(ttl))
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
	}
}

// whoDeletes says what the workers will do about a queued resource that this machine
// leaves; "" if they will do nothing.
func (g *guard) whoDeletes() string {
	if g == nil || !g.holds {
		return ""
	}
	return leaseText(lease.Held{Watched: true, Lease: g.terms.Lease, TTL: g.terms.TTL, KeepOnFailure: g.terms.KeepOnFailure, KeepFor: g.terms.KeepFor})
}

// leaseText says what workers that hold a lease will do; "" if they will do nothing.
func leaseText(h lease.Held) string {
	text := ""
	switch {
	case !h.Watched:
		return ""
	case h.Lease > 0:
		text = fmt.Sprintf("its workers delete it %s after the command has ended, if nobody is attached", stage.AsTyped(h.Lease))
		switch {
		case h.KeepOnFailure && h.KeepFor == 0:
			text += "; after a failure they keep it (--keep-on-failure)"
		case h.KeepOnFailure:
			text += fmt.Sprintf("; after a failure %s after it (--keep-on-failure)", stage.AsTyped(h.KeepFor))
		}
	}
	if h.TTL > 0 {
		who := "its workers"
		if text != "" {
			who, text = "they", text+"; "
		}
		text += fmt.Sprintf("%s delete it %s after its request in any case (--ttl)", who, stage.AsTyped(h.TTL))
	}
	return text
}

// AttachLease renews the leases that the workers of t hold for a run until stop is
// called. stop returns these leases by the name of the queued resource.
func AttachLease(ctx context.Context, d *workers.Deps, t *workers.Connected, run string) (stop func() map[string]lease.Held) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	held := HeldBy(t, renew(ctx, t, d.Agents, run, 0))
	var wg sync.WaitGroup
	for _, h := range held {
		d.SetStatus(func(s *stage.Status) { s.Lease = leaseText(h) })
	}
	if len(held) > 0 {
		every := 5 * time.Minute
		for _, h := range held {
			every = min(every, lease.Terms{Lease: h.Lease}.Every())
		}
		wg.Go(func() {
			for stage.Sleep(ctx, d.Clock, every) == nil {
				renew(ctx, t, d.Agents, run, 0)
			}
		})
	}
	return func() map[string]lease.Held {
		cancel()
		wg.Wait()
		return held
	}
}

// Looks asks the workers which lease they hold for a run.
func Looks(ctx context.Context, t *workers.Connected, agents, run string) []lease.Held {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewLimit/3)
	defer cancel()
	all := make([]lease.Held, len(t.IDs))
	t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) (err error) {
		all[i], err = lease.Look(ctx, t.Conns[i], agents, run)
		return err
	})
	return all
}

// HeldBy returns the leases by the name of the queued resource. leases are aligned with
// the workers of t.
func HeldBy(t *workers.Connected, leases []lease.Held) map[string]lease.Held {
	held := map[string]lease.Held{}
	for i, h := range leases {
		if id := t.Slice(i).QueuedResource; h.Watched && id != "" {
			held[id] = h
		}
	}
	return held
}

// SayBilled warns that slices which a job made for this run stay and are billed, or
// says who deletes them. A user who attaches to a run or stops it may not know that.
func SayBilled(ctx context.Context, d *workers.Deps, run string, all []tpu.Slice, held map[string]lease.Held) {
	if d.OnHosts() {
		return
	}
	look, cancel := d.Detached(ctx, 30*time.Second)
	defer cancel()
	seen := map[string]bool{"": true}
	for _, s := range all {
		if seen[s.QueuedResource] {
			continue
		}
		seen[s.QueuedResource] = true
		res, err := d.Cloud.Get(look, s.QueuedResource)
		if err != nil || !res.IsOf(run) {
			continue
		}
		does := "unless its job still runs somewhere to delete it, it stays and is billed"
		if text := leaseText(held[s.QueuedResource]); text != "" {
			does = "it is billed until its job, if that still runs somewhere, deletes it; else " + text
		}
		event.Notef(d.Sink, event.Warn, DeleteHint(res.ID, d), "%s was made for this run: %s", provision.NameOf(d.Cloud, res.ID), does)
	}
}
