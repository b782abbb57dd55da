// Package job makes attempts of a command until one succeeds or the budget is spent. Run
// makes attempts on slices that exist. Job creates the slices first and deletes them
// afterwards.
//
// Only the workers and the cloud have the true state. Local files only avoid requests to
// them.
//
// # Decisions
//
//   - A lock in runners/ of the state directory allows one runner of a job on a machine.
//     The lock ends with its process. Between two machines the workers' lock decides. The
//     second runner waits a random time, looks again, and follows the command of the first
//     one.
//   - The job decides why an attempt failed after the cloud's state has settled. If a
//     worker was lost, or TERM or KILL ended a command, the job repeats its question to the
//     API for up to a minute. VMs learn of their end before the API shows it. A loss counts
//     against --max-preemptions, a failure of the command against --max-restarts.
//   - If somebody deletes the job's resource or slices, the job ends. It does not make them
//     again.
//   - A job that has or had slices waits for the API, because without the API it could not
//     carry out any decision, not even a deletion.
//   - An attempt counts as lost if the workers could not be reached. If the command still
//     runs on all of them, the job takes it over again. Perhaps only the network had failed.
package job

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/announce"
	"multihost/internal/attempt"
	"multihost/internal/gcp"
	"multihost/internal/launch"
	"multihost/internal/lease"
	"multihost/internal/network"
	"multihost/internal/provision"
	"multihost/internal/record"
	"multihost/internal/renewal"
	"multihost/internal/settings"
	"multihost/internal/stage"
	"multihost/internal/teardown"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

type Deps struct {
	*workers.Reach
	*record.Keeper
	Networks Networks
	Roots    gcp.Roots   // of the APIs that workers call themselves
	Agents   program.Set // program for workers without a runner

	// Checked is called after all checks that need no request, and before the first request.
	// It may be nil.
	Checked func()
}

// Networks creates the network of a job. *network.Client implements it.
type Networks interface {
	settings.Networks
	Plan(ctx context.Context, o network.Options) (network.Plan, error)
	Apply(ctx context.Context, p network.Plan) error
}

func (d Deps) attempt() attempt.Deps {
	return attempt.Deps{Reach: d.Reach, Keeper: d.Keeper, Networks: d.Networks, Roots: d.Roots, Checked: d.Checked}
}

func (d Deps) announce() announce.Deps {
	return announce.Deps{Reach: d.Reach, Networks: d.Networks}
}

// Run starts the command on every worker of the slices that o.Prefix names, follows it to
// its end and reports. A command that fails is an Outcome, not an error. When ctx ends with
// the cause *Interrupted, Run stops the command on every worker, checks that it is gone,
// and returns that cause as the error. After SIGHUP, Run leaves the command running.
func Run(ctx context.Context, d Deps, o attempt.Options) (out stage.Outcome, err error) {
	defer func() { d.CloseJournal(out, err) }()
	r := newRunner(d, o, false)
	defer r.close()
	if err := r.Check(ctx, ""); err != nil {
		return stage.Outcome{}, err
	}
	r.ChecksDone()
	r.ground = r.standing()
	r.books.Budget = Budget{Restarts: o.MaxRestarts, Preemptions: o.MaxRestarts, LossFlag: "--max-restarts"}
	return r.run(ctx)
}

func newRunner(d Deps, o attempt.Options, job bool) *runner {
	r := &runner{Run: &attempt.Run{Deps: d.attempt(), O: o, Watch: &stage.Stopwatch{Sink: d.Sink, Clock: d.Clock}, Job: job}}
	r.history.Since = d.Clock.Now()
	return r
}

// standing returns the slices that Run works on.
func (r *runner) standing() *standing {
	return &standing{Reach: r.Reach, watch: r.Watch, prefix: r.O.Prefix, numbers: r.O.Slices, partial: r.O.AllowPartial}
}

// JobOptions describes a run whose slices the job makes before it and deletes after it.
type JobOptions struct {
	Request provision.Request
	Network *network.Options // to create first; nil: none
	Run     attempt.Options

	QueueLimit, ProvisionLimit, BootLimit time.Duration // as in provider.WaitOptions

	Budget Budget

	TTL time.Duration // longest time from the request of the slices to their deletion, even if the command runs; 0: no limit

	// Lease is how long the workers wait before they delete the slices themselves. The time
	// counts from the end of the command, or from the boot if no runner has come. It counts
	// only while nobody is attached. 0: never.
	Lease time.Duration

	Keep          bool          // leave the slices after the run
	KeepOnFailure bool          // leave the slices if the run failed
	KeepFor       time.Duration // with KeepOnFailure: delete the slices after this time; 0: only the user deletes them
}

