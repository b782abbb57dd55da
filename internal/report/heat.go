package report

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"multihost/internal/event"
	"multihost/internal/metrics"
	"multihost/internal/tpu"
)

const (
	maxHeatRows    = 256
	maxHeatColumns = 128
)

// A heat map shows each worker's step times, relative to the median of the run. A slow
// worker is a dark row. A step that was slow for all workers is a dark column.
type heat struct {
	Image         string // data: URL of a PNG
	Label         string
	Rows, Columns int
	Height        int // height of the image on the screen, in pixels
	Labels        []rowLabel
	Gutter        int // width of the labels, in pixels
	Marks         []rowMark
	From, To      string
	Notes         []string
	Legend        []legend
}

type legend struct{ Class, Text string }

// A rowLabel names a row at its left.
type rowLabel struct{ Y, Class, Text string }

// A rowMark is the place of a row with a failed worker.
type rowMark struct{ Y, Height string }

// heatData lets the script read the cells, row by row.
type heatData struct {
	Rows    int              `json:"rows"`
	Columns int              `json:"columns"`
	Names   []string         `json:"names"` // the workers of each row, folded
	Step    []int64          `json:"step"`  // the first step of each column
	Per     int64            `json:"per"`
	Values  []metrics.Number `json:"values"`
	Who     []string         `json:"who,omitempty"` // the worker of each cell, if rows have several
	// Failed says how the command failed in a row, by the row's index.
	Failed map[int]string `json:"failed,omitempty"`
}

func (b *builder) heat() {
	if b.run == nil || !(b.run.Median.StepSeconds > 0) { // nothing can be compared with 0
		return
	}
	var all []*metrics.Worker
	for i := range b.run.Slices {
		for j := range b.run.Slices[i].Workers {
			all = append(all, &b.run.Slices[i].Workers[j])
		}
	}
	slices.SortStableFunc(all, func(x, y *metrics.Worker) int {
		return cmp.Or(cmp.Compare(x.Slice, y.Slice), cmp.Compare(x.Worker, y.Worker))
	})
	grid := newGrid(all)
	if grid == nil {
		return
	}
	median := float64(b.run.Median.StepSeconds)
	h := &heat{Rows: grid.Rows, Columns: grid.Columns, From: grouped(grid.Step[0]), To: grouped(b.run.Last.Step)}
	h.Height = grid.Rows * min(max(384/grid.Rows, 2), 24)
	h.Image = grid.draw(median)
	h.Label = fmt.Sprintf("Step time of %s over steps %s to %s. Arrow keys read single cells; the medians of all workers are in the table of workers.",
		event.Count(len(all), "worker"), h.From, h.To)
	if grid.Per > 1 {
		h.Notes = append(h.Notes, fmt.Sprintf("A column is %s steps; a cell is the mean of a worker's.", grouped(grid.Per)))
	}
	if grid.join > 1 {
		h.Notes = append(h.Notes, fmt.Sprintf("A row is %d workers; a cell is the slowest of them.", grid.join))
	}
	if grid.finer {
		h.Notes = append(h.Notes, "Where a worker has several points in a column, the slowest is shown.")
	}
	for _, step := range []float64{0.8, 1, 1.25, 1.5, 2} {
		text := event.StepTime(step * median)
		switch step {
		case 0.8:
			text = "≤ " + text
		case 1:
			text += ", the run's median"
		case 2:
			text = "≥ " + text
		}
		h.Legend = append(h.Legend, legend{fmt.Sprintf("h%d", int(100*step)), text})
	}
	h.Legend = append(h.Legend, legend{"none", "no step"})
	b.mark(h, grid, all)
	b.view.Heat, b.Data.Heat = h, &grid.heatData
}

