package gke

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/event"
	"multihost/internal/gcp"
)

// phase is this package's phase in events.
const phase = "cluster"

const (
	// senders limits concurrent requests for node pools.
	senders = 8
	// lastLook limits how long Apply reads what exists after a failure or an interrupt.
	lastLook = 10 * time.Second
)

// Apply carries out a plan: the workload policy, then the cluster, then all node pools at the
// same time, then JobSet, Kueue and the queue. It waits until each exists. If plan has a
// conflict, Apply changes nothing and returns plan.Err(). If Apply fails half-way or is
// interrupted, the parts that it has made stay. Apply then says what is billed. A new Plan
// continues from there. If a node pool gets no machines, the error is a *FailedError, and the
// other node pools stay.
func (c *Client) Apply(ctx context.Context, plan Plan) error {
	if err := plan.Err(); err != nil {
		return err
	}
	if plan.Done() {
		event.Notef(c.gcp.Sink(), event.Info, "", "nothing to change: cluster %s is as wanted", plan.Cluster)
		return nil
	}
	start := c.gcp.Clock().Now()
	c.gcp.Sink().Emit(event.Phase{Name: phase, State: event.Started, Detail: plan.Cluster})
	err := c.apply(ctx, plan)
	end := event.Phase{Name: phase, State: event.Done, Detail: plan.Cluster, Elapsed: c.gcp.Clock().Now().Sub(start)}
	if err != nil {
		end.State = event.Failed
		c.tellBilled(ctx, plan.Cluster)
	}
	c.gcp.Sink().Emit(end)
	return err
}

func (c *Client) apply(ctx context.Context, plan Plan) error {
	var pools, inside []Step
	for _, s := range plan.Steps {
		var err error
		switch {
		case s.Resource == kindPolicy && s.Verb == Create:
			if err = c.compute.InsertPolicy(ctx, s.policy); gcp.ClassOf(err) == gcp.AlreadyExists {
				err = nil
			}
		case s.Resource == kindCluster && s.Verb != Keep:
			err = c.makeCluster(ctx, s)
		case s.Resource == kindPool && s.Verb != Keep:
			pools = append(pools, s)
		case (s.Resource == kindController || s.Resource == kindQueue) && s.Verb != Keep:
			inside = append(inside, s)
		}
		if err != nil {
			return err
		}
	}
	if err := c.changePools(ctx, plan.Cluster, pools); err != nil {
		return err
	}
	return c.makeInside(ctx, plan.Cluster, inside)
}

// makeCluster makes a cluster, unless another command is making it, and waits until the cluster
// runs.
func (c *Client) makeCluster(ctx context.Context, s Step) error {
	what := fmt.Sprintf("create cluster %q", s.Name)
	if s.leaving {
		if err := c.awaitGone(ctx, s.Name, ""); err != nil {
			return err
		}
	}
	operation := ""
	if s.Verb == Create {
		var err error
		operation, err = c.change(ctx, what, gcp.AlreadyExists, clusterLimit, func(ctx context.Context, svc *container.Service) (*container.Operation, error) {
			return svc.Projects.Locations.Clusters.Create(c.parent(), &container.CreateClusterRequest{Parent: c.parent(), Cluster: s.cluster}).Context(ctx).Do()
		})
		if err != nil {
			return err
		}
	}
	return c.poll(ctx, what, clusterLimit, func(ctx context.Context) (waits, bool, error) {
		k, err := c.cluster(ctx, s.Name)
		switch {
		case err != nil:
			return waits{}, false, err
		case k != nil && k.Status == stateError:
			return waits{}, true, &FailedError{Cluster: s.Name, Reason: clusterReason(k)}
		case k != nil && k.Status != stateProvisioning:
			c.tellState(kindCluster, s.Name, k.Status)
			return waits{}, true, nil
		case k == nil && operation == "":
			return waits{}, true, c.missing(s.Name)
		case k == nil:
			done, err := c.failed(ctx, what, operation)
			if done && err == nil {
				err = c.missing(s.Name)
			}
			return waits{total: 1, names: []string{s.Name}, state: stateProvisioning}, done, err
		}
		return waits{total: 1, names: []string{s.Name}, state: k.Status}, false, nil
	})
}

func (c *calls) tellState(resource, name, state string) {
	c.gcp.Sink().Emit(event.State{Resource: resource, Name: name, State: state})
}

// changePools deletes node pools that must not stay as they are, then makes the missing
// ones.
func (c *Client) changePools(ctx context.Context, cluster string, steps []Step) error {
	var gone, made []Step
	for _, s := range steps {
		if s.Verb == Delete || s.Verb == Remake || s.Verb == Wait && s.pool == nil {
			gone = append(gone, s)
		}
		if s.pool != nil {
			made = append(made, s)
		}
	}
	if err := c.deletePools(ctx, cluster, gone); err != nil {
		return err
	}
	return c.makePools(ctx, cluster, made)
}

