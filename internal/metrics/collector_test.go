package metrics_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/metrics"
	"multihost/internal/tpu"
)

func kind(t testing.TB, name string) tpu.Type {
	t.Helper()
	k, err := tpu.ParseType(name)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func near(got metrics.Number, want float64) bool {
	return math.Abs(float64(got)-want) <= 1e-6*math.Abs(want)
}

// TestWhatCountsForMedians: compilation does not count, nor do the profiler, a growing
// batch, and compilation again after a return to a checkpoint.
func TestWhatCountsForMedians(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("completed step: 100, seconds: 90.000, TFLOP/s/device: 1.000, loss: 9.000\n")
	b.WriteString("completed step: 101, seconds: 0.001, TFLOP/s/device: 99999.000, loss: 9.000\n")
	b.WriteString("completed step: 102, seconds: 5.000, TFLOP/s/device: 20.000, loss: 9.000\n")
	for step := 103; step < 110; step++ {
		fmt.Fprintf(&b, "completed step: %d, seconds: 1.000, TFLOP/s/device: 100.000, Tokens/s/device: 4000.000, loss: 8.000\n", step)
	}
	b.WriteString("completed profiler activation/deactivation step: 110, total_weights: 65536, loss: 7.500\n")
	for range 9 {
		b.WriteString("[Rampup Batch Size Phase], completed step: 111, seconds: 77.000, total_weights: 1, loss: 7.000\n")
	}
	b.WriteString("completed step: 50, seconds: 88.000, TFLOP/s/device: 1.000, loss: 8.500\n") // back to a checkpoint
	b.WriteString("completed step: 51, seconds: 80.000, TFLOP/s/device: 1.000, loss: 8.500\n")
	b.WriteString("completed step: 52, seconds: 80.000, TFLOP/s/device: 1.000, loss: 8.500\n")
	b.WriteString("completed step: 53, seconds: 1.000, TFLOP/s/device: 100.000, loss: nan\n")
	a := collect(t, metrics.Options{Type: kind(t, "v5litepod-16")}, b.String(), 1000)
	if m := a.Median; m.Steps != 8 || !near(m.StepSeconds, 1) || !near(m.TFLOPs, 100) || !near(m.MFU, 100.0/197) || !near(m.Tokens, 4000) {
		t.Errorf("median %+v; want 8 steps of 1 s, 100 TFLOP/s, %v, 4000 tokens/s", m, 100.0/197)
	}
	if a.FirstStep != 50 || a.Restarts != 1 || a.Steps != 24 || a.Skipped != metrics.DefaultSkip {
		t.Errorf("first step %d, %d restarts, %d lines, %d skipped; want 50, 1, 24, %d", a.FirstStep, a.Restarts, a.Steps, a.Skipped, metrics.DefaultSkip)
	}
	if want := (&metrics.BadLoss{Step: 53, Worker: "s0w0", Text: "NaN"}); a.BadLoss == nil || *a.BadLoss != *want {
		t.Errorf("bad loss %+v, want %+v", a.BadLoss, want)
	}
	if got := a.Slices[0].Workers[0].Last; got.Step != 53 || got.LossText != "NaN" || got.Loss.Known() {
		t.Errorf("last %+v, want step 53 with loss NaN", got)
	}
	if a = collect(t, metrics.Options{Skip: -1}, "completed step: 0, seconds: 2.000, loss: 1\n", 9); a.Median.Steps != 1 {
		t.Errorf("%d steps count when none is skipped", a.Median.Steps)
	}
	if a = collect(t, metrics.Options{}, "completed step: 0, seconds: 2.000, loss: 1\n", 9); a.Median.Steps != 0 || a.Median.StepSeconds.Known() {
		t.Errorf("median %+v of skipped steps only", a.Median)
	}
}

// TestMFUIsOfWhatJAXCallsADevice: on tpu7x a device is half a chip.
func TestMFUIsOfWhatJAXCallsADevice(t *testing.T) {
	t.Parallel()
	for name, perDevice := range map[string]float64{"v2-8": 22.5, "v3-8": 61.5, "v4-8": 275, "v5litepod-16": 197, "v5p-8": 459, "v6e-8": 918, "tpu7x-8": 1153.5} {
		a := collect(t, metrics.Options{Type: kind(t, name), Skip: -1}, fmt.Sprintf("completed step: 5, seconds: 1.000, TFLOP/s/device: %.3f, loss: 1\n", perDevice/2), 99)
		d := metrics.NewDocument("r", kind(t, name), time.Unix(0, 0))
		if !near(a.Median.MFU, 0.5) || !near(d.PeakTFLOPs, perDevice) || d.PeakSource == "" {
			t.Errorf("%s: half the peak is MFU %v of %v (%s), want 0.5 of %v", name, a.Median.MFU, d.PeakTFLOPs, d.PeakSource, perDevice)
		}
	}
	a := collect(t, metrics.Options{Skip: -1}, "completed step: 5, seconds: 1.000, TFLOP/s/device: 100, loss: 1\n", 99)
	if a.Median.MFU.Known() || !a.Median.TFLOPs.Known() {
		t.Errorf("without a type MFU is %v", a.Median.MFU)
	}
}

// TestInterleavedWorkers reads four workers in turns and keeps them apart.
func TestInterleavedWorkers(t *testing.T) {
	t.Parallel()
	ids := workers(2, 2)
	c := metrics.NewCollector(metrics.Options{Workers: ids, Type: kind(t, "v5litepod-16")})
	for step := range 50 {
		for i := range ids {
			text := line(step, 1+float64(i)/10, 100-float64(i), 4000, 5-float64(step)/100)
			half := len(text) / 2
			c.Stream(i).Write([]byte(text[:half]))
			c.Stream((i + 1) % 4).Write(nil)
			c.Stream(i).Write([]byte(text[half:]))
		}
	}
	a := c.Attempt(metrics.View{Points: 256, WorkerPoints: 10})
	for i, id := range ids {
		w := a.Slice(id.Slice).Workers[id.Worker]
		if w.Name != id.String() || w.Steps != 50 || w.Last.Step != 49 || !near(w.Median.StepSeconds, 1+float64(i)/10) || !near(w.Median.TFLOPs, 100-float64(i)) {
			t.Errorf("%s: %+v", id, w.Figures)
		}
		if n := len(w.Series.Step); n == 0 || n > 10 {
			t.Errorf("%s: %d points, want at most 10", id, n)
		}
	}
	if s := a.Slice(1); s.Steps != 100 || !near(s.Median.StepSeconds, 1.25) || len(s.Series.Step) != 50 || s.Series.Lines[0] != 2 ||
		!near(s.Series.StepSeconds[10], 1.25) || !near(s.Series.Min[10], 1.2) || !near(s.Series.Max[10], 1.3) {
		t.Errorf("slice 1: %+v", s.Figures)
	}
	if a.Steps != 200 || !near(a.Median.StepSeconds, 1.15) || a.MedianError != 0 {
		t.Errorf("run: %d steps, median %v ± %v; want 200, 1.15, exact", a.Steps, a.Median.StepSeconds, a.MedianError)
	}
}

// fleet returns the attempt of workers with the given step times and last steps.
func fleet(t *testing.T, ids []tpu.WorkerID, ended bool, seconds func(id tpu.WorkerID) float64, last func(id tpu.WorkerID) int) metrics.Attempt {
	t.Helper()
	c := metrics.NewCollector(metrics.Options{Workers: ids})
	for i, id := range ids {
		for step := range last(id) + 1 {
			fmt.Fprintf(c.Stream(i), "completed step: %d, seconds: %.3f, loss: 1.000\n", step, seconds(id))
		}
		if ended {
			c.Stream(i).Finish()
		}
	}
	return c.Attempt(metrics.View{})
}

func TestStragglersAreNamed(t *testing.T) {
	t.Parallel()
	same := func(tpu.WorkerID) float64 { return 1 }
	twenty := func(tpu.WorkerID) int { return 20 }
	for _, tc := range []struct {
		story   string
		ids     []tpu.WorkerID
		ended   bool
		seconds func(tpu.WorkerID) float64
		last    func(tpu.WorkerID) int
		want    []string
	}{
		{"all the same", workers(2, 4), true, same, twenty, nil},
		{"a little noise", workers(2, 4), true, func(id tpu.WorkerID) float64 { return 1 + float64(id.Worker)/10 }, twenty, nil},
		{"one slow worker", workers(2, 4), true, func(id tpu.WorkerID) float64 {
			if id == (tpu.WorkerID{Slice: 1, Worker: 2}) {
				return 2
			}
			return 1
		}, twenty, []string{"s1w2 takes 2.000 s a step, the other workers 1.000 s (×2.00)"}},
		{"a slow slice is one line", workers(3, 4), true, func(id tpu.WorkerID) float64 { return map[int]float64{0: 1, 1: 3, 2: 1}[id.Slice] }, twenty,
			[]string{"slice 1 (s1w[0-3]) takes 3.000 s a step, the other slices 1.000 s (×3.00)"}},
		{"of two workers the faster is the measure", workers(1, 2), true, func(id tpu.WorkerID) float64 { return 1 + float64(id.Worker) }, twenty,
			[]string{"s0w1 takes 2.000 s a step, the other workers 1.000 s (×2.00)"}},
		{"steps of no time", workers(1, 4), true, func(id tpu.WorkerID) float64 { return 0.001 * float64(1+id.Worker) }, twenty, nil},
		{"one stopped before the others", workers(2, 2), true, same, func(id tpu.WorkerID) int {
			if id.Worker == 1 && id.Slice == 0 {
				return 14
			}
			return 20
		}, []string{"s0w1 is at step 14, 6 steps behind"}},
		{"a slice stopped before the others", workers(2, 2), true, same, func(id tpu.WorkerID) int { return 20 - 5*id.Slice },
			[]string{"slice 1 (s1w[0-1]) is at step 15, 5 steps behind"}},
		{"one step behind is how MaxText prints", workers(2, 2), true, same, func(id tpu.WorkerID) int { return 20 - id.Worker }, nil},
		{"a live run: lines are under way", workers(2, 2), false, same, func(id tpu.WorkerID) int { return 20 - 5*id.Worker }, nil},
		{"a live run: ten seconds behind are not", workers(2, 2), false, same, func(id tpu.WorkerID) int { return 20 - 10*id.Worker*id.Slice },
			[]string{"s1w1 is at step 10, 10 steps behind"}},
	} {
		a := fleet(t, tc.ids, tc.ended, tc.seconds, tc.last)
		var got []string
		for _, s := range a.Stragglers {
			got = append(got, s.Text)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.story, diff)
		}
	}
}

