// Package api makes single calls of Compute Engine for slices: their groups, templates and
// workload policies, and their VMs. It knows requests and answers, and decides nothing.
//
// A change returns when its operation has ended, except for the deletion of a group. Every
// change has a request id, which stays the same in a retry. So a retry after a lost answer
// changes nothing twice.
package api

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/google/uuid"
	"google.golang.org/api/option"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/gcp/computeop"
)

// operationLimit limits one change. The operation of a group ends when Compute Engine
// accepts the request. Other operations take seconds.
const operationLimit = 10 * time.Minute

// sayEvery is how often the user is told of a change that takes long. A request for slices
// makes several changes, one after the other.
const sayEvery = 30 * time.Second

// A Client makes calls for one project and zone, and its region. It is safe for concurrent
// use.
type Client struct {
	gcp *gcp.Client

	once sync.Once
	of   clients
	err  error
}

// New returns a Client that makes its calls through c. It does no I/O.
func New(c *gcp.Client) *Client { return &Client{gcp: c} }

// clients are Google's clients, one for each kind of resource.
type clients struct {
	policies  *compute.ResourcePoliciesClient
	templates *compute.RegionInstanceTemplatesClient
	groups    *compute.InstanceGroupManagersClient
	instances *compute.InstancesClient
	images    *compute.ImagesClient
	machines  *compute.MachineTypesClient
	zonal     *compute.ZoneOperationsClient
	regional  *compute.RegionOperationsClient
}

func (c *Client) clients(ctx context.Context) (clients, error) {
	c.once.Do(func() {
		var opts []option.ClientOption
		if opts, c.err = c.gcp.ComputeOptions(ctx); c.err != nil {
			return
		}
		ctx := context.WithoutCancel(ctx) // the clients live as long as c
		var errs [8]error
		c.of.policies, errs[0] = compute.NewResourcePoliciesRESTClient(ctx, opts...)
		c.of.templates, errs[1] = compute.NewRegionInstanceTemplatesRESTClient(ctx, opts...)
		c.of.groups, errs[2] = compute.NewInstanceGroupManagersRESTClient(ctx, opts...)
		c.of.instances, errs[3] = compute.NewInstancesRESTClient(ctx, opts...)
		c.of.images, errs[4] = compute.NewImagesRESTClient(ctx, opts...)
		c.of.machines, errs[5] = compute.NewMachineTypesRESTClient(ctx, opts...)
		c.of.zonal, errs[6] = compute.NewZoneOperationsRESTClient(ctx, opts...)
		c.of.regional, errs[7] = compute.NewRegionOperationsRESTClient(ctx, opts...)
		if err := errors.Join(errs[:]...); err != nil {
			c.err = fmt.Errorf("make Compute client: %w", err)
		}
	})
	return c.of, c.err
}

func (c *Client) project() string { return c.gcp.Project() }
func (c *Client) zone() string    { return c.gcp.Zone() }
func (c *Client) region() string  { return gcp.Region(c.zone()) }

// get makes one call that reads.
func get[T any](ctx context.Context, c *Client, what string, call func(context.Context, clients) (T, error)) (answer T, err error) {
	of, err := c.clients(ctx)
	if err != nil {
		return answer, err
	}
	err = c.gcp.Do(ctx, what, func(ctx context.Context) error {
		answer, err = call(ctx, of)
		return err
	})
	return answer, err
}

// list reads all pages.
func list[T any, I interface{ All() iter.Seq2[T, error] }](ctx context.Context, c *Client, what string, call func(context.Context, clients) I) ([]T, error) {
	return get(ctx, c, what, func(ctx context.Context, of clients) (all []T, err error) {
		for item, err := range call(ctx, of).All() {
			if err != nil {
				return nil, err
			}
			all = append(all, item)
		}
		return all, nil
	})
}

type sender func(ctx context.Context, of clients, request *string) (*compute.Operation, error)

// send makes one call that changes something.
func (c *Client) send(ctx context.Context, what string, call sender) (*computepb.Operation, error) {
	request := uuid.NewString()
	return get(ctx, c, what, func(ctx context.Context, of clients) (*computepb.Operation, error) {
		op, err := call(ctx, of, &request)
		if err != nil {
			return nil, err
		}
		return op.Proto(), nil
	})
}

// change calls send, and then waits until the change has been made.
func (c *Client) change(ctx context.Context, what string, call sender) error {
	op, err := c.send(ctx, what, call)
	if err != nil {
		return err
	}
	start, asked := c.gcp.Clock().Now(), false
	said := start
	err = gcp.Poll(ctx, c.gcp.Clock(), gcp.Backoff{}, func(ctx context.Context) (bool, error) {
		if asked {
			if op, err = c.operation(ctx, what, op); err != nil {
				return false, err
			}
		}
		asked = true
		if op.GetStatus() != computepb.Operation_DONE && c.gcp.Clock().Now().Sub(start) > operationLimit {
			return false, &SlowError{What: what, Operation: op.GetName(), Limit: operationLimit}
		}
		if now := c.gcp.Clock().Now(); now.Sub(said) >= sayEvery {
			said = now
			event.Notef(c.gcp.Sink(), event.Info, "", "%s: Compute Engine has not done it after %s", what, event.Age(now.Sub(start)))
		}
		return op.GetStatus() == computepb.Operation_DONE, nil
	})
	if err != nil {
		return err
	}
	if e := computeop.OperationError(op); e != nil {
		return fmt.Errorf("%s: %w", what, e)
	}
	return nil
}

// operation reads an operation of a zone or of a region again.
func (c *Client) operation(ctx context.Context, what string, op *computepb.Operation) (*computepb.Operation, error) {
	return get(ctx, c, what, func(ctx context.Context, of clients) (*computepb.Operation, error) {
		if op.GetZone() != "" {
			return of.zonal.Get(ctx, &computepb.GetZoneOperationRequest{Project: c.project(), Zone: c.zone(), Operation: op.GetName()}, gcp.NoRetry())
		}
		return of.regional.Get(ctx, &computepb.GetRegionOperationRequest{Project: c.project(), Region: c.region(), Operation: op.GetName()}, gcp.NoRetry())
	})
}
