package sim_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	tpuv2 "google.golang.org/api/tpu/v2"
	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

func TestMultiSliceRequestBecomesReadyNodes(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	svc := alpha(t, s)
	op, err := svc.QueuedResources.Create(parent, request(2, "v4-16")).QueuedResourceId("run").RequestId("6f1e4bd6-6e4f-4a4a-8a38-000000000001").Do()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "create operation", func() bool {
		got, err := svc.Operations.Get(op.Name).Do()
		return err == nil && got.Done && got.Error == nil
	})
	waitState(t, s, "run", "ACTIVE")
	list, err := svc.Nodes.List(parent).Do()
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Nodes) != 2 {
		t.Fatalf("got %d nodes, want 2", len(list.Nodes))
	}
	for i, n := range list.Nodes {
		if want := fmt.Sprintf("%s/nodes/run-%d", parent, i); n.Name != want || n.State != "READY" || n.Health != "HEALTHY" || !n.MultisliceNode {
			t.Errorf("node %d is %s %s %s multislice=%v, want %s READY HEALTHY true", i, n.Name, n.State, n.Health, n.MultisliceNode, want)
		}
		if len(n.NetworkEndpoints) != 2 || n.Id == 0 || n.QueuedResource != parent+"/queuedResources/run" {
			t.Errorf("node %d: %d endpoints, id %d, queued resource %q", i, len(n.NetworkEndpoints), n.Id, n.QueuedResource)
		}
	}
	if list.Nodes[0].Id == list.Nodes[1].Id {
		t.Error("two nodes have one id")
	}
}

func TestV2SpellsItsOwnNames(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	svc := v2(t, s)
	q := &tpuv2.QueuedResource{
		Spot: &tpuv2.Spot{}, QueueingPolicy: &tpuv2.QueueingPolicy{ValidUntilDuration: "3600s"},
		Tpu: &tpuv2.Tpu{NodeSpec: []*tpuv2.NodeSpec{{
			Parent: parent, MultisliceParams: &tpuv2.MultisliceParams{NodeCount: 2, NodeIdPrefix: "n"},
			Node: &tpuv2.Node{AcceleratorType: "v4-8", RuntimeVersion: "tpu-ubuntu2204-base"},
		}}},
	}
	if _, err := svc.QueuedResources.Create(parent, q).QueuedResourceId("q").Do(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, "q", "ACTIVE")
	got, err := svc.QueuedResources.Get(parent + "/queuedResources/q").Do()
	if err != nil {
		t.Fatal(err)
	}
	if p := got.Tpu.NodeSpec[0].MultisliceParams; p == nil || p.NodeCount != 2 || p.NodeIdPrefix != "n" || got.Spot == nil {
		t.Errorf("got %+v, want the multislice parameters and the tier", got.Tpu.NodeSpec[0])
	}
	status, body := post(t, s.URL()+"/v2/"+parent+"/queuedResources?queuedResourceId=x", `{"provisioningModel":"SPOT"}`)
	if status != 400 || !strings.Contains(body, `Unknown name \"provisioningModel\"`) {
		t.Errorf("an alpha field in v2: got %d %s", status, body)
	}
	n, err := svc.Nodes.Get(parent + "/nodes/n-1").Do()
	if err != nil || n.State != "READY" || n.SchedulingConfig == nil || !n.SchedulingConfig.Spot {
		t.Errorf("got node %+v, %v, want READY and spot", n, err)
	}
}

func TestListsArePaged(t *testing.T) {
	t.Parallel()
	s, _ := start(t, preset(t, "a:5xv4-8,b:1xv4-8"))
	svc := alpha(t, s)
	var names []string
	pages := 0
	err := svc.Nodes.List("projects/"+sim.DefaultProject+"/locations/-").PageSize(2).Pages(t.Context(), func(r *tpualpha.ListNodesResponse) error {
		pages++
		for _, n := range r.Nodes {
			names = append(names, n.Name[strings.LastIndexByte(n.Name, '/')+1:])
		}
		return nil
	})
	if err != nil || pages != 3 || strings.Join(names, " ") != "a-0 a-1 a-2 a-3 a-4 b" {
		t.Errorf("got %v in %d pages, %v", names, pages, err)
	}
	if _, err := svc.Nodes.List(parent).PageToken("7").Do(); err == nil {
		t.Error("a made-up page token was accepted")
	}
}

