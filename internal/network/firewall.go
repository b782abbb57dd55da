package network

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/remote"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"
)

// defaultPriority is the API's priority for a rule without one.
const defaultPriority = 1000

// A FirewallRule allows or denies incoming or outgoing traffic of one network.
type FirewallRule struct {
	Name    string `json:"name"`
	Network string `json:"network"`
	// Allow lists the traffic that may pass, in the form of gcloud's --allow: "tcp", "tcp:22",
	// "udp:1-1000", "all". An element may have several of these, separated by commas.
	Allow []string `json:"allow"`
	// SourceRanges are the sources of an ingress rule. If SourceRanges and SourceTags are both
	// empty, the rule applies to traffic from anywhere.
	SourceRanges []string `json:"source_ranges,omitempty"`
	TargetTags   []string `json:"target_tags,omitempty"`
	Priority     int      `json:"priority,omitempty"`  // 0 means the default, 1000
	Direction    string   `json:"direction,omitempty"` // INGRESS (also "") or EGRESS

	// The fields below are only for existing rules.
	Denies     bool     `json:"denies,omitempty"` // the rule denies the traffic in Allow
	Disabled   bool     `json:"disabled,omitempty"`
	SourceTags []string `json:"source_tags,omitempty"`
	Limited    bool     `json:"limited,omitempty"` // applies only to service accounts or destinations
	Owned      bool     `json:"owned"`             // has the mark of this package
}

func (r FirewallRule) withDefaults() FirewallRule {
	if r.Network == "" {
		r.Network = "default"
	}
	r.Direction = strings.ToUpper(r.Direction)
	switch r.Direction {
	case "", "IN":
		r.Direction = "INGRESS"
	case "OUT":
		r.Direction = "EGRESS"
	}
	if r.Priority == 0 {
		r.Priority = defaultPriority
	}
	return r
}

// Validate checks the rule without calling any API.
func (r FirewallRule) Validate() error {
	r = r.withDefaults()
	if err := checkName("firewall rule", r.Name, 63); err != nil {
		return err
	}
	if err := checkName("network", r.Network, 63); err != nil {
		return err
	}
	if r.Direction != "INGRESS" && r.Direction != "EGRESS" {
		return fmt.Errorf("direction %q: want INGRESS or EGRESS", r.Direction)
	}
	if r.Priority < 0 || r.Priority > 65535 {
		return fmt.Errorf("priority %d: want 0 to 65535", r.Priority)
	}
	if _, err := parseAllow(r.Allow); err != nil {
		return err
	}
	if r.Direction == "EGRESS" && len(r.SourceRanges) > 0 {
		return fmt.Errorf("firewall rule %q: an egress rule has no source ranges", r.Name)
	}
	v4, v6 := false, false
	for _, s := range r.SourceRanges {
		p, err := parseRange(s)
		if err != nil {
			return err
		}
		v4, v6 = v4 || p.Addr().Is4(), v6 || !p.Addr().Is4()
	}
	if v4 && v6 {
		return fmt.Errorf("firewall rule %q: one rule cannot have IPv4 and IPv6 ranges; make two", r.Name)
	}
	for _, tag := range r.TargetTags {
		if err := checkName("target tag", tag, 63); err != nil {
			return err
		}
	}
	return nil
}

// allowed is one protocol and its ports. No ports means all.
type allowed struct {
	protocol string
	ports    []string
}

var (
	protocolPattern = regexp.MustCompile(`^([a-z]+|[0-9]{1,3})$`)
	portPattern     = regexp.MustCompile(`^([0-9]{1,5})(?:-([0-9]{1,5}))?$`)
)

