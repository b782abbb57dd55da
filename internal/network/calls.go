package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/gcp/computeop"
	"multihost/internal/provision"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/google/uuid"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
	"google.golang.org/protobuf/proto"
)

const (
	// operationLimit limits one change. Creating an auto mode network takes about 40 s,
	// deleting it about 30 s.
	operationLimit = 10 * time.Minute
	// notReadyLimit is how long a change is retried while the network is not ready yet.
	notReadyLimit = 2 * time.Minute
)

// sender sends a request that starts an operation. Repeating it with the same requestID is
// safe.
type sender func(ctx context.Context, requestID string) (*computepb.Operation, error)

// calls makes the calls of the APIs. A call that changes something returns when its operation has
// ended.
type calls struct {
	gcp    *gcp.Client
	lifeOf func(state string) provision.Life // translates the state of a queued resource

	once sync.Once
	api  *api
	err  error
}

// api holds the Compute clients that this package needs.
type api struct {
	instances  *compute.InstancesClient
	groups     *compute.InstanceGroupManagersClient
	templates  *compute.InstanceTemplatesClient
	networks   *compute.NetworksClient
	firewalls  *compute.FirewallsClient
	operations *compute.GlobalOperationsClient
}

func (c *calls) clients(ctx context.Context) (*api, error) {
	c.once.Do(func() { c.api, c.err = newAPI(context.WithoutCancel(ctx), c.gcp) })
	return c.api, c.err
}

func newAPI(ctx context.Context, g *gcp.Client) (*api, error) {
	opts, err := g.ComputeOptions(ctx)
	if err != nil {
		return nil, err
	}
	var a api
	var errs [6]error
	a.instances, errs[0] = compute.NewInstancesRESTClient(ctx, opts...)
	a.groups, errs[1] = compute.NewInstanceGroupManagersRESTClient(ctx, opts...)
	a.templates, errs[2] = compute.NewInstanceTemplatesRESTClient(ctx, opts...)
	a.networks, errs[3] = compute.NewNetworksRESTClient(ctx, opts...)
	a.firewalls, errs[4] = compute.NewFirewallsRESTClient(ctx, opts...)
	a.operations, errs[5] = compute.NewGlobalOperationsRESTClient(ctx, opts...)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make Compute client: %w", err)
	}
	return &a, nil
}

// getNetwork returns the network called name, or nil if there is none.
func (c *calls) getNetwork(ctx context.Context, name string) (*computepb.Network, error) {
	api, err := c.clients(ctx)
	if err != nil {
		return nil, err
	}
	var n *computepb.Network
	err = c.gcp.Do(ctx, fmt.Sprintf("show network %q", name), func(ctx context.Context) error {
		n, err = api.networks.Get(ctx, &computepb.GetNetworkRequest{Project: c.gcp.Project(), Network: name}, gcp.NoRetry())
		return err
	})
	if gcp.ClassOf(err) == gcp.NotFound && !missingProject(err) {
		return nil, nil
	}
	return n, err
}

func (c *calls) listNetworks(ctx context.Context) (all []*computepb.Network, err error) {
	api, err := c.clients(ctx)
	if err != nil {
		return nil, err
	}
	err = c.gcp.Do(ctx, "list networks", func(ctx context.Context) error {
		all = nil
		for n, err := range api.networks.List(ctx, &computepb.ListNetworksRequest{Project: c.gcp.Project()}, gcp.NoRetry()).All() {
			if err != nil {
				return err
			}
			all = append(all, n)
		}
		return nil
	})
	return all, err
}

func (c *calls) insertNetwork(ctx context.Context, name string, n *computepb.Network) error {
	api, err := c.clients(ctx)
	if err != nil {
		return err
	}
	return c.change(ctx, fmt.Sprintf("create network %q", name), name, func(ctx context.Context, id string) (*computepb.Operation, error) {
		op, err := api.networks.Insert(ctx, &computepb.InsertNetworkRequest{
			Project: c.gcp.Project(), RequestId: proto.String(id), NetworkResource: n,
		})
		if err != nil {
			return nil, err
		}
		return op.Proto(), nil
	})
}

