package follow

import (
	"testing"

	"multihost/internal/tpu"
)

// Slices that this command requested have the price of their tier. Other slices have the
// price on demand.
func TestWhatSlicesAreBilled(t *testing.T) {
	t.Parallel()
	slice := func(accelerator, zone string) tpu.Slice {
		return tpu.Slice{Name: "t", UID: "1", Type: accelerator, Zone: zone}
	}
	v4 := slice("v4-8", "us-central2-b")
	for _, tt := range []struct {
		tier string
		all  []tpu.Slice
		want string
	}{
		{"", []tpu.Slice{v4, v4}, "2 × v4-8, list price $25.76 an hour, on demand, in us-central2-b (" + tpu.PriceDate + ")"},
		{"spot", []tpu.Slice{v4, v4}, "2 × v4-8, list price $7.73 an hour, spot, in us-central2-b (" + tpu.PriceDate + ")"},
		{"reserved", []tpu.Slice{v4}, "1 × v4-8, price unknown for reserved in us-central2-b"},
		{"", []tpu.Slice{v4, slice("v2-8", "us-central1-c")}, "1 × v4-8, 1 × v2-8, price unknown for v2"},
		{"", []tpu.Slice{{Name: "host"}}, ""},
	} {
		if got := Billed(tt.tier, tt.all); got != tt.want {
			t.Errorf("billed %q, want %q", got, tt.want)
		}
	}
}
