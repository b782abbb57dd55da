package sim_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
	"multihost/internal/tpu"
)

// A rest is the Compute API of a simulator, called with plain JSON.
type rest struct {
	t   *testing.T
	url string // of the project
}

func newRest(t *testing.T, url string) rest {
	return rest{t, url + "/compute/v1/projects/" + sim.DefaultProject}
}

// call sends a request and returns the code and the answer.
func (r rest) call(method, path, body string) (int, map[string]any) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	var m map[string]any
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		r.t.Fatalf("%s %s: %v: %s", method, path, err, b)
	}
	return resp.StatusCode, m
}

// must is call for requests that succeed. It waits until the operation has ended.
func (r rest) must(method, path, body string) map[string]any {
	r.t.Helper()
	code, m := r.call(method, path, body)
	if code == http.StatusOK && m["kind"] == "compute#operation" {
		link := m["selfLink"].(string)
		code, m = r.call(http.MethodPost, link[strings.Index(link, sim.DefaultProject)+len(sim.DefaultProject):]+"/wait", "")
	}
	if code != http.StatusOK || m["error"] != nil {
		r.t.Fatalf("%s %s: %d %v", method, path, code, m)
	}
	return m
}

// refused fails the test unless the request is refused with this code and this text.
func (r rest) refused(method, path, body string, code int, text string) {
	r.t.Helper()
	got, m := r.call(method, path, body)
	b, err := json.Marshal(m)
	if err != nil {
		r.t.Fatal(err)
	}
	if got != code || !strings.Contains(string(b), text) {
		r.t.Errorf("%s %s %s: got %d %s, want %d with %q", method, path, body, got, b, code, text)
	}
}

const (
	inZone   = "/zones/" + sim.DefaultZone
	inRegion = "/regions/us-central2"
)

// template returns a template of that name. changes have the form "path=JSON" and change
// its properties.
func template(t *testing.T, name string, changes ...string) string {
	t.Helper()
	p := map[string]any{
		"machineType": "tpu7x-standard-4t",
		"disks": []any{map[string]any{"boot": true, "autoDelete": true, "initializeParams": map[string]any{
			"sourceImage": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2404-amd64-tpu-tpu7x", "diskSizeGb": "200", "diskType": "hyperdisk-balanced",
		}}},
		"networkInterfaces": []any{map[string]any{"network": "global/networks/default", "nicType": "GVNIC", "accessConfigs": []any{map[string]any{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}}}},
		"scheduling":        map[string]any{"onHostMaintenance": "TERMINATE", "automaticRestart": true},
		"serviceAccounts":   []any{map[string]any{"email": "default", "scopes": []any{"https://www.googleapis.com/auth/cloud-platform"}}},
		"metadata":          map[string]any{"items": []any{map[string]any{"key": "enable-guest-attributes", "value": "TRUE"}}},
		"labels":            map[string]any{"multihost-job": "t"},
	}
	for _, change := range changes {
		path, value, _ := strings.Cut(change, "=")
		at := any(p)
		keys := strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			if list, ok := at.([]any); ok {
				at = list[0]
			}
			at = at.(map[string]any)[key]
		}
		if list, ok := at.([]any); ok {
			at = list[0]
		}
		var v any
		if err := json.Unmarshal([]byte(value), &v); err != nil {
			t.Fatalf("%s: %v", change, err)
		}
		at.(map[string]any)[keys[len(keys)-1]] = v
	}
	b, err := json.Marshal(map[string]any{"name": name, "properties": p})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWorkloadPolicies(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	r := newRest(t, s.URL())
	const all = inRegion + "/resourcePolicies"
	policy := func(fields string) string { return `{"name":"p","workloadPolicy":{` + fields + `}}` }
	const good = `"type":"HIGH_THROUGHPUT","acceleratorTopology":"2x2x2"`
	for _, tt := range []struct {
		path, body string
		code       int
		text       string
	}{
		{all, `{"name":"P","workloadPolicy":{` + good + `}}`, 400, "Must be a match of regex"},
		{all, policy(`"type":"FAST"`), 400, "Must be HIGH_THROUGHPUT or HIGH_AVAILABILITY"},
		{all, policy(`"type":"HIGH_AVAILABILITY","acceleratorTopology":"2x2x2"`), 400, "with type HIGH_THROUGHPUT only"},
		{all, policy(`"type":"HIGH_THROUGHPUT","acceleratorTopology":"2x0"`), 400, "malformed"},
		{all, policy(`"type":"HIGH_THROUGHPUT","acceleratorTopologyMode":"PROVISION_ONLY"`), 501, "acceleratorTopologyMode"},
		{all, policy(`"kind":"x"`), 400, "unknown field"},
		{all, `{"name":"p","groupPlacementPolicy":{"vmCount":2}}`, 501, "groupPlacementPolicy"},
		{"/regions/nowhere/resourcePolicies", policy(good), 404, "regions/nowhere"},
		{all + "?requestId=x", policy(good), 400, "Must be a valid UUID"},
	} {
		r.refused("POST", tt.path, tt.body, tt.code, tt.text)
	}
	const once = all + "?requestId=0a1b2c3d-0000-4000-8000-000000000001"
	first := r.must("POST", once, policy(good))
	if again := r.must("POST", once, policy(good)); again["name"] != first["name"] {
		t.Errorf("the same request made operations %v and %v", first["name"], again["name"])
	}
	r.refused("POST", all, policy(good), 409, "already exists")
	got := r.must("GET", all+"/p", "")
	if w := got["workloadPolicy"].(map[string]any); got["status"] != "READY" || w["acceleratorTopology"] != "2x2x2" || !strings.HasSuffix(got["region"].(string), inRegion) {
		t.Errorf("got %v", got)
	}
	scopes := r.must("GET", "/aggregated/resourcePolicies?includeAllScopes=True&returnPartialSuccess=True", "")["items"].(map[string]any)
	if list := scopes["regions/us-central2"].(map[string]any)["resourcePolicies"].([]any); len(list) != 1 {
		t.Errorf("got %v", scopes)
	}
	r.must("DELETE", all+"/p", "")
	r.refused("GET", all+"/p", "", 404, "resourcePolicies/p")
}