func (c *calls) setMTU(ctx context.Context, name string, mtu int) error {
	api, err := c.clients(ctx)
	if err != nil {
		return err
	}
	return c.change(ctx, fmt.Sprintf("change the MTU of network %q", name), name, func(ctx context.Context, id string) (*computepb.Operation, error) {
		op, err := api.networks.Patch(ctx, &computepb.PatchNetworkRequest{
			Project: c.gcp.Project(), Network: name, RequestId: proto.String(id), NetworkResource: &computepb.Network{Mtu: proto.Int32(int32(mtu))},
		})
		if err != nil {
			return nil, err
		}
		return op.Proto(), nil
	})
}

func (c *calls) deleteNetwork(ctx context.Context, name string) error {
	api, err := c.clients(ctx)
	if err != nil {
		return err
	}
	return c.change(ctx, fmt.Sprintf("delete network %q", name), name, func(ctx context.Context, id string) (*computepb.Operation, error) {
		op, err := api.networks.Delete(ctx, &computepb.DeleteNetworkRequest{
			Project: c.gcp.Project(), Network: name, RequestId: proto.String(id),
		})
		if err != nil {
			return nil, err
		}
		return op.Proto(), nil
	})
}

// getFirewall returns the rule called name, or nil if there is none.
func (c *calls) getFirewall(ctx context.Context, name string) (*computepb.Firewall, error) {
	api, err := c.clients(ctx)
	if err != nil {
		return nil, err
	}
	var fw *computepb.Firewall
	err = c.gcp.Do(ctx, fmt.Sprintf("show firewall rule %q", name), func(ctx context.Context) error {
		fw, err = api.firewalls.Get(ctx, &computepb.GetFirewallRequest{Project: c.gcp.Project(), Firewall: name}, gcp.NoRetry())
		return err
	})
	if gcp.ClassOf(err) == gcp.NotFound && !missingProject(err) {
		return nil, nil
	}
	return fw, err
}

// listFirewalls returns all rules of the project.
func (c *calls) listFirewalls(ctx context.Context) ([]*computepb.Firewall, error) {
	api, err := c.clients(ctx)
	if err != nil {
		return nil, err
	}
	var all []*computepb.Firewall
	err = c.gcp.Do(ctx, "list firewall rules", func(ctx context.Context) error {
		all = nil
		for fw, err := range api.firewalls.List(ctx, &computepb.ListFirewallsRequest{Project: c.gcp.Project()}, gcp.NoRetry()).All() {
			if err != nil {
				return err
			}
			all = append(all, fw)
		}
		return nil
	})
	return all, err
}

func (c *calls) insertFirewall(ctx context.Context, fw *computepb.Firewall) error {
	api, err := c.clients(ctx)
	if err != nil {
		return err
	}
	return c.change(ctx, fmt.Sprintf("create firewall rule %q", fw.GetName()), fw.GetName(), func(ctx context.Context, id string) (*computepb.Operation, error) {
		op, err := api.firewalls.Insert(ctx, &computepb.InsertFirewallRequest{
			Project: c.gcp.Project(), RequestId: proto.String(id), FirewallResource: fw,
		})
		if err != nil {
			return nil, err
		}
		return op.Proto(), nil
	})
}

// deleteFirewall deletes a rule and reports whether it existed.
func (c *calls) deleteFirewall(ctx context.Context, name string) (bool, error) {
	api, err := c.clients(ctx)
	if err != nil {
		return false, err
	}
	err = c.change(ctx, fmt.Sprintf("delete firewall rule %q", name), name, func(ctx context.Context, id string) (*computepb.Operation, error) {
		op, err := api.firewalls.Delete(ctx, &computepb.DeleteFirewallRequest{
			Project: c.gcp.Project(), Firewall: name, RequestId: proto.String(id),
		})
		if err != nil {
			return nil, err
		}
		return op.Proto(), nil
	})
	if gcp.ClassOf(err) == gcp.NotFound {
		return false, nil
	}
	return err == nil, err
}

