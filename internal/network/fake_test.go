package network_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"multihost/internal/gcp"
	"multihost/internal/network"
	"multihost/internal/qr"
	"multihost/internal/testkit"
)

// fakeAPI is the part of the Compute and TPU REST APIs for these tests.
type fakeAPI struct {
	t  *testing.T
	mu sync.Mutex

	networks   map[string]map[string]any
	firewalls  map[string]map[string]any
	operations map[string]map[string]any // done after one more poll
	nodes      []any
	machines   map[string][]any // by kind: "instances"
	secret     string           // the kind that nobody may list
	writes     []string         // "POST networks", "DELETE firewalls/x"
	requestIDs []string

	// onWrite may answer a write in place of the fake: with an HTTP status and body, or
	// with status 0 and the error of an operation.
	onWrite func(call string, n int) (status int, body string, handled bool)
}

func newFake(t *testing.T) *fakeAPI {
	return &fakeAPI{
		t: t, networks: map[string]map[string]any{}, firewalls: map[string]map[string]any{},
		operations: map[string]map[string]any{},
	}
}

const projectPath = "/compute/v1/projects/p/global/"

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if strings.HasPrefix(r.URL.Path, "/v2alpha1/projects/p/locations/-/") {
		json.NewEncoder(w).Encode(map[string]any{"nodes": f.nodes})
		return
	}
	if kind, ok := strings.CutPrefix(r.URL.Path, "/compute/v1/projects/p/aggregated/"); ok {
		if f.secret == kind {
			fail(w, 403, "forbidden", "Required permission to list "+kind)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"items": map[string]any{"zones/z": map[string]any{kind: f.machines[kind]}}})
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, projectPath)
	if !ok {
		f.t.Errorf("unexpected request %s %s", r.Method, r.URL)
		fail(w, 404, "notFound", "no such path")
		return
	}
	kind, name, _ := strings.Cut(rest, "/")
	if r.Method != http.MethodGet {
		f.write(w, r, kind, name)
		return
	}
	switch kind {
	case "operations":
		op := f.operations[name]
		op["status"] = "DONE"
		json.NewEncoder(w).Encode(op)
	case "firewalls", "networks":
		set := f.set(kind)
		if name == "" {
			items := []any{}
			for _, v := range set {
				items = append(items, v)
			}
			json.NewEncoder(w).Encode(map[string]any{"items": items})
			return
		}
		if set[name] == nil {
			fail(w, 404, "notFound", fmt.Sprintf("The resource 'projects/p/global/%s/%s' was not found", kind, name))
			return
		}
		json.NewEncoder(w).Encode(set[name])
	}
}

func (f *fakeAPI) set(kind string) map[string]map[string]any {
	if kind == "networks" {
		return f.networks
	}
	return f.firewalls
}

func (f *fakeAPI) write(w http.ResponseWriter, r *http.Request, kind, name string) {
	call := strings.TrimSuffix(r.Method+" "+kind+"/"+name, "/")
	f.writes = append(f.writes, call)
	f.requestIDs = append(f.requestIDs, r.URL.Query().Get("requestId"))
	op := map[string]any{"name": fmt.Sprintf("operation-%d", len(f.writes)), "status": "RUNNING", "progress": 50}
	if f.onWrite != nil {
		status, body, handled := f.onWrite(call, len(f.writes))
		if handled && status != 0 {
			w.WriteHeader(status)
			io.WriteString(w, body)
			return
		}
		if handled {
			var e any
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				f.t.Error(err)
			}
			op["error"] = e
			f.operations[op["name"].(string)] = op
			json.NewEncoder(w).Encode(op)
			return
		}
	}
	set := f.set(kind)
	switch r.Method {
	case http.MethodPost:
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			f.t.Error(err)
		}
		id := body["name"].(string)
		if set[id] != nil {
			fail(w, 409, "alreadyExists", fmt.Sprintf("The resource 'projects/p/global/%s/%s' already exists", kind, id))
			return
		}
		set[id] = body
	case http.MethodDelete:
		if set[name] == nil {
			fail(w, 404, "notFound", "was not found")
			return
		}
		delete(set, name)
	}
	f.operations[op["name"].(string)] = op
	json.NewEncoder(w).Encode(op)
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	io.WriteString(w, errorBody(code, reason, message))
}

func errorBody(code int, reason, message string) string {
	b, _ := json.Marshal(map[string]any{"error": map[string]any{
		"code": code, "message": message,
		"errors": []any{map[string]any{"message": message, "domain": "global", "reason": reason}},
	}})
	return string(b)
}

func (f *fakeAPI) Writes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.writes)
}

func setUp(t *testing.T) (*network.Client, *fakeAPI, *testkit.Recorder) {
	t.Helper()
	f := newFake(t)
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	n := &testkit.Recorder{}
	g := gcp.New(gcp.Config{
		Project: "p", Zone: "us-central2-b", DisableAuth: true,
		TPUEndpoint: srv.URL + "/", ComputeEndpoint: srv.URL + "/compute/v1/",
		Clock: testkit.NewJumpClock(), Sink: n,
	})
	return network.New(g, qr.LifeOf), f, n
}

func create(t *testing.T, c *network.Client, o network.Options) error {
	t.Helper()
	plan, err := c.Plan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c.Apply(t.Context(), plan)
}
