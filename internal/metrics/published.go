package metrics

import (
	_ "embed" // the table
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"multihost/internal/fault"
	"multihost/internal/tpu"
)

//go:embed published.txt
var publishedTable string

// published is one line of the table.
type published struct {
	preset, model, source string
	kind                  string // accelerator type of one slice
	slices                int
	tflops, mfu           float64 // mfu as a fraction
}

var publishedFigures = sync.OnceValue(func() []published {
	var all []published
	source := ""
	for _, line := range strings.Split(publishedTable, "\n") {
		if rest, ok := strings.CutPrefix(line, "source "); ok {
			source = rest
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		number := func(i int) float64 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil { // the table is part of the program
				panic(fmt.Sprintf("published.txt: %q: %v", line, err))
			}
			return v
		}
		all = append(all, published{preset: f[0], model: f[1], kind: f[2], slices: int(number(3)), tflops: number(4), mfu: number(5) / 100, source: source})
	}
	return all
})

// Published returns the names that SetComparison knows, in the order of the table.
func Published() []string {
	var names []string
	for _, p := range publishedFigures() {
		if !slices.Contains(names, p.preset) {
			names = append(names, p.preset)
		}
	}
	return names
}

// An UnpublishedError says that nothing was published under a name.
type UnpublishedError struct{ Preset string }

func (e *UnpublishedError) Error() string {
	return fmt.Sprintf("compare with %q: no figures of that name were published", e.Preset)
}

// Fault returns fault.Usage.
func (e *UnpublishedError) Fault() fault.Kind { return fault.Usage }

// Hint lists the names that exist.
func (e *UnpublishedError) Hint() string { return "there are " + strings.Join(Published(), ", ") }

// CheckPublished returns an *UnpublishedError for a name that SetComparison does not
// know. Case does not matter.
func CheckPublished(preset string) error {
	if !slices.Contains(Published(), strings.ToLower(preset)) {
		return &UnpublishedError{preset}
	}
	return nil
}

// SetComparison compares the newest attempt of d with what was published for preset. Of
// several slice sizes in the table, it takes that of the run, or else the first. Note names
// what else differs. The error is an *UnpublishedError.
func (d *Document) SetComparison(preset string) error {
	if err := CheckPublished(preset); err != nil {
		return err
	}
	name := strings.ToLower(preset)
	rows := slices.Clone(publishedFigures())
	rows = slices.DeleteFunc(rows, func(p published) bool { return p.preset != name })
	kind := rows[0].kind
	if slices.ContainsFunc(rows, func(p published) bool { return p.kind == d.AcceleratorType }) {
		kind = d.AcceleratorType
	}
	rows = slices.DeleteFunc(rows, func(p published) bool { return p.kind != kind })

	c := &Comparison{Preset: name, Model: rows[0].model, Type: kind, Source: rows[0].source, TFLOPs: Unknown, MFU: Unknown, Ratio: Unknown}
	run := Unknown
	if a := d.Newest(); a != nil {
		c.Slices, run = len(a.Slices), a.Median.TFLOPs
	}
	if t, err := tpu.ParseType(kind); err == nil && d.Generation != "" && d.Generation != t.Generation.Name {
		run = Unknown
	}
	single := Number(rows[0].tflops) // one slice comes first in the table
	for _, p := range rows {
		row := PublishedRow{
			Slices: p.slices, TFLOPs: Number(p.tflops), MFU: Number(p.mfu),
			Efficiency: Number(p.tflops) / single, Ratio: run / Number(p.tflops), Here: p.slices == c.Slices,
		}
		if row.Here {
			c.TFLOPs, c.MFU, c.Ratio = row.TFLOPs, row.MFU, row.Ratio
		}
		c.Rows = append(c.Rows, row)
	}
	c.RunEfficiency = run / single
	c.Note = c.note(d)
	d.Compare = c
	return nil
}

func (c *Comparison) note(d *Document) string {
	var notes []string
	published, err := tpu.ParseType(c.Type)
	switch {
	case d.AcceleratorType == "":
		notes = append(notes, "the accelerator type of the run is not known; the figures are for "+c.Type)
	case err == nil && published.Generation.Name != d.Generation:
		notes = append(notes, fmt.Sprintf("the run is on %s, the figures are for %s: TFLOP/s do not compare", d.Generation, published.Generation.Name))
	case d.AcceleratorType != c.Type:
		notes = append(notes, fmt.Sprintf("the run's slices are %s, the figures are for %s", d.AcceleratorType, c.Type))
	}
	if c.Slices > 0 && !c.TFLOPs.Known() {
		var counts []string
		for _, r := range c.Rows {
			counts = append(counts, strconv.Itoa(r.Slices))
		}
		notes = append(notes, fmt.Sprintf("nothing was published for %d slices, only for %s", c.Slices, strings.Join(counts, ", ")))
	}
	return strings.Join(notes, "; ")
}
