package launch

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/remote"
)

// StackMethod says how a stack was read.
type StackMethod string

// Methods, the best one first.
const (
	BySpy    StackMethod = "py-spy"  // py-spy reads the memory of a Python process
	BySignal StackMethod = "SIGUSR1" // the process prints its stack into its log (faulthandler)
	ByKernel StackMethod = "kernel"  // the kernel shows only what each thread waits for
)

// A Stack has the stacks of all threads of one process of a run.
type Stack struct {
	PID     int         `json:"pid"`
	Command string      `json:"command"`
	Method  StackMethod `json:"method"`
	Lines   []string    `json:"lines"`

	// Printed has output that the command wrote while the process printed its stack. Only
	// BySignal sets it, and only if the stack has a known form.
	Printed []string `json:"printed,omitempty"`
}

type DumpOptions struct {
	// Wait limits how long a process may take to print its stack after SIGUSR1. 0 means 5
	// s.
	Wait time.Duration
}

// Dump returns the stacks of the run's processes, those with the most memory first. py-spy
// reads Python processes if it is installed. Otherwise Dump sends SIGUSR1 to the Python
// processes that catch this signal, and never to others. For all other processes, Dump
// returns the kernel's view. The run continues. If the attempt is not running, there are no
// stacks, and the returned phase says why.
func Dump(ctx context.Context, r remote.Runner, ref Ref, opts DumpOptions) ([]Stack, Phase, error) {
	if err := ref.check(); err != nil {
		return nil, Unknown, err
	}
	wait := opts.Wait
	if wait <= 0 {
		wait = 5 * time.Second
	}
	records, err := call(ctx, r, "dump", dumpScript, append(ref.args(), milliseconds(wait))...)
	if err != nil {
		return nil, Unknown, err
	}
	var stacks []Stack
	for _, rec := range records {
		switch rec.Word {
		case "stack":
			f := rec.Fields(3)
			stacks = append(stacks, Stack{PID: int(number(f[0])), Method: StackMethod(remote.Clean(f[1], 20)), Command: remote.Clean(f[2], 300)})
		case "line":
			if len(stacks) > 0 {
				s := &stacks[len(stacks)-1]
				indent := rec.Rest[:len(rec.Rest)-len(strings.TrimLeft(rec.Rest, " "))]
				s.Lines = append(s.Lines, indent+remote.Clean(rec.Rest, 1000))
			}
		}
	}
	for i := range stacks {
		if s := &stacks[i]; s.Method == BySignal {
			s.Lines, s.Printed = tellApart(s.Lines)
		}
	}
	return stacks, parseState(ref, records).Phase, nil
}

var (
	// faultHead begins the stack of a thread, in the form that Python's faulthandler
	// prints.
	faultHead = regexp.MustCompile(`(?:(?:Current thread|Thread) 0x[0-9a-fA-F]+[^:]*|Current thread's C stack trace |Stack )\(most recent call first\)`)
	// faultFrame is a line of such a stack.
	faultFrame = regexp.MustCompile(`^  (?:File ".*", line (?:\d+|\?\?\?) in |Binary file "|<.*>$|\.\.\.$|Garbage-collecting$)`)
	// traceFrame is a place in the form of Python's traceback. A line of the program, with
	// more indent, may follow.
	traceFrame = regexp.MustCompile(`^  File ".*", line \d+, in `)
)

// tellApart separates the stacks that a process printed on SIGUSR1 from other output. Other
// threads and processes may write to the same log at the same time. If no part has a known
// form, all of the text counts as one stack.
func tellApart(lines []string) (stack, printed []string) {
	code := false // the next line may belong to a traceFrame
	for _, line := range lines {
		at := faultHead.FindStringIndex(line)
		switch {
		case at != nil:
			if at[0] > 0 { // the stack begins in the middle of a line
				printed = append(printed, line[:at[0]])
			}
			stack, code = append(stack, line[at[0]:]), false
		case faultFrame.MatchString(line):
			stack, code = append(stack, line), false
		case traceFrame.MatchString(line):
			stack, code = append(stack, line), true
		case code && strings.HasPrefix(line, "    "):
			stack, code = append(stack, line), false
		default:
			code = false
			if line != "" {
				printed = append(printed, line)
			}
		}
	}
	if len(stack) == 0 {
		return lines, nil
	}
	return stack, printed
}

