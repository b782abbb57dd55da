package gke

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/provision"
	"multihost/internal/tpu"
)

func typeNamed(t *testing.T, name string) tpu.Type {
	t.Helper()
	ty, err := tpu.ParseType(name)
	if err != nil {
		t.Fatal(err)
	}
	return ty
}

// fields returns the fields that a request with v sends.
func fields(t *testing.T, v any) map[string]any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

const auth = `"https://www.googleapis.com/auth/`

// gcloud 528 sends these fields for XPK's command line. Only the labels are ours.
func TestClusterIsThatOfXPK(t *testing.T) {
	t.Parallel()
	want := `{
		"name":"c","initialClusterVersion":"1.34.1-gke.100","releaseChannel":{"channel":"RAPID"},
		"locations":["us-west4-a"],"network":"mtu9k","subnetwork":"mtu9k",
		"ipAllocationPolicy":{"useIpAliases":true,"createSubnetwork":false},
		"networkConfig":{"datapathProvider":"ADVANCED_DATAPATH","enableMultiNetworking":true},
		"controlPlaneEndpointsConfig":{"dnsEndpointConfig":{"allowExternalTraffic":true}},
		"autoscaling":{"autoscalingProfile":"OPTIMIZE_UTILIZATION"},
		"resourceLabels":{"multihost-tool":"multihost","multihost-user":"ada"},
		"nodePools":[{"name":"default-pool","initialNodeCount":6,
			"autoscaling":{"enabled":true,"locationPolicy":"BALANCED","totalMinNodeCount":1,"totalMaxNodeCount":1000},
			"config":{"machineType":"e2-standard-16","resourceLabels":{"multihost-tool":"multihost","multihost-user":"ada"},
				"oauthScopes":[` + auth + `devstorage.full_control",` + auth + `devstorage.read_only",` + auth + `logging.write",` + auth + `monitoring",` +
		auth + `service.management.readonly",` + auth + `servicecontrol",` + auth + `trace.append"]},
			"management":{"autoRepair":true,"autoUpgrade":true},"upgradeSettings":{"maxSurge":1}}]}`
	var wanted map[string]any
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	got := fields(t, clusterBody(Options{Name: "c", User: "ada"}.withDefaults(), "us-west4-a", "1.34.1-gke.100"))
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("cluster (-want +got):\n%s", diff)
	}
	named := fields(t, clusterBody(Options{Name: "c", Version: "1.33.1-gke.1"}.withDefaults(), "us-west4-a", "1.33.1-gke.1"))
	if diff := cmp.Diff(map[string]any{"channel": "REGULAR"}, named["releaseChannel"]); diff != "" {
		t.Errorf("with a version (-want +got):\n%s", diff)
	}
}

