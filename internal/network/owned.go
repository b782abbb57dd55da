package network

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/iterator"

	"multihost/internal/gcp"
)

// An Owned is a network that this package created.
type Owned struct {
	Name      string
	Created   time.Time // zero: unknown
	Firewalls []string  // its rules that this package created
	Users     []string  // TPUs and queued resources that use it, in any zone
}

// Owned lists the networks of the project that this package created, sorted by name.
// Users that are no TPUs are not listed: only the API knows them, when the network is
// deleted.
func (c *Client) Owned(ctx context.Context) ([]Owned, error) {
	networks, err := c.listNetworks(ctx)
	if err != nil {
		return nil, err
	}
	networks = slices.DeleteFunc(networks, func(n *computepb.Network) bool { return !owned(n.GetDescription()) })
	if len(networks) == 0 {
		return nil, nil
	}
	rules, err := c.listFirewalls(ctx)
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
			if lastPart(fw.GetNetwork()) == n.GetName() && owned(fw.GetDescription()) {
				all[i].Firewalls = append(all[i].Firewalls, fw.GetName())
			}
		}
		slices.Sort(all[i].Firewalls)
		if all[i].Users, err = c.tpuUsers(ctx, n.GetName()); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Owned) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (c *Client) listNetworks(ctx context.Context) (all []*computepb.Network, err error) {
	api, err := c.clients(ctx)
	if err != nil {
		return nil, err
	}
	err = c.gcp.Do(ctx, "list networks", func(ctx context.Context) error {
		all = nil
		it := api.networks.List(ctx, &computepb.ListNetworksRequest{Project: c.gcp.Project()}, gcp.NoRetry())
		for {
			n, err := it.Next()
			if errors.Is(err, iterator.Done) {
				return nil
			}
			if err != nil {
				return err
			}
			all = append(all, n)
		}
	})
	return all, err
}
