package testkit

import (
	"fmt"
	"os"
	"regexp"
	"testing"
)

func TestOnlyAllRunsWhatIsExpensive(t *testing.T) {
	for _, tt := range []struct {
		value string
		all   bool
		ends  string
	}{
		{"", false, "skipped: only `make test-all` runs this test; see a table"},
		{"all", true, ""},
		{"most", false, `failed: MULTIHOST_TESTS="most": want all, or nothing for the tests of ` + "`make test`"},
	} {
		t.Setenv("MULTIHOST_TESTS", tt.value)
		all := false
		if got := endingOf(func(t testing.TB) { OnlyInAll(t, "a table"); all = All(t) }); got != tt.ends {
			t.Errorf("%q: %q, want %q", tt.value, got, tt.ends)
		}
		if all != tt.all {
			t.Errorf("%q: all is %v", tt.value, all)
		}
	}
}

// make test runs a part of an expensive table, always with the first row.
func TestSomeRowsRunUnlessAllDo(t *testing.T) {
	for value, want := range map[string]string{"": "[1 3 5]", "all": "[1 2 3 4 5]"} {
		t.Setenv("MULTIHOST_TESTS", value)
		if got := fmt.Sprint(Some(t, []int{1, 2, 3, 4, 5}, 2)); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

// CI runs all tests, even after a change of .ci/run or of the Makefile.
func TestCIRunsAll(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"../../.ci/run":   `(?m)^make test-all( |$)`,
		"../../Makefile":  `(?m)^test-all .*: export MULTIHOST_TESTS = all$`,
		"../../README.md": `(?m)^<!-- not run: CI runs .*make test-all -->$`,
	} {
		text, err := os.ReadFile(file)
		Must(t, err)
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("%s has no line that matches %q", file, want)
		}
	}
}