// parseAllow parses the elements of --allow.
func parseAllow(list []string) ([]allowed, error) {
	var out []allowed
	for _, element := range list {
		for _, word := range strings.Split(element, ",") {
			a, err := parseAllowed(strings.TrimSpace(word))
			if err != nil {
				return nil, err
			}
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("allow is empty: want protocols such as tcp,icmp,udp or tcp:22")
	}
	return out, nil
}

func parseAllowed(word string) (allowed, error) {
	protocol, port, hasPort := strings.Cut(strings.ToLower(word), ":")
	known := []string{"tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all"}
	if n, err := strconv.Atoi(protocol); err == nil && n > 255 || !protocolPattern.MatchString(protocol) || (err != nil && !slices.Contains(known, protocol)) {
		return allowed{}, fmt.Errorf("allow %q: no such protocol %q; want one of %s, or a number", word, protocol, strings.Join(known, ", "))
	}
	a := allowed{protocol: protocol}
	if !hasPort {
		return a, nil
	}
	if !slices.Contains([]string{"tcp", "udp", "sctp", "6", "17", "132"}, protocol) {
		return a, fmt.Errorf("allow %q: %s has no ports", word, protocol)
	}
	m := portPattern.FindStringSubmatch(port)
	if m == nil {
		return a, fmt.Errorf("allow %q: want a port or a range such as 22 or 8000-9000", word)
	}
	low, _ := strconv.Atoi(m[1])
	high := low
	if m[2] != "" {
		high, _ = strconv.Atoi(m[2])
	}
	if low > high || high > 65535 {
		return a, fmt.Errorf("allow %q: no such ports", word)
	}
	a.ports = []string{port}
	return a, nil
}

// exposes reports whether the rule allows traffic from the whole internet.
func (r FirewallRule) exposes() bool {
	if r.Direction != "INGRESS" {
		return false
	}
	if len(r.SourceRanges) == 0 && len(r.SourceTags) == 0 {
		return true
	}
	for _, s := range r.SourceRanges {
		if p, err := parseRange(s); err == nil && p.Bits() == 0 {
			return true
		}
	}
	return false
}

// body returns the rule in the form of the Compute API, without default values, as gcloud
// sends it.
func (r FirewallRule) body(project string) *computepb.Firewall {
	fw := &computepb.Firewall{
		Name:        proto.String(r.Name),
		Description: proto.String(firewallMark(r.Network)),
		Direction:   proto.String(r.Direction),
		Network:     proto.String(fmt.Sprintf("https://www.googleapis.com/compute/v1/projects/%s/global/networks/%s", project, r.Network)),
		TargetTags:  r.TargetTags,
	}
	if r.Priority != defaultPriority {
		fw.Priority = proto.Int32(int32(r.Priority))
	}
	for _, s := range r.SourceRanges {
		if p, err := parseRange(s); err == nil {
			s = p.String()
		}
		fw.SourceRanges = append(fw.SourceRanges, s)
	}
	list, _ := parseAllow(r.Allow)
	for _, a := range list {
		fw.Allowed = append(fw.Allowed, &computepb.Allowed{IPProtocol: proto.String(a.protocol), Ports: a.ports})
	}
	return fw
}

// gcloud returns the command line of gcloud that creates the same rule.
func (r FirewallRule) gcloud(project string) string {
	words := []string{
		"gcloud", "compute", "firewall-rules", "create", r.Name,
		"--project=" + project,
		"--network=" + r.Network,
		"--allow=" + strings.Join(r.Allow, ","),
	}
	if r.Direction != "INGRESS" {
		words = append(words, "--direction="+r.Direction)
	}
	if r.Priority != defaultPriority {
		words = append(words, fmt.Sprintf("--priority=%d", r.Priority))
	}
	if len(r.SourceRanges) > 0 {
		words = append(words, "--source-ranges="+strings.Join(r.SourceRanges, ","))
	}
	if len(r.TargetTags) > 0 {
		words = append(words, "--target-tags="+strings.Join(r.TargetTags, ","))
	}
	return remote.CommandLine(append(words, "--description="+firewallMark(r.Network))...)
}

// ruleOf converts an existing rule.
func ruleOf(fw *computepb.Firewall) FirewallRule {
	r := FirewallRule{
		Name:         fw.GetName(),
		Network:      gcp.BaseName(fw.GetNetwork()),
		SourceRanges: fw.GetSourceRanges(),
		SourceTags:   fw.GetSourceTags(),
		TargetTags:   fw.GetTargetTags(),
		Priority:     defaultPriority,
		Direction:    fw.GetDirection(),
		Disabled:     fw.GetDisabled(),
		Owned:        owned(fw.GetDescription()),
		Limited:      len(fw.GetSourceServiceAccounts())+len(fw.GetTargetServiceAccounts())+len(fw.GetDestinationRanges()) > 0,
	}
	if fw.Priority != nil {
		r.Priority = int(fw.GetPriority())
	}
	for _, a := range fw.GetAllowed() {
		r.Allow = append(r.Allow, words(a.GetIPProtocol(), a.GetPorts())...)
	}
	for _, d := range fw.GetDenied() {
		r.Denies = true
		r.Allow = append(r.Allow, words(d.GetIPProtocol(), d.GetPorts())...)
	}
	if r.Direction == "" {
		r.Direction = "INGRESS"
	}
	return r
}

func words(protocol string, ports []string) []string {
	if len(ports) == 0 {
		return []string{protocol}
	}
	var out []string
	for _, p := range ports {
		out = append(out, protocol+":"+p)
	}
	return out
}

// differences compares an existing rule with the wanted one. It ignores the order and the
// spelling of ranges, tags and protocols. Both rules must have their defaults set.
func differences(have, want FirewallRule) []Difference {
	var out []Difference
	compare := func(field, h, w string) {
		if h != w {
			out = append(out, Difference{field, h, w})
		}
	}
	compare("network", have.Network, want.Network)
	compare("direction", have.Direction, want.Direction)
	compare("action", action(have), action(want))
	compare("allow", canonicalAllow(have.Allow), canonicalAllow(want.Allow))
	compare("source ranges", canonicalRanges(have), canonicalRanges(want))
	compare("source tags", canonicalSet(have.SourceTags), canonicalSet(want.SourceTags))
	compare("target tags", canonicalSet(have.TargetTags), canonicalSet(want.TargetTags))
	compare("priority", strconv.Itoa(have.Priority), strconv.Itoa(want.Priority))
	compare("disabled", strconv.FormatBool(have.Disabled), strconv.FormatBool(want.Disabled))
	return out
}

func action(r FirewallRule) string {
	if r.Denies {
		return "deny"
	}
	return "allow"
}

func canonicalSet(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ",")
}

