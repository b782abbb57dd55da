package qr

import (
	"context"
	"fmt"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provider"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// resetLimit is how long Reset waits for the VMs to reboot, which takes minutes.
const resetLimit = 15 * time.Minute

// Reset reboots the VMs of all slices of an ACTIVE queued resource. It returns when the API
// reports that the reset is done, or after 15 minutes. Wait shows whether the VMs are
// ready. Disks and addresses stay. Kernel settings and processes are lost.
func (c *Client) Reset(ctx context.Context, id string) error {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("reset queued resource %q", id)
	start := c.now()
	c.emit(event.Phase{Name: "reset", State: event.Started, Detail: id})
	op, err := c.requestReset(ctx, svc, id, what)
	if err == nil {
		err = c.awaitReset(ctx, svc, id, op, what)
	}
	if err != nil {
		c.emit(event.Phase{Name: "reset", State: event.Failed, Elapsed: c.now().Sub(start)})
		return err
	}
	c.emit(event.Phase{Name: "reset", State: event.Done, Detail: "the VMs of " + id + " were rebooted", Elapsed: c.now().Sub(start)})
	return nil
}

// SubmitReset does what Reset does, but returns as soon as the API has accepted the
// request.
func (c *Client) SubmitReset(ctx context.Context, id string) error {
	svc, err := c.gcp.TPU(ctx)
	if err == nil {
		_, err = c.requestReset(ctx, svc, id, fmt.Sprintf("reset queued resource %q", id))
	}
	return err
}

func (c api) requestReset(ctx context.Context, svc *tpuapi.Service, id, what string) (op *tpuapi.Operation, err error) {
	err = c.gcp.Do(ctx, what, func(ctx context.Context) (err error) {
		op, err = svc.Projects.Locations.QueuedResources.Reset(c.qrName(id), &tpuapi.ResetQueuedResourceRequest{}).Context(ctx).Do()
		return err
	})
	return op, err
}

func (c api) awaitReset(ctx context.Context, svc *tpuapi.Service, id string, op *tpuapi.Operation, what string) error {
	start := c.now()
	err := gcp.Poll(ctx, c.gcp.Clock(), gcp.Backoff{}, func(ctx context.Context) (bool, error) {
		if op.Done || c.now().Sub(start) > resetLimit {
			return true, nil
		}
		got, err := c.operation(ctx, svc, op.Name, what)
		if err == nil {
			op = got
		}
		if err != nil && !provider.Survivable(err) {
			return false, err
		}
		c.emit(event.Progress{Phase: "reset", Total: 1, Waiting: id, Detail: "its VMs reboot", Elapsed: c.now().Sub(start), Limit: resetLimit})
		return false, nil
	})
	if err == nil && op.Done {
		_, err = c.gcp.WaitTPU(ctx, op, what)
	}
	return err
}
