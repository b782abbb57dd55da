// Package renewal is the runner's part of the lease that the workers of a job hold. It arms
// the workers, tells them that a runner exists, and tells the user what the workers will do
// without one.
package renewal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/agent/deliver"
	"multihost/internal/agent/program"
	"multihost/internal/announce"
	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/lease"
	"multihost/internal/provision"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// Deps holds what the package works with.
type Deps struct {
	*workers.Reach
	Agents program.Set // the programs for workers that have no runner
}

// Terms are the terms for the workers of a job, and what they mean on this machine.
type Terms struct {
	lease.Terms
	Boot    time.Duration // how long the slices of the next attempt may take to answer
	Foreign bool          // the slices have another startup script, so a worker does not watch after a reboot
}

// A Lease is this machine's part of the lease of a job's slices, over all its attempts. Its
// methods may be called on nil, which means that there is no lease, but not concurrently.
type Lease struct {
	Deps
	How   codesync.Options // how the agent travels between the workers
	Terms func() *Terms    // returns the terms of the existing slices, or nil without a lease

	terms *Terms // terms of the last attempt
	holds bool   // some worker may delete the slices

	stop func() // ends the renewals; nil: there are none
	told string // the messages about the workers' rights that the user has seen

	expires time.Time // when the slices' time to live ends; zero: never
	until   time.Time // when the provider takes the slices away; zero: never
}

