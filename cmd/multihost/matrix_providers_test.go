package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/gce"
	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/tpu"
)

// A matrixProvider makes the slices of a cell. Each one has a matrix of its own.
type matrixProvider struct {
	name   string
	mark   string // mark before its table
	open   func(*gcp.Client) provision.Provider
	asks   func(matrixFault) provision.Request
	starts func(c *cell) // called before the job starts

	// serve lets the simulator answer a request of the runner. From the answers it
	// recognizes the phases without workers.
	serve func(c *cell, r *http.Request) *httptest.ResponseRecorder

	kinds    []string // the collections of the API that must be empty at the end
	backends []matrixBackend
}

// onTPU makes queued resources of the Cloud TPU API.
var onTPU = &matrixProvider{
	name: "tpu",
	mark: "matrix: go test ./cmd/multihost -run '^TestMatrix$' -update",
	open: func(c *gcp.Client) provision.Provider { return qr.New(c).Provider("") },
	asks: func(matrixFault) provision.Request {
		return qr.Request{ID: "m", NodeCount: 2, NodePrefix: "m", Type: parseType("v5litepod-4"), Tier: qr.Spot}.Neutral()
	},
	starts: func(*cell) {},
	serve:  (*cell).serveTPU,
	kinds:  []string{inTPU + "queuedResources", inTPU + "nodes"},

	backends: []matrixBackend{{"process", "ᵖ"}, {"netns", "ⁿ"}},
}

// onGCE makes slices of two VMs each, on Compute Engine.
var onGCE = &matrixProvider{
	name: "gce",
	mark: "matrix on Compute Engine: go test ./cmd/multihost -run TestMatrixOnComputeEngine -update",
	open: func(c *gcp.Client) provision.Provider { return gce.New(c, "") },
	asks: func(f matrixFault) provision.Request {
		r := qr.Request{ID: "m", NodeCount: 2, NodePrefix: "m", Type: parseType("tpu7x-16"), Tier: qr.Spot, MaxRunDuration: 7 * 24 * time.Hour}
		if f.bound { // Compute Engine stops spot VMs and does not repair them
			r.Tier = qr.OnDemand
		}
		return onCompute(r)
	},
	starts: (*cell).queueGroups,
	serve:  (*cell).serveGCE,
	kinds:  []string{inZone + "instanceGroupManagers", inZone + "instances", inRegion + "instanceTemplates", inRegion + "resourcePolicies"},

	backends: []matrixBackend{{"process", "ᵖ"}},
}

// The paths of collections of the simulator's APIs.
var (
	inTPU    = "/v2alpha1/projects/" + sim.DefaultProject + "/locations/" + sim.DefaultZone + "/"
	inZone   = "/compute/v1/projects/" + sim.DefaultProject + "/zones/" + sim.DefaultZone + "/"
	inRegion = "/compute/v1/projects/" + sim.DefaultProject + "/regions/" + gcp.Region(sim.DefaultZone) + "/"
)

func parseType(name string) tpu.Type {
	t, err := tpu.ParseType(name)
	if err != nil {
		panic(err)
	}
	return t
}

// onCompute turns a request for a queued resource into one for slices that Compute Engine
// makes.
func onCompute(own qr.Request) provision.Request {
	r := own.Neutral()
	r.Own, r.Apart = gce.Settings{}, true
	return r
}

// answer lets the simulator answer a request.
func (c *cell) answer(r *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	c.server.ServeHTTP(answer, r)
	return answer
}

func (c *cell) serveTPU(r *http.Request) *httptest.ResponseRecorder {
	answer := c.answer(r)
	text := strings.ReplaceAll(answer.Body.String(), `": "`, `":"`) // the JSON may be indented or not
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/queuedResources/m") {
		for _, seen := range []struct{ state, phase string }{
			{"CREATING", "requested"}, {"ACCEPTED", "requested"}, {"WAITING_FOR_RESOURCES", "waiting"}, {"PROVISIONING", "provisioning"},
		} {
			if seen.phase == c.phase && strings.Contains(text, `"state":"`+seen.state+`"`) {
				c.strike()
			}
		}
		c.ticks.tick()
	} else if strings.Contains(r.URL.Path, "/operations/") && !strings.Contains(text, `"verb":"create"`) {
		c.ticks.tick()
	}
	return answer
}

// serveGCE is the function serve of onGCE. It also clears a fault that would keep the API in a
// state that the job has left.
func (c *cell) serveGCE(r *http.Request) *httptest.ResponseRecorder {
	const groups = "/instanceGroupManagers"
	answer := c.answer(r)
	switch {
	case strings.Contains(r.URL.Path, "/operations/") && !strings.Contains(answer.Body.String(), `"DONE"`):
		c.ticks.tick() // tick once, so that the next list shows the state after the operation
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, groups):
		c.made.Add(1)
		if c.phase == "requested" { // so far, only a part of the resource exists
			c.strike()
		}
	case r.Method == http.MethodDelete && path.Base(path.Dir(r.URL.Path)) == path.Base(groups):
		_, _ = c.server.Clear("group-topology") // clear the fault, because the job is deleting the group
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, groups):
		if slices.Contains(phasesOf(answer.Body.Bytes()), c.phase) {
			c.strike()
			_, _ = c.server.Clear("no-capacity") // see queueGroups
		}
		c.ticks.tick()
	}
	return answer
}

