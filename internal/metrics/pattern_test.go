package metrics_test

import (
	"errors"
	"strings"
	"testing"

	"multihost/internal/metrics"
)

func TestPatternsOfOtherTrainers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		story, pattern, line string
		seconds, mfu, tokens float64
		loss                 float64
	}{
		{"milliseconds and per cent", `iter (?P<step>\d+): loss (?P<loss>\S+), time (?P<milliseconds>\S+)ms, mfu (?P<mfu_percent>\S+)%`,
			"iter 7: loss 2.5, time 1500.0ms, mfu 50.0%", 1.5, 0.5, 0, 2.5},
		{"steps a second", `step=(?P<step>\d+) .*?(?P<steps_per_second>[0-9.]+) it/s .*tok/s/dev=(?P<tokens>[0-9.]+)`,
			"INFO step=7 speed 4 it/s tok/s/dev=1000.5", 0.25, 0, 1000.5, 0},
	} {
		p, err := metrics.ParsePattern(tc.pattern)
		if err != nil {
			t.Errorf("%s: %v", tc.story, err)
			continue
		}
		text := "something else\n" + tc.line + "\ncompleted step: 99, seconds: 9.000, loss: 9\n"
		a := collect(t, metrics.Options{Pattern: p, Skip: -1, Type: kind(t, "v5litepod-16")}, text, 5)
		if a.Steps != 1 || a.Last.Step != 7 || !near(a.Median.StepSeconds, tc.seconds) {
			t.Errorf("%s: %+v", tc.story, a.Figures)
		}
		if tc.mfu > 0 && !near(a.Median.MFU, tc.mfu) || tc.tokens > 0 && !near(a.Median.Tokens, tc.tokens) || tc.loss > 0 && !near(a.Last.Loss, tc.loss) {
			t.Errorf("%s: %+v %+v", tc.story, a.Median, a.Last)
		}
	}
}

func TestPatternsThatCannotWork(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		`step (?P<step>\d+`:           "missing closing )",
		`step (\d+)`:                  `it has no group "step"`,
		`loss (?P<loss>\S+)`:          `it has no group "step"`,
		`(?P<step>\d+)`:               `it has no group besides "step"`,
		`(?P<step>\d+) (?P<time>\S+)`: `group "time" is none of step, seconds, milliseconds, steps_per_second, tflops, tokens, mfu_percent, loss`,
		`(?P<step>\d+) (?P<seconds>.) (?P<milliseconds>.)`: "the same figure; keep one",
		`(?P<step>\d+) (?P<loss>.)|(?P<step>\d+)`:          `group "step" is there twice`,
	} {
		_, err := metrics.ParsePattern(pattern)
		var bad *metrics.PatternError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) || !strings.Contains(bad.Hint(), "(?P<step>") {
			t.Errorf("ParsePattern(%q): %v, want %q and an example", pattern, err, want)
		}
	}
}
