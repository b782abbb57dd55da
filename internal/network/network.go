// Package network creates, shows and deletes the VPC network over which TPU slices communicate,
// and its firewall rules. Plan reads what exists and says what would change. Apply makes the
// changes. Applying the same options again changes nothing.
//
// Everything that this package creates has a mark in its description. The package
// deletes only what has the mark.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/remote"
)

const (
	// DefaultName and DefaultMTU are the values in MaxText's documents. 8896 is the largest
	// MTU of a VPC network.
	DefaultName = "mtu9k"
	DefaultMTU  = 8896
	minMTU      = 1300
	maxMTU      = 8896
	// apiMTU is the MTU of a network created without one.
	apiMTU = 1460

	// IAPRange is the source of connections through Identity-Aware Proxy.
	IAPRange = "35.235.240.0/20"
	// autoRange contains every subnetwork of an auto mode network.
	autoRange = "10.128.0.0/9"
	// legacyRange is the range of a legacy network.
	legacyRange = "10.240.0.0/16"
	anywhere4   = "0.0.0.0/0"
	anywhere6   = "::/0"

	// mark begins the description of everything that this package creates.
	mark = "made by multihost"
)

// NoSSH as the only element of Options.SSHSourceRanges means no rule for SSH.
const NoSSH = "none"

// Options describes the network to create. Zero values mean the defaults in the
// comments.
type Options struct {
	Name        string // default: mtu9k
	MTU         int    // default: 8896
	SubnetMode  string // auto (default), custom or legacy
	RoutingMode string // regional (default) or global
	// SSHSourceRanges may reach tcp:22. The default is IAPRange. With {NoSSH}, nobody may.
	SSHSourceRanges []string
	// InternalRanges may reach the machines on tcp, udp and icmp. The default is 10.128.0.0/9 in
	// auto mode, 10.0.0.0/8 in custom mode and 10.240.0.0/16 in legacy mode.
	InternalRanges []string
	// AllPortsFrom may reach every port. By default, nobody may.
	AllPortsFrom []string
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.MTU == 0 {
		o.MTU = DefaultMTU
	}
	o.SubnetMode = strings.ToLower(o.SubnetMode)
	if o.SubnetMode == "" {
		o.SubnetMode = "auto"
	}
	o.RoutingMode = strings.ToLower(o.RoutingMode)
	if o.RoutingMode == "" {
		o.RoutingMode = "regional"
	}
	if len(o.SSHSourceRanges) == 0 {
		o.SSHSourceRanges = []string{IAPRange}
	}
	if len(o.InternalRanges) == 0 {
		switch o.SubnetMode {
		case "custom":
			o.InternalRanges = []string{"10.0.0.0/8"}
		case "legacy":
			o.InternalRanges = []string{legacyRange}
		default:
			o.InternalRanges = []string{autoRange}
		}
	}
	return o
}

func (o Options) noSSH() bool { return len(o.SSHSourceRanges) == 1 && o.SSHSourceRanges[0] == NoSSH }

// Validate checks every option without calling any API.
func (o Options) Validate() error {
	o = o.withDefaults()
	if err := checkName("network", o.Name, 63-len("-internal")); err != nil {
		return err
	}
	if err := checkMTU(o.MTU); err != nil {
		return err
	}
	if !slices.Contains([]string{"auto", "custom", "legacy"}, o.SubnetMode) {
		return fmt.Errorf("subnet mode %q: want auto, custom or legacy", o.SubnetMode)
	}
	if !slices.Contains([]string{"regional", "global"}, o.RoutingMode) {
		return fmt.Errorf("routing mode %q: want regional or global", o.RoutingMode)
	}
	for _, r := range o.rules() {
		if err := r.Validate(); err != nil {
			return err
		}
	}
	return nil
}

func checkMTU(mtu int) error {
	if mtu < minMTU || mtu > maxMTU {
		return fmt.Errorf("mtu %d: want %d to %d", mtu, minMTU, maxMTU)
	}
	return nil
}

// rules returns the firewall rules for the network of o. o must have its defaults set.
func (o Options) rules() []FirewallRule {
	everything := []string{"tcp", "icmp", "udp"}
	rules := []FirewallRule{{
		Name: o.Name + "-internal", Network: o.Name,
		Allow: everything, SourceRanges: o.InternalRanges,
	}}
	if !o.noSSH() {
		rules = append(rules, FirewallRule{
			Name: o.Name + "-ssh", Network: o.Name,
			Allow: []string{"tcp:22"}, SourceRanges: o.SSHSourceRanges,
		})
	}
	if len(o.AllPortsFrom) > 0 {
		rules = append(rules, FirewallRule{
			Name: o.Name + "-all", Network: o.Name,
			Allow: everything, SourceRanges: o.AllPortsFrom,
		})
	}
	return rules
}

