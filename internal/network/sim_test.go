package network_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	tpuapi "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// startSim returns clients of a simulator without workers.
func startSim(t *testing.T, faults ...string) (*network.Client, *gcp.Client, *sim.Server, *testkit.Recorder) {
	t.Helper()
	s, err := sim.Start(t.Context(), sim.Config{Step: time.Millisecond, Backend: "none", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, text := range faults {
		inject(t, s, text)
	}
	env, n := s.Env(), &testkit.Recorder{}
	g := gcp.New(gcp.Config{
		Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, Sink: n,
		TPUEndpoint:     env["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"],
		ComputeEndpoint: env["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"],
	})
	return network.New(g, qr.LifeOf), g, s, n
}

func inject(t *testing.T, s *sim.Server, text string) {
	t.Helper()
	f, err := sim.ParseFault(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Inject(f); err != nil {
		t.Fatal(err)
	}
}

// writes counts the requests that change something.
func writes(s *sim.Server) int {
	n := 0
	for _, r := range s.Requests() {
		if r.Method != "GET" {
			n++
		}
	}
	return n
}

func TestSimLifecycle(t *testing.T) {
	t.Parallel()
	c, _, s, n := startSim(t)
	plan, err := c.Plan(t.Context(), network.Options{AllPortsFrom: []string{"0.0.0.0/0"}})
	if err != nil {
		t.Fatal(err)
	}
	if writes(s) != 0 {
		t.Errorf("the plan made %d writes", writes(s))
	}
	if err := c.Apply(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	info, err := c.Show(t.Context(), "mtu9k")
	if err != nil {
		t.Fatal(err)
	}
	if info.MTU != 8896 || info.SubnetMode != "auto" || !info.Owned || len(info.Firewalls) != 3 || len(info.Subnetworks) == 0 {
		t.Errorf("network = %+v", info)
	}

	before := writes(s)
	if err := create(t, c, network.Options{AllPortsFrom: []string{"0.0.0.0/0"}}); err != nil {
		t.Fatal(err)
	}
	if writes(s) != before || !n.Said(event.Info, "nothing to change") {
		t.Errorf("second create made %d writes; notes %v", writes(s)-before, n.Notes())
	}

	created, err := c.CreateFirewall(t.Context(), network.FirewallRule{Name: "mtu9kfw", Network: "mtu9k", Allow: []string{"tcp", "icmp", "udp"}})
	if err != nil || !created {
		t.Errorf("firewall rule of the seeds: created = %v, %v", created, err)
	}
	created, err = c.CreateFirewall(t.Context(), network.FirewallRule{Name: "mtu9kfw", Network: "mtu9k", Allow: []string{"tcp", "icmp", "udp"}})
	if err != nil || created {
		t.Errorf("again: created = %v, %v", created, err)
	}

	d, err := c.Delete(t.Context(), "mtu9k")
	if err != nil || !d.Network || len(d.Firewalls) != 4 {
		t.Errorf("deletion = %+v, %v", d, err)
	}
	if d, err = c.Delete(t.Context(), "mtu9k"); err != nil || d.Network {
		t.Errorf("second deletion = %+v, %v", d, err)
	}
}

func TestSimModes(t *testing.T) {
	t.Parallel()
	c, _, _, _ := startSim(t)
	o := network.Options{Name: "own", MTU: 1460, SubnetMode: "custom", RoutingMode: "global", SSHSourceRanges: []string{network.NoSSH}}
	if err := create(t, c, o); err != nil {
		t.Fatal(err)
	}
	info, err := c.Show(t.Context(), "own")
	if err != nil {
		t.Fatal(err)
	}
	if info.MTU != 1460 || info.SubnetMode != "custom" || info.RoutingMode != "global" || len(info.Firewalls) != 1 {
		t.Errorf("network = %+v", info)
	}
	o.MTU = 8896
	var me *network.MismatchError
	if err := create(t, c, o); !errors.As(err, &me) {
		t.Errorf("another MTU: error = %v, want *MismatchError", err)
	}
}

func TestSimFaultsOnTheWay(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{
		"api-error code=503 n=2",
		"api-error code=429 n=1",
		"drop-request method=POST n=1",
		"drop-reply method=POST n=1",
		"slow-operations delay=300ms",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			c, _, _, _ := startSim(t, fault)
			if err := create(t, c, network.Options{}); err != nil {
				t.Fatal(err)
			}
			info, err := c.Show(t.Context(), "mtu9k")
			if err != nil || len(info.Firewalls) != 2 {
				t.Errorf("network = %+v, %v", info, err)
			}
		})
	}
}

func TestSimFailedOperation(t *testing.T) {
	t.Parallel()
	c, _, _, _ := startSim(t, `compute-op-error message="Quota 'NETWORKS' exceeded.  Limit: 5.0 globally." n=1`)
	err := create(t, c, network.Options{})
	var oe *gcp.OperationError
	if !errors.As(err, &oe) || !strings.Contains(err.Error(), "NETWORKS") {
		t.Fatalf("error = %v, want the operation's", err)
	}
	if err := create(t, c, network.Options{}); err != nil {
		t.Errorf("next create: %v", err)
	}
}

func TestSimDeleteRefusesUnderTPUs(t *testing.T) {
	t.Parallel()
	c, g, s, _ := startSim(t)
	if err := create(t, c, network.Options{}); err != nil {
		t.Fatal(err)
	}
	svc, err := g.TPU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	parent := "projects/" + sim.DefaultProject + "/locations/" + sim.DefaultZone
	_, err = svc.Projects.Locations.QueuedResources.Create(parent, &tpuapi.QueuedResource{Tpu: &tpuapi.Tpu{NodeSpec: []*tpuapi.NodeSpec{{
		Parent: parent, NodeId: "t",
		Node: &tpuapi.Node{
			AcceleratorType: "v4-16", RuntimeVersion: "tpu-ubuntu2204-base",
			NetworkConfig: &tpuapi.NetworkConfig{Network: "mtu9k", EnableExternalIps: true},
		},
	}}}}).QueuedResourceId("q").Context(t.Context()).Do()
	if err != nil {
		t.Fatal(err)
	}
	err = gcp.Poll(t.Context(), nil, gcp.Backoff{First: time.Millisecond}, func(ctx context.Context) (bool, error) {
		q, err := svc.Projects.Locations.QueuedResources.Get(parent + "/queuedResources/q").Context(ctx).Do()
		return err == nil && q.State.State == "ACTIVE", err
	})
	if err != nil {
		t.Fatal(err)
	}
	before := writes(s)
	_, err = c.Delete(t.Context(), "mtu9k")
	var in *network.InUseError
	if !errors.As(err, &in) || !strings.Contains(err.Error(), "TPU node t ("+sim.DefaultZone+")") {
		t.Errorf("error = %v, want *InUseError naming the node", err)
	}
	if writes(s) != before {
		t.Errorf("the deletion wrote %d times", writes(s)-before)
	}
}
