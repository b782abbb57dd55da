package nodes_test

import (
	"net/http"
	"testing"

	"multihost/internal/nodes"
	"multihost/internal/sim"
	"multihost/internal/tpu"
)

func TestSlicesOfAllOwners(t *testing.T) {
	c := start(t, sim.Config{Slices: []sim.SliceSpec{{Name: "v5", Count: 3, Type: "v5litepod-16"}}})
	c.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if q := r.URL.Query(); q.Has("pageSize") {
			q.Set("pageSize", "3")
			r.URL.RawQuery = q.Encode()
		}
		return false
	})
	all, err := c.Slices(t.Context())
	if err != nil || len(all) != 4 {
		t.Fatalf("%d slices, %v", len(all), err)
	}
	for _, s := range all {
		if s.Index != -1 || s.State != "READY" || s.UID == "" || len(s.Workers) == 0 || s.Workers[0].Internal == "" {
			t.Errorf("%+v", s)
		}
	}
	if n := c.Calls("GET", "/nodes?"); n != 2 {
		t.Errorf("%d pages were read, want 2", n)
	}
	one, err := c.Slice(t.Context(), "other")
	if err != nil || one.Name != "other" || one.QueuedResource != "" {
		t.Errorf("%+v, %v", one, err)
	}
}

func TestConditionOfASlice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		state, health string
		want          tpu.Condition
	}{
		{"READY", "", tpu.Usable}, {"READY", "HEALTHY", tpu.Usable}, {"READY", "UNHEALTHY_MAINTENANCE", tpu.Serviced}, {"READY", "TIMEOUT", tpu.Ill},
		{"CREATING", "", tpu.Making}, {"PREEMPTED", "HEALTHY", tpu.Taken}, {"TERMINATED", "", tpu.Taken}, {"STOPPING", "", tpu.Halted},
		{"DELETING", "", tpu.Leaving}, {"REPAIRING", "", tpu.Unclear}, {"NEW_WORD", "", tpu.Unclear},
	} {
		if got := nodes.ConditionOf(tt.state, tt.health); got != tt.want {
			t.Errorf("%s %s: %v, want %v", tt.state, tt.health, got, tt.want)
		}
	}
}
