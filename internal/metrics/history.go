package metrics

import (
	"math"
)

// seriesBuckets is how many points of its history a worker keeps. A chart of any width
// shows fewer. At 64 bytes each, 2048 workers keep 34 MB.
const seriesBuckets = 256

// A bucket holds the kept figures of the steps of one point.
type bucket struct {
	lines, timed, worked, fed, lossy, bad uint32 // number of step lines: all; with a time; TFLOP/s; tokens; a finite loss; another loss
	seconds, tflops, tokens, loss         float64
	min, max                              float32
}

func (b *bucket) add(s *Step) {
	b.lines++
	if !math.IsNaN(s.Seconds) {
		v := float32(s.Seconds)
		if b.timed == 0 {
			b.min, b.max = v, v
		}
		b.min, b.max = min(b.min, v), max(b.max, v)
		b.timed++
		b.seconds += s.Seconds
	}
	if !math.IsNaN(s.TFLOPs) {
		b.worked++
		b.tflops += s.TFLOPs
	}
	if !math.IsNaN(s.Tokens) {
		b.fed++
		b.tokens += s.Tokens
	}
	switch {
	case !s.HasLoss:
	case math.IsNaN(s.Loss), math.IsInf(s.Loss, 0):
		b.bad++
	default:
		b.lossy++
		b.loss += s.Loss
	}
}

func (b *bucket) merge(o *bucket) {
	if o.timed > 0 {
		if b.timed == 0 {
			b.min, b.max = o.min, o.max
		}
		b.min, b.max = min(b.min, o.min), max(b.max, o.max)
	}
	b.lines += o.lines
	b.timed += o.timed
	b.worked += o.worked
	b.fed += o.fed
	b.lossy += o.lossy
	b.bad += o.bad
	b.seconds += o.seconds
	b.tflops += o.tflops
	b.tokens += o.tokens
	b.loss += o.loss
}

// A history holds the steps of a worker, joined into at most `most` points. Point i stands
// for the steps from (first+i)·width on. width is a power of two, so that the points of
// different workers have common borders.
type history struct {
	most    int
	width   int64 // 0: nothing yet
	first   int64
	buckets []bucket
}

// at returns the bucket of a step, and makes it if it is missing.
func (h *history) at(step int64) *bucket {
	if h.width == 0 {
		h.width, h.first = 1, step
	}
	for {
		first, last := h.first, h.first+int64(len(h.buckets))-1
		if len(h.buckets) == 0 {
			first, last = step/h.width, step/h.width
		}
		first, last = min(first, step/h.width), max(last, step/h.width)
		if last-first >= int64(h.most) {
			h.widen()
			continue
		}
		if n := int(last-first) + 1; n > len(h.buckets) {
			shift := h.first - first // 0 unless the step is before all others
			if len(h.buckets) == 0 {
				shift = 0
			}
			h.buckets = append(h.buckets, make([]bucket, n-len(h.buckets))...)
			if shift > 0 {
				copy(h.buckets[shift:], h.buckets[:n-int(shift)])
				clear(h.buckets[:shift])
			}
			h.first = first
		}
		return &h.buckets[step/h.width-h.first]
	}
}

// widen joins the points in pairs.
func (h *history) widen() {
	if len(h.buckets) == 0 {
		h.width *= 2
		return
	}
	first := h.first / 2
	to := 0
	for i := range h.buckets {
		at := int((h.first+int64(i))/2 - first)
		if at == to && i > 0 && (h.first+int64(i))%2 == 1 {
			h.buckets[to].merge(&h.buckets[i])
			continue
		}
		to = at
		h.buckets[to] = h.buckets[i]
	}
	clear(h.buckets[to+1:])
	h.buckets, h.first, h.width = h.buckets[:to+1], first, h.width*2
}

// merge adds the steps of another history, which does not change.
func (h *history) merge(other *history) {
	if other.width == 0 {
		return
	}
	if h.width == 0 {
		h.width, h.first = other.width, other.first
	}
	for h.width < other.width {
		h.widen()
	}
	for i := range other.buckets {
		if o := &other.buckets[i]; o.lines > 0 {
			h.at((other.first + int64(i)) * other.width).merge(o)
		}
	}
}

// series returns the history as columns of at most points points, without points that have
// no line. It returns nil if the history is empty.
func (h *history) series(points int, peak float64) *Series {
	if h.width == 0 {
		return nil
	}
	c := history{most: h.most, width: h.width, first: h.first, buckets: append([]bucket(nil), h.buckets...)}
	for len(c.buckets) > max(points, 1) {
		c.widen()
	}
	s := &Series{StepsPerPoint: c.width}
	for i := range c.buckets {
		b := &c.buckets[i]
		if b.lines == 0 {
			continue
		}
		tflops := mean(b.tflops, b.worked)
		s.Step = append(s.Step, (c.first+int64(i))*c.width)
		s.Lines = append(s.Lines, int64(b.lines))
		s.StepSeconds = append(s.StepSeconds, mean(b.seconds, b.timed))
		low, high := Unknown, Unknown
		if b.timed > 0 {
			low, high = Number(b.min), Number(b.max)
		}
		s.Min, s.Max = append(s.Min, low), append(s.Max, high)
		s.TFLOPs = append(s.TFLOPs, tflops)
		s.MFU = append(s.MFU, tflops/Number(peak))
		s.Tokens = append(s.Tokens, mean(b.tokens, b.fed))
		s.Loss = append(s.Loss, mean(b.loss, b.lossy))
		s.BadLoss = append(s.BadLoss, int64(b.bad))
	}
	return s
}

func mean(sum float64, n uint32) Number {
	if n == 0 {
		return Unknown
	}
	return Number(sum / float64(n))
}
