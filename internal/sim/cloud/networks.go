package cloud

import (
	"fmt"
	"net/netip"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/worker"
)

// A Network is a network and the state of its insertion: ready means done.
type Network struct {
	Msg   *computepb.Network
	Ready bool
}

// The limits of an MTU, and the MTU of a network created without one.
const (
	MinMTU     = 1300
	MaxMTU     = 8896
	defaultMTU = 1460
)

// autoRanges returns the subnetworks of an auto-mode network by region, all within
// 10.128.0.0/9. Other regions get a free range.
func autoRanges() map[string]string {
	return map[string]string{
		"us-central1": "10.128.0.0/20", "europe-west1": "10.132.0.0/20", "us-west1": "10.138.0.0/20", "asia-east1": "10.140.0.0/20",
		"us-east1": "10.142.0.0/20", "asia-northeast1": "10.146.0.0/20", "europe-west4": "10.164.0.0/20", "us-west4": "10.182.0.0/20",
		"southamerica-west1": "10.194.0.0/20", "us-east5": "10.202.0.0/20", "us-south1": "10.206.0.0/20", "us-central2": "10.222.0.0/20",
	}
}

func (s Networks) addDefaultNetwork(st *state) {
	s.PutNetwork(st, &computepb.Network{
		Name: proto.String("default"), Description: proto.String("Default network for the project"),
		AutoCreateSubnetworks: proto.Bool(true),
	}).Ready = true
	s.addDefaultRules(st, "default")
}

// addDefaultRules adds to a network the rules that the service adds to "default".
func (s Networks) addDefaultRules(st *state, network string) {
	rule := func(name, ranges, protocol string, ports ...string) {
		s.PutFirewall(st, &computepb.Firewall{
			Name: proto.String(network + "-allow-" + name), Network: proto.String("global/networks/" + network), Priority: proto.Int32(65534),
			SourceRanges: []string{ranges}, Allowed: []*computepb.Allowed{{IPProtocol: proto.String(protocol), Ports: ports}},
		})
	}
	rule("icmp", "0.0.0.0/0", "icmp")
	rule("ssh", "0.0.0.0/0", "tcp", "22")
	rule("internal", "10.128.0.0/9", "all")
}

// ensureNetwork creates the network id, ready for use, unless it exists.
func (s Networks) ensureNetwork(id string) {
	if s.State.Networks[s.ComputePath("global", "networks", id)] == nil {
		s.PutNetwork(&s.State, &computepb.Network{
			Name: proto.String(id), AutoCreateSubnetworks: proto.Bool(true), Mtu: proto.Int32(MaxMTU),
		}).Ready = true
		s.addDefaultRules(&s.State, id)
	}
}

// PutNetwork stores msg, filled in as by the service, and in auto mode creates the
// subnetworks.
func (s Networks) PutNetwork(st *state, msg *computepb.Network) *Network {
	name := s.ComputePath("global", "networks", msg.GetName())
	msg.Kind, msg.Id, msg.CreationTimestamp = proto.String("compute#network"), proto.Uint64(uint64(NewID())), proto.String(s.Timestamp())
	msg.SelfLink, msg.SelfLinkWithId = proto.String(s.Link(name)), proto.String(s.Link(s.ComputePath("global", "networks", fmt.Sprint(msg.GetId()))))
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
	n := &Network{Msg: msg}
	st.Networks[name] = n
	if !msg.GetAutoCreateSubnetworks() {
		return n
	}
	next := 224
	for _, region := range s.Catalog().Regions() {
		cidr := autoRanges()[region]
		if cidr == "" {
			cidr = fmt.Sprintf("10.%d.0.0/20", next)
			next += 2
		}
		key := s.ComputePath("regions/"+region, "subnetworks", msg.GetName())
		st.Subnetworks[key] = s.NewSubnetwork(n, key, region, netip.MustParsePrefix(cidr))
		msg.Subnetworks = append(msg.Subnetworks, s.Link(key))
	}
	return n
}

// NewSubnetwork returns a subnetwork of n, filled in as by the service. key is the path of
// the subnetwork.
func (s Networks) NewSubnetwork(n *Network, key, region string, cidr netip.Prefix) *computepb.Subnetwork {
	return &computepb.Subnetwork{
		Kind: proto.String("compute#subnetwork"), Id: proto.Uint64(uint64(NewID())), Name: proto.String(key[strings.LastIndexByte(key, '/')+1:]),
		CreationTimestamp: proto.String(s.Timestamp()), Network: n.Msg.SelfLink,
		IpCidrRange: proto.String(cidr.String()), GatewayAddress: proto.String(cidr.Addr().Next().String()),
		Region:   proto.String(s.Link("projects/" + s.Config.Project + "/regions/" + region)),
		SelfLink: proto.String(s.Link(key)), Purpose: proto.String("PRIVATE"), StackType: proto.String("IPV4_ONLY"),
		PrivateIpGoogleAccess: proto.Bool(false), Fingerprint: proto.String("c2ltdWxhdG9y"),
	}
}

