package ui

import (
	"cmp"
	"io"
	"strconv"

	"golang.org/x/term"
)

// IsTerminal reports whether w is a terminal that obeys escape sequences.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd())) && takesEscapes(f.Fd())
}

// TerminalWidth returns the columns of the terminal w, or 0 if they are unknown.
func TerminalWidth(w io.Writer) int {
	if f, ok := w.(interface{ Fd() uintptr }); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 0
}

// Colors reports whether to write colours to w, by the conventions of no-color.org and
// bixense.com/clicolors. The default is colours on a terminal. CLICOLOR=0 and TERM=dumb
// turn them off. CLICOLOR_FORCE forces them even without a terminal, and NO_COLOR forbids
// them. lookup reads the environment.
func Colors(lookup func(name string) (string, bool), w io.Writer) bool {
	is := func(name string) string {
		v, _ := lookup(name)
		return v
	}
	switch force := is("CLICOLOR_FORCE"); {
	case is("NO_COLOR") != "":
		return false
	case force != "" && force != "0":
		return true
	case is("CLICOLOR") == "0" || is("TERM") == "dumb":
		return false
	}
	return IsTerminal(w)
}

// Columns returns how many columns a text on w may use: those of the terminal, but at most
// COLUMNS if that is set. lookup reads the environment.
func Columns(lookup func(name string) (string, bool), w io.Writer) int {
	text, _ := lookup("COLUMNS")
	columns, err := strconv.Atoi(text)
	if err != nil || columns < 1 {
		columns = 0
	}
	terminal := TerminalWidth(w)
	if columns > 0 && terminal > 0 {
		return min(columns, terminal)
	}
	return cmp.Or(terminal, columns, 80)
}
