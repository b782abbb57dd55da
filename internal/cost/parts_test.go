package cost

import (
	"testing"

	"multihost/internal/provision"
	"multihost/internal/tpu"
)

func TestPartsHavePrices(t *testing.T) {
	t.Parallel()
	const zone = "us-east5-a"
	one, ok := tpu.HourlyPrice("v5p-16", zone, OnDemand)
	if !ok {
		t.Fatalf("the price list has no v5p-16 in %s", zone)
	}
	group := func(vms, running int) provision.Item {
		return provision.Item{Kind: "group", Name: "m-0", VMs: vms, Running: running, Chips: 4 * vms}
	}
	for _, tt := range []struct {
		item  provision.Item
		kind  string
		price *float64
		want  string
	}{
		{group(2, 2), "v5p-16", &one, "group m-0: 2 VMs with boot disks, 8 chips, " + ListPrice(one)},
		{group(2, 2), "tpu7x-16", nil, "group m-0: 2 VMs with boot disks, 8 chips, price unknown for tpu7x"},
		{group(1, 0), "v5p-16", nil, "group m-0: 1 VM, stopped; the price of their boot disks is unknown"},
		{group(0, 0), "v5p-16", new(float64), "group m-0: free"},
		{provision.Item{Kind: "instance template", Name: "m-a"}, "v5p-16", new(float64), "instance template m-a: free"},
	} {
		got := Parts([]provision.Item{tt.item}, tt.kind, OnDemand, zone)[0]
		if got.Text != tt.want || Price(got.Hourly) != Price(tt.price) {
			t.Errorf("got %q at %s, want %q at %s", got.Text, Price(got.Hourly), tt.want, Price(tt.price))
		}
	}
}
