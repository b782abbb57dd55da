package sim_test

import (
	"context"
	"net/http"
	"testing"

	"multihost/internal/gcp"
	"multihost/internal/gke"
	"multihost/internal/network"
	"multihost/internal/provision"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

const inLocation = "/projects/" + sim.DefaultProject + "/locations/us-central2"

// withNetwork makes the network mtu9k.
func withNetwork(t *testing.T, networks *network.Client) {
	t.Helper()
	plan, err := networks.Plan(t.Context(), network.Options{})
	if err == nil {
		err = networks.Apply(t.Context(), plan)
	}
	testkit.Must(t, err)
}

// The test compares our client's requests for clusters, and the simulator's answers, with
// Google's description of the API.
func TestDiscoveryDocumentsDescribeClusters(t *testing.T) {
	t.Parallel()
	c := &checker{docs: loadDiscovery(t), problems: map[string]string{}, called: map[string]int{}}
	s, _ := start(t)
	p := newTap(t, s)
	networks, _ := p.clients()
	withNetwork(t, networks)
	g := gcp.New(gcp.Config{
		Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true,
		ContainerEndpoint: p.URL + "/", ComputeEndpoint: p.URL + "/compute/v1/", Clock: testkit.NewFastClock(),
	})
	defer g.Close()
	clusters := gke.New(g, func(context.Context, gke.Endpoint) ([]gke.Pod, error) { return nil, nil })
	o := gke.Options{Name: "c", User: "ada"}
	apply := func() error {
		plan, err := clusters.Plan(t.Context(), o)
		if err != nil {
			return err
		}
		return clusters.Apply(t.Context(), plan)
	}
	for _, kind := range []string{"tpu7x-16", "v6e-16", "v5litepod-4"} {
		for _, tier := range []provision.Tier{provision.OnDemand, provision.Spot, provision.FlexStart, provision.Reserved} {
			var err error
			o.Type, err = tpu.ParseType(kind)
			testkit.Must(t, err)
			o.Tier, o.Slices, o.Reservation = tier, 1, ""
			if tier == provision.Reserved {
				o.Reservation = "r"
			}
			testkit.Must(t, apply())
			o.Slices = 0
			testkit.Must(t, apply())
		}
	}
	inject(t, s, "no-capacity group=c-np-0")
	o.Slices = 1
	if err := apply(); gcp.ClassOf(err) != gcp.Capacity {
		t.Errorf("without capacity: %v", err)
	}
	if _, err := clusters.List(t.Context()); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/clusters", "/clusters/c", "/clusters/c/nodePools", "/clusters/c/nodePools/c-np-0", "/operations", "/serverConfig"} {
		for _, version := range []string{"/v1", "/v1beta1"} {
			rest{t, p.URL + version + inLocation}.must("GET", path, "")
		}
	}
	// multihost may find each operation done in the answer that begins it.
	operations := rest{t, p.URL + "/v1beta1" + inLocation}.must("GET", "/operations", "")["operations"].([]any)
	rest{t, p.URL + "/v1beta1" + inLocation}.must("GET", "/operations/"+operations[0].(map[string]any)["name"].(string), "")
	if _, err := clusters.Delete(t.Context(), "c", false); err != nil {
		t.Error(err)
	}
	for _, e := range p.exchanges() {
		c.check(e)
	}
	c.report(t)
	for _, id := range []string{
		"getServerConfig", "clusters.create", "clusters.get", "clusters.list", "clusters.delete",
		"clusters.nodePools.create", "clusters.nodePools.delete", "operations.get",
	} {
		if c.called["container.projects.locations."+id] == 0 {
			t.Errorf("%s was not called with success", id)
		}
	}
}

