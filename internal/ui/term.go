package ui

import (
	"io"

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