// mark marks the rows of failed workers, and labels rows.
func (b *builder) mark(h *heat, g *grid, all []*metrics.Worker) {
	m := &rowMarks{heat: h, grid: g, all: all, rows: make([]rowKind, g.Rows), first: -1}
	if b.now != nil && b.now.Summary != nil {
		m.origin, m.known = firstFailed(b.now.Summary)
	}
	slow := map[tpu.WorkerID]bool{}
	for _, s := range b.run.Stragglers {
		slow[tpu.WorkerID{Slice: s.Slice, Worker: s.Worker}] = true
	}
	for i, w := range all {
		id, row := tpu.WorkerID{Slice: w.Slice, Worker: w.Worker}, i/g.join
		if i == 0 || w.Slice != all[i-1].Slice {
			m.rows[row] = max(m.rows[row], beginsSlice)
		}
		if slow[id] {
			m.rows[row] = max(m.rows[row], slowRow)
		}
		if class, text := b.ending(id); class == "bad" {
			m.fail(id, row, text)
		}
	}
	m.draw()
	m.tell()
}

// rowMarks holds which rows of a map need a mark or a label.
type rowMarks struct {
	*heat
	*grid
	all    []*metrics.Worker
	rows   []rowKind
	failed []tpu.WorkerID
	origin tpu.WorkerID // the worker that failed first, if known
	known  bool
	first  int // the row of that worker, or -1
}

// fail adds the failure of a worker.
func (m *rowMarks) fail(id tpu.WorkerID, row int, text string) {
	if m.Failed == nil {
		m.Failed = map[int]string{}
	}
	if m.rows[row] < failedRow {
		m.rows[row], m.Failed[row] = failedRow, id.String()+" failed: "+text
	}
	if m.known && id == m.origin {
		m.first, m.rows[row], m.Failed[row] = row, failedFirst, id.String()+" failed first: "+text
	}
	m.failed = append(m.failed, id)
}

// draw puts a mark at the rows of failed workers, and a label at the rows with enough
// space.
func (m *rowMarks) draw() {
	high := max(1/float64(m.Rows), minMark/float64(m.Height))
	for row, kind := range m.rows {
		if kind >= failedRow {
			middle := (float64(row) + 0.5) / float64(m.Rows)
			m.Marks = append(m.Marks, rowMark{per(middle - high/2), per(high)})
		}
	}
	for _, row := range labelled(m.rows, float64(m.Height)/float64(m.Rows)) {
		l := rowLabel{Y: per((float64(row) + 0.5) / float64(m.Rows)), Class: m.rows[row].class(), Text: m.Names[row]}
		if row == m.first {
			l.Text = m.origin.String() // even if the row has other workers
		}
		if utf8.RuneCountInString(l.Text) > maxLabel {
			l.Text = tpu.WorkerID{Slice: m.all[row*m.join].Slice, Worker: m.all[row*m.join].Worker}.String() + "…"
		}
		if m.rows[row] >= failedRow {
			l.Text = "✗ " + l.Text
		}
		m.Gutter = max(m.Gutter, 7*utf8.RuneCountInString(l.Text)+16)
		m.Labels = append(m.Labels, l)
	}
}

// tell adds a text with the names of the failed workers.
func (m *rowMarks) tell() {
	if len(m.failed) == 0 {
		return
	}
	text := "failed: " + clip(tpu.Fold(m.failed))
	if m.first >= 0 {
		text = "failed first: " + m.origin.String()
		if n := len(m.failed) - 1; n > 0 {
			text += fmt.Sprintf("; then %d more", n)
		}
	}
	m.Label += " " + strings.ToUpper(text[:1]) + text[1:] + "."
	m.Legend = append(m.Legend, legend{"failed", text})
}

// minMark is the least height of a mark, in pixels.
const minMark = 4

// maxLabel is the most characters of a row's label.
const maxLabel = 12

// rowKind is the reason for a row's label. A greater kind goes first.
type rowKind int

const (
	plainRow rowKind = iota
	beginsSlice
	slowRow
	failedRow
	failedFirst
)

func (k rowKind) class() string {
	switch k {
	case slowRow:
		return "slow"
	case failedRow, failedFirst:
		return "failed"
	}
	return ""
}

// labelHeight is the distance at which two labels do not touch, in pixels.
const labelHeight = 14

