package network

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
)

// Info describes an existing network and its firewall rules.
type Info struct {
	Name        string         `json:"name"`
	MTU         int            `json:"mtu"`
	SubnetMode  string         `json:"subnet_mode"`  // auto, custom or legacy
	RoutingMode string         `json:"routing_mode"` // regional or global
	Description string         `json:"description,omitempty"`
	Owned       bool           `json:"owned"` // made by multihost
	Created     string         `json:"created,omitempty"`
	Subnetworks []string       `json:"subnetworks"` // region/name
	Firewalls   []FirewallRule `json:"firewalls"`
}

// Show returns the network called name, or a *MissingError.
func (c *Client) Show(ctx context.Context, name string) (Info, error) {
	if err := checkName("network", name, 63); err != nil {
		return Info{}, err
	}
	n, err := c.calls.getNetwork(ctx, name)
	if err != nil {
		return Info{}, err
	}
	if n == nil {
		return Info{}, &MissingError{Network: name}
	}
	info := infoOf(n)
	info.Firewalls, err = c.ShowFirewalls(ctx, name)
	return info, err
}

func infoOf(n *computepb.Network) Info {
	info := Info{
		Name:        n.GetName(),
		MTU:         int(n.GetMtu()),
		SubnetMode:  "custom",
		RoutingMode: strings.ToLower(n.GetRoutingConfig().GetRoutingMode()),
		Description: n.GetDescription(),
		Owned:       owned(n.GetDescription()),
		Created:     n.GetCreationTimestamp(),
		Subnetworks: []string{},
		Firewalls:   []FirewallRule{},
	}
	if info.MTU == 0 {
		info.MTU = apiMTU
	}
	if info.RoutingMode == "" {
		info.RoutingMode = "regional"
	}
	switch {
	case n.GetIPv4Range() != "":
		info.SubnetMode = "legacy"
	case n.GetAutoCreateSubnetworks():
		info.SubnetMode = "auto"
	}
	for _, link := range n.GetSubnetworks() {
		info.Subnetworks = append(info.Subnetworks, subnetworkName(link))
	}
	slices.Sort(info.Subnetworks)
	return info
}

// subnetworkName returns "us-central2/mtu9k" for
// …/regions/us-central2/subnetworks/mtu9k.
func subnetworkName(link string) string {
	parts := strings.Split(link, "/")
	if len(parts) < 3 {
		return link
	}
	return parts[len(parts)-3] + "/" + parts[len(parts)-1]
}

// String returns the network as text for people.
func (i Info) String() string {
	var b strings.Builder
	maker := "not made by multihost"
	if i.Owned {
		maker = "made by multihost"
	}
	fmt.Fprintf(&b, "network %s: MTU %d, %s subnets (%d), %s routing, %s\n", i.Name, i.MTU, i.SubnetMode, len(i.Subnetworks), i.RoutingMode, maker)
	for _, r := range i.Firewalls {
		fmt.Fprintf(&b, "  firewall %s\n", r)
	}
	if len(i.Firewalls) == 0 {
		b.WriteString("  no firewall rules: nothing can connect to machines on it\n")
	}
	return b.String()
}

// String returns the rule in one line.
func (r FirewallRule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %s", r.Name, action(r), strings.Join(r.Allow, ","))
	if r.Direction == "EGRESS" {
		b.WriteString(" outwards")
	} else {
		fmt.Fprintf(&b, " from %s", canonicalRanges(r))
		if len(r.SourceTags) > 0 {
			fmt.Fprintf(&b, " or tags %s", strings.Join(r.SourceTags, ","))
		}
	}
	if len(r.TargetTags) > 0 {
		fmt.Fprintf(&b, " to tags %s", strings.Join(r.TargetTags, ","))
	}
	if r.Priority != 0 && r.Priority != defaultPriority {
		fmt.Fprintf(&b, ", priority %d", r.Priority)
	}
	if r.Disabled {
		b.WriteString(", disabled")
	}
	if !r.Owned {
		b.WriteString(", not made by multihost")
	}
	return b.String()
}
