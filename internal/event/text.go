package event

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Notef emits a Note with a formatted text. hint may be empty.
func Notef(sink Sink, level Level, hint, format string, args ...any) {
	sink.Emit(Note{Level: level, Text: fmt.Sprintf(format, args...), Hint: hint})
}

// Duration writes a duration with the digits that matter to people: 12 ms, 0.4 s, 12 s,
// 3m20s, 2h05m, 3d07h.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-max(d, -math.MaxInt64)) // the smallest Duration cannot be negated
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return "<1 ms"
	case d < 99500*time.Microsecond:
		return strconv.FormatInt(d.Round(time.Millisecond).Milliseconds(), 10) + " ms"
	case d < 9950*time.Millisecond:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	}
	return coarse(d)
}

// Age writes how long something has lasted, or how long ago it was. Unlike Duration, it
// writes whole seconds, rounded down, so that the text changes at most once a second. If
// another clock puts the time in the future, the age is 0.
func Age(d time.Duration) string {
	return coarse(max(d, 0).Truncate(time.Second))
}

func coarse(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 59500*time.Millisecond:
		return strconv.FormatInt(int64(d.Round(time.Second)/time.Second), 10) + " s"
	case d < time.Hour-500*time.Millisecond:
		s := int64(d.Round(time.Second) / time.Second)
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case d < 2*day-30*time.Second:
		m := int64(d.Round(time.Minute) / time.Minute)
		return fmt.Sprintf("%dh%02dm", m/60, m%60)
	}
	h := int64(d.Round(time.Hour) / time.Hour)
	return fmt.Sprintf("%dd%02dh", h/24, h%24)
}

// Bytes writes a number of bytes in decimal units, like network rates: 12 B, 4.0 kB, 1.2
// GB.
func Bytes(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1000, 0
	for value >= 999.95 {
		value /= 1000
		unit++
	}
	return fmt.Sprintf("%.1f %cB", value, "kMGTPE"[unit])
}

// Dollars writes an amount of US dollars with few digits, because the amounts are
// estimates: $0.24, $38.40, $1240.
func Dollars(usd float64) string {
	if usd >= 1000 {
		return fmt.Sprintf("$%.0f", usd)
	}
	return fmt.Sprintf("$%.2f", usd)
}

// Count writes a number with its noun: 1 file, 2 files, 3 processes.
func Count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// StepTime writes the duration of a training step: 85.2 ms, 1.234 s, 120 s.
func StepTime(seconds float64) string {
	switch {
	case seconds < 0.0995:
		return fmt.Sprintf("%.1f ms", seconds*1000)
	case seconds < 99.95:
		return fmt.Sprintf("%.3f s", seconds)
	}
	return fmt.Sprintf("%.0f s", seconds)
}

// String writes the step for a status line.
func (t Training) String() string {
	text := fmt.Sprintf("step %d", t.Step)
	if t.StepSeconds > 0 {
		text += ", " + StepTime(t.StepSeconds)
	}
	if t.TFLOPs > 0 {
		text += fmt.Sprintf(", %.1f TFLOP/s/device", t.TFLOPs)
	}
	if t.MFU > 0 {
		text += fmt.Sprintf(", MFU %.1f %%", 100*t.MFU)
	}
	if t.Tokens > 0 {
		text += fmt.Sprintf(", %.0f tokens/s/device", t.Tokens)
	}
	if t.Loss != "" {
		text += ", loss " + t.Loss
	}
	return text
}

// Reason says why the attempt ended: "preempted: slice t-1 is PREEMPTED".
func (e AttemptEnd) Reason() string {
	if e.Why == "" {
		return e.Cause
	}
	return e.Cause + ": " + e.Why
}
