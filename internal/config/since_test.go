package config

import (
	"testing"
	"time"
)

func TestParseSince(t *testing.T) {
	zone := time.FixedZone("there", 2*60*60)
	now := time.Date(2026, 3, 4, 10, 30, 0, 0, zone)
	at := func(day, hour, minute, second int) time.Time {
		return time.Date(2026, 3, day, hour, minute, second, 0, zone)
	}
	for text, want := range map[string]time.Time{
		"10m":                       at(4, 10, 20, 0),
		"1h30m":                     at(4, 9, 0, 0),
		"0s":                        now,
		"09:15":                     at(4, 9, 15, 0),
		"09:15:07":                  at(4, 9, 15, 7),
		"22:15":                     at(3, 22, 15, 0), // yesterday's
		"2026-03-01":                at(1, 0, 0, 0),
		"2026-03-01 08:00":          at(1, 8, 0, 0),
		"2026-03-01T08:00":          at(1, 8, 0, 0),
		"2026-03-01T08:00:05":       at(1, 8, 0, 5),
		"2026-03-01 08:00:05":       at(1, 8, 0, 5),
		"2026-03-01T06:00:05Z":      at(1, 8, 0, 5),
		"2026-03-01T08:00:05+02:00": at(1, 8, 0, 5),
		"2026-03-04T10:29:59.5Z":    time.Date(2026, 3, 4, 12, 29, 59, 5e8, zone),
	} {
		if got, err := ParseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"yesterday", "10", "-5m", "25:00", "2026-13-01", " "} {
		if got, err := ParseSince(text, now); err == nil {
			t.Errorf("%q is taken as %v", text, got)
		}
	}
}
