package record

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/tpu"
)

// TestArrivals writes a log as a follower does, and asks when its bytes arrived.
func TestArrivals(t *testing.T) {
	dir, id := t.TempDir(), tpu.WorkerID{Slice: 1, Worker: 2}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	begin := now
	size := int64(0)
	writer := func() *ArrivalWriter {
		return &ArrivalWriter{Path: ArrivalsPath(dir, id), Now: func() time.Time { return now }}
	}
	w := writer()
	wrote := func(after time.Duration, bytes int) {
		now = now.Add(after)
		w.Mark(size)
		size += int64(bytes)
		if err := os.WriteFile(LogPath(dir, id), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	size = 100 // bytes that came before times were recorded
	wrote(0, 10)
	wrote(300*time.Millisecond, 10)  // offset 110, at 0.3 s
	wrote(time.Millisecond, 0)       // at once: no entry
	wrote(9999*time.Millisecond, 10) // offset 120, at 10.3 s
	if err := appendTo(ArrivalsPath(dir, id), []byte("12")); err != nil {
		t.Fatal(err)
	}
	w = writer()               // another command continues
	wrote(time.Minute, 10)     // offset 130, at 70.3 s
	wrote(-30*time.Second, 10) // offset 140; the clock was set back, so its time stays 70.3 s
	wrote(100*time.Second, 1)  // offset 150, at 140.3 s
	now = now.Add(time.Hour)
	a, err := ReadArrivals(dir, id, 0, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if a.Known != 151 || a.Unknown() != 100 {
		t.Errorf("known %d, unknown %d", a.Known, a.Unknown())
	}
	at := func(s float64) time.Time { return begin.Add(time.Duration(s * float64(time.Second))) }
	for offset, want := range map[int64]time.Time{
		0: begin, 99: begin, 100: begin, 109: begin, 110: at(0.3), 119: at(0.3), 120: at(10.3), 129: at(10.3), 130: at(70.3), 139: at(70.3), 140: at(70.3), 150: at(140.3), 151: now, 9999: now,
	} {
		if got := a.At(offset, now); !got.Equal(want) {
			t.Errorf("byte %d came at %v, want %v", offset, got.Sub(begin), want.Sub(begin))
		}
	}
	for since, want := range map[float64]int64{-5: 0, 0.5: 0, 1: 110, 1.1: 110, 1.4: 120, 11.2: 120, 11.4: 130, 71.4: 150, 141.2: 150, 141.4: 151, 9999: 151} {
		if got := a.Since(at(since)); got != want {
			t.Errorf("since %v s: %d, want %d", since, got, want)
		}
	}
	entries, err := os.ReadFile(ArrivalsPath(dir, id))
	if err != nil || strings.Count(string(entries), "\n") != 8 {
		t.Errorf("the index has other lines than expected: %q, %v", entries, err)
	}
}

// TestArrivalsOfSteadyOutput: an index grows by one entry a second at most, however fast
// the output is.
func TestArrivalsOfSteadyOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	now := time.Now()
	w := &ArrivalWriter{Path: path, Now: func() time.Time { return now }}
	for n := range 20_000 { // 200 s
		w.Mark(int64(n))
		now = now.Add(10 * time.Millisecond)
	}
	data, err := os.ReadFile(path)
	if n := strings.Count(string(data), "\n"); err != nil || n < 250 || n > 200+arrivalBurst+2 {
		t.Errorf("%d entries in 200 s, %v", n, err)
	}
	last := newArrivals(0, time.Time{})
	last.Known = 20_000
	if err := last.parse(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{19_999, 12_345, 10, 1} {
		if late := now.Add(-time.Duration(20_000-n) * 10 * time.Millisecond).Sub(last.At(n, now)); late < -time.Millisecond || late > arrivalEvery+10*time.Millisecond {
			t.Errorf("byte %d came %v after what the index tells", n, late)
		}
	}
}

// TestArrivalsWithoutIndex: a log of a version that recorded no times has only the time of
// its last byte. A broken index does no harm.
func TestArrivalsWithoutIndex(t *testing.T) {
	dir, id, now := t.TempDir(), tpu.WorkerID{}, time.Now()
	if a, err := ReadArrivals(dir, id, 0, time.Time{}); err != nil || a.Known != 0 || !a.At(7, now).Equal(now) || a.Since(now) != 0 {
		t.Errorf("no log: %+v, %v", a, err)
	}
	if err := os.WriteFile(LogPath(dir, id), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	last := now.Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(LogPath(dir, id), last, last); err != nil {
		t.Fatal(err)
	}
	for _, index := range []string{"", "\n12 7\nx y\n@\n@1\n5 5\n", "@\x00 5\n7 7"} {
		if index != "" {
			if err := os.WriteFile(ArrivalsPath(dir, id), []byte(index), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a, err := ReadArrivals(dir, id, 0, time.Time{})
		if err != nil || a.Known != 10 || a.Unknown() != 10 || !a.At(3, now).Equal(last) || !a.At(10, now).Equal(now) {
			t.Errorf("index %q: %+v, %v", index, a, err)
		}
		if before, after := a.Since(last.Add(-time.Second)), a.Since(last.Add(time.Second)); before != 0 || after != 10 {
			t.Errorf("index %q: since tells %d and %d", index, before, after)
		}
	}
	again := &ArrivalWriter{Path: ArrivalsPath(dir, id), Now: time.Now}
	again.Mark(0) // this begins a new log
	if a, err := ReadArrivals(dir, id, 0, time.Time{}); err != nil || len(a.entries) != 1 || a.Unknown() != 0 {
		t.Errorf("a new log has the times of an old one: %+v, %v", a, err)
	}
	w := &ArrivalWriter{Path: filepath.Join(dir, "no", "directory"), Now: time.Now}
	w.Mark(0) // reports no error, but the index ends
	if !w.failed {
		t.Error("an index that cannot be written goes on")
	}
}

// TestLogNames: no run ships the files that commands write into a directory of logs.
func TestLogNames(t *testing.T) {
	id := tpu.WorkerID{Slice: 12345, Worker: 2}
	for _, at := range []string{LogPath("d", id), ArrivalsPath("d", id), "d/stacks-20260102T030405Z"} {
		if !slices.ContainsFunc(LogNames, func(pattern string) bool {
			ok, err := filepath.Match(pattern, filepath.Base(at))
			return ok && err == nil
		}) {
			t.Errorf("no pattern of %q is for %s", LogNames, at)
		}
	}
}

// TestArrivalsOfWhatIsShown: for the end of a long log, few entries are kept. They must
// give the same times as all entries.
func TestArrivalsOfWhatIsShown(t *testing.T) {
	begin := time.UnixMilli(1_700_000_000_000)
	var index bytes.Buffer
	fmt.Fprintf(&index, "@%d 10\n", begin.UnixMilli())
	for n := range 9999 {
		fmt.Fprintf(&index, "%d 10\n", 1000+n%7)
	}
	read := func(from int64, since time.Time) *Arrivals {
		a := newArrivals(from, since)
		a.Known = 100_010
		if err := a.parse(bytes.NewReader(index.Bytes())); err != nil {
			t.Fatal(err)
		}
		return a
	}
	all, now := read(0, time.Time{}), begin.Add(24*time.Hour)
	for _, from := range []int64{0, 5, 10, 50_000, 50_009, 99_995, 200_000} {
		a := read(from, time.Time{})
		if most := int(max(1, 10_001-from/10)); len(a.entries) > most {
			t.Errorf("from %d on: %d entries", from, len(a.entries))
		}
		for offset := from; offset < from+300; offset += 3 {
			if got, want := a.At(offset, now), all.At(offset, now); !got.Equal(want) {
				t.Fatalf("from %d on: byte %d came at %v, want %v", from, offset, got, want)
			}
		}
		if a.Unknown() != all.Unknown() {
			t.Errorf("from %d on: %d unknown", from, a.Unknown())
		}
	}
	for _, after := range []time.Duration{-time.Hour, 0, time.Second, time.Hour, 10_000 * time.Second, 48 * time.Hour} {
		since := begin.Add(after)
		a := read(0, since)
		got, want := a.Since(since), all.Since(since)
		if most := 10_003 - max(0, int(after/(1010*time.Millisecond))); got != want || len(a.entries) > max(1, most) {
			t.Errorf("since %v: from %d on, want %d, with %d entries", after, got, want, len(a.entries))
		}
		for offset := got; offset < got+300; offset++ {
			if got, want := a.At(offset, now), all.At(offset, now); !got.Equal(want) {
				t.Fatalf("since %v: byte %d came at %v, want %v", after, offset, got, want)
			}
		}
		// If the last lines are requested, too, the later of the two beginnings counts.
		if both := max(read(60_000, since).Since(since), 60_000); both != max(want, 60_000) {
			t.Errorf("since %v, the last lines: from %d on, want %d", after, both, max(want, 60_000))
		}
	}
}
