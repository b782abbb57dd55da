package gce

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/nodes"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

var here = place{"p", "us-east5-a"}

func request(t *testing.T, typeName string, change func(*provision.Request)) provision.Request {
	t.Helper()
	ty, err := tpu.ParseType(typeName)
	if err != nil {
		t.Fatal(err)
	}
	r := provision.Request{ID: "m", NodeCount: 2, Nodes: []string{"m-0", "m-1"}, Type: ty, Metadata: map[string]string{"a": "b"}}
	r.Mark("m", "ann")
	if change != nil {
		change(&r)
	}
	return r
}

func decode(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// Requests for two slices of two VMs, field by field.
func TestBodies(t *testing.T) {
	r := request(t, "tpu7x-16", func(r *provision.Request) { r.Network, r.Subnetwork = "mtu9k", "sub" })
	p, err := newPlan(r, here, "projects/i/global/images/x-v1")
	if err != nil {
		t.Fatal(err)
	}
	script, _ := json.Marshal(identityScript)
	record, _ := json.Marshal(`{"id":"m","nodes":["m-0","m-1"],"type":"tpu7x-16","tier":"on-demand","network":"mtu9k","subnetwork":"sub",` +
		`"scopes":["https://www.googleapis.com/auth/cloud-platform"],"disk_gb":200,"disk_type":"hyperdisk-balanced"}`)
	group := func(name string) string {
		return `{"name": "` + name + `", "description": "multihost m multihost-run=m", "baseInstanceName": "` + name + `",
			"instanceTemplate": "projects/p/regions/us-east5/instanceTemplates/m-a", "targetSize": 2, "targetSizePolicy": {"mode": "BULK"},
			"resourcePolicies": {"workloadPolicy": "projects/p/regions/us-east5/resourcePolicies/m-a"},
			"instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"}, "updatePolicy": {"type": "OPPORTUNISTIC"}}`
	}
	for _, part := range []struct{ name, got, want string }{
		{"policy", string(wire(p.policy)), `{"name": "m-a", "description": "multihost m multihost-run=m multihost-user=ann",
			"workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "2x2x2"}}`},
		{"template", string(wire(p.template)), `{"name": "m-a", "description": "multihost m multihost-run=m", "properties": {
			"machineType": "tpu7x-standard-4t",
			"labels": {"multihost-tool": "multihost", "multihost-run": "m", "multihost-user": "ann"},
			"disks": [{"boot": true, "autoDelete": true, "initializeParams": {"sourceImage": "projects/i/global/images/x-v1", "diskSizeGb": "200", "diskType": "hyperdisk-balanced"}}],
			"networkInterfaces": [{"network": "projects/p/global/networks/mtu9k", "subnetwork": "projects/p/regions/us-east5/subnetworks/sub", "nicType": "GVNIC",
				"accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]}],
			"scheduling": {"onHostMaintenance": "TERMINATE", "provisioningModel": "STANDARD", "automaticRestart": true},
			"shieldedInstanceConfig": {"enableSecureBoot": false},
			"serviceAccounts": [{"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}],
			"metadata": {"items": [{"key": "a", "value": "b"}, {"key": "enable-guest-attributes", "value": "TRUE"},
				{"key": "multihost-request", "value": ` + string(record) + `}, {"key": "startup-script", "value": ` + string(script) + `}]}}}`},
		{"first group", string(wire(p.groups[0])), group("m-0")},
		{"second group", string(wire(p.groups[1])), group("m-1")},
	} {
		if diff := cmp.Diff(decode(t, part.want), decode(t, part.got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", part.name, diff)
		}
	}
	if has, ok := recordIn(p.template); !ok || !cmp.Equal(has, recordOf(r)) {
		t.Errorf("the template remembers %+v", has)
	}
}

// Effects of the tier, the reservation and the settings on a template.
func TestTiers(t *testing.T) {
	const hour = time.Hour
	for name, c := range map[string]struct {
		change           func(*provision.Request)
		scheduling, rest string
	}{
		"spot": {func(r *provision.Request) { r.Tier = provision.Spot },
			`{"provisioningModel": "SPOT", "preemptible": true, "automaticRestart": false, "instanceTerminationAction": "STOP"}`, `{}`},
		"on demand, bounded": {func(r *provision.Request) { r.MaxRunDuration = hour },
			`{"provisioningModel": "STANDARD", "automaticRestart": true, "instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": "3600"}}`, `{}`},
		"spot, bounded": {func(r *provision.Request) { r.Tier, r.MaxRunDuration = provision.Spot, hour },
			`{"provisioningModel": "SPOT", "preemptible": true, "automaticRestart": false, "instanceTerminationAction": "STOP", "maxRunDuration": {"seconds": "3600"}}`, `{}`},
		"flex-start": {func(r *provision.Request) { r.Tier, r.MaxRunDuration = provision.FlexStart, 24*hour },
			`{"provisioningModel": "FLEX_START", "instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": "86400"}}`,
			`{"reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}`},
		"bound to a reservation": {func(r *provision.Request) {
			r.Tier, r.Reservation = provision.ReservationBound, "projects/o/reservations/r"
		},
			`{"provisioningModel": "RESERVATION_BOUND", "instanceTerminationAction": "DELETE"}`,
			`{"reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name", "values": ["projects/o/reservations/r"]}}`},
		"a reservation": {func(r *provision.Request) { r.Reservation = "r/reservationBlocks/b" },
			`{"provisioningModel": "STANDARD", "automaticRestart": true}`,
			`{"reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name", "values": ["r/reservationBlocks/b"]}}`},
		"tags": {func(r *provision.Request) { r.Own = Settings{Tags: []string{"x"}} },
			`{"provisioningModel": "STANDARD", "automaticRestart": true}`, `{"tags": {"items": ["x"]}}`},
	} {
		r := request(t, "v6e-16", c.change)
		if err := check(r, here); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p, err := newPlan(r, here, "i")
		if err != nil {
			t.Fatal(err)
		}
		got := decode(t, string(wire(p.template))).(map[string]any)["properties"].(map[string]any)
		scheduling := got["scheduling"].(map[string]any)
		want := decode(t, c.scheduling).(map[string]any)
		want["onHostMaintenance"] = "TERMINATE"
		if diff := cmp.Diff(want, scheduling); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		rest := map[string]any{}
		for _, key := range []string{"reservationAffinity", "tags"} {
			if got[key] != nil {
				rest[key] = got[key]
			}
		}
		if diff := cmp.Diff(decode(t, c.rest), any(rest)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestASliceOfOneVMHasNoTopology(t *testing.T) {
	r := request(t, "v5p-8", func(r *provision.Request) {
		r.NodeCount, r.Nodes, r.Own = 1, nil, Settings{InternalIPs: true, DiskGB: 50, DiskType: "pd-ssd"}
	})
	p, err := newPlan(r, here, "i")
	if err != nil {
		t.Fatal(err)
	}
	g := p.groups[0]
	if p.policy != nil || g.ResourcePolicies != nil || g.GetName() != "m" || g.GetTargetSize() != 1 {
		t.Errorf("got %v", p)
	}
	properties := p.template.GetProperties()
	if n := properties.GetNetworkInterfaces()[0]; len(n.GetAccessConfigs()) != 0 || n.GetNetwork() != "projects/p/global/networks/default" || n.Subnetwork != nil {
		t.Errorf("got %v", n)
	}
	if d := properties.GetDisks()[0].GetInitializeParams(); d.GetDiskSizeGb() != 50 || d.GetDiskType() != "pd-ssd" {
		t.Errorf("got %v", d)
	}
}

func TestRefusedRequests(t *testing.T) {
	long := strings.Repeat("x", 60)
	for want, change := range map[string]func(*provision.Request){
		`name "M" is not legal: use a-z, 0-9 and '-', `:          func(r *provision.Request) { r.ID = "M" },
		"use at most 61 bytes":                                   func(r *provision.Request) { r.ID = long + "xx" },
		"use at most 58 bytes":                                   func(r *provision.Request) { r.Nodes[1] = long },
		`slice "m-0" is named twice`:                             func(r *provision.Request) { r.Nodes[1] = "m-0" },
		"2 slices with 1 names":                                  func(r *provision.Request) { r.Nodes = r.Nodes[:1] },
		"on Compute Engine it is 2 VMs of ct6e-standard-4t or":   func(r *provision.Request) { r.Type, _ = tpu.ParseType("v6e-8") },
		"Compute Engine offers none for v5e":                     func(r *provision.Request) { r.Type, _ = tpu.ParseType("v5litepod-16") },
		"no accelerator type":                                    func(r *provision.Request) { r.Type = tpu.Type{} },
		"flex-start needs --max-run-duration":                    func(r *provision.Request) { r.Tier = provision.FlexStart },
		"flex-start gives at most 7 days":                        func(r *provision.Request) { r.Tier, r.MaxRunDuration = provision.FlexStart, 169*time.Hour },
		"tier best-effort: Compute Engine has none":              func(r *provision.Request) { r.Tier = provision.BestEffort },
		"tier reservation-bound needs a reservation":             func(r *provision.Request) { r.Tier = provision.ReservationBound },
		`reservation "r" and tier spot exclude each other`:       func(r *provision.Request) { r.Tier, r.Reservation = provision.Spot, "r" },
		`reservation "a/b": want NAME`:                           func(r *provision.Request) { r.Reservation = "a/b" },
		`image "i": want projects/PROJECT/global/images/NAME`:    func(r *provision.Request) { r.Own = Settings{Image: "i"} },
		"max run duration 1.5s: it is a number of seconds":       func(r *provision.Request) { r.MaxRunDuration = 1500 * time.Millisecond },
		"give multihost one with --queue-timeout":                func(r *provision.Request) { r.ValidUntilDuration = time.Hour },
		"Compute Engine begins at once":                          func(r *provision.Request) { r.ValidAfterTime = time.Now() },
		"several network interfaces":                             func(r *provision.Request) { r.Interfaces = make([]provision.Interface, 2) },
		`startup-script: "#!/usr/bin/python3" is not bash or sh`: func(r *provision.Request) { r.Metadata["startup-script"] = "#!/usr/bin/python3\nx" },
		"startup-script: its first line is no #! line":           func(r *provision.Request) { r.Metadata["startup-script"] = "echo" },
		"metadata b has 262145 bytes":                            func(r *provision.Request) { r.Metadata["b"] = strings.Repeat("x", nodes.MaxMetadataValue+1) },
		"the metadata has ": func(r *provision.Request) {
			r.Metadata["b"], r.Metadata["c"], r.Metadata["d"] = long, strings.Repeat("x", nodes.MaxMetadataValue), strings.Repeat("x", nodes.MaxMetadataValue)
		},
		"65 labels": func(r *provision.Request) { r.Labels = labels(65) },
	} {
		if err := check(request(t, "v6e-16", change), here); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := check(request(t, "v6e-16", nil), here); err != nil {
		t.Error(err)
	}
}

// A wrong name is reported once, although all slices are named after it.
func TestAWrongNameIsReportedOnce(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"My_Run", strings.Repeat("x", 59)} {
		err := check(request(t, "v6e-16", func(r *provision.Request) {
			r.ID, r.NodeCount, r.Nodes = id, 2, []string{id + "-0", id + "-1"}
		}), here)
		if err == nil || strings.Count(err.Error(), "is not legal") != 1 {
			t.Errorf("got %v, want one wrong name", err)
		}
	}
}

func labels(n int) map[string]string {
	all := map[string]string{}
	for i := range n {
		all[fmt.Sprint("l", i)] = "x"
	}
	return all
}

// Every important property of a request is compared with the existing resource, except
// those that change with time.
func TestDifferences(t *testing.T) {
	p, err := newPlan(request(t, "v6e-16", nil), here, "i")
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*provision.Request){
		"": func(r *provision.Request) {
			r.Metadata["ssh-keys"] = "ann:x"
			r.OwnMetadata = map[string]string{"startup-script": "#!/bin/bash\n"}
		},
		`label multihost-run: it has "m", you asked for "n"`:                          func(r *provision.Request) { r.Mark("n", "ann") },
		`label x: it has none, you asked for "y"`:                                     func(r *provision.Request) { r.Labels["x"] = "y" },
		`accelerator type: it has "v6e-16", you asked for "v6e-32"`:                   func(r *provision.Request) { r.Type, _ = tpu.ParseType("v6e-32") },
		`slices: it has "m-0, m-1", you asked for "m-0, m-2"`:                         func(r *provision.Request) { r.Nodes[1] = "m-2" },
		`tier: it has "on-demand", you asked for "spot"`:                              func(r *provision.Request) { r.Tier = provision.Spot },
		`max run duration: it has no limit, you asked for "1h0m0s"`:                   func(r *provision.Request) { r.MaxRunDuration = time.Hour },
		`network: it has "default", you asked for "n"`:                                func(r *provision.Request) { r.Network = "projects/p/global/networks/n" },
		`boot disk: it has "200 GB", you asked for "300 GB"`:                          func(r *provision.Request) { r.Own = Settings{DiskGB: 300} },
		`image: it has the newest one, you asked for "projects/p/global/images/mine"`: func(r *provision.Request) { r.Own = Settings{Image: "projects/p/global/images/mine"} },
		"metadata a: it has another value":                                            func(r *provision.Request) { r.Metadata["a"] = "c" },
	} {
		if got := strings.Join(differences(p.template, request(t, "v6e-16", change)), "; "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDescriptions(t *testing.T) {
	for text, want := range map[string]string{
		"multihost m multihost-run=r": "m r true", "multihost m": "m  true", "made by hand": "  false", "": "  false", "multihost": "  false",
	} {
		id, run, ok := described(text)
		if got := fmt.Sprint(id, " ", run, " ", ok); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if id, run, _ := described(describe("m", provision.OwnerLabels("R", ""))); id != "m" || run != "r" {
		t.Errorf("got %q, %q", id, run)
	}
}

func TestThePolicyNamesItsOwner(t *testing.T) {
	labels := provision.OwnerLabels("R", "Ann")
	if got := ownerIn(describePolicy("m", labels)); got[provision.LabelRun] != "r" || got[provision.LabelUser] != "ann" || got[provision.LabelTool] != provision.ToolName {
		t.Errorf("got %v", got)
	}
	if !sameOwner(describePolicy("m", labels), describe("m", labels)) || sameOwner("multihost m multihost-run=r", "multihost m multihost-run=s") || sameOwner("", "") {
		t.Error("a policy of the same request is taken for another one, or another one for it")
	}
}
