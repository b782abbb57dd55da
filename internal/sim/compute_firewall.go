package sim

import (
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"
)

func (s *Cloud) serveFirewalls(c *computeCall) (any, error) {
	switch {
	case c.verb != "":
		return nil, unknownMethod()
	case c.id == "" && c.r.Method == http.MethodPost:
		return s.insertFirewall(c)
	case c.id == "":
		var all []proto.Message
		for _, f := range sorted(s.state.firewalls, nil) {
			all = append(all, f)
		}
		return s.list(c, "compute#firewallList", all)
	}
	switch c.r.Method {
	case http.MethodGet, http.MethodDelete, http.MethodPatch:
	case http.MethodPut:
		return nil, notModelled("firewalls.update")
	default:
		return nil, unknownMethod()
	}
	params := []string{"requestId"}
	if c.r.Method == http.MethodGet {
		params = nil
	}
	if err := checkQuery(c.query, params...); err != nil {
		return nil, err
	}
	if op, ok, err := c.replayed(); ok || err != nil {
		return op, err
	}
	f := s.state.firewalls[c.name()]
	if f == nil {
		return nil, noSuchCompute(c.name())
	}
	name := c.name()
	switch c.r.Method {
	case http.MethodDelete:
		return s.startComputeOp(c, "delete", name, f.GetId(), func(ok bool) {
			if ok {
				delete(s.state.firewalls, name)
			}
		})
	case http.MethodPatch:
		return s.patchFirewall(c, f)
	}
	return f, nil
}

func (s *Cloud) insertFirewall(c *computeCall) (any, error) {
	if err := checkQuery(c.query, "requestId"); err != nil {
		return nil, err
	}
	if op, ok, err := c.replayed(); ok || err != nil {
		return op, err
	}
	msg := new(computepb.Firewall)
	if err := c.decode(msg); err != nil {
		return nil, err
	}
	c.id = msg.GetName()
	if err := s.checkFirewall(msg); err != nil {
		return nil, err
	}
	if s.state.firewalls[c.name()] != nil {
		return nil, existsCompute(c.name())
	}
	name := c.name()
	s.putFirewall(&s.state, msg)
	return s.startComputeOp(c, "insert", name, msg.GetId(), func(ok bool) {
		if !ok {
			delete(s.state.firewalls, name)
		}
	})
}

// patchFirewall merges the fields that the body names into f.
func (s *Cloud) patchFirewall(c *computeCall, f *computepb.Firewall) (any, error) {
	change := new(computepb.Firewall)
	if err := c.decode(change); err != nil {
		return nil, err
	}
	if change.Name != nil && change.GetName() != f.GetName() || change.Network != nil && s.urlToName(change.GetNetwork()) != s.urlToName(f.GetNetwork()) {
		return nil, badValue("resource", change.GetName(), "Name and network of a firewall cannot be changed.")
	}
	next := proto.CloneOf(f)
	// A patch replaces lists, as JSON merge patch does; it does not append to them.
	replaced := func(from []string, to *[]string) {
		if len(from) > 0 {
			*to = nil
		}
	}
	replaced(change.SourceRanges, &next.SourceRanges)
	replaced(change.SourceTags, &next.SourceTags)
	replaced(change.TargetTags, &next.TargetTags)
	replaced(change.DestinationRanges, &next.DestinationRanges)
	if len(change.Allowed) > 0 || len(change.Denied) > 0 {
		next.Allowed, next.Denied = nil, nil
	}
	proto.Merge(next, change)
	next.Id, next.Kind, next.SelfLink, next.CreationTimestamp = f.Id, f.Kind, f.SelfLink, f.CreationTimestamp
	if err := s.checkFirewall(next); err != nil {
		return nil, err
	}
	name := c.name()
	return s.startComputeOp(c, "patch", name, f.GetId(), func(ok bool) {
		if ok && s.state.firewalls[name] == f {
			s.state.firewalls[name] = next
		}
	})
}

