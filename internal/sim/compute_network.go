package sim

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	tpualpha "google.golang.org/api/tpu/v2alpha1"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/worker"
)

// A network, with the state of its insert operation: ready means done.
type network struct {
	msg   *computepb.Network
	ready bool
}

// The limits of an MTU, and the MTU of a network created without one.
const (
	minMTU     = 1300
	maxMTU     = 8896
	defaultMTU = 1460
)

// maxNetworks is the quota NETWORKS of a new project.
const maxNetworks = 15

// autoRanges returns the subnetworks of an auto-mode network by region, all within
// 10.128.0.0/9. Regions not listed get a free range.
func autoRanges() map[string]string {
	return map[string]string{
		"us-central1": "10.128.0.0/20", "europe-west1": "10.132.0.0/20", "us-west1": "10.138.0.0/20", "asia-east1": "10.140.0.0/20",
		"us-east1": "10.142.0.0/20", "asia-northeast1": "10.146.0.0/20", "europe-west4": "10.164.0.0/20", "us-west4": "10.182.0.0/20",
		"southamerica-west1": "10.194.0.0/20", "us-east5": "10.202.0.0/20", "us-south1": "10.206.0.0/20", "us-central2": "10.222.0.0/20",
	}
}

func (s *Cloud) addDefaultNetwork(st *state) {
	s.putNetwork(st, &computepb.Network{
		Name: proto.String("default"), Description: proto.String("Default network for the project"),
		AutoCreateSubnetworks: proto.Bool(true),
	}).ready = true
	s.addDefaultRules(st, "default")
}

// addDefaultRules adds to a network the rules that the service adds to "default".
func (s *Cloud) addDefaultRules(st *state, network string) {
	rule := func(name, ranges, protocol string, ports ...string) {
		s.putFirewall(st, &computepb.Firewall{
			Name: proto.String(network + "-allow-" + name), Network: proto.String("global/networks/" + network), Priority: proto.Int32(65534),
			SourceRanges: []string{ranges}, Allowed: []*computepb.Allowed{{IPProtocol: proto.String(protocol), Ports: ports}},
		})
	}
	rule("icmp", "0.0.0.0/0", "icmp")
	rule("ssh", "0.0.0.0/0", "tcp", "22")
	rule("internal", "10.128.0.0/9", "all")
}

// ensureNetwork creates the network called id, ready for use, unless it exists.
func (s *Cloud) ensureNetwork(id string) {
	if s.state.networks[s.computePath("global", "networks", id)] == nil {
		s.putNetwork(&s.state, &computepb.Network{
			Name: proto.String(id), AutoCreateSubnetworks: proto.Bool(true), Mtu: proto.Int32(maxMTU),
		}).ready = true
		s.addDefaultRules(&s.state, id)
	}
}

// putNetwork fills in msg as the service does and stores it; in auto mode it also creates
// the subnetworks.
func (s *Cloud) putNetwork(st *state, msg *computepb.Network) *network {
	name := s.computePath("global", "networks", msg.GetName())
	msg.Kind, msg.Id, msg.CreationTimestamp = proto.String("compute#network"), proto.Uint64(uint64(newID())), proto.String(s.timestamp())
	msg.SelfLink, msg.SelfLinkWithId = proto.String(s.link(name)), proto.String(s.link(s.computePath("global", "networks", fmt.Sprint(msg.GetId()))))
	msg.Subnetworks, msg.Peerings = nil, nil
	if msg.GetMtu() == 0 {
		msg.Mtu = proto.Int32(defaultMTU)
	}
	if msg.GetRoutingConfig().GetRoutingMode() == "" {
		msg.RoutingConfig = &computepb.NetworkRoutingConfig{RoutingMode: proto.String("REGIONAL")}
	}
	if msg.NetworkFirewallPolicyEnforcementOrder == nil {
		msg.NetworkFirewallPolicyEnforcementOrder = proto.String("AFTER_CLASSIC_FIREWALL")
	}
	if msg.AutoCreateSubnetworks == nil {
		msg.AutoCreateSubnetworks = proto.Bool(false)
	}
	n := &network{msg: msg}
	st.networks[name] = n
	if !msg.GetAutoCreateSubnetworks() {
		return n
	}
	next := 224
	for _, region := range s.regions() {
		cidr := autoRanges()[region]
		if cidr == "" {
			cidr = fmt.Sprintf("10.%d.0.0/20", next)
			next += 2
		}
		key := s.computePath("regions/"+region, "subnetworks", msg.GetName())
		st.subnetworks[key] = s.newSubnetwork(n, key, region, netip.MustParsePrefix(cidr))
		msg.Subnetworks = append(msg.Subnetworks, s.link(key))
	}
	return n
}

