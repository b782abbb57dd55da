package testkit_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"multihost/internal/testkit"
)

// apart are scripts without the prelude: programs of the simulator's workers, and scripts
// that run without our connections.
var apart = []string{
	"sim/worker/standin/", "gcp/vm.sh",
}

var (
	defines  = regexp.MustCompile(`(?m)^ *([a-z_]+) *\(\)`)
	answered = regexp.MustCompile(`printf[^\n]*\$\{?nonce|multihost-[a-z]+ 1`)
)

// All scripts whose output multihost reads share the functions of one prelude.
func TestOnePrelude(t *testing.T) {
	t.Parallel()
	preludes, err := filepath.Glob("../*/prelude.sh")
	testkit.Must(t, err)
	if len(preludes) != 1 {
		t.Fatalf("preludes: %q", preludes)
	}
	text, err := os.ReadFile(preludes[0])
	testkit.Must(t, err)
	functions := []string{"die", "now"} // older names of the same functions
	for _, m := range defines.FindAllStringSubmatch(string(text), -1) {
		functions = append(functions, m[1])
	}
	for _, name := range []string{"say", "say_fields", "fail", "have", "now_ns", "alive", "replace"} {
		if !slices.Contains(functions, name) {
			t.Errorf("the prelude does not define %s", name)
		}
	}
	scripts, err := filepath.Glob("../*/*.sh")
	testkit.Must(t, err)
	checked := 0
	for _, path := range scripts {
		name := strings.TrimPrefix(path, "../")
		if path == preludes[0] || slices.ContainsFunc(apart, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		checked++
		text, err := os.ReadFile(path)
		testkit.Must(t, err)
		for _, m := range defines.FindAllStringSubmatch(string(text), -1) {
			if slices.Contains(functions, m[1]) {
				t.Errorf("%s defines %s, which the prelude has", name, m[1])
			}
		}
		if m := answered.FindString(string(text)); m != "" {
			t.Errorf("%s prints lines of an answer by itself: %q", name, m)
		}
	}
	if checked < 20 {
		t.Errorf("only %d scripts were found", checked)
	}
}
