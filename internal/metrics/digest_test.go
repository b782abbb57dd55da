package metrics

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func exactMedian(values []float64) float64 {
	v := slices.Clone(values)
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// TestMedianIsExactOrSaysHowFarOff compares with sorting, for few and many distinct values,
// which are split over workers in different ways and merged.
func TestMedianIsExactOrSaysHowFarOff(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	for _, tc := range []struct {
		story string
		n     int
		value func() float64
	}{
		{"one step", 1, func() float64 { return 1.234 }},
		{"milliseconds close together", 5000, func() float64 { return 1 + float64(rng.IntN(100))/1000 }},
		{"an even number", 10, func() float64 { return float64(rng.IntN(1000)) / 1000 }},
		{"more values than are kept apart", 20000, func() float64 { return 1 + rng.Float64() }},
		{"over many magnitudes", 20000, func() float64 { return math.Exp(rng.Float64()*20 - 10) }},
		{"some steps of no time", 1000, func() float64 { return float64(rng.IntN(3)) }},
	} {
		values := make([]float64, tc.n)
		parts := make([]digest, 5)
		var whole digest
		for i := range values {
			values[i] = tc.value()
			whole.add(values[i])
			parts[rng.IntN(len(parts))].add(values[i])
		}
		var merged digest
		for i := range parts {
			merged.merge(&parts[i])
		}
		for name, d := range map[string]*digest{"added": &whole, "merged": &merged} {
			want, got := exactMedian(values), d.median()
			if d.n != int64(tc.n) || len(d.keys) > digestMost {
				t.Errorf("%s, %s: %d values in %d keys, want %d in at most %d", tc.story, name, d.n, len(d.keys), tc.n, digestMost)
			}
			if off := math.Abs(got-want) / max(want, 1e-9); off > d.precision()+1e-7 {
				t.Errorf("%s, %s: median %v, want %v within %v", tc.story, name, got, want, d.precision())
			}
		}
	}
	var none digest
	none.add(math.NaN())
	if !math.IsNaN(none.median()) {
		t.Errorf("median of nothing is %v", none.median())
	}
}

// TestJoiningPointsLosesNoOutlier adds steps in any order, and finds their sums and
// extremes in the points, however few points there are.
func TestJoiningPointsLosesNoOutlier(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 3))
	shuffled := rng.Perm(1000)
	for _, tc := range []struct {
		story string
		first int64
		n     int
		order func(i int) int
	}{
		{"from 0 in order", 0, 5000, func(i int) int { return i }},
		{"resumed at a checkpoint", 1_000_003, 777, func(i int) int { return i }},
		{"backwards", 900, 900, func(i int) int { return 899 - i }},
		{"in any order", 17, 1000, func(i int) int { return shuffled[i] }},
	} {
		h, other := history{most: 64}, history{most: 64}
		sum := 0.0
		for i := range tc.n {
			step := emptyStep()
			step.Number = tc.first + int64(tc.order(i))
			step.Seconds = 1 + rng.Float64()
			if step.Number == tc.first+int64(tc.n)/3 {
				step.Seconds = 50 // the outlier
			}
			sum += step.Seconds
			if i%2 == 0 {
				h.at(step.Number).add(&step)
			} else {
				other.at(step.Number).add(&step)
			}
		}
		h.merge(&other)
		for _, points := range []int{64, 10, 1} {
			s := h.series(points, 1)
			var lines int64
			total, top := 0.0, 0.0
			for i := range s.Step {
				if s.Step[i]%s.StepsPerPoint != 0 || i > 0 && s.Step[i] <= s.Step[i-1] {
					t.Errorf("%s: point %d stands for step %d, %d a point", tc.story, i, s.Step[i], s.StepsPerPoint)
				}
				lines += s.Lines[i]
				total += float64(s.StepSeconds[i]) * float64(s.Lines[i])
				top = max(top, float64(s.Max[i]))
			}
			if len(s.Step) > points || lines != int64(tc.n) || math.Abs(total-sum) > 1e-6*sum || top != 50 {
				t.Errorf("%s: %d points of at most %d, %d lines of %d, sum %v of %v, maximum %v", tc.story, len(s.Step), points, lines, tc.n, total, sum, top)
			}
		}
	}
}
