package job

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"multihost/internal/announce"
	"multihost/internal/attempt"
	"multihost/internal/codesync"
	"multihost/internal/follow"
	"multihost/internal/launch"
	"multihost/internal/lease"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/renewal"
	"multihost/internal/stage"
	"multihost/internal/teardown"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// An inheritance is what a job knows about an earlier runner's command on its slices.
type inheritance struct {
	// inherited says that the resource existed when this process started. A command of an
	// earlier runner may be running on it until its workers have answered.
	inherited bool
	worked    bool // every worker has answered at least once
	again     bool // an attempt of this process has ended; another machine may have begun one since

	lives bool // the command of this run is running on some worker
	ended bool // the command has ended on some worker, and no user was told how
	asked bool // some worker has answered whether the command is running there
}

// mayLive reports whether a command of an earlier runner may be running on the slices. It
// may if a worker has said so, or if no worker has answered yet.
func (h inheritance) mayLive() bool { return h.lives || h.inherited && !h.worked && !h.asked }

// asks reports whether to ask the workers for commands of other runners.
func (h inheritance) asks() bool { return h.again || h.inherited && !h.worked }

// mayHaveLogs reports whether an earlier runner's command has run on the slices, and this
// runner has not taken it over.
func (h inheritance) mayHaveLogs() bool { return h.inherited && !h.worked && (h.lives || h.ended) }

// losesLogs reports whether deleting the slices may lose logs of another runner's command
// that this machine does not have. tried is the number of attempts that this command has
// started or taken over. slices says whether slices exist. Perhaps nobody has asked their
// workers yet.
func (h inheritance) losesLogs(tried int, slices bool) bool {
	return h.again && h.lives || h.inherited && tried == 0 && (h.lives || h.ended || slices && !h.asked)
}

// leaves returns why the job must not delete a resource of an earlier runner that it has
// not taken over yet, or "" if it may. Only the user's choice or the end of the time to
// live ends a running command.
func (h inheritance) leaves(life provision.Life, err error) string {
	switch {
	case !h.inherited && !h.lives || life.Queued() || teardown.Chosen(err):
		return ""
	case h.lives:
		return "the command of an earlier runner lives on it, and this command has not taken it over"
	case h.mayLive():
		return "whether the command of an earlier runner lives on it is not known yet"
	case h.mayHaveLogs():
		return "the command of an earlier runner has ended on it, and its logs may be not whole here"
	}
	return ""
}

// hears returns the inheritance after workers were asked for their runs. run is the name of
// the job's run. errs has an error for each worker without an answer.
func (h inheritance) hears(run string, runs []workers.FoundRun, errs []error) inheritance {
	for _, f := range runs {
		ours := f.Info.Run == run && f.Info.Mine
		h.lives = h.lives || ours && f.Info.Alive()
		h.ended = h.ended || ours && !f.Info.Alive() && !f.Seen
	}
	h.asked = h.asked || slices.Contains(errs, nil)
	return h
}

// An adoption renews the lease of existing slices while the job waits for others. The zero
// value has no slices. Its methods are safe for concurrent use.
type adoption struct {
	mu sync.Mutex
	inheritance
	slices map[string]tpu.Slice // existing slices, by name
	stop   map[string]func()    // functions that end renewals and connections, by UID of slices whose workers all answer
}

// now returns the present knowledge about an earlier runner's command.
func (a *adoption) now() inheritance {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inheritance
}

// commandLives reports whether, since the job last waited for the slices, a worker has said
// that the command of this run is running there.
func (a *adoption) commandLives() bool { return a.now().lives }

// forget prepares for the next attempt. If every worker has answered before, forget drops
// what is known about the command, and the next attempt asks again.
func (a *adoption) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lives, a.again = a.lives && !a.worked, a.worked
}

// ask finds out whether the command of the run is running on the workers of t.
func (a *adoption) ask(ctx context.Context, t *workers.Connected, run string) {
	runs, errs := t.Runs(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inheritance = a.hears(run, runs, errs)
}

// decided records that an attempt has asked all workers for their runs.
func (a *adoption) decided() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = true
}

