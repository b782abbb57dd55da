package tpu_test

import (
	"strings"
	"testing"

	"multihost/internal/tpu"
)

func TestParseCopy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ words, sources, dest, workers, fault string }{
		{words: "a b all:c", sources: "a b", dest: "c", workers: "all"},
		{words: "s0w*:a s0w*:b c", sources: "a b", dest: "c", workers: "s0w*"},
		{words: "./s0w0:a all:", sources: "./s0w0:a", dest: "", workers: "all"},
		{words: "all:a all:b", fault: `"all:a" and "all:b" are both on workers`},
		{words: "s0w0:a s0w1:b c", fault: `the sources are on different workers ("s0w0:a", "s0w1:b")`},
		{words: "s0w0:a b c", fault: `the sources are on different workers ("s0w0:a", "b")`},
		{words: "a b", fault: "neither the sources nor the destination are on workers"},
		{words: "a w0:b", fault: `"w0" names no workers`},
		{words: " all:b", fault: "a name is empty"},
	} {
		words := strings.Split(tt.words, " ")
		c, err := tpu.ParseCopy(words)
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%s: %v, want %s", tt.words, err, tt.fault)
			}
			continue
		}
		up := strings.HasSuffix(words[len(words)-1], ":"+tt.dest)
		if err != nil || strings.Join(c.Sources, " ") != tt.sources || c.Dest != tt.dest || c.Up != up {
			t.Errorf("%s: %+v, %v", tt.words, c, err)
		}
		if want, _ := tpu.ParsePattern(tt.workers); c.Workers.String() != want.String() {
			t.Errorf("%s: workers %s, want %s", tt.words, c.Workers, want)
		}
	}
}
