package record_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/record"
	"multihost/internal/stage"
	"multihost/internal/testkit"
	"multihost/internal/transfer"
)

// TestARunTakesWhatTheUserAdds: later runs still ship what the user puts into a directory
// that a command made.
func TestARunTakesWhatTheUserAdds(t *testing.T) {
	dir := t.TempDir()
	d := &record.Keeper{Of: &stage.Invocation{Sink: event.Discard}, StateDir: filepath.Join(t.TempDir(), "state")}
	write := func(names ...string) {
		t.Helper()
		for _, name := range names {
			at := filepath.Join(dir, name)
			testkit.Must(t, os.MkdirAll(filepath.Dir(at), 0o755))
			testkit.Must(t, os.WriteFile(at, []byte(name), 0o600))
		}
	}
	taken := func(want ...string) {
		t.Helper()
		tree, err := codesync.Scan(t.Context(), codesync.Options{Dir: dir, Written: record.WrittenDir(d.StateDir)})
		testkit.Must(t, err)
		var got []string
		for _, e := range tree.Entries {
			if e.Kind == codesync.File {
				got = append(got, e.Path)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("taken (-want +got):\n%s", diff)
		}
	}
	logs := filepath.Join(dir, "exp/7/logs")
	testkit.Must(t, d.MakeLogs("run", logs, func() error { return os.MkdirAll(logs, 0o700) }))
	stacks := filepath.Join(logs, "stacks-20260102T030405Z")
	testkit.Must(t, os.Mkdir(stacks, 0o700))
	d.Remember("dump", stacks)
	write("exp/7/logs/output_slice_0000_worker_0000.txt", "exp/7/logs/.arrivals_slice_0000_worker_0000", "exp/7/logs/stacks-20260102T030405Z/s0w0.txt", "back/s0w0/a", "back/s0w1/a")
	d.RememberFetched([]transfer.Fetched{{Made: filepath.Join(dir, "back"), Placed: []string{filepath.Join(dir, "back/s0w0")}}, {Placed: []string{filepath.Join(dir, "back/s0w1")}}})
	taken()
	write("exp/train.py", "exp/7/logs/note.txt", "back/s0w1/mine", "back/b")
	taken("back/b", "back/s0w1/mine", "exp/7/logs/note.txt", "exp/train.py")
}
