package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/event"
	"multihost/internal/metrics"
)

const (
	maxLines   = 64 // limit of slices with a line of their own
	maxColumns = 8  // limit of slices in the table behind the chart
)

// A chart shows one figure over steps: a line for the run, and thin lines for its slices.
// Paths are in a box of 1000 × 1000, stretched over the plot.
type chart struct {
	ID, Title string
	Label     string // for readers who cannot see the chart
	X, Y      []tick
	Band      string // area from the lowest to the highest single step
	Thin      []string
	Earlier   []string // earlier attempts
	Main      string
	Dots      []dot // for series of one point, which cannot be a line
	Published *published
	Beyond    *beyond
	Zero      string // the sentence in place of a plot whose values are all 0
	Notes     []string
}

// A beyond is a value of the first steps that is outside the axis.
type beyond struct{ X, Y, Down, Text string }

type tick struct{ At, Text string }

type dot struct{ X, Y string }

type published struct {
	At     string
	Name   string
	Figure figure
}

// chartData lets the script read the points of a chart.
type chartData struct {
	ID    string     `json:"id"`
	Unit  string     `json:"unit"`
	Range [4]float64 `json:"range"` // x from, x to, y from, y to
	Log   bool       `json:"log,omitempty"`
	Lines []lineData `json:"lines"`
}

type lineData struct {
	Name   string           `json:"name"`
	At     string           `json:"at"` // the place of the series in the document
	Per    int64            `json:"per"`
	Step   []int64          `json:"step,omitempty"` // "": the same steps as those of the first line
	Values []metrics.Number `json:"values"`
	Min    []metrics.Number `json:"min,omitempty"`
	Max    []metrics.Number `json:"max,omitempty"`
}

// A measure is a figure with a chart.
type measure struct {
	id, title, unit string
	of              func(*metrics.Series) []metrics.Number
	text            func(float64) string
	spread          bool // with a band from the lowest to the highest single step
	speed           bool // a speed: the axis leaves out the first steps, whose values contain compilation
	column          string
}

var (
	stepTime = measure{"step-time", "Step time", "s", func(s *metrics.Series) []metrics.Number { return s.StepSeconds }, event.StepTime, true, true, "step_seconds"}
	mfu      = measure{"mfu", "MFU", "%", func(s *metrics.Series) []metrics.Number { return s.MFU }, percent, false, true, "mfu"}
	tflops   = measure{"tflops", "TFLOP/s per device", "TFLOP/s", func(s *metrics.Series) []metrics.Number { return s.TFLOPs }, rate, false, true, "tflops_per_device"}
	loss     = measure{"loss", "Loss", "", func(s *metrics.Series) []metrics.Number { return s.Loss }, rate, false, false, "loss"}
)

func (b *builder) charts() {
	if b.run == nil || b.run.Series == nil || len(b.run.Series.Step) == 0 {
		b.NoSteps = "No step lines were found in the logs on this machine, so there are no figures of the training. " +
			"They are read from lines such as MaxText's “completed step: …”; for another trainer give --metrics-regex."
		if b.run == nil {
			b.NoSteps = "This machine has no logs of the run, so there are no figures of the training."
		}
		return
	}
	speed := mfu
	if !slices.ContainsFunc(b.run.Series.MFU, metrics.Number.Known) {
		speed = tflops
	}
	for _, m := range []measure{stepTime, speed, loss} {
		if slices.ContainsFunc(m.of(b.run.Series), metrics.Number.Known) {
			b.chart(m)
		}
	}
	b.pointTable()
	b.sliceTable()
}

// A line is a series that the chart draws.
type line struct {
	name, at string
	series   *metrics.Series
}

// slicesBySpeed returns the slices of the newest attempt that have a series, slowest first.
// It returns nil if there is only one slice.
func (b *builder) slicesBySpeed() []line {
	var all []line
	index := map[string]int{}
	for i := range b.run.Slices {
		s := &b.run.Slices[i]
		if s.Series != nil && len(s.Series.Step) > 0 {
			l := line{fmt.Sprintf("slice %d", s.Number), fmt.Sprintf("%s/slices/%d/series", b.at, i), s.Series}
			index[l.name] = i
			all = append(all, l)
		}
	}
	if len(b.run.Slices) < 2 {
		return nil // a single slice is the whole run
	}
	slices.SortStableFunc(all, func(x, y line) int {
		return cmp.Compare(float(b.run.Slices[index[y.name]].Median.StepSeconds), float(b.run.Slices[index[x.name]].Median.StepSeconds))
	})
	return all
}

