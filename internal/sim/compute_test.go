package sim_test

import (
	"strings"
	"testing"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim"
)

type computeClients struct {
	networks  *compute.NetworksClient
	firewalls *compute.FirewallsClient
	subnets   *compute.SubnetworksClient
	projects  *compute.ProjectsClient
	ops       *compute.GlobalOperationsClient
}

func newCompute(t *testing.T, s *sim.Server) computeClients {
	t.Helper()
	var c computeClients
	var err error
	options := []option.ClientOption{option.WithEndpoint(s.URL()), option.WithoutAuthentication()}
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c.networks, err = compute.NewNetworksRESTClient(t.Context(), options...)
	check()
	c.firewalls, err = compute.NewFirewallsRESTClient(t.Context(), options...)
	check()
	c.subnets, err = compute.NewSubnetworksRESTClient(t.Context(), options...)
	check()
	c.projects, err = compute.NewProjectsRESTClient(t.Context(), options...)
	check()
	c.ops, err = compute.NewGlobalOperationsRESTClient(t.Context(), options...)
	check()
	return c
}

// finish waits until the operation is done. The server's wait makes polling unnecessary.
func (c computeClients) finish(t *testing.T, op *compute.Operation) *computepb.Operation {
	t.Helper()
	done, err := c.ops.Wait(t.Context(), &computepb.WaitGlobalOperationRequest{Project: sim.DefaultProject, Operation: op.Name()})
	if err != nil {
		t.Fatal(err)
	}
	if done.GetStatus() != computepb.Operation_DONE {
		t.Fatalf("operation is %s after wait", done.GetStatus())
	}
	return done
}

func jumbo() *computepb.InsertNetworkRequest {
	return &computepb.InsertNetworkRequest{Project: sim.DefaultProject, NetworkResource: &computepb.Network{
		Name: proto.String("mtu9k"), Mtu: proto.Int32(8896), AutoCreateSubnetworks: proto.Bool(true),
		RoutingConfig: &computepb.NetworkRoutingConfig{RoutingMode: proto.String("REGIONAL")},
	}}
}

func rule(name string) *computepb.InsertFirewallRequest {
	return &computepb.InsertFirewallRequest{Project: sim.DefaultProject, FirewallResource: &computepb.Firewall{
		Name: proto.String(name), Network: proto.String("global/networks/mtu9k"),
		Allowed: []*computepb.Allowed{{IPProtocol: proto.String("tcp"), Ports: []string{"22"}}, {IPProtocol: proto.String("icmp")}},
	}}
}

func TestNetworkAndFirewallLifecycle(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	c := newCompute(t, s)
	hold := inject(t, s, "slow-operations delay=1h")
	_, err := c.networks.Insert(t.Context(), jumbo())
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.firewalls.Insert(t.Context(), rule("fw"))
	wantError(t, err, 400, "resourceNotReady")
	_, err = c.networks.Insert(t.Context(), jumbo())
	wantError(t, err, 409, "alreadyExists")
	if _, err := s.Clear("all"); err != nil || hold == 0 {
		t.Fatal(err)
	}

	s, _ = start(t)
	c = newCompute(t, s)
	op, err := c.networks.Insert(t.Context(), jumbo())
	if err != nil {
		t.Fatal(err)
	}
	if done := c.finish(t, op); done.GetError() != nil || done.GetOperationType() != "insert" {
		t.Errorf("got operation %v", done)
	}
	n, err := c.networks.Get(t.Context(), &computepb.GetNetworkRequest{Project: sim.DefaultProject, Network: "mtu9k"})
	if err != nil || n.GetMtu() != 8896 || n.GetRoutingConfig().GetRoutingMode() != "REGIONAL" || len(n.Subnetworks) == 0 {
		t.Errorf("got network %v, %v", n, err)
	}
	op, err = c.firewalls.Insert(t.Context(), rule("fw"))
	if err != nil {
		t.Fatal(err)
	}
	c.finish(t, op)
	f, err := c.firewalls.Get(t.Context(), &computepb.GetFirewallRequest{Project: sim.DefaultProject, Firewall: "fw"})
	if err != nil || len(f.SourceRanges) != 1 || f.SourceRanges[0] != "0.0.0.0/0" || f.GetPriority() != 1000 || f.GetDirection() != "INGRESS" {
		t.Errorf("got firewall %v, %v", f, err)
	}
	_, err = c.networks.Delete(t.Context(), &computepb.DeleteNetworkRequest{Project: sim.DefaultProject, Network: "mtu9k"})
	wantError(t, err, 400, "resourceInUseByAnotherResource")
	op, err = c.firewalls.Delete(t.Context(), &computepb.DeleteFirewallRequest{Project: sim.DefaultProject, Firewall: "fw"})
	if err != nil {
		t.Fatal(err)
	}
	c.finish(t, op)
	op, err = c.networks.Delete(t.Context(), &computepb.DeleteNetworkRequest{Project: sim.DefaultProject, Network: "mtu9k"})
	if err != nil {
		t.Fatal(err)
	}
	c.finish(t, op)
	_, err = c.networks.Get(t.Context(), &computepb.GetNetworkRequest{Project: sim.DefaultProject, Network: "mtu9k"})
	wantError(t, err, 404, "notFound")
}

