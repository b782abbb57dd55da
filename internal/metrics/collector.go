package metrics

import (
	"math"
	"slices"
	"sync"
	"time"

	"multihost/internal/tpu"
)

// DefaultSkip is how many first steps of a worker medians leave out. Step 0 compiles, and
// MaxText prints an absurdly small time for one of the next steps.
const DefaultSkip = 3

// Options configure a Collector.
type Options struct {
	// Workers are the workers that print, in the order of their streams.
	Workers []tpu.WorkerID
	// Type is the accelerator type of a slice. If it is the zero Type, type and MFU are
	// unknown.
	Type tpu.Type
	// Pattern reads the step lines; nil means MaxText's.
	Pattern *Pattern
	// Skip is how many first steps medians leave out. 0 means DefaultSkip, a negative
	// number none.
	Skip int
	// Now is the clock of a run that is being followed. Without it, times are unknown and
	// nothing can stall.
	Now func() time.Time
}

// A Collector reads the training steps of one attempt from the streams of its workers. Its
// methods are safe for concurrent use.
type Collector struct {
	o       Options
	skip    int64
	peak    float64 // per device; NaN: unknown
	streams []*Stream

	mu       sync.Mutex // guards the fields below; never held while a stream is locked
	furthest Sample
	reached  time.Time // when the run came to furthest
	any      bool
	bad      *BadLoss
	stalls   []Stall
	heard    time.Time // when the last step line or evaluation was read
	blind    time.Time // the last time at which the steps of some worker could not be read
}

// NewCollector returns a Collector that has read nothing.
func NewCollector(o Options) *Collector {
	c := &Collector{o: o, skip: int64(max(o.Skip, 0)), peak: math.NaN()}
	if o.Skip == 0 {
		c.skip = DefaultSkip
	}
	if p, ok := PeakOf(o.Type.Generation); ok {
		c.peak = p.PerDevice()
	}
	c.streams = make([]*Stream, len(o.Workers))
	for i, id := range o.Workers {
		s := &Stream{c: c, id: id, last: unknownSample()}
		s.history.most = seriesBuckets
		s.split = splitter{pattern: o.Pattern, step: s.step, eval: s.eval}
		c.streams[i] = s
	}
	return c
}

// Stream returns the stream of Options.Workers[i].
func (c *Collector) Stream(i int) *Stream { return c.streams[i] }

// A Stream takes the output of one worker. It is an io.Writer that never fails. Only one
// goroutine at a time may use it. The Collector's methods may be called meanwhile.
type Stream struct {
	c     *Collector
	id    tpu.WorkerID
	split splitter

	mu       sync.Mutex // guards the fields below
	bytes    int64
	steps    int64
	first    int64
	counted  int64 // medians leave out the steps before this one
	last     Sample
	at       time.Time // time of the last step line
	evals    int
	restarts int
	ended    bool
	history  history
	seconds  digest
	tflops   digest
	tokens   digest
}

// Write reads the next bytes of the stream. It keeps no reference to p.
func (s *Stream) Write(p []byte) (int, error) {
	s.split.feed(p)
	s.mu.Lock()
	s.bytes += int64(len(p))
	s.mu.Unlock()
	return len(p), nil
}

// Finish reads a last line without a newline, and marks the stream as ended. A worker that
// has ended does not stall.
func (s *Stream) Finish() {
	s.split.finish()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
}

func (s *Stream) eval() {
	now := s.c.now()
	s.mu.Lock()
	s.evals++
	s.mu.Unlock()
	s.c.hear(now)
}

func (s *Stream) step(step Step) {
	now := s.c.now()
	peak := s.c.peak
	if math.IsNaN(step.TFLOPs) && !math.IsNaN(step.MFU) {
		step.TFLOPs = step.MFU * peak
	}
	sample := Sample{
		Step: step.Number, StepSeconds: Number(step.Seconds), TFLOPs: Number(step.TFLOPs), MFU: Number(step.TFLOPs / peak),
		Tokens: Number(step.Tokens), Loss: Number(step.Loss),
	}
	if math.IsNaN(peak) {
		sample.MFU = Number(step.MFU)
	}
	if step.HasLoss && !sample.Loss.Known() {
		sample.LossText = lossText(step.Loss)
	}
	s.mu.Lock()
	if s.steps == 0 {
		s.first = step.Number
		s.counted = step.Number + s.c.skip
	}
	// Several processes of a worker may be one step apart. A larger step back is a return
	// to a checkpoint, after which the command compiles again.
	if s.steps > 0 && step.Number < s.last.Step-1 {
		s.restarts++
		s.first = min(s.first, step.Number)
		s.counted = step.Number + s.c.skip
	}
	s.steps++
	if step.Profiler { // a step of the profiler has no times: keep the last ones
		sample.StepSeconds, sample.TFLOPs, sample.MFU, sample.Tokens = s.last.StepSeconds, s.last.TFLOPs, s.last.MFU, s.last.Tokens
	}
	s.last, s.at = sample, now
	s.history.at(step.Number).add(&step)
	if step.Number >= s.counted && !step.Profiler && !step.Ramp {
		s.seconds.add(step.Seconds)
		s.tflops.add(step.TFLOPs)
		s.tokens.add(step.Tokens)
	}
	s.mu.Unlock()
	s.c.stepped(s.id, sample, now)
}

func lossText(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return "NaN"
}

func (c *Collector) now() time.Time {
	if c.o.Now == nil {
		return time.Time{}
	}
	return c.o.Now()
}

func (c *Collector) hear(now time.Time) {
	c.mu.Lock()
	c.heard = now
	c.mu.Unlock()
}

