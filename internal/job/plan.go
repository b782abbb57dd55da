package job

import (
	"context"
	"errors"
	"slices"

	"multihost/internal/announce"
	"multihost/internal/attempt"
	"multihost/internal/gcp"
	"multihost/internal/plan"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// PlanRun returns what Run would do, and changes nothing. It needs the Deps of a dry run
// (ReadOnly). Its errors are those of Run before the first change.
func PlanRun(ctx context.Context, d Deps, o attempt.Options) (plan.Plan, error) {
	r := newRunner(d, o, false)
	defer r.close()
	if err := r.Check(ctx, ""); err != nil {
		return plan.Plan{}, err
	}
	r.ChecksDone()
	sel, err := r.standing().ready(ctx, nil, nil)
	if err != nil {
		return plan.Plan{}, err
	}
	p := r.NewPlan("run")
	p.Limits.Restarts, p.Limits.Preemptions = o.MaxRestarts, o.MaxRestarts
	return p, r.Foresee(ctx, &attempt.History{}, &p, sel, "")
}

// PlanJob returns what Job would do. It is otherwise like PlanRun.
func PlanJob(ctx context.Context, d Deps, o JobOptions) (plan.Plan, error) {
	r := newRunner(d, o.Run, true)
	defer r.close()
	if err := checkJob(ctx, r.Run, d.Agents, o); err != nil {
		return plan.Plan{}, err
	}
	r.ChecksDone()
	p := r.NewPlan("job")
	q := newQueued(d, o, r.Watch)
	if rec := succeeded(ctx, r.Run, o); rec != nil {
		saySucceeded(q.Sink, rec, q.name(), "without --dry-run, this command only goes on with that; the plan is that of the next one")
	}
	right, over := announce.AskRight(ctx, d.Reach, o.Request, q.terms.On())
	defer over()
	var err error
	if p.Network, err = PlanNetwork(ctx, d.Networks, o.Network); err != nil {
		return plan.Plan{}, err
	}
	mtu, refused := announce.Check(ctx, d.announce(), o.Request, o.Network)
	p.MayDelete = right()
	announce.TellRight(d.Reach, p.MayDelete, o.Request.ID, announce.WhenRunnerDies)
	ready, err := q.foresee(ctx, &p)
	if err != nil {
		return plan.Plan{}, err
	}
	if p.Resource.Do == plan.ResourceCreate || p.Resource.Do == plan.ResourceRecreate {
		if refused != nil {
			return plan.Plan{}, refused
		}
		announce.Tell(d.Sink, announce.Asking(o.Request, d.Project, d.Zone, mtu, announce.BilledUntil(o.Bill(), false), true))
	}
	o.AddTo(&p, q.ours || p.Resource.Do != plan.ResourceUse)
	if ready == nil {
		return p, r.Foresee(ctx, &attempt.History{}, &p, tpu.Selection{Slices: plan.Expected(o.Request, d.Project, d.Zone)}, "its slices are to be made")
	}
	return p, r.Foresee(ctx, &attempt.History{}, &p, tpu.Selection{Slices: ready}, "")
}

// AddTo adds the limits of a job to its plan. ours says that the job deletes the slices.
func (o JobOptions) AddTo(p *plan.Plan, ours bool) {
	l := &p.Limits
	l.Queue, l.Provision, l.Boot, l.TTL = max(0, o.QueueLimit), max(0, o.ProvisionLimit), max(0, o.BootLimit), o.TTL
	if o.Request.NodeCount > 1 {
		l.Slices = o.Request.SlicesDeadline
	}
	if ours && !o.Keep {
		l.Lease = o.Lease
	}
	l.MaxRun = o.Request.MaxRunDuration
	l.Restarts, l.Preemptions = o.Budget.Restarts, o.Budget.Preemptions
	switch {
	case !ours:
		p.End.Keeps = "it was there before this job"
	case o.Keep:
		p.End.Keeps = "--keep"
	default:
		p.End.Deletes, p.End.Leaves = o.Request.ID, o.Run.Detach
		if o.KeepOnFailure {
			p.End.Keeps, p.End.KeepFor = "after a failure (--keep-on-failure)", o.KeepFor
		}
	}
}

// foresee adds to the plan what the job would do to the queued resource. If all slices of
// the resource are ready, foresee returns them.
func (q *queued) foresee(ctx context.Context, p *plan.Plan) (ready []tpu.Slice, err error) {
	res, _, err := q.create(ctx)
	var refused *gcp.ReadOnlyError
	if errors.As(err, &refused) {
		q.there = false
		p.Resource = plan.ChangeOf(q.Cloud, q.Zone, plan.ResourceCreate, res, q.o.Request, refused)
		if res.Life == provision.Deleting {
			p.Resource.Do, p.Resource.Why = plan.ResourceRecreate, "an older one of this name is being deleted"
		}
		return nil, nil
	}
	if err != nil {
		return nil, q.foreseeRepair(ctx, p, res, err)
	}
	if res, err = q.Cloud.Get(ctx, res.ID); err != nil {
		return nil, err
	}
	p.Resource = plan.ChangeOf(q.Cloud, q.Zone, plan.ResourceUse, res, q.o.Request, nil)
	nodes, err := q.Cloud.Slices(ctx)
	if err != nil {
		return nil, err
	}
	for i, name := range res.Nodes {
		at := slices.IndexFunc(nodes, func(n tpu.Slice) bool { return n.Name == name && n.QueuedResource == res.ID })
		if at < 0 {
			return nil, nil
		}
		if ok, _ := nodes[at].Ready(); !ok {
			return nil, nil
		}
		nodes[at].Index = i
		ready = append(ready, nodes[at])
	}
	return ready, nil
}

// foreseeRepair adds to the plan how the job would repair a queued resource that exists and
// cannot be used. It returns the error that would end the job.
func (q *queued) foreseeRepair(ctx context.Context, p *plan.Plan, res provision.Resource, cause error) error {
	d, known := q.diagnose(ctx, cause)
	if !known {
		return cause
	}
	books := &ledger{Budget: q.o.Budget}
	switch d.Step {
	case provision.StepRecreate:
		_, err := q.mayRemake(d, cause, books.pay)
		if err != nil {
			return err
		}
		p.Resource = plan.ChangeOf(q.Cloud, q.Zone, plan.ResourceRecreate, res, q.o.Request, nil)
	case provision.StepReset:
		p.Resource = plan.ChangeOf(q.Cloud, q.Zone, plan.ResourceReset, res, q.o.Request, nil)
	case provision.StepWait:
		p.Resource = plan.ChangeOf(q.Cloud, q.Zone, plan.ResourceUse, res, q.o.Request, nil)
	default:
		return cause
	}
	p.Resource.Why = d.Why
	return nil
}
