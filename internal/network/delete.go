package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provision"

	"cloud.google.com/go/compute/apiv1/computepb"
	tpuapi "google.golang.org/api/tpu/v2alpha1"
	"google.golang.org/protobuf/proto"
)

// A Deletion says what Delete removed.
type Deletion struct {
	Network   bool     `json:"network"` // false: there was no such network
	Firewalls []string `json:"firewalls"`
}

// Text says what would be deleted of the network called name.
func (d Deletion) Text(name string) string {
	switch {
	case !d.Network:
		return "network " + name + " is not there: nothing to delete\n"
	case len(d.Firewalls) == 0:
		return "would delete network " + name + "\n"
	}
	return "would delete network " + name + " with its firewall rules " + strings.Join(d.Firewalls, ", ") + "\n"
}

// Delete deletes the network called name and its firewall rules, the rules first. If the network
// does not exist, Delete returns no error. It changes nothing and returns an error in these
// cases: multihost did not create the network (*NotOursError) or one of its rules
// (*ForeignRulesError); TPUs or VMs use the network or are about to (*InUseError); Compute Engine
// refuses to list the VMs. Only the API knows other users of the network. If the API refuses
// because of them, Delete creates the deleted rules again and returns an *InUseError.
func (c *Client) Delete(ctx context.Context, name string) (Deletion, error) {
	d := Deletion{Firewalls: []string{}}
	rules, err := c.planDelete(ctx, name)
	if err != nil {
		return d, err
	}
	if rules == nil {
		c.sayAbsent("network", name)
		return d, nil
	}
	start := c.gcp.Clock().Now()
	c.gcp.Sink().Emit(event.Phase{Name: phase, State: event.Started, Detail: "delete " + name})
	err = c.delete(ctx, name, rules, &d)
	end := event.Phase{Name: phase, State: event.Done, Detail: "deleted " + name, Elapsed: c.gcp.Clock().Now().Sub(start)}
	if err != nil {
		end.State, end.Detail = event.Failed, "delete "+name
	}
	c.gcp.Sink().Emit(end)
	return d, err
}

// PlanDelete returns what Delete would delete, or the error that Delete would return before
// a change. It only reads.
func (c *Client) PlanDelete(ctx context.Context, name string) (Deletion, error) {
	d := Deletion{Firewalls: []string{}}
	rules, err := c.planDelete(ctx, name)
	if err != nil || rules == nil {
		return d, err
	}
	d.Network = true
	for _, fw := range rules {
		d.Firewalls = append(d.Firewalls, fw.GetName())
	}
	return d, nil
}

// sayAbsent reports that there is nothing to delete.
func (c *Client) sayAbsent(kind, name string) {
	event.Notef(c.gcp.Sink(), event.Info, "", "%s %q does not exist: nothing to delete", kind, name)
}

// planDelete returns the rules to delete before the network. The result is nil if there is no
// network, and empty if the network has no rules.
func (c *Client) planDelete(ctx context.Context, name string) ([]*computepb.Firewall, error) {
	if err := checkName("network", name, 63); err != nil {
		return nil, err
	}
	n, err := c.calls.getNetwork(ctx, name)
	if err != nil || n == nil {
		return nil, err
	}
	if !owned(n.GetDescription()) {
		return nil, &NotOursError{Resource: "network", Name: name, Description: n.GetDescription(), project: c.gcp.Project()}
	}
	all, err := c.calls.listFirewalls(ctx)
	if err != nil {
		return nil, err
	}
	rules, foreign := []*computepb.Firewall{}, []string(nil)
	for _, fw := range all {
		switch {
		case gcp.BaseName(fw.GetNetwork()) != name:
		case owned(fw.GetDescription()):
			rules = append(rules, fw)
		default:
			foreign = append(foreign, fw.GetName())
		}
	}
	if len(foreign) > 0 {
		slices.Sort(foreign)
		return nil, &ForeignRulesError{Network: name, Rules: foreign, project: c.gcp.Project()}
	}
	users, err := c.calls.users(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(users) > 0 {
		return nil, &InUseError{Network: name, Users: users}
	}
	return rules, nil
}

func (c *Client) delete(ctx context.Context, name string, rules []*computepb.Firewall, d *Deletion) error {
	var removed []*computepb.Firewall
	for _, fw := range rules {
		deleted, err := c.calls.deleteFirewall(ctx, fw.GetName())
		if err != nil {
			return err
		}
		if deleted {
			removed = append(removed, fw)
			d.Firewalls = append(d.Firewalls, fw.GetName())
		}
	}
	err := c.calls.deleteNetwork(ctx, name)
	if gcp.ClassOf(err) == gcp.NotFound {
		err = nil // somebody else was faster
	}
	if users, ok := inUse(err); ok {
		err = &InUseError{Network: name, Users: users, Err: err}
		if restoreErr := c.restore(ctx, removed); restoreErr != nil {
			return errors.Join(err, restoreErr)
		}
		d.Firewalls = []string{}
		return err
	}
	d.Network = err == nil
	return err
}

// restore creates the removed rules of a network again after the network could not be deleted.
func (c *Client) restore(ctx context.Context, removed []*computepb.Firewall) error {
	for _, fw := range removed {
		fw = proto.CloneOf(fw)
		// The server sets these fields.
		fw.Id, fw.Kind, fw.SelfLink, fw.CreationTimestamp = nil, nil, nil, nil
		if err := c.calls.insertFirewall(ctx, fw); err != nil && gcp.ClassOf(err) != gcp.AlreadyExists {
			return fmt.Errorf("put back firewall rule %q, without which machines of the network may not reach each other: %w", fw.GetName(), err)
		}
	}
	if len(removed) > 0 {
		event.Notef(c.gcp.Sink(), event.Info, "", "the firewall rules were put back, since the network stays")
	}
	return nil
}

func usesNetwork(n *tpuapi.Node, name string) bool {
	if n == nil {
		return false
	}
	configs := n.NetworkConfigs
	if n.NetworkConfig != nil {
		configs = append([]*tpuapi.NetworkConfig{n.NetworkConfig}, configs...)
	}
	return slices.ContainsFunc(configs, func(nc *tpuapi.NetworkConfig) bool {
		return nc != nil && gcp.BaseName(nc.Network) == name
	})
}

// waitsForNetwork reports whether a queued resource of this life will make nodes on the network.
// A failed or suspended one makes none. tpuUsers lists the nodes of an active one. A queued
// resource in an unknown state counts as one that will make nodes.
func waitsForNetwork(q *tpuapi.QueuedResource, life provision.Life, name string) bool {
	if q.Tpu == nil || !life.Queued() && life != provision.Provisioning {
		return false
	}
	return slices.ContainsFunc(q.Tpu.NodeSpec, func(s *tpuapi.NodeSpec) bool { return s != nil && usesNetwork(s.Node, name) })
}

// userOf returns "TPU node t-0 (us-central2-b)" for
// projects/p/locations/us-central2-b/nodes/t-0.
func userOf(kind, resource string) string {
	parts := strings.Split(resource, "/")
	if len(parts) < 6 {
		return kind + " " + gcp.BaseName(resource)
	}
	return fmt.Sprintf("%s %s (%s)", kind, parts[5], parts[3])
}
