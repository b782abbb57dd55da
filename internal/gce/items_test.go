package gce_test

import (
	"slices"
	"testing"

	"multihost/internal/provision"
	"multihost/internal/testkit"
)

func TestItems(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	if all, err := f.Items(ctx, "m"); err != nil || len(all) != 0 {
		t.Errorf("before: %+v, %v", all, err)
	}
	_, _, err := f.Create(ctx, request(t))
	testkit.Must(t, err)
	f.boot("m-0", 0, 1)
	parts := []provision.Item{
		{Kind: "group", Name: "m-0", VMs: 2, Running: 2, Chips: 8}, {Kind: "group", Name: "m-1"},
		{Kind: "instance template", Name: "m-a"}, {Kind: "workload policy", Name: "m-a"},
	}
	all, err := f.Items(ctx, "m")
	if err != nil || !slices.Equal(all, parts) {
		t.Errorf("got %+v, %v", all, err)
	}
	parts[1] = provision.Item{Kind: "group", Name: "m-1", VMs: 2, Running: 2, Chips: 8}
	if all := f.ItemsOf(request(t)); !slices.Equal(all, parts) {
		t.Errorf("asked for: %+v", all)
	}
}