func TestComputeOperationThatEndsWithAnErrorOnly(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	c := newCompute(t, s)
	inject(t, s, `compute-op-error message="Quota 'NETWORKS' exceeded."`)
	op, err := c.networks.Insert(t.Context(), jumbo())
	if err != nil {
		t.Fatal(err)
	}
	done := c.finish(t, op)
	if done.HttpErrorStatusCode != nil || len(done.GetError().GetErrors()) != 1 || done.Error.Errors[0].GetMessage() != "Quota 'NETWORKS' exceeded." {
		t.Errorf("got %v, want an error and no HTTP status", done)
	}
	_, err = c.networks.Get(t.Context(), &computepb.GetNetworkRequest{Project: sim.DefaultProject, Network: "mtu9k"})
	wantError(t, err, 404, "notFound")
}

func TestNetworkInUseByNodes(t *testing.T) {
	t.Parallel()
	s, _ := start(t, preset(t, "t:1xv4-8:network=mtu9k"))
	c := newCompute(t, s)
	_, err := c.networks.Delete(t.Context(), &computepb.DeleteNetworkRequest{Project: sim.DefaultProject, Network: "mtu9k"})
	wantError(t, err, 400, "resourceInUseByAnotherResource")
}

func TestComputeListsAndFilters(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	c := newCompute(t, s)
	count := func(filter string) (names []string) {
		it := c.firewalls.List(t.Context(), &computepb.ListFirewallsRequest{Project: sim.DefaultProject, Filter: proto.String(filter), MaxResults: proto.Uint32(2)})
		for {
			f, err := it.Next()
			if err == iterator.Done {
				return names
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, f.GetName())
		}
	}
	if got := count(""); len(got) != 3 {
		t.Errorf("got %v, want the three rules of the default network", got)
	}
	if got := count(`name = "default-allow-ssh"`); len(got) != 1 {
		t.Errorf("got %v, want one", got)
	}
	if got := count(`(network eq .*/default) (name ne .*ssh)`); len(got) != 2 {
		t.Errorf("got %v, want two", got)
	}
	sub, err := c.subnets.Get(t.Context(), &computepb.GetSubnetworkRequest{Project: sim.DefaultProject, Region: "us-central2", Subnetwork: "default"})
	if err != nil || sub.GetIpCidrRange() == "" {
		t.Errorf("got %v, %v", sub, err)
	}
	pages := c.subnets.AggregatedList(t.Context(), &computepb.AggregatedListSubnetworksRequest{Project: sim.DefaultProject})
	if pair, err := pages.Next(); err != nil || len(pair.Value.Subnetworks) != 1 {
		t.Errorf("got %v, %v", pair, err)
	}
}

