package metrics_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/metrics"
	"multihost/internal/testkit"
	"multihost/internal/tpu"
)

// workers returns the workers of this many slices, each with this many workers.
func workers(slices, each int) []tpu.WorkerID {
	var ids []tpu.WorkerID
	for s := range slices {
		for w := range each {
			ids = append(ids, tpu.WorkerID{Slice: s, Worker: w})
		}
	}
	return ids
}

// line returns a step line in the form that MaxText prints since 2026-04.
func line(step int, seconds, tflops, tokens, loss float64) string {
	return fmt.Sprintf("I0706 16:50:26.257925 140110937163584 metric_logger.py:237] completed step: %d, seconds: %.3f, TFLOP/s/device: %.3f, Tokens/s/device: %.3f, total_weights: 2097152, loss: %.3f, lm_loss: %.3f, perplexity: 24.533\n",
		step, seconds, tflops, tokens, loss, loss)
}

// collect reads text as the output of one worker, in chunks of the given size.
func collect(t testing.TB, o metrics.Options, text string, chunk int) metrics.Attempt {
	t.Helper()
	if o.Workers == nil {
		o.Workers = workers(1, 1)
	}
	c := metrics.NewCollector(o)
	for data := []byte(text); len(data) > 0; {
		n := min(chunk, len(data))
		if m, err := c.Stream(0).Write(data[:n]); m != n || err != nil {
			t.Fatalf("Write = %d, %v", m, err)
		}
		data = data[n:]
	}
	c.Stream(0).Finish()
	return c.Attempt(metrics.View{Points: 256, WorkerPoints: 256})
}

// mixed is a log with everything that may stand between steps.
func mixed() string {
	var b strings.Builder
	b.WriteString("starting\r\nNum_devices: 256, shape (1, 256)\r\n")
	for step := range 20 {
		b.WriteString(" 5%|#    | downloading\r10%|##   | downloading\r")
		b.WriteString(line(step, 1+float64(step)/100, 100, 4000, 5))
		if step%7 == 3 {
			b.WriteString(strings.Repeat("x", 10000) + " completed nothing\n")
			b.WriteString("Completed eval after train step 3, loss=3.2, perplexity=24.5, total_weights=65536.0\n")
		}
		if step == 10 {
			b.WriteString("eval metrics after step: 10, loss=3.2, total_weights=65536.0\n")
			b.WriteString(strings.Repeat("y", 9000) + "completed step: 10, seconds: 1.100, loss: 5.000\r\n")
		}
	}
	b.WriteString("completed step: 20, seconds: 1.200, loss: 4.000") // without the end of the line
	return b.String()
}

// TestChunksDoNotMatter cuts a log at every place. The steps must be the same.
func TestChunksDoNotMatter(t *testing.T) {
	t.Parallel()
	text := mixed()
	for _, chunk := range []int{1, 2, 3, 7, 64, 100, 4096, 4097, 1 << 20} {
		a := collect(t, metrics.Options{}, text, chunk)
		if a.Steps != 22 || a.Last.Step != 20 || a.Evaluations != 4 || a.Restarts != 0 || a.Last.Loss != 4 {
			t.Errorf("chunks of %d: %d steps to %d, %d evaluations, %d restarts, loss %v; want 22 to 20, 4, 0, 4",
				chunk, a.Steps, a.Last.Step, a.Evaluations, a.Restarts, a.Last.Loss)
		}
		if got := a.Slices[0].Workers[0].LogBytes; got != int64(len(text)) {
			t.Errorf("chunks of %d: %d bytes, want %d", chunk, got, len(text))
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(mixed()), uint16(7))
	f.Add([]byte("completed step: 1, seconds: 1\rcompleted step: 2, loss: nan\n"), uint16(3))
	f.Fuzz(func(t *testing.T, text []byte, chunk uint16) {
		whole := collect(t, metrics.Options{}, string(text), len(text)+1)
		cut := collect(t, metrics.Options{}, string(text), int(chunk)+1)
		long := false // what is kept of a line that is too long depends on the cut
		for _, l := range bytes.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
			long = long || len(l) > 2000
		}
		if !long && (whole.Steps != cut.Steps || whole.Evaluations != cut.Evaluations || whole.Last.Step != cut.Last.Step) {
			t.Errorf("whole: %d steps, %d evaluations; in chunks of %d: %d, %d", whole.Steps, whole.Evaluations, int(chunk)+1, cut.Steps, cut.Evaluations)
		}
	})
}