// fakeClock is a clock that moves only when the test moves it.
type fakeClock struct{ at time.Time }

func (c *fakeClock) now() time.Time       { return c.at }
func (c *fakeClock) pass(d time.Duration) { c.at = c.at.Add(d) }
func newClock() *fakeClock                { return &fakeClock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }
func print(c *metrics.Collector, i, step int) {
	fmt.Fprintf(c.Stream(i), "completed step: %d, seconds: 30.000, loss: 1\n", step)
}

func TestTimeWithoutSightIsNoStall(t *testing.T) {
	t.Parallel()
	clock := newClock()
	c := metrics.NewCollector(metrics.Options{Workers: workers(1, 2), Now: clock.now})
	for i := range 2 {
		print(c, i, 1)
	}
	for range 300 { // for five minutes, a worker cannot be followed
		clock.pass(time.Second)
		c.Blind(clock.at)
		if s, change := c.LookForStall(clock.at, time.Minute); change != metrics.StallSame {
			t.Fatalf("nobody can see the steps: %q", s.Text)
		}
	}
	clock.pass(time.Minute - time.Second)
	if s, change := c.LookForStall(clock.at, time.Minute); change != metrics.StallSame {
		t.Errorf("59 s after sight came back: %q", s.Text)
	}
	clock.pass(time.Second)
	if _, change := c.LookForStall(clock.at, time.Minute); change != metrics.StallBegan {
		t.Error("no stall a minute after sight came back")
	}
}

