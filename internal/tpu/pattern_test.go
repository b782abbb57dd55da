package tpu

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func grid(slices, workers int) (all []WorkerID) {
	for s := range slices {
		for w := range workers {
			all = append(all, WorkerID{s, w})
		}
	}
	return all
}

func TestPatternsNameWorkers(t *testing.T) {
	all := grid(3, 4)
	for _, test := range []struct{ only, except, want string }{
		{"", "", "s[0-2]w[0-3]"},
		{"all", "", "s[0-2]w[0-3]"},
		{"s*w*", "", "s[0-2]w[0-3]"},
		{"s1w2", "", "s1w2"},
		{"s0w*", "", "s0w[0-3]"},
		{"s*w0", "", "s[0-2]w0"},
		{"s[0,2]w[1-2]", "", "s[0,2]w[1-2]"},
		{"s1w3, s0w0", "", "s0w0,s1w3"},
		{"", "s1w3", "s[0,2]w[0-3],s1w[0-2]"},
		{"s[0-1]w*", "s*w0,s1w3", "s0w[1-3],s1w[1-2]"},
		{"s[0-9]w0", "", "s[0-2]w0"},
	} {
		var only, except Pattern
		var err error
		if test.only != "" {
			if only, err = ParsePattern(test.only); err != nil {
				t.Fatal(err)
			}
		}
		if test.except != "" {
			if except, err = ParsePattern(test.except); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Choose(all, only, except)
		if err != nil || Fold(got) != test.want {
			t.Errorf("only %q except %q: %s, %v; want %s", test.only, test.except, Fold(got), err, test.want)
		}
	}
}

// A user can type what Fold returns.
func TestWhatFoldWritesIsAPattern(t *testing.T) {
	all := grid(5, 6)
	for n := range 200 {
		var some []WorkerID
		for i, id := range all {
			if (i*i+n*7+i*n)%5 < 2 {
				some = append(some, id)
			}
		}
		if len(some) == 0 {
			continue
		}
		p, err := ParsePattern(Fold(some))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.Pick(all); err != nil || !slices.Equal(got, some) {
			t.Fatalf("%q names %v, %v; want %v", Fold(some), got, err, some)
		}
	}
}

func TestPatternsThatNameNobodyAreErrors(t *testing.T) {
	all := grid(2, 2)
	for _, text := range []string{"", "s0", "w0", "s0w", "s0w0,", "s0w-1", "s0w0-1", "s[0-1w0", "s[]w0", "s[1-0]w0", "t0w0", "sxw0", "s0w0x", "s99999999999w0", "s0w[0", "s**w0", "s0w0;"} {
		if _, err := ParsePattern(text); !errors.As(err, new(*PatternError)) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, c := range [][2]string{{"s2w0", ""}, {"s0w0,s0w5", ""}, {"", "s0w7"}, {"", "all"}, {"s0w0", "s0w*"}} {
		only, _ := ParsePattern(c[0])
		except, _ := ParsePattern(c[1])
		if got, err := Choose(all, only, except); !errors.As(err, new(*PatternError)) {
			t.Errorf("only %q except %q: %v, %v", c[0], c[1], got, err)
		}
	}
}

func TestAWordWithoutASliceHintsAtOneThatHasIt(t *testing.T) {
	for text, want := range map[string]string{
		"w0": "s0w0", "w12": "s0w12", "3": "s0w3", "w[0-3]": "s0w[0-3]", "w*": "s0w*", "s0w1,w2": "s0w2", " w1": "s0w1",
		"": "", "s0": "", "train": "", "W0": "", "w": "", "t0w0": "", "-1": "",
	} {
		_, err := ParsePattern(text)
		var wrong *PatternError
		if !errors.As(err, &wrong) || wrong.Likely != want || strings.HasPrefix(wrong.Hint(), "did you mean "+want+"? ") != (want != "") {
			t.Errorf("%q: %+v", text, wrong)
		}
	}
	if _, err := ParseWorkerID("w1"); err == nil || !strings.Contains(err.Error(), "did you mean s0w1?") {
		t.Errorf("got %v", err)
	}
}
