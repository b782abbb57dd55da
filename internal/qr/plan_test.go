package qr_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

func TestPlans(t *testing.T) {
	c := start(t, sim.Config{})
	dry := qr.New(gcp.New(gcp.Config{
		Project: sim.DefaultProject, Zone: testZone, DisableAuth: true, ReadOnly: true, TPUEndpoint: c.Sim.URL() + "/", Clock: testkit.NewFastClock(), Sink: c.Log,
	}))
	shows := func(plan fmt.Stringer, err error, text, keys string) {
		t.Helper()
		if err != nil || !strings.Contains(plan.String(), text) || !strings.HasSuffix(plan.String(), "\n") {
			t.Errorf("%v says %q, want %q", err, plan, text)
		}
		var fields map[string]any
		doc, err := json.Marshal(plan)
		testkit.Must(t, err)
		testkit.Must(t, json.Unmarshal(doc, &fields))
		for key := range strings.FieldsSeq(keys) {
			if _, has := fields[key]; !has {
				t.Errorf("%s has no %s", doc, key)
			}
		}
		if len(fields) != len(strings.Fields(keys)) {
			t.Errorf("%s has more than %s", doc, keys)
		}
	}
	r := request(t, nil)
	create, err := dry.PlanCreate(t.Context(), r)
	shows(create, err, "would create queued resource q7:\n{", "gcloud request")
	remove, err := dry.PlanDelete(t.Context(), "q7", false)
	shows(remove, err, "queued resource q7 is not there: nothing to delete", "deletes queued_resource slices")
	var missing *provision.StateError
	if _, err := dry.PlanReset(t.Context(), "q7"); !errors.As(err, &missing) || missing.State != provision.NotFound {
		t.Errorf("reset of nothing: %v", err)
	}

	c.ready(r)
	create, err = dry.PlanCreate(t.Context(), r)
	shows(create, err, "queued resource q7 is there already, state ACTIVE: nothing to create", "exists")
	var nodes *qr.NodesError
	if _, err := dry.PlanDelete(t.Context(), "q7", false); !errors.As(err, &nodes) {
		t.Errorf("deletion without force: %v", err)
	}
	remove, err = dry.PlanDelete(t.Context(), "q7", true)
	shows(remove, err, "would delete queued resource q7 (ACTIVE, of run q7 of ada) with its slices t-0, t-1", "deletes queued_resource slices")
	reset, err := dry.PlanReset(t.Context(), "q7")
	shows(reset, err, "would reboot all workers of queued resource q7 (ACTIVE, of run q7 of ada): t-0, t-1", "queued_resource resets slices")

	c.Fault(sim.Fault{Name: "qr-failed", QR: "q7"})
	reset, err = dry.PlanReset(t.Context(), "q7")
	shows(reset, err, "queued resource q7 is FAILED: only an ACTIVE one can be reset", "queued_resource resets slices")
	if c.Calls("POST", ":reset") != 0 || c.Calls("DELETE", "q7") != 0 {
		t.Error("a plan has changed something")
	}
}
