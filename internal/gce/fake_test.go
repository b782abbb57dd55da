package gce_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

type object = map[string]any

// A fake is the part of Compute Engine that these tests need. The test decides what happens
// to the VMs of a group.
type fake struct {
	*gce.Provider
	dry  *gce.Provider // with a read-only client
	t    *testing.T
	said testkit.Recorder

	mu         sync.Mutex // guards the fields below
	things     map[string]object
	managed    map[string][]any // by name of the group
	attributes map[string][]any // by name of the VM
	calls      []string         // changes
	seen       map[string]bool  // request ids
	// before may answer a call in place of the fake. after is called when the fake has
	// carried the call out. If it returns true, the answer is lost.
	before func(w http.ResponseWriter, r *http.Request) bool
	after  func(r *http.Request) bool
}

const root = "/compute/v1/projects/p/"

func start(t *testing.T) *fake {
	t.Helper()
	t.Parallel()
	f := &fake{t: t, things: map[string]object{}, managed: map[string][]any{}, attributes: map[string][]any{}, seen: map[string]bool{}}
	for _, m := range tpu.Machines() {
		f.things["zones/us-east5-a/machineTypes/"+m.Name] = object{"name": m.Name}
	}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	provider := func(readOnly bool) *gce.Provider {
		client := gcp.New(gcp.Config{Project: "p", Zone: "us-east5-a", ComputeEndpoint: server.URL + "/compute/v1/", DisableAuth: true,
			Clock: testkit.NewFastClock(), Sink: &f.said, MaxRetry: 20 * time.Second, ReadOnly: readOnly})
		t.Cleanup(client.Close)
		return gce.New(client, "")
	}
	f.Provider, f.dry = provider(false), provider(true)
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.before != nil && f.before(w, r) {
		return
	}
	if image, ok := strings.CutPrefix(r.URL.Path, "/compute/v1/projects/ubuntu-os-accelerator-images/global/images/family/"); ok {
		answer(w, object{"name": image + "-v20261101"})
		return
	}
	if r.URL.Path+"/" == root {
		answer(w, object{"name": "p"})
		return
	}
	at := strings.TrimPrefix(r.URL.Path, root)
	if r.Method == http.MethodGet || strings.HasSuffix(at, "/listManagedInstances") {
		f.read(w, at)
		return
	}
	again := f.seen[r.URL.Query().Get("requestId")]
	f.seen[r.URL.Query().Get("requestId")] = true
	if !again && !f.change(w, r, at) {
		return
	}
	if f.after != nil && f.after(r) {
		panic(http.ErrAbortHandler) // closes the connection
	}
	scope := strings.Split(at, "/")
	answer(w, object{"name": "op", "status": "DONE", strings.TrimSuffix(scope[0], "s"): scope[1]})
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, code int, reason, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object{"error": object{"code": code, "message": text, "errors": []any{object{"reason": reason, "message": text}}}})
}

func (f *fake) read(w http.ResponseWriter, at string) {
	switch name := path.Base(path.Dir(at)); path.Base(at) {
	case "listManagedInstances":
		answer(w, object{"managedInstances": f.managed[name]})
		return
	case "getGuestAttributes":
		if f.attributes[name] == nil {
			refuse(w, 404, "notFound", "no attributes")
			return
		}
		answer(w, object{"queryValue": object{"items": f.attributes[name]}})
		return
	case "instanceGroupManagers", "instanceTemplates", "resourcePolicies", "instances":
		list := []any{}
		for _, key := range slices.Sorted(maps.Keys(f.things)) {
			if path.Dir(key) == at {
				list = append(list, f.things[key])
			}
		}
		answer(w, object{"items": list})
		return
	}
	if f.things[at] == nil {
		refuse(w, 404, "notFound", "The resource '"+at+"' was not found")
		return
	}
	answer(w, f.things[at])
}

// change carries out the request, or answers with an error.
func (f *fake) change(w http.ResponseWriter, r *http.Request, at string) bool {
	var body object
	_ = json.NewDecoder(r.Body).Decode(&body)
	key := at
	switch {
	case r.Method == http.MethodDelete:
		if f.things[at] == nil {
			refuse(w, 404, "notFound", "gone")
			return false
		}
		if strings.Contains(at, "/instanceTemplates/") && f.count("instanceGroupManagers") > 0 {
			refuse(w, 400, "resourceInUseByAnotherResource", "in use")
			return false
		}
		delete(f.things, at)
	case strings.HasSuffix(at, "/setMetadata"):
		vm := f.things[path.Dir(at)]
		if old := vm["metadata"].(object); old["fingerprint"] != body["fingerprint"] {
			refuse(w, 412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")
			return false
		}
		body["fingerprint"] = fmt.Sprint(body["fingerprint"], "x")
		vm["metadata"] = body
	case strings.HasSuffix(at, "/reset"):
	default:
		key = at + "/" + body["name"].(string)
		if f.things[key] != nil {
			refuse(w, 409, "alreadyExists", "The resource '"+key+"' already exists")
			return false
		}
		body["id"], body["creationTimestamp"] = fmt.Sprint(len(f.things)+1), time.Now().UTC().Format(time.RFC3339)
		if path.Base(at) == "instanceGroupManagers" {
			body["status"] = object{"bulkInstanceOperation": object{"inProgress": true}}
		}
		f.things[key] = body
	}
	f.calls = append(f.calls, r.Method+" "+strings.Join(strings.Split(key, "/")[2:], "/"))
	return true
}

func (f *fake) count(kind string) (n int) {
	for key := range f.things {
		if strings.Contains(key, "/"+kind+"/") {
			n++
		}
	}
	return n
}

// boot gives a group running VMs: NAME-0000, NAME-0001 and so on. numbers has the numbers
// of their workers.
func (f *fake) boot(group string, numbers ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	endpoints := make([]string, len(numbers))
	for i, n := range numbers {
		endpoints[n] = fmt.Sprintf("%s-%04d", group, i)
	}
	f.managed[group] = nil
	for i, n := range numbers {
		name := fmt.Sprintf("%s-%04d", group, i)
		f.things["zones/us-east5-a/instances/"+name] = object{"name": name, "id": fmt.Sprint(len(f.things) + 100), "status": "RUNNING", "machineType": "x/tpu7x-standard-4t",
			"networkInterfaces": []any{object{"network": "x/default", "networkIP": fmt.Sprintf("10.0.0.%d", i), "accessConfigs": []any{object{"natIP": fmt.Sprintf("34.0.0.%d", i)}}}},
			"labels":            object{"multihost-run": "m"},
			"metadata":          object{"fingerprint": "f", "items": []any{object{"key": "a", "value": "b"}}}}
		f.managed[group] = append(f.managed[group], object{"instance": "https://x/instances/" + name, "instanceStatus": "RUNNING", "currentAction": "NONE"})
		f.attributes[name] = []any{object{"namespace": "multihost", "key": "worker", "value": fmt.Sprint(n, " ", strings.Join(endpoints, ","))}}
	}
	f.things["zones/us-east5-a/instanceGroupManagers/"+group]["status"] = object{"appliedAcceleratorTopologies": []any{object{"acceleratorTopology": "2x2x2", "state": "ACTIVE"}}}
}

func request(t *testing.T) provision.Request {
	t.Helper()
	ty, err := tpu.ParseType("tpu7x-16")
	testkit.Must(t, err)
	r := provision.Request{ID: "m", NodeCount: 2, Nodes: []string{"m-0", "m-1"}, Type: ty, Tier: provision.Spot}
	r.Mark("m", "ann")
	return r
}
