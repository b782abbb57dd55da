package job

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// StopOptions say how Stop ends a run.
type StopOptions struct {
	Prefix string // name prefix of the slices to look at; "" is all
	Grace  time.Duration

	// Confirm asks the user a question before kept slices are deleted. An error means no.
	// nil: nobody is there to be asked, and they are deleted.
	Confirm func(ctx context.Context, question string) error
}

// kept are slices that a job has made, and that stay although its command has ended.
type kept struct {
	run   string
	res   provision.Resource
	ended string // how the command ended
	part  string // which logs would be lost with the slices; "" if none

	again func(context.Context) error // returns an error if something has begun on them since
}

// question is what the user is asked before the slices are deleted.
func (k kept) question(zone string) string {
	text := fmt.Sprintf("run %s has ended (%s)", k.run, k.ended)
	if k.part != "" {
		text += "; " + k.part + ", and the rest goes with the slices"
	}
	cost := priceOf(hourly(k.res, zone), k.res.Type, string(k.res.Tier), zone)
	return fmt.Sprintf("%s. Delete queued resource %s with its slices (%s; %s)?", text, k.res.ID, tpu.FewNames(k.res.Nodes), cost)
}

// deleteKept asks the user and deletes the slices. An error says that they stay.
func (d *Deps) deleteKept(ctx context.Context, o StopOptions, k kept) error {
	if k.part != "" && someoneAt(d.StateDir, k.run) {
		return &Error{Stage: StageStop, Text: fmt.Sprintf("the slices of run %s stay: a command on this machine still brings its logs here (%s)", k.run, k.part),
			Advice: "wait for it, or end it with Ctrl-C there; then: multihost stop " + k.run}
	}
	if o.Confirm != nil {
		err := o.Confirm(ctx, k.question(d.Zone))
		if err == nil && k.again != nil { // the question may have stood for hours
			err = k.again(ctx)
		}
		if err != nil {
			event.Notef(d.Sink, event.Warn, deleteHint(k.res.ID, d), "queued resource %s stays, %s", k.res.ID, k.res.Standing())
			return err
		}
	} else if k.part != "" { // nobody has said that the rest may go
		return &Error{Stage: StageStop, Text: fmt.Sprintf("queued resource %s stays, %s: %s, and the rest is on its workers only", k.res.ID, k.res.Standing(), k.part),
			Advice: "bring the rest with: multihost attach " + k.run + "; or " + deleteHint(k.res.ID, d)}
	}
	return d.deleteMade(ctx, k.run, k.res, "run "+k.run+" had ended ("+k.ended+")")
}

// deleteMade deletes the queued resource of a job whose command does not run.
func (d *Deps) deleteMade(ctx context.Context, run string, res provision.Resource, what string) error {
	watch := stopwatch{sink: d.Sink, clock: d.Clock}
	return watch.phase("delete", func() (string, error) {
		_, err := d.Cloud.Delete(ctx, res.ID, provision.DeleteOptions{OnlyRun: run, Limit: teardownLimit})
		if err != nil {
			return "", &Error{Stage: StageTeardown, Err: err, Text: fmt.Sprintf("delete queued resource %q: %v; it may still exist and be billed", res.ID, err), Advice: deleteHint(res.ID, d)}
		}
		again, hint := d.madeAgain(ctx, res.ID)
		if again != "" {
			event.Notef(d.Sink, event.Warn, hint, "queued resource %s: %s", res.ID, again)
			return fmt.Sprintf("queued resource %s, %s", res.ID, what), nil
		}
		return fmt.Sprintf("queued resource %s, %s: %s", res.ID, what, nothingBilled), nil
	})
}

