package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"multihost/internal/metrics"
)

func TestTheLineThatSaysWhyIsFound(t *testing.T) {
	t.Parallel()
	trace := "Traceback (most recent call last):\n  File \"train.py\", line 3, in f\n    raise ValueError(1)\n          ^^^^\n"
	const step = "completed step: 8, seconds: 1.0, TFLOP/s/device: 1.0, loss: 0.3\n"
	for name, tc := range map[string]struct{ lines, want string }{
		"an exception":                         {step + trace + "ValueError: no", "ValueError: no"},
		"one without a message":                {trace + "KeyboardInterrupt", "KeyboardInterrupt"},
		"one of a package":                     {trace + "jax.errors.JaxRuntimeError: INTERNAL: failed\n--------------------\nFor simplicity, JAX has removed its internal frames.", "jax.errors.JaxRuntimeError: INTERNAL: failed"},
		"the begin of the traceback is away":   {strings.Join(strings.Split(trace, "\n")[2:], "\n") + "  File \"b.py\", line 1, in g\n    h()\nOSError: [Errno 28] No space left", "OSError: [Errno 28] No space left"},
		"the last of a chain":                  {trace + "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "RuntimeError: b", "RuntimeError: b"},
		"a message of several lines":           {trace + "ValueError: first\n  second\nthird error", "ValueError: first"},
		"it is not the last word":              {trace + "ValueError: no\nerror: command failed: python3 train.py", "ValueError: no"},
		"torchrun's mark":                      {"[rank0]: " + strings.ReplaceAll(strings.TrimSpace(trace), "\n", "\n[rank0]: ") + "\n[rank0]: torch.OutOfMemoryError: no", "[rank0]: torch.OutOfMemoryError: no"},
		"steps of other workers in between":    {strings.Replace(trace, "    raise", step+"    raise", 1) + step + "ValueError: no", "ValueError: no"},
		"Python itself":                        {"Fatal Python error: Segmentation fault\n\nCurrent thread 0x7 (most recent call first):\n  File \"a.py\", line 1 in f\n\nExtension modules: numpy (total: 1)\nSegmentation fault (core dumped)", "Fatal Python error: Segmentation fault"},
		"Go":                                   {"panic: runtime error: index out of range\n\ngoroutine 1 [running]:\nmain.main()", "panic: runtime error: index out of range"},
		"C++":                                  {"terminate called after throwing an instance of 'std::runtime_error'\n  what():  no chips\nAborted", "  what():  no chips"},
		"a failed check":                       {"F0304 09:00:00.1 7 tpu.cc:9] Check failed: ok\n*** Check failure stack trace: ***\n    @ 0x7f", "F0304 09:00:00.1 7 tpu.cc:9] Check failed: ok"},
		"what the shell says of a signal":      {step + "train.sh: line 3: 4711 Killed                  python3 train.py\n" + step, "train.sh: line 3: 4711 Killed                  python3 train.py"},
		"a word of an error":                   {"hello\nbash: line 1: trian: command not found\nbye", "bash: line 1: trian: command not found"},
		"a warning is none":                    {"error: no such file\nUserWarning: could not import x", "error: no such file"},
		"nothing but steps":                    {step + step, ""},
		"nothing that speaks of an error":      {"hello\nbye", ""},
		"nothing":                              {"", ""},
		"what a progress bar was redrawn with": {final("10%|#\r20%|##\rRuntimeError: no\r\n"), "RuntimeError: no"},
	} {
		lines, got := strings.Split(tc.lines, "\n"), ""
		if i := decisive(lines); i >= 0 {
			got = lines[i]
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestTheAxisHasAllValues(t *testing.T) {
	t.Parallel()
	usual := slices.Repeat([]float64{2, 2.01, 2.02, 2.01, 2.03, 2.02, 2.01, 2.02}, 5)
	with := func(more ...float64) []float64 { return slices.Concat(usual, more) }
	for name, tc := range map[string]struct {
		values      []float64
		target      metrics.Number
		log, beyond bool
	}{
		"all are near":                    {usual, metrics.Unknown, false, false},
		"all are the same":                {[]float64{3, 3}, metrics.Unknown, false, false},
		"one is twice as long":            {with(4.4), metrics.Unknown, false, false},
		"one is far away":                 {with(300), metrics.Unknown, true, false},
		"a target above":                  {usual, 5, false, false},
		"far away, and some have no log":  {with(300, 0), metrics.Unknown, false, true},
		"far away to the other side of 0": {with(-300), metrics.Unknown, false, true},
		"less than 0":                     {[]float64{-3, -2.9, -3.1}, metrics.Unknown, false, false},
	} {
		var f frame
		above, below := f.fit(tc.values, tc.target)
		if (above || below) != tc.beyond || f.log != tc.log {
			t.Errorf("%s: above %v, below %v, logarithmic %v, want %v, %v", name, above, below, f.log, tc.beyond, tc.log)
		}
		for _, v := range tc.values {
			if in := f.y0 < v && v < f.y1; !in && !tc.beyond && v != 0 {
				t.Errorf("%s: %v is not between %v and %v", name, v, f.y0, f.y1)
			}
		}
		if n := len(f.marks()); n < 2 || n > 15 {
			t.Errorf("%s: %d marks from %v to %v", name, n, f.y0, f.y1)
		}
	}
}

func TestLabelsOfRowsDoNotTouch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		rows   []rowKind
		height float64
		want   []int
	}{
		{make([]rowKind, 4), 24, []int{0, 1, 2, 3}},
		{make([]rowKind, 1), 24, []int{0}},
		{[]rowKind{beginsSlice, 0, 0, 0, beginsSlice, 0, 0, 0}, 6, []int{0, 4, 7}},
		{[]rowKind{beginsSlice, failedRow, failedFirst, 0, 0, 0, 0, 0}, 6, []int{2, 7}},
		{[]rowKind{beginsSlice, 0, 0, slowRow, beginsSlice, 0, 0, failedRow}, 6, []int{0, 3, 7}},
		{append([]rowKind{beginsSlice}, make([]rowKind, 255)...), 2, nil},
	} {
		got := labelled(tc.rows, tc.height)
		if tc.want != nil && !slices.Equal(got, tc.want) {
			t.Errorf("%v at %v: rows %v, want %v", tc.rows, tc.height, got, tc.want)
		}
		for i := range got[1:] {
			if apart := float64(got[i+1]-got[i]) * tc.height; apart < labelHeight {
				t.Errorf("%d rows at %v: %v and %v are %v pixels apart", len(tc.rows), tc.height, got[i], got[i+1], apart)
			}
		}
		if fmt.Sprint(got) == "[]" {
			t.Errorf("%d rows at %v: no label", len(tc.rows), tc.height)
		}
	}
}

// Every chart can be drawn, even with the numbers of a training that went wrong.
func TestAnAxisOfAnyNumbersEnds(t *testing.T) {
	t.Parallel()
	for _, values := range [][]float64{
		{1e-3, 1e-3, 1e306},
		{5e-324, 5e-324, 1},
		{math.SmallestNonzeroFloat64, 1, math.MaxFloat64},
		{-math.MaxFloat64, 1, math.MaxFloat64},
		{0, 0, 1e300},
	} {
		var f frame
		f.fit(values, metrics.Unknown)
		if n := len(f.marks()); n > 20 {
			t.Errorf("%v: %d marks", values, n)
		}
	}
}
