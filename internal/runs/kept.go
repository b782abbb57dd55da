package runs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/cost"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/follow"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/teardown"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// StopOptions say how Stop ends a run.
type StopOptions struct {
	Prefix string // name prefix of the slices to look at; "" means all
	Grace  time.Duration

	// Confirm asks the user a question before kept slices are deleted. An error means no.
	// If Confirm is nil, the slices are deleted without a question, unless the only copy of
	// a log would be lost.
	Confirm func(ctx context.Context, question string) error
}

// kept are slices that a job has made and that stay although its command has ended.
type kept struct {
	run   string
	res   provision.Resource
	ended string // how the command ended
	part  string // which logs would be lost with the slices, or ""

	again func(context.Context) error // returns an error if something has begun on the slices meanwhile
}

// question returns the question to the user before the slices are deleted.
func (k kept) question(p provision.Provider, zone string) string {
	text := fmt.Sprintf("run %s has ended (%s)", k.run, k.ended)
	if k.part != "" {
		text += "; " + k.part + ", and the rest goes with the slices"
	}
	cost := cost.PriceOf(cost.Hourly(k.res, zone), k.res.Type, string(k.res.Tier), zone)
	return fmt.Sprintf("%s. Delete %s with its slices (%s; %s)?", text, provision.NameOf(p, k.res.ID), tpu.FewNames(k.res.Nodes), cost)
}

// deleteKept asks the user and deletes the slices. After an error, they may still exist.
func deleteKept(ctx context.Context, d Deps, o StopOptions, k kept) error {
	if k.part != "" && follow.SomeoneAt(d.StateDir, k.run) {
		return &stage.Error{Stage: stage.Stopping, Text: fmt.Sprintf("the slices of run %s stay: a command on this machine still brings its logs here (%s)", k.run, k.part),
			Advice: "wait for it, or end it with Ctrl-C there; then: multihost stop " + k.run}
	}
	if o.Confirm != nil {
		err := o.Confirm(ctx, k.question(d.Cloud, d.Zone))
		if err == nil && k.again != nil { // the user may have taken hours to answer
			err = k.again(ctx)
		}
		if err != nil {
			event.Notef(d.Sink, event.Warn, teardown.Hint(d.Reach, k.res.ID), "%s stays, %s", provision.NameOf(d.Cloud, k.res.ID), k.res.Standing())
			return err
		}
	} else if k.part != "" { // nobody has agreed to lose the rest of the logs
		return &stage.Error{Stage: stage.Stopping, Text: fmt.Sprintf("%s stays, %s: %s, and the rest is on its workers only", provision.NameOf(d.Cloud, k.res.ID), k.res.Standing(), k.part),
			Advice: "bring the rest with: multihost attach " + k.run + "; or " + teardown.Hint(d.Reach, k.res.ID)}
	}
	return deleteMade(ctx, d, k.run, k.res, "run "+k.run+" had ended ("+k.ended+")")
}

// deleteMade deletes the queued resource of a job whose command does not run.
func deleteMade(ctx context.Context, d Deps, run string, res provision.Resource, what string) error {
	watch := stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}
	return watch.Phase("delete", func() (string, error) {
		_, err := d.Cloud.Delete(ctx, res.ID, provision.DeleteOptions{OnlyRun: run, Limit: teardown.Limit})
		if err != nil {
			return "", &stage.Error{Stage: stage.Teardown, Err: err, Text: fmt.Sprintf("delete %s: %v; it may still exist and be billed", provision.QuotedNameOf(d.Cloud, res.ID), err), Advice: teardown.Hint(d.Reach, res.ID)}
		}
		again, hint := teardown.MadeAgain(ctx, d.Reach, res.ID)
		if again != "" {
			event.Notef(d.Sink, event.Warn, hint, "%s: %s", provision.NameOf(d.Cloud, res.ID), again)
			return fmt.Sprintf("%s, %s", provision.NameOf(d.Cloud, res.ID), what), nil
		}
		return fmt.Sprintf("%s, %s: %s", provision.NameOf(d.Cloud, res.ID), what, teardown.NothingBilled), nil
	})
}

// keptOn returns the queued resources whose slices are kept for a run that has ended on
// every worker of t. found are the runs that the workers know. All workers have answered.
// It leaves out resources that the job of this run did not make. It returns none at all if a
// command runs on one of the workers, or may run because a slice was not asked.
func keptOn(ctx context.Context, d Deps, t *workers.Connected, rec *record.Record, found []workers.FoundRun) ([]kept, error) {
	if d.OnHosts() {
		return nil, nil
	}
	mine, err := madeFor(ctx, d, t.Slices, rec.Run)
	if err != nil || len(mine) == 0 {
		return nil, err
	}
	lives, last := livesOrLast(found, rec.Run)
	if lives != nil {
		event.Notef(d.Sink, event.Warn, "", "the slices of run %s stay: run %q of %s lives on %s", rec.Run, lives.Info.Run, lives.Info.Owner, tpu.FoldShort(lives.Workers))
		return nil, nil
	}
	if last != nil {
		if err := last.Stoppable(); err != nil {
			return nil, err
		}
	}
	asked := map[string]bool{}
	for i := range t.IDs {
		asked[t.Slice(i).Name] = true
	}
	for i := range mine {
		k := &mine[i]
		if !askedWhole(k.res, asked) {
			event.Notef(d.Sink, event.Warn, teardown.Hint(d.Reach, k.res.ID), "%s stays, %s: not all of its slices could be asked whether a command runs there", provision.NameOf(d.Cloud, k.res.ID), k.res.Standing())
			return nil, nil
		}
		if last != nil {
			k.ended = last.Ended()
			k.part = missingHere(ctx, d, t, rec, last.Info.Ref)
		}
	}
	return mine, nil
}