func TestInstanceTemplates(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	r := newRest(t, s.URL())
	const all = inRegion + "/instanceTemplates"
	for _, tt := range []struct {
		change string
		code   int
		text   string
	}{
		{`machineType="zones/z/machineTypes/m"`, 400, "Must be the name of a machine type"},
		{`guestAccelerators=[{"acceleratorCount":1}]`, 501, "guestAccelerators"},
		{`disks=[]`, 400, "boot disk"},
		{`disks.initializeParams.diskSizeGb="9"`, 400, "smaller than the image size"},
		{`disks.initializeParams.sourceImage="projects/ubuntu-os-accelerator-images/global/images/family/ubuntu"`, 404, "images/family/ubuntu"},
		{`disks.initializeParams.sourceImage="global/images/mine"`, 404, "not found"},
		{`networkInterfaces.network="global/networks/none"`, 404, "networks/none"},
		{`networkInterfaces.subnetwork="none"`, 404, "subnetworks/none"},
		{`networkInterfaces.nicType="FAST"`, 400, "GVNIC"},
		{`scheduling.provisioningModel="SPOT"`, 400, "automaticRestart be false"},
		{`scheduling={"onHostMaintenance":"TERMINATE","provisioningModel":"FLEX_START"}`, 400, "maxRunDuration must be specified"},
		{`scheduling={"provisioningModel":"FLEX_START","maxRunDuration":{"seconds":"604801"},"instanceTerminationAction":"DELETE"}`, 400, "at most 168h"},
		{`scheduling={"provisioningModel":"FLEX_START","maxRunDuration":{"seconds":"604800"},"instanceTerminationAction":"STOP"}`, 400, "must be DELETE"},
		{`scheduling.maxRunDuration={"seconds":"3600"}`, 400, "termination action"},
		{`scheduling={"provisioningModel":"RESERVATION_BOUND","instanceTerminationAction":"DELETE"}`, 400, "SPECIFIC_RESERVATION"},
		{`reservationAffinity={"consumeReservationType":"SPECIFIC_RESERVATION","key":"reservation","values":["r"]}`, 400, "compute.googleapis.com/reservation-name"},
		{`metadata.items=[{"key":"a","value":"1"},{"key":"a","value":"2"}]`, 400, "duplicate"},
		{`labels={"A":"b"}`, 400, "not valid"},
	} {
		r.refused("POST", all, template(t, "t", tt.change), tt.code, tt.text)
	}
	for i, change := range []string{
		`scheduling={"onHostMaintenance":"TERMINATE","provisioningModel":"SPOT","automaticRestart":false,"instanceTerminationAction":"STOP","preemptible":true}`,
		`scheduling={"onHostMaintenance":"TERMINATE","provisioningModel":"FLEX_START","automaticRestart":false,"maxRunDuration":{"seconds":"604800"},"instanceTerminationAction":"DELETE"}`,
		`reservationAffinity={"consumeReservationType":"SPECIFIC_RESERVATION","key":"compute.googleapis.com/reservation-name","values":["projects/p/reservations/r"]}`,
	} {
		r.must("POST", all, template(t, "t"+string(rune('0'+i)), change))
	}
	r.must("POST", all, template(t, "t"))
	got := r.must("GET", all+"/t", "")
	network := got["properties"].(map[string]any)["networkInterfaces"].([]any)[0].(map[string]any)["network"].(string)
	if got["kind"] != "compute#instanceTemplate" || !strings.HasSuffix(network, "/global/networks/default") {
		t.Errorf("got %v", got)
	}
	// A global template has no region.
	r.refused("POST", "/global/instanceTemplates", template(t, "g", `networkInterfaces.subnetwork="default"`), 400, "Subnetwork")
	r.must("POST", "/global/instanceTemplates", template(t, "g", `networkInterfaces.subnetwork="projects/`+sim.DefaultProject+`/regions/us-central2/subnetworks/default"`))
	if list := r.must("GET", "/global/instanceTemplates", "")["items"].([]any); len(list) != 1 {
		t.Errorf("%d global templates, want 1", len(list))
	}
	r.must("DELETE", all+"/t", "")
	r.refused("GET", all+"/t", "", 404, "instanceTemplates/t")
}

func TestImagesAndMachineTypes(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	r := newRest(t, s.URL())
	types := func(zone string) (names []string) {
		items, _ := r.must("GET", "/zones/"+zone+"/machineTypes", "")["items"].([]any)
		for _, m := range items {
			if at(m, "guestCpus") == 0.0 || at(m, "memoryMb") == 0.0 {
				t.Errorf("a machine type without CPUs or memory: %v", m)
			}
			names = append(names, m.(map[string]any)["name"].(string))
		}
		return names
	}
	if own, other := types(sim.DefaultZone), types("us-central1-c"); len(own) <= len(other) || strings.Join(other, " ") != "tpu7x-standard-1t tpu7x-standard-4t" {
		t.Errorf("machine types %v and %v", own, other)
	}
	elsewhere := map[string]bool{}
	for _, zone := range s.Status().Zones {
		for _, name := range types(zone) {
			elsewhere[name] = elsewhere[name] || zone != sim.DefaultZone
		}
	}
	for _, m := range tpu.Machines() {
		if !elsewhere[m.Name] {
			t.Errorf("%s: no zone but the simulator's own offers it", m.Name)
		}
	}
	r.refused("GET", "/zones/us-central1-c/machineTypes/ct6e-standard-4t", "", 404, "ct6e-standard-4t")
	r.refused("GET", "/zones/nowhere/machineTypes", "", 404, "zones/nowhere")
	r.refused("GET", "/global/images/family/ubuntu-accel-2404-amd64-tpu-tpu7x", "", 404, "images/family")
	images := rest{t, s.URL() + "/compute/v1/projects/ubuntu-os-accelerator-images"}
	got := images.must("GET", "/global/images/family/ubuntu-accel-2404-amd64-tpu-tpu7x", "")
	if got["diskSizeGb"] != "10" || got["deprecated"] != nil {
		t.Errorf("got %v", got)
	}
	images.refused("GET", "/global/networks", "", 404, "ubuntu-os-accelerator-images")
}

