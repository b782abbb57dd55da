//go:build linux

package launch

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"multihost/internal/agent/watch"
	"multihost/internal/testkit"
)

// multihost-agent has its own code to read the scripts' files: whether a command is active,
// which processes belong to it, and how it ended.
func TestTheAgentReadsWhatTheScriptsWrite(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, script string
		stops        bool // the agent stops the command
		want         string
	}{
		{"success", "exit 0", false, "0"},
		{"failure", "exit 3", false, "3"},
		{"ended by the agent", "exec sleep 1000", true, "143"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := newLocal(t)
			host := &watch.Host{Tmp: l.root, Home: l.home(), Login: os.Getuid(), Out: io.Discard, Uptime: watch.Uptime}
			look := func(run string) watch.Sight {
				t.Helper()
				var seen string
				s, err := host.Look(run, &seen)
				testkit.Must(t, err)
				return s
			}
			if s := look("r"); s.Busy || s.Begun {
				t.Errorf("before the start: %+v", s)
			}
			s := spec("r", "until [ -e go ]; do sleep 0.02; done; "+row.script)
			begin(t, l, s)
			if s := look("r"); !s.Busy {
				t.Errorf("while the command runs: %+v", s)
			}
			l.write("home/r/go", "", 0o644)
			if row.stops {
				testkit.Eventually(t, "the command", func() bool {
					host.Stop("r")
					return !look("r").Busy
				})
			}
			if _, err := Follow(t.Context(), l, s.Ref(), 0, io.Discard, FollowOptions{}); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the end", func() bool { return look("r").Code != "" })
			if s := look("r"); s.Busy || !s.Begun || s.Code != row.want {
				t.Errorf("after the end: %+v, want the code %s", s, row.want)
			}
			if s := look("other"); s.Begun {
				t.Errorf("another run: %+v", s)
			}
			exit, err := os.ReadFile(filepath.Join(l.dir(s.Ref()), "exit"))
			testkit.Must(t, err)
			if lines := strings.Split(string(exit), "\n"); !slices.Contains(lines, "code="+row.want) {
				t.Errorf("exit is %q", exit)
			}
		})
	}
	if want := fmt.Sprintf("for path in \"$index\"/*%s[0-9]*; do", watch.WatchFile); !strings.Contains(libText, want) {
		t.Errorf("lib.sh does not spare the watch: no %q", want)
	}
}