func TestDeleteNeedsForceWhileNodesExist(t *testing.T) {
	t.Parallel()
	s, workers := start(t, preset(t, "run:2xv4-16"))
	svc := alpha(t, s)
	name := parent + "/queuedResources/run"
	_, err := svc.QueuedResources.Delete(name).Do()
	wantError(t, err, 400, "FAILED_PRECONDITION")
	op, err := svc.QueuedResources.Delete(name).Force(true).Do()
	if err != nil {
		t.Fatal(err)
	}
	if q, err := svc.QueuedResources.Get(name).Do(); err == nil && q.State.State != "DELETING" {
		t.Errorf("state %s after delete, want DELETING", q.State.State)
	}
	waitState(t, s, "run", "")
	_, err = svc.QueuedResources.Get(name).Do()
	wantError(t, err, 404, "NOT_FOUND")
	if got, err := svc.Operations.Get(op.Name).Do(); err != nil || !got.Done {
		t.Errorf("delete operation: %+v, %v, want done", got, err)
	}
	if n := len(s.Status().Nodes); n != 0 {
		t.Errorf("%d nodes are left", n)
	}
	if m := workers.find("run-0", 0); m != nil {
		t.Error("a worker of a deleted node still runs")
	}
}

func TestPreemptionSuspendsAndKeepsQuota(t *testing.T) {
	t.Parallel()
	s, _ := start(t, preset(t, "run:2xv4-8"), func(c *sim.Config) { c.Quota = 16 })
	svc := alpha(t, s)
	inject(t, s, "preempt node=run-1")
	waitState(t, s, "run", "SUSPENDED")
	q, err := svc.QueuedResources.Get(parent + "/queuedResources/run").Do()
	if err != nil || q.State.StateInitiator != "SERVICE" {
		t.Errorf("got %+v, %v, want initiator SERVICE", q.State, err)
	}
	if n, err := svc.Nodes.Get(parent + "/nodes/run-1").Do(); err != nil || n.State != "PREEMPTED" {
		t.Errorf("node run-1: %+v, %v, want PREEMPTED", n, err)
	}
	_, err = svc.QueuedResources.Create(parent, request(1, "v4-8")).QueuedResourceId("next").Do()
	wantError(t, err, 429, "RESOURCE_EXHAUSTED")
	wantError(t, err, 429, "Quota limit 'TPUV4sPodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 16 in zone us-central2-b.")
	if _, err := svc.QueuedResources.Delete(parent + "/queuedResources/run").Do(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, "run", "")
	if _, err := svc.QueuedResources.Create(parent, request(1, "v4-8")).QueuedResourceId("next").Do(); err != nil {
		t.Errorf("after the delete: %v", err)
	}
}

func TestFailedRequestSaysWhy(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	svc := alpha(t, s)
	inject(t, s, `qr-failed qr=bad message="no reservation"`)
	if _, err := svc.QueuedResources.Create(parent, request(2, "v4-8")).QueuedResourceId("bad").Do(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, "bad", "FAILED")
	q, err := svc.QueuedResources.Get(parent + "/queuedResources/bad").Do()
	if err != nil || q.State.FailedData == nil || q.State.FailedData.Error.Message != "no reservation" {
		t.Errorf("got %+v, %v", q.State, err)
	}
}