// Arm makes every worker of t a lease holder, and warns before the command starts about
// workers that may not delete the slices. A failure on a worker is no error, because the
// lease matters only if this machine dies.
func (l *Lease) Arm(ctx context.Context, t *workers.Connected) error {
	if l == nil {
		return nil
	}
	l.Leave(ctx, t, -1)
	now := l.Terms()
	if l.terms == nil || now == nil {
		l.holds, l.told, l.expires = false, "", time.Time{}
	}
	if l.terms = now; now == nil { // the slices may have been replaced
		return nil
	}
	l.until = tpu.FirstEnd(t.Slices)
	status := func() { l.SetStatus(func(s *stage.Status) { s.Lease = l.WhoDeletes() }) }
	if !l.terms.On() {
		status()
		l.tell(t, nil, nil, nil)
		return nil
	}
	armed := make([]lease.Armed, len(t.IDs))
	errs := l.ArmEach(ctx, t, l.How, func(ctx context.Context, i int) (err error) {
		armed[i], err = lease.Arm(ctx, t.Conns[i], l.Agents.Sums(), l.terms.Terms)
		return err
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.holds, l.expires = false, time.Time{}
	rights, apart := make([]error, len(errs)), make([]error, len(errs))
	for i, a := range armed {
		if errs[i] != nil || t.IsAway(i) {
			continue
		}
		rights[i], apart[i] = a.Right, a.Apart
		l.holds = l.holds || a.Right == nil
		if end := l.Clock.Now().Add(l.terms.TTL - a.Age); l.terms.TTL > 0 && (l.expires.IsZero() || end.Before(l.expires)) {
			l.expires = end
		}
	}
	status()
	l.tell(t, errs, rights, apart)
	if l.terms.Lasting() {
		l.stop = l.Renew(ctx, t, l.terms.Terms)
	}
	return nil
}

// ArmEach calls arm for every worker of t that can be reached. arm gives a worker the terms
// of a lease. First, ArmEach brings the agent to workers that lack it.
func (d Deps) ArmEach(ctx context.Context, t *workers.Connected, how codesync.Options, arm func(ctx context.Context, i int) error) []error {
	return deliver.Each(ctx, d.Agents, how, t.Targets(d.Access.Port), arm)
}

// tell reports what the lease can do, each message once.
func (l *Lease) tell(t *workers.Connected, errs, rights, apart []error) {
	name, b := provision.NameOf(l.Cloud, t.Slices[0].QueuedResource), &strings.Builder{}
	tell := func(level event.Level, hint, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		b.WriteString(text)
		if !strings.Contains(l.told, text) {
			event.Notef(l.Sink, level, hint, "%s", text)
		}
	}
	for _, f := range stage.GroupErrors(t.IDs, errs) {
		tell(event.Warn, "", "%s", unwatched(tpu.FoldShort(f.Workers), name, f.String(), t.Slices[0]))
	}
	role := ""
	if reader, ok := provision.As[announce.RightsReader](l.Cloud); ok {
		_, roles := reader.DeletionRoles()
		role = roles[0]
	}
	for _, f := range stage.GroupErrors(t.IDs, rights) {
		how := "whether %s may delete %s is not known; if not, and this machine dies, it is billed on: %s"
		if refused(f.First) {
			how = "%s may not delete %s: if this machine dies, it is billed on: %s"
		}
		tell(event.Warn, rightCure(f.First, l.Project, role), how, tpu.FoldShort(f.Workers), name, f)
	}
	limit := ""
	if l.terms.TTL == 0 {
		limit = "limit it with --ttl=TIME"
	}
	if l.terms.Lease > 0 {
		for _, f := range stage.GroupErrors(t.IDs, apart) {
			tell(event.Warn, cmp.Or(rightCure(f.First, l.Project, role), limit), "%s and the other workers cannot tell each other whether the command runs, so a lease that nobody renews ends nothing: %s", tpu.FoldShort(f.Workers), f)
		}
	}
	if l.holds && l.terms.Foreign {
		tell(event.Warn, "start that script from the command instead", "the slices of %s have a startup script that is not ours: "+
			"after a reboot a worker does not watch them until this machine reaches it again. If this machine dies and all workers reboot, the slices are billed on", name)
	}
	if l.holds && l.terms.Lease > 0 {
		tell(event.Info, "", "if this machine is gone, the workers delete %s %s after the command has ended (--lease)", name, stage.AsTyped(l.terms.Lease))
	}
	if !l.expires.IsZero() {
		tell(event.Info, "", "%s is deleted at %s whatever runs (--ttl=%s)", name, l.expires.Format("Mon 15:04:05"), stage.AsTyped(l.terms.TTL))
	}
	l.told += b.String()
}

// taken says when the provider takes slices away.
func taken(until time.Time) string {
	return "its slices are taken away at " + until.Local().Format("Mon 15:04:05") + " (--max-run-duration)"
}

// unwatched says what happens to a resource if this machine dies and its workers do not
// watch it. why says why they do not. s is one of its slices. The metadata of s shows
// whether the slices have our startup script, and with it a guard.
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

// rightCure returns the command or flag that gives a worker the right that it lacks, or ""
// if there is none. role is a role that has the right, or "" if no role is known.
func rightCure(err error, project, role string) string {
	var e *lease.RightError
	switch {
	case !errors.As(err, &e):
		return ""
	case strings.Contains(e.Text, "SCOPE") || strings.Contains(e.Text, "scopes"):
		return "make the slices with the scope cloud-platform: --scopes=cloud-platform"
	case e.Status == 403 && e.Account != "" && role != "":
		return announce.GrantCommand(project, e.Account, role)
	}
	return ""
}

// Renew renews the lease on every worker of t until stop is called, each worker
// independently, so that an unreachable one does not delay the others. It arms a worker
// again that was rebooted or whose watch process was killed.
func (d Deps) Renew(ctx context.Context, t *workers.Connected, terms lease.Terms) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() {
		t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
			for stage.Sleep(ctx, d.Clock, terms.Every()) == nil {
				// After a failure, the next round tries again.
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

// renewLimit limits one renewal. The next round renews a worker that cannot be reached.
const renewLimit = 30 * time.Second

func renewOne(ctx context.Context, t *workers.Connected, agents program.Set, i int, run string, silent time.Duration) (lease.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, renewLimit)
	defer cancel()
	return lease.RenewOne(ctx, t.Conns[i], agents, run, silent)
}

// renew renews the lease of a run on all workers that can be reached, for at least silent,
// the time in which no further renewal may come. It returns what the workers know about the
// lease.
func renew(ctx context.Context, t *workers.Connected, agents program.Set, run string, silent time.Duration) []lease.Held {
	all := make([]lease.Held, len(t.IDs))
	t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) (err error) {
		all[i], err = renewOne(ctx, t, agents, i, run, silent)
		return err
	})
	return all
}

// Leave ends the renewals. silent is how long no renewal will come before the next attempt,
// whose slices may first have to be created. It is negative if no attempt follows.
func (l *Lease) Leave(ctx context.Context, t *workers.Connected, silent time.Duration) {
	if l == nil || l.stop == nil {
		return
	}
	l.stop()
	l.stop = nil
	if silent >= 0 {
		ctx, cancel := context.WithTimeout(ctx, renewLimit/3)
		defer cancel()
		renew(ctx, t, l.Agents, l.terms.Run, silent+l.terms.Boot+l.terms.Lease)
	}
}

func expiry(ttl time.Duration) error {
	return &stage.Error{Stage: stage.Timeout, Err: stage.ErrExpired, Text: fmt.Sprintf("%v (--ttl=%s)", stage.ErrExpired, stage.AsTyped(ttl))}
}

// Expired returns an error if the time to live has passed, otherwise nil.
func (l *Lease) Expired() error {
	if l == nil || l.terms == nil || l.expires.IsZero() || l.Clock.Now().Before(l.expires) {
		return nil
	}
	return expiry(l.terms.TTL)
}

// UntilExpiry returns a context that ends with the slices' time to live, as that of Until
// does.
func (l *Lease) UntilExpiry(ctx context.Context) (_ context.Context, over func()) {
	if l == nil || l.terms == nil {
		return ctx, func() {}
	}
	return Until(ctx, l.Clock, l.expires, l.terms.TTL)
}

// Until returns a context that ends at expires, the end of the time to live, with an error
// of stage.Timeout as its cause. If expires is zero, it does not end. over ends the context
// earlier, and the caller must call it.
func Until(ctx context.Context, clock gcp.Clock, expires time.Time, ttl time.Duration) (_ context.Context, over func()) {
	if expires.IsZero() {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	end := clock.After(max(0, expires.Sub(clock.Now())))
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

// WhoDeletes says what the workers and the provider will do about a resource that this
// machine leaves, or returns "" if nothing.
func (l *Lease) WhoDeletes() string {
	if l == nil || l.terms == nil {
		return ""
	}
	return Text(lease.Held{Watched: l.holds, Lease: l.terms.Lease, TTL: l.terms.TTL, KeepOnFailure: l.terms.KeepOnFailure, KeepFor: l.terms.KeepFor}, l.until)
}

// Text says what workers that hold a lease will do, and that the provider takes the slices
// away at the time until. It returns "" if nobody will do anything. A zero until means that
// the provider never takes them.
func Text(h lease.Held, until time.Time) string {
	text := ""
	if h.Watched {
		text = watched(h)
	}
	switch {
	case until.IsZero():
		return text
	case text == "":
		return taken(until)
	}
	return text + "; " + taken(until)
}

// watched says what workers with a watch will do under the lease h.
func watched(h lease.Held) string {
	text := ""
	if h.Lease > 0 {
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

// Attach renews the leases that the workers of t hold for a run, until stop is called. stop
// returns these leases by the name of the queued resource.
func Attach(ctx context.Context, d Deps, t *workers.Connected, run string) (stop func() map[string]lease.Held) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	held := HeldBy(t, renew(ctx, t, d.Agents, run, 0))
	var wg sync.WaitGroup
	d.SetStatus(func(st *stage.Status) { st.Lease = whatBecomes(t.Slices, held) })
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

// whatBecomes says what workers that hold the leases in held will do, or returns "" if
// nothing. Resources share a text that is true for all of them.
func whatBecomes(all []tpu.Slice, held map[string]lease.Held) string {
	var texts []string
	for _, s := range all {
		text := Text(held[s.QueuedResource], tpu.FirstEnd(all))
		if s.QueuedResource != "" && text != "" && !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "; ")
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

// HeldBy returns the leases by the name of the queued resource. leases[i] is that of worker
// i of t.
func HeldBy(t *workers.Connected, leases []lease.Held) map[string]lease.Held {
	held := map[string]lease.Held{}
	for i, h := range leases {
		if id := t.Slice(i).QueuedResource; h.Watched && id != "" {
			held[id] = h
		}
	}
	return held
}
