package report

import (
	"fmt"
	"regexp"
	"strings"

	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/metrics"
	"multihost/internal/tpu"
)

type failure struct {
	Text  string
	Cause string // the line that says why the command failed, or ""
	Lines []lastLine
	Log   string // command that prints the whole log
}

// A lastLine is one of the last lines that the worker printed.
type lastLine struct {
	Text  string
	Cause bool
}

// maxCause limits the line that says why the command failed, in its own row. The lines
// below have more of it.
const maxCause = 600

func (b *builder) fail(a *journal.Attempt, s *event.Summary) {
	if s.FirstFail == "" {
		return
	}
	f := &failure{Text: clip(s.FirstFail)}
	lines := make([]string, len(s.LastLines))
	for i, line := range s.LastLines {
		lines[i] = final(line)
	}
	why := decisive(lines)
	for i, line := range lines {
		f.Lines = append(f.Lines, lastLine{clip(line), i == why})
	}
	if why >= 0 {
		f.Cause = clipTo(strings.TrimSpace(lines[why]), maxCause)
	}
	if id, ok := firstFailed(s); ok {
		f.Log = fmt.Sprintf("multihost logs %s --worker=%s", b.view.Run, id)
	}
	b.Failure = f
}

// firstFailed returns the worker that failed first.
func firstFailed(s *event.Summary) (tpu.WorkerID, bool) {
	name, _, ok := strings.Cut(s.FirstFail, ":")
	if !ok {
		return tpu.WorkerID{}, false
	}
	id, err := tpu.ParseWorkerID(name)
	return id, err == nil
}

// final returns what stays of a line on a terminal: the text after the last carriage
// return.
func final(line string) string {
	line = strings.TrimRight(line, "\r\n")
	return line[strings.LastIndexByte(line, '\r')+1:]
}

var (
	tagged = regexp.MustCompile(`^\[[^\]]{1,40}\]: ?`) // torchrun's prefix: "[rank0]: "
	traced = regexp.MustCompile(`^(Traceback \(most recent call last\)|  File ")`)
	thrown = regexp.MustCompile(`^([A-Za-z_]\w*\.)*[A-Za-z_]\w*(:( .*)?)?$`)
	// The name of an exception, for a traceback without frames among the lines.
	named   = regexp.MustCompile(`^([A-Za-z_]\w*\.)*\w*(Error|Exception|Interrupt)(:( .*)?)?$`)
	crashed = regexp.MustCompile(`^(panic: |fatal error: |Fatal Python error: |terminate called |\s*what\(\):|F\d{4} |F\d{8} )|Check failed: `)
	killed  = regexp.MustCompile(`^(Segmentation fault|Aborted|Killed|Bus error|Illegal instruction|Floating point exception)\b|: line \d+: +\d+ [A-Z][a-z]+|\(core dumped\)`)
	faulty  = regexp.MustCompile(`(?i)\b(\w*error|\w*exception|fatal|failed|failure|cannot|could not|unable to|not found|no such file|denied|refused|out of memory|unrecognized|invalid)\b`)
	warning = regexp.MustCompile(`(?i)warn(ing)?\b|^W\d{4} `)
)

// decisive returns the index of the line that says why a command failed, or -1. It is the
// line of the last exception of Python or another language. Without one, it is the shell's
// message about a process that a signal ended. Without that, it is the last line that
// mentions an error.
func decisive(lines []string) int {
	exception, signal, word := -1, -1, -1
	tracing := false
	for i, line := range lines {
		line = tagged.ReplaceAllString(line, "")
		if _, step := metrics.ParseStep([]byte(line)); step || strings.TrimSpace(line) == "" {
			continue
		}
		// The frames of a traceback are indented. The line of the exception follows.
		switch {
		case traced.MatchString(line):
			tracing = true
			continue
		case tracing && strings.HasPrefix(line, " "):
			continue
		case tracing && thrown.MatchString(line):
			exception = i
		}
		tracing = false
		switch {
		case named.MatchString(line), crashed.MatchString(line):
			exception = i
		case killed.MatchString(line):
			signal = i
		case faulty.MatchString(line) && !warning.MatchString(line):
			word = i
		}
	}
	switch {
	case exception >= 0:
		return exception
	case signal >= 0:
		return signal
	}
	return word
}
