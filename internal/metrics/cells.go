package metrics

import "strconv"

// Cells holds the figures of a worker as short texts for a table; "-" means unknown.
type Cells struct{ Step, StepTime, MFU, Loss string }

// Cells returns the last step and loss, and the medians of step time and MFU.
func (f *Figures) Cells() Cells {
	if f.Steps == 0 {
		return Cells{"-", "-", "-", "-"}
	}
	c := Cells{strconv.FormatInt(f.Last.Step, 10), seconds(f.Median.StepSeconds), "-", "-"}
	if f.Median.MFU.Known() {
		c.MFU = strconv.FormatFloat(100*float64(f.Median.MFU), 'f', 2, 64) + " %"
	}
	switch {
	case f.Last.LossText != "":
		c.Loss = f.Last.LossText
	case f.Last.Loss.Known():
		c.Loss = strconv.FormatFloat(float64(f.Last.Loss), 'g', 5, 64)
	}
	return c
}