func (s Networks) mtuOf(networkName string) int {
	if n := s.State.Networks[networkName]; n != nil {
		return int(n.Msg.GetMtu())
	}
	return defaultMTU
}

// nextAddress returns the next internal address of a subnetwork, and never the same one
// twice. Networks have the same ranges, but this machine reaches the workers of all of
// them, so no two workers share an address, whatever their networks. It skips addresses of
// other simulators on this machine. If they use all, it returns the last one, and the
// worker fails to start.
func (s Networks) nextAddress(subnetwork string) string {
	prefix, err := netip.ParsePrefix(s.State.Subnetworks[subnetwork].GetIpCidrRange())
	if err != nil {
		prefix = netip.MustParsePrefix("10.128.0.0/20")
	}
	for {
		s.State.addresses[subnetwork]++
		n := s.State.addresses[subnetwork] + 1 // .1 is the gateway
		b := prefix.Addr().As4()
		b[1], b[2], b[3] = b[1]+byte(n>>16), b[2]+byte(n>>8), b[3]+byte(n)
		addr := netip.AddrFrom4(b)
		if !s.State.assigned[addr] && (s.claim(addr) || !prefix.Contains(addr.Next())) {
			s.State.assigned[addr] = true
			return addr.String()
		}
	}
}

// claim reports whether a worker may use addr.
func (s Networks) claim(addr netip.Addr) bool {
	claimer, ok := s.Workers.(worker.Claimer)
	return !ok || claimer.Claim(addr)
}

// ProjectNumber is the number of the project. Every project of the real service has one.
const ProjectNumber = "123456789012"

// ComputePath returns the resource name of a compute resource.
func (s Networks) ComputePath(scope, collection, id string) string {
	return "projects/" + s.Config.Project + "/" + scope + "/" + collection + "/" + id
}

// Link returns the URL of a compute resource.
func (s Networks) Link(name string) string { return s.BaseURL + "/compute/v1/" + name }

// URLToName returns the part projects/… of a URL of a compute resource.
func (s Networks) URLToName(link string) string {
	if i := strings.Index(link, "/projects/"); i >= 0 {
		return link[i+1:]
	}
	return link
}

// GlobalRef returns the name of a global resource from its URL, its path or its bare name.
func (s Networks) GlobalRef(text, collection string) (name string, ok bool) {
	return s.Ref(text, "global", collection)
}

func (s Networks) regionRef(text, region, collection string) (name string, ok bool) {
	return s.Ref(text, "regions/"+region, collection)
}

// Ref returns the name of a resource from its URL, its path or its bare name. The bool is
// false if text is none of these.
func (s Networks) Ref(text, scope, collection string) (string, bool) {
	id := text[strings.LastIndexByte(text, '/')+1:]
	name := s.ComputePath(scope, collection, id)
	short := scope + "/" + collection + "/" + id
	ok := id != "" && (text == id || text == short || s.URLToName(text) == name)
	return name, ok
}

// PutFirewall stores the rule, filled in as by the service.
func (s Networks) PutFirewall(st *state, f *computepb.Firewall) {
	name := s.ComputePath("global", "firewalls", f.GetName())
	f.Kind, f.Id, f.CreationTimestamp, f.SelfLink = proto.String("compute#firewall"), proto.Uint64(uint64(NewID())), proto.String(s.Timestamp()), proto.String(s.Link(name))
	network, _ := s.GlobalRef(f.GetNetwork(), "networks")
	f.Network = proto.String(s.Link(network))
	if f.Direction == nil {
		f.Direction = proto.String("INGRESS")
	}
	if f.Priority == nil {
		f.Priority = proto.Int32(1000)
	}
	if f.GetDirection() == "INGRESS" && len(f.SourceRanges)+len(f.SourceTags)+len(f.SourceServiceAccounts) == 0 {
		f.SourceRanges = []string{"0.0.0.0/0"}
	}
	if f.GetDirection() == "EGRESS" && len(f.DestinationRanges) == 0 {
		f.DestinationRanges = []string{"0.0.0.0/0"}
	}
	if f.Disabled == nil {
		f.Disabled = proto.Bool(false)
	}
	if f.LogConfig == nil {
		f.LogConfig = &computepb.FirewallLogConfig{Enable: proto.Bool(false)}
	}
	st.Firewalls[name] = f
}
