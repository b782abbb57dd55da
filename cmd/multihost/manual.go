package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/event"
)

func (p *program) manualCommand() *cli.Command {
	return command(cli.Command{
		Name:      "manual",
		Usage:     "write the manual pages, one for each command",
		ArgsUsage: "DIR",
		Description: `Writes multihost.1, multihost-run.1 and so on into a directory that man(1) looks
into, and makes it if need be:

  multihost manual ~/.local/share/man/man1
  man multihost-run`,
		Action: func(c *cli.Context) error {
			dir := p.oneArgument("multihost manual", "directory")
			if err := p.ready(c); err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			pages := manualPages(p.app())
			for _, name := range slices.Sorted(maps.Keys(pages)) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(pages[name]), 0o644); err != nil {
					return err
				}
			}
			return p.said(c, fmt.Sprintf("wrote %d manual pages", len(pages)), event.Result{Name: "manual", Data: writtenPages{dir, len(pages)}})
		},
	}, exitOK, exitUsage, exitIO)
}

// walk visits the commands that are not hidden, with all below them; path is what users
// type.
func walk(commands []*cli.Command, parent string, visit func(path string, c *cli.Command)) {
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		path := parent + " " + c.Name
		visit(path, c)
		walk(c.Subcommands, path, visit)
	}
}

// flagRow is a flag as the documents show it.
type flagRow struct {
	names           []string // with their dashes
	value           string   // the placeholder for its value; "" for a switch
	optional        bool     // the value may be left out
	usage, fallback string
}

// flagRows lists the flags that are not hidden.
func flagRows(flags []cli.Flag) []flagRow {
	var rows []flagRow
	for _, f := range flags {
		d, ok := f.(cli.DocGenerationFlag)
		if v, hidden := f.(cli.VisibleFlag); !ok || hidden && !v.IsVisible() {
			continue
		}
		row := flagRow{usage: strings.ReplaceAll(d.GetUsage(), "`", ""), fallback: d.GetDefaultText(), optional: kindOf(f) == config.Optional}
		for _, n := range f.Names() {
			dash := "--"
			if len(n) == 1 {
				dash = "-"
			}
			row.names = append(row.names, dash+n)
		}
		if _, rest, quoted := strings.Cut(d.GetUsage(), "`"); quoted {
			row.value, _, _ = strings.Cut(rest, "`")
		} else if d.TakesValue() {
			row.value = "VALUE"
		}
		switch row.fallback {
		case `""`, "false", "0s":
			row.fallback = ""
		}
		if strings.Contains(row.usage, "default: ") { // says what none stands for
			row.fallback = ""
		}
		row.fallback = shortTime(strings.Trim(row.fallback, `"`))
		if kindOf(f) == config.List {
			row.usage += "; may be repeated"
		}
		rows = append(rows, row)
	}
	return rows
}

// writtenPages is the result of manual.
type writtenPages struct {
	Dir   string `json:"dir"`
	Pages int    `json:"pages"`
}

// manualPages returns the manual pages of all commands, by file name.
func manualPages(app *cli.App) map[string]string {
	pages := map[string]string{"multihost.1": manualPage("multihost", app.Usage, "COMMAND [FLAG…]", app.Description, everyRows(app.Flags), app.Commands)}
	walk(app.Commands, "multihost", func(path string, c *cli.Command) {
		words := strings.TrimSpace("[FLAG…] " + c.ArgsUsage)
		pages[manualName(path)+".1"] = manualPage(path, c.Usage, words, c.Description, flagRows(c.Flags), c.Subcommands)
	})
	return pages
}

func manualName(path string) string { return strings.ReplaceAll(path, " ", "-") }

func manualPage(path, usage, words, description string, flags []flagRow, below []*cli.Command) string {
	var b strings.Builder
	name := manualName(path)
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"multihost manual\"\n", strings.ToUpper(name), "multihost "+version())
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(usage))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n%s\n", roff(path), roff(words))
	manualText(&b, description)
	var rows strings.Builder
	for _, row := range flags {
		rows.WriteString(".TP\n")
		for i, n := range row.names {
			if i > 0 {
				rows.WriteString(", ")
			}
			fmt.Fprintf(&rows, `\fB%s\fR`, roff(n))
			switch {
			case row.optional:
				fmt.Fprintf(&rows, `[=\fI%s\fR]`, roff(row.value))
			case row.value != "":
				fmt.Fprintf(&rows, `=\fI%s\fR`, roff(row.value))
			}
		}
		fmt.Fprintf(&rows, "\n%s", roff(row.usage))
		if row.fallback != "" {
			fmt.Fprintf(&rows, " (default: %s)", roff(row.fallback))
		}
		rows.WriteString("\n")
	}
	if rows.Len() > 0 {
		b.WriteString(".SH OPTIONS\n" + rows.String())
	}
	var also []string
	for i, c := range below {
		if c.Hidden {
			continue
		}
		if i == 0 {
			b.WriteString(".SH COMMANDS\n")
		}
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(1)\n%s\n", roff(name+"-"+c.Name), roff(c.Usage))
	}
	if path == "multihost" {
		b.WriteString(".SH ENVIRONMENT\n" + roff("Each flag takes its default from the variable MULTIHOST_FLAG_NAME where that is set: "+
			"its name in upper case, with underscores for dashes.") + "\n")
		return b.String()
	}
	for at := path; strings.Contains(at, " "); {
		at = at[:strings.LastIndex(at, " ")]
		also = append(also, fmt.Sprintf("\\fB%s\\fR(1)", roff(manualName(at))))
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n.PP\nThe flags of every command are in\n\\fBmultihost\\fR(1).\n", strings.Join(also, ",\n"))
	return b.String()
}

// manualText writes a description. Lines in capitals that end with a colon are headings;
// indented lines stay as they are.
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

// roff escapes text so that no part of it is a command of the formatter, and writes it in
// ASCII, which every formatter reads.
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
