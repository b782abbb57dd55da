package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/tpu"
)

// A look is the style of a part of a line.
type look uint8

const (
	lookPlain look = iota
	lookStrong
	lookDim
	lookGood
	lookWarn
	lookBad
	lookInfo
)

type part struct {
	text string
	look look
}

// A topLine has parts side by side.
type topLine []part

// order is the order of the list below the cells.
type order uint8

const (
	bySpeed order = iota // stragglers first, then the slowest
	byStep               // the furthest behind first
	byName
)

func (o order) String() string {
	return [...]string{"slowest first", "furthest behind first", "by name"}[o]
}

// topView is a state and what the user wants to see of it.
type topView struct {
	state  TopState
	scroll int // number of lines of cells scrolled off the top
	order  order
}

// topWorker is a worker in the view, as a cell and as a row.
type topWorker struct {
	id     tpu.WorkerID
	run    *metrics.Figures // nil: no log
	sign   string
	look   look
	text   string // its state
	behind int64  // steps
	slow   bool
	away   string    // why the worker cannot be reached; "" if it can be reached, or nobody needs to reach it
	end    time.Time // zero if unknown
}

// lines lays out the view: the state of the run, a cell for each worker, the list and the
// keys. It returns at most height lines, none wider than width.
func (t *topView) lines(width, height int) []topLine {
	if width < 1 || height < 1 {
		return nil
	}
	workers := t.workers()
	head := t.head(width)
	foot := []topLine{t.foot(width)}
	if height < 8 || width < 16 { // show only the state of the run
		return cutLines(head, height)
	}
	room := height - len(head) - len(foot) - 1
	cells := cellLines(workers, width)
	if len(workers) == 0 {
		cells = t.phases(width)
	}
	// The list gets a few lines, then the cells get what they need, and the list gets the
	// rest.
	shown := max(room-1-min(len(workers)+1, 6, room/2), 2)
	all := append(head, topLine{})
	if shown < len(cells) {
		shown-- // leave space for the line below the cells
		t.scroll = max(0, min(t.scroll, len(cells)-shown))
		all = append(all, cells[t.scroll:t.scroll+shown]...)
		text := fmt.Sprintf("lines %d to %d of %d: arrow keys", t.scroll+1, t.scroll+shown, len(cells))
		all = append(all, topLine{{cutToWidth(text, width), lookDim}})
	} else {
		t.scroll = 0
		all = append(all, cells...)
	}
	if len(workers) > 0 {
		all = append(all, topLine{})
		all = append(all, t.list(workers, width, height-len(all)-len(foot))...)
	}
	all = cutLines(all, height-len(foot))
	for len(all) < height-len(foot) {
		all = append(all, topLine{})
	}
	return append(all, foot...)
}

func cutLines(lines []topLine, most int) []topLine { return lines[:min(len(lines), most)] }

// topText returns the first line of a text, in visible form and cut to width.
func topText(text string, width int) string {
	text, _, _ = strings.Cut(text, "\n")
	return cutToWidth(string(appendVisible(nil, []byte(text))), width)
}

func (t *topView) newest() *metrics.Attempt {
	if t.state.Document == nil {
		return nil
	}
	return t.state.Document.Newest()
}

func (t *topView) verdict() journal.Verdict {
	return t.state.Story.Verdict(journal.KnownOf(t.newest()), t.state.Now)
}

// head returns the lines about the state of the run and its problems.
func (t *topView) head(width int) []topLine {
	v := t.verdict()
	l := lookInfo
	switch v.State {
	case journal.Succeeded, journal.Running, journal.Starting:
		l = lookGood
	case journal.Failed:
		l = lookBad
	}
	name := topText(t.state.Run, width)
	word := topText(string(v.State), max(0, width-textWidth(name)-2))
	rest := topText(v.Text, max(0, width-textWidth(name)-textWidth(word)-4))
	lines := []topLine{{{name, lookStrong}, {"  ", lookPlain}, {word, l}, {"  ", lookPlain}, {rest, lookPlain}}}
	var warnings []string
	if a := t.newest(); a != nil {
		if text := a.Summary(); text != "" {
			lines = append(lines, topLine{{topText(text, width), lookPlain}})
		}
		warnings = a.Warnings()
	}
	if v.Also != "" {
		warnings = append([]string{v.Also}, warnings...)
	}
	if a := t.state.Story.Newest(); a != nil && a.Summary != nil && a.Summary.FirstFail != "" {
		warnings = append([]string{"first failure: " + a.Summary.FirstFail}, warnings...)
	}
	warnings = append(slices.Clone(t.state.Notices), warnings...)
	for i, w := range warnings {
		if i == 3 {
			lines = append(lines, topLine{{topText(fmt.Sprintf("… and %d more", len(warnings)-i), width), lookWarn}})
			break
		}
		lines = append(lines, topLine{{topText(w, width), lookWarn}})
	}
	return lines
}

