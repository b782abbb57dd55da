package metrics

import "multihost/internal/tpu"

// A Peak is the dense bf16 peak of a generation.
type Peak struct {
	PerChip        float64 // TFLOP/s
	DevicesPerChip float64 // JAX's devices: one per chip or one per core
	Source         string
}

// PerDevice returns the peak for MFU, in TFLOP/s.
func (p Peak) PerDevice() float64 { return p.PerChip / p.DevicesPerChip }

// PeakOf returns the peak of a generation, or false if it is unknown.
func PeakOf(g tpu.Generation) (Peak, bool) {
	return Peak{g.PeakTFLOPS, float64(g.Devices), g.PeakSource}, g.PeakTFLOPS > 0
}