// phasesOf reads a list of groups. It returns the phases in which slice m-1 can be.
func phasesOf(list []byte) (phases []string) {
	var all struct {
		Items []struct {
			Name   string `json:"name"`
			Status struct {
				Bulk struct {
					Check struct {
						Error json.RawMessage `json:"error"`
					} `json:"lastProgressCheck"`
				} `json:"bulkInstanceOperation"`
				Instances map[string]int `json:"currentInstanceStatuses"`
			} `json:"status"`
		} `json:"items"`
	}
	_ = json.Unmarshal(list, &all) // an error of an API has no groups
	for _, g := range all.Items {
		if g.Name != "m-1" {
			continue
		}
		if g.Status.Bulk.Check.Error != nil {
			phases = append(phases, "waiting")
		}
		if g.Status.Instances["provisioning"] > 0 {
			phases = append(phases, "provisioning")
		}
	}
	return phases
}

// queueGroups makes groups wait for machines if the fault happens in the phase waiting.
// Otherwise the simulator provides machines at once.
func (c *cell) queueGroups() {
	if c.phase == "waiting" {
		c.set("no-capacity group=m-*")
	}
}

// set sets a fault of the simulator.
func (c *cell) set(text string) bool {
	fault, err := sim.ParseFault(text)
	if err == nil {
		_, err = c.server.Inject(fault)
	}
	if err != nil {
		c.t.Errorf("%s × %s: %v", c.phase, c.fault.name, err)
	}
	return err == nil
}

// clearAfter ends a fault of the simulator after the time d of the runner's clock.
func (c *cell) clearAfter(name string, d time.Duration) {
	c.back.Go(func() {
		<-c.clock.After(d)
		_, _ = c.server.Clear(name)
	})
}

// noCapacity leaves no capacity for the slices. Compute Engine reports that in two ways:
// VMs end while they are made, and a group waits. noCapacity sets both faults. The group
// waits if the slices replace lost ones.
func (c *cell) noCapacity() {
	switch {
	case c.on == onTPU:
		c.inject("qr-failed qr=m")
	case slices.Index(matrixPhases, c.phase) <= untilProvisioning:
		c.inject("group-error group=m-1 n=1")
	default:
		c.set("no-capacity group=m-*")
		c.clearAfter("no-capacity", 10*time.Minute)
		c.inject("group-preempt group=m-*")
	}
}

// lateCapacity makes a group wait for machines and for quota.
func (c *cell) lateCapacity() {
	c.set("group-quota group=m-1")
	c.clearAfter("group-quota", 2*time.Minute)
}

func (c *cell) lateBoot() {
	c.set("group-stuck group=m-1 worker=1")
	c.clearAfter("group-stuck", 5*time.Minute)
}

// hostFails makes a host fail. All VMs of its slice restart.
func (c *cell) hostFails() {
	before := map[machine]int{}
	for _, vm := range c.fleet.machines("m-1") {
		before[vm] = vm.downs()
	}
	c.set("group-host-error group=m-1")
	deadline := time.Now().Add(time.Minute)
	for vm, downs := range before {
		for vm.downs() == downs {
			if time.Now().After(deadline) {
				c.t.Errorf("%s × %s: a worker does not go down", c.phase, c.fault.name)
				return
			}
			<-time.After(time.Millisecond)
		}
	}
}

func (c *cell) hostIsAway() {
	c.set("group-no-recovery group=m-1")
	c.clearAfter("group-no-recovery", 20*time.Minute)
	c.hostFails()
}

// adminDeletesVM deletes one VM of a slice behind the runner's back.
func (c *cell) adminDeletesVM() {
	for _, name := range c.namesIn(inZone + "instances") {
		if strings.HasPrefix(name, "m-1-") {
			c.elsewhere(http.MethodDelete, inZone+"instances/"+name)
			break
		}
	}
	deadline := time.Now().Add(time.Minute)
	for !slices.ContainsFunc(c.fleet.machines("m-1"), func(m machine) bool { return !m.isUp() }) {
		if time.Now().After(deadline) {
			c.t.Errorf("%s × %s: the VM does not go", c.phase, c.fault.name)
			return
		}
		c.ticks.tick()
		<-time.After(time.Millisecond)
	}
}

// namesIn returns the names of the resources in a collection of Compute Engine.
func (c *cell) namesIn(collection string) (names []string) {
	var all struct {
		Items []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(c.elsewhere(http.MethodGet, collection)), &all); err != nil {
		c.t.Error(err)
	}
	for _, item := range all.Items {
		names = append(names, item.Name)
	}
	return names
}

// tellPlace does what the startup script does on a VM of Compute Engine: it publishes which
// worker the VM is.
func tellPlace(spec worker.Spec) {
	if metadataOf(spec, "attributes/created-by") == "" {
		return
	}
	text := metadataOf(spec, "attributes/agent-worker-number") + " " + metadataOf(spec, "attributes/worker-network-endpoints")
	req := httptest.NewRequest(http.MethodPut, "/computeMetadata/v1/instance/guest-attributes/multihost/worker", strings.NewReader(text))
	req.Header.Set("Metadata-Flavor", "Google")
	spec.Metadata.ServeHTTP(httptest.NewRecorder(), req)
}

// metadataOf reads a value from the metadata server of a worker. It returns "" if there is
// no server or no value.
func metadataOf(spec worker.Spec, name string) string {
	if spec.Metadata == nil {
		return ""
	}
	req := httptest.NewRequest(http.MethodGet, "/computeMetadata/v1/instance/"+name, http.NoBody)
	req.Header.Set("Metadata-Flavor", "Google")
	answer := httptest.NewRecorder()
	spec.Metadata.ServeHTTP(answer, req)
	if answer.Code != http.StatusOK {
		return ""
	}
	return answer.Body.String()
}

// TestMatrixOnComputeEngine is TestMatrix for slices that Compute Engine makes. A row names
// its other fault if it has one there.
func TestMatrixOnComputeEngine(t *testing.T) { runMatrix(t, onGCE) }