// newSubnetwork returns a subnetwork of n with the fields that the service fills in; key
// is its path.
func (s *Cloud) newSubnetwork(n *network, key, region string, cidr netip.Prefix) *computepb.Subnetwork {
	return &computepb.Subnetwork{
		Kind: proto.String("compute#subnetwork"), Id: proto.Uint64(uint64(newID())), Name: proto.String(key[strings.LastIndexByte(key, '/')+1:]),
		CreationTimestamp: proto.String(s.timestamp()), Network: n.msg.SelfLink,
		IpCidrRange: proto.String(cidr.String()), GatewayAddress: proto.String(cidr.Addr().Next().String()),
		Region:   proto.String(s.link("projects/" + s.cfg.Project + "/regions/" + region)),
		SelfLink: proto.String(s.link(key)), Purpose: proto.String("PRIVATE"), StackType: proto.String("IPV4_ONLY"),
		PrivateIpGoogleAccess: proto.Bool(false), Fingerprint: proto.String("c2ltdWxhdG9y"),
	}
}

func (s *Cloud) dropNetwork(name string) {
	n := s.state.networks[name]
	for key, sub := range s.state.subnetworks {
		if n != nil && sub.GetNetwork() == n.msg.GetSelfLink() {
			delete(s.state.subnetworks, key)
		}
	}
	delete(s.state.networks, name)
}

func (s *Cloud) mtuOf(networkName string) int {
	if n := s.state.networks[networkName]; n != nil {
		return int(n.msg.GetMtu())
	}
	return defaultMTU
}

// nextAddress returns the next internal address of a subnetwork and never returns it
// again. It skips addresses that other simulators on this machine use. If they use all,
// it returns the last one, and the worker fails to start.
func (s *Cloud) nextAddress(subnetwork string) string {
	prefix, err := netip.ParsePrefix(s.state.subnetworks[subnetwork].GetIpCidrRange())
	if err != nil {
		prefix = netip.MustParsePrefix("10.128.0.0/20")
	}
	for {
		s.state.addresses[subnetwork]++
		n := s.state.addresses[subnetwork] + 1 // .1 is the gateway
		b := prefix.Addr().As4()
		b[1], b[2], b[3] = b[1]+byte(n>>16), b[2]+byte(n>>8), b[3]+byte(n)
		if addr := netip.AddrFrom4(b); s.claim(addr) || !prefix.Contains(addr.Next()) {
			return addr.String()
		}
	}
}

// claim reports whether a worker may use addr.
func (s *Cloud) claim(addr netip.Addr) bool {
	claimer, ok := s.workers.(worker.Claimer)
	return !ok || claimer.Claim(addr)
}

func (s *Cloud) serveNetworks(c *computeCall) (any, error) {
	switch {
	case c.verb != "":
		return nil, notModelled("networks." + c.verb)
	case c.id == "" && c.r.Method == http.MethodPost:
		return s.insertNetwork(c)
	case c.id == "":
		var all []proto.Message
		for _, n := range sorted(s.state.networks, nil) {
			all = append(all, n.msg)
		}
		return s.list(c, "compute#networkList", all)
	}
	n := s.state.networks[c.name()]
	switch c.r.Method {
	case http.MethodGet:
		if err := checkQuery(c.query); err != nil {
			return nil, err
		}
		if n == nil {
			return nil, noSuchCompute(c.name())
		}
		return n.msg, nil
	case http.MethodDelete:
		return s.deleteNetwork(c)
	case http.MethodPatch:
		return s.patchNetwork(c, n)
	}
	return nil, unknownMethod()
}

// patchNetwork changes the MTU. Running machines keep their MTU until they are created
// again; Google's keep it until they reboot.
func (s *Cloud) patchNetwork(c *computeCall, n *network) (any, error) {
	if err := checkQuery(c.query, "requestId"); err != nil {
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
		return nil, notModelled("Changing anything of a network but its MTU")
	case mtu < minMTU || mtu > maxMTU:
		return nil, badValue("resource.mtu", fmt.Sprint(mtu), fmt.Sprintf("Must be between %d and %d inclusive.", minMTU, maxMTU))
	}
	return s.startComputeOp(c, "patch", c.name(), n.msg.GetId(), func(ok bool) {
		if ok {
			n.msg.Mtu = proto.Int32(mtu)
		}
	})
}