// float returns a number for comparisons. An unknown number is below all others.
func float(n metrics.Number) float64 {
	if !n.Known() {
		return math.Inf(-1)
	}
	return float64(n)
}

// A drawing is a chart in the making.
type drawing struct {
	*chart
	m       measure
	run     *metrics.Series
	thin    []line            // slices with a line of their own
	earlier []*metrics.Series // series of earlier attempts
	target  metrics.Number    // published figure, or metrics.Unknown
	box     frame

	values []float64
	first  []float64 // values of the first steps, which compile
}

func (b *builder) chart(m measure) {
	d := &drawing{chart: &chart{ID: m.id, Title: m.title}, m: m, run: b.run.Series, thin: b.slicesBySpeed(), target: b.published(m)}
	b.view.Charts = append(b.view.Charts, d.chart)
	if len(d.thin) > maxLines {
		d.note("Lines are drawn for the %d slowest of %d slices.", maxLines, len(d.thin))
		d.thin = d.thin[:maxLines]
	}
	d.box = frame{x0: float64(d.run.Step[0]), x1: float64(d.run.Step[len(d.run.Step)-1] + d.run.StepsPerPoint)}
	if m.id != stepTime.id {
		d.addEarlier(b.doc.Attempts[:len(b.doc.Attempts)-1])
	}
	d.collect(int64(b.run.Skipped))
	if d.target.Known() {
		d.Published = &published{Name: clip("published, " + b.doc.Compare.Preset), Figure: number("/compare/"+m.column, d.target, m.text)}
	}
	from, to := grouped(d.run.Step[0]), grouped(b.run.Last.Step)
	if something := func(v float64) bool { return v != 0 }; !slices.ContainsFunc(d.values, something) && !slices.ContainsFunc(d.first, something) {
		d.Zero = fmt.Sprintf("The command printed 0 at every step from %s to %s.", from, to)
		if m.id == mfu.id {
			d.Zero = fmt.Sprintf("0 at every step from %s to %s: the command printed 0 TFLOP/s.", from, to)
		}
		return
	}
	d.axes()
	d.lines()
	d.explain()
	d.Label = fmt.Sprintf("%s over steps %s to %s. Arrow keys read single points; all are in the table below.", m.title, from, to)
	b.Data.Charts = append(b.Data.Charts, d.data(b.at))
}

// published returns the published figure for a measure, or metrics.Unknown.
func (b *builder) published(m measure) metrics.Number {
	p := b.doc.Compare
	switch {
	case p != nil && m.id == mfu.id:
		return p.MFU
	case p != nil && m.id == tflops.id:
		return p.TFLOPs
	}
	return metrics.Unknown
}

func (d *drawing) note(format string, args ...any) {
	d.Notes = append(d.Notes, fmt.Sprintf(format, args...))
}

// addEarlier adds the series of earlier attempts, and widens the axis of steps for them.
func (d *drawing) addEarlier(attempts []metrics.Attempt) {
	for i := range attempts {
		if s := attempts[i].Series; s != nil && len(s.Step) > 0 {
			d.earlier = append(d.earlier, s)
			d.box.x0 = min(d.box.x0, float64(s.Step[0]))
			d.box.x1 = max(d.box.x1, float64(s.Step[len(s.Step)-1]+s.StepsPerPoint))
		}
	}
}

// collect collects the values that the vertical axis must show. skipped is the number of
// first steps, which compile.
func (d *drawing) collect(skipped int64) {
	add := func(s *metrics.Series, column []metrics.Number) {
		for i, v := range column {
			switch {
			case !v.Known():
			case d.m.speed && s.Step[i] < s.Step[0]+skipped:
				d.first = append(d.first, float64(v))
			default:
				d.values = append(d.values, float64(v))
			}
		}
	}
	add(d.run, d.m.of(d.run))
	if d.m.spread {
		add(d.run, d.run.Min)
		add(d.run, d.run.Max)
	}
	for _, l := range d.thin {
		add(l.series, d.m.of(l.series))
	}
	for _, s := range d.earlier {
		add(s, d.m.of(s))
	}
	if len(d.values) == 0 {
		d.values, d.first = d.first, nil
	}
}