// madeFor returns those queued resources of the given slices that the job of a run has made.
func madeFor(ctx context.Context, d Deps, all []tpu.Slice, run string) (mine []kept, err error) {
	seen := map[string]bool{"": true}
	for _, s := range all {
		if seen[s.QueuedResource] {
			continue
		}
		seen[s.QueuedResource] = true
		res, err := d.Cloud.Get(ctx, s.QueuedResource)
		if gcp.ClassOf(err) == gcp.NotFound {
			continue
		}
		if err != nil {
			return nil, &stage.Error{Stage: stage.Stopping, Err: err}
		}
		if res.JobMade() && res.IsOf(run) && res.Life != provision.Deleting {
			mine = append(mine, kept{run: run, res: res, ended: "its command never began"})
		}
	}
	return mine, nil
}

// livesOrLast returns an active run of any name (lives), or else the newest run with the
// given name (last). A result without a run is nil. found has the newest run first.
func livesOrLast(found []workers.FoundRun, run string) (lives, last *workers.FoundRun) {
	for i, f := range found {
		switch {
		case f.Info.Alive():
			return &found[i], nil
		case f.Info.Run == run && last == nil:
			last = &found[i]
		}
	}
	return nil, last
}

// askedWhole reports whether every slice of the resource on which a command may run was
// asked. asked has the names of the slices that were asked.
func askedWhole(res provision.Resource, asked map[string]bool) bool {
	return allAsked(res) && !slices.ContainsFunc(res.Slices, func(s tpu.Slice) bool {
		ok, _ := s.Ready()
		return ok && !asked[s.Name]
	})
}

// missingHere says which logs of an attempt on these slices are not whole on this machine,
// or returns "" if all are.
func missingHere(ctx context.Context, d Deps, t *workers.Connected, rec *record.Record, ref launch.Ref) string {
	here := *rec
	here.LogDir = rec.LogDirOn(ref.Attempt, record.SliceIDs(record.SlicesOf(t.Slices)))
	all := make(follow.Parts, len(t.IDs))
	t.Each(ctx, event.Discard, "", func(ctx context.Context, i int) error {
		l := &follow.PartLog{ID: t.IDs[i]}
		if here.LogDir != "" {
			l.Have = here.Have(l.ID)
		}
		state, err := launch.Status(ctx, t.Conns[i], ref)
		if l.Written = state.LogSize; err != nil || l.Have < l.Written {
			all[i] = l
		}
		return nil
	})
	return slices.DeleteFunc(all, func(l *follow.PartLog) bool { return l == nil }).String()
}

// unstopped returns the error for a job without runner that did not end in time after a
// stop. It says which workers have not reported their end, and what happens to the slices.
// standing is the state of the queued resource, or "" if it could not be read.
func (r *BucketRun) unstopped(state detach.State, standing string) error {
	ended := map[tpu.WorkerID]bool{}
	for _, e := range state.Ended {
		ended[e.Worker] = true
	}
	said := map[tpu.WorkerID]string{}
	for _, w := range state.Seen {
		said[w.Worker] = fmt.Sprintf("%s when last heard, %s ago", w.Phase, stage.AsTyped(max(r.Clock.Now().Sub(w.At).Truncate(time.Minute), time.Minute)))
	}
	ids := slices.DeleteFunc(r.Desc.IDs(), func(id tpu.WorkerID) bool { return ended[id] })
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
	id := r.Desc.Resource
	slices := fmt.Sprintf("whether %s exists is not known", provision.NameOf(r.Cloud, id))
	if standing != "" {
		slices = fmt.Sprintf("%s is there, %s", provision.NameOf(r.Cloud, id), standing)
	}
	goes := "; a worker that lives reads the stop in the bucket and ends its command, and the last of them deletes the slices"
	if r.Desc.Keep == detach.KeepAlways {
		goes = "; a worker that lives reads the stop in the bucket and ends its command, and the slices stay (--keep)"
	}
	return &stage.Error{Stage: stage.Stopping,
		Text: fmt.Sprintf("run %s may still be running: it was told to stop in the bucket, but %d of %s have not said that they ended (%s); %s%s",
			r.Desc.Run, len(ids), event.Count(len(r.Desc.IDs()), "worker"), strings.Join(parts, "; "), slices, goes),
		Advice: fmt.Sprintf("look again with: multihost stop %s; to end it with its slices at once: %s", r.Desc.Run, teardown.Command(r.Reach, id))}
}