func (t *topView) foot(width int) topLine {
	legend := "o in step  2-9 steps behind  S slow  . no step yet  ? out of reach  + ended well  x failed  - stopped"
	keys := "q quit  sort: s speed, b behind, n name"
	if textWidth(legend)+3+textWidth(keys) <= width {
		return topLine{{legend + "   ", lookDim}, {keys, lookPlain}}
	}
	return topLine{{cutToWidth(keys+"   "+legend, width), lookDim}}
}

// workers returns all workers of the newest attempt, by name.
func (t *topView) workers() []topWorker {
	attempt := t.state.Story.Newest()
	index := map[tpu.WorkerID]*metrics.Figures{}
	var front int64
	slow := map[tpu.WorkerID]bool{}
	if a := t.newest(); a != nil {
		front = a.Last.Step
		for i := range a.Slices {
			for j := range a.Slices[i].Workers {
				w := &a.Slices[i].Workers[j]
				index[tpu.WorkerID{Slice: w.Slice, Worker: w.Worker}] = &w.Figures
			}
		}
		for _, s := range a.Stragglers {
			slow[tpu.WorkerID{Slice: s.Slice, Worker: s.Worker}] = s.Kind == metrics.SlowSteps
		}
	}
	if attempt != nil && attempt.Release != nil {
		for _, w := range attempt.Release.Workers {
			if id := (tpu.WorkerID{Slice: w.Slice, Worker: w.Worker}); index[id] == nil {
				index[id] = &metrics.Figures{}
			}
		}
	}
	all := make([]topWorker, 0, len(index))
	for id, f := range index {
		w := topWorker{id: id, run: f, slow: slow[id] || slow[tpu.WorkerID{Slice: id.Slice, Worker: -1}]}
		if f.Steps > 0 {
			w.behind = max(0, front-f.Last.Step)
		}
		w.away = t.state.Away[id]
		w.sign, w.look, w.text = w.state(attempt)
		if attempt != nil {
			w.end = attempt.Ends[id].End
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b topWorker) int { return a.id.Compare(b.id) })
	return all
}

// state returns the sign of the worker's cell, its look, and its state in words.
func (w *topWorker) state(attempt *journal.Attempt) (sign string, l look, text string) {
	if attempt != nil {
		if e, ended := attempt.Ending(w.id); ended {
			switch e.State {
			case journal.Failed:
				return "x", lookBad, e.Text
			case journal.Stopped:
				return "-", lookDim, e.Text
			}
			return "+", lookInfo, e.Text
		}
	}
	switch {
	case w.away != "":
		return "?", lookWarn, "out of reach: " + w.away
	case w.run.Steps == 0:
		return ".", lookDim, "no step yet"
	case w.slow:
		return "S", lookWarn, "slow"
	case w.behind >= 2: // one step behind is normal: the lines of a step arrive at different times
		return fmt.Sprint(min(w.behind, 9)), lookWarn, event.Count(int(w.behind), "step") + " behind"
	}
	return "o", lookGood, "in step"
}

// cellLines returns lines with a cell for each worker, slice by slice. Slices that fit are
// side by side.
func cellLines(workers []topWorker, width int) []topLine {
	var lines []topLine
	var line topLine
	used := 0
	for i := 0; i < len(workers); {
		j := i
		for j < len(workers) && workers[j].id.Slice == workers[i].id.Slice {
			j++
		}
		label := fmt.Sprintf("s%-4d", workers[i].id.Slice)
		if width < 20 {
			label = fmt.Sprintf("s%d ", workers[i].id.Slice)
		}
		if used > 0 && used+len(label)+j-i > width {
			lines, line, used = append(lines, line), nil, 0
		}
		line = append(line, part{label, lookDim})
		used += len(label)
		for _, w := range workers[i:j] {
			if used >= width {
				lines = append(lines, line)
				line, used = topLine{{strings.Repeat(" ", min(len(label), width-1)), lookPlain}}, min(len(label), width-1)
			}
			line = append(line, part{w.sign, w.look})
			used++
		}
		line = append(line, part{"  ", lookPlain})
		used += 2
		i = j
	}
	if line != nil {
		lines = append(lines, line)
	}
	return lines
}

