package computeapi

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"
	"google.golang.org/protobuf/proto"
)

// maxNetworks is the quota NETWORKS of a new project.
const maxNetworks = 15

func (s networks) dropNetwork(name string) {
	n := s.State.Networks[name]
	for key, sub := range s.State.Subnetworks {
		if n != nil && sub.GetNetwork() == n.Msg.GetSelfLink() {
			delete(s.State.Subnetworks, key)
		}
	}
	delete(s.State.Networks, name)
}

func (s networks) serveNetworks(c *computeCall) (any, error) {
	switch {
	case c.verb != "":
		return nil, wire.NotModelled("networks." + c.verb)
	case c.id == "" && c.r.Method == http.MethodPost:
		return s.insertNetwork(c)
	case c.id == "":
		var all []proto.Message
		for _, n := range cloud.Sorted(s.State.Networks, nil) {
			all = append(all, n.Msg)
		}
		return s.list(c, "compute#networkList", all)
	}
	n := s.State.Networks[c.name()]
	switch c.r.Method {
	case http.MethodGet:
		if err := wire.CheckQuery(c.query); err != nil {
			return nil, err
		}
		if n == nil {
			return nil, noSuchCompute(c.name())
		}
		return n.Msg, nil
	case http.MethodDelete:
		return s.deleteNetwork(c)
	case http.MethodPatch:
		return s.patchNetwork(c, n)
	}
	return nil, wire.UnknownMethod()
}

// patchNetwork changes the MTU. Running machines of the simulator keep their MTU until they
// are created again, those of Google until they reboot.
func (s networks) patchNetwork(c *computeCall, n *cloud.Network) (any, error) {
	if err := wire.CheckQuery(c.query, "requestId"); err != nil {
		return nil, err
	}
	if op, ok, err := c.replayed(); ok || err != nil {
		return op, err
	}
	change := new(computepb.Network)
	if err := c.decode(change); err != nil {
		return nil, err
	}
	mtu := change.GetMtu()
	change.Mtu = nil
	switch {
	case n == nil:
		return nil, noSuchCompute(c.name())
	case !proto.Equal(change, new(computepb.Network)):
		return nil, wire.NotModelled("Changing anything of a network but its MTU")
	case mtu < cloud.MinMTU || mtu > cloud.MaxMTU:
		return nil, badValue("resource.mtu", fmt.Sprint(mtu), fmt.Sprintf("Must be between %d and %d inclusive.", cloud.MinMTU, cloud.MaxMTU))
	}
	return s.startComputeOp(c, "patch", c.name(), n.Msg.GetId(), func(ok bool) {
		if ok {
			n.Msg.Mtu = proto.Int32(mtu)
		}
	})
}

