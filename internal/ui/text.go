package ui

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"multihost/internal/event"
	"multihost/internal/suspect"
	"multihost/internal/tpu"
)

const program = "multihost: "

// A color is an SGR parameter.
type color string

const (
	dim    color = "2"
	red    color = "31"
	green  color = "32"
	yellow color = "33"
)

// A painter adds colours if it is true.
type painter bool

func (p painter) start(c color) string {
	if !p {
		return ""
	}
	return "\x1b[" + string(c) + "m"
}

func (p painter) end() string {
	if !p {
		return ""
	}
	return "\x1b[0m"
}

// appendMessage appends "multihost: label: text", with further lines of the text indented.
// It leaves out the label "info".
func appendMessage(b []byte, p painter, label, text string) []byte {
	b = append(b, program...)
	if label != string(event.Info) && label != "" {
		var c color
		switch label {
		case "error":
			c = red
		case string(event.Warn):
			c = yellow
		default:
			c = dim
		}
		b = append(b, p.start(c)...)
		b = append(b, label...)
		b = append(b, ':')
		b = append(b, p.end()...)
		b = append(b, ' ')
	}
	return appendIndented(b, text, "  ")
}

// appendIndented appends text in visible form, with a final newline. All lines except the
// first are indented.
func appendIndented(b []byte, text, indent string) []byte {
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if i > 0 {
			b = append(b, indent...)
		}
		b = appendVisible(b, []byte(line))
		b = append(b, '\n')
	}
	return b
}

