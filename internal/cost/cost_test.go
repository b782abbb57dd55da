package cost

import (
	"testing"
	"time"

	"multihost/internal/provision"
	"multihost/internal/tpu"
)

func TestPricesInWords(t *testing.T) {
	const zone, nowhere = "us-west4-a", "nowhere-1-a"
	usd, ok := tpu.HourlyPrice("v5litepod-16", zone, OnDemand)
	if !ok {
		t.Fatalf("the price list has no v5litepod-16 in %s", zone)
	}
	dated := " (" + tpu.PriceDate + ")"
	for _, tt := range []struct {
		got, want string
	}{
		{ListPrice(1.5), "list price $1.50 an hour" + dated},
		{PriceOf(&usd, "v5litepod-16", OnDemand, zone), "list price " + Price(&usd) + " an hour, on demand, in " + zone + dated},
		{PriceOf(nil, "v5litepod-16", "best-effort", zone), "price unknown for best effort in " + zone},
		{PriceOf(nil, "v5litepod-16", "reserved", zone), "price unknown for reserved in " + zone},
		{PriceOf(nil, "v5litepod-16", OnDemand, nowhere), "price unknown for " + nowhere},
		{Price(nil), "unknown"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestHourlyIsTheSumOfTheSlices(t *testing.T) {
	const zone = "us-west4-a"
	res := provision.Resource{Slices: make([]tpu.Slice, 2)}
	res.Type, res.Tier = "v5litepod-16", provision.OnDemand
	one, _ := tpu.HourlyPrice(res.Type, zone, OnDemand)
	if got := Hourly(res, zone); got == nil || *got != 2*one || one == 0 {
		t.Errorf("two slices of %v cost %v", one, got)
	}
	res.Slices[1].Condition = tpu.Taken
	if got := Hourly(res, zone); got == nil || *got != one {
		t.Errorf("one slice of %v, beside one that was taken away, costs %v", one, got)
	}
	res.Slices[1].Billed = time.Unix(1, 0)
	if got := Hourly(res, zone); got == nil || *got != 2*one {
		t.Errorf("two slices of %v, one without one of its VMs, cost %v", one, got)
	}
	res.Tier = "reserved"
	if got := Hourly(res, zone); got != nil {
		t.Errorf("a reservation costs %v", *got)
	}
	res.Slices = nil
	if got := Price(Hourly(res, zone)); got != "$0.00" {
		t.Errorf("nothing costs %s", got)
	}
}

// Each slice costs money from the start of its own bill.
func TestWhatSlicesHaveCost(t *testing.T) {
	const zone = "us-east5-a"
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	res := provision.Resource{Type: "v6e-16", Tier: provision.OnDemand, Slices: []tpu.Slice{{Billed: now.Add(-2 * time.Hour)}, {Billed: now.Add(-30 * time.Minute)}, {}, {Billed: now.Add(time.Hour)}}}
	one, _ := tpu.HourlyPrice(res.Type, zone, OnDemand)
	if got := SoFar(res, zone, now); got == nil || *got != 2.5*one || one == 0 {
		t.Errorf("slices of %v cost %v", one, got)
	}
	if got, want := Running(res, zone, now), "$108.00 so far, list price $172.80 an hour ("+tpu.PriceDate+")"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	res.Type = "tpu7x-16"
	if got := Running(res, zone, now); SoFar(res, zone, now) != nil || got != "price unknown for tpu7x" {
		t.Errorf("got %q", got)
	}
}