func (o JobOptions) workers() int { return max(1, o.Request.NodeCount) * o.Request.Type.Workers }

// Bill returns what the options say about the end of the slices.
func (o JobOptions) Bill() announce.Bill {
	return announce.Bill{Keep: o.Keep, KeepOnFailure: o.KeepOnFailure, KeepFor: o.KeepFor, Detach: o.Run.Detach, Lease: o.Lease, TTL: o.TTL}
}

// Job makes slices, runs the command on them and deletes them. If slices are taken away, it
// makes them again and starts the command again, within the budget. It takes over what an
// earlier runner of the same job left: the queued resource, and the command if it is
// running. Its last lines name everything that is left behind.
func Job(ctx context.Context, d Deps, o JobOptions) (out stage.Outcome, err error) {
	defer func() { d.CloseJournal(out, err) }()
	release, err := d.Claim(o.Run.Run)
	if err != nil {
		return stage.Outcome{}, err
	}
	defer release()
	r := newRunner(d, o.Run, true)
	defer r.close()
	if err := checkJob(ctx, r.Run, d.Agents, o); err != nil {
		return stage.Outcome{}, err
	}
	r.ChecksDone()
	q := newQueued(d, o, r.Watch)
	if rec := succeeded(ctx, r.Run, o); rec != nil {
		return q.resume(ctx, r, rec)
	}
	d.SetStatus(func(s *stage.Status) { s.Tier = string(o.Request.Asks()) })
	if err := openJob(ctx, d, o, q); err != nil {
		return stage.Outcome{}, err
	}
	q.mine = &r.history
	q.deleting = func() { r.sayLogsGo(q.held.now().losesLogs(r.history.Tried, q.left)) }
	r.ground, r.books.Budget = q, o.Budget
	r.missing, r.decided = q.held.commandLives, q.held.decided
	r.deletes = func() bool { return q.ours && !o.Keep }
	r.lease = &renewal.Lease{Deps: q.renewal(), How: delivery(q.o.Run), Terms: q.lease}
	out, err = r.run(ctx)
	if why := q.others(err); why != "" {
		var conflict *provision.ConflictError
		if !errors.As(err, &conflict) { // otherwise another user owns the resource, and this job has not used it
			teardown.NotOurs(ctx, d.Reach, o.Request.ID, why)
		}
		return out, err
	}
	return q.remove(ctx, r, out, err)
}

// checkJob is Check for a job. The workers of a job need the agent for the lease.
func checkJob(ctx context.Context, r *attempt.Run, agents program.Set, o JobOptions) error {
	return cmp.Or(r.Check(ctx, o.Request.Type.Name), leaseTerms(r.Reach, o).Check(agents))
}

func openJob(ctx context.Context, d Deps, o JobOptions, q *queued) error {
	right, over := announce.AskRight(ctx, d.Reach, o.Request, q.terms.On())
	defer over()
	first := func() error {
		there, mtu, err := announce.Outlook(ctx, d.announce(), o.Request, o.Network)
		announce.TellRight(d.Reach, right(), o.Request.ID, announce.WhenRunnerDies)
		if q.mtu = mtu; err == nil && !there {
			err = q.announce(ctx)
		}
		if err == nil { // a job that the user did not confirm leaves no journal
			d.OpenJournal(o.Run.Run, "job", o.Run.Env)
		}
		return err
	}
	err := MakeNetwork(ctx, d.Networks, q.watch, o.Network, first)
	if class := gcp.ClassOf(err); class == gcp.Unavailable || class == gcp.Timeout {
		teardown.SayUnknown(d.Reach, o.Request.ID, err)
	}
	return err
}

// others describes the queued resource of a job that ended with err, if another job or user
// has to delete that resource. It returns "" if this job has to delete it.
func (q *queued) others(err error) string {
	var no *announce.Declined
	switch {
	case errors.As(err, &no): // an old resource may still exist and need its deletion
		return "is not made again"
	case attempt.Raced(err, q.o.Run.Run):
		return "is left to another runner of this job"
	case !q.ours || !q.made && stage.Is(err, stage.Busy):
		return "was there before this job"
	case occupied(err):
		return "has another run on it"
	}
	return ""
}