// keep stores end for the slice with this UID. release calls end. If keep has stored a
// function for the slice before, keep calls that function at once.
func (a *adoption) keep(uid string, end func()) {
	a.mu.Lock()
	before := a.stop[uid]
	if a.stop == nil {
		a.stop = map[string]func(){}
	}
	a.stop[uid] = end
	a.mu.Unlock()
	if before != nil {
		before()
	}
}

// exists records that a slice exists. It returns all slices that exist, in the order of
// their names.
func (a *adoption) exists(s tpu.Slice) (all []tpu.Slice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.slices == nil {
		a.slices = map[string]tpu.Slice{}
	}
	a.slices[s.Name] = s
	for _, name := range slices.Sorted(maps.Keys(a.slices)) {
		all = append(all, a.slices[name])
	}
	return all
}

// release ends the renewals and the connections that keep the lease. Then the slices may be
// deleted.
func (a *adoption) release() {
	a.mu.Lock()
	stop := a.stop
	a.stop, a.slices = nil, nil
	a.mu.Unlock()
	for _, f := range stop {
		f()
	}
}

// bootLimit limits how long the workers of existing slices may take to answer. If a command
// may be running on them, the limit is at least that for a lost worker of a followed run. In
// that case, there is no limit if either of the two is missing.
func (q *queued) bootLimit() time.Duration {
	limit, lost := q.o.BootLimit, q.o.Run.Patience.Lost
	if !q.held.now().mayLive() {
		return limit
	}
	if limit <= 0 || lost <= 0 {
		return provider.NoLimit
	}
	return max(limit, lost)
}

// adoptRound limits the first tries to connect to the workers of a slice. After them, the
// job tells the workers that answered that a runner exists. The limit must be short, because
// --lease may be only a minute.
const adoptRound = 30 * time.Second

// adopt checks whether every worker of a slice answers, like Probe. It asks workers that
// answer whether a command of an earlier runner is active there. It also tells them that a
// runner has come, because other workers may take longer than --lease to answer. If all
// answer, it renews the lease until release is called.
func (q *queued) adopt(ctx context.Context, s tpu.Slice) error {
	all := q.held.exists(s)
	q.SetStatus(func(st *stage.Status) { st.Billed = follow.Billed(st.Tier, all) })
	if !q.ours {
		return Probe(ctx, q.Reach, s)
	}
	s.Index = 0
	sel := tpu.Selection{Slices: []tpu.Slice{s}}
	t, failed, err := q.DialFor(ctx, sel, nil, true, min(q.Access.RetryFor, adoptRound))
	if err != nil {
		return err
	}
	if q.terms.On() { // the run reports errors when it makes its own connections
		q.renewal().ArmEach(ctx, t, delivery(q.o.Run), func(ctx context.Context, i int) error {
			_, err := lease.Adopt(ctx, t.Conns[i], q.Agents.Sums(), q.terms)
			return err
		})
	}
	if q.held.now().asks() {
		q.held.ask(ctx, t, q.o.Run.Run)
	}
	if len(failed) > 0 {
		t.Close()
		if q.held.commandLives() {
			return nil // the run takes over the command on the workers that answer
		}
		return workers.Failures(stage.Connect, sel.Workers(), failed)
	}
	leave := func() {}
	if q.terms.Lasting() {
		leave = q.renewal().Renew(ctx, t, q.terms)
	}
	q.held.keep(s.UID, func() {
		leave()
		t.Close()
	})
	return nil
}

// ifLeft says what happens to the requested slices if the user ends this process before the
// command has started.
func (q *queued) ifLeft() string {
	text := "nobody starts the command until the same command is typed again; "
	switch {
	case q.terms.Metadata(q.Agents, q.o.Request.Metadata) == nil:
		return text + "its slices are billed until then, or until it is deleted" + announce.AtTheLatest(q.o.Request)
	case q.terms.Adopt > 0:
		return text + "its slices delete themselves " + stage.AsTyped(q.terms.Adopt) + " after their boot (--lease)"
	}
	return text + "its slices delete themselves " + stage.AsTyped(q.terms.TTL) + " after the request (--ttl)"
}

