package network

import (
	"context"
	"slices"
	"strings"
	"time"

	"multihost/internal/gcp"

	"cloud.google.com/go/compute/apiv1/computepb"
)

// An Owned is a network that this package created.
type Owned struct {
	Name      string
	Created   time.Time // zero: unknown
	Firewalls []string  // its rules that this package created
	Users     []string  // from Client.Users
}

// Owned lists the networks of the project that this package created, sorted by name.
func (c *Client) Owned(ctx context.Context) ([]Owned, error) {
	networks, err := c.calls.listNetworks(ctx)
	if err != nil {
		return nil, err
	}
	networks = slices.DeleteFunc(networks, func(n *computepb.Network) bool { return !owned(n.GetDescription()) })
	if len(networks) == 0 {
		return nil, nil
	}
	rules, err := c.calls.listFirewalls(ctx)
	if err != nil {
		return nil, err
	}
	machines, err := c.calls.machines(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Owned, len(networks))
	for i, n := range networks {
		all[i].Name = n.GetName()
		if t, err := time.Parse(time.RFC3339, n.GetCreationTimestamp()); err == nil {
			all[i].Created = t
		}
		for _, fw := range rules {
			if gcp.BaseName(fw.GetNetwork()) == n.GetName() && owned(fw.GetDescription()) {
				all[i].Firewalls = append(all[i].Firewalls, fw.GetName())
			}
		}
		slices.Sort(all[i].Firewalls)
		if all[i].Users, err = c.calls.usersAmong(ctx, machines, n.GetName()); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Owned) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