// labelled returns the rows whose labels fit beside the map. If two labels do not fit, the
// row of the higher kind keeps its label. After the marked rows comes the last row, then the
// others from the top. Each row is height pixels high.
func labelled(rows []rowKind, height float64) []int {
	apart := int(math.Ceil(labelHeight / height))
	taken := make([]bool, len(rows))
	take := func(row int) {
		for i := max(row-apart+1, 0); i < min(row+apart, len(rows)); i++ {
			if taken[i] {
				return
			}
		}
		taken[row] = true
	}
	for kind := failedFirst; kind > plainRow; kind-- {
		for row, k := range rows {
			if k == kind {
				take(row)
			}
		}
	}
	take(len(rows) - 1)
	for row := range rows {
		take(row)
	}
	var all []int
	for row, yes := range taken {
		if yes {
			all = append(all, row)
		}
	}
	return all
}

type grid struct {
	heatData
	join  int
	finer bool
}

// newGrid puts the points of all workers into rows and columns. It returns nil if there are
// none. A cell is always one point of one worker: the slowest of the points that share the
// cell.
func newGrid(all []*metrics.Worker) *grid {
	per, low, high := int64(0), int64(math.MaxInt64), int64(math.MinInt64)
	for _, w := range all {
		if s := w.Series; s != nil && len(s.Step) > 0 {
			per = max(per, s.StepsPerPoint)
			low, high = min(low, s.Step[0]), max(high, s.Step[len(s.Step)-1])
		}
	}
	if per == 0 {
		return nil
	}
	for high/per-low/per >= maxHeatColumns {
		per *= 2
	}
	g := &grid{join: (len(all) + maxHeatRows - 1) / maxHeatRows}
	g.Per, g.Columns = per, int(high/per-low/per)+1
	g.Rows = (len(all) + g.join - 1) / g.join
	for i := range g.Columns {
		g.Step = append(g.Step, (low/per+int64(i))*per)
	}
	g.Values = make([]metrics.Number, g.Rows*g.Columns)
	for i := range g.Values {
		g.Values[i] = metrics.Unknown
	}
	who := make([]string, len(g.Values))
	for r := range g.Rows {
		members := all[r*g.join : min((r+1)*g.join, len(all))]
		ids := make([]tpu.WorkerID, len(members))
		for i, w := range members {
			ids[i] = tpu.WorkerID{Slice: w.Slice, Worker: w.Worker}
			s := w.Series
			if s == nil {
				continue
			}
			g.finer = g.finer || s.StepsPerPoint < per
			for p, step := range s.Step {
				at := r*g.Columns + int(step/per-low/per)
				if v := s.StepSeconds[p]; float(v) > float(g.Values[at]) {
					g.Values[at], who[at] = v, w.Name
				}
			}
		}
		g.Names = append(g.Names, tpu.Fold(ids))
	}
	if g.join > 1 {
		g.Who = who
	}
	return g
}

// People who cannot tell red from green can tell these two hues and their strengths apart.
// The picture is transparent where nothing is remarkable, so that it works on light and
// dark pages.
var (
	slowHue = color.NRGBA{R: 0xd9, G: 0x4a, B: 0x0c}
	fastHue = color.NRGBA{R: 0x2b, G: 0x74, B: 0xd8}
)

// shade returns the colour of a step time. times is the step time divided by the median.
func shade(times float64) color.NRGBA {
	hue, strength := slowHue, (times-1)/1 // full colour at twice the median
	if times < 1 {
		hue, strength = fastHue, (1-times)/0.2
	}
	strength = min(max(strength, 0), 1)
	hue.A = uint8(math.Round(255 * (0.06 + 0.94*math.Sqrt(strength))))
	if math.Abs(times-1) < 0.05 { // noise
		hue = color.NRGBA{R: 0x80, G: 0x80, B: 0x80, A: 34}
	}
	return hue
}

// draw returns the picture, with one pixel per cell. Cells without a step are empty.
func (g *grid) draw(median float64) string {
	img := image.NewNRGBA(image.Rect(0, 0, g.Columns, g.Rows))
	for i, v := range g.Values {
		if v.Known() {
			img.SetNRGBA(i%g.Columns, i/g.Columns, shade(float64(v)/median))
		}
	}
	var b bytes.Buffer
	enc := png.Encoder{CompressionLevel: png.BestCompression}
	if err := enc.Encode(&b, img); err != nil {
		return ""
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}
