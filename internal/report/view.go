package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/preflight"
)

// Limits of what a page shows. The page says how much it leaves out.
const (
	maxWorkerRows = 4096
	maxAttempts   = 50
	maxPhases     = 200 // limit of phases of one attempt
	maxNotes      = 200
	maxRows       = 300 // limit of rows in the preflight table
	maxText       = 2000
	maxNamed      = 20 // limit of workers that started late
)

// view holds what the page shows: texts without logic.
type view struct {
	Title   string
	Run     string
	Command string
	Verdict verdict
	Facts   []fact

	Failure   *failure
	Cards     []card
	Attention []string // stragglers, stalls and the like, one sentence each

	Charts    []*chart
	Points    *pointTable
	BySlice   *sliceTable
	NoSteps   string // why there are no charts
	Heat      *heat
	Timeline  *timeline
	Skew      *skew
	Workers   *workerTable
	Settings  *settings
	Notes     []noteRow
	NoteCount string
	MoreNotes int

	Generated time.Time
	Data      pageData
}

// verdict is the text that people read first.
type verdict struct {
	Class string // ok, bad, live or idle
	Word  string
	Text  string
	Also  string // what else went wrong
}

type fact struct{ Name, Value string }

type card struct {
	Name string
	figure
	Note   string
	Beside *figure // the published figure
}

type settings struct {
	Rows []preflight.Row
	Text string
	Bad  bool
	More int
}

type noteRow struct {
	Time  time.Time
	Level event.Level
	Text  string
	Hint  string
}

// pageData is what the script reads.
type pageData struct {
	Charts []chartData `json:"charts"`
	Heat   *heatData   `json:"heat,omitempty"`
	Last   int64       `json:"last"` // the run's newest step
}

// builder makes a view.
type builder struct {
	in  Input
	doc *metrics.Document
	run *metrics.Attempt // the newest attempt; nil if there are no logs
	now *journal.Attempt // the newest attempt; nil if there is no journal
	at  string           // JSON pointer of run

	state journal.RunState

	*view
}

func newView(in Input) *view {
	b := builder{in: in, doc: in.Document, now: in.Story.Newest(), view: &view{Generated: in.Now}}
	if b.doc == nil {
		b.doc = &metrics.Document{}
	}
	if b.run = b.doc.Newest(); b.run != nil {
		b.at = fmt.Sprintf("/attempts/%d", len(b.doc.Attempts)-1)
	}
	b.head()
	b.figures()
	b.charts()
	b.heat()
	b.timeline()
	b.skew()
	b.workers()
	b.preflight()
	b.notes()
	return b.view
}

// clip limits the length of a text that may come from anybody, and makes control characters
// visible. So the text can neither fill the page nor look like something else.
func clip(text string) string { return clipTo(text, maxText) }

func clipTo(text string, most int) string {
	if len(text) <= most {
		return visible(strings.ToValidUTF8(text, "\uFFFD"))
	}
	return visible(strings.ToValidUTF8(text[:most], "")) + " …"
}

func (b *builder) head() {
	b.view.Run = clip(cmp.Or(b.doc.Run, b.in.Story.Run))
	b.Title = b.view.Run + " · multihost"
	b.judge()
	add := func(name, value string) {
		if value != "" {
			b.Facts = append(b.Facts, fact{name, clip(value)})
		}
	}
	b.Command = clip(b.doc.Command)
	if a := b.now; a != nil {
		b.Command = cmp.Or(b.Command, clip(a.Command))
		add("slices", sliceText(b.doc.AcceleratorType, a.Slices, a.Workers))
		if a.Number() > 0 {
			add("attempt", fmt.Sprint(a.Number()))
		}
		add("began", when(a.Begins()))
		if end := b.endOf(a); !end.IsZero() {
			add("ended", when(end))
			add("took", event.Duration(end.Sub(a.Begins())))
		} else {
			add("for", event.Age(b.in.Now.Sub(a.Begins())))
		}
		if s := a.Summary; s != nil {
			add("exit status", exitText(s))
			b.fail(a, s)
		} else if a.End != nil && a.End.Error != "" {
			add("exit status", fmt.Sprint(a.End.ExitCode))
		}
		add("logs", a.LogDir)
		return
	}
	if r := b.run; r != nil {
		add("slices", sliceText(b.doc.AcceleratorType, make([]string, len(r.Slices)), workersOf(r)))
		add("attempt", fmt.Sprint(r.Number))
		if r.Began != nil {
			add("began", when(*r.Began))
		}
		if r.ExitCode != nil {
			add("exit status", fmt.Sprint(*r.ExitCode))
		}
		add("logs", r.LogDir)
	}
}

func workersOf(a *metrics.Attempt) (n int) {
	for i := range a.Slices {
		n += len(a.Slices[i].Workers)
	}
	return n
}

func sliceText(kind string, slices []string, workers int) string {
	switch {
	case workers == 0:
		return kind
	case kind == "":
		return event.Count(len(slices), "slice") + ", " + event.Count(workers, "worker")
	}
	return fmt.Sprintf("%d × %s, %s", len(slices), kind, event.Count(workers, "worker"))
}

func exitText(s *event.Summary) string {
	if s.ExitCode != s.CommandCode {
		return fmt.Sprintf("%d (the command's: %d)", s.ExitCode, s.CommandCode)
	}
	return fmt.Sprint(s.ExitCode)
}

