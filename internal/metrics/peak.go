package metrics

import "multihost/internal/tpu"

// A Peak is the dense bf16 peak of a generation.
type Peak struct {
	PerChip        float64 // TFLOP/s
	DevicesPerChip float64 // JAX's devices: one per chip or one per core
	Source         string
}

// PerDevice returns the peak that MFU is relative to, in TFLOP/s.
func (p Peak) PerDevice() float64 { return p.PerChip / p.DevicesPerChip }

const (
	cloudDocs  = "Cloud TPU documentation, system architecture"
	bothTables = "Cloud TPU documentation; the same in MaxText's benchmark uploader"
)

// peaks holds the peaks by the name of the generation. JAX's own table rounds v3 to 140,
// v6e to 920 and tpu7x to 2310; MaxText's MFU figures are relative to the values here.
var peaks = map[string]Peak{
	"v2":    {45, 2, cloudDocs},
	"v3":    {123, 2, cloudDocs},
	"v4":    {275, 1, bothTables},
	"v5e":   {197, 1, bothTables},
	"v5p":   {459, 1, bothTables},
	"v6e":   {918, 1, bothTables},
	"tpu7x": {2307, 2, cloudDocs},
}

// PeakOf returns the peak of a generation, or false if it is unknown.
func PeakOf(g tpu.Generation) (Peak, bool) {
	p, ok := peaks[g.Name]
	return p, ok
}
