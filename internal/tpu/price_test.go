package tpu_test

import (
	"os"
	"strings"
	"testing"

	"multihost/internal/tpu"
)

func TestHourlyPrice(t *testing.T) {
	for _, tt := range []struct {
		accelerator, zone string
		tier              string
		want              float64
		known             bool
	}{
		{"v4-8", "us-central2-b", "on-demand", 12.88, true},
		{"v4-8", "us-central2-b", "spot", 3.864, true},
		{"v5litepod-16", "us-west4-a", "on-demand", 19.2, true},
		{"v5e-16", "europe-west4-b", "on-demand", 24.96, true},
		{"v6e-256", "us-east5-a", "spot", 311.04, true},
		{"v6e-4", "southamerica-west1-a", "spot", 0, false}, // the source has none
		{"v5litepod-16", "us-central2-b", "on-demand", 0, false},
		{"v2-8", "us-central1-c", "on-demand", 0, false},
		{"v4-8", "us-central2-b", "reserved", 0, false}, // the source has prices for two tiers
		{"v4-8", "us-central2-b", "", 0, false},
		{"no-type", "us-east5-a", "on-demand", 0, false},
		{"v4-8", "nowhere", "on-demand", 0, false},
	} {
		got, known := tpu.HourlyPrice(tt.accelerator, tt.zone, tt.tier)
		if known != tt.known || got-tt.want > 1e-6 || tt.want-got > 1e-6 {
			t.Errorf("HourlyPrice(%s, %s, %s) = %v, %v, want %v, %v", tt.accelerator, tt.zone, tt.tier, got, known, tt.want, tt.known)
		}
	}
}

// The comment in prices.txt has the same date as PriceDate.
func TestTheDateOfThePriceListIsThatInItsFile(t *testing.T) {
	list, err := os.ReadFile("prices.txt")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(list), "Read on "+tpu.PriceDate+".") || !strings.Contains(tpu.PriceSource, tpu.PriceDate) {
		t.Errorf("PriceDate is %s, PriceSource %q, and prices.txt was read on another day", tpu.PriceDate, tpu.PriceSource)
	}
}
