package qr

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	plainDurationRE = regexp.MustCompile(`^(?:[0-9]+(?:\.[0-9]+)?(?:w|d|h|m|s|ms))+$`)
	durationPartRE  = regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?)(ms|[wdhmsWDHMS])`)
	isoDurationRE   = regexp.MustCompile(`^P(?:[0-9]+W)?(?:[0-9]+D)?(?:T(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]+)?S)?)?$`)
)

// ParseDuration reads a duration as people and gcloud write it: "90m",
// "1h30m", "2d", "1w", "3600s", or ISO 8601 ("PT36H", "P7D"). A number without
// a unit is refused, since nobody can tell whether seconds or hours are meant.
func ParseDuration(s string) (time.Duration, error) {
	if !plainDurationRE.MatchString(s) && (!isoDurationRE.MatchString(s) || s == "P" || strings.HasSuffix(s, "T")) {
		return 0, fmt.Errorf("parse duration %q: write a number and a unit, such as 90m, 12h, 7d or 3600s", s)
	}
	var total time.Duration
	for _, part := range durationPartRE.FindAllStringSubmatch(s, -1) {
		n, err := strconv.ParseFloat(part[1], 64)
		d := n * float64(durationUnit(part[2]))
		if err != nil || d >= float64(1<<63-1)-float64(total) {
			return 0, fmt.Errorf("parse duration %q: too long", s)
		}
		total += time.Duration(d)
	}
	return total, nil
}

func durationUnit(unit string) time.Duration {
	switch strings.ToLower(unit) {
	case "w":
		return 7 * 24 * time.Hour
	case "d":
		return 24 * time.Hour
	case "h":
		return time.Hour
	case "m":
		return time.Minute
	case "ms":
		return time.Millisecond
	}
	return time.Second
}
