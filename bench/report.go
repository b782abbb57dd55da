package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// A report collects tables and bars, the limits of figures.
type report struct {
	text     strings.Builder
	bars     []bar
	failures []string // sections that failed
	times    []string // how long each section took
}

// A bar is a limit that a figure must keep.
type bar struct {
	what  string
	got   float64
	limit float64
	least bool // a minimum, not a maximum
	unit  string
}

func (b bar) kept() bool {
	if b.least {
		return b.got >= b.limit
	}
	return b.got <= b.limit
}

func (b bar) figure() string { return strings.TrimSpace(fmt.Sprintf("%.3g %s", b.got, b.unit)) }

func (b bar) String() string {
	sign := "≤"
	if b.least {
		sign = "≥"
	}
	return fmt.Sprintf("%s: %s (bar: %s %g)", b.what, b.figure(), sign, b.limit)
}

func (r *report) section(title, text string) {
	fmt.Fprintf(&r.text, "\n## %s\n\n%s\n", title, strings.TrimSpace(text))
}

// table adds a table. The first row is its header.
func (r *report) table(rows [][]string) {
	r.text.WriteByte('\n')
	for i, row := range rows {
		fmt.Fprintf(&r.text, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			r.text.WriteString("|---" + strings.Repeat("|--:", len(row)-1) + "|\n")
		}
	}
}

// note adds a sentence.
func (r *report) note(text string) { fmt.Fprintf(&r.text, "\n%s\n", text) }

func (r *report) most(what string, got, limit float64, unit string) {
	r.bars = append(r.bars, bar{what: what, got: got, limit: limit, unit: unit})
}

func (r *report) least(what string, got, limit float64, unit string) {
	r.bars = append(r.bars, bar{what: what, got: got, limit: limit, unit: unit, least: true})
}

// broken records that a section failed before it could finish.
func (r *report) broken(section string, err error) {
	r.failures = append(r.failures, fmt.Sprintf("section %s: %v", section, err))
	r.note(fmt.Sprintf("**Not measured to the end**: %v", err))
}

func (r *report) took(section string, d time.Duration) {
	r.times = append(r.times, fmt.Sprintf("%s %.0f s", section, d.Seconds()))
	fmt.Fprintf(os.Stderr, "bench: section %s took %s\n", section, d.Round(time.Second))
}

// missed returns the bars that were not kept, and the sections that failed.
func (r *report) missed() (all []string) {
	all = append(all, r.failures...)
	for _, b := range r.bars {
		if !b.kept() {
			all = append(all, b.String())
		}
	}
	return all
}

func (r *report) write(path string, took time.Duration) error {
	var out strings.Builder
	fmt.Fprintf(&out, `# What multihost costs

Written by `+"`make bench`"+`; the figures are those of one run of %s on

> %s

The load server stands in for all workers. It is a process of its own with loopback addresses, and its CPU is counted
separately. "CPU" is what the kernel charges to a client and its child processes. "Peak" is the largest memory of one process.
Clients that are compared ran in turn, and the tables show the median of each. The speed of the machine drifts, so compare
figures within one table, not between tables.

## Bars

| what | measured | bar | |
|---|--:|--:|---|
`, took.Round(time.Second), machine())
	for _, b := range r.bars {
		sign, word := "≤", "kept"
		if b.least {
			sign = "≥"
		}
		if !b.kept() {
			word = "**missed**"
		}
		fmt.Fprintf(&out, "| %s | %s | %s %g | %s |\n", b.what, b.figure(), sign, b.limit, word)
	}
	fmt.Fprintf(&out, "\nIt took: %s.\n", strings.Join(r.times, ", "))
	out.WriteString(r.text.String())
	if path == "" {
		_, err := os.Stdout.WriteString(out.String())
		return err
	}
	return os.WriteFile(path, []byte(out.String()), 0o644)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()) }

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.0f", d.Seconds()*1000) }

func perWorker(d time.Duration, n int) string {
	return fmt.Sprintf("%.2f", d.Seconds()*1000/float64(n))
}

func mebibytes(n int64) string { return fmt.Sprintf("%.0f", float64(n)/(1<<20)) }

func rate(bytes int64, d time.Duration) float64 { return float64(bytes) / 1e6 / d.Seconds() }
