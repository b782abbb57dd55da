package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/tpu"
)

// A timeline shows the attempts and their phases, each as a row with a bar.
type timeline struct {
	Attempts []attemptRows
	Span     string // the time that the full width stands for
	More     int    // number of attempts left out
}

type attemptRows struct {
	Title string
	Rows  []phaseRow
}

type phaseRow struct {
	Name, Took, Began, Detail string
	State                     event.PhaseState
	Bars                      []bar
}

// A bar is a part of a row. Its place is in per cent of the row's width.
type bar struct {
	X, W  string
	Class string
}

func (b *builder) timeline() {
	all := b.in.Story.Attempts
	if len(all) == 0 {
		return
	}
	t := &timeline{}
	if len(all) > maxAttempts {
		t.More = len(all) - maxAttempts
		all = all[t.More:]
	}
	first, last := all[0].Begins(), b.in.Story.Last
	for _, a := range all {
		if begin := a.Begins(); !begin.IsZero() && (first.IsZero() || begin.Before(first)) {
			first = begin
		}
		for _, p := range a.Phases {
			if p.End.IsZero() && b.state.Live() {
				last = b.in.Now
			}
		}
	}
	if first.IsZero() {
		return
	}
	span := max(last.Sub(first), time.Millisecond)
	scale := timescale{first, last, span}
	for i, a := range all {
		rows := attemptRows{Title: attemptTitle(a)}
		if i == len(all)-1 {
			for j, p := range a.Phases {
				if j == maxPhases {
					break
				}
				rows.Rows = append(rows.Rows, scale.row(p))
			}
		} else {
			rows.Rows = []phaseRow{scale.whole(a)}
		}
		if len(rows.Rows) > 0 {
			t.Attempts = append(t.Attempts, rows)
		}
	}
	if len(t.Attempts) == 0 {
		return
	}
	t.Span = event.Duration(span)
	b.view.Timeline = t
}

func attemptTitle(a *journal.Attempt) string {
	title := "before the first attempt"
	if a.Number() > 0 {
		title = fmt.Sprintf("attempt %d", a.Number())
	}
	if len(a.Commands) > 0 {
		title += " (" + strings.Join(a.Commands, ", ") + ")"
	}
	if a.Summary != nil {
		title += ": " + clip(a.Summary.Text)
	} else if a.Outcome != nil && !a.Outcome.OK {
		title += ": " + clip(a.Outcome.Reason()+"; "+a.Outcome.Next)
	} else if a.End != nil && a.End.Error != "" {
		title += ": " + clip(a.End.Error)
	}
	return title
}

// timescale maps times to places in a row.
type timescale struct {
	first, last time.Time
	span        time.Duration
}

func (s timescale) bar(begin, end time.Time, class string) bar {
	if end.IsZero() {
		end = s.last
	}
	x := float64(begin.Sub(s.first)) / float64(s.span)
	w := float64(end.Sub(begin)) / float64(s.span)
	x, w = min(max(x, 0), 1), max(w, 0.003) // everything that happened must be visible
	return bar{per(min(x, 1-0.003)), per(min(w, 1-min(x, 1-0.003))), class}
}

func per(share float64) string { return strconv.FormatFloat(100*share, 'f', 2, 64) + "%" }

func (s timescale) row(p journal.Phase) phaseRow {
	r := phaseRow{Name: clip(p.Name), State: p.State, Detail: clip(p.Detail), Began: "+" + event.Duration(p.Begin.Sub(s.first))}
	end := p.End
	if end.IsZero() {
		end = s.last
	}
	r.Took = event.Duration(end.Sub(p.Begin))
	r.Bars = []bar{s.bar(p.Begin, p.End, phaseClass(p))}
	return r
}

func phaseClass(p journal.Phase) string {
	switch {
	case p.State == event.Failed:
		return "bad"
	case p.State == event.Started:
		return "open"
	case p.Name == "run":
		return "run"
	}
	return "done"
}

// whole returns an earlier attempt as a single row.
func (s timescale) whole(a *journal.Attempt) phaseRow {
	r := phaseRow{Name: "all phases", Began: "+" + event.Duration(a.Begins().Sub(s.first)), State: event.Done}
	var end time.Time
	var parts []string
	for i, p := range a.Phases {
		if i == maxPhases {
			break
		}
		if p.End.After(end) {
			end = p.End
		}
		r.Bars = append(r.Bars, s.bar(p.Begin, p.End, phaseClass(p)))
		if p.State == event.Failed {
			r.State = event.Failed
		}
		if !p.End.IsZero() {
			parts = append(parts, p.Name+" "+event.Duration(p.End.Sub(p.Begin)))
		}
	}
	if !end.IsZero() {
		r.Took = event.Duration(end.Sub(a.Begins()))
	}
	r.Detail = clip(strings.Join(parts, ", "))
	return r
}

// A skew shows when the command started on each worker, relative to the first start.
type skew struct {
	Text  string
	Dots  []string // places in per cent
	Limit string   // the time that the full width stands for
	Last  []lateWorker
	Of    int
}

type lateWorker struct{ Name, After string }