func canonicalAllow(list []string) string {
	var all []string
	for _, element := range list {
		for _, w := range strings.Split(strings.ToLower(element), ",") {
			all = append(all, strings.TrimSpace(w))
		}
	}
	return canonicalSet(all)
}

func canonicalRanges(r FirewallRule) string {
	var list []string
	for _, s := range r.SourceRanges {
		if p, err := parseRange(s); err == nil {
			s = p.Masked().String()
		}
		list = append(list, s)
	}
	if len(list) == 0 && len(r.SourceTags) == 0 && r.Direction == "INGRESS" {
		list = []string{anywhere4}
	}
	return canonicalSet(list)
}

// PlanFirewall returns what CreateFirewall would do. It only reads.
func (c *Client) PlanFirewall(ctx context.Context, rule FirewallRule) (Plan, error) {
	if err := rule.Validate(); err != nil {
		return Plan{}, err
	}
	rule = rule.withDefaults()
	network, err := c.calls.getNetwork(ctx, rule.Network)
	if err != nil {
		return Plan{}, err
	}
	if network == nil {
		return Plan{}, &MissingError{Network: rule.Network}
	}
	rules, err := c.calls.listFirewalls(ctx)
	if err != nil {
		return Plan{}, err
	}
	c.warnExposed(rule, "--source-ranges")
	return Plan{Actions: []Action{c.planRule(rule, rules)}}, nil
}

// CreateFirewall creates one rule, unless an equal one exists, and reports whether it did. As in
// gcloud, a rule without source ranges allows the whole internet. CreateFirewall warns about such
// a rule.
func (c *Client) CreateFirewall(ctx context.Context, rule FirewallRule) (created bool, err error) {
	plan, err := c.PlanFirewall(ctx, rule)
	if err != nil {
		return false, err
	}
	return plan.Changes() > 0, c.Apply(ctx, plan)
}

// DeleteFirewall deletes one rule that this package created, and reports whether it
// existed. For any other rule it returns a *NotOursError.
func (c *Client) DeleteFirewall(ctx context.Context, name string) (deleted bool, err error) {
	if err := checkName("firewall rule", name, 63); err != nil {
		return false, err
	}
	fw, err := c.calls.getFirewall(ctx, name)
	if err != nil {
		return false, err
	}
	if fw == nil {
		c.sayAbsent("firewall rule", name)
		return false, nil
	}
	if !owned(fw.GetDescription()) {
		return false, &NotOursError{Resource: "firewall rule", Name: name, Description: fw.GetDescription(), project: c.gcp.Project()}
	}
	return c.calls.deleteFirewall(ctx, name)
}

// ShowFirewalls returns the rules of a network, sorted by network and name. If network is "", it
// returns the rules of all networks.
func (c *Client) ShowFirewalls(ctx context.Context, network string) ([]FirewallRule, error) {
	all, err := c.calls.listFirewalls(ctx)
	if err != nil {
		return nil, err
	}
	out := []FirewallRule{}
	for _, fw := range all {
		if r := ruleOf(fw); network == "" || r.Network == network {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b FirewallRule) int {
		if c := strings.Compare(a.Network, b.Network); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out, nil
}

// warnExposed warns if a rule is open to the whole internet. flag is the flag that
// limits the sources.
func (c *Client) warnExposed(r FirewallRule, flag string) {
	if !r.exposes() {
		return
	}
	event.Notef(c.gcp.Sink(), event.Warn, fmt.Sprintf("allow known addresses only: %s=%s for IAP, or %s=YOUR_ADDRESS/32", flag, IAPRange, flag),
		"firewall rule %q opens %s on every machine of network %q to the whole internet (%s)", r.Name, strings.Join(r.Allow, ","), r.Network, anywhere4)
}