// tpuUsers returns the TPU nodes of all zones on the network, and the queued resources that will
// make nodes on it.
func (c *calls) tpuUsers(ctx context.Context, name string) ([]string, error) {
	svc, err := c.gcp.TPU(ctx)
	if err != nil {
		return nil, err
	}
	parent := fmt.Sprintf("projects/%s/locations/-", c.gcp.Project())
	var users []string
	err = c.gcp.Do(ctx, "list TPU nodes", func(ctx context.Context) error {
		users = nil
		return svc.Projects.Locations.Nodes.List(parent).Pages(ctx, func(page *tpuapi.ListNodesResponse) error {
			for _, n := range page.Nodes {
				if usesNetwork(n, name) {
					users = append(users, userOf("TPU node", n.Name))
				}
			}
			return nil
		})
	})
	if err == nil {
		err = c.gcp.Do(ctx, "list queued resources", func(ctx context.Context) error {
			return svc.Projects.Locations.QueuedResources.List(parent).Pages(ctx, func(page *tpuapi.ListQueuedResourcesResponse) error {
				for _, q := range page.QueuedResources {
					if q.State != nil && waitsForNetwork(q, c.lifeOf(q.State.State), name) {
						users = append(users, userOf("queued resource", q.Name))
					}
				}
				return nil
			})
		})
	}
	switch gcp.ClassOf(err) {
	case gcp.Permission, gcp.NotFound, gcp.Invalid:
		// A project without the TPU API, or a login without rights on it, may still manage
		// networks. The Compute API refuses to delete a network in use.
		event.Notef(c.gcp.Sink(), event.Debug, "", "cannot tell whether TPUs use network %q: %v", name, err)
		return users, nil
	}
	return users, err
}

// change sends a request and waits until its operation ends. If either fails because the network
// is not ready yet, change sends the request again. It uses a new request id, because the old id
// belongs to the failed operation.
func (c *calls) change(ctx context.Context, what, name string, send sender) error {
	clock := c.gcp.Clock()
	start := clock.Now()
	return gcp.Poll(ctx, clock, gcp.Backoff{First: time.Second, Max: 10 * time.Second, Factor: 2}, func(ctx context.Context) (bool, error) {
		var op *computepb.Operation
		id := uuid.NewString()
		err := c.gcp.Do(ctx, what, func(ctx context.Context) (err error) {
			op, err = send(ctx, id)
			return err
		})
		if err == nil {
			err = c.wait(ctx, op, what, name, start)
		}
		if notReady(err) && clock.Now().Sub(start) < notReadyLimit {
			return false, nil
		}
		return true, err
	})
}

// wait polls a global operation until it is done. It does not use the client library's Wait,
// which returns nil for a failed operation without httpErrorStatusCode and always pauses for one
// second first.
func (c *calls) wait(ctx context.Context, op *computepb.Operation, what, name string, start time.Time) error {
	api, err := c.clients(ctx)
	if err != nil {
		return err
	}
	asked := false
	err = gcp.Poll(ctx, c.gcp.Clock(), gcp.Backoff{}, func(ctx context.Context) (bool, error) {
		if !asked {
			asked = true
			return op.GetStatus() == computepb.Operation_DONE, nil
		}
		err := c.gcp.Do(ctx, what, func(ctx context.Context) error {
			got, err := api.operations.Get(ctx, &computepb.GetGlobalOperationRequest{
				Project: c.gcp.Project(), Operation: op.GetName(),
			}, gcp.NoRetry())
			if err == nil {
				op = got
			}
			return err
		})
		if err != nil {
			return false, err
		}
		if op.GetStatus() == computepb.Operation_DONE {
			return true, nil
		}
		elapsed := c.gcp.Clock().Now().Sub(start)
		if elapsed > operationLimit {
			return false, &SlowOperationError{What: what, Operation: op.GetName(), Limit: operationLimit, project: c.gcp.Project()}
		}
		c.gcp.Sink().Emit(event.Progress{
			Phase: phase, Done: int(op.GetProgress()), Total: 100, Waiting: name,
			Detail: what, Elapsed: elapsed, Limit: operationLimit,
		})
		return false, nil
	})
	if err != nil {
		return err
	}
	if e := computeop.OperationError(op); e != nil {
		return fmt.Errorf("%s: %w", what, e)
	}
	return nil
}
