package metrics

import (
	"math"
	"slices"
	"strconv"
)

// digestMost is how many distinct values a digest keeps apart. MaxText prints
// milliseconds, so a run has far fewer distinct step times.
const digestMost = 512

// A digest counts non-negative values in bounded memory, to find their median. With few
// distinct values it is exact, to the precision of float32. With more, it drops low bits of
// all values until there are few again.
type digest struct {
	n      int64
	shift  uint // number of dropped bits of the float32
	keys   []uint32
	counts []uint32
}

func (d *digest) add(v float64) {
	if math.IsNaN(v) || v < 0 {
		return
	}
	key := math.Float32bits(float32(v)) >> d.shift
	d.n++
	at, found := slices.BinarySearch(d.keys, key)
	if found {
		d.counts[at]++
		return
	}
	d.keys = slices.Insert(d.keys, at, key)
	d.counts = slices.Insert(d.counts, at, 1)
	for len(d.keys) > digestMost {
		d.drop(d.shift + 1)
	}
}

// drop joins the values that differ only in the lowest shift bits.
func (d *digest) drop(shift uint) {
	by := shift - d.shift
	to := 0
	for i, key := range d.keys {
		key >>= by
		if to > 0 && d.keys[to-1] == key {
			d.counts[to-1] += d.counts[i]
			continue
		}
		d.keys[to], d.counts[to] = key, d.counts[i]
		to++
	}
	d.keys, d.counts, d.shift = d.keys[:to], d.counts[:to], shift
}

// merge adds what other counted. Values may lose precision, but no count is lost.
func (d *digest) merge(other *digest) {
	if other.n == 0 {
		return
	}
	if d.shift < other.shift {
		d.drop(other.shift)
	}
	by := d.shift - other.shift
	keys := make([]uint32, 0, len(d.keys)+len(other.keys))
	counts := make([]uint32, 0, cap(keys))
	put := func(key, count uint32) {
		if last := len(keys) - 1; last >= 0 && keys[last] == key {
			counts[last] += count
			return
		}
		keys, counts = append(keys, key), append(counts, count)
	}
	i, j := 0, 0
	for i < len(d.keys) || j < len(other.keys) {
		if j == len(other.keys) || i < len(d.keys) && d.keys[i] <= other.keys[j]>>by {
			put(d.keys[i], d.counts[i])
			i++
		} else {
			put(other.keys[j]>>by, other.counts[j])
			j++
		}
	}
	d.keys, d.counts, d.n = keys, counts, d.n+other.n
	for len(d.keys) > digestMost {
		d.drop(d.shift + 1)
	}
}

// median returns the middle value, or the mean of the two middle values, or NaN if there
// are none.
func (d *digest) median() float64 {
	if d.n == 0 {
		return math.NaN()
	}
	return (d.rank((d.n-1)/2) + d.rank(d.n/2)) / 2
}

// rank returns the value at index r of all values in ascending order.
func (d *digest) rank(r int64) float64 {
	for i, count := range d.counts {
		if r -= int64(count); r < 0 {
			return d.value(d.keys[i])
		}
	}
	return math.NaN()
}

// value returns the middle of the values joined in key. If none are joined, that is the
// number as printed, such as 121.6, not the nearest float32.
func (d *digest) value(key uint32) float64 {
	if d.shift > 0 {
		return float64(math.Float32frombits(key<<d.shift + 1<<(d.shift-1)))
	}
	v := float64(math.Float32frombits(key))
	if short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', -1, 32), 64); err == nil {
		return short
	}
	return v
}

// precision returns a bound of the median's relative error, or 0 while no bit is dropped.
func (d *digest) precision() float64 {
	if d.shift == 0 {
		return 0
	}
	return math.Ldexp(1, int(d.shift)-24)
}
