package metrics

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"multihost/internal/event"
)

// mostNamed limits the stragglers in a text. The document has all of them.
const mostNamed = 8

// mostListed limits the workers in a table, unless all are wanted.
const mostListed = 16

func percent(n Number, digits int) string {
	if !n.Known() {
		return "-"
	}
	return strconv.FormatFloat(100*float64(n), 'f', digits, 64) + " %"
}

func fixed(n Number, digits int) string {
	if !n.Known() {
		return "-"
	}
	return strconv.FormatFloat(float64(n), 'f', digits, 64)
}

func (s Sample) lossText() string {
	if s.LossText != "" {
		return s.LossText
	}
	if !s.Loss.Known() {
		return "-"
	}
	return strconv.FormatFloat(float64(s.Loss), 'g', 5, 64)
}

// Summary returns the training in one line, or "" if there was none.
func (a *Attempt) Summary() string {
	if a.Steps == 0 {
		return ""
	}
	text := fmt.Sprintf("steps %d to %d", a.FirstStep, a.Last.Step)
	if m := a.Median; m.StepSeconds.Known() {
		text += ", median " + seconds(m.StepSeconds)
		if m.TFLOPs > 0 {
			text += ", " + fixed(m.TFLOPs, 1) + " TFLOP/s/device"
		}
		if m.MFU > 0 {
			text += ", MFU " + percent(m.MFU, 1)
		}
		if m.Tokens.Known() {
			text += ", " + fixed(m.Tokens, 0) + " tokens/s/device"
		}
	}
	if loss := a.Last.lossText(); loss != "-" {
		text += ", last loss " + loss
	}
	return text
}

// Warnings returns the problems, one line each: a loss that is not a number, stalls,
// stragglers, and returns to an earlier step.
func (a *Attempt) Warnings() []string {
	var lines []string
	if b := a.BadLoss; b != nil {
		lines = append(lines, fmt.Sprintf("the loss is %s since step %d (%s)", b.Text, b.Step, b.Worker))
	}
	for _, s := range a.Stalls {
		lines = append(lines, s.Text)
	}
	for i, s := range a.Stragglers {
		if i == mostNamed {
			lines = append(lines, fmt.Sprintf("… and %d more", len(a.Stragglers)-i))
			break
		}
		lines = append(lines, s.Text)
	}
	if a.Restarts > 0 {
		lines = append(lines, event.Count(a.Restarts, "return")+" to an earlier step")
	}
	return lines
}

// Text returns the document for people: the newest attempt by slice, and by worker if there
// are few workers or all is set.
func (d *Document) Text(all bool) string {
	var b strings.Builder
	a := d.Newest()
	if a == nil || a.Steps == 0 {
		fmt.Fprintf(&b, "run %s: no training steps in its logs\n", d.Run)
		return b.String()
	}
	workers := 0
	for i := range a.Slices {
		workers += len(a.Slices[i].Workers)
	}
	state := "running, or not followed to its end"
	if a.ExitCode != nil {
		state = fmt.Sprintf("ended with %d", *a.ExitCode)
	} else if a.Ended {
		state = "ended"
	}
	fmt.Fprintf(&b, "run %s, attempt %d: %s, %s", d.Run, a.Number, event.Count(len(a.Slices), "slice"), event.Count(workers, "worker"))
	if d.AcceleratorType != "" {
		fmt.Fprintf(&b, " of %s", d.AcceleratorType)
	}
	fmt.Fprintf(&b, ", %s\n", state)
	for i := range d.Attempts[:len(d.Attempts)-1] {
		if p := &d.Attempts[i]; p.Steps > 0 {
			fmt.Fprintf(&b, "attempt %d: %s\n", p.Number, p.Summary())
		}
	}

	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\tLAST STEP\tSTEP TIME\tTFLOP/s/DEVICE\tMFU\tTOKENS/s/DEVICE\tLOSS")
	row := func(name string, f *Figures) {
		if f.Steps == 0 {
			fmt.Fprintf(w, "%s\t-\t-\t-\t-\t-\t-\n", name)
			return
		}
		m := &f.Median
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", name, f.Last.Step, seconds(m.StepSeconds), fixed(m.TFLOPs, 1), percent(m.MFU, 2), fixed(m.Tokens, 0), f.Last.lossText())
	}
	row("run", &a.Figures)
	for i := range a.Slices {
		s := &a.Slices[i]
		name := fmt.Sprintf("slice %d", s.Number)
		if s.Name != "" {
			name += " " + s.Name
		}
		row(name, &s.Figures)
		if all || workers <= mostListed {
			for j := range s.Workers {
				row("  "+s.Workers[j].Name, &s.Workers[j].Figures)
			}
		}
	}
	w.Flush()
	fmt.Fprintf(&b, "medians, without the first %s of each worker; a device is what JAX calls one", event.Count(a.Skipped, "step"))
	if d.PeakTFLOPs.Known() {
		fmt.Fprintf(&b, "; MFU of %s TFLOP/s", strconv.FormatFloat(float64(d.PeakTFLOPs), 'f', -1, 64))
	}
	b.WriteString("\n")
	for _, line := range a.Warnings() {
		fmt.Fprintf(&b, "warning: %s\n", line)
	}
	if d.Compare != nil {
		d.Compare.text(&b)
	}
	return b.String()
}

