package qr_test

import (
	"encoding/json"
	"testing"
	"time"

	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/sim"
)

func TestTableAndDetail(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	list := []qr.Resource{
		{ID: "q7", State: "ACTIVE", Type: "v4-16", RuntimeVersion: "tpu-ubuntu2204-base", Tier: qr.Spot, Network: "mtu9k", NodeCount: 2,
			Nodes: []string{"t-0", "t-1"}, Labels: provision.OwnerLabels("q7", "ada"), CreateTime: now.Add(-3*time.Hour - 12*time.Minute),
			Slices: []qr.SliceState{{Name: "t-0", State: "READY", Health: "HEALTHY", Workers: 2, Ready: true}, {Name: "t-1", State: "CREATING"}}},
		{ID: "a-long-name-of-a-run", State: "FAILED", StateInitiator: "SERVICE", Failure: "no luck (EID: 0x77)", Type: "v5litepod-256", Tier: qr.OnDemand, NodeCount: 1, Nodes: []string{"x"}},
	}
	golden(t, "table.golden", qr.Table(list, now))
	golden(t, "detail.golden", qr.Detail(list[0], now)+"---\n"+qr.Detail(list[1], now))
	text, err := json.MarshalIndent(list[0], "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "resource.golden", string(text)+"\n")
	if got := qr.Table(nil, now); got != "" {
		t.Errorf("table of nothing: %q", got)
	}
}

func TestListTellsReadySlicesAndOwners(t *testing.T) {
	c := start(t, sim.Config{})
	c.ready(request(t, nil))
	c.create(request(t, func(r *qr.Request) { r.ID, r.NodePrefix, r.Labels = "aaa", "", nil }))
	all, err := c.List(t.Context())
	if err != nil || len(all) != 2 || all[0].ID != "aaa" || all[1].ID != "q7" {
		t.Fatalf("%+v, %v", all, err)
	}
	q7 := all[1]
	if q7.ReadySlices() != 2 || q7.NodeCount != 2 || q7.Type != "v4-16" || q7.Owner() != "run q7 of ada" || q7.CreateTime.IsZero() {
		t.Errorf("%+v", q7)
	}
	if got := all[0].Owner(); got != "somebody who did not use multihost" {
		t.Errorf("owner %q", got)
	}
}

func TestWhatStaysIsSaidWithWhatItCosts(t *testing.T) {
	slice := []qr.SliceState{{Name: "s-0", State: "READY"}}
	for _, c := range []struct {
		have qr.Resource
		want string
	}{
		{qr.Resource{State: "ACTIVE", Slices: slice}, "state ACTIVE, and is billed"},
		{qr.Resource{State: "WAITING_FOR_RESOURCES"}, "state WAITING_FOR_RESOURCES, and is billed once it has slices"},
		{qr.Resource{State: "FAILED"}, "state FAILED, and holds quota until it is deleted"},
		{qr.Resource{State: "SUSPENDED", Slices: slice}, "state SUSPENDED, and holds quota until it is deleted"},
	} {
		if got := c.have.Neutral().Standing(); got != c.want {
			t.Errorf("%s with %d slices: %q, want %q", c.have.State, len(c.have.Slices), got, c.want)
		}
	}
}
