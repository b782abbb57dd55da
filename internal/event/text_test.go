package event_test

import (
	"math"
	"testing"
	"time"

	"multihost/internal/event"
)

func TestDuration(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0 s"},
		{300 * time.Microsecond, "<1 ms"},
		{12 * time.Millisecond, "12 ms"},
		{99600 * time.Microsecond, "0.1 s"},
		{400 * time.Millisecond, "0.4 s"},
		{3 * time.Second, "3.0 s"},
		{9949 * time.Millisecond, "9.9 s"},
		{9960 * time.Millisecond, "10 s"},
		{12 * time.Second, "12 s"},
		{59600 * time.Millisecond, "1m00s"},
		{200 * time.Second, "3m20s"},
		{time.Hour - 400*time.Millisecond, "1h00m"},
		{125 * time.Minute, "2h05m"},
		{47*time.Hour + 59*time.Minute, "47h59m"},
		{48*time.Hour - 20*time.Second, "2d00h"},
		{79 * time.Hour, "3d07h"},
		{1000 * time.Hour, "41d16h"},
		{-12 * time.Second, "-12 s"},
		{math.MinInt64, "-106751d23h"},
	} {
		if got := event.Duration(tc.d); got != tc.want {
			t.Errorf("Duration(%v) = %q, want %q", tc.d, got, tc.want)
		}
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		d    time.Duration
		want string
	}{
		{-time.Hour, "0 s"},
		{0, "0 s"},
		{999 * time.Millisecond, "0 s"},
		{3400 * time.Millisecond, "3 s"},
		{59999 * time.Millisecond, "59 s"},
		{time.Minute, "1m00s"},
		{time.Hour - time.Millisecond, "59m59s"},
		{3*time.Hour + 12*time.Minute, "3h12m"},
		{79 * time.Hour, "3d07h"},
	} {
		if got := event.Age(tc.d); got != tc.want {
			t.Errorf("Age(%v) = %q, want %q", tc.d, got, tc.want)
		}
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 1234: "1.2 kB", 999_949: "999.9 kB", 999_950: "1.0 MB",
		104_857_600: "104.9 MB", 20e9: "20.0 GB", 3e12: "3.0 TB", math.MaxInt64: "9.2 EB",
	} {
		if got := event.Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		n    int
		noun string
		want string
	}{
		{0, "file", "0 files"}, {1, "file", "1 file"}, {2, "file", "2 files"},
		{1, "stale process", "1 stale process"}, {3, "stale process", "3 stale processes"},
	} {
		if got := event.Count(tc.n, tc.noun); got != tc.want {
			t.Errorf("Count(%d, %q) = %q, want %q", tc.n, tc.noun, got, tc.want)
		}
	}
}

func TestNotef(t *testing.T) {
	t.Parallel()
	var got []event.Event
	sink := event.SinkFunc(func(e event.Event) { got = append(got, e) })
	event.Notef(sink, event.Warn, "multihost runs", "%d of %q", 2, "a")
	want := event.Note{Level: event.Warn, Text: `2 of "a"`, Hint: "multihost runs"}
	if len(got) != 1 || got[0] != want {
		t.Errorf("emitted %+v, want %+v", got, want)
	}
}
