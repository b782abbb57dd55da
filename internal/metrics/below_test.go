package metrics

import (
	"math"
	"strings"
	"testing"
)

func TestBelow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ratio, limit float64
		want         string
	}{
		{0.95, 0.95, ""},
		{121.6 / 128, 0.95, ""},
		{1.2, 1, ""},
		{0.9, 0.95, "at 0.900 of the published TFLOP/s of v5e/32b, below 0.95"},
		{math.NaN(), 0.95, "cannot be compared with v5e/32b"},
	} {
		d := &Document{Compare: &Comparison{Preset: "v5e/32b", Ratio: Number(tt.ratio)}}
		if got := d.Below(tt.limit); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%g of %g: %q, want %q", tt.ratio, tt.limit, got, tt.want)
		}
	}
}
