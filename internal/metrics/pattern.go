package metrics

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"multihost/internal/fault"
)

// A Pattern reads the step lines of a trainer that is not MaxText.
type Pattern struct {
	re     *regexp.Regexp
	groups []int // in the order of groupNames; -1: absent
}

// The groups that a pattern may name. step is required.
const (
	groupStep = iota
	groupSeconds
	groupMilliseconds
	groupStepsPerSecond
	groupTFLOPs
	groupTokens
	groupMFUPercent
	groupLoss
)

var groupNames = []string{"step", "seconds", "milliseconds", "steps_per_second", "tflops", "tokens", "mfu_percent", "loss"}

const patternExample = `--metrics-regex='step (?P<step>\d+) .*loss=(?P<loss>\S+) .*time=(?P<seconds>\S+)s'`

// A PatternError says what is wrong with a pattern.
type PatternError struct {
	Pattern string
	Why     string
}

func (e *PatternError) Error() string {
	return fmt.Sprintf("parse pattern of step lines %q: %s", e.Pattern, e.Why)
}

// Fault returns fault.Usage.
func (e *PatternError) Fault() fault.Kind { return fault.Usage }

// Hint says what to type instead.
func (e *PatternError) Hint() string {
	return "name the figures by groups, as in " + patternExample
}

// ParsePattern reads a regular expression in RE2 syntax with named groups. step is
// required. The others are seconds, milliseconds, steps_per_second (the time of a step in
// one of three ways), tflops (per second and device), tokens (per second and device),
// mfu_percent and loss. Every line is searched for the pattern. The error is a
// *PatternError.
func ParsePattern(text string) (*Pattern, error) {
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, &PatternError{text, strings.TrimPrefix(err.Error(), "error parsing regexp: ")}
	}
	p := &Pattern{re: re, groups: make([]int, len(groupNames))}
	for i := range p.groups {
		p.groups[i] = -1
	}
	for i, name := range re.SubexpNames() {
		if name == "" {
			continue
		}
		at := slices.Index(groupNames, name)
		switch {
		case at < 0:
			return nil, &PatternError{text, fmt.Sprintf("group %q is none of %s", name, strings.Join(groupNames, ", "))}
		case p.groups[at] >= 0:
			return nil, &PatternError{text, fmt.Sprintf("group %q is there twice", name)}
		}
		p.groups[at] = i
	}
	times, named := 0, 0
	for i, g := range p.groups {
		if g < 0 {
			continue
		}
		named++
		if i == groupSeconds || i == groupMilliseconds || i == groupStepsPerSecond {
			times++
		}
	}
	switch {
	case p.groups[groupStep] < 0:
		return nil, &PatternError{text, "it has no group \"step\""}
	case named == 1:
		return nil, &PatternError{text, "it has no group besides \"step\""}
	case times > 1:
		return nil, &PatternError{text, "seconds, milliseconds and steps_per_second are the same figure; keep one"}
	}
	return p, nil
}

// String returns the text that ParsePattern read.
func (p *Pattern) String() string { return p.re.String() }

func (p *Pattern) parse(line []byte) (Step, bool) {
	at := p.re.FindSubmatchIndex(line)
	if at == nil {
		return Step{}, false
	}
	group := func(i int) []byte {
		g := p.groups[i]
		if g < 0 || at[2*g] < 0 {
			return nil
		}
		return line[at[2*g]:at[2*g+1]]
	}
	number, digits := leadingInt(group(groupStep))
	if digits == 0 {
		return Step{}, false
	}
	s := emptyStep()
	s.Number = number
	s.Seconds = positive(group(groupSeconds))
	if v := positive(group(groupMilliseconds)); !math.IsNaN(v) {
		s.Seconds = v / 1000
	}
	if v := positive(group(groupStepsPerSecond)); v > 0 {
		s.Seconds = 1 / v
	}
	s.TFLOPs = positive(group(groupTFLOPs))
	s.Tokens = positive(group(groupTokens))
	s.MFU = positive(group(groupMFUPercent)) / 100
	if v := group(groupLoss); v != nil {
		s.setLoss(v)
	}
	return s, true
}
