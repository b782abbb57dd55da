package tpu_test

import (
	"strings"
	"testing"

	"multihost/internal/tpu"
)

func TestHourlyPrice(t *testing.T) {
	for _, tt := range []struct {
		accelerator, zone string
		spot              bool
		want              float64
		known             bool
	}{
		{"v4-8", "us-central2-b", false, 12.88, true},
		{"v4-8", "us-central2-b", true, 3.864, true},
		{"v5litepod-16", "us-west4-a", false, 19.2, true},
		{"v5e-16", "europe-west4-b", false, 24.96, true},
		{"v6e-256", "us-east5-a", true, 311.04, true},
		{"v6e-4", "southamerica-west1-a", true, 0, false}, // the source has none
		{"v5litepod-16", "us-central2-b", false, 0, false},
		{"v2-8", "us-central1-c", false, 0, false},
		{"no-type", "us-east5-a", false, 0, false},
		{"v4-8", "nowhere", false, 0, false},
	} {
		got, known := tpu.HourlyPrice(tt.accelerator, tt.zone, tt.spot)
		if known != tt.known || got-tt.want > 1e-6 || tt.want-got > 1e-6 {
			t.Errorf("HourlyPrice(%s, %s, %v) = %v, %v, want %v, %v", tt.accelerator, tt.zone, tt.spot, got, known, tt.want, tt.known)
		}
	}
}

func TestPriceSourceIsNamedWithItsDate(t *testing.T) {
	if !strings.Contains(tpu.PriceSource, "2026-11-28") {
		t.Errorf("PriceSource = %q: no date of reading", tpu.PriceSource)
	}
}
