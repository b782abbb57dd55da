package gcloud

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A span is a duration in gcloud's syntax. Its years, months and whole days follow the calendar
// when it is added to a time.
type span struct {
	negative      bool
	years, months int
	days          float64
	clock         time.Duration // hours and less
}

const (
	day     = 24 * time.Hour
	year    = 365.2422 // days, as gcloud counts them
	maxSpan = math.MaxInt64
)

// ParseDuration parses a duration in a common form or gcloud's: "90m", "1h30m", "2d", "1w",
// "3600s", or ISO 8601 ("PT36H", "P7D"). A number without a unit is an error, because it could
// mean seconds or hours.
func ParseDuration(s string) (time.Duration, error) {
	p, err := parseSpan(s)
	if err == nil && p.negative {
		err = fmt.Errorf("parse duration %q: it is negative", s)
	}
	if err != nil {
		return 0, err
	}
	return time.Duration(math.Round(p.inDays()*day.Seconds()))*time.Second + p.clock, nil
}

// inDays returns the years, months and days of the span in days.
func (p span) inDays() float64 { return (float64(p.years)+float64(p.months)/12)*year + p.days }

var (
	spanRE     = regexp.MustCompile(`^[+-]?(?:P0|P?T?(?:[0-9]+(?:[.,][0-9]+)?(?:MS|US|NS|[YMWDHS])T?)+)$`)
	spanPartRE = regexp.MustCompile(`([0-9]+(?:[.,][0-9]+)?)(MS|US|NS|[YMWDHS])|T`)
)

// parseSpan parses [+-][P][nY][nM][nW][nD][T][nH][nM][nS], in any case and order. M means
// months if P comes before it and neither T, hours nor seconds do. Otherwise M means minutes.
func parseSpan(s string) (p span, err error) {
	upper := strings.ToUpper(s)
	if !spanRE.MatchString(upper) || strings.Count(upper, "T") > 1 || strings.HasSuffix(upper, "T") {
		return p, fmt.Errorf("parse duration %q: write a number and a unit, such as 90m, 12h, 7d or 3600s", s)
	}
	p.negative = strings.HasPrefix(upper, "-")
	inDay := !strings.Contains(upper, "P")
	years, months := 0.0, 0.0
	for _, part := range spanPartRE.FindAllStringSubmatch(upper, -1) {
		n, _ := strconv.ParseFloat(strings.Replace(part[1], ",", ".", 1), 64) // for T there is no number, and n is 0
		unit := part[2]
		if unit == "M" && !inDay {
			unit = "months"
		}
		inDay = inDay || !slices.Contains([]string{"Y", "months", "W", "D"}, unit)
		switch unit {
		case "Y":
			years += n
		case "months":
			months += n
		case "W":
			p.days += 7 * n
		case "D":
			p.days += n
		default:
			d := n * float64(clockUnits[unit])
			if d >= maxSpan-float64(p.clock) {
				return p, tooLong(s)
			}
			p.clock += time.Duration(d)
		}
	}
	if (years*year+months*year/12+p.days)*float64(day) >= maxSpan-float64(p.clock) {
		return p, tooLong(s)
	}
	whole, part := math.Modf(years)
	p.years, p.days = int(whole), p.days+part*year
	whole, part = math.Modf(months)
	p.months, p.days = int(whole), p.days+math.Trunc(part*year/12)
	return p, nil
}

func tooLong(s string) error { return fmt.Errorf("parse duration %q: too long", s) }

var clockUnits = map[string]time.Duration{
	"H": time.Hour, "M": time.Minute, "S": time.Second, "MS": time.Millisecond, "US": time.Microsecond, "NS": time.Nanosecond,
}

// after returns t plus the span, in t's time zone.
func (p span) after(t time.Time) time.Time {
	sign := 1
	if p.negative {
		sign = -1
	}
	whole, part := math.Modf(p.days)
	t = t.AddDate(sign*p.years, sign*p.months, sign*int(whole))
	return t.Add(time.Duration(sign) * (p.clock + time.Duration(part*float64(day))))
}

// ParseTime parses a time like gcloud: a date with or without a time of day and a zone, a
// time of today, or a duration from now, for example "+1h" or "P1D". A time without a zone
// is in the time zone of now.
func ParseTime(s string, now time.Time) (time.Time, error) {
	text := strings.TrimSpace(s)
	if strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") || strings.HasPrefix(strings.ToUpper(text), "P") {
		p, err := parseSpan(text)
		if err != nil {
			return time.Time{}, fmt.Errorf("parse time %q: write a duration from now, such as +1h or P1D", s)
		}
		return p.after(now), nil
	}
	text = regexp.MustCompile(` ?(?:UTC|GMT)$`).ReplaceAllString(text, "Z")
	for _, date := range dateLayouts {
		for _, clock := range clockLayouts {
			for _, zone := range zoneLayouts {
				layout := date + clock + zone
				if clock == "" && zone != "" || layout == "" {
					continue
				}
				t, err := time.ParseInLocation(strings.TrimLeft(layout, "T "), text, now.Location())
				if err != nil {
					continue
				}
				if date == "" {
					y, m, d := now.In(t.Location()).Date()
					t = time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), t.Location())
				}
				return t, nil
			}
		}
	}
	switch p, err := parseSpan(text); {
	case err != nil:
	case p.inDays() > 0:
		return p.after(now), nil
	default: // for gcloud "1h" is one o'clock
		return time.Time{}, fmt.Errorf("parse time %q: write +%s for that long from now, or a time of the day such as 13:00", s, text)
	}
	return time.Time{}, fmt.Errorf("parse time %q: write a time such as 2026-01-31T12:00:00Z or a duration from now such as +1h", s)
}

// Parts of the layouts of ParseTime. time.Parse accepts fractions of a second although no
// layout has them.
var (
	dateLayouts  = []string{"2006-01-02", "20060102", "2006/01/02", "Jan 2 2006", "2 Jan 2006", "Mon Jan 2 2006", ""}
	clockLayouts = []string{"T15:04:05", "T15:04", " 15:04:05", " 15:04", "T150405", "T1504", "T15", " 3:04pm", " 3pm", ""}
	zoneLayouts  = []string{"Z07:00", "Z0700", "Z07", " Z07:00", " Z0700", ""}
)