func TestAStallNamesWhoStoppedFirst(t *testing.T) {
	t.Parallel()
	clock := newClock()
	c := metrics.NewCollector(metrics.Options{Workers: workers(2, 2), Now: clock.now})
	look := func(limit time.Duration) (string, metrics.StallChange) {
		s, change := c.LookForStall(clock.at, limit)
		return s.Text, change
	}
	clock.pass(24 * time.Hour)
	if text, change := look(time.Minute); change != metrics.StallSame {
		t.Errorf("before the first step: %q", text)
	}
	for step := range 8 {
		for i := range 4 {
			if i != 2 || step < 7 {
				print(c, i, step)
			}
		}
		clock.pass(30 * time.Second)
	}
	if text, change := look(time.Minute); change != metrics.StallSame {
		t.Errorf("30 s after a step with a limit of a minute: %q", text)
	}
	c.Stream(0).Write([]byte("Completed eval after train step 7, loss=1, perplexity=2\n"))
	clock.pass(59 * time.Second)
	if text, change := look(time.Minute); change != metrics.StallSame {
		t.Errorf("an evaluation is no stall: %q", text)
	}
	clock.pass(time.Second)
	text, change := look(time.Minute)
	if want := "no step for 1m00s: s1w0 stopped first, after step 6; 3 other workers came to step 7"; change != metrics.StallBegan || text != want {
		t.Errorf("stall: %v %q, want %q", change, text, want)
	}
	clock.pass(time.Hour)
	if text, change := look(time.Minute); change != metrics.StallSame {
		t.Errorf("a stall is told once: %q", text)
	}
	print(c, 0, 8)
	if text, change := look(time.Minute); change != metrics.StallEnded || text != "steps go on after 1h01m; s1w0 had stopped first, after step 6" {
		t.Errorf("after a further step: %v %q", change, text)
	}
	for i := range 4 {
		print(c, i, 9)
	}
	// At 30 s a step, ten steps take less than ten minutes, so the minimum of ten
	// minutes applies.
	clock.pass(10*time.Minute - time.Second)
	if text, change := look(0); change != metrics.StallSame {
		t.Errorf("before ten minutes: %q", text)
	}
	clock.pass(time.Second)
	if text, change := look(0); change != metrics.StallBegan || text != "no step for 10m00s: all 4 workers stopped after step 9" {
		t.Errorf("after ten minutes: %v %q", change, text)
	}
	a := c.Attempt(metrics.View{})
	if len(a.Stalls) != 2 || a.Stalls[0].Ended == nil || a.Stalls[1].Ended != nil || a.Stalls[1].First != "s[0-1]w[0-1]" {
		t.Errorf("stalls %+v", a.Stalls)
	}
}