func TestSubnetworksOfACustomNetwork(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	c := newCompute(t, s)
	r := jumbo()
	r.NetworkResource.AutoCreateSubnetworks = proto.Bool(false)
	op, err := c.networks.Insert(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	c.finish(t, op)
	insert := func(network, region, cidr string) error {
		op, err := c.subnets.Insert(t.Context(), &computepb.InsertSubnetworkRequest{Project: sim.DefaultProject, Region: region, SubnetworkResource: &computepb.Subnetwork{
			Name: proto.String("mtu9k"), Network: proto.String("global/networks/" + network), IpCidrRange: &cidr,
		}})
		if err == nil {
			err = op.Wait(t.Context())
		}
		return err
	}
	for _, row := range []struct{ network, region, cidr, fails string }{
		{"mtu9k", "us-central2", "10.0.0.0/20", ""},
		{"mtu9k", "us-central2", "10.0.16.0/20", "already exists"},
		{"mtu9k", "us-east5", "10.0.8.0/24", "10.0.8.0/24 conflicts with existing subnetwork 'mtu9k' in region 'us-central2'"},
		{"mtu9k", "us-east5", "10.0.16.1/20", "without host bits"},
		{"nope", "us-east5", "10.0.16.0/20", "was not found"},
		{"default", "us-east5", "10.0.16.0/20", "not model"},
	} {
		if err := insert(row.network, row.region, row.cidr); (err == nil) != (row.fails == "") || err != nil && !strings.Contains(err.Error(), row.fails) {
			t.Errorf("%+v: %v", row, err)
		}
	}
	if n, err := c.networks.Get(t.Context(), &computepb.GetNetworkRequest{Project: sim.DefaultProject, Network: "mtu9k"}); err != nil || len(n.Subnetworks) != 1 {
		t.Errorf("got %v, %v", n, err)
	}
	if _, err := c.networks.Delete(t.Context(), &computepb.DeleteNetworkRequest{Project: sim.DefaultProject, Network: "mtu9k"}); err == nil || !strings.Contains(err.Error(), "subnetworks/mtu9k") {
		t.Errorf("a network whose subnetwork somebody has made: %v", err)
	}
}

func TestProjectMetadata(t *testing.T) {
	t.Parallel()
	s, workers := start(t, preset(t, "t:1xv4-8"))
	c := newCompute(t, s)
	p, err := c.projects.Get(t.Context(), &computepb.GetProjectRequest{Project: sim.DefaultProject})
	if err != nil {
		t.Fatal(err)
	}
	m := p.GetCommonInstanceMetadata()
	m.Items = append(m.Items, &computepb.Items{Key: proto.String("ssh-keys"), Value: proto.String("u:ssh-ed25519 AAAA u")})
	req := &computepb.SetCommonInstanceMetadataProjectRequest{Project: sim.DefaultProject, MetadataResource: m}
	op, err := c.projects.SetCommonInstanceMetadata(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	c.finish(t, op)
	_, err = c.projects.SetCommonInstanceMetadata(t.Context(), req)
	wantError(t, err, 412, "conditionNotMet")
	if keys := workers.find("t", 0).spec.AuthorizedKeys(); len(keys) != 1 {
		t.Errorf("got keys %v, want one", keys)
	}
}

func TestComputeRefusals(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	base := s.URL() + "/compute/v1/projects/" + sim.DefaultProject + "/global/"
	for _, row := range []struct{ name, path, body, want string }{
		{"unknown field", "networks", `{"name":"n","autoCreateSubnetworks":true,"colour":1}`, "colour"},
		{"large mtu", "networks", `{"name":"n","autoCreateSubnetworks":true,"mtu":9000}`, "Invalid value for field 'resource.mtu': '9000'"},
		{"legacy", "networks", `{"name":"n","IPv4Range":"10.0.0.0/8"}`, "Legacy networks"},
		{"bad name", "networks", `{"name":"N","autoCreateSubnetworks":true}`, "resource.name"},
		{"bad range", "firewalls", `{"name":"f","allowed":[{"IPProtocol":"tcp"}],"sourceRanges":["10.0.0.1/8"]}`, "host bits"},
		{"bad protocol", "firewalls", `{"name":"f","allowed":[{"IPProtocol":"tpc"}]}`, "IPProtocol"},
		{"ports of icmp", "firewalls", `{"name":"f","allowed":[{"IPProtocol":"icmp","ports":["1"]}]}`, "Ports may only"},
		{"nothing allowed", "firewalls", `{"name":"f"}`, "Exactly one of"},
	} {
		t.Run(row.name, func(t *testing.T) {
			status, body := post(t, base+row.path, row.body)
			wantBody(t, status, body, row.want)
		})
	}
	if status, body := post(t, base+"firewalls", `{"name":"f","network":"global/networks/nope","allowed":[{"IPProtocol":"tcp"}]}`); status != 404 {
		t.Errorf("firewall on no network: got %d %s", status, body)
	}
}
