package metrics_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"multihost/internal/metrics"
)

// TestStepLinesOfEveryPeriod has one line of each form that MaxText has printed, made from
// MaxText's format strings.
func TestStepLinesOfEveryPeriod(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for _, tc := range []struct {
		story, line string
		want        metrics.Step
	}{
		{"2022-12: a dictionary of arrays",
			`completed 12, per-step metrics {'scalar': {'learning/loss': DeviceArray(9.25, dtype=float32), 'perf/step_time_seconds': 1.5, 'perf/per_device_tflops': 90.0, 'perf/per_device_tflops_per_sec': 60.0}, 'scalars': {}}`,
			metrics.Step{Number: 12, Seconds: 1.5, TFLOPs: 60, MFU: nan, Tokens: nan, Loss: 9.25, HasLoss: true}},
		{"2023-01: scalar metrics",
			`completed 3, per-step scalar metrics {'learning/loss': Array(nan, dtype=float32), 'perf/step_time_seconds': 0.75}`,
			metrics.Step{Number: 3, Seconds: 0.75, TFLOPs: nan, MFU: nan, Tokens: nan, Loss: nan, HasLoss: true}},
		{"2023-02: TFLOP/s",
			`completed step: 12, seconds: 1.234, TFLOP/s: 100.123, loss: 3.210`,
			metrics.Step{Number: 12, Seconds: 1.234, TFLOPs: 100.123, MFU: nan, Tokens: nan, Loss: 3.21, HasLoss: true}},
		{"2023-11: a device",
			`completed step: 0, seconds: 30.118, TFLOP/s/device: 4.212, loss: 10.914`,
			metrics.Step{Number: 0, Seconds: 30.118, TFLOPs: 4.212, MFU: nan, Tokens: nan, Loss: 10.914, HasLoss: true}},
		{"2024-07: tokens",
			`completed step: 7, seconds: 2.001, TFLOP/s/device: 131.512, Tokens/s/device: 4093.953, loss: 5.001`,
			metrics.Step{Number: 7, Seconds: 2.001, TFLOPs: 131.512, MFU: nan, Tokens: 4093.953, Loss: 5.001, HasLoss: true}},
		{"2024-09: weights",
			`completed step: 9, seconds: 2.001, TFLOP/s/device: 131.512, Tokens/s/device: 4093.953, total_weights: 8388608, loss: 5.001`,
			metrics.Step{Number: 9, Seconds: 2.001, TFLOPs: 131.512, MFU: nan, Tokens: 4093.953, Loss: 5.001, HasLoss: true}},
		{"2025-11: the batch grows",
			`[Rampup Batch Size Phase], completed step: 4, seconds: 0.500, total_weights: 1024.0, loss: 8.125`,
			metrics.Step{Number: 4, Seconds: 0.5, TFLOPs: nan, MFU: nan, Tokens: nan, Loss: 8.125, HasLoss: true, Ramp: true}},
		{"2025-11: the profiler starts",
			`completed profiler activation/deactivation step: 5, total_weights: 65536, loss: 7.125`,
			metrics.Step{Number: 5, Seconds: nan, TFLOPs: nan, MFU: nan, Tokens: nan, Loss: 7.125, HasLoss: true, Profiler: true}},
		{"2025-12: through a logger",
			`I0706 16:50:26.257925 140110937163584 metric_logger.py:237] completed step: 21, seconds: 3.322, TFLOP/s/device: 245.100, Tokens/s/device: 2466.001, total_weights: 2097152, loss: inf`,
			metrics.Step{Number: 21, Seconds: 3.322, TFLOPs: 245.1, MFU: nan, Tokens: 2466.001, Loss: math.Inf(1), HasLoss: true}},
		{"2026-04: perplexity",
			`completed step: 22, seconds: 3.322, TFLOP/s/device: 245.100, Tokens/s/device: 2466.001, total_weights: 2097152, loss: 3.250, lm_loss: 3.200, perplexity: 24.533, moe_lb_loss: 0.012345`,
			metrics.Step{Number: 22, Seconds: 3.322, TFLOPs: 245.1, MFU: nan, Tokens: 2466.001, Loss: 3.25, HasLoss: true}},
		{"2026-06: elastic",
			`completed step: 23, seconds: 3.322, live slice count: 3, TFLOP/s/device: 245.100, Tokens/s/device: 2466.001, total_weights: 2097152.0, loss: -inf, lm_loss: 3.200`,
			metrics.Step{Number: 23, Seconds: 3.322, TFLOPs: 245.1, MFU: nan, Tokens: 2466.001, Loss: math.Inf(-1), HasLoss: true}},
		{"behind a progress bar and in another order",
			` 40%|████      | completed step: 24, loss: 1.0e-02, a new field: x, seconds: 1.000`,
			metrics.Step{Number: 24, Seconds: 1, TFLOPs: nan, MFU: nan, Tokens: nan, Loss: 0.01, HasLoss: true}},
		{"after another completed",
			`warmup completed at last: completed step: 25, seconds: 1.000, loss: 2.000`,
			metrics.Step{Number: 25, Seconds: 1, TFLOPs: nan, MFU: nan, Tokens: nan, Loss: 2, HasLoss: true}},
	} {
		got, ok := metrics.ParseStep([]byte(tc.line))
		if !ok {
			t.Errorf("%s: no step line", tc.story)
			continue
		}
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.story, diff)
		}
	}
}

func TestLinesThatAreNoSteps(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"", "completed ", "completed step: ", "completed step: x, seconds: 1", "completed step: 12", "completed 12 tasks", "completed -1, per-step metrics {}",
		"Completed eval after train step 10, loss=3.2, perplexity=24.5, total_weights=65536.0", "completed steps: 12, seconds: 1.0",
	} {
		if s, ok := metrics.ParseStep([]byte(line)); ok {
			t.Errorf("ParseStep(%q) = %+v", line, s)
		}
	}
}

func FuzzParseStep(f *testing.F) {
	f.Add([]byte("completed step: 12, seconds: 1.234, TFLOP/s: 100.123, loss: nan"))
	f.Add([]byte("completed 12, per-step metrics {'learning/loss': Array(9.25, dtype=float32)}"))
	f.Add([]byte("completed profiler activation/deactivation step: 5, total_weights: 65536, loss: inf"))
	f.Fuzz(func(t *testing.T, line []byte) {
		s, ok := metrics.ParseStep(line)
		if ok && (s.Number < 0 || s.Seconds < 0 || math.IsInf(s.Seconds, 0) || s.TFLOPs < 0 || s.Tokens < 0) {
			t.Errorf("ParseStep(%q) = %+v", line, s)
		}
	})
}
