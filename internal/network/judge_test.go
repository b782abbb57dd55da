package network_test

import (
	"fmt"
	"net/netip"
	"testing"

	"multihost/internal/network"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	internal := network.FirewallRule{Name: "internal", Allow: []string{"tcp:0-65535", "udp", "icmp"}, SourceRanges: []string{"10.128.0.0/9"}}
	named := func(r network.FirewallRule, change func(*network.FirewallRule)) network.FirewallRule {
		change(&r)
		return r
	}
	inside := network.Traffic{From: netip.MustParsePrefix("10.130.0.0/20"), Protocol: "tcp", Port: 8482}
	for _, tt := range []struct {
		story   string
		rules   []network.FirewallRule
		traffic func(*network.Traffic)
		want    bool
		by      string
	}{
		{"no rule denies", nil, nil, false, ""},
		{"a rule for the range allows", []network.FirewallRule{internal}, nil, true, "internal"},
		{"another port of a list", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.Allow = []string{"tcp:22,tcp:8470-8481"} })}, nil, false, ""},
		{"the last port of a range", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.Allow = []string{"tcp:8470-8482"} })}, nil, true, "internal"},
		{"protocols by number", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.Allow = []string{"6"} })}, nil, true, "internal"},
		{"all protocols", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.Allow = []string{"all"} })}, func(t *network.Traffic) { t.Protocol, t.Port = "icmp", 0 }, true, "internal"},
		{"a part of the range is not enough", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.SourceRanges = []string{"10.130.0.0/24"} })}, nil, false, ""},
		{"without a source everybody is meant", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.SourceRanges = nil })}, nil, true, "internal"},
		{"outwards does not count", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.Direction = "EGRESS" })}, nil, false, ""},
		{"disabled does not count", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.Disabled = true })}, nil, false, ""},
		{"service accounts are not known", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.Limited = true })}, nil, false, ""},
		{"for machines with a tag that it has", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.TargetTags = []string{"tpu"} })}, func(t *network.Traffic) { t.Tags = []string{"a", "tpu"} }, true, "internal"},
		{"for machines with a tag that it lacks", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.TargetTags = []string{"web"} })}, func(t *network.Traffic) { t.Tags = []string{"tpu"} }, false, ""},
		{"from machines with a tag", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.SourceRanges, r.SourceTags = nil, []string{"tpu"} })}, func(t *network.Traffic) { t.FromTags = []string{"tpu"} }, true, "internal"},
		{"the smaller priority wins", []network.FirewallRule{internal, {Name: "no", Allow: []string{"tcp:8482"}, Denies: true, Priority: 900, SourceRanges: []string{"10.0.0.0/8"}}}, nil, false, "no"},
		{"a denial of a part denies", []network.FirewallRule{internal, {Name: "no", Allow: []string{"all"}, Denies: true, Priority: 900, SourceRanges: []string{"10.130.3.0/24"}}}, nil, false, "no"},
		{"at one priority the denial wins", []network.FirewallRule{internal, {Name: "no", Allow: []string{"tcp"}, Denies: true, SourceRanges: []string{"10.0.0.0/8"}}}, nil, false, "no"},
		{"a larger priority does not matter", []network.FirewallRule{internal, {Name: "no", Allow: []string{"tcp"}, Denies: true, Priority: 2000}}, nil, true, "internal"},
		{"IPv6 is another world", []network.FirewallRule{named(internal, func(r *network.FirewallRule) { r.SourceRanges = []string{"::/0"} })}, nil, false, ""},
	} {
		traffic := inside
		if tt.traffic != nil {
			tt.traffic(&traffic)
		}
		got := network.Judge(tt.rules, traffic)
		by := ""
		if got.Rule != nil {
			by = got.Rule.Name
		}
		if got.Allowed != tt.want || by != tt.by {
			t.Errorf("%s: allowed = %v by %q, want %v by %q", tt.story, got.Allowed, by, tt.want, tt.by)
		}
	}
	rules := []network.FirewallRule{internal, {Name: "ssh", Allow: []string{"tcp:22"}, SourceRanges: []string{network.IAPRange}},
		{Name: "no", Allow: []string{"tcp:22"}, Denies: true, Priority: 1, SourceRanges: []string{"10.128.0.0/9"}}}
	if got := fmt.Sprint(network.Sources(rules, "tcp", 22, nil)); got != "["+network.IAPRange+"]" {
		t.Errorf("sources of tcp:22 = %s", got)
	}
}

func TestTheMTUOfANetworkInUseIsNotChanged(t *testing.T) {
	t.Parallel()
	c, _, s, _ := startSim(t, "foreign-node node=x type=v4-8")
	if _, err := c.SetMTU(t.Context(), "default", 8896); err == nil {
		t.Error("the MTU of a network with a TPU was changed")
	}
	if err := create(t, c, network.Options{Name: "small", MTU: 1460}); err != nil {
		t.Fatal(err)
	}
	if changed, err := c.SetMTU(t.Context(), "small", 8896); err != nil || !changed {
		t.Fatalf("changed = %v, %v", changed, err)
	}
	before := writes(s)
	if changed, err := c.SetMTU(t.Context(), "small", 8896); err != nil || changed || writes(s) != before {
		t.Errorf("again: changed = %v, %v", changed, err)
	}
	if info, err := c.Show(t.Context(), "small"); err != nil || info.MTU != 8896 {
		t.Errorf("network = %+v, %v", info, err)
	}
}