// axes chooses the axes, and says which values are outside of them.
func (d *drawing) axes() {
	text := d.m.text
	above, below := d.box.fit(d.values, d.target)
	if above || below {
		far := ""
		if above {
			far = ", up to " + text(slices.Max(d.values))
		}
		if below {
			far += ", down to " + text(slices.Min(d.values))
		}
		d.note("The axis goes from %s to %s so that most can be seen; the others are at its edge%s.", text(d.box.y0), text(d.box.y1), far)
	}
	if d.box.log {
		d.note("The axis is logarithmic, because single values are far from the others.")
	}
	if far, ok := d.box.farthest(d.first); ok {
		x, way := per(d.box.x(d.box.middle(d.run, 0))), "down"
		d.Beyond = &beyond{X: x, Y: "100%", Down: "-6", Text: "↓ " + text(far)}
		if far > d.box.y1 {
			way = "up"
			d.Beyond = &beyond{X: x, Y: "0", Down: "12", Text: "↑ " + text(far)}
		}
		d.note("The first steps, in which programs are compiled, are outside the axis: %s to %s.", way, text(far))
	}
	for _, y := range d.box.marks() {
		d.Y = append(d.Y, tick{per(1 - d.box.y(y)), axisText(d.m, y)})
	}
	for _, x := range ticks(d.box.x0, d.box.x1, 5) {
		if x == math.Trunc(x) {
			d.X = append(d.X, tick{per(d.box.x(x)), shortCount(x)})
		}
	}
}

// lines draws the lines between the axes.
func (d *drawing) lines() {
	of, box := d.m.of, d.box
	d.Main = box.path(d.run, of(d.run))
	if len(d.run.Step) == 1 {
		d.Dots = append(d.Dots, dot{per(box.x(box.middle(d.run, 0))), per(1 - box.y(float64(of(d.run)[0])))})
	}
	if d.m.spread {
		d.Band = box.band(d.run)
	}
	for _, l := range d.thin {
		d.Thin = append(d.Thin, box.path(l.series, of(l.series)))
	}
	for _, s := range d.earlier {
		d.Earlier = append(d.Earlier, box.path(s, of(s)))
	}
	if d.Published != nil {
		d.Published.At = per(1 - box.y(float64(d.target)))
	}
}

// explain adds texts: what a point stands for, and what the lines leave out.
func (d *drawing) explain() {
	switch {
	case d.run.StepsPerPoint > 1:
		what := "the mean"
		if d.m.spread {
			what = "the mean; the band goes from the shortest to the longest single step of any worker"
		}
		d.Notes = append([]string{fmt.Sprintf("Each point is %s of %s steps.", what, grouped(d.run.StepsPerPoint))}, d.Notes...)
	case d.m.spread:
		d.Notes = append([]string{"Each point is the mean over the workers; the band goes from the fastest to the slowest."}, d.Notes...)
	}
	if len(d.Earlier) > 0 {
		d.note("Dashed: earlier attempts.")
	}
	if d.m.id != loss.id {
		return
	}
	bad := int64(0)
	for _, n := range d.run.BadLoss {
		bad += n
	}
	if bad > 0 {
		d.note("%s printed a loss that is no finite number; such steps are not in the line.", many(bad, "step line"))
	}
}

// data returns the chart's values for the script. at is the place of the attempt in the
// document.
func (d *drawing) data(at string) chartData {
	data := chartData{ID: d.m.id, Unit: d.m.unit, Range: [4]float64{d.box.x0, d.box.x1, d.box.y0, d.box.y1}, Log: d.box.log}
	whole := lineData{Name: "run", At: at + "/series", Per: d.run.StepsPerPoint, Step: d.run.Step, Values: d.m.of(d.run)}
	if d.m.spread {
		whole.Min, whole.Max = d.run.Min, d.run.Max
	}
	data.Lines = append(data.Lines, whole)
	for _, l := range d.thin {
		one := lineData{Name: l.name, At: l.at, Per: l.series.StepsPerPoint, Values: d.m.of(l.series)}
		if one.Per != d.run.StepsPerPoint || !slices.Equal(l.series.Step, d.run.Step) {
			one.Step = l.series.Step
		}
		data.Lines = append(data.Lines, one)
	}
	return data
}