func TestWhoHasEndedDoesNotStall(t *testing.T) {
	t.Parallel()
	clock := newClock()
	c := metrics.NewCollector(metrics.Options{Workers: workers(1, 2), Now: clock.now})
	print(c, 0, 3)
	print(c, 1, 9)
	c.Stream(0).Finish()
	clock.pass(time.Hour)
	if s, change := c.LookForStall(clock.at, time.Minute); change != metrics.StallBegan || s.First != "s0w1" {
		t.Errorf("stall %v of %q, want of s0w1 only", change, s.First)
	}
	c = metrics.NewCollector(metrics.Options{Workers: workers(1, 1), Now: clock.now})
	print(c, 0, 3)
	c.Stream(0).Finish()
	clock.pass(time.Hour)
	if s, change := c.LookForStall(clock.at, time.Minute); change != metrics.StallSame {
		t.Errorf("all have ended: %q", s.Text)
	}
}

// TestTheStallLimitGrowsWithTheSteps: ten steps of three minutes are half an hour.
func TestTheStallLimitGrowsWithTheSteps(t *testing.T) {
	t.Parallel()
	clock := newClock()
	c := metrics.NewCollector(metrics.Options{Workers: workers(1, 1), Now: clock.now})
	for step := range 9 {
		fmt.Fprintf(c.Stream(0), "completed step: %d, seconds: 180.000, loss: 1\n", step)
	}
	clock.pass(30*time.Minute - time.Second)
	if s, change := c.LookForStall(clock.at, 0); change != metrics.StallSame {
		t.Errorf("before ten steps: %q", s.Text)
	}
	clock.pass(time.Second)
	if _, change := c.LookForStall(clock.at, 0); change != metrics.StallBegan {
		t.Error("no stall after ten steps")
	}
}

func TestUnknownFiguresAreNull(t *testing.T) {
	t.Parallel()
	for n, want := range map[metrics.Number]string{
		0: "0", 1.25: "1.25", metrics.Number(float32(1.234)): "1.234", 1e-9: "1e-09", 123456789: "123456800",
		metrics.Number(math.Inf(1)): "null", metrics.Number(math.Inf(-1)): "null", -2.5: "-2.5",
	} {
		if got, err := json.Marshal(n); err != nil || string(got) != want {
			t.Errorf("JSON of %v is %s, %v; want %s", float64(n), got, err, want)
		}
	}
	if got, _ := json.Marshal(metrics.Unknown); string(got) != "null" {
		t.Errorf("unknown is %s", got)
	}
	a := collect(t, metrics.Options{}, "completed step: 3, seconds: 1.000, loss: nan\ncompleted step: 4, seconds: 1.000, loss: inf\n", 10)
	d := metrics.NewDocument("r", tpu.Type{}, time.Unix(0, 0))
	d.Attempts = append(d.Attempts, a)
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var back metrics.Document
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(back)
	if err != nil || string(again) != string(data) {
		t.Errorf("read back and written again, it differs: %v\n%s\n%s", err, data, again)
	}
	s := back.Newest().Series
	if s.BadLoss[0] != 1 || s.Loss[0].Known() || back.Newest().Last.LossText != "Inf" {
		t.Errorf("loss column %v, %v; last %q", s.Loss, s.BadLoss, back.Newest().Last.LossText)
	}
}
