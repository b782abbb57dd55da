package ui

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/event"
	"multihost/internal/testkit"
)

// expand reverses tpu.Fold, for the small sets of the tests below.
func expand(t *testing.T, tag string) []string {
	t.Helper()
	numbers := func(s string) (all []int) {
		for part := range strings.SplitSeq(strings.Trim(s, "[]"), ",") {
			var a, b int
			if n, _ := fmt.Sscanf(part, "%d-%d", &a, &b); n < 2 {
				b = a
			}
			for ; a <= b; a++ {
				all = append(all, a)
			}
		}
		return all
	}
	var ids []string
	re := regexp.MustCompile(`s(\d+|\[[^]]*\])w(\d+|\[[^]]*\])`)
	for _, m := range re.FindAllStringSubmatch(tag, -1) {
		for _, s := range numbers(m[1]) {
			for _, w := range numbers(m[2]) {
				ids = append(ids, fmt.Sprintf("s%dw%d", s, w))
			}
		}
	}
	if len(ids) == 0 {
		t.Fatalf("tag %q names no worker", tag)
	}
	return ids
}

// FuzzFold lets the fuzzer choose which worker prints which of a few words, and when. The
// folded view must have exactly the words of every worker, in order.
func FuzzFold(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0x10, 0x11, 0x12, 0x13})
	f.Add([]byte{0, 0, 0, 1, 1, 0xff, 1, 2, 0x20, 0x21, 0x20})
	f.Add(bytes.Repeat([]byte{0, 1}, 300))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2000 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			w := new(recorder)
			r := New(Options{Mode: Plain, Stream: All, Stdout: w, Stderr: io.Discard})
			want := map[string][]string{}
			for _, c := range data {
				if c >= 0xf0 {
					time.Sleep(time.Duration(c&15) * 30 * time.Millisecond)
					continue
				}
				e := event.Output{Slice: int(c >> 1 & 1), Worker: int(c & 1), Data: fmt.Appendf(nil, "word %d\n", c>>4&3)}
				r.Emit(e)
				id := fmt.Sprintf("s%dw%d", e.Slice, e.Worker)
				want[id] = append(want[id], strings.TrimSpace(string(e.Data)))
			}
			r.Close()
			got := map[string][]string{}
			for line := range strings.Lines(w.String()) {
				tag, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " │ ")
				for _, id := range expand(t, tag) {
					got[id] = append(got[id], text)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("workers' lines differ (-said +shown):\n%s", diff)
			}
		})
	})
}

func TestFoldInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := new(recorder)
		r := New(Options{Mode: Plain, Stream: All, Stdout: w, Stderr: io.Discard})
		for i := range 256 {
			r.Emit(out(i/64, i%64, "one\none\ntwo\n"))
		}
		r.Emit(out(3, 63, "mine\n"))
		time.Sleep(time.Second)
		r.Emit(out(0, 0, "one\n"))
		r.Close()
		want := "s[0-3]w[0-63] │ one\ns[0-3]w[0-63] │ one\ns[0-3]w[0-63] │ two\ns3w63 │ mine\ns0w0  │ one\n"
		if got := w.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// lines64 returns a chunk of 100-byte lines for each of 64 workers. All lines differ.
func lines64() [][]byte {
	chunks := make([][]byte, 64)
	for w := range chunks {
		for i := range 320 {
			line := fmt.Sprintf("completed step: %05d, seconds: 1.234, TFLOP/s/device: %02d.123, loss: 3.210 ", i, w)
			chunks[w] = append(chunks[w], line+strings.Repeat("x", 99-len(line))+"\n"...)
		}
	}
	return chunks
}

func benchmarkView(b *testing.B, o Options) {
	o.Stdout, o.Stderr = io.Discard, new(recorder)
	r := New(o)
	chunks := lines64()
	events := make([]event.Event, 64)
	for w := range events {
		events[w] = event.Output{Slice: w / 8, Worker: w % 8, Data: chunks[w]}
	}
	b.SetBytes(int64(len(chunks[0])))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r.Emit(events[i%64])
		i++
	}
	if err := r.Close(); err != nil {
		b.Fatal(err)
	}
	if s := o.Stderr.(*recorder).String(); s != "" {
		b.Logf("%s", s)
	}
}

// BenchmarkAll puts prefixes before the lines of 64 workers. It should reach 100 MB/s.
func BenchmarkAll(b *testing.B) { benchmarkView(b, Options{Mode: Plain, Stream: All}) }

// BenchmarkFirst searches the lines of 63 workers for errors.
func BenchmarkFirst(b *testing.B) { benchmarkView(b, Options{Mode: Plain, Stream: First}) }

func BenchmarkJSON(b *testing.B) { benchmarkView(b, Options{Mode: JSON, Stream: All}) }

func TestAllocations(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("the race detector allocates")
	}
	chunks := lines64()
	for _, o := range []Options{{Mode: Plain, Stream: All}, {Mode: Plain, Stream: First}, {Mode: JSON, Stream: All}} {
		o.Stdout, o.Stderr = io.Discard, io.Discard
		r := New(o)
		events := make([]event.Event, 64)
		for w := range events {
			events[w] = event.Output{Slice: w / 8, Worker: w % 8, Data: chunks[w]}
		}
		i := 0
		emit := func() { r.Emit(events[i%64]); i++ }
		for range 256 { // grow every buffer first
			emit()
		}
		lines := bytes.Count(chunks[0], []byte("\n"))
		per := testing.AllocsPerRun(500, emit) / float64(lines)
		r.Close()
		if per > 0.02 {
			t.Errorf("%s, %s: %.3f allocations a line", o.Mode, o.Stream, per)
		}
	}
}
