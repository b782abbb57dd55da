package submit

import (
	"cmp"
	"context"
	"errors"

	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/provision"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// PlanDetach returns what Detach would do. The conditions of PlanRun apply.
func PlanDetach(ctx context.Context, d *workers.Deps, o job.JobOptions, do DetachOptions) (job.Plan, error) {
	r, err := prepareDetached(ctx, d, o, do)
	if err != nil {
		return job.Plan{}, err
	}
	defer r.Close()
	p := r.NewPlan("job --detach")
	right, over := job.AskRight(ctx, d, o, !o.Keep || o.TTL > 0)
	defer over()
	if p.Network, err = job.PlanNetwork(ctx, d, o.Network); err != nil {
		return job.Plan{}, err
	}
	mtu := job.MTUFor(ctx, d, o.Request, o.Network)
	p.MayDelete = right()
	job.TellRight(d, p.MayDelete, o.Request.ID, job.WhenRunEnds)
	var refused *gcp.ReadOnlyError
	if err := r.put(ctx); !errors.As(err, &refused) {
		return job.Plan{}, cmp.Or(err, job.ErrNotRefused)
	}
	if r.lost.State != "" {
		p.Resource = job.ChangeOf(d, job.ResourceRecreate, r.lost, r.withMetadata(o.Request), nil)
		p.Resource.Why = "its slices are lost, and the run has not ended"
	} else {
		if _, err = r.create(ctx, o.Request); !errors.As(err, &refused) {
			return job.Plan{}, cmp.Or(err, job.ErrNotRefused)
		}
		p.Resource = job.ChangeOf(d, job.ResourceCreate, provision.Resource{ID: o.Request.ID}, o.Request, refused)
	}
	d.Sink.Emit(job.Asking(o.Request, d.Project, d.Zone, mtu, job.BilledUntil(o, true), true))
	p.Upload = &job.Upload{URL: r.bucket.URL(r.job.Run), Objects: r.bucket.Objects(r.job)}
	p.PlanJob(o, true)
	return p, r.Foresee(ctx, &p, tpu.Selection{Slices: job.Expected(o.Request, d.Project, d.Zone)}, "its slices are to be made")
}