func TestCapacityThatNeverComes(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	svc := alpha(t, s)
	id := inject(t, s, "no-capacity")
	limited := request(2, "v4-8")
	limited.QueueingPolicy = &tpualpha.QueueingPolicy{ValidUntilDuration: "0.05s"}
	for name, q := range map[string]*tpualpha.QueuedResource{"waits": request(2, "v4-8"), "expires": limited} {
		if _, err := svc.QueuedResources.Create(parent, q).QueuedResourceId(name).Do(); err != nil {
			t.Fatal(err)
		}
	}
	waitState(t, s, "waits", "WAITING_FOR_RESOURCES")
	waitState(t, s, "expires", "FAILED")
	if n, err := s.Clear(fmt.Sprint(id)); n != 1 || err != nil {
		t.Fatalf("clear: %d, %v", n, err)
	}
	waitState(t, s, "waits", "ACTIVE")
}

func TestRequestIDMakesCreateSafeToRepeat(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	svc := alpha(t, s)
	inject(t, s, "drop-reply method=POST path=*/queuedResources")
	const id = "0d9bb0a6-6c0c-4f62-9d8c-1f6a3e8e4f10"
	create := func() (*tpualpha.Operation, error) {
		return svc.QueuedResources.Create(parent, request(2, "v4-8")).QueuedResourceId("q").RequestId(id).Do()
	}
	if _, err := create(); err == nil {
		t.Fatal("the reply was not lost")
	}
	first, err := create()
	if err != nil {
		t.Fatal(err)
	}
	second, err := create()
	if err != nil || first.Name != second.Name {
		t.Errorf("got operations %s and %s, %v", first.Name, second.Name, err)
	}
	_, err = svc.QueuedResources.Create(parent, request(2, "v4-8")).QueuedResourceId("q").Do()
	wantError(t, err, 409, "ALREADY_EXISTS")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	base := s.URL() + "/v2alpha1/" + parent
	spec := func(spec, rest string) string {
		return `{"tpu":{"nodeSpec":[{"parent":"` + parent + `",` + spec + `}]}` + rest + `}`
	}
	node := `"node":{"acceleratorType":"v4-8","runtimeVersion":"tpu-ubuntu2204-base"}`
	for _, row := range []struct{ name, path, body, want string }{
		{"unknown field", "/queuedResources?queuedResourceId=q", spec(`"nodeId":"n","colour":1,`+node, ""), `Unknown name \"colour\" at 'queued_resource.tpu.node_spec[0]': Cannot find field.`},
		{"case of a name", "/queuedResources?queuedResourceId=q", spec(`"nodeid":"n",`+node, ""), `Unknown name \"nodeid\"`},
		{"unknown parameter", "/queuedResources?queuedResourceId=q&dryRun=true", spec(`"nodeId":"n",`+node, ""), `Unknown name \"dryRun\": Cannot bind query parameter.`},
		{"bad id", "/queuedResources?queuedResourceId=Q_1", spec(`"nodeId":"n",`+node, ""), "queued_resource_id"},
		{"no node id", "/queuedResources?queuedResourceId=q", spec(node, ""), "one of node_id and multi_node_params is required"},
		{"both", "/queuedResources?queuedResourceId=q", spec(`"nodeId":"n","multiNodeParams":{"nodeCount":2},`+node, ""), "only one of node_id"},
		{"one node", "/queuedResources?queuedResourceId=q", spec(`"multiNodeParams":{"nodeCount":1},`+node, ""), "greater than 1"},
		{"v2 multislice", "/queuedResources?queuedResourceId=q", spec(`"multiNodeParams":{"nodeCount":2},"node":{"acceleratorType":"v2-8","runtimeVersion":"tpu-vm-base"}`, ""), "INVALID_ARGUMENT"},
		{"two tiers", "/queuedResources?queuedResourceId=q", spec(`"nodeId":"n",`+node, `,"spot":{},"bestEffort":{}`), "oneof field 'tier'"},
		{"spot with reservation", "/queuedResources?queuedResourceId=q", spec(`"nodeId":"n",`+node, `,"spot":{},"reservationName":"`+parent+`/reservations/-"`), "reservation"},
		{"reservation elsewhere", "/queuedResources?queuedResourceId=q", spec(`"nodeId":"n",`+node, `,"reservationName":"projects/p/locations/None/reservations/-"`), "not the name of a reservation"},
		{"flex-start without limit", "/queuedResources?queuedResourceId=q", spec(`"nodeId":"n",`+node, `,"provisioningModel":"FLEX_START"`), "run_duration is required"},
		{"bad duration", "/queuedResources?queuedResourceId=q", spec(`"nodeId":"n",`+node, `,"queueingPolicy":{"validUntilDuration":"1h"}`), "duration must end with 's'"},
		{"scheduling config", "/queuedResources?queuedResourceId=q", spec(`"nodeId":"n","node":{"acceleratorType":"v4-8","runtimeVersion":"tpu-vm-base","schedulingConfig":{"spot":true}}`, ""), "scheduling_config"},
		{"unknown type", "/nodes?nodeId=n", `{"acceleratorType":"v4-9","runtimeVersion":"tpu-vm-base"}`, "could not be found in the zonal accelerator configurations"},
		{"unknown runtime", "/nodes?nodeId=n", `{"acceleratorType":"v4-8","runtimeVersion":"windows"}`, "runtime version"},
		{"unknown network", "/nodes?nodeId=n", `{"acceleratorType":"v4-8","runtimeVersion":"tpu-vm-base","networkConfig":{"network":"mtu9k"}}`, "network \\\"mtu9k\\\" was not found"},
		{"bad syntax", "/nodes?nodeId=n", `{"acceleratorType":`, "Invalid JSON payload received."},
		{"wrong kind of value", "/nodes?nodeId=n", `{"acceleratorType":8}`, "Invalid value at 'node.accelerator_type'"},
		{"bad request id", "/nodes?nodeId=n&requestId=1", `{"acceleratorType":"v4-8"}`, "not a valid UUID"},
	} {
		t.Run(row.name, func(t *testing.T) {
			status, body := post(t, base+row.path, row.body)
			var parsed struct {
				Error struct {
					Code            int
					Message, Status string
				}
			}
			if err := json.Unmarshal([]byte(body), &parsed); err != nil {
				t.Fatal(err)
			}
			if status != 400 || parsed.Error.Code != 400 || parsed.Error.Status != "INVALID_ARGUMENT" || !strings.Contains(body, row.want) {
				t.Errorf("got %d %s, want 400 INVALID_ARGUMENT with %q", status, body, row.want)
			}
		})
	}
	for path, want := range map[string]int{
		"/v2/projects/other-project/locations/" + sim.DefaultZone + "/nodes":   403,
		"/v2/projects/" + sim.DefaultProject + "/locations/mars-west1-a/nodes": 400,
		"/v3/" + parent + "/nodes":      404,
		"/v2/" + parent + "/nodes/nope": 404,
		"/v2/" + parent + "/toys":       404,
	} {
		resp, err := http.Get(s.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s: got %d, want %d", path, resp.StatusCode, want)
		}
	}
}

