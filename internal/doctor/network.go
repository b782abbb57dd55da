package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/remote"
)

// portNames are the ports on which workers listen for each other: those of libtpu and JAX,
// and of the coordinator between slices. JAX's coordinator uses 8476 before jax 0.8.1 and
// 8482 since then.
var portNames = []struct {
	first, last int
	name        string
}{
	{8080, 8081, "MEGASCALE"},
	{8470, 8482, "libtpu and JAX"},
}

// networkChecks are the checks of the network and its firewall rules.
type networkChecks struct{ *examination }

// checkNetwork checks the network of the slices, or of new slices.
func (e networkChecks) checkNetwork(ctx context.Context) {
	name := e.Network
	if name == "" && len(e.sel.Slices) > 0 {
		name = e.sel.Slices[0].Network
	}
	if name == "" {
		name = network.DefaultName
	}
	info, err := e.Networks.Show(ctx, name)
	var missing *network.MissingError
	switch {
	case errors.As(err, &missing):
		e.add(Finding{Check: CheckNetwork, Level: Warning, Text: fmt.Sprintf("there is no network %s", name), Cure: e.command("network", "create", name)})
		return
	case err != nil:
		e.fail(CheckNetwork, err)
		return
	}
	e.ok(CheckNetwork, "%s, %s subnets", info.Name, info.SubnetMode)
	e.checkMTU(ctx, info)
	tags := e.tags()
	e.checkSSHRule(info, tags)
	e.checkWorkerRules(ctx, info, tags)
}

// tags returns the different sets of the slices' network tags, or one empty set without
// slices.
func (e networkChecks) tags() [][]string {
	sets := [][]string{}
	for _, s := range e.sel.Slices {
		if !slices.ContainsFunc(sets, func(have []string) bool { return slices.Equal(have, s.Tags) }) {
			sets = append(sets, s.Tags)
		}
	}
	if len(sets) == 0 {
		sets = append(sets, nil)
	}
	return sets
}

func (e networkChecks) checkMTU(ctx context.Context, info network.Info) {
	if info.MTU >= network.DefaultMTU {
		e.ok(CheckMTU, "%d", info.MTU)
		return
	}
	f := Finding{Check: CheckMTU, Level: Warning, Text: fmt.Sprintf("%d; %d carries the same data between slices with a sixth of the packets", info.MTU, network.DefaultMTU)}
	users, err := e.Networks.Users(ctx, info.Name)
	switch {
	case err == nil && len(users) == 0:
		f.Advice = "no machine is on it:"
		f.Cure = e.command("network", "update", info.Name, fmt.Sprintf("--mtu=%d", network.DefaultMTU))
	case info.Name == network.DefaultName:
		f.Advice = "machines take it when they are made: delete the slices first:"
		f.Cure = e.command("network", "update", info.Name, fmt.Sprintf("--mtu=%d", network.DefaultMTU))
	default:
		f.Advice = fmt.Sprintf("machines take it when they are made: make a network for it, and the slices anew with --network=%s:", network.DefaultName)
		f.Cure = e.command("network", "create", network.DefaultName)
	}
	e.add(f)
}

// checkSSHRule reports from where the rules allow connections to tcp:22.
func (e networkChecks) checkSSHRule(info network.Info, tags [][]string) {
	iap := netip.MustParsePrefix(network.IAPRange)
	for _, set := range tags {
		sources := network.Sources(info.Firewalls, "tcp", 22, set)
		outside := slices.ContainsFunc(sources, func(p netip.Prefix) bool { return !p.Addr().IsPrivate() })
		viaIAP := network.Judge(info.Firewalls, network.Traffic{From: iap, Protocol: "tcp", Port: 22, Tags: set})
		if viaIAP.Allowed || outside && !e.viaIAP() || len(sources) > 0 && e.Way == overssh.Internal {
			continue
		}
		rule := network.FirewallRule{Network: info.Name, Allow: []string{"tcp:22"}, SourceRanges: []string{network.IAPRange}}
		text, level := "no rule lets anybody reach tcp:22", Error
		switch {
		case outside:
			text = "no rule lets Identity-Aware Proxy reach tcp:22"
		case len(sources) > 0:
			text, level = fmt.Sprintf("only %s may reach tcp:22: from elsewhere than this network nobody can log in", join(sources)), Warning
		}
		e.addRule(CheckSSHRule, level, text, info, rule, "-ssh", viaIAP)
		return
	}
	var names []string
	for _, p := range network.Sources(info.Firewalls, "tcp", 22, tags[0]) {
		name := p.String()
		switch {
		case p == iap:
			name += " (Identity-Aware Proxy)"
		case p.Bits() == 0:
			name += " (the whole internet)"
		}
		names = append(names, name)
	}
	e.ok(CheckSSHRule, "tcp:22 is open to %s", strings.Join(names, ", "))
}