func endLine(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// PrintError writes err, and also hint if that is not "". hint says what to type next.
// color says whether the labels have colours.
//
//	multihost: error: create queued resource "q7": quota exceeded
//	multihost: hint: …
func PrintError(w io.Writer, color bool, err error, hint string) {
	b := appendMessage(nil, painter(color), "error", err.Error())
	if hint != "" {
		b = appendMessage(b, painter(color), "hint", hint)
	}
	_, _ = w.Write(b) // nobody else can be told
}

// ending describes how a command ended on a worker.
func ending(e event.WorkerDone) string {
	switch {
	case e.Error != "":
		return e.Error
	case e.Reason != "":
		return "stopped (" + e.Reason + ")"
	case e.Signal != "":
		return "killed by SIG" + strings.TrimPrefix(e.Signal, "SIG")
	}
	return "exit code " + strconv.Itoa(e.Code)
}

// attemptText describes how an attempt ended and what follows.
func attemptText(e event.AttemptEnd) string {
	text := fmt.Sprintf("attempt %d ended after %s: %s", e.Attempt, event.Duration(e.Elapsed), e.Reason())
	if e.Next != "" {
		text += "; " + e.Next
	}
	return text
}

func stateLine(b []byte, s event.State) []byte {
	text := fmt.Sprintf("%s %q: %s", s.Resource, s.Name, s.State)
	if s.Detail != "" {
		text += ": " + s.Detail
	}
	if s.Elapsed > 0 {
		text += " (" + event.Duration(s.Elapsed) + ")"
	}
	return appendIndented(b, text, "  ")
}

// verdictText describes how a run ended.
func verdictText(s event.Summary) string {
	switch {
	case s.Text != "":
		return s.Text
	case s.OK:
		return fmt.Sprintf("run %q: ok", s.Run)
	}
	return fmt.Sprintf("run %q failed, exit code %d", s.Run, s.ExitCode)
}

// appendVerdict appends how a run ended, and the next command to type.
func appendVerdict(b []byte, p painter, s event.Summary) []byte {
	c := green
	switch {
	case !s.OK || s.ExitCode != 0:
		c = red
	case s.LeftBehind > 0:
		c = yellow
	}
	b = append(b, program...)
	for i, line := range strings.Split(strings.TrimRight(verdictText(s), "\n"), "\n") {
		if i > 0 {
			b = append(b, "  "...)
		}
		b = append(b, p.start(c)...)
		b = appendVisible(b, []byte(line))
		b = append(b, p.end()...)
		b = append(b, '\n')
	}
	next := s.Next
	if next == "" && !s.OK && s.Run != "" {
		next = "multihost logs " + s.Run
	}
	if next != "" {
		b = appendMessage(b, p, "hint", next)
	}
	return b
}

// appendSummary appends what is known about a run that has ended: equal endings folded,
// times, where the logs are, and the first failure with its last lines. Then comes the
// verdict. It cuts lines of the failure so that summary and verdict fit on a terminal with
// this many columns. 0 columns: there is no terminal.
func appendSummary(b []byte, p painter, s event.Summary, ended []event.WorkerDone, columns int) []byte {
	row := func(name, value string) {
		b = append(b, "  "...)
		b = appendIndented(b, name+": "+value, "    ")
	}
	for _, g := range groupEndings(ended) {
		n := ""
		if len(g.ids) > 1 {
			n = fmt.Sprintf(" (%d workers)", len(g.ids))
		}
		row(g.ending, tpu.Fold(g.ids)+n)
	}
	for _, line := range s.Training {
		row("training", line)
	}
	if len(s.Phases) > 0 {
		var times []string
		for _, t := range s.Phases {
			times = append(times, t.Name+" "+event.Duration(t.Elapsed))
		}
		row("time", strings.Join(times, ", "))
	}
	if s.Skew > 0 {
		row("start skew", event.Duration(s.Skew))
	}
	if s.LogDir != "" {
		row("logs", s.LogDir)
	}
	if s.FirstFail == "" {
		return b
	}
	row("first failure", s.FirstFail)
	lines := decisiveLines(s.LastLines)
	for i, line := range lines {
		const bar = "    │ "
		b = append(b, "    "...)
		b = append(b, p.start(dim)...)
		b = append(b, "│"...)
		b = append(b, p.end()...)
		b = append(b, ' ')
		text := string(appendVisible(nil, []byte(line)))
		if room := columns - utf8.RuneCountInString(bar) - 1; columns > 0 {
			switch {
			case i == len(lines)-1: // almost always the exception
				text = cutToWidth(text, room+(lastRows-1)*columns)
			case strings.HasPrefix(strings.TrimSpace(text), "File "):
				text = cutInside(text, room)
			default:
				text = cutToWidth(text, room)
			}
		}
		b = append(b, text...)
		b = append(b, '\n')
	}
	return b
}

const (
	// mostLines limits the lines of the first failure above the verdict. These lines and
	// the verdict fit on a terminal of 24 rows.
	mostLines = 5
	// lastRows limits the rows of the last of these lines.
	lastRows = 3
)

// decisiveLines returns the last lines of a failure that say something. It leaves out empty
// lines, and redrawn ones such as progress bars. It keeps a redrawn line if the text
// printed over it looks like an error.
func decisiveLines(last []string) (lines []string) {
	for _, line := range last {
		line = strings.TrimRight(line, "\r\n")
		at := strings.LastIndexByte(line, '\r')
		final := strings.TrimRight(line[at+1:], " \t")
		if final == "" || at >= 0 && !suspect.Traceback([]byte(final)) && !suspect.Line([]byte(final)) {
			continue
		}
		if len(final) > maxLine {
			final = string(wholeRunes([]byte(final[:maxLine]))) + "…"
		}
		lines = append(lines, final)
	}
	return lines[max(0, len(lines)-mostLines):]
}

// endings holds how the command ended on the workers in the last attempt.
type endings struct {
	all    []event.WorkerDone
	failed int // number of workers that failed by themselves
}

// add adds done, and reports whether it is the first failure.
func (e *endings) add(done event.WorkerDone) bool {
	e.all = append(e.all, done)
	if done.Code == 0 || done.Reason != "" {
		return false
	}
	e.failed++
	return e.failed == 1
}

type endingGroup struct {
	ending string
	ids    []tpu.WorkerID
	first  time.Time
	rank   int // order: workers that failed by themselves, workers that were stopped, the others
}

// groupEndings folds equal endings. It returns nil if the run ended well on every worker.
func groupEndings(ended []event.WorkerDone) []endingGroup {
	var groups []endingGroup
	bad := false
	for _, e := range ended {
		text := ending(e)
		bad = bad || e.Code != 0 || e.Reason != ""
		i := slices.IndexFunc(groups, func(g endingGroup) bool { return g.ending == text })
		if i < 0 {
			rank := 0
			switch {
			case e.Reason != "":
				rank = 1
			case e.Code == 0:
				rank = 2
			}
			i = len(groups)
			groups = append(groups, endingGroup{ending: text, first: e.End, rank: rank})
		}
		g := &groups[i]
		g.ids = append(g.ids, tpu.WorkerID{Slice: e.Slice, Worker: e.Worker})
		if e.End.Before(g.first) {
			g.first = e.End
		}
	}
	if !bad {
		return nil
	}
	slices.SortStableFunc(groups, func(a, b endingGroup) int {
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		return a.first.Compare(b.first)
	})
	return groups
}
