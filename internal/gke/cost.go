package gke

import (
	"fmt"
	"slices"
	"strings"

	"multihost/internal/cost"
	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A Cost is what a cluster costs an hour.
type Cost struct {
	Slices *float64 `json:"slices_usd_per_hour"` // list price of all slices; null: not known
	Parts  []Part   `json:"parts"`
}

// A Part is one part of a cluster, with its price.
type Part struct {
	Name   string   `json:"name"`         // "c-np-0", "default-pool", "control plane"
	Hourly *float64 `json:"usd_per_hour"` // null: not known
	Text   string   `json:"text"`
}

// String returns one line for each part.
func (c Cost) String() string {
	var b strings.Builder
	for _, p := range c.Parts {
		fmt.Fprintf(&b, "  %s\n", p.Text)
	}
	if c.Slices != nil && slices.ContainsFunc(c.Parts, func(p Part) bool { return p.Hourly != nil }) {
		fmt.Fprintf(&b, "  all slices: %s; the parts without a known price come on top\n", cost.ListPrice(*c.Slices))
	}
	return b.String()
}

// costOf returns what the cluster costs after the plan for o. have is the list of existing pools.
func costOf(o Options, w world, have []Pool) Cost {
	var pools []Pool
	for _, p := range have {
		if p.Number < 0 {
			pools = append(pools, p)
		}
	}
	if len(pools) == 0 {
		pools = append(pools, Pool{Name: defaultPool, Number: -1, Machine: o.CPUMachine, Nodes: o.CPUNodes, Growing: true, Zone: w.zone})
	}
	if o.Slices > 0 {
		n, _ := tpu.NodesOf(o.Type) // o is valid
		for i := range o.Slices {
			pools = append(pools, Pool{Name: PoolName(o.Name, i), Number: i, Machine: n.Machine.Name, Type: o.Type.Name, Tier: o.Tier, Nodes: n.Count, Zone: w.zone})
		}
	}
	return costs(pools)
}

// costs returns what the pools and the control plane cost.
func costs(pools []Pool) Cost {
	total := 0.0
	c := Cost{Slices: &total}
	var slicesOf []Pool
	for _, p := range pools {
		if p.Type != "" {
			slicesOf = append(slicesOf, p)
			continue
		}
		nodes := event.Count(p.Nodes, "node")
		if p.Growing {
			nodes += " at its start"
		}
		c.Parts = append(c.Parts, Part{Name: p.Name, Text: fmt.Sprintf("%s: %s of %s: price unknown", p.Name, nodes, p.Machine)})
	}
	for _, alike := range alikeOf(slicesOf) {
		one := alike[0]
		usd, ok := tpu.HourlyPrice(one.Type, one.Zone, string(one.Tier))
		price, all := cost.NoPrice(one.Type, string(one.Tier), one.Zone), (*float64)(nil)
		if ok {
			sum := usd * float64(len(alike))
			all, price = &sum, cost.PriceOf(&sum, one.Type, string(one.Tier), one.Zone)
		}
		if all == nil {
			c.Slices = nil
		} else if c.Slices != nil {
			total += *all
		}
		if one.Tier == provision.FlexStart {
			price += ", while they run: the pools are empty until a workload asks for them"
		}
		name := one.Name
		if len(alike) > 1 {
			name += " to " + alike[len(alike)-1].Name
		}
		c.Parts = append(c.Parts, Part{Name: name, Hourly: all, Text: fmt.Sprintf("%s: %s of %s, %s each of %s: %s", name, event.Count(len(alike), "slice"), one.Type, event.Count(one.Nodes, "node"), one.Machine, price)})
	}
	c.Parts = append(c.Parts, Part{Name: "control plane", Text: "control plane: price unknown"})
	return c
}

// alikeOf groups pools with the same price.
func alikeOf(pools []Pool) (groups [][]Pool) {
	for _, p := range pools {
		i := slices.IndexFunc(groups, func(g []Pool) bool { return g[0].Type == p.Type && g[0].Tier == p.Tier && g[0].Zone == p.Zone })
		if i < 0 {
			groups = append(groups, []Pool{p})
			continue
		}
		groups[i] = append(groups[i], p)
	}
	return groups
}
