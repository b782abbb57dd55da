package gke

import (
	"context"
	"fmt"
	"strings"

	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/event"
	"multihost/internal/gke/controllers"
	"multihost/internal/tpu"
)

// slicesOf returns the slices of o for the queue.
func slicesOf(o Options) controllers.Slices {
	s := controllers.Slices{Cluster: o.Name, Type: o.Type, Count: o.Slices, Tier: o.Tier, Reservation: o.Reservation}
	if o.Slices > 0 {
		s.Nodes, _ = tpu.NodesOf(o.Type) // o is valid
	}
	return s
}

// planInside decides what to make in the cluster: JobSet, Kueue, and the queue of the slices. If
// the cluster does not run yet, all of them are missing.
func (c *Client) planInside(ctx context.Context, o Options, w world) (steps []Step, err error) {
	queue := Step{Verb: Create, Resource: kindQueue, Name: controllers.LocalQueue, slices: slicesOf(o), Reason: "for all slices, with the priorities of workloads"}
	if w.cluster == nil || w.cluster.Status == stateStopping || w.cluster.Status == stateProvisioning {
		for _, k := range controllers.All() {
			steps = append(steps, Step{Verb: Create, Resource: kindController, Name: k.Name, Reason: k.Version})
		}
		return append(steps, queue), nil
	}
	in, leave, err := c.inside(w.cluster)
	if err != nil {
		return nil, err
	}
	defer leave()
	ready := true
	for _, k := range controllers.All() {
		s := Step{Resource: kindController, Name: k.Name}
		have, err := in.Look(ctx, k)
		if err != nil {
			return nil, fmt.Errorf("look into cluster %q: %w", o.Name, err)
		}
		verdict, why := k.Judge(have)
		s.Verb, s.Reason = Verb(verdict), why
		if verdict == controllers.Refuse {
			s.conflict = &controllers.UnusableError{Name: k.Name, Why: why}
		}
		ready = ready && have.Served
		steps = append(steps, s)
	}
	if !ready {
		return append(steps, queue), nil
	}
	queue.Verb, queue.Reason, err = judgeQueue(ctx, in, queue.slices)
	return append(steps, queue), err
}

// inside returns an installer for a cluster. The caller calls leave at the end.
func (c *Client) inside(k *container.Cluster) (in controllers.Installer, leave func(), err error) {
	at, err := endpointOf(k)
	if err != nil {
		return in, nil, err
	}
	client, err := dial(c.gcp, at, readLimit)
	if err != nil {
		return in, nil, err
	}
	return controllers.Installer{Client: client, Sink: c.gcp.Sink(), Clock: c.gcp.Clock()}, client.Close, nil
}

// judgeQueue says what to do about the objects of the queue.
func judgeQueue(ctx context.Context, in controllers.Installer, s controllers.Slices) (Verb, string, error) {
	version, err := in.KueueVersion(ctx)
	if err != nil {
		return "", "", err
	}
	verb, reason := Keep, "exists"
	var foreign []string
	for _, o := range s.Objects(version) {
		d, err := in.Compare(ctx, o)
		switch {
		case err != nil:
			return "", "", err
		case d == controllers.Missing && verb == Keep:
			verb, reason = Create, o.GetKind()+" "+o.GetName()+" is missing"
		case d == controllers.Changed:
			verb, reason = Change, o.GetKind()+" "+o.GetName()+" has other settings"
		case d == controllers.Foreign:
			foreign = append(foreign, o.GetKind()+" "+o.GetName())
		}
	}
	if len(foreign) > 0 {
		reason += "; somebody else has made " + strings.Join(foreign, ", ") + ", which stays as it is"
	}
	return verb, reason, nil
}

// makeInside carries out steps in a cluster, and waits until its controllers answer.
func (c *Client) makeInside(ctx context.Context, cluster string, steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	k, err := c.cluster(ctx, cluster)
	if err != nil {
		return err
	}
	if k == nil {
		return c.missing(cluster)
	}
	in, leave, err := c.inside(k)
	if err != nil {
		return err
	}
	defer leave()
	for _, s := range steps {
		if s.Resource == kindQueue {
			err = c.makeQueue(ctx, in, s.slices)
		} else {
			err = c.makeController(ctx, in, s.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makeController installs a controller, unless somebody has installed it since the plan.
func (c *Client) makeController(ctx context.Context, in controllers.Installer, name string) error {
	for _, k := range controllers.All() {
		if k.Name != name {
			continue
		}
		have, err := in.Look(ctx, k)
		if err != nil {
			return err
		}
		verdict, why := k.Judge(have)
		switch verdict {
		case controllers.Refuse:
			return &controllers.UnusableError{Name: k.Name, Why: why}
		case controllers.Keep:
			event.Notef(c.gcp.Sink(), event.Info, "", "%s of the cluster: %s", k.Name, why)
			return nil
		case controllers.Install, controllers.Upgrade:
			if err := in.Apply(ctx, k); err != nil {
				return err
			}
		}
		if err := in.Await(ctx, k); err != nil {
			return err
		}
		c.tellState(kindController, k.Name+" "+k.Version, "READY")
	}
	return nil
}

// makeQueue makes the missing objects of the queue, and updates those that multihost has made.
func (c *Client) makeQueue(ctx context.Context, in controllers.Installer, s controllers.Slices) error {
	version, err := in.KueueVersion(ctx)
	if err != nil {
		return err
	}
	for _, o := range s.Objects(version) {
		d, err := in.Compare(ctx, o)
		if err == nil && (d == controllers.Missing || d == controllers.Changed) {
			err = in.ApplyObject(ctx, o)
		}
		if err != nil {
			return fmt.Errorf("make %s %q of the queue: %w", o.GetKind(), o.GetName(), err)
		}
		if d == controllers.Foreign {
			event.Notef(c.gcp.Sink(), event.Warn, "", "%s %s is not as wanted, and stays as it is: somebody else has made it", o.GetKind(), o.GetName())
		}
	}
	c.tellState(kindQueue, controllers.LocalQueue, "READY")
	return nil
}
