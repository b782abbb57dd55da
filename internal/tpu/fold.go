package tpu

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Fold returns a set of workers in the short form of the project: s0w3, s0w[0-63],
// s[0-31]w[0-63]. Slices with different workers are separated by commas. Order and
// duplicates do not matter. The empty set is "".
func Fold(workers []WorkerID) string {
	bySlice := map[int][]int{}
	for _, w := range workers {
		bySlice[w.Slice] = append(bySlice[w.Slice], w.Worker)
	}
	type group struct {
		slices  []int
		workers string
	}
	var groups []group
	for _, s := range slices.Sorted(maps.Keys(bySlice)) {
		set := ranges(bySlice[s])
		i := slices.IndexFunc(groups, func(g group) bool { return g.workers == set })
		if i < 0 {
			groups = append(groups, group{workers: set})
			i = len(groups) - 1
		}
		groups[i].slices = append(groups[i].slices, s)
	}
	parts := make([]string, len(groups))
	for i, g := range groups {
		parts[i] = "s" + ranges(g.slices) + "w" + g.workers
	}
	return strings.Join(parts, ",")
}

// ranges returns numbers in the form 3, [0-3] or [0,2-5].
func ranges(numbers []int) string {
	sorted := slices.Compact(slices.Sorted(slices.Values(numbers)))
	if len(sorted) == 1 {
		return strconv.Itoa(sorted[0])
	}
	var parts []string
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		part := strconv.Itoa(sorted[i])
		if j > i {
			part += "-" + strconv.Itoa(sorted[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// Compare orders workers by slice, then by worker number.
func (w WorkerID) Compare(v WorkerID) int {
	return cmp.Or(cmp.Compare(w.Slice, v.Slice), cmp.Compare(w.Worker, v.Worker))
}
