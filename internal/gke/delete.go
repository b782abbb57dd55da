package gke

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/event"
	"multihost/internal/gcp"
)

// A Deletion says what Delete removes.
type Deletion struct {
	Cluster string   `json:"cluster"`
	Exists  bool     `json:"exists"`
	Pools   []string `json:"node_pools"`
	Pods    []string `json:"workloads"` // pods that the deletion ends
	Cost    Cost     `json:"cost"`      // of the deleted parts
}

// Text says what would be deleted.
func (d Deletion) Text() string {
	if !d.Exists {
		return "cluster " + d.Cluster + " is not there: nothing to delete\n"
	}
	text := "would delete cluster " + d.Cluster + " with its node pools " + strings.Join(d.Pools, ", ")
	if len(d.Pods) > 0 {
		text += ", and end the workloads " + listed(d.Pods)
	}
	return text + "\n" + d.Cost.String()
}

// Delete deletes a cluster with all its node pools, and waits until it is gone. If the cluster
// does not exist, Delete returns no error. If multihost did not make the cluster, Delete changes
// nothing and returns a *NotOursError. If workloads run on its slices or may run there, Delete
// changes nothing and returns a *BusyError. With force, it ignores workloads.
func (c *Client) Delete(ctx context.Context, name string, force bool) (Deletion, error) {
	d, err := c.PlanDelete(ctx, name, force)
	if err != nil {
		return d, err
	}
	if !d.Exists {
		event.Notef(c.gcp.Sink(), event.Info, "", "cluster %q does not exist: nothing to delete", name)
		return d, nil
	}
	start := c.gcp.Clock().Now()
	c.gcp.Sink().Emit(event.Phase{Name: phase, State: event.Started, Detail: "delete " + name})
	err = c.delete(ctx, name)
	end := event.Phase{Name: phase, State: event.Done, Detail: "deleted " + name, Elapsed: c.gcp.Clock().Now().Sub(start)}
	if err != nil {
		end.State, end.Detail = event.Failed, "delete "+name
		event.Notef(c.gcp.Sink(), event.Warn, "go on: multihost cluster delete "+name, "cluster %s may still exist and be billed", name)
	}
	c.gcp.Sink().Emit(end)
	return d, err
}

// PlanDelete returns what Delete would delete, or the error that Delete would return before its
// first change. PlanDelete only reads.
func (c *Client) PlanDelete(ctx context.Context, name string, force bool) (Deletion, error) {
	d := Deletion{Cluster: name, Pools: []string{}, Pods: []string{}}
	if err := CheckName(name); err != nil {
		return d, err
	}
	k, err := c.cluster(ctx, name)
	if err != nil || k == nil {
		return d, err
	}
	if !isOurs(k.ResourceLabels) {
		return d, &NotOursError{Cluster: name, project: c.gcp.Project(), region: c.region()}
	}
	d.Exists = true
	pools := poolsOf(k)
	for _, p := range pools {
		d.Pools = append(d.Pools, p.Name)
	}
	d.Cost = costs(pools)
	if k.Status == stateStopping || k.Status == stateProvisioning || !slices.ContainsFunc(pools, func(p Pool) bool { return p.Type != "" }) {
		return d, nil // no TPU workload can run there
	}
	pods, err := c.podsOf(ctx, k)
	for _, p := range pods {
		d.Pods = append(d.Pods, p.String())
	}
	switch {
	case errors.Is(err, context.Canceled):
		return d, context.Cause(ctx)
	case force:
	case err != nil:
		return d, &BusyError{Cluster: name, Verb: "delete", Err: err}
	case len(pods) > 0:
		return d, &BusyError{Cluster: name, Verb: "delete", Pods: d.Pods}
	}
	return d, nil
}

func (c *Client) delete(ctx context.Context, name string) error {
	operation, err := c.change(ctx, fmt.Sprintf("delete cluster %q", name), gcp.NotFound, clusterLimit, func(ctx context.Context, svc *container.Service) (*container.Operation, error) {
		return svc.Projects.Locations.Clusters.Delete(c.path(name)).Context(ctx).Do()
	})
	if err != nil {
		return err
	}
	return c.awaitGone(ctx, name, operation)
}

// awaitGone waits until a cluster is gone. operation is the deletion's, or "" if somebody
// else deletes the cluster.
func (c *Client) awaitGone(ctx context.Context, name, operation string) error {
	what := fmt.Sprintf("delete cluster %q", name)
	return c.poll(ctx, what, clusterLimit, func(ctx context.Context) (waits, bool, error) {
		k, err := c.cluster(ctx, name)
		if err != nil || k == nil {
			return waits{}, true, err
		}
		if operation != "" {
			if done, err := c.failed(ctx, what, operation); done && err != nil {
				return waits{}, true, err
			} else if err != nil {
				return waits{}, false, err
			}
		}
		return waits{total: 1, names: []string{name}, state: k.Status}, false, nil
	})
}
