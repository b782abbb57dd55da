package tpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/fault"
)

// A Pattern names some of the workers of a run. It is "all", or one or more terms separated
// by commas: s0w3, s0w*, s*w0, s[0-1]w[0-3,5]. Every text that Fold returns is a pattern.
// The zero Pattern names no worker.
type Pattern struct {
	text  string
	terms []term
}

// A term is one s…w… of a pattern.
type term struct {
	text            string
	slices, workers Numbers
}

// Numbers is a set of numbers. nil means every number.
type Numbers [][2]int

// ParseNumbers parses a list such as 0,2-3.
func ParseNumbers(text string) (Numbers, error) {
	n, ok := parseNumbers("[" + text + "]")
	if !ok {
		return nil, fmt.Errorf("%q is no list of numbers such as 0,2-3", text)
	}
	return n, nil
}

func (n Numbers) has(i int) bool {
	return n == nil || slices.ContainsFunc(n, func(r [2]int) bool { return r[0] <= i && i <= r[1] })
}

// A PatternError says what is wrong with a pattern.
type PatternError struct {
	Text    string // the wrong part of the pattern
	Problem string
	Likely  string // what the user probably meant, or ""

	hint string
}

func (e *PatternError) Error() string { return fmt.Sprintf("workers %q: %s", e.Text, e.Problem) }

// Fault returns fault.Usage.
func (e *PatternError) Fault() fault.Kind { return fault.Usage }

// Hint says how to write workers, or which workers exist.
func (e *PatternError) Hint() string {
	if e.Likely != "" {
		return "did you mean " + e.Likely + "? " + e.hint
	}
	return e.hint
}

const patternForms = "workers are written s0w3, s0w*, s[0-1]w[0-3], several with commas between, or all"

// ParsePattern parses a pattern. The error is a *PatternError.
func ParsePattern(text string) (Pattern, error) {
	p := Pattern{text: text}
	for _, word := range splitTerms(text) {
		t, ok := parseTerm(word)
		if !ok {
			return Pattern{}, &PatternError{Text: word, Problem: "not understood", Likely: likely(word), hint: patternForms}
		}
		p.terms = append(p.terms, t)
	}
	return p, nil
}

// likely returns the worker of slice 0 that word means, such as s0w3 for w3 or 3, or "".
func likely(word string) string {
	word = strings.TrimSpace(word)
	for _, whole := range []string{"s0" + word, "s0w" + word} {
		if _, ok := parseTerm(whole); ok {
			return whole
		}
	}
	return ""
}

// splitTerms splits text at the commas outside of brackets.
func splitTerms(text string) []string {
	var words []string
	depth, begin := 0, 0
	for i, c := range text {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			words = append(words, text[begin:i])
			begin = i + 1
		}
	}
	return append(words, text[begin:])
}

func parseTerm(word string) (term, bool) {
	word = strings.TrimSpace(word)
	if word == "all" {
		return term{text: word}, true
	}
	s, w, ok := strings.Cut(strings.TrimPrefix(word, "s"), "w")
	if !ok || !strings.HasPrefix(word, "s") {
		return term{}, false
	}
	t := term{text: word}
	var okS, okW bool
	t.slices, okS = parseNumbers(s)
	t.workers, okW = parseNumbers(w)
	return t, okS && okW
}

// parseNumbers parses text of the form 3, * or [0-3,5].
func parseNumbers(text string) (Numbers, bool) {
	if text == "*" {
		return nil, true
	}
	list, bracket := strings.CutPrefix(text, "[")
	if bracket {
		var closed bool
		if list, closed = strings.CutSuffix(list, "]"); !closed {
			return nil, false
		}
	}
	var n Numbers
	for part := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		a, errA := strconv.ParseUint(from, 10, 31)
		b, errB := strconv.ParseUint(to, 10, 31)
		if errA != nil || errB != nil || a > b || ranged && !bracket {
			return nil, false
		}
		n = append(n, [2]int{int(a), int(b)})
	}
	return n, true
}

// String returns the pattern as the user wrote it.
func (p Pattern) String() string { return p.text }

// IsZero reports whether the pattern names no worker.
func (p Pattern) IsZero() bool { return len(p.terms) == 0 }

// All reports whether the pattern names every possible worker.
func (p Pattern) All() bool {
	return slices.ContainsFunc(p.terms, func(t term) bool { return t.slices == nil && t.workers == nil })
}

func (t term) has(id WorkerID) bool { return t.slices.has(id.Slice) && t.workers.has(id.Worker) }

// Pick returns the workers in all that the pattern names. It keeps their order. If a term names
// none, the error is a *PatternError, because it is probably a typing mistake.
func (p Pattern) Pick(all []WorkerID) ([]WorkerID, error) {
	for _, t := range p.terms {
		if !slices.ContainsFunc(all, t.has) {
			return nil, &PatternError{Text: t.text, Problem: "there is no such worker", hint: "there are " + Fold(all)}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(id WorkerID) bool {
		return !slices.ContainsFunc(p.terms, func(t term) bool { return t.has(id) })
	}), nil
}

// Choose returns the workers that the parameter only names, without those that except names. If
// only is zero, it stands for all workers. If no worker is left, the error is a *PatternError.
func Choose(all []WorkerID, only, except Pattern) ([]WorkerID, error) {
	chosen := slices.Clone(all)
	if !only.IsZero() {
		var err error
		if chosen, err = only.Pick(all); err != nil {
			return nil, err
		}
	}
	out, err := except.Pick(all)
	if err != nil {
		return nil, err
	}
	chosen = slices.DeleteFunc(chosen, func(id WorkerID) bool { return slices.Contains(out, id) })
	if len(chosen) == 0 {
		return nil, &PatternError{Text: except.text, Problem: "nobody is left", hint: "there are " + Fold(all)}
	}
	return chosen, nil
}
