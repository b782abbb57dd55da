package qr

import (
	"context"
	"fmt"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// resetLimit is how long Reset waits for the VMs to be rebooted, which takes
// minutes.
const resetLimit = 15 * time.Minute

// Reset reboots the VMs of all slices of an ACTIVE queued resource and returns
// when the API says that it has, or after 15 minutes. What became of them is
// for Wait to see. Their disks and addresses stay; settings of the kernel and
// every process are gone.
func (c *Client) Reset(ctx context.Context, id string) error {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("reset queued resource %q", id)
	start := c.now()
	c.emit(event.Phase{Name: "reset", State: event.Started, Detail: id})
	err = c.reset(ctx, svc, id, what)
	if err != nil {
		c.emit(event.Phase{Name: "reset", State: event.Failed, Elapsed: c.now().Sub(start)})
		return err
	}
	c.emit(event.Phase{Name: "reset", State: event.Done, Detail: "the VMs of " + id + " were rebooted", Elapsed: c.now().Sub(start)})
	return nil
}

func (c *Client) reset(ctx context.Context, svc *tpuapi.Service, id, what string) error {
	var op *tpuapi.Operation
	err := c.gcp.Do(ctx, what, func(ctx context.Context) (err error) {
		op, err = svc.Projects.Locations.QueuedResources.Reset(c.qrName(id), &tpuapi.ResetQueuedResourceRequest{}).Context(ctx).Do()
		return err
	})
	if err != nil {
		return err
	}
	start := c.now()
	err = gcp.Poll(ctx, c.gcp.Clock(), gcp.Backoff{}, func(ctx context.Context) (bool, error) {
		if op.Done || c.now().Sub(start) > resetLimit {
			return true, nil
		}
		err := c.gcp.Do(ctx, what, func(ctx context.Context) error {
			got, err := svc.Projects.Locations.Operations.Get(op.Name).Context(ctx).Do()
			if err == nil {
				op = got
			}
			return err
		})
		if err != nil && !survivable(err) {
			return false, err
		}
		return false, nil
	})
	if err == nil && op.Done {
		_, err = c.gcp.WaitTPU(ctx, op, what)
	}
	return err
}