func many(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}

// A frame maps values into the plot.
type frame struct {
	x0, x1, y0, y1 float64
	log            bool // y moves values outside the range to the edge of the plot.
}

func (f frame) x(v float64) float64 { return (v - f.x0) / (f.x1 - f.x0) }

// y moves values outside the range to the edge of the plot.
func (f frame) y(v float64) float64 {
	if f.log {
		return min(max(math.Log(v/f.y0)/math.Log(f.y1/f.y0), 0), 1)
	}
	return min(max((v-f.y0)/(f.y1-f.y0), 0), 1)
}

// A value of tooFar times the median makes all others look flat on a linear axis.
const tooFar = 10

// widest is the largest ratio of two values that a logarithmic axis shows. Far beyond it,
// the ends of the axis would be infinite.
const widest = 1e100

// fit chooses a vertical axis for all values. It is logarithmic if one value would make the
// others look flat. If some values have no logarithm, the axis leaves out those that are
// far away, and fit reports whether they are above or below.
func (f *frame) fit(values []float64, target metrics.Number) (above, below bool) {
	known := slices.Sorted(slices.Values(values))
	least, most := known[0], known[len(known)-1]
	low, high := least, most
	if target.Known() {
		low, high = min(low, float64(target)), max(high, float64(target))
	}
	if middle := math.Abs(known[len(known)/2]); middle > 0 && (most > tooFar*middle || least < -tooFar*middle) {
		if low > 0 && high/low < widest {
			pad := math.Pow(high/low, 0.06)
			f.log, f.y0, f.y1 = true, low/pad, high*pad
			return false, false
		}
		// Far means outside the 5th or 95th percentile by more than twice the distance
		// between the two.
		bottom, top := known[len(known)*5/100], known[(len(known)-1)*95/100]
		far := max(top-bottom, 0.1*math.Abs(top))
		if high > top+2*far {
			high = top + 0.5*far
		}
		if low < bottom-2*far {
			low = bottom - 0.5*far
		}
	}
	pad := 0.08 * (high - low)
	if pad == 0 {
		pad = max(0.1*math.Abs(high), 1e-9)
	}
	f.y0, f.y1 = low-pad, high+pad
	if least >= 0 {
		f.y0 = max(f.y0, 0)
	}
	return most > f.y1, least < f.y0
}

// farthest returns the value farthest outside the axis, or false if all are inside.
func (f frame) farthest(values []float64) (value float64, ok bool) {
	var most float64
	for _, v := range values {
		if out := max(v-f.y1, f.y0-v); out > most {
			value, most = v, out
		}
	}
	return value, most > 0
}

// marks returns the values at which the vertical axis has a label.
func (f frame) marks() []float64 {
	if !f.log {
		return ticks(f.y0, f.y1, 5)
	}
	var all []float64
	factors := []float64{1, 2, 5}
	if f.y1/f.y0 > 1e3 {
		factors = factors[:1]
	}
	for decade := math.Pow(10, math.Floor(math.Log10(f.y0))); decade > 0 && decade <= f.y1; decade *= 10 {
		for _, k := range factors {
			if v := k * decade; v >= f.y0 && v <= f.y1 {
				all = append(all, v)
			}
		}
	}
	for len(all) > 8 { // no training has such a wide range
		kept := all[:0]
		for i := 0; i < len(all); i += 2 {
			kept = append(kept, all[i])
		}
		all = kept
	}
	return all
}

func (f frame) middle(s *metrics.Series, i int) float64 {
	return float64(s.Step[i]) + float64(s.StepsPerPoint)/2
}

func place(share float64) string { return strconv.FormatFloat(1000*share, 'f', 1, 64) }

func (f frame) path(s *metrics.Series, values []metrics.Number) string {
	var b strings.Builder
	pen := "M"
	for i, v := range values {
		if !v.Known() {
			pen = "M"
			continue
		}
		b.WriteString(pen + place(f.x(f.middle(s, i))) + " " + place(1-f.y(float64(v))))
		pen = "L"
	}
	return b.String()
}

