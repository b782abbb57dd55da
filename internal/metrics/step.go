package metrics

import (
	"bytes"
	"math"
	"strconv"
)

// A Step is one step line. Figures missing in the line are NaN.
type Step struct {
	Number  int64
	Seconds float64
	TFLOPs  float64 // per second and device
	MFU     float64 // as the trainer prints it; MaxText prints none
	Tokens  float64 // per second and device
	Loss    float64 // if HasLoss is set; NaN and infinities come from the line

	HasLoss  bool
	Profiler bool // the profiler started or stopped in this step, so it is not timed
	Ramp     bool // the batch was still growing, so the step is not comparable
}

func emptyStep() Step {
	nan := math.NaN()
	return Step{Seconds: nan, TFLOPs: nan, MFU: nan, Tokens: nan, Loss: nan}
}

// The beginnings of MaxText's step lines, since its first version:
//
//	2022-12  completed 12, per-step metrics {'scalar': {'perf/step_time_seconds': 1.2, …}}
//	2023-02  completed step: 12, seconds: 1.234, TFLOP/s: 100.123, loss: 3.210
//	2023-11  TFLOP/s/device for TFLOP/s; later more fields, in any order
//	2025-11  completed profiler activation/deactivation step: 12, total_weights: 65536, loss: 3.210
//
// Anything may stand before them in the line: a logger's prefix since 2025-12, a progress
// bar, the phase of a growing batch.
var (
	marker       = []byte("completed ")
	markStep     = []byte("step: ")
	markProfiler = []byte("profiler activation/deactivation step: ")
	markScalar   = []byte(", per-step ")
	rampPrefix   = []byte("[Rampup Batch Size Phase], ")
	pairEnd      = []byte(", ")
	nameEnd      = []byte(": ")
)

// The lines that announce an evaluation. MaxText has changed them over time.
var evalMarkers = [][]byte{[]byte("eval metrics after step: "), []byte("Completed eval after train step ")}

// ParseStep reads MaxText's step line in all its forms. It returns false for every other
// line. It does not allocate.
func ParseStep(line []byte) (Step, bool) {
	for rest := line; ; {
		at := bytes.Index(rest, marker)
		if at < 0 {
			return Step{}, false
		}
		rest = rest[at+len(marker):]
		before := line[:len(line)-len(rest)-len(marker)]
		if s, ok := parseAfter(rest); ok {
			s.Ramp = bytes.HasSuffix(before, rampPrefix)
			return s, true
		}
	}
}

// parseAfter reads what follows "completed ".
func parseAfter(rest []byte) (Step, bool) {
	s := emptyStep()
	body, named := bytes.CutPrefix(rest, markStep)
	if !named {
		body, s.Profiler = bytes.CutPrefix(rest, markProfiler)
	}
	n, digits := leadingInt(body)
	if digits == 0 {
		return s, false
	}
	s.Number = n
	body = body[digits:]
	if !named && !s.Profiler {
		if !bytes.HasPrefix(body, markScalar) {
			return s, false
		}
		s.readScalars(body)
		return s, true
	}
	if body, named = bytes.CutPrefix(body, pairEnd); !named {
		return s, false
	}
	for len(body) > 0 {
		var pair []byte
		pair, body, _ = bytes.Cut(body, pairEnd)
		if name, value, ok := bytes.Cut(pair, nameEnd); ok {
			s.set(name, value)
		}
	}
	if s.Profiler {
		s.Seconds = math.NaN()
	}
	return s, true
}

func (s *Step) set(name, value []byte) {
	switch string(name) { // does not allocate
	case "seconds":
		s.Seconds = positive(value)
	case "TFLOP/s/device", "TFLOP/s":
		s.TFLOPs = positive(value)
	case "Tokens/s/device":
		s.Tokens = positive(value)
	case "loss":
		s.setLoss(value)
	}
}

func (s *Step) setLoss(value []byte) {
	v, ok := leadingFloat(value)
	if ok {
		s.Loss, s.HasLoss = v, true
	}
}

// readScalars reads the Python dictionary of the oldest lines. A value may be wrapped:
// Array(3.2, dtype=float32).
func (s *Step) readScalars(body []byte) {
	if v, ok := scalar(body, "perf/step_time_seconds"); ok {
		s.Seconds = positive(v)
	}
	if v, ok := scalar(body, "perf/per_device_tflops_per_sec"); ok {
		s.TFLOPs = positive(v)
	}
	if v, ok := scalar(body, "learning/loss"); ok {
		s.setLoss(v)
	}
}

func scalar(body []byte, key string) ([]byte, bool) {
	for _, quote := range []byte{'\'', '"'} {
		rest := body
		for {
			at := bytes.Index(rest, []byte(key))
			if at < 0 {
				break
			}
			rest = rest[at+len(key):]
			value, ok := bytes.CutPrefix(rest, []byte{quote, ':', ' '})
			if !ok {
				continue
			}
			if open := bytes.IndexByte(value, '('); open >= 0 && bytes.HasSuffix(value[:open], []byte("Array")) {
				value = value[open+1:]
			}
			return value, true
		}
	}
	return nil, false
}

// positive reads a figure that cannot be negative or infinite.
func positive(value []byte) float64 {
	v, ok := leadingFloat(value)
	if !ok || v < 0 || math.IsInf(v, 0) {
		return math.NaN()
	}
	return v
}

// leadingInt reads the digits at the beginning of b.
func leadingInt(b []byte) (n int64, digits int) {
	for digits < len(b) && digits < 18 && b[digits] >= '0' && b[digits] <= '9' {
		n = n*10 + int64(b[digits]-'0')
		digits++
	}
	return n, digits
}

// leadingFloat reads the number at the beginning of b, also nan and inf. It ignores what
// follows: a unit, a comma, a bracket.
func leadingFloat(b []byte) (float64, bool) {
	end := 0
	for end < len(b) && end < 32 && floatByte(b[end]) {
		end++
	}
	for ; end > 0; end-- { // "1.5e" and "infer" begin with a number
		if v, err := strconv.ParseFloat(string(b[:end]), 64); err == nil {
			return v, true
		} else if math.IsInf(v, 0) && b[end-1] >= '0' && b[end-1] <= '9' {
			return v, true // out of range
		}
	}
	return 0, false
}

// floatByte reports whether c can be part of a decimal number or of nan or inf.
func floatByte(c byte) bool {
	switch {
	case c >= '0' && c <= '9', c == '.', c == '-', c == '+':
		return true
	}
	switch c | 0x20 {
	case 'e', 'n', 'a', 'i', 'f':
		return true
	}
	return false
}

// isEvaluation reports whether the line ends an evaluation.
func isEvaluation(line []byte) bool {
	for _, m := range evalMarkers {
		if bytes.Contains(line, m) {
			return true
		}
	}
	return false
}
