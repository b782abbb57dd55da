package launch

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"multihost/internal/sshfan"
)

// StackMethod says how a stack was read.
type StackMethod string

// The methods, best first.
const (
	BySpy    StackMethod = "py-spy"  // py-spy reads the memory of a Python process
	BySignal StackMethod = "SIGUSR1" // the process prints its stack into its log (faulthandler)
	ByKernel StackMethod = "kernel"  // the kernel tells only what each thread waits for
)

// A Stack shows what one process of a run is executing.
type Stack struct {
	PID     int         `json:"pid"`
	Command string      `json:"command"`
	Method  StackMethod `json:"method"`
	Lines   []string    `json:"lines"`
}

// DumpOptions are optional.
type DumpOptions struct {
	// Wait limits how long a process may take to print its stack after SIGUSR1; 0
	// means 5 s.
	Wait time.Duration
}

// Dump returns the stacks of the run's living processes, those with the most memory
// first. py-spy reads Python processes where it is installed; without it, Python
// processes that catch SIGUSR1 are sent it. A process that does not catch SIGUSR1 is
// never sent it. For all others, Dump returns the kernel's view. The run goes on.
// An attempt that does not run has no stacks; the returned phase says why.
func Dump(ctx context.Context, r Runner, ref Ref, opts DumpOptions) ([]Stack, Phase, error) {
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
			stacks = append(stacks, Stack{PID: int(number(f[0])), Method: StackMethod(sshfan.Clean(f[1], 20)), Command: sshfan.Clean(f[2], 300)})
		case "line":
			if len(stacks) > 0 {
				s := &stacks[len(stacks)-1]
				indent := rec.Rest[:len(rec.Rest)-len(strings.TrimLeft(rec.Rest, " "))]
				s.Lines = append(s.Lines, indent+sshfan.Clean(rec.Rest, 1000))
			}
		}
	}
	return stacks, parseState(ref, records).Phase, nil
}

// A FoldedStack is one stack that one or more threads share, over all workers.
type FoldedStack struct {
	Workers []int    `json:"workers"` // indices into the argument of FoldStacks, ascending, each once
	Threads int      `json:"threads"`
	Lines   []string `json:"lines"`
}

// FoldStacks groups the threads that have the same stack, over all workers: all[i]
// is what Dump returned for worker i. It ignores what always differs: numbers of
// threads and processes, and addresses. Stacks that few workers share come first,
// because a worker that waits elsewhere than the others is the one to look at.
func FoldStacks(all [][]Stack) []FoldedStack {
	index := map[string]int{}
	var folded []FoldedStack
	for i, stacks := range all {
		for _, s := range stacks {
			for _, thread := range threads(s.Lines) {
				key := strings.Join(thread, "\n")
				at, ok := index[key]
				if !ok {
					at = len(folded)
					index[key] = at
					folded = append(folded, FoldedStack{Lines: thread})
				}
				f := &folded[at]
				f.Threads++
				if n := len(f.Workers); n == 0 || f.Workers[n-1] != i {
					f.Workers = append(f.Workers, i)
				}
			}
		}
	}
	slices.SortStableFunc(folded, func(a, b FoldedStack) int { return len(a.Workers) - len(b.Workers) })
	return folded
}

var (
	threadHead = regexp.MustCompile(`^(Current thread|Thread) |^ *\d+ thread `)
	varying    = regexp.MustCompile(`0x[0-9a-fA-F]+|\b(?:Thread|Process|pid) \d+\b`)
)

// threads splits the lines of a process at the header lines of its threads. It drops
// lines before the first header, which belong to no stack, unless there is no header
// at all.
func threads(lines []string) [][]string {
	var all [][]string
	headed := slices.ContainsFunc(lines, threadHead.MatchString)
	for _, line := range lines {
		head := threadHead.MatchString(line)
		if line == "" || headed && !head && len(all) == 0 {
			continue
		}
		line = varying.ReplaceAllStringFunc(line, func(s string) string {
			word, _, _ := strings.Cut(s, " ")
			if strings.HasPrefix(s, "0x") {
				return "0x…"
			}
			return word + " …"
		})
		if rest, ok := strings.CutPrefix(line, "Current thread"); ok {
			line = "Thread" + rest
		}
		if head || len(all) == 0 {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], line)
	}
	return all
}

// String describes the stack in one line.
func (s Stack) String() string {
	return fmt.Sprintf("process %d by %s: %s", s.PID, s.Method, s.Command)
}