// A FoldedStack is one stack that one or more threads have, over all workers.
type FoldedStack struct {
	Workers []int    `json:"workers"` // indices into the argument of FoldStacks, ascending, without duplicates
	Threads int      `json:"threads"`
	Lines   []string `json:"lines"`
}

// FoldStacks groups the threads with the same stack, over all workers. all[i] is the result
// of Dump for worker i. FoldStacks ignores details that always differ: numbers of threads
// and processes, addresses, and whether a thread was running at that moment. Stacks of few
// workers come first: a worker that waits elsewhere than the others is usually the cause.
func FoldStacks(all [][]Stack) []FoldedStack {
	index := map[string]int{}
	var folded []FoldedStack
	for i, stacks := range all {
		for _, s := range stacks {
			for _, thread := range threads(s.Lines) {
				key := strings.Join(thread.lines, "\n")
				at, ok := index[key]
				if !ok {
					at = len(folded)
					index[key] = at
					folded = append(folded, FoldedStack{Lines: thread.lines})
				}
				f := &folded[at]
				f.Threads += thread.count
				if n := len(f.Workers); n == 0 || f.Workers[n-1] != i {
					f.Workers = append(f.Workers, i)
				}
			}
		}
	}
	slices.SortStableFunc(folded, func(a, b FoldedStack) int {
		return cmp.Or(len(a.Workers)-len(b.Workers), slices.Compare(a.Workers, b.Workers))
	})
	return folded
}

var (
	threadHead  = regexp.MustCompile(`^(?:Current thread|Thread|Stack \(most) |^Current thread's C stack |^ *\d+ thread `)
	kernelCount = regexp.MustCompile(`^ *(\d+) (thread )`)
	varying     = regexp.MustCompile(`0x[0-9a-fA-F]+|\b(?:Thread|Process|pid) \d+\b`)
	spyState    = regexp.MustCompile(`^(Thread \S+) \((?:idle|active|active\+gil)\)`)
	threadName  = regexp.MustCompile(`^(?:Thread \S+: ".*"|Thread \S+ \[.*?\]|thread [^:]*:)`)
	numbers     = regexp.MustCompile(`\d+`)
)

// A thread is one stack of a process. It has the lines of the stack, without details that
// always differ, and the number of threads that have this stack.
type thread struct {
	lines []string
	count int
}

// threads splits the lines of a process at the header lines of its threads. It drops lines
// before the first header. Without a header, all lines are one stack.
func threads(lines []string) []thread {
	var all []thread
	headed := slices.ContainsFunc(lines, threadHead.MatchString)
	for _, line := range lines {
		head := threadHead.MatchString(line)
		if line == "" || headed && !head && len(all) == 0 {
			continue
		}
		count := 1
		if m := kernelCount.FindStringSubmatch(line); m != nil {
			count, _ = strconv.Atoi(m[1])
			line = line[len(m[0])-len(m[2]):]
		}
		line = varying.ReplaceAllStringFunc(line, func(s string) string {
			word, _, _ := strings.Cut(s, " ")
			if strings.HasPrefix(s, "0x") {
				return "0x…"
			}
			return word + " …"
		})
		if head {
			line = spyState.ReplaceAllString(line, "$1")
			line = threadName.ReplaceAllStringFunc(line, func(s string) string { return numbers.ReplaceAllString(s, "…") })
		}
		if rest, ok := strings.CutPrefix(line, "Current thread 0x"); ok {
			line = "Thread 0x" + rest
		}
		if head || len(all) == 0 {
			all = append(all, thread{count: count})
		}
		last := &all[len(all)-1]
		last.lines = append(last.lines, line)
	}
	return all
}

// String describes the stack in one line.
func (s Stack) String() string {
	return fmt.Sprintf("process %d by %s: %s", s.PID, s.Method, s.Command)
}