// phases returns the lines that replace the workers while there are none.
func (t *topView) phases(width int) []topLine {
	lines := []topLine{}
	a := t.state.Story.Newest()
	if a == nil {
		return lines
	}
	for _, p := range a.Phases {
		end, l := p.End, lookPlain
		switch p.State {
		case event.Started:
			end, l = t.state.Now, lookGood
		case event.Failed:
			l = lookBad
		}
		lines = append(lines, topLine{{topText(fmt.Sprintf("%-12s %-8s %8s  %s", p.Name, p.State, event.Duration(end.Sub(p.Begin)), p.Detail), width), l}})
	}
	return lines
}

// list returns a heading and a row for each worker, at most height lines.
func (t *topView) list(workers []topWorker, width, height int) []topLine {
	if height < 2 {
		return nil
	}
	rows := slices.Clone(workers)
	slices.SortStableFunc(rows, func(a, b topWorker) int {
		failed := cmp.Compare(rank(b), rank(a))
		if rank(a) == 2 && rank(b) == 2 {
			failed = a.end.Compare(b.end) // the first worker to fail is the cause
		}
		switch t.order {
		case bySpeed:
			return cmp.Or(failed, cmp.Compare(speed(b), speed(a)))
		case byStep:
			return cmp.Or(failed, cmp.Compare(b.behind, a.behind))
		}
		return 0
	})
	columns := shownColumns(width)
	line := func(cells topRow, l look) topLine {
		return topLine{{topText(cells.text(columns), width), l}}
	}
	lines := []topLine{line(topRow{"WORKER", "STEP", "STEP TIME", "MFU", "LOSS", "STATE (" + t.order.String() + ")"}, lookDim)}
	for _, w := range rows[:min(len(rows), height-1)] {
		c := w.run.Cells()
		l := lookPlain
		if w.look == lookWarn || w.look == lookBad {
			l = w.look
		}
		lines = append(lines, line(topRow{w.id.String(), c.Step, c.StepTime, c.MFU, c.Loss, w.text}, l))
	}
	return lines
}

// A topColumn is a column of the list.
type topColumn uint8

const (
	columnWorker topColumn = iota
	columnStep
	columnStepTime
	columnMFU
	columnLoss
	columnState
	columnCount
)

// columnForms has the formats of all columns. The state takes the rest of the line.
var columnForms = [columnCount]string{"%-10s", " %12s", " %12s", " %10s", " %12s", "  %s"}

// leastState is the least width of the state, unless only the worker and its state are
// shown.
const leastState = 16

// shownColumns returns the columns of a list of that width. It drops the least important
// columns first. The lines above the list have medians of MFU and step time, and the state
// says who is behind.
func shownColumns(width int) (shown [columnCount]bool) {
	used := 0
	for c := range columnCount {
		shown[c], used = true, used+len(fmt.Sprintf(columnForms[c], ""))
	}
	for _, c := range []topColumn{columnMFU, columnStepTime, columnStep, columnLoss} {
		if width-used >= leastState {
			break
		}
		shown[c], used = false, used-len(fmt.Sprintf(columnForms[c], ""))
	}
	return shown
}

// A topRow has the cells of one line of the list.
type topRow [columnCount]string

// text returns the cells of the shown columns, side by side.
func (r topRow) text(shown [columnCount]bool) string {
	var b strings.Builder
	for c, cell := range r {
		if shown[c] {
			fmt.Fprintf(&b, columnForms[c], cell)
		}
	}
	return b.String()
}

// rank puts failed workers before slow ones, and slow ones before all others.
func rank(w topWorker) int {
	switch {
	case w.look == lookBad:
		return 2
	case w.slow:
		return 1
	}
	return 0
}

func speed(w topWorker) float64 {
	if m := w.run.Median.StepSeconds; m.Known() {
		return float64(m)
	}
	return -1
}

func textWidth(text string) (n int) {
	for _, r := range text {
		n += runeWidth(r)
	}
	return n
}