func (s networks) insertNetwork(c *computeCall) (any, error) {
	if err := wire.CheckQuery(c.query, "requestId"); err != nil {
		return nil, err
	}
	if op, ok, err := c.replayed(); ok || err != nil {
		return op, err
	}
	msg := new(computepb.Network)
	if err := c.decode(msg); err != nil {
		return nil, err
	}
	c.id = msg.GetName()
	if !cloud.IDPattern.MatchString(c.id) {
		return nil, badValue("resource.name", c.id, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	}
	if msg.Mtu != nil && (msg.GetMtu() < cloud.MinMTU || msg.GetMtu() > cloud.MaxMTU) {
		return nil, badValue("resource.mtu", fmt.Sprint(msg.GetMtu()), fmt.Sprintf("Must be between %d and %d inclusive.", cloud.MinMTU, cloud.MaxMTU))
	}
	if mode := msg.GetRoutingConfig().GetRoutingMode(); mode != "" && mode != "REGIONAL" && mode != "GLOBAL" {
		return nil, badValue("resource.routingConfig.routingMode", mode, "Must be REGIONAL or GLOBAL.")
	}
	if msg.IPv4Range != nil || msg.AutoCreateSubnetworks == nil {
		return nil, badValue("resource.IPv4Range", msg.GetIPv4Range(), "Legacy networks are no longer supported: autoCreateSubnetworks must be set.")
	}
	if msg.NetworkProfile != nil || msg.GetEnableUlaInternalIpv6() || msg.InternalIpv6Range != nil {
		return nil, wire.NotModelled("A network profile or internal IPv6")
	}
	if s.State.Networks[c.name()] != nil {
		return nil, existsCompute(c.name())
	}
	if len(s.State.Networks) >= maxNetworks {
		return nil, wire.Errorf(http.StatusForbidden, "Quota 'NETWORKS' exceeded.  Limit: %d.0 globally.", maxNetworks).WithReason("quotaExceeded")
	}
	name := c.name()
	n := s.Networks().PutNetwork(&s.State, msg)
	return s.startComputeOp(c, "insert", name, msg.GetId(), func(ok bool) {
		if n.Ready = ok; !ok {
			s.dropNetwork(name)
		}
	})
}

func (s networks) deleteNetwork(c *computeCall) (any, error) {
	if err := wire.CheckQuery(c.query, "requestId"); err != nil {
		return nil, err
	}
	if op, ok, err := c.replayed(); ok || err != nil {
		return op, err
	}
	name := c.name()
	n := s.State.Networks[name]
	if n == nil {
		return nil, noSuchCompute(name)
	}
	if !n.Ready {
		return nil, notReady(name)
	}
	for _, f := range cloud.Sorted(s.State.Firewalls, nil) {
		if f.GetNetwork() == n.Msg.GetSelfLink() {
			return nil, inUse("network", name, s.Networks().ComputePath("global", "firewalls", f.GetName()))
		}
	}
	if !n.Msg.GetAutoCreateSubnetworks() {
		// A user has created these subnetworks. Those of auto mode go with their network.
		for _, sub := range cloud.Sorted(s.State.Subnetworks, nil) {
			if sub.GetNetwork() == n.Msg.GetSelfLink() {
				return nil, inUse("network", name, s.Networks().URLToName(sub.GetSelfLink()))
			}
		}
	}
	for _, node := range cloud.Sorted(s.State.Nodes, nil) {
		if slices.ContainsFunc(cloud.Interfaces(node.Msg), func(i *tpualpha.NetworkConfig) bool { return i.Network == name }) {
			return nil, inUse("network", name, fmt.Sprintf("projects/%s/zones/%s/instances/t1v-n-%08x-w-0", s.Config.Project, node.Zone, uint32(node.Msg.Id)))
		}
	}
	for _, i := range cloud.Sorted(s.State.Instances, nil) {
		if i.Msg.GetNetworkInterfaces()[0].GetNetwork() == n.Msg.GetSelfLink() {
			return nil, inUse("network", name, s.Networks().URLToName(i.Msg.GetSelfLink()))
		}
	}
	n.Ready = false
	return s.startComputeOp(c, "delete", name, n.Msg.GetId(), func(ok bool) {
		if n.Ready = true; ok {
			s.dropNetwork(name)
		}
	})
}

func (s networks) serveSubnetworks(c *computeCall) (any, error) {
	region, isRegion := strings.CutPrefix(c.scope, "regions/")
	if isRegion && !slices.Contains(s.Catalog().Regions(), region) {
		return nil, noSuchCompute("projects/" + s.Config.Project + "/regions/" + region)
	}
	if c.verb != "" || !isRegion && c.id != "" {
		return nil, wire.UnknownMethod()
	}
	switch {
	case isRegion && c.id == "" && c.r.Method == http.MethodPost:
		return s.insertSubnetwork(c, region)
	case c.r.Method != http.MethodGet:
		return nil, wire.NotModelled("Changing and deleting subnetworks")
	}
	if c.id != "" {
		if err := wire.CheckQuery(c.query); err != nil {
			return nil, err
		}
		sub := s.State.Subnetworks[c.name()]
		if sub == nil {
			return nil, noSuchCompute(c.name())
		}
		return sub, nil
	}
	return s.listOf(c, "subnetwork", messages(s.State.Subnetworks))
}

// insertSubnetwork creates a subnetwork in a custom-mode network. It refuses an overlap
// with another one of the same network.
func (s networks) insertSubnetwork(c *computeCall, region string) (any, error) {
	if err := wire.CheckQuery(c.query, "requestId"); err != nil {
		return nil, err
	}
	if op, ok, err := c.replayed(); ok || err != nil {
		return op, err
	}
	msg := new(computepb.Subnetwork)
	if err := c.decode(msg); err != nil {
		return nil, err
	}
	c.id = msg.GetName()
	if !cloud.IDPattern.MatchString(c.id) {
		return nil, badValue("resource.name", c.id, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	}
	of, ok := s.Networks().GlobalRef(msg.GetNetwork(), "networks")
	n := s.State.Networks[of]
	cidr, err := netip.ParsePrefix(msg.GetIpCidrRange())
	switch {
	case !ok:
		return nil, badValue("resource.network", msg.GetNetwork(), "The URL is malformed.")
	case n == nil:
		return nil, noSuchCompute(of)
	case !n.Ready:
		return nil, notReady(of)
	case n.Msg.GetAutoCreateSubnetworks():
		return nil, wire.NotModelled("A subnetwork of one's own in an auto-mode network")
	case s.State.Subnetworks[c.name()] != nil:
		return nil, existsCompute(c.name())
	case err != nil || !cidr.Addr().Is4() || cidr.Masked() != cidr || cidr.Bits() > 29:
		return nil, badValue("resource.ipCidrRange", msg.GetIpCidrRange(), "Must be an IPv4 CIDR range without host bits, at least a /29.")
	}
	if err := PlainSubnetwork(msg); err != nil {
		return nil, err
	}
	for _, sub := range cloud.Sorted(s.State.Subnetworks, nil) {
		if sub.GetNetwork() == n.Msg.GetSelfLink() && netip.MustParsePrefix(sub.GetIpCidrRange()).Overlaps(cidr) {
			return nil, badValue("resource.ipCidrRange", cidr.String(), fmt.Sprintf("Invalid IPCidrRange: %s conflicts with existing subnetwork '%s' in region '%s'.",
				cidr, sub.GetName(), sub.GetRegion()[strings.LastIndexByte(sub.GetRegion(), '/')+1:]))
		}
	}
	name := c.name()
	sub := s.Networks().NewSubnetwork(n, name, region, cidr)
	sub.Description = msg.Description
	s.State.Subnetworks[name] = sub
	n.Msg.Subnetworks = append(n.Msg.Subnetworks, sub.GetSelfLink())
	return s.startComputeOp(c, "insert", name, sub.GetId(), func(ok bool) {
		if !ok {
			delete(s.State.Subnetworks, name)
			n.Msg.Subnetworks = slices.DeleteFunc(n.Msg.Subnetworks, func(link string) bool { return link == sub.GetSelfLink() })
		}
	})
}

// PlainSubnetwork returns an error for a subnetwork that needs more than the simulator
// models.
func PlainSubnetwork(msg *computepb.Subnetwork) error {
	asked := proto.Clone(msg).(*computepb.Subnetwork)
	asked.Name, asked.Network, asked.IpCidrRange, asked.Region, asked.Description = nil, nil, nil, nil, nil
	if asked.GetPrivateIpGoogleAccess() || asked.GetPurpose() != "" && asked.GetPurpose() != "PRIVATE" || asked.GetStackType() != "" && asked.GetStackType() != "IPV4_ONLY" {
		return wire.NotModelled("A subnetwork that is not a plain IPv4 one")
	}
	asked.PrivateIpGoogleAccess, asked.Purpose, asked.StackType = nil, nil, nil
	if !proto.Equal(asked, new(computepb.Subnetwork)) {
		return wire.NotModelled("A subnetwork with more than a name, a network and a range")
	}
	return nil
}