// keptOn returns the queued resources whose slices are kept for a run that has ended on
// every worker of t. found are the runs that the workers know; all workers have answered.
// A resource is left out unless the job of this run made it, and as long as any command
// runs on it or may run on a slice that was not asked.
func (d *Deps) keptOn(ctx context.Context, t *team, rec *Record, found []foundRun) ([]kept, error) {
	if d.onHosts() {
		return nil, nil
	}
	var mine []kept
	seen := map[string]bool{"": true}
	for _, s := range t.slices {
		if seen[s.QueuedResource] {
			continue
		}
		seen[s.QueuedResource] = true
		res, err := d.Cloud.Get(ctx, s.QueuedResource)
		if gcp.ClassOf(err) == gcp.NotFound {
			continue
		}
		if err != nil {
			return nil, &Error{Stage: StageStop, Err: err}
		}
		if res.JobMade() && res.IsOf(rec.Run) && res.Life != provision.Deleting {
			mine = append(mine, kept{run: rec.Run, res: res, ended: "its command never began"})
		}
	}
	if len(mine) == 0 {
		return nil, nil
	}
	asked := map[string]bool{}
	for i := range t.ids {
		asked[t.slice(i).Name] = true
	}
	var last *foundRun
	for i, f := range found {
		switch {
		case f.info.Alive():
			event.Notef(d.Sink, event.Warn, "", "the slices of run %s stay: run %q of %s lives on %s", rec.Run, f.info.Run, f.info.Owner, tpu.FoldShort(f.workers))
			return nil, nil
		case f.info.Run == rec.Run && last == nil: // the newest comes first
			last = &found[i]
		}
	}
	if last != nil {
		if err := last.stoppable(); err != nil {
			return nil, err
		}
	}
	for i := range mine {
		k := &mine[i]
		if slices.ContainsFunc(k.res.Slices, func(s tpu.Slice) bool { ok, _ := s.Ready(); return ok && !asked[s.Name] }) || !allAsked(k.res) {
			event.Notef(d.Sink, event.Warn, deleteHint(k.res.ID, d), "queued resource %s stays, %s: not all of its slices could be asked whether a command runs there", k.res.ID, k.res.Standing())
			return nil, nil
		}
		if last != nil {
			k.ended = last.ended()
			k.part = d.missingHere(ctx, t, rec, last.info.Ref)
		}
	}
	return mine, nil
}

// missingHere says which logs of an attempt this machine does not have to their ends; ""
// if it has them all.
func (d *Deps) missingHere(ctx context.Context, t *team, rec *Record, ref launch.Ref) string {
	here := *rec
	if here.Attempt != ref.Attempt {
		here.LogDir, _ = rec.logDirOf(ref.Attempt)
	}
	all := make(parts, len(t.ids))
	t.each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		l := &partLog{id: t.ids[i]}
		if here.LogDir != "" {
			l.have = here.have(l.id)
		}
		state, err := launch.Status(ctx, t.conns[i], ref)
		if l.written = state.LogSize; err != nil || l.have < l.written {
			all[i] = l
		}
		return nil
	})
	return slices.DeleteFunc(all, func(l *partLog) bool { return l == nil }).String()
}

// unstopped says what is true of a job without runner that did not end in time after it
// was told to: which workers have not said that they ended, and what becomes of the
// slices. standing is the state of the queued resource; "" if it could not be read.
func (r *detachedRun) unstopped(state detach.State, standing string) error {
	ended := map[tpu.WorkerID]bool{}
	for _, e := range state.Ended {
		ended[e.Worker] = true
	}
	said := map[tpu.WorkerID]string{}
	for _, w := range state.Seen {
		said[w.Worker] = fmt.Sprintf("%s when last heard, %s ago", w.Phase, asTyped(max(r.Clock.Now().Sub(w.At).Truncate(time.Minute), time.Minute)))
	}
	ids := slices.DeleteFunc(r.desc.IDs(), func(id tpu.WorkerID) bool { return ended[id] })
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = cmp.Or(said[id], "never heard")
	}
	var parts []string
	for _, g := range tpu.GroupAlike(texts) {
		who := make([]tpu.WorkerID, len(g.At))
		for i, at := range g.At {
			who[i] = ids[at]
		}
		parts = append(parts, tpu.FoldShort(who)+": "+g.Text)
	}
	id := r.desc.Resource
	slices := fmt.Sprintf("whether queued resource %s exists is not known", id)
	if standing != "" {
		slices = fmt.Sprintf("queued resource %s is there, %s", id, standing)
	}
	goes := "; a worker that lives reads the stop in the bucket and ends its command, and the last of them deletes the queued resource"
	if r.desc.Keep == detach.KeepAlways {
		goes = "; a worker that lives reads the stop in the bucket and ends its command, and the queued resource stays (--keep)"
	}
	return &Error{Stage: StageStop,
		Text: fmt.Sprintf("run %s may still be running: it was told to stop in the bucket, but %d of %s have not said that they ended (%s); %s%s",
			r.desc.Run, len(ids), event.Count(len(r.desc.IDs()), "worker"), strings.Join(parts, "; "), slices, goes),
		Advice: fmt.Sprintf("look again with: multihost stop %s; to end it with its slices at once: %s", r.desc.Run, deleteCommand(id, r.Deps))}
}