func TestNodeCreatePatchGuestAttributesDelete(t *testing.T) {
	t.Parallel()
	s, workers := start(t, func(c *sim.Config) { c.ProjectMetadata = map[string]string{"ssh-keys": "p:ssh-ed25519 AAAA p"} })
	svc := alpha(t, s)
	name := parent + "/nodes/n"
	op, err := svc.Nodes.Create(parent, &tpualpha.Node{
		AcceleratorType: "v5litepod-16", RuntimeVersion: "v2-alpha-tpuv5-lite", Metadata: map[string]string{"startup-script": "true"},
	}).NodeId("n").Do()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "node", func() bool {
		op, err = svc.Operations.Get(op.Name).Do()
		return err == nil && op.Done
	})
	reply, err := svc.Nodes.GetGuestAttributes(name, &tpualpha.GetGuestAttributesRequest{QueryPath: "hostkeys/", WorkerIds: []string{"3"}}).Do()
	if err != nil || len(reply.GuestAttributes) != 1 {
		t.Fatalf("guest attributes: %+v, %v", reply, err)
	}
	items := map[string]string{}
	for _, item := range reply.GuestAttributes[0].QueryValue.Items {
		items[item.Key] = item.Value
	}
	if !strings.HasSuffix(items["hostname"], "-w-3") || items["ssh-ed25519"] == "" {
		t.Errorf("got items %v", items)
	}
	_, err = svc.Nodes.GetGuestAttributes(name, &tpualpha.GetGuestAttributesRequest{WorkerIds: []string{"4"}}).Do()
	wantError(t, err, 400, "no worker")

	keys := workers.find("n", 0).spec.AuthorizedKeys
	if got := keys(); len(got) != 1 {
		t.Errorf("keys before the patch: %v", got)
	}
	old := `u:ssh-rsa AAAB google-ssh {"userName":"u","expireOn":"2001-01-02T03:04:05+0000"}`
	patch := &tpualpha.Node{Metadata: map[string]string{"ssh-keys": "u:ssh-ed25519 AAAA u\n" + old, "block-project-ssh-keys": "TRUE"}}
	if _, err := svc.Nodes.Patch(name, patch).UpdateMask("metadata").Do(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "patched keys", func() bool { got := keys(); return len(got) == 1 && got[0] == "u:ssh-ed25519 AAAA u" })
	if n, err := svc.Nodes.Get(name).Do(); err != nil || n.Metadata["startup-script"] != "" {
		t.Errorf("metadata is merged, not replaced: %v, %v", n.Metadata, err)
	}
	_, err = svc.Nodes.Patch(name, patch).UpdateMask("acceleratorType").Do()
	wantError(t, err, 400, "update_mask")

	if _, err := svc.Nodes.Delete(name).Do(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "node gone", func() bool { return len(s.Status().Nodes) == 0 })
}

