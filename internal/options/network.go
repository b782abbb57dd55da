package options

import (
	"multihost/internal/cmdline"
	"multihost/internal/network"
)

// NetworkName returns the word of a command, or else the name of the default network.
func NetworkName(c *Call) string {
	if len(c.Words) == 0 {
		return network.DefaultName
	}
	return c.OneWord("name", "")
}

// Network reads the network that network create makes.
func Network(c *Call) network.Options {
	o := network.Options{
		Name: NetworkName(c), MTU: MTU(c), SubnetMode: c.String("subnet-mode"), RoutingMode: c.String("bgp-routing-mode"),
		SSHSourceRanges: splitCommas(c.String("ssh-source-ranges")), AllPortsFrom: splitCommas(c.String("all-ports-from")),
	}
	refuseNetwork(c, network.Options{Name: o.Name}, cmdline.Word)
	if c.Refused(cmdline.Word) {
		o.Name = "" // check the ranges as if the name were valid
	}
	refuseNetwork(c, network.Options{SubnetMode: o.SubnetMode}, "subnet-mode")
	refuseNetwork(c, network.Options{RoutingMode: o.RoutingMode}, "bgp-routing-mode")
	refuseNetwork(c, network.Options{Name: o.Name, SSHSourceRanges: o.SSHSourceRanges}, "ssh-source-ranges")
	refuseNetwork(c, network.Options{Name: o.Name, AllPortsFrom: o.AllPortsFrom}, "all-ports-from")
	return o
}

// MTU reads --mtu.
func MTU(c *Call) int {
	mtu := c.Int("mtu")
	if mtu < 1300 || mtu > network.DefaultMTU {
		c.Refuse(cmdline.Usagef("--mtu=%d: want 1300 to %d", mtu, network.DefaultMTU), "mtu")
	}
	return mtu
}

// FirewallRule reads the rule that network firewall create makes.
func FirewallRule(c *Call) network.FirewallRule {
	rule := network.FirewallRule{
		Name: c.OneWord("name", ""), Network: c.String("network"), Allow: splitCommas(c.String("allow")), Priority: c.Int("priority"),
		SourceRanges: splitCommas(c.String("source-ranges")), TargetTags: splitCommas(c.String("target-tags")),
	}
	refuseRule(c, rule)
	return rule
}

// refuseNetwork refuses an invalid o. flags must name every flag that can set a field of o
// to something other than its default.
func refuseNetwork(c *Call, o network.Options, flags ...string) {
	if err := o.Validate(); err != nil {
		c.Refuse(&cmdline.UsageError{Err: err}, flags...)
	}
}

// refuseRule refuses the flags of a rule that are wrong by themselves.
func refuseRule(c *Call, rule network.FirewallRule) {
	sound := network.FirewallRule{Name: "x", Allow: []string{"tcp"}}
	check := func(flag string, set func(r *network.FirewallRule)) {
		r := sound
		set(&r)
		if err := r.Validate(); err != nil {
			c.Refuse(&cmdline.UsageError{Err: err}, flag)
			return
		}
		sound = r
	}
	check(cmdline.Word, func(r *network.FirewallRule) { r.Name = rule.Name })
	check("network", func(r *network.FirewallRule) { r.Network = rule.Network })
	check("priority", func(r *network.FirewallRule) { r.Priority = rule.Priority })
	check("allow", func(r *network.FirewallRule) { r.Allow = rule.Allow })
	check("source-ranges", func(r *network.FirewallRule) { r.SourceRanges = rule.SourceRanges })
	check("target-tags", func(r *network.FirewallRule) { r.TargetTags = rule.TargetTags })
}