func (c *Comparison) text(b *strings.Builder) {
	fmt.Fprintf(b, "\npublished for %s, %s on slices of %s (%s):\n", c.Preset, c.Model, c.Type, c.Source)
	w := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "SLICES\tTFLOP/s/DEVICE\tMFU\tEFFICIENCY\tTHIS RUN")
	for _, r := range c.Rows {
		here := "-"
		if r.Here {
			here = fixed(r.Ratio, 3) + " of it, efficiency " + percent(c.RunEfficiency, 1)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", r.Slices, fixed(r.TFLOPs, 0), percent(r.MFU, 2), percent(r.Efficiency, 1), here)
	}
	w.Flush()
	if c.Note != "" {
		fmt.Fprintf(b, "warning: %s\n", c.Note)
	}
}

// CSV writes the series of every attempt, one row for each point: those of the run and of
// its slices, and for the newest attempt also those of its workers. An unknown figure is
// empty.
func (d *Document) CSV(out io.Writer) error {
	w := csv.NewWriter(out)
	_ = w.Write([]string{"attempt", "of", "name", "step", "steps_per_point", "lines", "step_seconds", "step_seconds_min", "step_seconds_max",
		"tflops_per_device", "mfu", "tokens_per_second_per_device", "loss", "bad_loss"}) // w.Error returns its error
	for i := range d.Attempts {
		a := &d.Attempts[i]
		a.Series.csv(w, a.Number, "run", d.Run)
		for j := range a.Slices {
			s := &a.Slices[j]
			s.Series.csv(w, a.Number, "slice", strconv.Itoa(s.Number))
			for k := range s.Workers {
				s.Workers[k].Series.csv(w, a.Number, "worker", s.Workers[k].Name)
			}
		}
	}
	w.Flush()
	return w.Error()
}

func (s *Series) csv(w *csv.Writer, attempt int, of, name string) {
	if s == nil {
		return
	}
	cell := func(n Number) string {
		if !n.Known() {
			return ""
		}
		text, _ := n.MarshalJSON() // never fails
		return string(text)
	}
	for i := range s.Step {
		_ = w.Write([]string{strconv.Itoa(attempt), of, name, strconv.FormatInt(s.Step[i], 10), strconv.FormatInt(s.StepsPerPoint, 10),
			strconv.FormatInt(s.Lines[i], 10), cell(s.StepSeconds[i]), cell(s.Min[i]), cell(s.Max[i]), cell(s.TFLOPs[i]), cell(s.MFU[i]),
			cell(s.Tokens[i]), cell(s.Loss[i]), strconv.FormatInt(s.BadLoss[i], 10)}) // w.Error returns its error
	}
}
