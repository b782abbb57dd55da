package codesync

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// TestWhatCommandsWroteHereIsNotSent shows which files of commands a run leaves out, and
// which have become the user's.
func TestWhatCommandsWroteHereIsNotSent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	kept := filepath.Join(state, "written")
	write(t, dir, map[string]string{
		"train.py": "1", "report.html": "2", "edited.html": "3", "profile/s0w0/a": "4", "profile/s0w1/a": "5", "tokenizer": "6",
		"logs/output_slice_0000_worker_0000.txt": "7", "logs/stacks-1/x": "8", "logs/mine.txt": "9", "a b*c": "10", "a bxc": "11",
		".multihost-cp-1/half": "12", "gone": "13", "state/runs/r/run.json": "14", IgnoreFile: "!/tokenizer\n",
	})
	remember := func(by string, all ...Written) {
		t.Helper()
		for i := range all {
			all[i].Path = filepath.Join(dir, all[i].Path)
		}
		testkit.Must(t, Remember(kept, by, all))
	}
	remember("multihost cp", Written{Path: "gone"})
	testkit.Must(t, os.Remove(filepath.Join(dir, "gone")))
	remember("multihost report", Written{Path: "report.html"})
	remember("multihost report", Written{Path: "edited.html"})
	remember("multihost cp", Written{Path: "profile"}, Written{Path: "tokenizer"}, Written{Path: "a b*c"})
	remember("multihost run", Written{Path: "logs", Names: []string{"output_slice_*.txt", "stacks-*"}})
	remember("multihost cp", Written{Path: "."}) // never all of it
	remember("multihost cp", Written{Path: "../elsewhere"})
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "edited.html"), []byte("my own"), 0o600))

	scan := func(o Options) *Tree {
		t.Helper()
		o.Dir, o.Written = dir, kept
		tree, err := Scan(t.Context(), o)
		testkit.Must(t, err)
		return tree
	}
	tree := scan(Options{})
	same(t, "taken", paths(tree), []string{IgnoreFile, "a bxc", "edited.html", "logs/mine.txt", "tokenizer", "train.py"})
	left := []string{
		".multihost-cp-1/ (not finished by multihost cp, 1 file)", "a b*c (written here by multihost cp)",
		"logs/output_slice_0000_worker_0000.txt (written here by multihost run)", "logs/stacks-1/ (written here by multihost run, 1 file)",
		"profile/ (written here by multihost cp, 2 files)", "report.html (written here by multihost report)", "state/ (records of multihost, 7 files)",
	}
	got := skipped(tree)
	slices.Sort(got)
	same(t, "skipped", got, left)
	said := ""
	for _, n := range tree.describe() {
		said += n.Text + "\n" + n.Hint + "\n"
	}
	for _, want := range []string{"profile/ (written here by multihost cp, 2 files)", "--no-ignore", "with a ! before it"} {
		if !strings.Contains(said, want) {
			t.Errorf("the notes do not say %q:\n%s", want, said)
		}
	}
	if n := len(paths(scan(Options{NoIgnore: true}))); n != 20 {
		t.Errorf("with NoIgnore %d files are taken, want all 20", n)
	}

	// What the user has put under git is the user's.
	git(t, dir, "init", "-q")
	git(t, dir, "add", "profile/s0w1/a", "logs/output_slice_0000_worker_0000.txt")
	tree = scan(Options{})
	for _, want := range []string{"profile/s0w0/a", "profile/s0w1/a", "logs/output_slice_0000_worker_0000.txt"} {
		if !slices.Contains(paths(tree), want) {
			t.Errorf("%s is not taken of %q, though git tracks it or what is beside it", want, paths(tree))
		}
	}
	if slices.Contains(paths(tree), "report.html") {
		t.Error("report.html is taken, though git does not track it")
	}
}

func TestWhatIsGoneIsForgotten(t *testing.T) {
	t.Parallel()
	dir, kept := t.TempDir(), t.TempDir()
	write(t, dir, map[string]string{"a": "1", "b": "2"})
	for _, name := range []string{"a", "b", "a"} {
		testkit.Must(t, Remember(kept, "multihost cp", []Written{{Path: filepath.Join(dir, name)}}))
	}
	testkit.Must(t, os.Remove(filepath.Join(dir, "a")))
	testkit.Must(t, os.Chtimes(filepath.Join(dir, "b"), time.Time{}, time.Unix(1, 0)))
	testkit.Must(t, Remember(kept, "multihost report", []Written{{Path: filepath.Join(dir, "b")}}))
	if got := Remembered(kept, []string{filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")}); !slices.Equal(got, []string{filepath.Join(dir, "b")}) {
		t.Errorf("remembered are %q, want b", got)
	}
	if all := writtenFiles(kept); len(all) != 2 {
		t.Errorf("%d commands are remembered, want the two of b: %v", len(all), all)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(kept, "torn.json"), []byte("{"), 0o600))
	tree, err := Scan(t.Context(), Options{Dir: dir, Written: kept})
	testkit.Must(t, err)
	same(t, "taken", paths(tree), []string(nil))
}
