package tpu

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"multihost/internal/fault"
)

// A Copy says which files to copy where. Either the sources or the destination are on
// workers.
type Copy struct {
	Sources []string
	Dest    string
	Workers Pattern
	Up      bool // true: the destination is on the workers
}

// A CopyError says what is wrong with the words of a copy.
type CopyError struct {
	Text   string
	Advice string // what to type instead, or ""
}

func (e *CopyError) Error() string { return e.Text }

// Hint returns the advice.
func (e *CopyError) Hint() string { return e.Advice }

// Fault returns fault.Usage.
func (e *CopyError) Fault() fault.Kind { return fault.Usage }

// ParseCopy reads the sources and the destination of a copy. The destination is the last of
// at least two words. A name on workers begins with a pattern of workers and a colon.
// Errors are *CopyError.
func ParseCopy(words []string) (Copy, error) {
	files := slices.Clone(words)
	whose := make([]string, len(words)) // for each word, the workers before the colon; "" for a local name
	for i, w := range words {
		if w == "" {
			return Copy{}, &CopyError{Text: "a name is empty"}
		}
		if workers, file, ok := strings.Cut(w, ":"); ok {
			if _, err := ParsePattern(workers); err == nil {
				whose[i], files[i] = workers, file
			}
		}
	}
	last := len(words) - 1
	c := Copy{Sources: files[:last], Dest: files[last], Up: whose[last] != ""}
	on := whose[0]
	if c.Up {
		on = whose[last]
	}
	for i, w := range whose[:last] {
		switch {
		case c.Up && w != "":
			return c, &CopyError{Text: fmt.Sprintf("%q and %q are both on workers; multihost copies to or from this machine", words[i], words[last])}
		case !c.Up && w != on:
			return c, &CopyError{Text: fmt.Sprintf("the sources are on different workers (%q, %q)", words[0], words[i])}
		}
	}
	if on == "" {
		return c, noWorkers(words)
	}
	c.Workers, _ = ParsePattern(on) // parsed above
	return c, nil
}

// noWorkers returns the error for a copy in which no word names workers.
func noWorkers(words []string) error {
	for _, w := range words {
		name, file, _ := strings.Cut(w, ":")
		if likely := LikelyPattern(name); likely != "" && file != "" {
			return &CopyError{Text: fmt.Sprintf("%q names no workers", name), Advice: "did you mean " + likely + ":" + file + "?"}
		}
	}
	return &CopyError{Text: "neither the sources nor the destination are on workers", Advice: "names on workers begin with the workers and a colon: all:FILE, s0w3:FILE, s0w*:FILE"}
}

// LikelyPattern returns the pattern that the user probably meant by words, such as s0w0 for w0.
// It returns "" if words is a pattern or nothing is likely.
func LikelyPattern(words string) string {
	_, err := ParsePattern(words)
	var wrong *PatternError
	if !errors.As(err, &wrong) {
		return ""
	}
	return wrong.Likely
}
