package report

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"multihost/internal/metrics"
)

// A figure is a number of the metrics document as the page shows it.
type figure struct {
	At    string // JSON pointer into the document; without a leading slash, relative to the base of a row
	Value string // as in the document's JSON
	Text  string // rounded, with its unit; "" if unknown
}

// Known reports whether the figure has a value.
func (f figure) Known() bool { return f.Text != "" }

func number(at string, n metrics.Number, text func(float64) string) figure {
	if !n.Known() {
		return figure{At: at}
	}
	value, err := json.Marshal(n)
	if err != nil {
		return figure{At: at}
	}
	return figure{at, string(value), text(float64(n))}
}

func count(at string, n int64) figure {
	return figure{at, strconv.FormatInt(n, 10), grouped(n)}
}

// grouped formats a number with commas between groups of three digits.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	var parts []string
	for len(digits) > 3 {
		parts = append([]string{digits[len(digits)-3:]}, parts...)
		digits = digits[:len(digits)-3]
	}
	return sign + strings.Join(append([]string{digits}, parts...), ",")
}

func percent(v float64) string { return fmt.Sprintf("%.2f %%", 100*v) }
func ratio(v float64) string   { return fmt.Sprintf("× %.3f", v) }

// rate formats a figure of which four digits matter.
func rate(v float64) string {
	switch a := math.Abs(v); {
	case a >= 10000:
		return grouped(int64(math.Round(v)))
	case a >= 1000:
		tenths := int64(math.Round(10 * v))
		return grouped(tenths/10) + "." + strconv.FormatInt(max(tenths%10, -tenths%10), 10)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1 || a == 0:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// when formats a time for people, with its zone, because a report may be read elsewhere.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}
