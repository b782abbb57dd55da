package submit

import (
	"cmp"
	"context"
	"errors"

	"multihost/internal/announce"
	"multihost/internal/attempt"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/plan"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// PlanDetach returns what Detach would do. The conditions of PlanRun apply.
func PlanDetach(ctx context.Context, d Deps, o job.JobOptions, do DetachOptions) (plan.Plan, error) {
	r, err := prepareDetached(ctx, d, o, do)
	if err != nil {
		return plan.Plan{}, err
	}
	defer r.Close()
	sayBounds(d, o.Request)
	p := r.NewPlan("job --detach")
	right, over := announce.AskRight(ctx, d.Reach, o.Request, !o.Keep || o.TTL > 0)
	defer over()
	if p.Network, err = job.PlanNetwork(ctx, d.Networks, o.Network); err != nil {
		return plan.Plan{}, err
	}
	mtu, err := announce.Check(ctx, announce.Deps{Reach: d.Reach, Networks: d.Networks}, o.Request, o.Network)
	if err != nil {
		return plan.Plan{}, err
	}
	p.MayDelete = right()
	announce.TellRight(d.Reach, p.MayDelete, o.Request.ID, announce.WhenRunEnds)
	var refused *gcp.ReadOnlyError
	if err := r.put(ctx); !errors.As(err, &refused) {
		return plan.Plan{}, cmp.Or(err, plan.ErrNotRefused)
	}
	if r.lost.State != "" {
		p.Resource = plan.ChangeOf(d.Cloud, d.Zone, plan.ResourceRecreate, r.lost, r.withMetadata(o.Request), nil)
		p.Resource.Why = "its slices are lost, and the run has not ended"
	} else {
		if _, err = r.create(ctx, o.Request); !errors.As(err, &refused) {
			return plan.Plan{}, cmp.Or(err, plan.ErrNotRefused)
		}
		p.Resource = plan.ChangeOf(d.Cloud, d.Zone, plan.ResourceCreate, provision.Resource{ID: o.Request.ID}, o.Request, refused)
	}
	announce.Tell(d.Sink, announce.Asking(o.Request, d.Project, d.Zone, mtu, announce.BilledUntil(o.Bill(), true), true))
	p.Upload = &plan.Upload{URL: r.bucket.URL(r.job.Run), Objects: r.bucket.Objects(r.job)}
	o.AddTo(&p, true)
	var h attempt.History
	if r.earlier != nil {
		h.Number = r.desc.Attempt
	}
	return p, r.Foresee(ctx, &h, &p, tpu.Selection{Slices: plan.Expected(o.Request, d.Project, d.Zone)}, "its slices are to be made")
}
