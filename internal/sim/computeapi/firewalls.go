package computeapi

import (
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"
)

func (s networks) serveFirewalls(c *computeCall) (any, error) {
	switch {
	case c.verb != "":
		return nil, wire.UnknownMethod()
	case c.id == "" && c.r.Method == http.MethodPost:
		return s.insertFirewall(c)
	case c.id == "":
		var all []proto.Message
		for _, f := range cloud.Sorted(s.State.Firewalls, nil) {
			all = append(all, f)
		}
		return s.list(c, "compute#firewallList", all)
	}
	switch c.r.Method {
	case http.MethodGet, http.MethodDelete, http.MethodPatch:
	case http.MethodPut:
		return nil, wire.NotModelled("firewalls.update")
	default:
		return nil, wire.UnknownMethod()
	}
	params := []string{"requestId"}
	if c.r.Method == http.MethodGet {
		params = nil
	}
	if err := wire.CheckQuery(c.query, params...); err != nil {
		return nil, err
	}
	if op, ok, err := c.replayed(); ok || err != nil {
		return op, err
	}
	f := s.State.Firewalls[c.name()]
	if f == nil {
		return nil, noSuchCompute(c.name())
	}
	name := c.name()
	switch c.r.Method {
	case http.MethodDelete:
		return s.startComputeOp(c, "delete", name, f.GetId(), func(ok bool) {
			if ok {
				delete(s.State.Firewalls, name)
			}
		})
	case http.MethodPatch:
		return s.patchFirewall(c, f)
	}
	return f, nil
}

func (s networks) insertFirewall(c *computeCall) (any, error) {
	if err := wire.CheckQuery(c.query, "requestId"); err != nil {
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
	if s.State.Firewalls[c.name()] != nil {
		return nil, existsCompute(c.name())
	}
	name := c.name()
	s.Networks().PutFirewall(&s.State, msg)
	return s.startComputeOp(c, "insert", name, msg.GetId(), func(ok bool) {
		if !ok {
			delete(s.State.Firewalls, name)
		}
	})
}

// patchFirewall merges the fields that the body names into f.
func (s networks) patchFirewall(c *computeCall, f *computepb.Firewall) (any, error) {
	change := new(computepb.Firewall)
	if err := c.decode(change); err != nil {
		return nil, err
	}
	if change.Name != nil && change.GetName() != f.GetName() || change.Network != nil && s.Networks().URLToName(change.GetNetwork()) != s.Networks().URLToName(f.GetNetwork()) {
		return nil, badValue("resource", change.GetName(), "Name and network of a firewall cannot be changed.")
	}
	next := proto.CloneOf(f)
	// Like a JSON merge patch, a patch replaces lists and does not append to them.
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
		if ok && s.State.Firewalls[name] == f {
			s.State.Firewalls[name] = next
		}
	})
}

func (s networks) checkFirewall(f *computepb.Firewall) error {
	if !cloud.IDPattern.MatchString(f.GetName()) {
		return badValue("resource.name", f.GetName(), "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	}
	if f.Network == nil {
		f.Network = proto.String("global/networks/default")
	}
	name, ok := s.Networks().GlobalRef(f.GetNetwork(), "networks")
	n := s.State.Networks[name]
	switch {
	case !ok:
		return badValue("resource.network", f.GetNetwork(), "The URL is malformed.")
	case n == nil:
		return noSuchCompute(name)
	case !n.Ready:
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
		if !cloud.IDPattern.MatchString(tag) {
			return badValue("resource.tags", tag, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
		}
	}
	return checkProtocols(f)
}

func checkRange(text string) error {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		if _, aerr := netip.ParseAddr(text); aerr == nil {
			return nil // a single address is a range of one address
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