func TestPoolOfASliceIsThatOfXPK(t *testing.T) {
	t.Parallel()
	plain := func() map[string]any {
		var m map[string]any
		err := json.Unmarshal([]byte(`{
			"name":"c-np-0","locations":["us-west4-a"],"initialNodeCount":4,"version":"1.34.1-gke.100",
			"config":{"machineType":"ct5lp-hightpu-4t","gvnic":{"enabled":true},
				"hostMaintenancePolicy":{"maintenanceInterval":"AS_NEEDED"},
				"resourceLabels":{"multihost-tool":"multihost"},
				"oauthScopes":[`+auth+`cloud-platform",`+auth+`devstorage.full_control",`+auth+`devstorage.read_only",`+auth+`logging.write",`+auth+`monitoring",`+
			auth+`service.management.readonly",`+auth+`servicecontrol",`+auth+`trace.append"]},
			"placementPolicy":{"type":"COMPACT","tpuTopology":"4x4"},
			"maxPodsConstraint":{"maxPodsPerNode":"15"},
			"management":{"autoRepair":true,"autoUpgrade":true},"upgradeSettings":{"maxSurge":1}}`), &m)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	config := func(m map[string]any) map[string]any { return m["config"].(map[string]any) }
	reservation := func(name string) func(map[string]any) {
		return func(m map[string]any) {
			config(m)["reservationAffinity"] = map[string]any{"consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name", "values": []any{name}}
		}
	}
	for name, test := range map[string]struct {
		kind   string
		o      Options
		change func(m map[string]any)
	}{
		"on demand":          {"v5litepod-16", Options{}, func(map[string]any) {}},
		"spot":               {"v5litepod-16", Options{Tier: provision.Spot}, func(m map[string]any) { config(m)["spot"] = true }},
		"reservation":        {"v5litepod-16", Options{Reservation: "r"}, reservation("r")},
		"shared reservation": {"v5litepod-16", Options{Reservation: "projects/x/reservations/r"}, reservation("projects/x/reservations/r")},
		"block": {"v5litepod-16", Options{Reservation: "r/reservationBlocks/b/reservationSubBlocks/s"},
			reservation("r/reservationBlocks/b/reservationSubBlocks/s")},
		"flex-start": {"v5litepod-16", Options{Tier: provision.FlexStart}, func(m map[string]any) {
			config(m)["flexStart"] = true
			config(m)["reservationAffinity"] = map[string]any{"consumeReservationType": "NO_RESERVATION"}
			m["autoscaling"] = map[string]any{"enabled": true, "locationPolicy": "ANY", "maxNodeCount": 4.0}
			m["initialNodeCount"] = 0.0
			m["management"] = map[string]any{"autoRepair": false, "autoUpgrade": true}
		}},
		"one node": {"v5litepod-4", Options{}, func(m map[string]any) {
			m["initialNodeCount"] = 1.0
			delete(m, "placementPolicy")
			delete(m, "maxPodsConstraint")
		}},
		"v6e": {"v6e-16", Options{}, func(m map[string]any) {
			config(m)["machineType"] = "ct6e-standard-4t"
			config(m)["labels"] = map[string]any{"cloud.google.com/gke-networking-dra-driver": "true"}
			m["networkConfig"] = map[string]any{"acceleratorNetworkProfile": "auto"}
		}},
		"tpu7x": {"tpu7x-128", Options{}, func(m map[string]any) {
			config(m)["machineType"] = "tpu7x-standard-4t"
			m["initialNodeCount"] = 16.0
			m["placementPolicy"] = map[string]any{"policyName": "tpu7x-128-4x4x4-placement-policy"}
		}},
		"tpu7x of one node": {"tpu7x-8", Options{Maintenance: Periodic}, func(m map[string]any) {
			config(m)["machineType"] = "tpu7x-standard-4t"
			config(m)["hostMaintenancePolicy"] = map[string]any{"maintenanceInterval": "PERIODIC"}
			m["initialNodeCount"] = 1.0
			delete(m, "placementPolicy")
			delete(m, "maxPodsConstraint")
		}},
	} {
		want := plain()
		test.change(want)
		o := test.o
		o.Name, o.Slices, o.Type = "c", 1, typeNamed(t, test.kind)
		if err := o.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		o = o.withDefaults()
		nodes, err := tpu.NodesOf(o.Type)
		if err != nil {
			t.Fatal(err)
		}
		body := poolBody(o, nodes, "c-np-0", "us-west4-a", "1.34.1-gke.100")
		if diff := cmp.Diff(want, fields(t, body)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		// poolOf reads back what the request asked for.
		have := poolOf("c", body)
		if have.Type != o.Type.Name || have.Tier != o.Tier || have.Reservation != o.Reservation || have.Nodes != nodes.Count || have.Number != 0 {
			t.Errorf("%s: read back as %+v", name, have)
		}
	}
}

func TestEveryTypeIsReadBack(t *testing.T) {
	t.Parallel()
	types := tpu.Types()
	eight, err := tpu.ParseType("ct6e-standard-8t:2x4")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, ty := range append(types, eight) {
		nodes, err := tpu.NodesOf(ty)
		if err != nil {
			continue
		}
		o := Options{Name: "c", Slices: 1, Type: ty}.withDefaults()
		if have := poolOf("c", poolBody(o, nodes, "c-np-0", "z", "1")); have.Type != ty.Name {
			t.Errorf("%s is read back as %q", ty.Name, have.Type)
		}
		if byPolicy(ty, nodes) {
			if other, taken := seen[policyName(ty)]; taken {
				t.Errorf("%s and %s have one policy %s", ty.Name, other, policyName(ty))
			}
			seen[policyName(ty)] = ty.Name
		}
	}
	if len(maps.Clone(seen)) < 100 {
		t.Errorf("only %d types have a policy", len(seen))
	}
}
