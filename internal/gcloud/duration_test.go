package gcloud

import (
	"strings"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{
		"90m": 90 * time.Minute, "1h30m": 90 * time.Minute, "2d": 48 * time.Hour, "1w": 168 * time.Hour,
		"1H": time.Hour, "1,5h": 90 * time.Minute, "30m1h": 90 * time.Minute, "P1M": 2629744 * time.Second, "P1MT1M": 2629804 * time.Second, "1y": 31556926 * time.Second, "P0": 0, "1d1m": 86460 * time.Second,
		"3600s": time.Hour, "1.5h": 90 * time.Minute, "PT36H": 36 * time.Hour, "P7D": 168 * time.Hour, "P1DT2H3M4.5S": 26*time.Hour + 3*time.Minute + 4500*time.Millisecond,
	} {
		if got, err := ParseDuration(in); got != want || err != nil {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "90", "h", "-1h", "1h 30m", "P", "PT", "T", "P1", "1hT", "TT1h", "9999999999w", "99999999999y", "999999999999h"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func TestParseTime(t *testing.T) {
	t.Parallel()
	berlin := time.FixedZone("CET", 3600)
	now := time.Date(2026, 1, 31, 13, 4, 5, 0, berlin)
	for in, want := range map[string]string{
		"2026-02-03T04:05:06Z":        "2026-02-03T04:05:06Z",
		"2026-02-03T04:05:06.5+02:00": "2026-02-03T04:05:06.5+02:00",
		"2026-02-03T04:05:06-0800":    "2026-02-03T04:05:06-08:00",
		"2026-02-03 04:05:06 UTC":     "2026-02-03T04:05:06Z",
		"2026-02-03 04:05":            "2026-02-03T04:05:00+01:00", // our time zone
		"2026-02-03T04":               "2026-02-03T04:00:00+01:00",
		"2026-02-03":                  "2026-02-03T00:00:00+01:00",
		"20260203T040506":             "2026-02-03T04:05:06+01:00",
		"2 Feb 2026 3pm":              "2026-02-02T15:00:00+01:00",
		"23:30":                       "2026-01-31T23:30:00+01:00",
		"+1h30m":                      "2026-01-31T14:34:05+01:00",
		"-1h":                         "2026-01-31T12:04:05+01:00",
		"P1D":                         "2026-02-01T13:04:05+01:00",
		"pt36h":                       "2026-02-02T01:04:05+01:00",
		"P1M":                         "2026-03-03T13:04:05+01:00", // there is no 31 February
		"1d":                          "2026-02-01T13:04:05+01:00",
		"1.5d":                        "2026-02-02T01:04:05+01:00",
	} {
		got, err := ParseTime(in, now)
		if text := got.Format(time.RFC3339Nano); err != nil || text != want {
			t.Errorf("ParseTime(%q) = %s, %v, want %s", in, text, err, want)
		}
	}
	for in, want := range map[string]string{
		"": "write a time", "tomorrow": "write a time", "2026-13-01": "write a time", "+1": "write a duration from now", "90": "write a time",
		"1h": "write +1h for that long from now", "2026-02-03T04:05:06 PST": "write a time",
	} {
		if got, err := ParseTime(in, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseTime(%q) = %s, %v, want an error with %q", in, got, err, want)
		}
	}
}