// eventually waits until ok returns true for the answer at a path, and returns that answer.
func (r rest) eventually(what, path string, ok func(m map[string]any) bool) (last map[string]any) {
	r.t.Helper()
	testkit.Eventually(r.t, what, func() bool {
		_, last = r.call(http.MethodGet, path, "")
		return ok(last)
	})
	return last
}

// at returns the value below the given keys of objects and indexes of lists, or nil.
func at(v any, keys ...any) any {
	for _, key := range keys {
		switch k := key.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[k]
		case int:
			list, _ := v.([]any)
			if k >= len(list) {
				return nil
			}
			v = list[k]
		}
	}
	return v
}

const groupsPath = inZone + "/instanceGroupManagers"

// topology returns the state of the topology of a group.
func topology(m map[string]any) any {
	return at(m, "status", "appliedAcceleratorTopologies", 0, "state")
}

// groupOf returns the body of a group of n VMs of template t and policy p.
func groupOf(name string, n int, changes ...string) string {
	body := map[string]any{
		"name": name, "targetSize": n, "instanceTemplate": "projects/" + sim.DefaultProject + inRegion + "/instanceTemplates/t",
		"targetSizePolicy": map[string]any{"mode": "BULK"}, "instanceLifecyclePolicy": map[string]any{"defaultActionOnFailure": "DO_NOTHING"},
		"resourcePolicies": map[string]any{"workloadPolicy": "projects/" + sim.DefaultProject + inRegion + "/resourcePolicies/p"},
	}
	for _, change := range changes {
		key, value, _ := strings.Cut(change, "=")
		var v any
		if json.Unmarshal([]byte(value), &v) != nil {
			panic(change)
		}
		if body[key] = v; v == nil {
			delete(body, key)
		}
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// withParts runs a simulator with a template t and a policy p for slices of 2x2x2: two VMs.
func withParts(t *testing.T, changes ...string) (*sim.Server, *fakeWorkers, rest) {
	t.Helper()
	s, workers := start(t)
	r := newRest(t, s.URL())
	r.must("POST", "/global/networks", `{"name":"own","autoCreateSubnetworks":true,"mtu":8896}`)
	r.must("POST", inRegion+"/instanceTemplates", template(t, "t", append(changes, `networkInterfaces.network="global/networks/own"`)...))
	r.must("POST", inRegion+"/resourcePolicies", `{"name":"p","workloadPolicy":{"type":"HIGH_THROUGHPUT","acceleratorTopology":"2x2x2"}}`)
	return s, workers, r
}

func TestASliceIsMade(t *testing.T) {
	t.Parallel()
	s, workers, r := withParts(t)
	hold := inject(t, s, "no-capacity group=g")
	const once = groupsPath + "?requestId=0a1b2c3d-0000-4000-8000-000000000002"
	op := r.must("POST", once, groupOf("g", 2, `baseInstanceName="g-vm"`))
	if again := r.must("POST", once, groupOf("g", 2)); again["name"] != op["name"] || !strings.Contains(op["selfLink"].(string), inZone+"/operations/") {
		t.Errorf("operations %v and %v", op, again)
	}
	const code = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
	got := r.eventually("waiting", groupsPath+"/g", func(m map[string]any) bool {
		return at(m, "status", "bulkInstanceOperation", "lastProgressCheck", "error", "errors", 0, "code") == code
	})
	if at(got, "status", "bulkInstanceOperation", "inProgress") != true || at(got, "status", "isStable") != false || at(got, "currentActions", "creating") != 2.0 ||
		at(got, "status", "currentInstanceStatuses", "nonExistent") != 2.0 || topology(got) != nil {
		t.Errorf("a waiting group: %v", got)
	}
	list := r.must("POST", groupsPath+"/g/listManagedInstances?maxResults=500", "")
	if at(list, "managedInstances", 1, "currentAction") != "CREATING" || at(list, "managedInstances", 1, "instanceStatus") != nil {
		t.Errorf("managed instances of a waiting group: %v", list)
	}
	r.refused("POST", groupsPath+"/g/resize?size=4", "", 400, "in progress")
	r.refused("DELETE", inRegion+"/resourcePolicies/p", "", 400, "resourceInUseByAnotherResource")
	r.refused("DELETE", inRegion+"/instanceTemplates/t", "", 400, "already being used")
	if n, err := s.Clear(strconv.Itoa(hold)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	got = r.eventually("active", groupsPath+"/g", func(m map[string]any) bool { return topology(m) == "ACTIVE" })
	if at(got, "status", "isStable") != true || at(got, "status", "currentInstanceStatuses", "running") != 2.0 || at(got, "status", "bulkInstanceOperation", "inProgress") != false {
		t.Errorf("an active group: %v", got)
	}
	vms := s.Status().Groups[0].VMs
	if len(vms) != 2 || vms[0].Name > vms[1].Name || vms[0].Worker != 1 || vms[1].Worker != 0 || !strings.HasPrefix(vms[0].Name, "g-vm-") || vms[0].Address == "" {
		t.Errorf("VMs %+v: want the worker numbers of two not in the order of their names", vms)
	}
	m := workers.find("g", 0)
	if m == nil || m.spec.Hostname != vms[1].Name || m.spec.NUMANodes != 2 || len(m.spec.Devices) != 5 || len(m.spec.Hosts) != 4 {
		t.Fatalf("worker 0: %+v", m)
	}
	i := r.must("GET", inZone+"/instances/"+vms[1].Name, "")
	if at(i, "networkInterfaces", 0, "accessConfigs", 0, "natIP") != m.addr || at(i, "labels", "multihost-job") != "t" || at(i, "scheduling", "onHostMaintenance") != "TERMINATE" ||
		at(i, "resourceStatus", "physicalHostTopology", "cluster") == nil {
		t.Errorf("instance %v", i)
	}
	if items := r.must("GET", inZone+"/instances", "")["items"].([]any); len(items) != 2 {
		t.Errorf("%d instances", len(items))
	}
	r.refused("DELETE", "/global/networks/own", "", 400, "instances/g-vm-")
	r.refused("POST", groupsPath+"/g/resize?size=4", "", 400, "while the target size")
	r.refused("POST", groupsPath+"/g/resizeRequests", "{}", 400, "not allowed")
	r.must("POST", groupsPath+"/g/resize?size=0", "")
	if got := r.must("GET", groupsPath+"/g", ""); at(got, "targetSize") != 0.0 || topology(got) != nil || len(s.Status().Groups[0].VMs) != 0 {
		t.Errorf("an empty group: %v", got)
	}
	r.refused("POST", groupsPath+"/g/resize?size=3", "", 400, "Target size should be 2 for given accelerator topology but was 3")
	r.must("POST", groupsPath+"/g/resize?size=2", "")
	r.eventually("active again", groupsPath+"/g", func(m map[string]any) bool { return topology(m) == "ACTIVE" })
	r.must("DELETE", groupsPath+"/g", "")
	r.refused("GET", groupsPath+"/g", "", 404, "instanceGroupManagers/g")
	if workers.find("g", 0) != nil || workers.find("g", 1) != nil {
		t.Error("machines are left")
	}
	r.must("DELETE", inRegion+"/instanceTemplates/t", "")
	r.must("DELETE", inRegion+"/resourcePolicies/p", "")
}

func TestGroupsThatAreRefused(t *testing.T) {
	t.Parallel()
	_, _, r := withParts(t)
	r.must("POST", inRegion+"/instanceTemplates", template(t, "flex", `scheduling={"onHostMaintenance":"TERMINATE","provisioningModel":"FLEX_START","maxRunDuration":{"seconds":"3600"},"instanceTerminationAction":"DELETE"}`))
	r.must("POST", inRegion+"/instanceTemplates", template(t, "lively", `scheduling={}`))
	r.must("POST", inRegion+"/instanceTemplates", template(t, "pd", `disks.initializeParams.diskType="pd-balanced"`))
	r.must("POST", inRegion+"/instanceTemplates", template(t, "small", `machineType="e2-small"`))
	r.must("POST", inRegion+"/resourcePolicies", `{"name":"one","workloadPolicy":{"type":"HIGH_THROUGHPUT","acceleratorTopology":"2x2x1"}}`)
	of := func(name string) string {
		return `instanceTemplate="projects/` + sim.DefaultProject + inRegion + `/instanceTemplates/` + name + `"`
	}
	for _, tt := range []struct {
		body string
		code int
		text string
	}{
		{groupOf("G", 2), 400, "Must be a match of regex"},
		{groupOf("g", 2, `targetSizePolicy=null`), 400, "MIGs with TPU accelerator topology require BULK mode in target size policy"},
		{groupOf("g", 8), 400, "Target size should be 2 for given accelerator topology but was 8"},
		{groupOf("g", 2, `targetSize=null`), 400, "targetSize"},
		{groupOf("g", 2, `resourcePolicies={"workloadPolicy":"p"}`), 400, "malformed"},
		{groupOf("g", 2, `resourcePolicies={"workloadPolicy":"regions/us-central2/resourcePolicies/none"}`), 404, "resourcePolicies/none"},
		{groupOf("g", 2, `resourcePolicies={"workloadPolicy":"regions/us-central2/resourcePolicies/one"}`), 400, "does not fit several VMs"},
		{groupOf("g", 2, `resourcePolicies=null`), 501, "without a topology"},
		{groupOf("g", 2, `instanceTemplate="t"`), 400, "malformed"},
		{groupOf("g", 2, of("none")), 404, "instanceTemplates/none"},
		{groupOf("g", 2, of("lively")), 400, "onHostMaintenance must be TERMINATE"},
		{groupOf("g", 2, of("pd")), 400, "pd-balanced"},
		{groupOf("g", 2, of("small")), 404, "machineTypes/e2-small"},
		{groupOf("g", 2, of("flex"), `instanceLifecyclePolicy=null`), 400, "DO_NOTHING"},
		{groupOf("g", 2, `instanceLifecyclePolicy=null`), 501, "repairs"},
		{groupOf("g", 2, `baseInstanceName="G"`), 400, "baseInstanceName"},
		{groupOf("g", 2, `autoHealingPolicies=[{}]`), 501, "autoHealingPolicies"},
	} {
		r.refused("POST", groupsPath, tt.body, tt.code, tt.text)
	}
	r.must("POST", groupsPath, groupOf("g", 0))
	r.refused("POST", groupsPath, groupOf("g", 0), 409, "already exists")
	for _, path := range []string{inRegion + "/instanceGroupManagers", inZone + "/commitments/r", "/global/routes"} {
		r.refused("GET", path, "", 501, "is not modelled by the simulator")
	}
	r.refused("GET", inZone+"/things", "", 404, "Method not found")
	// One VM is a slice even without a policy.
	r.must("POST", groupsPath, groupOf("alone", 1, `resourcePolicies=null`, `targetSizePolicy=null`, `baseInstanceName="alone-##[7]"`))
	r.eventually("alone", inZone+"/instances/alone-07", func(m map[string]any) bool { return m["status"] == "RUNNING" })
}

// running makes the group g of two VMs and returns their names by worker number.
func (r rest) running(s *sim.Server) [2]string {
	r.t.Helper()
	r.must("POST", groupsPath, groupOf("g", 2))
	r.eventually("active", groupsPath+"/g", func(m map[string]any) bool { return topology(m) == "ACTIVE" })
	var names [2]string
	for _, vm := range s.Status().Groups[0].VMs {
		names[vm.Worker] = vm.Name
	}
	return names
}

// until waits until the topology of g has a state and all its VMs have a status.
func (r rest) until(state any, status string) map[string]any {
	r.t.Helper()
	return r.eventually(status, groupsPath+"/g", func(m map[string]any) bool {
		return topology(m) == state && at(m, "status", "currentInstanceStatuses", status) == 2.0
	})
}

func TestWhatASliceKnowsOfItself(t *testing.T) {
	t.Parallel()
	s, workers, r := withParts(t, `metadata.items=[{"key":"enable-guest-attributes","value":"TRUE"},{"key":"greeting","value":"hello"}]`)
	names := r.running(s)
	ask := func(worker int, path string) string {
		t.Helper()
		req := httptest.NewRequest(http.MethodGet, "/computeMetadata/v1/"+path, nil)
		req.Header.Set("Metadata-Flavor", "Google")
		w := httptest.NewRecorder()
		workers.find("g", worker).spec.Metadata.ServeHTTP(w, req)
		return w.Body.String()
	}
	for worker, name := range names {
		number := strconv.Itoa(worker)
		for path, want := range map[string]string{
			"instance/name":                                name,
			"instance/hostname":                            name + "." + sim.DefaultZone + ".c." + sim.DefaultProject + ".internal",
			"instance/attributes/agent-worker-number":      number,
			"instance/attributes/worker-id":                number,
			"instance/attributes/worker-network-endpoints": names[0] + "," + names[1],
			"instance/attributes/accelerator-type":         "tpu7x-16",
			"instance/attributes/greeting":                 "hello",
			"instance/attributes/tpu-env": "TPU_ACCELERATOR_TYPE: 'tpu7x-16'\nTOPOLOGY: '2x2x2'\nTPU_WORKER_ID: '" + number +
				"'\nHOST_BOUNDS: '1,1,2'\nCHIPS_PER_HOST_BOUNDS: '2,2,1'\n",
			"instance/preempted": "FALSE",
			"instance/network-interfaces/0/access-configs/0/external-ip": workers.find("g", worker).addr,
			"instance/network-interfaces/0/mtu":                          "8896",
			"instance/service-accounts/default/scopes":                   "https://www.googleapis.com/auth/cloud-platform\n",
		} {
			if got := ask(worker, path); got != want {
				t.Errorf("worker %d: %s is %q, want %q", worker, path, got, want)
			}
		}
	}

	instance := inZone + "/instances/" + names[1]
	got := r.must("GET", instance+"/getGuestAttributes?queryPath=hostkeys%2F", "")
	if key := at(got, "queryValue", "items", 0); at(key, "namespace") != "hostkeys" || at(key, "key") != "ssh-ed25519" || at(key, "value") == "" {
		t.Errorf("host keys %v", got)
	}
	put := httptest.NewRequest(http.MethodPut, "/computeMetadata/v1/instance/guest-attributes/multihost/state", strings.NewReader("armed"))
	put.Header.Set("Metadata-Flavor", "Google")
	workers.find("g", 1).spec.Metadata.ServeHTTP(httptest.NewRecorder(), put)
	if got := r.must("GET", instance+"/getGuestAttributes?variableKey=multihost/state", ""); got["variableValue"] != "armed" {
		t.Errorf("guest attribute %v", got)
	}
	r.refused("GET", instance+"/getGuestAttributes?queryPath=none%2F", "", 404, "The resource 'none/' of type 'Guest Attribute' was not found.")

	// A caller can change the metadata only after it has seen the last change.
	fingerprint := at(r.must("GET", instance, ""), "metadata", "fingerprint").(string)
	body := `{"fingerprint":"` + fingerprint + `","items":[{"key":"ssh-keys","value":"ada:ssh-ed25519 AAAA ada"}]}`
	r.must("POST", instance+"/setMetadata", body)
	r.refused("POST", instance+"/setMetadata", body, 412, "fingerprint")
	if keys := workers.find("g", 1).spec.AuthorizedKeys(); len(keys) != 1 || keys[0] != "ada:ssh-ed25519 AAAA ada" {
		t.Errorf("keys %q", keys)
	}
	if len(workers.find("g", 0).spec.AuthorizedKeys()) != 0 {
		t.Error("the other worker has a key, too")
	}
	r.refused("GET", instance+"/getGuestAttributes?queryPath=hostkeys%2F", "", 412, "disabled")
	r.must("POST", instance+"/reset", "")
	if n := workers.find("g", 1).reboots; n != 1 {
		t.Errorf("%d reboots, want 1", n)
	}
}

// A VM may delete its own group while the group exists, if its service account has the
// permission.
func TestAVMDeletesItsSlice(t *testing.T) {
	t.Parallel()
	s, workers, r := withParts(t)
	r.running(s)
	req := httptest.NewRequest(http.MethodGet, "/computeMetadata/v1/instance/service-accounts/default/token", nil)
	req.Header.Set("Metadata-Flavor", "Google")
	w := httptest.NewRecorder()
	workers.find("g", 1).spec.Metadata.ServeHTTP(w, req)
	var token struct {
		Access string `json:"access_token"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &token); err != nil {
		t.Fatal(err)
	}
	as := func(method, path string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, r.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token.Access)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	inject(t, s, "permission-denied permission=compute.instanceGroupManagers.delete account=*gserviceaccount.com n=all")
	if get, del := as("GET", groupsPath+"/g"), as("DELETE", groupsPath+"/g"); get != 200 || del != 403 {
		t.Errorf("without the permission: got %d and %d, want 200 and 403", get, del)
	}
	if _, err := s.Clear("all"); err != nil {
		t.Fatal(err)
	}
	if code := as("DELETE", groupsPath+"/g"); code != 200 {
		t.Errorf("with the permission: got %d, want 200", code)
	}
	r.eventually("the end of the group", groupsPath+"/g", func(m map[string]any) bool { return m["error"] != nil })
	if code := as("GET", groupsPath+"/g"); code != 401 {
		t.Errorf("the token of a VM that is gone: got %d, want 401", code)
	}
}

func TestASliceIsLost(t *testing.T) {
	t.Parallel()
	const (
		spot  = `scheduling={"onHostMaintenance":"TERMINATE","provisioningModel":"SPOT","automaticRestart":false,"instanceTerminationAction":"STOP"}`
		bound = `scheduling={"onHostMaintenance":"TERMINATE","automaticRestart":true,"maxRunDuration":{"seconds":"3600"},"instanceTerminationAction":"DELETE"}`
	)
	const reserved = `scheduling={"onHostMaintenance":"TERMINATE"}`
	operations := func(r rest) (kinds []string) {
		for _, op := range r.must("GET", inZone+"/operations", "")["items"].([]any) {
			if kind := at(op, "operationType").(string); strings.HasPrefix(kind, "compute.instances.") {
				kinds = append(kinds, strings.TrimPrefix(kind, "compute.instances."))
			}
		}
		slices.Sort(kinds)
		return kinds
	}
	for _, tt := range []struct {
		name, template string
		faults         string
		state          any
		status         string
		operations     string
	}{
		{"spot", spot, "group-preempt group=g", "INCOMPLETE", "terminated", "preempted preempted"},
		{"spot host", spot, "group-host-error group=g", "INCOMPLETE", "terminated", "hostError hostError"},
		{"host", bound, "group-host-error group=g", "ACTIVE", "running", "automaticRestart automaticRestart hostError hostError"},
		{"end", bound, "group-run-ends group=g", "INCOMPLETE", "nonExistent", ""},
		{"degraded", bound, "group-topology group=g state=ACTIVE_DEGRADED", "ACTIVE_DEGRADED", "running", ""},
		{"reserved host", reserved, "group-host-error group=g", "ACTIVE", "running", "automaticRestart automaticRestart hostError hostError"},
		{"no recovery", bound, "group-no-recovery group=g; group-host-error group=g", "REACTIVATING", "repairing", "hostError hostError"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, workers, r := withParts(t, tt.template)
			names := r.running(s)
			end := at(r.must("GET", inZone+"/instances/"+names[0], ""), "resourceStatus", "scheduling", "terminationTimestamp")
			if (end != nil) != (tt.template == bound) {
				t.Errorf("end %v", end)
			}
			for text := range strings.SplitSeq(tt.faults, "; ") {
				inject(t, s, text)
			}
			r.until(tt.state, tt.status)
			if got := strings.Join(operations(r), " "); got != tt.operations {
				t.Errorf("operations %q, want %q", got, tt.operations)
			}
			if tt.name == "no recovery" {
				if _, err := s.Clear("group-no-recovery"); err != nil {
					t.Fatal(err)
				}
				r.until("ACTIVE", "running")
			}
			if tt.name == "end" {
				made, err := time.Parse(time.RFC3339Nano, r.must("GET", groupsPath+"/g", "")["creationTimestamp"].(string))
				if err != nil || time.Since(made) < time.Hour {
					t.Errorf("a group whose VMs may run an hour is of %v, %v", made, err)
				}
			}
			if tt.status == "terminated" && r.must("GET", inZone+"/instances/"+names[0], "")["lastStopTimestamp"] == nil {
				t.Error("a VM that was stopped does not say when")
			}
			if m := workers.find("g", 1); tt.status == "terminated" && m != nil || strings.Contains(tt.faults, "host-error group=g") && tt.template == bound && m.reboots != 1 {
				t.Errorf("machine of worker 1: %+v", m)
			}
			r.must("DELETE", groupsPath+"/g", "")
		})
	}
}

func TestASliceIsNotMade(t *testing.T) {
	t.Parallel()
	s, workers, r := withParts(t)
	make := func() {
		t.Helper()
		r.must("POST", groupsPath, groupOf("g", 2))
	}
	inject(t, s, "group-quota group=g")
	make()
	r.eventually("without quota", groupsPath+"/g", func(m map[string]any) bool {
		return at(m, "status", "bulkInstanceOperation", "lastProgressCheck", "error", "errors", 0, "code") == "QUOTA_EXCEEDED"
	})
	quotas := func() string {
		resp, err := http.Get(s.URL() + "/v1beta/projects/" + sim.DefaultProject + "/locations/global/services/compute.googleapis.com/quotaInfos")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var m map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
			t.Fatal(err)
		}
		family := at(m, "quotaInfos", 0)
		if at(family, "quotaId") != "TPUS-PER-TPU-FAMILY-per-project-region" || at(family, "dimensionsInfos", 0, "dimensions", "tpu_family") != "CT5P" {
			t.Errorf("quotas %v", m)
		}
		return at(m, "quotaInfos", 3, "dimensionsInfos", 0, "details", "value").(string)
	}
	if got := quotas(); got != "0" {
		t.Errorf("the quota is %s, want 0", got)
	}
	r.must("DELETE", groupsPath+"/g", "") // while it waits
	inject(t, s, "group-error group=g")
	if _, err := s.Clear("group-quota"); err != nil {
		t.Fatal(err)
	}
	if got := quotas(); got != "-1" {
		t.Errorf("the quota is %s, want none", got)
	}
	make()
	r.until("FAILED", "nonExistent")
	list := r.must("POST", groupsPath+"/g/listManagedInstances", "")
	errs := r.must("GET", groupsPath+"/g/listErrors", "")
	if at(list, "managedInstances", 0, "lastAttempt", "errors", "errors", 0, "code") != "INTERNAL_ERROR" || at(errs, "items", 1, "error", "code") != "INTERNAL_ERROR" {
		t.Errorf("managed instances %v, errors %v", list, errs)
	}
	r.must("DELETE", groupsPath+"/g", "")

	inject(t, s, "group-stuck group=g worker=1")
	make()
	got := r.eventually("half of it", groupsPath+"/g", func(m map[string]any) bool { return at(m, "status", "currentInstanceStatuses", "running") == 1.0 })
	if at(got, "status", "currentInstanceStatuses", "staging") != 1.0 || topology(got) != "ACTIVATING" || at(got, "status", "isStable") != false {
		t.Errorf("with a VM that is stuck: %v", got)
	}
	if _, err := s.Clear("all"); err != nil {
		t.Fatal(err)
	}
	r.until("ACTIVE", "running")

	// A VM that a user deletes stays missing.
	name := workers.find("g", 0).spec.Hostname
	r.must("DELETE", inZone+"/instances/"+name, "")
	got = r.must("GET", groupsPath+"/g", "")
	if topology(got) != "INCOMPLETE" || at(got, "status", "currentInstanceStatuses", "nonExistent") != 1.0 || workers.find("g", 0) != nil {
		t.Errorf("without worker 0: %v", got)
	}
	r.must("DELETE", groupsPath+"/g", "")

	inject(t, s, "compute-op-error message=no")
	_, op := r.call("POST", groupsPath, groupOf("g", 2))
	r.eventually("failed operation", inZone+"/operations/"+op["name"].(string), func(m map[string]any) bool { return at(m, "error", "errors", 0, "message") == "no" })
	r.refused("GET", groupsPath+"/g", "", 404, "")
	// After a lost answer, a repetition with the same id gets the operation of the first
	// request.
	inject(t, s, "drop-reply method=POST path=*/instanceGroupManagers")
	const once = groupsPath + "?requestId=0a1b2c3d-0000-4000-8000-000000000003"
	if resp, err := http.Post(r.url+once, "application/json", strings.NewReader(groupOf("g", 2))); err == nil {
		resp.Body.Close()
		t.Errorf("got %s, want no answer", resp.Status)
	}
	r.must("POST", once, groupOf("g", 2))
	r.until("ACTIVE", "running")

	for text, want := range map[string]string{
		"group-preempt group=none": `no group "none" with VMs`,
		"group-run-ends group=g":   "that have a maximum run duration",
	} {
		f, err := sim.ParseFault(text)
		if err == nil {
			_, err = s.Inject(f)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

// A VM with flex-start exists while it waits. Its end is known once it starts.
func TestFlexStart(t *testing.T) {
	t.Parallel()
	s, _, r := withParts(t, `scheduling={"onHostMaintenance":"TERMINATE","automaticRestart":false,"provisioningModel":"FLEX_START","maxRunDuration":{"seconds":"3600"},"instanceTerminationAction":"DELETE"}`)
	inject(t, s, "no-capacity")
	r.must("POST", groupsPath, groupOf("g", 2))
	r.until(nil, "pending")
	if items, _ := r.must("GET", inZone+"/instances", "")["items"].([]any); len(items) != 2 || at(items, 0, "status") != "PENDING" {
		t.Errorf("instances %v", items)
	}
	if _, err := s.Clear("no-capacity"); err != nil {
		t.Fatal(err)
	}
	r.until("ACTIVE", "running")
	list := r.must("POST", groupsPath+"/g/listManagedInstances", "")
	end, err := time.Parse(time.RFC3339Nano, at(list, "managedInstances", 0, "scheduling", "terminationTimestamp").(string))
	if left := time.Until(end); err != nil || left > time.Hour || left < 50*time.Minute {
		t.Errorf("ends in %v, %v", left, err)
	}
}

// vmSSH runs a command on a VM as user. The VM's host key must be the one in its guest
// attributes.
func (r rest) vmSSH(s *sim.Server, signer ssh.Signer, name, command string) (string, error) {
	r.t.Helper()
	i := r.must("GET", inZone+"/instances/"+name, "")
	got := r.must("GET", inZone+"/instances/"+name+"/getGuestAttributes?queryPath=hostkeys/ssh-ed25519", "")
	b, err := base64.StdEncoding.DecodeString(at(got, "queryValue", "items", 0, "value").(string))
	if err != nil {
		return "", err
	}
	hostKey, err := ssh.ParsePublicKey(b)
	if err != nil {
		return "", err
	}
	return sshRun(fmt.Sprintf("%s:%d", at(i, "networkInterfaces", 0, "accessConfigs", 0, "natIP"), s.SSHPort()), hostKey, signer, command)
}

// The VMs of a group are workers like those of a node: they answer SSH and know who they
// are. Their disk survives a failure of the host.
func TestVMsAreWorkers(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"process", "netns"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			if backend == "netns" {
				simworker.NeedNetns(t)
			}
			signer, line := newKey(t)
			s := begin(t, sim.Config{Dir: t.TempDir(), Backend: backend, Step: time.Millisecond})
			r := newRest(t, s.URL())
			r.must("POST", inRegion+"/instanceTemplates", template(t, "t", `metadata.items=[{"key":"enable-guest-attributes","value":"TRUE"},{"key":"ssh-keys","value":"user:`+line+`"}]`))
			r.must("POST", inRegion+"/resourcePolicies", `{"name":"p","workloadPolicy":{"type":"HIGH_THROUGHPUT","acceleratorTopology":"2x2x2"}}`)
			names := r.running(s)
			const metadata = `get() { curl -sf -H 'Metadata-Flavor: Google' "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/$1"; echo; }` + "\n"
			run := func(worker int, command string) string {
				t.Helper()
				out, err := r.vmSSH(s, signer, names[worker], metadata+command)
				if err != nil {
					t.Fatalf("worker %d: %s: %v: %s", worker, command, err, out)
				}
				return strings.TrimSpace(out)
			}
			for worker, name := range names {
				want := fmt.Sprintf("%s\n%d\n%s,%s", name, worker, names[0], names[1])
				if got := run(worker, `hostname; get attributes/agent-worker-number; get attributes/worker-network-endpoints`); got != want {
					t.Errorf("worker %d: got %q, want %q", worker, got, want)
				}
			}
			if banner := throughRelay(t, s, names[1]); !strings.HasPrefix(banner, "SSH-2.0-") {
				t.Errorf("through the relay of Identity-Aware Proxy: %q", banner)
			}
			if backend == "netns" {
				if got := run(0, "ping -q -c1 -W20 "+names[1]+" >/dev/null && echo reached; ls /dev/vfio | wc -l"); got != "reached\n5" {
					t.Errorf("worker 0 and its neighbour: %q", got)
				}
			}
			const state = `cat "$MULTIHOST_ROOT_PROC/proc/sys/kernel/random/boot_id"; cat kept`
			before := run(1, "echo kept >kept; "+state)
			inject(t, s, "group-host-error group=g")
			r.until("ACTIVE", "running")
			after := run(1, state)
			if before == after || !strings.HasSuffix(after, "kept") {
				t.Errorf("before the failure of a host %q, after it %q", before, after)
			}
			r.must("DELETE", groupsPath+"/g", "")
		})
	}
}

// A reservation shows how many of its VMs are in use. A DENSE reservation has a block.
func TestReservations(t *testing.T) {
	t.Parallel()
	s, _, r := withParts(t, `reservationAffinity={"consumeReservationType":"SPECIFIC_RESERVATION","key":"compute.googleapis.com/reservation-name","values":["r"]}`)
	const body = `{"name":"r","specificReservationRequired":true,"deploymentType":"DENSE","specificReservation":{"count":"8","instanceProperties":{"machineType":"tpu7x-standard-4t"}}}`
	r.refused("POST", inZone+"/reservations", strings.Replace(body, "tpu7x-standard-4t", "n1-standard-1", 1), 400, "does not exist in zone")
	r.refused("POST", inZone+"/reservations", strings.Replace(body, `"8"`, `"0"`, 1), 400, "greater than or equal to 1")
	r.refused("POST", groupsPath, groupOf("g", 2), 404, inZone[1:]+"/reservations/r' was not found")
	r.must("POST", inZone+"/reservations", body)
	r.refused("POST", inZone+"/reservations", body, 409, "already exists")
	r.running(s)
	has := r.must("GET", inZone+"/reservations/r", "")
	if at(has, "specificReservation", "inUseCount") != "2" || has["status"] != "READY" || at(has, "shareSettings", "shareType") != "LOCAL" {
		t.Errorf("got %v", has)
	}
	block := r.must("GET", inZone+"/reservations/r/reservationBlocks/r-block-0001", "")
	if at(block, "resource", "count") != 8.0 || at(block, "resource", "inUseCount") != 2.0 {
		t.Errorf("got %v", block)
	}
	r.refused("GET", inZone+"/reservations/r/reservationBlocks/x", "", 404, "was not found")
	r.must("GET", inZone+"/reservations/r/reservationBlocks", "")
	r.must("GET", "/aggregated/reservations", "")
	r.must("DELETE", inZone+"/reservations/r", "")
	r.refused("GET", inZone+"/reservations/r", "", 404, "was not found")
}

// A group can be deleted after any sequence of events, even simultaneous ones. Nothing is
// left of it.
func TestAGroupInTroubleCanBeDeleted(t *testing.T) {
	t.Parallel()
	testkit.OnlyInAll(t, "TestASliceIsLost and TestASliceIsNotMade")
	rapid.Check(t, func(d *rapid.T) {
		workers := &fakeWorkers{}
		s, err := sim.Start(t.Context(), sim.Config{Listen: "none", Dir: t.TempDir(), Step: time.Microsecond, Workers: workers})
		if err != nil {
			d.Fatal(err)
		}
		defer s.Close()
		call := func(method, path, body string) (int, map[string]any) {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(method, "/compute/v1/projects/"+sim.DefaultProject+path, strings.NewReader(body)))
			var m map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
				d.Fatalf("%s %s: %v: %s", method, path, err, w.Body)
			}
			if link, ok := m["selfLink"].(string); ok && m["kind"] == "compute#operation" {
				link = link[strings.Index(link, sim.DefaultProject)+len(sim.DefaultProject):]
				if rapid.Bool().Draw(d, "waits") {
					s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/compute/v1/projects/"+sim.DefaultProject+link+"/wait", nil))
				}
			}
			return w.Code, m
		}
		model := rapid.SampledFrom([]string{
			`"automaticRestart":true`, `"provisioningModel":"SPOT","automaticRestart":false,"instanceTerminationAction":"STOP"`,
			`"provisioningModel":"FLEX_START","maxRunDuration":{"seconds":"3600"},"instanceTerminationAction":"DELETE"`,
		}).Draw(d, "model")
		call("POST", inRegion+"/instanceTemplates", template(t, "t", `scheduling={"onHostMaintenance":"TERMINATE",`+model+`}`))
		call("POST", inRegion+"/resourcePolicies", `{"name":"p","workloadPolicy":{"type":"HIGH_THROUGHPUT","acceleratorTopology":"2x2x2"}}`)
		for range rapid.IntRange(1, 12).Draw(d, "events") {
			switch rapid.IntRange(0, 6).Draw(d, "event") {
			case 0:
				call("POST", groupsPath, groupOf("g", 2))
			case 1:
				call("POST", groupsPath+"/g/resize?size="+rapid.SampledFrom([]string{"0", "2"}).Draw(d, "size"), "")
			case 2:
				for _, g := range s.Status().Groups {
					if len(g.VMs) > 0 {
						call("DELETE", inZone+"/instances/"+g.VMs[0].Name, "")
					}
				}
			case 3:
				call("DELETE", groupsPath+"/g", "")
			case 4:
				if _, err := s.Clear("all"); err != nil {
					d.Fatal(err)
				}
			default:
				f, err := sim.ParseFault(rapid.SampledFrom([]string{
					"no-capacity", "group-quota", "group-error", "group-stuck worker=1", "group-no-boot", "group-topology state=FAILED", "group-no-recovery",
					"group-preempt group=g", "group-host-error group=g", "group-run-ends group=g", "group-maintenance group=g",
				}).Draw(d, "fault"))
				if err != nil {
					d.Fatal(err)
				}
				_, _ = s.Inject(f) // without VMs, a fault for VMs is refused
			}
			call("GET", groupsPath, "")
		}
		deadline := time.Now().Add(20 * time.Second)
		for code := 0; code != http.StatusNotFound; code, _ = call("GET", groupsPath+"/g", "") {
			call("DELETE", groupsPath+"/g", "")
			if time.Now().After(deadline) {
				d.Fatalf("left is %+v", s.Status().Groups)
			}
		}
		testkit.Eventually(t, "the end of all VMs", func() bool {
			workers.mu.Lock()
			defer workers.mu.Unlock()
			_, m := call("GET", inZone+"/instances", "")
			return len(workers.running) == 0 && m["items"] == nil
		})
	})
}

// throughRelay returns the first bytes of a VM's SSH server through the relay of
// Identity-Aware Proxy.
func throughRelay(t *testing.T, s *sim.Server, name string) string {
	t.Helper()
	url := fmt.Sprintf("%s/iap/v4/connect?project=%s&zone=%s&instance=%s", s.URL(), sim.DefaultProject, sim.DefaultZone, name)
	ws, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{Subprotocols: []string{"relay.tunnel.cloudproxy.app"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	var last []byte
	for range 2 { // the first message has the id of the session
		if _, last, err = ws.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return string(last[min(6, len(last)):]) // the text follows a tag and a length
}
