package sim_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"multihost/internal/sim"
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

// refused fails the test unless the request is refused with a code and a text.
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

// template returns a template called name, with changes of the form "path=JSON" to its
// properties.
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
	// A global template knows no region.
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
		for _, m := range r.must("GET", "/zones/"+zone+"/machineTypes", "")["items"].([]any) {
			names = append(names, m.(map[string]any)["name"].(string))
		}
		return names
	}
	if own, other := types(sim.DefaultZone), types("us-central1-c"); len(own) <= len(other) || strings.Join(other, " ") != "tpu7x-standard-1t tpu7x-standard-4t" {
		t.Errorf("machine types %v and %v", own, other)
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