// body returns the network of o in the form of the Compute API.
func (o Options) body() *computepb.Network {
	n := &computepb.Network{
		Name:        proto.String(o.Name),
		Description: proto.String(networkMark(o.Name)),
		Mtu:         proto.Int32(int32(o.MTU)),
		RoutingConfig: &computepb.NetworkRoutingConfig{
			RoutingMode: proto.String(strings.ToUpper(o.RoutingMode)),
		},
	}
	switch o.SubnetMode {
	case "legacy":
		n.IPv4Range = proto.String(legacyRange)
	default:
		n.AutoCreateSubnetworks = proto.Bool(o.SubnetMode == "auto")
	}
	return n
}

// gcloud returns the command line of gcloud that creates the same network.
func (o Options) gcloud(project string) string {
	words := []string{
		"gcloud", "compute", "networks", "create", o.Name,
		"--project=" + project,
		fmt.Sprintf("--mtu=%d", o.MTU),
		"--subnet-mode=" + o.SubnetMode,
		"--bgp-routing-mode=" + o.RoutingMode,
	}
	if o.SubnetMode == "legacy" {
		words = append(words, "--range="+legacyRange)
	}
	return remote.CommandLine(append(words, "--description="+networkMark(o.Name))...)
}

func networkMark(name string) string {
	return mark + "; remove with: multihost network delete " + name
}

func firewallMark(network string) string {
	return mark + " for network " + network
}

func owned(description string) bool { return strings.HasPrefix(description, mark) }

var namePattern = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

func checkName(kind, name string, limit int) error {
	switch {
	case name == "":
		return fmt.Errorf("%s name is empty", kind)
	case len(name) > limit:
		return fmt.Errorf("%s name %q: longer than %d characters", kind, name, limit)
	case !namePattern.MatchString(name):
		return fmt.Errorf("%s name %q: want lower-case letters, digits and dashes, beginning with a letter and not ending in a dash", kind, name)
	}
	return nil
}

// parseRange parses a CIDR range. It reads a single address as a range of one address.
func parseRange(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil && addr.Zone() == "" {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("range %q: want a CIDR range such as %s", s, IAPRange)
	}
	if p != p.Masked() {
		return p, fmt.Errorf("range %q: has bits behind the prefix; the network is %s, the one address is %s/%d", s, p.Masked(), p.Addr(), p.Addr().BitLen())
	}
	return p, nil
}

// SetMTU changes the MTU of a network, and reports whether it did. If something uses the network,
// SetMTU changes nothing and returns an *InUseError. Running machines keep the old MTU until they
// reboot, and may not reach machines with the new one.
func (c *Client) SetMTU(ctx context.Context, name string, mtu int) (changed bool, err error) {
	if err := errors.Join(checkName("network", name, 63), checkMTU(mtu)); err != nil {
		return false, err
	}
	have, err := c.calls.getNetwork(ctx, name)
	switch {
	case err != nil:
		return false, err
	case have == nil:
		return false, &MissingError{Network: name}
	case infoOf(have).MTU == mtu:
		event.Notef(c.gcp.Sink(), event.Info, "", "nothing to change: network %q has MTU %d", name, mtu)
		return false, nil
	}
	users, err := c.calls.users(ctx, name)
	if err != nil {
		return false, err
	}
	if len(users) > 0 {
		return false, &InUseError{Network: name, Users: users, Verb: "change the MTU of"}
	}
	err = c.calls.setMTU(ctx, name, mtu)
	if err == nil {
		event.Notef(c.gcp.Sink(), event.Info, "", "network %q has MTU %d; machines that are on it take it when they boot", name, mtu)
	}
	return err == nil, err
}

// A Client works on the networks of one project. It is safe for concurrent
// use.
type Client struct {
	gcp   *gcp.Client
	calls *calls
}

// New returns a Client that makes its calls through g. lifeOf translates the state of a queued
// resource. New does no I/O.
func New(g *gcp.Client, lifeOf func(state string) provision.Life) *Client {
	return &Client{gcp: g, calls: &calls{gcp: g, lifeOf: lifeOf}}
}