func TestDeletingTheNodesSuspendsTheRequest(t *testing.T) {
	t.Parallel()
	s, _ := start(t, preset(t, "run:1xv4-8"))
	if _, err := alpha(t, s).Nodes.Delete(parent + "/nodes/run").Do(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, "run", "SUSPENDED")
}

func TestResetRebootsWorkers(t *testing.T) {
	t.Parallel()
	s, workers := start(t, preset(t, "run:1xv4-16"))
	svc := alpha(t, s)
	op, err := svc.QueuedResources.Reset(parent+"/queuedResources/run", &tpualpha.ResetQueuedResourceRequest{}).Do()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "reset", func() bool {
		op, err = svc.Operations.Get(op.Name).Do()
		return err == nil && op.Done
	})
	for i := range 2 {
		if m := workers.find("run", i); m.reboots != 1 {
			t.Errorf("worker %d rebooted %d times", i, m.reboots)
		}
	}
}

func TestCatalog(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	svc := alpha(t, s)
	a, err := svc.AcceleratorTypes.Get(parent + "/acceleratorTypes/v5litepod-256").Do()
	if err != nil || a.Type != "v5litepod-256" {
		t.Errorf("accelerator type: %+v, %v", a, err)
	}
	types, err := svc.AcceleratorTypes.List("projects/" + sim.DefaultProject + "/locations/us-east1-d").Do()
	if err != nil || len(types.AcceleratorTypes) == 0 {
		t.Fatalf("accelerator types: %v", err)
	}
	for _, a := range types.AcceleratorTypes {
		if !strings.HasPrefix(a.Type, "v6e-") {
			t.Errorf("us-east1-d offers %s", a.Type)
		}
	}
	if r, err := svc.RuntimeVersions.List(parent).Do(); err != nil || len(r.RuntimeVersions) == 0 {
		t.Errorf("runtime versions: %v", err)
	}
	if l, err := svc.List("projects/" + sim.DefaultProject).Do(); err != nil || len(l.Locations) < 10 {
		t.Errorf("locations: %v", err)
	}
	if l, err := svc.Get(parent).Do(); err != nil || l.LocationId != sim.DefaultZone {
		t.Errorf("location: %+v, %v", l, err)
	}
}