// The container API refuses what is impossible, and says which field is wrong.
func TestRefusalsOfClusters(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	r := rest{t, s.URL() + "/v1beta1" + inLocation}
	const pool = `"name":"p","initialNodeCount":4,"placementPolicy":{"type":"COMPACT","tpuTopology":"4x4"}`
	inject(t, s, "slow-operations delay=1h")
	r.must("POST", "/clusters", `{"cluster":{"name":"slow","initialNodeCount":1}}`)
	r.refused("POST", "/clusters/slow/nodePools", `{"nodePool":{"name":"p","initialNodeCount":1}}`, http.StatusBadRequest, "is currently creating cluster slow. Please wait and try again once it is done.")
	if _, err := s.Clear("all"); err != nil {
		t.Fatal(err)
	}
	r.must("POST", "/clusters", `{"cluster":{"name":"c","initialNodeCount":1}}`)
	r.eventually("RUNNING", "/clusters/c", func(m map[string]any) bool { return m["status"] == "RUNNING" })
	for _, tt := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"/clusters", `{"cluster":{"name":"c","initialNodeCount":1}}`, http.StatusConflict, "Already exists: projects/" + sim.DefaultProject + "/locations/us-central2/clusters/c."},
		{"/clusters", `{"cluster":{"name":"C","initialNodeCount":1}}`, http.StatusBadRequest, "cluster.name"},
		{"/clusters", `{"cluster":{"name":"d"}}`, http.StatusBadRequest, "initial_node_count"},
		{"/clusters", `{"cluster":{"name":"d","initialNodeCount":1,"network":"none"}}`, http.StatusBadRequest, `Network \"none\" does not exist`},
		{"/clusters", `{"cluster":{"name":"d","initialNodeCount":1,"subnetwork":"none"}}`, http.StatusBadRequest, `Subnetwork \"none\" does not exist`},
		{"/clusters", `{"cluster":{"name":"d","initialNodeCount":1,"initialClusterVersion":"1.2"}}`, http.StatusBadRequest, `prefix \"1.2\"`},
		{"/clusters", `{"cluster":{"name":"d","initialNodeCount":1,"locations":["us-west4-a"]}}`, http.StatusBadRequest, "is not a zone of region"},
		{"/clusters", `{"cluster":{"name":"d","initialNodeCount":1,"colour":"red"}}`, http.StatusBadRequest, `Unknown name \"colour\"`},
		{"/clusters/x/nodePools", `{"nodePool":{` + pool + `}}`, http.StatusNotFound, "Not found: projects/"},
		{"/clusters/c/nodePools", `{"nodePool":{` + pool + `,"config":{"machineType":"ct4p-hightpu-4t"}}}`, http.StatusBadRequest, "topology is not valid"},
		{"/clusters/c/nodePools", `{"nodePool":{"name":"p","initialNodeCount":3,"placementPolicy":{"tpuTopology":"4x4"},"config":{"machineType":"ct5lp-hightpu-4t"}}}`, http.StatusBadRequest, "needs 4 nodes"},
		{"/clusters/c/nodePools", `{"nodePool":{"name":"p","initialNodeCount":16,"placementPolicy":{"policyName":"none"},"config":{"machineType":"tpu7x-standard-4t"}}}`, http.StatusBadRequest, "Resource policy"},
		{"/clusters/c/nodePools", `{"nodePool":{"name":"p","initialNodeCount":1,"config":{"machineType":"warp-9"}}}`, http.StatusBadRequest, "Machine type with name 'warp-9' does not exist"},
		{"/clusters/c/nodePools", `{"nodePool":{"name":"default-pool","initialNodeCount":1}}`, http.StatusConflict, "Already exists"},
	} {
		r.refused("POST", tt.path, tt.body, tt.code, tt.want)
	}
	for _, path := range []string{"/clusters/c:setResourceLabels", "/clusters/c/nodePools/p/more"} {
		r.refused("POST", path, "{}", http.StatusNotImplemented, "is not modelled")
	}
	v1 := rest{t, s.URL() + "/v1" + inLocation}
	v1.refused("POST", "/clusters/c/nodePools", `{"nodePool":{`+pool+`,"config":{"machineType":"ct5lp-hightpu-4t","hostMaintenancePolicy":{}}}}`, http.StatusBadRequest, "hostMaintenancePolicy")
}

// gcloud makes, shows and deletes a cluster and a node pool with XPK's flags. Its requests
// have the same fields as ours.
func TestGcloudMakesAClusterForSlices(t *testing.T) {
	t.Parallel()
	testkit.NeedGcloud(t)
	s, _ := start(t)
	g := gcloudFor(t, s)
	t.Cleanup(func() {
		for _, r := range s.Requests() {
			if t.Failed() && r.Code >= 400 {
				t.Logf("%d for %s %s %s", r.Code, r.Method, r.Path, r.Body)
			}
		}
	})
	g.run("compute networks create mtu9k --mtu=8896 --subnet-mode=auto --bgp-routing-mode=regional")
	const region = " --location=us-central2"
	g.run("beta container clusters create c" + region + " --node-locations=" + sim.DefaultZone + " --network=mtu9k --subnetwork=mtu9k --release-channel=rapid --enable-ip-alias" +
		" --enable-dataplane-v2 --enable-multi-networking --enable-dns-access --machine-type=e2-standard-16 --num-nodes=6 --enable-autoscaling --total-min-nodes=1 --total-max-nodes=1000" +
		" --location-policy=BALANCED --scopes=storage-full,gke-default --autoscaling-profile=optimize-utilization --labels=multihost-tool=multihost")
	g.run("beta container node-pools create c-np-0 --cluster=c" + region + " --node-locations=" + sim.DefaultZone + " --machine-type=ct5lp-hightpu-4t --num-nodes=4 --tpu-topology=4x4" +
		" --placement-type=COMPACT --enable-gvnic --spot --host-maintenance-interval=AS_NEEDED --max-pods-per-node=15 --scopes=storage-full,gke-default,cloud-platform")
	g.describe("beta container clusters describe c"+region, "/v1beta1"+inLocation+"/clusters/c")
	g.describe("container node-pools describe c-np-0 --cluster=c"+region, "/v1"+inLocation+"/clusters/c/nodePools/c-np-0")
	g.wantTable("container clusters list --format=csv[no-heading](name,location,status,currentNodeCount)", [][]string{{"c,us-central2,RUNNING,10"}})
	g.wantTable("container node-pools list --cluster=c"+region+" --format=csv[no-heading](name,config.machineType,status)", [][]string{
		{"default-pool,e2-standard-16,RUNNING"}, {"c-np-0,ct5lp-hightpu-4t,RUNNING"},
	})
	// Our client keeps the cluster and the pool, and makes only what is inside.
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, ContainerEndpoint: s.URL() + "/", ComputeEndpoint: s.URL() + "/compute/v1/"})
	defer cloud.Close()
	ty, err := tpu.ParseType("v5litepod-16")
	testkit.Must(t, err)
	plan, err := gke.New(cloud, nil).Plan(t.Context(), gke.Options{Name: "c", Type: ty, Slices: 1, Tier: provision.Spot})
	if err != nil || plan.Err() != nil || plan.Count(gke.Keep) != 2 || plan.Count(gke.Create) != 3 || plan.Steps[len(plan.Steps)-1].Resource != "queue" {
		t.Errorf("our plan after gcloud: %v\n%s", err, plan)
	}
	g.run("container node-pools delete c-np-0 --quiet --cluster=c" + region)
	g.run("container clusters delete c --quiet" + region)
	g.wantTable("container clusters list", nil)
}