func (f frame) band(s *metrics.Series) string {
	var up, down []string
	for i := range s.Step {
		if s.Min[i].Known() && s.Max[i].Known() {
			x := place(f.x(f.middle(s, i)))
			up = append(up, x+" "+place(1-f.y(float64(s.Max[i]))))
			down = append(down, x+" "+place(1-f.y(float64(s.Min[i]))))
		}
	}
	if len(up) == 0 {
		return ""
	}
	slices.Reverse(down)
	return "M" + strings.Join(append(up, down...), "L") + "Z"
}

// ticks returns about n round values between low and high.
func ticks(low, high float64, n int) []float64 {
	raw := (high - low) / float64(n)
	if !(raw > 0) || math.IsInf(raw, 0) {
		return nil
	}
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, f := range []float64{1, 2, 2.5, 5, 10} {
		if step*f >= raw {
			step *= f
			break
		}
	}
	var all []float64
	for i := math.Ceil(low / step); i*step <= high && len(all) < 3*n; i++ {
		all = append(all, i*step)
	}
	return all
}

func axisText(m measure, v float64) string {
	if m.id == mfu.id {
		return strconv.FormatFloat(math.Round(1e4*v)/100, 'f', -1, 64) + " %"
	}
	text := strconv.FormatFloat(v, 'g', 6, 64)
	if math.Abs(v) >= 1e-4 {
		text = strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64)
	}
	if m.unit == "s" {
		text += " s"
	}
	return text
}

func shortCount(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + "M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + "k"
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// A pointTable shows the series of the run as numbers.
type pointTable struct {
	Base string
	Rows []pointRow
}

type pointRow struct {
	Steps string
	Cells []figure
}

// stepRange returns the steps of a point. During the run, the last point may stand for
// fewer steps.
func (b *builder) stepRange(from, per int64) string {
	to := min(from+per-1, b.run.Last.Step)
	if to <= from {
		return grouped(from)
	}
	return grouped(from) + "–" + grouped(to)
}

func (b *builder) pointTable() {
	s := b.run.Series
	t := &pointTable{Base: b.at + "/series"}
	for i := range s.Step {
		cell := func(column string, values []metrics.Number, text func(float64) string) figure {
			return number(fmt.Sprintf("%s/%d", column, i), values[i], text)
		}
		t.Rows = append(t.Rows, pointRow{b.stepRange(s.Step[i], s.StepsPerPoint), []figure{
			cell("step_seconds", s.StepSeconds, event.StepTime), cell("step_seconds_min", s.Min, event.StepTime), cell("step_seconds_max", s.Max, event.StepTime),
			cell("mfu", s.MFU, percent), cell("tflops_per_device", s.TFLOPs, rate), cell("tokens_per_second_per_device", s.Tokens, rate),
			cell("loss", s.Loss, rate),
		}})
	}
	b.view.Points = t
}

// A sliceTable shows the step times of slices, one column for each slice.
type sliceTable struct {
	Names []string
	Rows  []pointRow
	More  int
}

func (b *builder) sliceTable() {
	lines := b.slicesBySpeed()
	if len(lines) == 0 {
		return
	}
	t := &sliceTable{}
	if len(lines) > maxColumns {
		t.More = len(lines) - maxColumns
		lines = lines[:maxColumns]
	}
	// Slices may have different numbers of steps per point. Each row is a point of the
	// slice with the most points.
	wide := slices.MaxFunc(lines, func(x, y line) int { return cmp.Compare(x.series.StepsPerPoint, y.series.StepsPerPoint) }).series
	rows := map[int64][]figure{}
	for column, l := range lines {
		t.Names = append(t.Names, l.name)
		for i, step := range l.series.Step {
			if l.series.StepsPerPoint != wide.StepsPerPoint {
				break // cannot be compared; the document has its points
			}
			if rows[step] == nil {
				rows[step] = make([]figure, len(lines))
			}
			rows[step][column] = number(fmt.Sprintf("%s/step_seconds/%d", l.at, i), l.series.StepSeconds[i], event.StepTime)
		}
	}
	for _, step := range sortedSteps(rows) {
		t.Rows = append(t.Rows, pointRow{b.stepRange(step, wide.StepsPerPoint), rows[step]})
	}
	b.BySlice = t
}

func sortedSteps(rows map[int64][]figure) []int64 {
	steps := make([]int64, 0, len(rows))
	for s := range rows {
		steps = append(steps, s)
	}
	slices.Sort(steps)
	return steps
}
