package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/gcp"
	"multihost/internal/remote"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
)

// Traffic describes traffic to a machine of a network.
type Traffic struct {
	From     netip.Prefix // traffic from all of these addresses
	FromTags []string     // network tags of the sending machines
	Protocol string       // tcp, udp or icmp
	Port     int          // port of tcp and udp
	Tags     []string     // network tags of the receiving machine
}

// A Verdict says what the rules of a network do with traffic.
type Verdict struct {
	Allowed bool
	Rule    *FirewallRule // the rule that decides; nil: no rule matches, so the traffic is denied
}

// Judge returns what the rules of one network do with incoming traffic. A rule that denies
// part of the traffic counts as denying all. Judge does not know hierarchical and network
// firewall policies. It leaves out rules for service accounts or destinations, because it
// does not know to which machines they apply.
func Judge(rules []FirewallRule, t Traffic) Verdict {
	order := slices.Clone(rules)
	slices.SortStableFunc(order, func(a, b FirewallRule) int {
		if c := cmp.Compare(a.withDefaults().Priority, b.withDefaults().Priority); c != 0 {
			return c
		}
		return cmp.Compare(action(b), action(a)) // deny before allow
	})
	for i, r := range order {
		if r.withDefaults().Direction == "INGRESS" && !r.Disabled && !r.Limited && r.comesFrom(t) && r.reaches(t) && r.carries(t.Protocol, t.Port) {
			return Verdict{Allowed: !r.Denies, Rule: &order[i]}
		}
	}
	return Verdict{}
}

func (r FirewallRule) comesFrom(t Traffic) bool {
	if len(r.SourceRanges) == 0 && len(r.SourceTags) == 0 {
		return true
	}
	for _, s := range r.SourceRanges {
		p, err := parseRange(s)
		if err != nil {
			continue
		}
		if r.Denies && p.Overlaps(t.From) || p.Bits() <= t.From.Bits() && p.Contains(t.From.Addr()) {
			return true
		}
	}
	return overlap(r.SourceTags, t.FromTags)
}

func (r FirewallRule) reaches(t Traffic) bool {
	return len(r.TargetTags) == 0 || overlap(r.TargetTags, t.Tags)
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// numbers maps protocol numbers in rules to names.
var numbers = map[string]string{"1": "icmp", "6": "tcp", "17": "udp"}

func (r FirewallRule) carries(protocol string, port int) bool {
	list, err := parseAllow(r.Allow)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(a allowed) bool {
		if a.protocol != "all" && a.protocol != protocol && numbers[a.protocol] != protocol {
			return false
		}
		return len(a.ports) == 0 || slices.ContainsFunc(a.ports, func(ports string) bool {
			low, high, ok := strings.Cut(ports, "-")
			if !ok {
				high = low
			}
			from, err1 := strconv.Atoi(low)
			to, err2 := strconv.Atoi(high)
			return errors.Join(err1, err2) == nil && from <= port && port <= to
		})
	})
}

// Sources returns the source ranges from which the rules allow connections to a port of a
// machine with these tags, widest first.
func Sources(rules []FirewallRule, protocol string, port int, tags []string) []netip.Prefix {
	var found []netip.Prefix
	for _, r := range rules {
		ranges := r.SourceRanges
		if len(ranges) == 0 && len(r.SourceTags) == 0 {
			ranges = []string{anywhere4}
		}
		for _, s := range ranges {
			p, err := parseRange(s)
			if err != nil || slices.Contains(found, p) {
				continue
			}
			if Judge(rules, Traffic{From: p, Protocol: protocol, Port: port, Tags: tags}).Allowed {
				found = append(found, p)
			}
		}
	}
	slices.SortFunc(found, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	return found
}

// Ranges returns the IPv4 ranges of the network's subnetworks, by region.
func (c *Client) Ranges(ctx context.Context, network string) (_ map[string][]netip.Prefix, err error) {
	opts, err := c.gcp.ComputeOptions(ctx)
	if err != nil {
		return nil, err
	}
	subnetworks, err := compute.NewSubnetworksRESTClient(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("make Compute client: %w", err)
	}
	defer func() { err = errors.Join(err, subnetworks.Close()) }()
	var ranges map[string][]netip.Prefix
	err = c.gcp.Do(ctx, fmt.Sprintf("list subnetworks of %q", network), func(ctx context.Context) error {
		ranges = map[string][]netip.Prefix{}
		for pair, err := range subnetworks.AggregatedList(ctx, &computepb.AggregatedListSubnetworksRequest{Project: c.gcp.Project()}, gcp.NoRetry()).All() {
			if err != nil {
				return err
			}
			region := gcp.BaseName(pair.Key)
			for _, s := range pair.Value.GetSubnetworks() {
				if p, err := netip.ParsePrefix(s.GetIpCidrRange()); err == nil && gcp.BaseName(s.GetNetwork()) == network {
					ranges[region] = append(ranges[region], p)
				}
			}
		}
		return nil
	})
	return ranges, err
}

// Users returns what uses a network in any zone, or is about to: VMs, instance groups,
// young instance templates, TPU nodes and queued resources. It knows no other users.
func (c *Client) Users(ctx context.Context, name string) ([]string, error) {
	return c.calls.users(ctx, name)
}

// Command returns the command line of multihost that creates the rule.
func (r FirewallRule) Command() string {
	words := []string{"multihost", "network", "firewall", "create", r.Name, "--network=" + r.Network, "--allow=" + strings.Join(r.Allow, ",")}
	if len(r.SourceRanges) > 0 {
		words = append(words, "--source-ranges="+strings.Join(r.SourceRanges, ","))
	}
	if len(r.TargetTags) > 0 {
		words = append(words, "--target-tags="+strings.Join(r.TargetTags, ","))
	}
	if r.Priority != 0 && r.Priority != defaultPriority {
		words = append(words, fmt.Sprintf("--priority=%d", r.Priority))
	}
	return remote.CommandLine(words...)
}
