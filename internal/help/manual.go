package help

import (
	"fmt"
	"strings"
	"unicode"
)

// A Manual is the manual page of one command.
type Manual struct {
	Program, Version string
	Name             string // what users type: multihost run
	Usage            string
	Synopsis         string
	Text             string // as in a Page
	Flags            []Flag
	Commands         []Row
	Environment      string // only in the program's own page
}

// ManualName returns the name of the manual page of a command.
func ManualName(command string) string { return strings.ReplaceAll(command, " ", "-") }

// Roff returns the page in the language of man(1).
func (m Manual) Roff() string {
	var b strings.Builder
	name := ManualName(m.Name)
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"%s manual\"\n", strings.ToUpper(name), m.Program+" "+m.Version, m.Program)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(m.Usage))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n%s\n", roff(m.Name), roff(m.Synopsis))
	manualText(&b, m.Text)
	if len(m.Flags) > 0 {
		b.WriteString(".SH OPTIONS\n")
	}
	for _, f := range m.Flags {
		f.roff(&b)
	}
	if len(m.Commands) > 0 {
		b.WriteString(".SH COMMANDS\n")
	}
	for _, c := range m.Commands {
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(1)\n%s\n", roff(name+"-"+c.Names[0]), roff(c.Text))
	}
	if m.Environment != "" {
		b.WriteString(".SH ENVIRONMENT\n" + roff(m.Environment) + "\n")
		return b.String()
	}
	var also []string
	for at := m.Name; strings.Contains(at, " "); {
		at = at[:strings.LastIndex(at, " ")]
		also = append(also, fmt.Sprintf("\\fB%s\\fR(1)", roff(ManualName(at))))
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n.PP\nThe flags of every command are in\n\\fB%s\\fR(1).\n", strings.Join(also, ",\n"), roff(m.Program))
	return b.String()
}

// roff writes a flag with all its names to b.
func (f Flag) roff(b *strings.Builder) {
	b.WriteString(".TP\n")
	for i, n := range f.Names {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(b, `\fB%s\fR`, roff(n))
		switch {
		case f.Optional:
			fmt.Fprintf(b, `[=\fI%s\fR]`, roff(f.Value))
		case f.Value != "":
			fmt.Fprintf(b, `=\fI%s\fR`, roff(f.Value))
		}
	}
	fmt.Fprintf(b, "\n%s", roff(f.Text))
	if f.Default != "" {
		fmt.Fprintf(b, " (default: %s)", roff(f.Default))
	}
	b.WriteString("\n")
}

// manualText writes a description. Lines in capitals with a colon at the end are headings.
// Indented lines stay as they are.
func manualText(b *strings.Builder, description string) {
	if description == "" {
		return
	}
	const text, verbatim, fresh = "text", "verbatim", "fresh"
	state := fresh
	enter := func(next string) {
		if state == verbatim && next != verbatim {
			b.WriteString(".fi\n.RE\n")
		}
		if next == verbatim && state != verbatim {
			b.WriteString(".RS 2\n.nf\n")
		}
		state = next
	}
	blank := false
	b.WriteString(".SH DESCRIPTION\n")
	for line := range strings.Lines(strings.TrimRight(description, "\n")) {
		line = strings.TrimRight(line, " \n")
		switch {
		case line == "":
			blank = true
			continue
		case strings.HasSuffix(line, ":") && line == strings.ToUpper(line) && strings.IndexFunc(line, unicode.IsLetter) == 0:
			enter(fresh)
			fmt.Fprintf(b, ".SH %s\n", roff(strings.TrimSuffix(line, ":")))
		case line[0] == ' ':
			if blank && state == text {
				b.WriteString(".PP\n")
			} else if blank && state == verbatim {
				b.WriteString("\n")
			}
			enter(verbatim)
			b.WriteString(roff(strings.TrimPrefix(line, "  ")) + "\n")
		default:
			if blank && state != fresh {
				enter(text)
				b.WriteString(".PP\n")
			}
			enter(text)
			b.WriteString(roff(line) + "\n")
		}
		blank = false
	}
	enter(fresh)
}

// roff escapes text for the formatter. The result is ASCII, because not every formatter reads
// UTF-8.
func roff(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case i == 0 && (r == '.' || r == '\''):
			b.WriteString(`\&` + string(r))
		case r == '\'':
			b.WriteString(`\(aq`)
		case r > unicode.MaxASCII:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