func (b *builder) skew() {
	if b.now == nil || b.now.Release == nil || len(b.now.Release.Workers) < 2 {
		return
	}
	workers := slices.Clone(b.now.Release.Workers)
	slices.SortStableFunc(workers, func(x, y event.ReleasedOn) int { return cmp.Compare(y.After, x.After) })
	worst := workers[0].After
	s := &skew{Of: len(workers), Limit: event.Duration(worst)}
	s.Text = fmt.Sprintf("%s started within %s", event.Count(len(workers), "worker"), event.Duration(worst))
	if worst <= 0 {
		s.Text = event.Count(len(workers), "worker") + " started at the same moment"
	}
	seen := map[string]bool{}
	for _, w := range workers {
		// A tenth of a per cent is smaller than a dot.
		at := strconv.FormatFloat(100*float64(w.After)/float64(max(worst, 1)), 'f', 1, 64) + "%"
		if worst > 0 && !seen[at] {
			seen[at] = true
			s.Dots = append(s.Dots, at)
		}
	}
	for _, w := range workers[:min(len(workers), maxNamed)] {
		s.Last = append(s.Last, lateWorker{tpu.WorkerID{Slice: w.Slice, Worker: w.Worker}.String(), event.Duration(w.After)})
	}
	b.view.Skew = s
}

// A workerTable has a row for each worker.
type workerTable struct {
	Slices  []sliceRow
	Rows    []workerRow
	Figures bool // with figures of the training
	More    int
	Bad     int
}

type sliceRow struct {
	Name, Workers string
	Base          string
	Cells         []figure
	Ends          string
}

type workerRow struct {
	Name  string
	Class string // CSS class of its state
	State string
	Base  string
	Cells []figure
	Slow  bool
	After string
}

// cells returns the figures in a row of workers or slices, in the order of the columns.
func cells(f *metrics.Figures) []figure {
	last := figure{}
	if f.Steps > 0 {
		last = count("last/step", f.Last.Step)
	}
	loss := number("last/loss", f.Last.Loss, rate)
	if f.Last.LossText != "" {
		loss = figure{"last/loss_text", f.Last.LossText, clip(f.Last.LossText)}
	}
	return []figure{
		last,
		number("median/step_seconds", f.Median.StepSeconds, event.StepTime),
		number("median/mfu", f.Median.MFU, percent),
		number("median/tflops_per_device", f.Median.TFLOPs, rate),
		number("median/tokens_per_second_per_device", f.Median.Tokens, rate),
		loss,
	}
}

func (b *builder) workers() {
	t := &workerTable{Figures: b.run != nil && b.run.Steps > 0}
	late := map[tpu.WorkerID]time.Duration{}
	if b.now != nil {
		if b.now.Release != nil {
			for _, w := range b.now.Release.Workers {
				late[tpu.WorkerID{Slice: w.Slice, Worker: w.Worker}] = w.After
			}
		}
	}
	add := func(id tpu.WorkerID, base string, f *metrics.Figures, slow bool) string {
		row := workerRow{Name: id.String(), Base: base, Slow: slow}
		if f != nil && t.Figures {
			row.Cells = cells(f)
		}
		row.Class, row.State = b.ending(id)
		if after, ok := late[id]; ok {
			row.After = event.Duration(after)
		}
		if row.Class == "bad" {
			t.Bad++
		}
		if len(t.Rows) == maxWorkerRows {
			t.More++
		} else {
			t.Rows = append(t.Rows, row)
		}
		return row.State
	}
	if b.run == nil || workersOf(b.run) == 0 { // only the journal knows this worker
		if b.now != nil {
			for _, id := range slices.SortedFunc(maps.Keys(b.now.Ends), tpu.WorkerID.Compare) {
				add(id, "", nil, false)
			}
		}
		if len(t.Rows) > 0 {
			b.view.Workers = t
		}
		return
	}
	slow := map[tpu.WorkerID]bool{}
	for _, s := range b.run.Stragglers {
		slow[tpu.WorkerID{Slice: s.Slice, Worker: s.Worker}] = true
	}
	for i := range b.run.Slices {
		s := &b.run.Slices[i]
		base := fmt.Sprintf("%s/slices/%d", b.at, i)
		states := map[string]int{}
		for j := range s.Workers {
			w := &s.Workers[j]
			id := tpu.WorkerID{Slice: w.Slice, Worker: w.Worker}
			states[add(id, fmt.Sprintf("%s/workers/%d", base, j), &w.Figures, slow[id] || slow[tpu.WorkerID{Slice: w.Slice, Worker: -1}])]++
		}
		row := sliceRow{
			Name: clip(cmp.Or(s.Name, fmt.Sprintf("slice %d", s.Number))), Workers: event.Count(len(s.Workers), "worker"),
			Base: base, Ends: stateText(states),
		}
		if t.Figures {
			row.Cells = cells(&s.Figures)
		}
		t.Slices = append(t.Slices, row)
	}
	b.view.Workers = t
}

func stateText(states map[string]int) string {
	if len(states) == 1 {
		for s := range states {
			return s
		}
	}
	var parts []string
	for _, s := range slices.Sorted(maps.Keys(states)) {
		parts = append(parts, fmt.Sprintf("%d %s", states[s], s))
	}
	return clip(strings.Join(parts, ", "))
}

// ending returns how the command ended on a worker, or that it still runs.
func (b *builder) ending(id tpu.WorkerID) (class, text string) {
	if b.now != nil {
		if e, ended := b.now.Ending(id); ended {
			return map[journal.RunState]string{journal.Succeeded: "ok", journal.Failed: "bad", journal.Stopped: "idle"}[e.State], clip(e.Text)
		}
	}
	if b.state.Live() {
		return "live", "running"
	}
	return "idle", "not known"
}
