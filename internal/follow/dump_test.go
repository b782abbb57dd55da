package follow

import (
	"testing"

	"multihost/internal/launch"
	"multihost/internal/tpu"
)

// The stacks do not show the command's output, but a note mentions it.
func TestPrintedText(t *testing.T) {
	ids := []tpu.WorkerID{{}, {Worker: 1}, {Worker: 2}}
	stacks := [][]launch.Stack{{{Lines: []string{"a"}}}, {{Printed: []string{"1", "2"}}}, {{Printed: []string{"3"}}}}
	if got, want := PrintedText(ids, stacks, "r"), "left out: 3 lines that the command printed meanwhile on s0w[1-2]; read it with: multihost logs r --worker=s0w1\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := PrintedText(ids[:1], stacks[:1], "r"); got != "" {
		t.Errorf("%q where nothing was printed", got)
	}
}