func (s *Cloud) insertNetwork(c *computeCall) (any, error) {
	if err := checkQuery(c.query, "requestId"); err != nil {
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
	if !idPattern.MatchString(c.id) {
		return nil, badValue("resource.name", c.id, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	}
	if msg.Mtu != nil && (msg.GetMtu() < minMTU || msg.GetMtu() > maxMTU) {
		return nil, badValue("resource.mtu", fmt.Sprint(msg.GetMtu()), fmt.Sprintf("Must be between %d and %d inclusive.", minMTU, maxMTU))
	}
	if mode := msg.GetRoutingConfig().GetRoutingMode(); mode != "" && mode != "REGIONAL" && mode != "GLOBAL" {
		return nil, badValue("resource.routingConfig.routingMode", mode, "Must be REGIONAL or GLOBAL.")
	}
	if msg.IPv4Range != nil || msg.AutoCreateSubnetworks == nil {
		return nil, badValue("resource.IPv4Range", msg.GetIPv4Range(), "Legacy networks are no longer supported: autoCreateSubnetworks must be set.")
	}
	if msg.NetworkProfile != nil || msg.GetEnableUlaInternalIpv6() || msg.InternalIpv6Range != nil {
		return nil, notModelled("A network profile or internal IPv6")
	}
	if s.state.networks[c.name()] != nil {
		return nil, existsCompute(c.name())
	}
	if len(s.state.networks) >= maxNetworks {
		return nil, errorf(http.StatusForbidden, "Quota 'NETWORKS' exceeded.  Limit: %d.0 globally.", maxNetworks).withReason("quotaExceeded")
	}
	name := c.name()
	n := s.putNetwork(&s.state, msg)
	return s.startComputeOp(c, "insert", name, msg.GetId(), func(ok bool) {
		if n.ready = ok; !ok {
			s.dropNetwork(name)
		}
	})
}

func (s *Cloud) deleteNetwork(c *computeCall) (any, error) {
	if err := checkQuery(c.query, "requestId"); err != nil {
		return nil, err
	}
	if op, ok, err := c.replayed(); ok || err != nil {
		return op, err
	}
	name := c.name()
	n := s.state.networks[name]
	if n == nil {
		return nil, noSuchCompute(name)
	}
	if !n.ready {
		return nil, notReady(name)
	}
	for _, f := range sorted(s.state.firewalls, nil) {
		if f.GetNetwork() == n.msg.GetSelfLink() {
			return nil, inUse("network", name, s.computePath("global", "firewalls", f.GetName()))
		}
	}
	if !n.msg.GetAutoCreateSubnetworks() {
		// Subnetworks of auto mode are deleted with their network; a user created these.
		for _, sub := range sorted(s.state.subnetworks, nil) {
			if sub.GetNetwork() == n.msg.GetSelfLink() {
				return nil, inUse("network", name, s.urlToName(sub.GetSelfLink()))
			}
		}
	}
	for _, node := range sorted(s.state.nodes, nil) {
		if slices.ContainsFunc(interfaces(node.msg), func(i *tpualpha.NetworkConfig) bool { return i.Network == name }) {
			return nil, inUse("network", name, fmt.Sprintf("projects/%s/zones/%s/instances/t1v-n-%08x-w-0", s.cfg.Project, node.zone, uint32(node.msg.Id)))
		}
	}
	n.ready = false
	return s.startComputeOp(c, "delete", name, n.msg.GetId(), func(ok bool) {
		if n.ready = true; ok {
			s.dropNetwork(name)
		}
	})
}

func (s *Cloud) serveSubnetworks(c *computeCall) (any, error) {
	region, isRegion := strings.CutPrefix(c.scope, "regions/")
	if isRegion && !slices.Contains(s.regions(), region) {
		return nil, noSuchCompute("projects/" + s.cfg.Project + "/regions/" + region)
	}
	if c.verb != "" || !isRegion && c.id != "" {
		return nil, unknownMethod()
	}
	switch {
	case isRegion && c.id == "" && c.r.Method == http.MethodPost:
		return s.insertSubnetwork(c, region)
	case c.r.Method != http.MethodGet:
		return nil, notModelled("Changing and deleting subnetworks")
	}
	if c.id != "" {
		if err := checkQuery(c.query); err != nil {
			return nil, err
		}
		sub := s.state.subnetworks[c.name()]
		if sub == nil {
			return nil, noSuchCompute(c.name())
		}
		return sub, nil
	}
	var all []proto.Message
	for _, sub := range sorted(s.state.subnetworks, func(key string, _ *computepb.Subnetwork) bool {
		return !isRegion || strings.Contains(key, "/regions/"+region+"/")
	}) {
		all = append(all, sub)
	}
	if isRegion {
		return s.list(c, "compute#subnetworkList", all)
	}
	return s.aggregated(c, all)
}

// insertSubnetwork creates a subnetwork in a custom-mode network. It refuses one that
// overlaps another of the same network.
func (s *Cloud) insertSubnetwork(c *computeCall, region string) (any, error) {
	if err := checkQuery(c.query, "requestId"); err != nil {
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
	if !idPattern.MatchString(c.id) {
		return nil, badValue("resource.name", c.id, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	}
	of, ok := s.globalRef(msg.GetNetwork(), "networks")
	n := s.state.networks[of]
	cidr, err := netip.ParsePrefix(msg.GetIpCidrRange())
	switch {
	case !ok:
		return nil, badValue("resource.network", msg.GetNetwork(), "The URL is malformed.")
	case n == nil:
		return nil, noSuchCompute(of)
	case !n.ready:
		return nil, notReady(of)
	case n.msg.GetAutoCreateSubnetworks():
		return nil, notModelled("A subnetwork of one's own in an auto-mode network")
	case s.state.subnetworks[c.name()] != nil:
		return nil, existsCompute(c.name())
	case err != nil || !cidr.Addr().Is4() || cidr.Masked() != cidr || cidr.Bits() > 29:
		return nil, badValue("resource.ipCidrRange", msg.GetIpCidrRange(), "Must be an IPv4 CIDR range without host bits, at least a /29.")
	}
	if err := plainSubnetwork(msg); err != nil {
		return nil, err
	}
	for _, sub := range sorted(s.state.subnetworks, nil) {
		if sub.GetNetwork() == n.msg.GetSelfLink() && netip.MustParsePrefix(sub.GetIpCidrRange()).Overlaps(cidr) {
			return nil, badValue("resource.ipCidrRange", cidr.String(), fmt.Sprintf("Invalid IPCidrRange: %s conflicts with existing subnetwork '%s' in region '%s'.",
				cidr, sub.GetName(), sub.GetRegion()[strings.LastIndexByte(sub.GetRegion(), '/')+1:]))
		}
	}
	name := c.name()
	sub := s.newSubnetwork(n, name, region, cidr)
	sub.Description = msg.Description
	s.state.subnetworks[name] = sub
	n.msg.Subnetworks = append(n.msg.Subnetworks, sub.GetSelfLink())
	return s.startComputeOp(c, "insert", name, sub.GetId(), func(ok bool) {
		if !ok {
			delete(s.state.subnetworks, name)
			n.msg.Subnetworks = slices.DeleteFunc(n.msg.Subnetworks, func(link string) bool { return link == sub.GetSelfLink() })
		}
	})
}

// plainSubnetwork refuses a subnetwork that asks for more than the simulator models.
func plainSubnetwork(msg *computepb.Subnetwork) error {
	asked := proto.Clone(msg).(*computepb.Subnetwork)
	asked.Name, asked.Network, asked.IpCidrRange, asked.Region, asked.Description = nil, nil, nil, nil, nil
	if asked.GetPrivateIpGoogleAccess() || asked.GetPurpose() != "" && asked.GetPurpose() != "PRIVATE" || asked.GetStackType() != "" && asked.GetStackType() != "IPV4_ONLY" {
		return notModelled("A subnetwork that is not a plain IPv4 one")
	}
	asked.PrivateIpGoogleAccess, asked.Purpose, asked.StackType = nil, nil, nil
	if !proto.Equal(asked, new(computepb.Subnetwork)) {
		return notModelled("A subnetwork with more than a name, a network and a range")
	}
	return nil
}

// aggregated answers an aggregatedList: all items by region, on one page.
func (s *Cloud) aggregated(c *computeCall, all []proto.Message) (any, error) {
	if err := checkQuery(c.query, "filter", "maxResults", "orderBy", "pageToken", "returnPartialSuccess", "includeAllScopes", "serviceProjectNumber"); err != nil {
		return nil, err
	}
	match, err := parseFilter(c.query.Get("filter"))
	if err != nil {
		return nil, err
	}
	out := &computepb.SubnetworkAggregatedList{
		Kind: proto.String("compute#subnetworkAggregatedList"), Id: proto.String("projects/" + s.cfg.Project + "/aggregated/subnetworks"),
		SelfLink: proto.String(s.url + c.r.URL.Path), Items: map[string]*computepb.SubnetworksScopedList{},
	}
	for _, m := range all {
		sub := m.(*computepb.Subnetwork)
		if !match(m) {
			continue
		}
		scope := "regions/" + sub.GetRegion()[strings.LastIndexByte(sub.GetRegion(), '/')+1:]
		if out.Items[scope] == nil {
			out.Items[scope] = &computepb.SubnetworksScopedList{}
		}
		out.Items[scope].Subnetworks = append(out.Items[scope].Subnetworks, sub)
	}
	return out, nil
}