// logChunk returns what a worker prints in some time. One line of ten is a step.
func logChunk() []byte {
	var b bytes.Buffer
	for step := range 100 {
		for range 9 {
			b.WriteString("I0706 16:50:26.257925 140110937163584 pyconfig.py:118] some line of a library that says where it is and what it does\n")
		}
		b.WriteString(line(step, 1.234, 131.5, 4093.953, 3.25))
	}
	return b.Bytes()
}

// TestReadingAllocatesNothing checks what package follow needs.
func TestReadingAllocatesNothing(t *testing.T) {
	c := metrics.NewCollector(metrics.Options{Workers: workers(1, 1), Now: time.Now})
	chunk := logChunk()
	s := c.Stream(0)
	s.Write(chunk)
	if n := testing.AllocsPerRun(20, func() { s.Write(chunk) }); n != 0 {
		t.Errorf("%v allocations for %d lines, want none", n, bytes.Count(chunk, []byte("\n")))
	}
}

func BenchmarkStream(b *testing.B) {
	for _, bench := range []struct {
		name  string
		chunk []byte
	}{
		{"one line of ten is a step", logChunk()},
		{"no step", bytes.ReplaceAll(logChunk(), []byte("completed"), []byte("finished "))},
		{"only steps", bytes.Repeat([]byte(line(1, 1.234, 131.5, 4093.953, 3.25)), 1000)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			c := metrics.NewCollector(metrics.Options{Workers: workers(1, 1), Now: time.Now})
			s := c.Stream(0)
			b.SetBytes(int64(len(bench.chunk)))
			b.ReportAllocs()
			for b.Loop() {
				s.Write(bench.chunk)
			}
		})
	}
}

// TestMemoryIsBounded checks the memory of 2048 workers × 10⁴ steps in which every line has
// different figures. A worker's memory has its full size after some hundred steps. So only
// some workers read all steps, and must not grow.
func TestMemoryIsBounded(t *testing.T) {
	const full, steps = 560, 10_000
	count, bound := 2048, int64(96<<20)
	if testkit.RaceDetector {
		count, bound = count/8, bound/8
	}
	c := metrics.NewCollector(metrics.Options{Workers: workers(count/64, 64), Now: time.Now})
	rng := rand.New(rand.NewPCG(1, 2))
	var text bytes.Buffer
	mark := 0
	for step := range steps {
		if step == full {
			mark = text.Len()
		}
		seconds := 1 + 8*rng.Float64()
		fmt.Fprintf(&text, "completed step: %d, seconds: %.3f, TFLOP/s/device: %.3f, Tokens/s/device: %.3f, total_weights: 2097152, loss: 3.250\n", step, seconds, 131/seconds, 4000/seconds)
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var wg sync.WaitGroup
	for half := range 2 {
		wg.Go(func() {
			for i := half; i < count; i += 2 {
				c.Stream(i).Write(text.Bytes()[:mark])
			}
		})
	}
	wg.Wait()
	used := heap() - before
	if used > bound {
		t.Errorf("%d workers hold %d MB, want at most %d", count, used>>20, bound>>20)
	}
	longer := count / 128 // 16 workers; fewer with the race detector
	for i := range longer {
		c.Stream(i * 4).Write(text.Bytes()[mark:])
	}
	if grown := heap() - before - used; grown > int64(longer)*1024 {
		t.Errorf("%d workers grew by %d bytes from step %d to %d", longer, grown, full, steps)
	}
	a := c.Attempt(metrics.View{Points: 256, WorkerPoints: 64})
	if want := int64(count*full + longer*(steps-full)); a.Steps != want || a.Last.Step != steps-1 || len(a.Slices) != count/64 {
		t.Errorf("read %d steps to %d of %d slices, want %d", a.Steps, a.Last.Step, len(a.Slices), want)
	}
	if m := float64(a.Median.StepSeconds); m < 4.5 || m > 5.5 {
		t.Errorf("median %v of times from 1 to 9", m)
	}
	if e := float64(a.MedianError); e <= 0 || e > 0.01 {
		t.Errorf("median error %v, want little, and said", e)
	}
	t.Logf("%d MB", used>>20)
}
