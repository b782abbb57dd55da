package suspect

import (
	"strings"
	"testing"
)

// TestEveryWordOfTrouble finds known words that the first check of a line misses.
func TestEveryWordOfTrouble(t *testing.T) {
	for _, word := range strings.Fields("error errors exception exceptions failed failure failures fatal aborted killed " +
		"panic segfault segmentation oom unhandled uncaught terminated refused denied unreachable fault " +
		"RESOURCE_EXHAUSTED: DEADLINE_EXCEEDED: UNAVAILABLE: INTERNAL: DATA_LOSS: CANCELLED:") {
		for _, line := range []string{word, "x " + word + " y", "(" + word + ")"} {
			if !Line([]byte(line)) {
				t.Errorf("%q is no trouble", line)
			}
		}
		for _, line := range []string{"x" + word, word[:len(word)-1] + "x", "/" + strings.ToLower(word)} {
			if Line([]byte(line)) {
				t.Errorf("%q is trouble", line)
			}
		}
	}
}

func TestLine(t *testing.T) {
	for _, tc := range []struct {
		line string
		want bool
	}{
		{"ValueError: bad shape", true},
		{"jax.errors.ConcretizationTypeError: Abstract tracer", true},
		{"java.lang.NullPointerException at x", true},
		{"ERROR: could not open", true},
		{"error: unknown option", true},
		{"Fatal Python error: Aborted", true},
		{"panic: runtime error: index out of range", true},
		{"bash: line 1: 1234 Killed   python3 train.py", true},
		{"Segmentation fault (core dumped)", true},
		{"oom-kill:constraint=CONSTRAINT_NONE", true},
		{"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", true},
		{"Out of memory allocating 123 bytes", true},
		{"UNAVAILABLE: connection to coordinator lost", true},
		{"E0706 16:50:26.257925 1409 coordination.cc:1] Barrier", true},
		{"F0706 16:50:26.257925 1409 check.cc:1] x", true},
		{"OSError: [Errno 28] No space left on device", true},
		{"cp: write: No space left on device", true},
		{"ssh: connect to host x: Connection refused", true},
		{"open /dev/accel0: Permission denied", true},
		{"2 failed, 3 passed", true},
		{"heartbeat timed out", true},
		{"step failed: 1", true},

		{"core dumped", true},
		{"NO SPACE left", true},
		{"errors: 01", true},
		{"MyException", true},
		{"a line of more than forty-eight letters of prose, then INFO and an error", true},

		{"", false},
		{"info: an error in the text", false},
		{"DEBUG an error in the text", false},
		{"it dumped 3 files", false},
		{"no space to left-align", false},
		{"timely out of order", false},
		{"without failure", false},
		{"failed=0", false},
		{"ERRor_Exceptions", false},
		{"completed step: 3, seconds: 1.234, TFLOP/s/device: 100.1, loss: 3.210", false},
		{"0 errors, 0 warnings", false},
		{"no error", false},
		{"errors: 0", false},
		{"failed=0 changed=2", false},
		{"error_rate 0.1", false},
		{"run with --fail-on-error or stderr/error.log", false},
		{"I0706 16:50:26.257925 1409 x.py:1] error count so far", false},
		{"INFO:absl: retry after error", false},
		{"2026-01-02 12:00:00 INFO loader: ignoring error in cache", false},
		{"terror in the mirror", false},
		{"loading the memory map", false},
		{"an internal note: unavailable", false},
	} {
		if got := Line([]byte(tc.line)); got != tc.want {
			t.Errorf("Line(%q) = %v", tc.line, got)
		}
	}
}