// addRule adds the finding that a rule is missing, with a command that makes it. If an
// existing rule denies the traffic, the new rule gets a smaller priority number, and so
// overrules it. Then no rule has to be deleted.
func (e networkChecks) addRule(check string, level Level, text string, info network.Info, rule network.FirewallRule, suffix string, v network.Verdict) {
	rule.Name = freeName(info, strings.TrimSuffix(info.Name[:min(len(info.Name), 50)], "-")+suffix)
	f := Finding{Check: check, Level: level, Text: text}
	if v.Rule != nil && v.Rule.Denies {
		f.Text += fmt.Sprintf("; rule %s denies it", v.Rule.Name)
		rule.Priority = v.Rule.Priority - 1
		if rule.Priority <= 0 { // 0 would mean the default
			f.Advice = "look whether the rule is meant; to remove it:"
			f.Cure = remote.CommandLine("gcloud", "compute", "firewall-rules", "delete", v.Rule.Name, "--project="+e.Project.Value)
			e.add(f)
			return
		}
		// Somebody may deny this on purpose, so --fix does not open it.
		f.Advice = "if that is not meant:"
		f.Cure = e.again(rule.Command())
		e.add(f)
		return
	}
	f.Cure = e.again(rule.Command())
	f.fix = func(ctx context.Context) error {
		_, err := e.Networks.CreateFirewall(ctx, rule)
		return err
	}
	e.add(f)
}

// freeName returns name, with a number if a rule of that name exists.
func freeName(info network.Info, name string) string {
	free := name
	for n := 2; slices.ContainsFunc(info.Firewalls, func(r network.FirewallRule) bool { return r.Name == free }); n++ {
		free = fmt.Sprintf("%s-%d", name, n)
	}
	return free
}

// again returns a command line of multihost with the flags of Options.Again.
func (e *examination) again(line string) string {
	words := strings.Fields(strings.TrimPrefix(line, "multihost "))
	return strings.TrimSpace(line + " " + remote.CommandLine(e.flagsOf(words...)...))
}

// checkWorkerRules checks that the rules let machines of the subnetwork reach each other.
func (e networkChecks) checkWorkerRules(ctx context.Context, info network.Info, tags [][]string) {
	if e.Zone.Value == "" {
		e.unknown(CheckWorkerRules, "without a zone it is not known which subnetwork workers are in")
		return
	}
	region := gcp.Region(e.Zone.Value)
	everywhere, err := e.Networks.Ranges(ctx, info.Name)
	ranges := everywhere[region]
	switch {
	case err != nil:
		e.fail(CheckWorkerRules, err)
		return
	case len(ranges) == 0:
		e.add(Finding{Check: CheckWorkerRules, Level: Error, Text: fmt.Sprintf("network %s has no subnetwork in %s", info.Name, region),
			Cure: remote.CommandLine("gcloud", "compute", "networks", "subnets", "create", info.Name, "--network="+info.Name, "--region="+region, "--range="+freeRange(everywhere).String(), "--project="+e.Project.Value)})
		return
	}
	closed := map[string]network.Verdict{} // by the rule that closes them
	var order []string
	note := func(what string, t network.Traffic) {
		if _, known := closed[what]; known {
			return
		}
		if v := network.Judge(info.Firewalls, t); !v.Allowed {
			closed[what] = v
			order = append(order, what)
		}
	}
	for _, from := range ranges {
		for _, set := range tags {
			for _, p := range portNames {
				for port := p.first; port <= p.last; port++ {
					note(fmt.Sprintf("tcp:%d-%d (%s)", p.first, p.last, p.name), network.Traffic{From: from, FromTags: set, Protocol: "tcp", Port: port, Tags: set})
				}
			}
		}
	}
	if len(order) == 0 {
		e.ok(CheckWorkerRules, "tcp:8080-8081 and tcp:8470-8482 are open within %s", join(ranges))
		return
	}
	rule := network.FirewallRule{Network: info.Name, Allow: []string{"tcp", "udp", "icmp"}}
	for _, p := range ranges {
		rule.SourceRanges = append(rule.SourceRanges, p.String())
	}
	e.addRule(CheckWorkerRules, Error, fmt.Sprintf("workers in %s cannot reach each other on %s", join(ranges), strings.Join(order, ", ")), info, rule, "-internal", closed[order[0]])
}

// freeRange returns a range for another subnetwork of a network. Ranges of one network must
// not overlap, and must be outside 10.128.0.0/9, which an auto mode network reserves for
// future regions.
func freeRange(taken map[string][]netip.Prefix) netip.Prefix {
	var free netip.Prefix
	for n := range 1 << 11 { // the /20s of 10.0.0.0/9
		free = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 4), byte(n << 4)}), 20)
		overlaps := func(p netip.Prefix) bool { return p.Overlaps(free) }
		if !slices.ContainsFunc(slices.Collect(maps.Values(taken)), func(of []netip.Prefix) bool { return slices.ContainsFunc(of, overlaps) }) {
			break
		}
	}
	return free
}

func join(ranges []netip.Prefix) string {
	words := make([]string, len(ranges))
	for i, p := range ranges {
		words[i] = p.String()
	}
	return strings.Join(words, ", ")
}