// ending describes the job for package teardown.
func (q *queued) ending(r *runner) *teardown.Job {
	limit := q.o.Lease
	if !q.there { // no resource existed, so no worker has deleted it
		limit = 0
	}
	return &teardown.Job{
		Reach: q.Reach, ID: q.o.Request.ID, Run: q.o.Run.Run, Lease: limit, Used: r.used,
		Keeping:    teardown.Keeping{Always: q.o.Keep, OnFailure: q.o.KeepOnFailure, For: q.o.KeepFor},
		Leaves:     q.leavesFor,
		Taken:      func(ctx context.Context) string { return keptFor(q.othersRuns(ctx)) },
		Remade:     func(res provision.Resource) bool { return q.gone || q.known.another(res) },
		WhoDeletes: r.lease.WhoDeletes,
		Last: func(res provision.Resource) {
			r.sayLogsGo(q.held.now().losesLogs(r.history.Tried, !res.Life.Queued() && len(res.Slices) > 0))
		},
	}
}

// leaseTerms returns the terms with which the workers of a job delete the queued resource
// if nobody else does.
func leaseTerms(d *workers.Reach, o JobOptions) lease.Terms {
	label, value := o.Request.RunLabel()
	t := lease.Terms{
		Run: o.Run.Run, Undoing: d.Cloud.Undoing(o.Request.ID, o.Request.NodeNames()...),
		Label: label + "=" + value, Nodes: o.Request.NodeNames(), Workers: o.workers(),
		Adopt: o.Lease, Lease: o.Lease, TTL: o.TTL, Grace: o.Run.Grace, KeepOnFailure: o.KeepOnFailure, KeepFor: o.KeepFor,
	}
	if o.Keep { // the slices stay after the job; the TTL still limits them
		t.Lease = 0
	}
	return t
}

// bootAllowance returns the longest time from the boot of the first worker to the answer of
// the last one. Without limits it is a day.
func bootAllowance(o JobOptions) time.Duration {
	if o.ProvisionLimit <= 0 || o.BootLimit <= 0 {
		return 24 * time.Hour
	}
	return o.ProvisionLimit + o.BootLimit
}

// lease returns the terms for the workers, or nil if the slices do not belong to this job.
func (q *queued) lease() *renewal.Terms {
	if !q.ours {
		return nil
	}
	foreign := q.terms.On() && q.terms.Metadata(q.Agents, q.o.Request.Metadata) == nil
	return &renewal.Terms{Terms: q.terms, Boot: bootAllowance(q.o), Foreign: foreign}
}

// occupied reports whether err says that another run is active on the slices. Deleting the
// slices would end that run.
func occupied(err error) bool {
	var busy *launch.BusyError
	var e *stage.Error
	if errors.As(err, &busy) {
		return true
	}
	return errors.As(err, &e) && (e.Stage == stage.Busy && len(e.Each) == 0 || slices.ContainsFunc(e.Each, occupied))
}

// MakeNetwork makes the network of a job, if o is not nil. It calls the function first()
// before any change. If first() returns an error, MakeNetwork changes nothing and returns
// that error.
func MakeNetwork(ctx context.Context, d Networks, watch *stage.Stopwatch, o *network.Options, first func() error) error {
	var plan *network.Plan
	err := watch.Span("network", func() (err error) {
		plan, err = PlanNetwork(ctx, d, o)
		return err
	})
	if err != nil {
		return err
	}
	if err := first(); err != nil || plan == nil {
		return err
	}
	return watch.Span("network", func() error { return d.Apply(ctx, *plan) })
}

// PlanNetwork returns the plan for the network of a job, or nil if the job makes none.
func PlanNetwork(ctx context.Context, d Networks, o *network.Options) (*network.Plan, error) {
	if o == nil {
		return nil, nil
	}
	plan, err := d.Plan(ctx, *o)
	if err == nil {
		err = plan.Err()
	}
	return &plan, err
}

// Probe reports whether every worker of a slice answers SSH.
func Probe(ctx context.Context, d *workers.Reach, s tpu.Slice) error {
	s.Index = 0
	t, err := d.Connect(ctx, tpu.Selection{Slices: []tpu.Slice{s}}, nil)
	if err != nil {
		return err
	}
	t.Close()
	return nil
}