// each sends one request for each step. It returns the names of the operations, by node
// pool.
func (c *calls) each(ctx context.Context, steps []Step, send func(context.Context, Step) (string, error)) (map[string]string, error) {
	operations := map[string]string{}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(senders)
	for _, s := range steps {
		group.Go(func() error {
			operation, err := send(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			operations[s.Name] = operation
			return err
		})
	}
	return operations, group.Wait()
}

func (c *Client) deletePools(ctx context.Context, cluster string, steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	_, err := c.each(ctx, steps, func(ctx context.Context, s Step) (string, error) {
		if s.Verb == Wait {
			return "", nil
		}
		return c.change(ctx, fmt.Sprintf("delete node pool %q", s.Name), gcp.NotFound, poolLimit, func(ctx context.Context, svc *container.Service) (*container.Operation, error) {
			return svc.Projects.Locations.Clusters.NodePools.Delete(c.path(cluster) + "/nodePools/" + s.Name).Context(ctx).Do()
		})
	})
	if err != nil {
		return err
	}
	return c.poll(ctx, fmt.Sprintf("delete node pools of cluster %q", cluster), poolLimit, func(ctx context.Context) (waits, bool, error) {
		k, err := c.cluster(ctx, cluster)
		if err != nil || k == nil {
			return waits{}, true, err
		}
		w := waits{total: len(steps), state: stateStopping}
		for _, s := range steps {
			if poolIn(k, s.Name) != nil {
				w.names = append(w.names, s.Name)
			}
		}
		return w, len(w.names) == 0, nil
	})
}

func poolIn(k *container.Cluster, name string) *container.NodePool {
	i := slices.IndexFunc(k.NodePools, func(p *container.NodePool) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return k.NodePools[i]
}

// makePools makes node pools that nobody is making yet. It waits until each pool runs or has
// failed.
func (c *Client) makePools(ctx context.Context, cluster string, steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	operations, err := c.each(ctx, steps, func(ctx context.Context, s Step) (string, error) {
		if s.Verb == Wait {
			return "", nil
		}
		return c.change(ctx, fmt.Sprintf("create node pool %q", s.Name), gcp.AlreadyExists, poolLimit, func(ctx context.Context, svc *container.Service) (*container.Operation, error) {
			return svc.Projects.Locations.Clusters.NodePools.Create(c.path(cluster), &container.CreateNodePoolRequest{Parent: c.path(cluster), NodePool: s.pool}).Context(ctx).Do()
		})
	})
	if err != nil {
		return err
	}
	settled := map[string]string{} // why a pool failed; "" if it runs
	failed := &FailedError{Cluster: cluster}
	err = c.poll(ctx, fmt.Sprintf("create node pools of cluster %q", cluster), poolLimit, func(ctx context.Context) (waits, bool, error) {
		k, err := c.cluster(ctx, cluster)
		switch {
		case err != nil:
			return waits{}, false, err
		case k == nil:
			return waits{}, true, c.missing(cluster)
		}
		w := waits{total: len(steps), state: stateProvisioning}
		for _, s := range steps {
			if _, known := settled[s.Name]; known {
				continue
			}
			state, reason, err := c.stateOf(ctx, k, s.Name, operations[s.Name])
			switch {
			case err != nil:
				return w, false, err
			case state == stateProvisioning:
				w.names = append(w.names, s.Name)
				continue
			case state == stateError:
				failed.Pools, failed.Reason = append(failed.Pools, s.Name), reason
			}
			settled[s.Name] = reason
			c.tellState(kindPool, s.Name, state)
		}
		return w, len(w.names) == 0, nil
	})
	if err == nil && len(failed.Pools) > 0 {
		return failed
	}
	return err
}

// stateOf returns the state of a node pool after a request. Until GKE has decided, the state is
// PROVISIONING.
func (c *calls) stateOf(ctx context.Context, k *container.Cluster, name, operation string) (state, reason string, err error) {
	p := poolIn(k, name)
	if p != nil && p.Status != stateError {
		return p.Status, reasonOf(p), nil
	}
	if p != nil {
		reason = reasonOf(p)
	}
	if operation != "" && reason == "" {
		done, err := c.failed(ctx, fmt.Sprintf("create node pool %q", name), operation)
		switch {
		case err != nil && !done:
			return "", "", err
		case err != nil:
			reason = err.Error()
		case !done && p == nil:
			return stateProvisioning, "", nil
		}
	}
	if p == nil && reason == "" {
		reason = "somebody has deleted it"
	}
	return stateError, reason, nil
}

// waits describes what a poll waits for. total is the number of resources. names are those that
// are not ready yet, and state is their state.
type waits struct {
	total int
	names []string
	state string
}

// poll calls check until check returns true or an error. It emits progress events. After limit it
// returns a *SlowError.
func (c *calls) poll(ctx context.Context, what string, limit time.Duration, check func(context.Context) (waits, bool, error)) error {
	start := c.gcp.Clock().Now()
	return gcp.Poll(ctx, c.gcp.Clock(), gcp.Backoff{Max: 10 * time.Second}, func(ctx context.Context) (bool, error) {
		w, done, err := check(ctx)
		if done || err != nil {
			return done, err
		}
		elapsed := c.gcp.Clock().Now().Sub(start)
		if elapsed > limit {
			return false, &SlowError{What: what, State: w.state, Limit: limit}
		}
		c.gcp.Sink().Emit(event.Progress{
			Phase: phase, Done: w.total - len(w.names), Total: w.total, Waiting: listed(w.names), Detail: w.state, Elapsed: elapsed, Limit: limit,
		})
		return false, nil
	})
}

// tellBilled says what exists and costs money, after the creation of a cluster has failed
// or was interrupted.
func (c *Client) tellBilled(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(gcp.Unattended(context.WithoutCancel(ctx)), lastLook)
	defer cancel()
	k, err := c.cluster(ctx, name)
	hint := "continue: the same command again; delete it: multihost cluster delete " + name
	switch {
	case err != nil:
		event.Notef(c.gcp.Sink(), event.Warn, "look with: multihost cluster show "+name, "whether cluster %s exists, and is billed, is not known: %v", name, err)
	case k == nil:
		event.Notef(c.gcp.Sink(), event.Info, "", "cluster %s does not exist: nothing of it is billed", name)
	default:
		var has []string
		for _, p := range poolsOf(k) {
			has = append(has, p.Name+" ("+p.State+")")
		}
		event.Notef(c.gcp.Sink(), event.Warn, hint, "cluster %s exists (%s) and is billed, with %s", name, k.Status, strings.Join(has, ", "))
	}
}
