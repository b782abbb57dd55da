package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/qr"
	"multihost/internal/tpu"
)

// JobOptions is a run on slices that are made for it and deleted after it.
type JobOptions struct {
	Request qr.Request
	Network *network.Options // to create first; nil: none
	Run     RunOptions

	QueueLimit     time.Duration // waiting for capacity; 0 is no limit
	ProvisionLimit time.Duration
	BootLimit      time.Duration

	Keep          bool          // leave the slices when the run is over
	KeepOnFailure bool          // leave them when it failed …
	KeepFor       time.Duration // … for so long, then delete; 0 is until the user deletes them
}

// Job provisions slices, runs the command on them and tears them down. What
// it made and leaves behind is said in its last lines.
func (d *Deps) Job(ctx context.Context, o JobOptions) (Outcome, error) {
	r := &run{Deps: d, o: o.Run, watch: stopwatch{sink: d.Sink, clock: d.Clock}}
	defer r.close()
	if err := r.scan(ctx); err != nil {
		return Outcome{}, err
	}
	if o.Network != nil {
		err := r.watch.span("network", func() error {
			plan, err := d.Networks.Plan(ctx, *o.Network)
			if err != nil {
				return err
			}
			return d.Networks.Apply(ctx, plan)
		})
		if err != nil {
			return Outcome{}, err
		}
	}
	out, err := d.provisionAndRun(ctx, r, o)
	return d.afterRun(ctx, r, o, out, err)
}

func (d *Deps) provisionAndRun(ctx context.Context, r *run, o JobOptions) (Outcome, error) {
	id := o.Request.ID
	err := r.watch.phase("request", func() (string, error) {
		res, created, err := d.Queue.Create(ctx, o.Request)
		if err != nil {
			return "", err
		}
		if !created {
			return fmt.Sprintf("queued resource %s is here already, state %s", id, res.State), nil
		}
		return fmt.Sprintf("queued resource %s: %d × %s", id, max(1, o.Request.NodeCount), o.Request.Type.Name), nil
	})
	if err != nil {
		return Outcome{}, err
	}
	var slices []tpu.Slice
	err = r.watch.span("provision", func() (err error) {
		_, slices, err = d.Queue.Wait(ctx, id, qr.WaitOptions{
			QueueLimit: o.QueueLimit, ProvisionLimit: o.ProvisionLimit, BootLimit: o.BootLimit, Probe: d.Probe,
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	})
	if err != nil {
		return Outcome{}, err
	}
	for i := range slices {
		slices[i].Index = i
	}
	err = r.watch.phase("connect", func() (string, error) {
		var err error
		if r.team, err = d.connect(ctx, tpu.Selection{Slices: slices}, nil); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d/%d workers", len(r.team.ids), len(r.team.ids)), nil
	})
	if err != nil {
		return Outcome{}, err
	}
	defer r.team.close()
	return r.onTeam(ctx)
}

// Probe reports whether every worker of a slice answers SSH.
func (d *Deps) Probe(ctx context.Context, s tpu.Slice) error {
	s.Index = 0
	t, err := d.connect(ctx, tpu.Selection{Slices: []tpu.Slice{s}}, nil)
	if err != nil {
		return err
	}
	t.close()
	return nil
}

// teardownLimit bounds the deletion of a queued resource with its nodes, which
// takes minutes on the real service.
const teardownLimit = 20 * time.Minute

// afterRun deletes the slices of a job, or says why they stay and how to
// delete them. The real state is read before anything is deleted.
func (d *Deps) afterRun(ctx context.Context, r *run, o JobOptions, out Outcome, runErr error) (Outcome, error) {
	id := o.Request.ID
	var conflict *qr.ConflictError
	if errors.As(runErr, &conflict) {
		return out, runErr // it is somebody else's; nothing was made
	}
	cleanup, cancel := d.detached(ctx, teardownLimit)
	defer cancel()
	res, err := d.Queue.Get(cleanup, id)
	switch {
	case gcp.ClassOf(err) == gcp.NotFound:
		if out.Started {
			note(d.Sink, event.Info, "", "queued resource %s is gone: nothing of this job is billed", id)
		}
		return out, runErr
	case err != nil:
		return out, errors.Join(runErr, &Error{Stage: StageTeardown, Err: err,
			Text:    fmt.Sprintf("read queued resource %q: %v; if it exists it is billed", id, err),
			HintTxt: deleteHint(id, d)})
	}
	failed := runErr != nil || out.Code != 0
	keep := ""
	switch {
	case out.Detached:
		keep = "the run goes on"
	case o.Keep:
		keep = "--keep"
	case isHangup(runErr) && out.Started:
		keep = "detached by SIGHUP, the run goes on"
	case failed && o.KeepOnFailure && o.KeepFor == 0:
		keep = "--keep-on-failure"
	case failed && o.KeepOnFailure && out.Started:
		d.holdFor(ctx, o.KeepFor, id)
	}
	if keep != "" {
		note(d.Sink, event.Warn, deleteHint(id, d), "queued resource %s stays (%s), state %s, and is billed", id, keep, res.State)
		return out, runErr
	}
	_, err = d.Queue.Delete(cleanup, id, qr.DeleteOptions{Force: true, OnlyRun: o.Run.Run, Limit: teardownLimit})
	if err != nil {
		return out, errors.Join(runErr, &Error{Stage: StageTeardown, Err: err,
			Text:    fmt.Sprintf("delete queued resource %q: %v; it may still exist and be billed", id, err),
			HintTxt: deleteHint(id, d)})
	}
	note(d.Sink, event.Info, "", "queued resource %s and its slices are deleted: nothing of this job is billed", id)
	return out, runErr
}

func deleteHint(id string, d *Deps) string {
	return fmt.Sprintf("delete it with: multihost qr delete %s --force --project=%s --zone=%s", id, d.Project, d.Zone)
}

func isHangup(err error) bool {
	var in *Interrupted
	return errors.As(err, &in) && in.Signal.String() == "hangup"
}

// holdFor keeps failed slices for a look at them; an interrupt ends the wait.
func (d *Deps) holdFor(ctx context.Context, limit time.Duration, id string) {
	note(d.Sink, event.Warn, "", "keeping the failed slices for %s (--keep-on-failure), then deleting queued resource %s; Ctrl-C deletes it now", limit, id)
	select {
	case <-d.Clock.After(limit):
	case <-ctx.Done():
	case <-d.Leave:
	}
}