func (c *Collector) stepped(id tpu.WorkerID, sample Sample, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = now
	// The progress of the run is that of the worker that is furthest ahead, or of the first
	// to get there. A return to a checkpoint shows at the first of all workers.
	if !c.any || sample.Step > c.furthest.Step || id == c.o.Workers[0] && sample.Step < c.furthest.Step-1 {
		c.furthest, c.reached, c.any = sample, now, true
	}
	if sample.LossText != "" && (c.bad == nil || sample.Step < c.bad.Step) {
		c.bad = &BadLoss{Step: sample.Step, Worker: id.String(), Text: sample.LossText}
	}
}

func unknownSample() Sample {
	return Sample{StepSeconds: Unknown, TFLOPs: Unknown, MFU: Unknown, Tokens: Unknown, Loss: Unknown}
}

// Latest returns the newest step of the run, or false if there is none. It is cheap.
func (c *Collector) Latest() (Sample, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.furthest.seen(c.reached), c.any
}

// seen returns the sample with the time at which it was read, if that is known. The sample
// itself has no time, because a pointer would cost an allocation each step.
func (s Sample) seen(at time.Time) Sample {
	if !at.IsZero() {
		s.At = &at
	}
	return s
}

// View says how much of the history an Attempt gets.
type View struct {
	Points       int // limit for the series of the run and its slices; 0 means none
	WorkerPoints int // limit for the series of each worker; 0 means none
}

// total sums up the figures of several workers.
type total struct {
	steps, first            int64
	evals, restarts         int
	last                    Sample
	history                 history
	seconds, tflops, tokens digest
}

func newTotal() *total {
	return &total{last: unknownSample(), history: history{most: seriesBuckets}}
}

func (t *total) add(s *Stream) {
	if s.steps == 0 {
		t.evals = max(t.evals, s.evals)
		return
	}
	if t.steps == 0 || s.first < t.first {
		t.first = s.first
	}
	if t.steps == 0 || s.last.Step > t.last.Step {
		t.last = s.last.seen(s.at)
	}
	t.steps += s.steps
	t.evals, t.restarts = max(t.evals, s.evals), max(t.restarts, s.restarts)
	t.history.merge(&s.history)
	t.seconds.merge(&s.seconds)
	t.tflops.merge(&s.tflops)
	t.tokens.merge(&s.tokens)
}

func (t *total) merge(o *total) {
	if o.steps > 0 {
		if t.steps == 0 || o.first < t.first {
			t.first = o.first
		}
		if t.steps == 0 || o.last.Step > t.last.Step {
			t.last = o.last
		}
	}
	t.steps += o.steps
	t.evals, t.restarts = max(t.evals, o.evals), max(t.restarts, o.restarts)
	t.history.merge(&o.history)
	t.seconds.merge(&o.seconds)
	t.tflops.merge(&o.tflops)
	t.tokens.merge(&o.tokens)
}

func (t *total) figures(points int, peak float64) Figures {
	f := Figures{
		Steps: t.steps, FirstStep: t.first, Last: t.last, Evaluations: t.evals, Restarts: t.restarts,
		Median: median(&t.seconds, &t.tflops, &t.tokens, peak),
	}
	if points > 0 {
		f.Series = t.history.series(points, peak)
	}
	return f
}

func median(seconds, tflops, tokens *digest, peak float64) Median {
	t := tflops.median()
	return Median{Steps: seconds.n, StepSeconds: Number(seconds.median()), TFLOPs: Number(t), MFU: Number(t / peak), Tokens: Number(tokens.median())}
}

// Attempt returns what has been read so far. The caller fills in what only the run knows:
// number, directory, beginning, end and the names of slices.
func (c *Collector) Attempt(v View) Attempt {
	a := Attempt{Skipped: int(c.skip), MedianError: 0, Slices: []Slice{}, Stragglers: []Straggler{}, Stalls: []Stall{}}
	bySlice := map[int]*total{}
	live := false
	for _, s := range c.streams {
		t := bySlice[s.id.Slice]
		if t == nil {
			t = newTotal()
			bySlice[s.id.Slice] = t
			a.Slices = append(a.Slices, Slice{Number: s.id.Slice})
		}
		s.mu.Lock()
		live = live || !s.ended
		t.add(s)
		w := Worker{Name: s.id.String(), Slice: s.id.Slice, Worker: s.id.Worker, LogBytes: s.bytes, Figures: Figures{
			Steps: s.steps, FirstStep: s.first, Last: s.last.seen(s.at), Evaluations: s.evals, Restarts: s.restarts,
			Median: median(&s.seconds, &s.tflops, &s.tokens, c.peak),
		}}
		if v.WorkerPoints > 0 {
			w.Series = s.history.series(v.WorkerPoints, c.peak)
		}
		s.mu.Unlock()
		slice := a.Slice(s.id.Slice)
		slice.Workers = append(slice.Workers, w)
	}
	slices.SortFunc(a.Slices, func(x, y Slice) int { return x.Number - y.Number })
	all := newTotal()
	for i := range a.Slices {
		s := &a.Slices[i]
		t := bySlice[s.Number]
		s.Figures = t.figures(v.Points, c.peak)
		all.merge(t)
	}
	a.Figures = all.figures(v.Points, c.peak)
	a.MedianError = Number(max(all.seconds.precision(), all.tflops.precision(), all.tokens.precision()))
	a.Stragglers = append(a.Stragglers, stragglers(&a, live)...)
	c.mu.Lock()
	defer c.mu.Unlock()
	a.Stalls = append(a.Stalls, c.stalls...)
	a.BadLoss = c.bad
	return a
}
