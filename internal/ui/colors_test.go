package ui

import (
	"strings"
	"testing"
)

// A pipe gets no colours unless they are forced. NO_COLOR overrides everything else.
func TestColoursAreWhereTheyAreWanted(t *testing.T) {
	for line, want := range map[string]bool{
		"": false, "CLICOLOR_FORCE=1": true, "CLICOLOR_FORCE=0": false, "CLICOLOR=1": false, "CLICOLOR_FORCE=1 NO_COLOR=1": false,
		"CLICOLOR_FORCE=1 NO_COLOR=": true, "CLICOLOR_FORCE=1 CLICOLOR=0": true, "CLICOLOR_FORCE=1 TERM=dumb": true,
	} {
		env := map[string]string{}
		for _, v := range strings.Fields(line) {
			name, value, _ := strings.Cut(v, "=")
			env[name] = value
		}
		if got := Colors(func(key string) (string, bool) { v, ok := env[key]; return v, ok }, &strings.Builder{}); got != want {
			t.Errorf("%s: colours %v, want %v", line, got, want)
		}
	}
}
