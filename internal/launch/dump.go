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

// StackMethod says how a stack was learned.
type StackMethod string

// The methods, best first.
const (
	BySpy    StackMethod = "py-spy"  // read from the memory of a Python process
	BySignal StackMethod = "SIGUSR1" // printed by the process into its log: faulthandler
	ByKernel StackMethod = "kernel"  // only what each thread waits for
)

// A Stack is where one process of a run stands.
type Stack struct {
	PID     int         `json:"pid"`
	Command string      `json:"command"`
	Method  StackMethod `json:"method"`
	Lines   []string    `json:"lines"`
}

// DumpOptions are optional.
type DumpOptions struct {
	// Wait is how long a process is waited for that was asked by a signal; 0 is
	// 5 s.
	Wait time.Duration
}

// Dump tells where the living processes of the run stand, those with the most
// memory first. Python processes are read by py-spy where it is installed, else
// asked by SIGUSR1 if they catch it: a process that does not is never sent it.
// Of all others the kernel's view is told. The run goes on. An attempt that does
// not run has no stacks; its phase says why.
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

// A FoldedStack is a thread that stands at the same place in several processes.
type FoldedStack struct {
	Workers []int    `json:"workers"` // indices into what FoldStacks was given, in order, each once
	Threads int      `json:"threads"`
	Lines   []string `json:"lines"`
}

// FoldStacks joins the threads that stand at the same place, over all workers:
// all[i] is what Dump told of worker i. What differs by nature (numbers of
// threads and processes, addresses) is left out. Places that few workers share
// come first: the one that waits elsewhere is the one to look at.
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

// threads splits the lines of a process at the heads of its threads. Lines
// before the first head say nothing of a place, unless there is no head at all.
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

// String names the stack in one line.
func (s Stack) String() string {
	return fmt.Sprintf("process %d by %s: %s", s.PID, s.Method, s.Command)
}