func (b *builder) endOf(a *journal.Attempt) time.Time {
	switch {
	case a.End != nil && !a.End.Detached:
		return a.Ended
	case a.Summary != nil:
		return a.Over
	}
	return time.Time{}
}

// judge takes the verdict from the journal, or from the record if there is no journal.
func (b *builder) judge() {
	v := b.in.Story.Verdict(journal.KnownOf(b.run), b.in.Now)
	b.state = v.State
	word := string(v.State)
	b.Verdict = verdict{Word: strings.ToUpper(word[:1]) + word[1:], Text: clip(v.Text), Also: clip(v.Also)}
	switch v.State {
	case journal.Succeeded:
		b.Verdict.Class = "ok"
	case journal.Failed:
		b.Verdict.Class = "bad"
	case journal.Starting, journal.Running:
		b.Verdict.Class = "live"
		if b.run != nil && b.run.Steps > 0 {
			b.Verdict.Text = strings.TrimSuffix("step "+grouped(b.run.Last.Step)+", "+b.Verdict.Text, ", ")
		}
	default:
		b.Verdict.Class = "idle"
	}
}

// visible writes control characters in caret notation, as the terminal view does. A page
// would show nothing for most of them, and those that change the direction of text would
// make it look different.
func visible(line string) string {
	var b strings.Builder
	for _, r := range line {
		switch {
		case r == '\t' || r == '\n':
			b.WriteRune(r)
		case r < 0x20:
			b.WriteString("^" + string(r+'@'))
		case r == 0x7f:
			b.WriteString("^?")
		case r < 0xa0 && r >= 0x80, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c:
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// figures makes the cards of the newest attempt.
func (b *builder) figures() {
	r := b.run
	if r == nil || r.Steps == 0 {
		return
	}
	add := func(name string, f figure, note string, beside *figure) {
		if f.Known() {
			b.Cards = append(b.Cards, card{name, f, note, beside})
		}
	}
	b.Data.Last = r.Last.Step
	last, median := b.at+"/last", b.at+"/median"
	add("step", count(last+"/step", r.Last.Step), "", nil)
	add("step time", number(median+"/step_seconds", r.Median.StepSeconds, event.StepTime), "median", nil)
	var published, publishedMFU *figure
	note := "median"
	if c := b.doc.Compare; c != nil {
		if f := number("/compare/tflops_per_device", c.TFLOPs, rate); f.Known() {
			published = &f
		}
		if f := number("/compare/mfu", c.MFU, percent); f.Known() {
			publishedMFU = &f
		}
	}
	add("MFU", number(median+"/mfu", r.Median.MFU, percent), note, publishedMFU)
	add("TFLOP/s/device", number(median+"/tflops_per_device", r.Median.TFLOPs, rate), note, published)
	if c := b.doc.Compare; c != nil {
		add("of the published", number("/compare/ratio", c.Ratio, ratio), clip(c.Preset), nil)
	}
	add("tokens/s/device", number(median+"/tokens_per_second_per_device", r.Median.Tokens, rate), "median", nil)
	add("loss", number(last+"/loss", r.Last.Loss, rate), "last", nil)
	if text := r.Last.LossText; text != "" {
		add("loss", figure{last + "/loss_text", text, clip(text)}, "last", nil)
	}

	for _, w := range r.Warnings() {
		b.Attention = append(b.Attention, clip(w))
	}
	if c := b.doc.Compare; c != nil && c.Note != "" {
		b.Attention = append(b.Attention, clip("beside "+c.Preset+": "+c.Note))
	}
}

func (b *builder) preflight() {
	if b.now == nil || b.now.Preflight == nil {
		return
	}
	var rows []preflight.Row
	if json.Unmarshal(b.now.Preflight, &rows) != nil || len(rows) == 0 {
		return
	}
	s := &settings{}
	failed := map[string]bool{}
	all := map[string]bool{}
	for _, r := range rows {
		all[r.Setting] = true
		if r.Outcome == preflight.Failed {
			failed[r.Setting] = true
		}
	}
	s.Text = fmt.Sprintf("%d of %s as wanted on every worker", len(all)-len(failed), event.Count(len(all), "setting"))
	s.Bad = len(failed) > 0
	// Failed rows first, because people look for them.
	slices.SortStableFunc(rows, func(x, y preflight.Row) int {
		return cmp.Compare(rank(x.Outcome), rank(y.Outcome))
	})
	if len(rows) > maxRows {
		s.More = len(rows) - maxRows
		rows = rows[:maxRows]
	}
	for i := range rows {
		r := &rows[i]
		r.Want, r.Before, r.After, r.Reason, r.Workers = clip(r.Want), clip(r.Before), clip(r.After), clip(r.Reason), clip(r.Workers)
	}
	s.Rows = rows
	b.Settings = s
}

func rank(o preflight.Outcome) int {
	if o == preflight.Failed {
		return 0
	}
	return 1
}

func (b *builder) notes() {
	for _, a := range b.in.Story.Attempts {
		for _, n := range a.Notes {
			b.view.Notes = append(b.view.Notes, noteRow{n.Time, n.Level, clip(n.Text), clip(n.Hint)})
		}
	}
	if n := len(b.view.Notes); n > maxNotes { // the last notes say how the run ended
		b.MoreNotes = n - maxNotes
		b.view.Notes = b.view.Notes[n-maxNotes:]
	}
	b.NoteCount = event.Count(len(b.view.Notes), "note")
}
