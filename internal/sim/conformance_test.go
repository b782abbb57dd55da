package sim_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// A tap is the API of a simulator, with a record of requests and answers.
type tap struct {
	*httptest.Server
	sim *sim.Server

	mu  sync.Mutex
	log []exchange
}

func newTap(t *testing.T, s *sim.Server) *tap {
	t.Helper()
	p := &tap{sim: s}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	p.sim.ServeHTTP(answer, r)
	p.mu.Lock()
	p.log = append(p.log, exchange{verb: r.Method, url: r.URL, request: string(body), answer: answer.Body.String(), code: answer.Code})
	p.mu.Unlock()
	for k, v := range answer.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the client has gone, so nobody needs the error
}

func (p *tap) exchanges() []exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}

// clients returns our own clients for p. Their clock runs fast, so that their pauses take
// little time.
func (p *tap) clients() (*network.Client, *qr.Client) {
	g := gcp.New(gcp.Config{
		Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true,
		TPUEndpoint: p.URL + "/", ComputeEndpoint: p.URL + "/compute/v1/", Clock: testkit.NewFastClock(),
	})
	return network.New(g, qr.LifeOf), qr.New(g)
}

// The test compares our clients' requests and the simulator's answers with Google's
// descriptions of its APIs, from the first network to the last deletion: methods, paths,
// parameters, fields, types, enumerations and required fields.
func TestDiscoveryDocumentsDescribeTheMainPath(t *testing.T) {
	t.Parallel()
	c := &checker{docs: loadDiscovery(t), problems: map[string]string{}, called: map[string]int{}}
	s, err := sim.Start(t.Context(), sim.Config{Dir: t.TempDir(), Step: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	p := newTap(t, s)
	networks, queue := p.clients()

	makeNetworks(t, networks)
	for _, r := range everyTier(t) {
		useQueued(t, queue, r)
	}
	readTheRest(t, p)
	if _, err := networks.DeleteFirewall(t.Context(), "mtu9kfw"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"mtu9k", "own"} {
		if _, err := networks.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}

	for _, e := range p.exchanges() {
		c.check(e)
	}
	c.report(t)
	for _, id := range []string{
		"compute.networks.insert", "compute.networks.get", "compute.networks.delete",
		"compute.firewalls.insert", "compute.firewalls.list", "compute.firewalls.delete",
		"compute.globalOperations.get", "compute.projects.get",
		"tpu.projects.locations.queuedResources.create", "tpu.projects.locations.queuedResources.get",
		"tpu.projects.locations.queuedResources.list", "tpu.projects.locations.queuedResources.delete",
		"tpu.projects.locations.nodes.list", "tpu.projects.locations.nodes.get", "tpu.projects.locations.nodes.patch",
		"tpu.projects.locations.nodes.getGuestAttributes", "tpu.projects.locations.operations.get",
	} {
		if c.called[id] == 0 {
			t.Errorf("%s was not called with success: the main path has changed, or this test no longer follows it", id)
		}
	}
}

// The errors of the simulator agree with Google's descriptions, too.
func TestDiscoveryDocumentsDescribeTrouble(t *testing.T) {
	t.Parallel()
	c := &checker{docs: loadDiscovery(t), problems: map[string]string{}, called: map[string]int{}}
	s, _ := start(t)
	p := newTap(t, s)
	networks, queue := p.clients()
	spec := func(id string) qr.Request {
		r := qr.Request{ID: id, NodeCount: 2, Tier: qr.Spot}
		var err error
		if r.Type, err = tpu.ParseType("v5litepod-16"); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, trouble := range []struct{ id, before, after, state string }{
		{"failed", "qr-failed qr=failed", "", "FAILED"},
		{"suspended", "qr-suspended qr=suspended", "", "SUSPENDED"},
		{"preempted", "", "preempt node=preempted-1", "SUSPENDED"},
		{"maintained", "", "maintenance node=maintained-0", "ACTIVE"},
		{"waiting", "no-capacity qr=waiting", "", "WAITING_FOR_RESOURCES"},
	} {
		if trouble.before != "" {
			inject(t, s, trouble.before)
		}
		if _, _, err := queue.Create(t.Context(), spec(trouble.id)); err != nil {
			t.Fatal(err)
		}
		if trouble.after != "" {
			waitState(t, s, trouble.id, "ACTIVE")
			inject(t, s, trouble.after)
		}
		waitState(t, s, trouble.id, trouble.state)
	}
	if _, err := queue.List(t.Context()); err != nil {
		t.Error(err)
	}
	inject(t, s, "op-error")
	if _, _, err := queue.Create(t.Context(), spec("refused")); err == nil {
		t.Error("the operation did not fail")
	}
	inject(t, s, "compute-op-error")
	plan, err := networks.Plan(t.Context(), network.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := networks.Apply(t.Context(), plan); err == nil {
		t.Error("the operation did not fail")
	}
	if _, err := queue.Delete(t.Context(), "waiting", qr.DeleteOptions{Async: true, Force: true}); err != nil {
		t.Error(err)
	}
	if _, err := queue.List(t.Context()); err != nil {
		t.Error(err)
	}

	for _, e := range p.exchanges() {
		c.check(e)
	}
	c.report(t)
}

// The answers about a slice of Compute Engine agree with the document of the API, from the
// policy to the last deletion, also with faults.
func TestDiscoveryDocumentsDescribeComputeEngineSlices(t *testing.T) {
	t.Parallel()
	c := &checker{docs: loadDiscovery(t), problems: map[string]string{}, called: map[string]int{}}
	s, _ := start(t)
	p := newTap(t, s)
	r := newRest(t, p.URL)
	const bound = `scheduling={"onHostMaintenance":"TERMINATE","automaticRestart":true,"maxRunDuration":{"seconds":"3600"},"instanceTerminationAction":"DELETE"}`
	r.must("POST", inRegion+"/instanceTemplates", template(t, "t", bound))
	r.must("POST", inRegion+"/resourcePolicies", `{"name":"p","workloadPolicy":{"type":"HIGH_THROUGHPUT","acceleratorTopology":"2x2x2"}}`)
	names := [2]string{}
	for _, trouble := range []string{"no-capacity", "group-error", ""} {
		if trouble != "" {
			inject(t, s, trouble)
		}
		r.must("POST", groupsPath, groupOf("g", 2))
		switch trouble {
		case "no-capacity":
			r.eventually("waiting", groupsPath+"/g", func(m map[string]any) bool {
				return at(m, "status", "bulkInstanceOperation", "lastProgressCheck", "error") != nil
			})
			if _, err := s.Clear("all"); err != nil {
				t.Fatal(err)
			}
			r.until("ACTIVE", "running")
		case "group-error":
			r.until("FAILED", "nonExistent")
		case "":
			r.until("ACTIVE", "running")
			for _, vm := range s.Status().Groups[0].VMs {
				names[vm.Worker] = vm.Name
			}
		}
		r.must("POST", groupsPath+"/g/listManagedInstances?maxResults=1", "")
		r.must("GET", groupsPath+"/g/listErrors", "")
		if trouble != "" {
			r.must("DELETE", groupsPath+"/g", "")
		}
	}
	makeSlices(t, p)
	instance := inZone + "/instances/" + names[0]
	inject(t, s, "group-maintenance group=g")
	fingerprint := at(r.must("GET", instance, ""), "metadata", "fingerprint").(string)
	r.must("GET", instance+"/getGuestAttributes?queryPath=hostkeys/", "")
	r.must("GET", instance+"/serialPort?port=1", "")
	if text := at(r.must("GET", instance+"/serialPort?start=-7", ""), "contents"); text != "login: " {
		t.Errorf("the last bytes of the serial port: %q", text)
	}
	r.must("POST", inZone+"/reservations", `{"name":"r","deploymentType":"DENSE","specificReservation":{"count":"8","instanceProperties":{"machineType":"tpu7x-standard-4t"}}}`)
	r.must("POST", instance+"/setMetadata", `{"fingerprint":"`+fingerprint+`","items":[{"key":"k","value":"v"}]}`)
	r.must("POST", instance+"/reset", "")
	for _, path := range []string{
		inRegion + "/resourcePolicies", inRegion + "/instanceTemplates/t", inZone + "/machineTypes", groupsPath, inZone + "/instances", inZone + "/instanceGroups",
		inZone + "/instanceGroups/g", inZone + "/autoscalers", inZone + "/operations", "/aggregated/resourcePolicies", "/aggregated/instanceTemplates",
		inZone + "/reservations/r", inZone + "/reservations/r/reservationBlocks", inZone + "/reservations/r/reservationBlocks/r-block-0001", "/aggregated/reservations",
		"/aggregated/machineTypes", "/aggregated/instanceGroupManagers", "/aggregated/instances", "/aggregated/instanceGroups", "/aggregated/autoscalers",
	} {
		r.must("GET", path, "")
	}
	for _, path := range []string{"", "/family/ubuntu-accel-2404-amd64-tpu-tpu7x", "/ubuntu-accel-2404-amd64-tpu-tpu7x-v20261105"} {
		rest{t, p.URL + "/compute/v1/projects/ubuntu-os-accelerator-images"}.must("GET", "/global/images"+path, "")
	}
	inject(t, s, "group-host-error group=g")
	r.until("ACTIVE", "running")
	inject(t, s, "group-preempt group=g")
	r.until("INCOMPLETE", "nonExistent")
	r.must("POST", groupsPath+"/g/resize?size=0", "")
	for _, path := range []string{groupsPath + "/g", inRegion + "/instanceTemplates/t", inRegion + "/resourcePolicies/p"} {
		r.must("DELETE", path, "")
	}

	for _, e := range p.exchanges() {
		c.check(e)
	}
	c.report(t)
	for _, id := range []string{
		"resourcePolicies.insert", "regionInstanceTemplates.insert", "instanceGroupManagers.insert", "instanceGroupManagers.resize", "instanceGroupManagers.delete",
		"instanceGroupManagers.listManagedInstances", "instanceGroupManagers.listErrors", "instances.getGuestAttributes", "instances.setMetadata", "instances.getSerialPortOutput",
		"zoneOperations.wait", "zoneOperations.list", "regionOperations.wait", "images.getFromFamily",
	} {
		if c.called["compute."+id] == 0 {
			t.Errorf("%s was not called with success", id)
		}
	}
}

// makeSlices makes and deletes slices of each tier, with our own client.
func makeSlices(t *testing.T, p *tap) {
	t.Helper()
	client := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, ComputeEndpoint: p.URL + "/compute/v1/", Clock: testkit.NewFastClock()})
	t.Cleanup(client.Close)
	provider := gce.New(client, "")
	for _, tier := range []provision.Tier{provision.OnDemand, provision.Spot, provision.FlexStart, provision.ReservationBound} {
		kind, err := tpu.ParseType("tpu7x-16")
		if err != nil {
			t.Fatal(err)
		}
		id := "m-" + string(tier)
		r := provision.Request{ID: id, NodeCount: 2, Nodes: []string{id + "-0", id + "-1"}, Type: kind, Tier: tier}
		switch tier {
		case provision.OnDemand:
			r.Subnetwork, r.Metadata, r.ServiceAccount = "default", map[string]string{"a": "b"}, "trainer@p.iam.gserviceaccount.com"
			r.Own = gce.Settings{DiskGB: 300, DiskType: "hyperdisk-ml", Tags: []string{"tpu"}, InternalIPs: true}
		case provision.FlexStart:
			r.MaxRunDuration = gce.MaxFlexStart
		case provision.ReservationBound:
			r.Reservation = "projects/other/reservations/big-one"
		}
		r.Mark(id, "ada")
		if _, _, err := provider.Create(t.Context(), r); err != nil {
			t.Fatalf("%s: %v", tier, err)
		}
		if _, err := provider.List(t.Context()); err != nil {
			t.Errorf("%s: %v", tier, err)
		}
		if _, err := provider.Slices(t.Context()); err != nil {
			t.Errorf("%s: %v", tier, err)
		}
		if deleted, err := provider.Delete(t.Context(), id, provision.DeleteOptions{}); !deleted || err != nil {
			t.Errorf("%s: deleted %v, %v", tier, deleted, err)
		}
	}
}

func makeNetworks(t *testing.T, c *network.Client) {
	t.Helper()
	for _, o := range []network.Options{
		{AllPortsFrom: []string{"192.0.2.0/24"}},
		{Name: "own", MTU: 1460, SubnetMode: "custom", RoutingMode: "global"},
	} {
		plan, err := c.Plan(t.Context(), o)
		if err == nil {
			err = c.Apply(t.Context(), plan)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.CreateFirewall(t.Context(), network.FirewallRule{
		Name: "mtu9kfw", Network: "mtu9k", Allow: []string{"tcp:22", "icmp", "udp:1-1000"}, Priority: 900, TargetTags: []string{"tpu"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Show(t.Context(), "mtu9k"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ShowFirewalls(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
}

// everyTier returns one request for each tier, one of them with every optional field.
func everyTier(t *testing.T) []qr.Request {
	t.Helper()
	var all []qr.Request
	for _, tier := range qr.Tiers() {
		r := qr.Request{ID: "q-" + string(tier), NodeCount: 2, Tier: tier, Network: "mtu9k", ValidUntilDuration: time.Hour}
		name := "v4-8"
		switch tier {
		case qr.OnDemand:
			r.NodeCount, r.NodeID = 1, "alone"
			r.Subnetwork, r.InternalIPs = "mtu9k", true
			r.Description, r.Tags = "it's mine", []string{"tpu", "train"}
			r.Metadata = map[string]string{"startup-script": "#!/bin/sh\necho hello\n"}
			r.ServiceAccount, r.Scopes = "trainer@p.iam.gserviceaccount.com", []string{"cloud-platform"}
			r.SecureBoot, r.Autocheckpoint = true, true
			r.DataDisks = []qr.DataDisk{{Source: "projects/p/zones/z/disks/d1"}, {Source: "projects/p/zones/z/disks/d2", ReadOnly: true}}
			r.ValidUntilDuration = 0
			r.ValidAfterTime = time.Now().Add(-time.Hour)
			r.ValidUntilTime = time.Now().Add(time.Hour)
		case qr.Spot:
			r.WorkloadType, r.ValidUntilDuration, r.ValidUntilTime = "AVAILABILITY_OPTIMIZED", 0, time.Now().Add(time.Hour)
		case qr.BestEffort:
			r.ValidUntilDuration, r.ValidAfterDuration = 0, 10*time.Millisecond
		case qr.Guaranteed:
			r.MinDuration = 90 * time.Minute
		case qr.ReservationBound:
			r.Reservation = "projects/other/reservations/big-one"
		case qr.FlexStart:
			name, r.MaxRunDuration = "v6e-8", qr.MaxFlexStart
		}
		var err error
		if r.Type, err = tpu.ParseType(name); err != nil {
			t.Fatal(err)
		}
		r.Mark(r.ID, "ada")
		all = append(all, r)
	}
	return all
}

// useQueued makes a request, uses it and deletes it.
func useQueued(t *testing.T, c *qr.Client, r qr.Request) {
	t.Helper()
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", r.ID, err)
		}
	}
	_, _, err := c.Create(t.Context(), r)
	fail(err)
	_, slices, err := c.Wait(t.Context(), r.ID, qr.WaitOptions{Poll: gcp.Backoff{First: 200 * time.Millisecond, Max: 400 * time.Millisecond}})
	fail(err)
	for _, s := range slices {
		_, err = c.EnsureKey(t.Context(), s, "ada", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOxu0tuzdIgwbeBmKFVJ7qRz2TmlJ8x2ZGt9TBjEqCBh")
		fail(err)
		keys, hostname, err := c.HostKeys(t.Context(), s, 0)
		fail(err)
		if len(keys) == 0 || hostname == "" {
			t.Errorf("%s: host keys %q of %q", r.ID, keys, hostname)
		}
		_, err = c.Slice(t.Context(), s.Name)
		fail(err)
	}
	_, err = c.List(t.Context())
	fail(err)
	_, err = c.Delete(t.Context(), r.ID, qr.DeleteOptions{Force: true, Poll: gcp.Backoff{First: 200 * time.Millisecond}})
	fail(err)
	if _, err := c.Get(t.Context(), r.ID); gcp.ClassOf(err) != gcp.NotFound {
		t.Errorf("%s: %v after its deletion", r.ID, err)
	}
}

// readTheRest reads everything that the simulator serves and only gcloud requests, with
// both versions of the TPU API.
func readTheRest(t *testing.T, p *tap) {
	t.Helper()
	r := qr.Request{ID: "left", NodeCount: 2, Tier: qr.Spot, Network: "mtu9k"}
	var err error
	if r.Type, err = tpu.ParseType("v5p-8"); err != nil {
		t.Fatal(err)
	}
	_, queue := p.clients()
	if _, _, err = queue.Create(t.Context(), r); err == nil {
		_, _, err = queue.Wait(t.Context(), r.ID, qr.WaitOptions{Poll: gcp.Backoff{First: 200 * time.Millisecond}})
	}
	if err != nil {
		t.Fatal(err)
	}
	const place = "/projects/" + sim.DefaultProject
	const zone = place + "/locations/" + sim.DefaultZone
	var paths []string
	for _, version := range []string{"/v2", "/v2alpha1"} {
		for _, path := range []string{
			place + "/locations", zone, zone + "/nodes", zone + "/nodes/left-1", zone + "/queuedResources", zone + "/queuedResources/left",
			zone + "/operations", zone + "/acceleratorTypes", zone + "/acceleratorTypes/v4-8", zone + "/runtimeVersions",
			zone + "/runtimeVersions/tpu-ubuntu2204-base",
		} {
			paths = append(paths, version+path)
		}
	}
	region := sim.DefaultZone[:strings.LastIndexByte(sim.DefaultZone, '-')]
	for _, path := range []string{
		"", "/global/networks", "/global/firewalls/mtu9k-ssh", "/global/operations", "/regions", "/regions/" + region, "/zones",
		"/zones/" + sim.DefaultZone, "/regions/" + region + "/subnetworks", "/regions/" + region + "/subnetworks/mtu9k", "/aggregated/subnetworks",
	} {
		paths = append(paths, "/compute/v1"+place+path)
	}
	for _, path := range paths {
		u, err := url.Parse(p.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Get(u.String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("GET %s: %s, %v", path, resp.Status, err)
		}
	}
	if _, err := queue.Delete(t.Context(), r.ID, qr.DeleteOptions{Force: true, Poll: gcp.Backoff{First: 200 * time.Millisecond}}); err != nil {
		t.Error(err)
	}
}
