package network_test

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/network"
)

func TestCreateMakesTheNetworkOfTheSeeds(t *testing.T) {
	c, f, n := setUp(t)
	if err := create(t, c, network.Options{}); err != nil {
		t.Fatal(err)
	}
	wantNetwork := map[string]any{
		"name": "mtu9k", "mtu": 8896.0, "autoCreateSubnetworks": true,
		"routingConfig": map[string]any{"routingMode": "REGIONAL"},
		"description":   "made by multihost; remove with: multihost network delete mtu9k",
	}
	if diff := cmp.Diff(wantNetwork, f.networks["mtu9k"]); diff != "" {
		t.Errorf("network (-want +got):\n%s", diff)
	}
	wantInternal := map[string]any{
		"name": "mtu9k-internal", "direction": "INGRESS",
		"network":      "https://www.googleapis.com/compute/v1/projects/p/global/networks/mtu9k",
		"allowed":      []any{map[string]any{"IPProtocol": "tcp"}, map[string]any{"IPProtocol": "icmp"}, map[string]any{"IPProtocol": "udp"}},
		"sourceRanges": []any{"10.128.0.0/9"},
		"description":  "made by multihost for network mtu9k",
	}
	if diff := cmp.Diff(wantInternal, f.firewalls["mtu9k-internal"]); diff != "" {
		t.Errorf("internal rule (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{"35.235.240.0/20"}, f.firewalls["mtu9k-ssh"]["sourceRanges"]); diff != "" {
		t.Errorf("source of SSH (-want +got):\n%s", diff)
	}
	if got, want := f.Writes(), []string{"POST networks", "POST firewalls", "POST firewalls"}; !slices.Equal(got, want) {
		t.Errorf("writes = %v, want %v", got, want)
	}
	if slices.Contains(f.requestIDs, "") {
		t.Errorf("a write had no request id: %v", f.requestIDs)
	}
	if !n.Said(event.Info, "--source-ranges=YOUR_ADDRESS/32") {
		t.Errorf("no hint how to let one's own address in: %v", n.Notes())
	}
}

func TestSecondCreateChangesNothingAndSaysSo(t *testing.T) {
	c, f, n := setUp(t)
	if err := create(t, c, network.Options{}); err != nil {
		t.Fatal(err)
	}
	before := len(f.Writes())
	if err := create(t, c, network.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := f.Writes()[before:]; len(got) != 0 {
		t.Errorf("second create wrote %v", got)
	}
	if !n.Said(event.Info, "nothing to change: network mtu9k") {
		t.Errorf("second create did not say that nothing changed: %v", n.Notes())
	}
}

func TestPlanOnlyReads(t *testing.T) {
	c, f, _ := setUp(t)
	plan, err := c.Plan(t.Context(), network.Options{AllPortsFrom: []string{"0.0.0.0/0"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Writes(); len(got) != 0 {
		t.Errorf("plan wrote %v", got)
	}
	want := `create   network mtu9k
    gcloud compute networks create mtu9k --project=p --mtu=8896 --subnet-mode=auto --bgp-routing-mode=regional --description='made by multihost; remove with: multihost network delete mtu9k'
create   firewall mtu9k-internal
    gcloud compute firewall-rules create mtu9k-internal --project=p --network=mtu9k --allow=tcp,icmp,udp --source-ranges=10.128.0.0/9 --description='made by multihost for network mtu9k'
create   firewall mtu9k-ssh
    gcloud compute firewall-rules create mtu9k-ssh --project=p --network=mtu9k --allow=tcp:22 --source-ranges=35.235.240.0/20 --description='made by multihost for network mtu9k'
create   firewall mtu9k-all
    gcloud compute firewall-rules create mtu9k-all --project=p --network=mtu9k --allow=tcp,icmp,udp --source-ranges=0.0.0.0/0 --description='made by multihost for network mtu9k'
`
	if diff := cmp.Diff(want, plan.String()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	// A shell must split the lines into the intended words.
	script := strings.ReplaceAll(plan.Actions[0].Gcloud, "gcloud ", "printf '%s\\n' ")
	out, err := exec.Command("sh", "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "\n--description=made by multihost; remove with: multihost network delete mtu9k\n") {
		t.Errorf("a shell reads %q", out)
	}
}

func TestAllPortsFromAnywhereWarns(t *testing.T) {
	c, _, n := setUp(t)
	if err := create(t, c, network.Options{AllPortsFrom: []string{"0.0.0.0/0"}}); err != nil {
		t.Fatal(err)
	}
	if !n.Said(event.Warn, "whole internet") || !n.Said(event.Warn, "--all-ports-from=") {
		t.Errorf("no warning: %v", n.Notes())
	}
}

func TestNetworkThatIsDifferent(t *testing.T) {
	c, f, _ := setUp(t)
	f.networks["mtu9k"] = map[string]any{"name": "mtu9k", "autoCreateSubnetworks": true, "mtu": 1460, "routingConfig": map[string]any{"routingMode": "REGIONAL"}}
	plan, err := c.Plan(t.Context(), network.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if plan.Actions[0].Verb != network.Conflict {
		t.Errorf("verb = %q, want conflict", plan.Actions[0].Verb)
	}
	err = c.Apply(t.Context(), plan)
	var me *network.MismatchError
	if !errors.As(err, &me) {
		t.Fatalf("error = %v, want *MismatchError", err)
	}
	if want := `network "mtu9k" exists and is different: MTU is 1460, wanted 8896`; err.Error() != want {
		t.Errorf("error = %q, want %q", err, want)
	}
	for _, part := range []string{"multihost network create OTHER", "gcloud compute networks delete mtu9k", "--mtu=1460"} {
		if !strings.Contains(gcp.Hint(err), part) {
			t.Errorf("hint = %q, want %q in it", gcp.Hint(err), part)
		}
	}
	if got := f.Writes(); len(got) != 0 {
		t.Errorf("wrote %v in spite of the conflict", got)
	}
}

func TestNetworkWithoutMTUHas1460(t *testing.T) {
	c, f, _ := setUp(t)
	f.networks["old"] = map[string]any{"name": "old", "autoCreateSubnetworks": false}
	plan, err := c.Plan(t.Context(), network.Options{Name: "old", MTU: 1460, SubnetMode: "custom"})
	if err != nil {
		t.Fatal(err)
	}
	if plan.Err() != nil || plan.Actions[0].Verb != network.Keep {
		t.Errorf("action = %+v", plan.Actions[0])
	}
}

func TestFirewallRuleThatIsDifferent(t *testing.T) {
	c, f, _ := setUp(t)
	if err := create(t, c, network.Options{}); err != nil {
		t.Fatal(err)
	}
	before := len(f.Writes())
	err := create(t, c, network.Options{SSHSourceRanges: []string{"203.0.113.7"}})
	var me *network.MismatchError
	if !errors.As(err, &me) {
		t.Fatalf("error = %v, want *MismatchError", err)
	}
	want := []network.Difference{{Field: "source ranges", Have: "35.235.240.0/20", Want: "203.0.113.7/32"}}
	if diff := cmp.Diff(want, me.Differences); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	for _, command := range []string{"multihost network firewall create mtu9k-ssh-2 --network=mtu9k --allow=tcp:22 --source-ranges=203.0.113.7/32; ", "multihost network firewall delete mtu9k-ssh"} {
		if !strings.Contains(gcp.Hint(err), command) {
			t.Errorf("hint = %q, want %q in it", gcp.Hint(err), command)
		}
	}
	if len(f.Writes()) != before {
		t.Errorf("wrote %v", f.Writes()[before:])
	}
}

func TestFirewallIsRetriedUntilTheNetworkIsReady(t *testing.T) {
	tests := []struct {
		story  string
		status int
		body   string
	}{
		{"refused at once", 400, errorBody(400, "resourceNotReady", "The resource 'projects/p/global/networks/mtu9k' is not ready")},
		{"operation fails", 0, `{"errors":[{"code":"RESOURCE_NOT_READY","message":"The resource 'projects/p/global/networks/mtu9k' is not ready"}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			c, f, _ := setUp(t)
			f.onWrite = func(call string, n int) (int, string, bool) {
				return tt.status, tt.body, call == "POST firewalls" && n < 4
			}
			if err := create(t, c, network.Options{}); err != nil {
				t.Fatal(err)
			}
			if len(f.firewalls) != 2 {
				t.Errorf("%d rules, want 2", len(f.firewalls))
			}
			same := f.requestIDs[1] == f.requestIDs[2]
			if operation := tt.status == 0; same == operation {
				t.Errorf("request ids %v: want the same for a repeated request, another after a failed operation", f.requestIDs[1:3])
			}
		})
	}
}

func TestFailedOperationWithoutStatusCodeIsAnError(t *testing.T) {
	c, f, _ := setUp(t)
	f.onWrite = func(call string, n int) (int, string, bool) {
		return 0, `{"errors":[{"code":"QUOTA_EXCEEDED","message":"Quota 'NETWORKS' exceeded.  Limit: 5.0 globally."}]}`, true
	}
	err := create(t, c, network.Options{})
	var oe *gcp.OperationError
	if !errors.As(err, &oe) || gcp.ClassOf(err) != gcp.Quota {
		t.Fatalf("error = %v (%v), want a quota *OperationError", err, gcp.ClassOf(err))
	}
	if want := `create network "mtu9k": Quota 'NETWORKS' exceeded. Limit: 5.0 globally. (QUOTA_EXCEEDED)`; err.Error() != want {
		t.Errorf("error = %q, want %q", err, want)
	}
	if !strings.Contains(gcp.Hint(err), "NETWORKS allows 5") {
		t.Errorf("hint = %q", gcp.Hint(err))
	}
	if got := f.Writes(); len(got) != 1 {
		t.Errorf("went on after the failure: %v", got)
	}
}

func TestMissingPermissionIsNamed(t *testing.T) {
	c, f, _ := setUp(t)
	f.onWrite = func(string, int) (int, string, bool) {
		return 403, errorBody(403, "forbidden", "Required 'compute.networks.create' permission for 'projects/p/global/networks/mtu9k'"), true
	}
	err := create(t, c, network.Options{})
	if gcp.ClassOf(err) != gcp.Permission {
		t.Fatalf("class of %v = %v, want Permission", err, gcp.ClassOf(err))
	}
	if h := gcp.Hint(err); !strings.Contains(h, "compute.networks.create") || !strings.Contains(h, "roles/compute.networkAdmin") {
		t.Errorf("hint = %q", h)
	}
}

func TestCreateThatSomebodyElseWon(t *testing.T) {
	c, f, _ := setUp(t)
	plan, err := c.Plan(t.Context(), network.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := create(t, c, network.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), plan); err != nil {
		t.Errorf("the same network made in between: %v", err)
	}
	f.networks["mtu9k"]["mtu"] = 1460
	var me *network.MismatchError
	if err := c.Apply(t.Context(), plan); !errors.As(err, &me) {
		t.Errorf("another network made in between: error = %v, want *MismatchError", err)
	}
}

func TestFirewallOfTheSeeds(t *testing.T) {
	c, f, n := setUp(t)
	rule := network.FirewallRule{Name: "mtu9kfw", Network: "mtu9k", Allow: []string{"tcp,icmp,udp"}}
	_, err := c.CreateFirewall(t.Context(), rule)
	var missing *network.MissingError
	if !errors.As(err, &missing) || !strings.Contains(gcp.Hint(err), "multihost network create mtu9k") {
		t.Fatalf("without the network: error = %v, hint %q", err, gcp.Hint(err))
	}
	if err := create(t, c, network.Options{}); err != nil {
		t.Fatal(err)
	}
	created, err := c.CreateFirewall(t.Context(), rule)
	if err != nil || !created {
		t.Fatalf("created = %v, %v", created, err)
	}
	want := map[string]any{
		"name": "mtu9kfw", "direction": "INGRESS",
		"network":     "https://www.googleapis.com/compute/v1/projects/p/global/networks/mtu9k",
		"allowed":     []any{map[string]any{"IPProtocol": "tcp"}, map[string]any{"IPProtocol": "icmp"}, map[string]any{"IPProtocol": "udp"}},
		"description": "made by multihost for network mtu9k",
	}
	if diff := cmp.Diff(want, f.firewalls["mtu9kfw"]); diff != "" {
		t.Errorf("rule (-want +got):\n%s", diff)
	}
	if !n.Said(event.Warn, "whole internet") || !n.Said(event.Warn, "--source-ranges=") {
		t.Errorf("no warning: %v", n.Notes())
	}
	// The server fills in omitted fields. Those do not count as differences.
	f.firewalls["mtu9kfw"]["sourceRanges"] = []any{"0.0.0.0/0"}
	f.firewalls["mtu9kfw"]["priority"] = 1000
	created, err = c.CreateFirewall(t.Context(), rule)
	if err != nil || created {
		t.Errorf("second time: created = %v, %v", created, err)
	}
	if deleted, err := c.DeleteFirewall(t.Context(), "mtu9kfw"); err != nil || !deleted {
		t.Errorf("deleted = %v, %v", deleted, err)
	}
	if deleted, err := c.DeleteFirewall(t.Context(), "mtu9kfw"); err != nil || deleted {
		t.Errorf("deleted again = %v, %v", deleted, err)
	}
}

func TestShow(t *testing.T) {
	c, f, _ := setUp(t)
	var missing *network.MissingError
	if _, err := c.Show(t.Context(), "mtu9k"); !errors.As(err, &missing) {
		t.Errorf("error = %v, want *MissingError", err)
	}
	if err := create(t, c, network.Options{}); err != nil {
		t.Fatal(err)
	}
	f.networks["mtu9k"]["subnetworks"] = []any{"https://www.googleapis.com/compute/v1/projects/p/regions/us-central2/subnetworks/mtu9k"}
	f.firewalls["other"] = map[string]any{"name": "other", "network": "x/y/default", "sourceRanges": []any{"0.0.0.0/0"}}
	info, err := c.Show(t.Context(), "mtu9k")
	if err != nil {
		t.Fatal(err)
	}
	want := `network mtu9k: MTU 8896, auto subnets (1), regional routing, made by multihost
  firewall mtu9k-internal: allow tcp,icmp,udp from 10.128.0.0/9
  firewall mtu9k-ssh: allow tcp:22 from 35.235.240.0/20
`
	if diff := cmp.Diff(want, info.String()); diff != "" {
		t.Errorf("network (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"us-central2/mtu9k"}, info.Subnetworks); diff != "" {
		t.Errorf("subnetworks (-want +got):\n%s", diff)
	}
}

func TestDelete(t *testing.T) {
	t.Run("rules first, then the network", func(t *testing.T) {
		c, f, _ := setUp(t)
		if err := create(t, c, network.Options{}); err != nil {
			t.Fatal(err)
		}
		before := len(f.Writes())
		d, err := c.Delete(t.Context(), "mtu9k")
		if err != nil || !d.Network || len(d.Firewalls) != 2 {
			t.Fatalf("deletion = %+v, %v", d, err)
		}
		got := f.Writes()[before:]
		if len(got) != 3 || got[2] != "DELETE networks/mtu9k" {
			t.Errorf("writes = %v", got)
		}
	})
	t.Run("nothing there", func(t *testing.T) {
		c, f, n := setUp(t)
		d, err := c.Delete(t.Context(), "mtu9k")
		if err != nil || d.Network || len(f.Writes()) != 0 || !n.Said(event.Info, "nothing to delete") {
			t.Errorf("deletion = %+v, %v, writes %v", d, err, f.Writes())
		}
	})
	t.Run("not ours", func(t *testing.T) {
		c, f, _ := setUp(t)
		f.networks["default"] = map[string]any{"name": "default", "description": "Default network for the project"}
		_, err := c.Delete(t.Context(), "default")
		var no *network.NotOursError
		if !errors.As(err, &no) || len(f.Writes()) != 0 {
			t.Errorf("error = %v, writes %v", err, f.Writes())
		}
	})
	t.Run("foreign rule", func(t *testing.T) {
		c, f, _ := setUp(t)
		if err := create(t, c, network.Options{}); err != nil {
			t.Fatal(err)
		}
		f.firewalls["theirs"] = map[string]any{"name": "theirs", "network": "https://x/projects/p/global/networks/mtu9k"}
		before := len(f.Writes())
		_, err := c.Delete(t.Context(), "mtu9k")
		var fe *network.ForeignRulesError
		if !errors.As(err, &fe) || !slices.Equal(fe.Rules, []string{"theirs"}) {
			t.Errorf("error = %v, want *ForeignRulesError naming the rule", err)
		}
		if len(f.Writes()) != before {
			t.Errorf("wrote %v", f.Writes()[before:])
		}
	})
	t.Run("TPUs on it", func(t *testing.T) {
		c, f, _ := setUp(t)
		if err := create(t, c, network.Options{}); err != nil {
			t.Fatal(err)
		}
		f.nodes = []any{map[string]any{
			"name":          "projects/p/locations/us-central2-b/nodes/t-0",
			"networkConfig": map[string]any{"network": "projects/p/global/networks/mtu9k"},
		}}
		before := len(f.Writes())
		_, err := c.Delete(t.Context(), "mtu9k")
		var in *network.InUseError
		if !errors.As(err, &in) || !strings.Contains(err.Error(), "TPU node t-0 (us-central2-b)") {
			t.Errorf("error = %v", err)
		}
		if len(f.Writes()) != before {
			t.Errorf("wrote %v", f.Writes()[before:])
		}
	})
	t.Run("in use by a machine: the rules are put back", func(t *testing.T) {
		c, f, _ := setUp(t)
		if err := create(t, c, network.Options{}); err != nil {
			t.Fatal(err)
		}
		f.onWrite = func(call string, _ int) (int, string, bool) {
			return 0, `{"errors":[{"code":"RESOURCE_IN_USE_BY_ANOTHER_RESOURCE","message":"The network resource 'projects/p/global/networks/mtu9k' is already being used by 'projects/p/zones/us-central2-b/instances/vm-1'"}]}`,
				call == "DELETE networks/mtu9k"
		}
		_, err := c.Delete(t.Context(), "mtu9k")
		if want := `delete network "mtu9k": it is used by instance vm-1 (us-central2-b)`; err == nil || err.Error() != want {
			t.Errorf("error = %v, want %q", err, want)
		}
		if gcp.ClassOf(err) != gcp.Conflict {
			t.Errorf("class = %v, want Conflict", gcp.ClassOf(err))
		}
		if len(f.firewalls) != 2 {
			t.Errorf("rules = %v, want both back", f.firewalls)
		}
	})
}

func TestValidate(t *testing.T) {
	tests := []struct {
		o    network.Options
		want string // part of the error; "": none
	}{
		{network.Options{}, ""},
		{network.Options{MTU: 1300, SubnetMode: "CUSTOM", RoutingMode: "global", SSHSourceRanges: []string{network.NoSSH}}, ""},
		{network.Options{SubnetMode: "legacy"}, ""},
		{network.Options{MTU: 1299}, "want 1300 to 8896"},
		{network.Options{MTU: 9000}, "want 1300 to 8896"},
		{network.Options{Name: "Mtu9k"}, `network name "Mtu9k"`},
		{network.Options{Name: "a-"}, "not ending in a dash"},
		{network.Options{Name: strings.Repeat("a", 55)}, "longer than 54"},
		{network.Options{SubnetMode: "automatic"}, "auto, custom or legacy"},
		{network.Options{RoutingMode: "zonal"}, "regional or global"},
		{network.Options{SSHSourceRanges: []string{"203.0.113.7"}}, ""},
		{network.Options{SSHSourceRanges: []string{"203.0.113.7/24"}}, "the network is 203.0.113.0/24, the one address is 203.0.113.7/32"},
		{network.Options{SSHSourceRanges: []string{"me"}}, "want a CIDR range"},
		{network.Options{AllPortsFrom: []string{"0.0.0.0/0", "::/0"}}, "IPv4 and IPv6"},
	}
	for _, tt := range tests {
		err := tt.o.Validate()
		if (tt.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("Validate(%+v) = %v, want %q", tt.o, err, tt.want)
		}
	}
	rules := []struct {
		r    network.FirewallRule
		want string
	}{
		{network.FirewallRule{Name: "a", Allow: []string{"tcp:22,udp:1-9", "all", "6:80", "50"}}, ""},
		{network.FirewallRule{Name: "a", Direction: "egress", Allow: []string{"tcp"}}, ""},
		{network.FirewallRule{Name: "a"}, "allow is empty"},
		{network.FirewallRule{Name: "a", Allow: []string{""}}, "no such protocol"},
		{network.FirewallRule{Name: "a", Allow: []string{"tpc"}}, "no such protocol"},
		{network.FirewallRule{Name: "a", Allow: []string{"256"}}, "no such protocol"},
		{network.FirewallRule{Name: "a", Allow: []string{"icmp:8"}}, "has no ports"},
		{network.FirewallRule{Name: "a", Allow: []string{"tcp:9-1"}}, "no such ports"},
		{network.FirewallRule{Name: "a", Allow: []string{"tcp:70000"}}, "no such ports"},
		{network.FirewallRule{Name: "a", Allow: []string{"tcp"}, Priority: 70000}, "priority"},
		{network.FirewallRule{Name: "a", Allow: []string{"tcp"}, Direction: "up"}, "direction"},
		{network.FirewallRule{Name: "a", Allow: []string{"tcp"}, TargetTags: []string{"A"}}, "target tag"},
	}
	for _, tt := range rules {
		err := tt.r.Validate()
		if (tt.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("Validate(%+v) = %v, want %q", tt.r, err, tt.want)
		}
	}
}
