// Package help lays out the help of a command for the width of a terminal, and as a manual
// page.
package help

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Page is the help of one command.
type Page struct {
	Name     string // what users type: multihost run
	Usage    string // purpose of the command, in one line
	Synopsis string // what follows the name
	Text     string // in the form of Paragraphs
	Commands []Section
	Flags    []Section
	End      string // more Text, after the sections
}

// A Section is a list of flags or commands under a title.
type Section struct {
	Title string
	Rows  []Row
}

// A Row says what a flag or a command does. Its names are on one line, with commas between
// them.
type Row struct {
	Names []string
	Text  string
	Note  string // on one line after the text, for example (default: 10m)
}

// Columns of a page.
const (
	Narrowest = 60  // a narrower terminal breaks the lines itself
	widest    = 100 // longer lines are hard to read

	indent  = 2
	gap     = 2
	texts   = 45 // smallest width of a text beside its names
	names   = 26 // largest width of names beside a text
	fewest  = 20 // with less room for names, if one does not fit, all texts are below their names
	stacked = 6  // column of a text below its names
)

// Lay returns the page in lines of at most width columns.
func (p Page) Lay(width int) string {
	width = min(max(width, Narrowest), widest)
	lines := wrap(strings.Fields(p.Name+": "+p.Usage), "", "  ", width)
	lines = append(lines, "")
	lines = append(lines, wrap(strings.Fields("Usage: "+p.Name+" "+p.Synopsis), "", "       ", width)...)
	if p.Text != "" {
		lines = append(append(lines, ""), Paragraphs(p.Text, width)...)
	}
	lines = append(lines, list(p.Commands, width)...)
	lines = append(lines, list(p.Flags, width)...)
	if p.End != "" {
		lines = append(append(lines, ""), Paragraphs(p.End, width)...)
	}
	return strings.Join(lines, "\n") + "\n"
}

// list returns the lines of sections. All texts begin in the same column.
func list(sections []Section, width int) (lines []string) {
	column := column(sections, width)
	for _, s := range sections {
		lines = append(lines, "", strings.ToUpper(s.Title)+":")
		for _, r := range s.Rows {
			lines = append(lines, r.lines(column, width)...)
		}
	}
	return lines
}

// column returns the column in which the texts of all rows begin.
func column(sections []Section, width int) int {
	room := min(width-indent-gap-texts, names)
	longest, all := 0, true
	for _, s := range sections {
		for _, r := range s.Rows {
			if n := columns(r.label()); n <= room {
				longest = max(longest, n)
			} else {
				all = false
			}
		}
	}
	if longest == 0 || room < fewest && !all {
		return stacked
	}
	return indent + longest + gap
}

func (r Row) label() string { return strings.Join(r.Names, ", ") }

// lines puts the text beside the names, or below them if they reach into the text's column.
func (r Row) lines(column, width int) []string {
	words := strings.Fields(r.Text)
	if r.Note != "" {
		words = append(words, r.Note)
	}
	left, below := strings.Repeat(" ", indent), strings.Repeat(" ", column)
	if label := left + r.label(); columns(label)+gap <= column {
		return wrap(words, pad(label, column), below, width)
	}
	return append(wrap(strings.Split(strings.Join(r.Names, ",\x00"), "\x00"), left, left+"  ", width), wrap(words, below, below, width)...)
}

var (
	heading = regexp.MustCompile(`^[A-Z][A-Z ]*:$`)
	// cell matches the left column of a line with two columns, and the gap after it.
	cell = regexp.MustCompile(`^ *\S+(?: \S+)*  +`)
	// item matches the indentation and the number at the beginning of a line.
	item = regexp.MustCompile(`^ *(?:[0-9]+\. )?`)
)

// Paragraphs fits a text into width columns. Lines without indentation are joined and wrapped,
// up to an empty line or a heading in capitals. An indented line is not joined with others. If
// it is too long, it continues in the next line: below the second column if it has two columns.
// In a command of multihost, a backslash ends each line except the last.
func Paragraphs(text string, width int) []string {
	var lines, words []string
	flush := func() {
		lines = append(lines, wrap(words, "", "", width)...)
		words = nil
	}
	begun := "" // a command that continues in the next line
	for line := range strings.Lines(strings.Trim(text, "\n")) {
		line = strings.TrimRightFunc(line, unicode.IsSpace)
		if begun != "" {
			line = begun + strings.TrimLeft(line, " ")
		}
		var more bool
		if begun, more = strings.CutSuffix(line, `\`); more {
			continue
		}
		begun = ""
		switch {
		case line == "" || heading.MatchString(line):
			flush()
			lines = append(lines, line)
		case line[0] != ' ':
			words = append(words, strings.Fields(line)...)
		default:
			flush()
			lines = append(lines, hang(line, width)...)
		}
	}
	flush()
	return lines
}

// hang wraps an indented line at width columns.
func hang(line string, width int) []string {
	if columns(line) <= width {
		return []string{line}
	}
	margin := line[:len(line)-len(strings.TrimLeft(line, " "))]
	if left := cell.FindString(line); left != "" {
		right := strings.Fields(line[len(left):])
		if at := columns(left); width-at >= texts {
			return wrap(right, left, strings.Repeat(" ", at), width)
		}
		below := margin + "    "
		return append(hang(strings.TrimRight(left, " "), width), wrap(right, below, below, width)...)
	}
	if !strings.HasPrefix(line, margin+"multihost ") {
		first := item.FindString(line)
		return wrap(strings.Fields(line[len(first):]), first, strings.Repeat(" ", columns(first)), width)
	}
	const more = ` \`
	words := shellWords(line)
	lines := wrap(words, margin, margin+"  ", width)
	if len(lines) == 1 {
		return lines
	}
	lines = wrap(words, margin, margin+"  ", width-len(more))
	for i := range lines[:len(lines)-1] {
		lines[i] += more
	}
	return lines
}

// shellWords splits a command at unquoted spaces.
func shellWords(line string) []string {
	var words []string
	var quote rune
	var word strings.Builder
	end := func() {
		if word.Len() > 0 {
			words = append(words, word.String())
		}
		word.Reset()
	}
	for _, r := range line {
		switch {
		case r == ' ' && quote == 0:
			end()
			continue
		case r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		}
		word.WriteRune(r)
	}
	end()
	return words
}

// wrap puts words into lines of at most width columns. A word that is too long gets a line of
// its own.
func wrap(words []string, first, rest string, width int) []string {
	if len(words) == 0 {
		return nil
	}
	var lines []string
	line, empty := first, true
	for _, w := range words {
		if !empty && columns(line)+1+columns(w) > width {
			lines, line, empty = append(lines, line), rest, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+w, false
	}
	return append(lines, line)
}

func pad(text string, to int) string { return text + strings.Repeat(" ", to-columns(text)) }

// columns returns the width of a text. No character in help is two columns wide.
func columns(text string) int { return utf8.RuneCountInString(text) }