// putFirewall fills in the fields that the service fills in, and stores the rule.
func (s *Cloud) putFirewall(st *state, f *computepb.Firewall) {
	name := s.computePath("global", "firewalls", f.GetName())
	f.Kind, f.Id, f.CreationTimestamp, f.SelfLink = proto.String("compute#firewall"), proto.Uint64(uint64(newID())), proto.String(s.timestamp()), proto.String(s.link(name))
	network, _ := s.globalRef(f.GetNetwork(), "networks")
	f.Network = proto.String(s.link(network))
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
	st.firewalls[name] = f
}

func (s *Cloud) checkFirewall(f *computepb.Firewall) error {
	if !idPattern.MatchString(f.GetName()) {
		return badValue("resource.name", f.GetName(), "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	}
	if f.Network == nil {
		f.Network = proto.String("global/networks/default")
	}
	name, ok := s.globalRef(f.GetNetwork(), "networks")
	n := s.state.networks[name]
	switch {
	case !ok:
		return badValue("resource.network", f.GetNetwork(), "The URL is malformed.")
	case n == nil:
		return noSuchCompute(name)
	case !n.ready:
		return notReady(name)
	}
	egress := f.GetDirection() == "EGRESS"
	switch {
	case f.Direction != nil && !egress && f.GetDirection() != "INGRESS":
		return badValue("resource.direction", f.GetDirection(), "Must be INGRESS or EGRESS.")
	case (len(f.Allowed) == 0) == (len(f.Denied) == 0):
		return badValue("resource", f.GetName(), "Exactly one of allowed and denied must be specified.")
	case egress && len(f.SourceRanges)+len(f.SourceTags) > 0:
		return badValue("resource.sourceRanges", fmt.Sprint(f.SourceRanges), "Sources cannot be specified for EGRESS.")
	case f.GetPriority() < 0 || f.GetPriority() > 65535:
		return badValue("resource.priority", fmt.Sprint(f.GetPriority()), "Must be between 0 and 65535.")
	}
	for _, text := range append(slices.Clone(f.SourceRanges), f.DestinationRanges...) {
		if err := checkRange(text); err != nil {
			return err
		}
	}
	for _, tag := range append(slices.Clone(f.SourceTags), f.TargetTags...) {
		if !idPattern.MatchString(tag) {
			return badValue("resource.tags", tag, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
		}
	}
	return checkProtocols(f)
}

func checkRange(text string) error {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		if _, aerr := netip.ParseAddr(text); aerr == nil {
			return nil // a single address is a range of one
		}
		return badValue("resource.sourceRanges[0]", text, "Must be a valid CIDR range.")
	}
	if p.Masked() != p {
		return badValue("resource.sourceRanges[0]", text, "Invalid IPCidrRange: the network has host bits set.")
	}
	return nil
}

var (
	protocolPattern = regexp.MustCompile(`^(all|tcp|udp|icmp|esp|ah|sctp|ipip|[0-9]{1,3})$`)
	portPattern     = regexp.MustCompile(`^[0-9]{1,5}(-[0-9]{1,5})?$`)
)

func checkProtocols(f *computepb.Firewall) error {
	check := func(protocol string, ports []string) error {
		if !protocolPattern.MatchString(protocol) {
			return badValue("resource.allowed[0].IPProtocol", protocol, "Must be a well-known protocol name or number.")
		}
		if len(ports) > 0 && !slices.Contains([]string{"tcp", "udp", "sctp", "6", "17", "132"}, protocol) {
			return badValue("resource.allowed[0].ports", fmt.Sprint(ports), "Ports may only be specified for tcp, udp and sctp.")
		}
		for _, p := range ports {
			if !portPattern.MatchString(p) {
				return badValue("resource.allowed[0].ports[0]", p, "Must be a port or a range of ports.")
			}
		}
		return nil
	}
	for _, a := range f.Allowed {
		if err := check(a.GetIPProtocol(), a.Ports); err != nil {
			return err
		}
	}
	for _, d := range f.Denied {
		if err := check(d.GetIPProtocol(), d.Ports); err != nil {
			return err
		}
	}
	return nil
}