// leavesFor is leaves after asking the workers again. If somebody gave the same job on
// another machine, that machine may have started the command first.
func (q *queued) leavesFor(ctx context.Context, life provision.Life, err error) string {
	if q.mine.Tried == 0 {
		if why := q.held.now().leaves(life, err); why != "" {
			return why
		}
	}
	if life.Queued() || teardown.Chosen(err) {
		return ""
	}
	return keptFor(q.othersRuns(ctx))
}

// keptFor says why slices must stay because of other runners' runs on them, or "". If
// nobody has followed a run to its end, its logs may be on the workers only.
func keptFor(runs []workers.FoundRun) string {
	if slices.ContainsFunc(runs, lives) {
		return "a command runs on it that this one has neither started nor taken over"
	}
	for _, f := range runs {
		if f.Verdict == "" && !f.Seen && f.Info.Phase != launch.Aborted {
			return fmt.Sprintf("run %s of %s has ended on it, and nobody has followed it to its end: its logs may be whole on the workers only", f.Info.Run, f.Info.Owner)
		}
	}
	return ""
}

func lives(f workers.FoundRun) bool { return f.Info.Alive() }

const (
	// listLimit limits how long the job waits for the list of slices before it looks for
	// commands of other runners. While the API does not answer, such commands may exist.
	listLimit = 10 * time.Minute
	// lookLimit limits how long the job asks the workers of these slices.
	lookLimit = 30 * time.Second
)

// othersLive reports whether another runner's command is running on the slices of the job.
func (q *queued) othersLive(ctx context.Context) bool {
	return slices.ContainsFunc(q.othersRuns(ctx), lives)
}

// othersRuns asks worker 0 of each slice of the job for the commands that other runners have
// started there, for this job or another run. Workers that do not answer within answerLimit
// are left out.
func (q *queued) othersRuns(ctx context.Context) []workers.FoundRun {
	sel := readySlices(ctx, q.Reach, q.o.Request.ID)
	if len(sel.Slices) == 0 {
		return nil
	}
	ctx, cancel := q.Detached(ctx, lookLimit)
	defer cancel()
	t, _, err := q.DialFor(ctx, sel, func(id tpu.WorkerID) bool { return id.Worker == 0 }, true, answerLimit)
	if err != nil {
		return nil
	}
	defer t.Close()
	runs, _ := t.Runs(ctx)
	return slices.DeleteFunc(runs, func(f workers.FoundRun) bool {
		// An attempt that this runner began is its own, even if the start failed.
		mine := f.Info.Attempt <= q.mine.Last && slices.ContainsFunc(f.Workers, func(id tpu.WorkerID) bool { return q.mine.HasBegunOn(sel.Slices[id.Slice].UID) })
		return f.Info.Run == q.o.Run.Run && (f.Info.Owner == q.Owner || mine)
	})
}

// readySlices returns the ready slices of a resource, or none if the API does not list
// them.
func readySlices(ctx context.Context, d *workers.Reach, id string) (sel tpu.Selection) {
	ctx, cancel := d.Detached(ctx, listLimit)
	defer cancel()
	var nodes []tpu.Slice
	_ = teardown.Outlast(ctx, d.Clock, func() (err error) {
		nodes, err = d.Cloud.Slices(ctx)
		return err
	})
	for _, s := range nodes {
		if ok, _ := s.Ready(); ok && s.QueuedResource == id {
			s.Index = len(sel.Slices)
			sel.Slices = append(sel.Slices, s)
		}
	}
	return sel
}

func (q *queued) renewal() renewal.Deps { return renewal.Deps{Reach: q.Reach, Agents: q.Agents} }

// delivery returns the options for sending the agent to the workers.
func delivery(o attempt.Options) codesync.Options {
	return codesync.Options{Relay: o.Relay, RelayFanout: o.RelayFanout, Stall: o.SyncTimeout}
}
