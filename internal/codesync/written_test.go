package codesync

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// The test shows which files of commands a run leaves out, and which files have become the
// user's.
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
	remember("multihost cp", Written{Path: "."}) // the whole directory is sent
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

	// git now tracks these files, so they are the user's.
	git(t, dir, "init", "-q")
	git(t, dir, "add", "profile/s0w1/a", "logs/output_slice_0000_worker_0000.txt")
	tree = scan(Options{})
	for _, want := range []string{"profile/s0w1/a", "logs/output_slice_0000_worker_0000.txt"} {
		if !slices.Contains(paths(tree), want) {
			t.Errorf("%s is not taken of %q, though git tracks it", want, paths(tree))
		}
	}
	for _, name := range []string{"report.html", "profile/s0w0/a"} {
		if slices.Contains(paths(tree), name) {
			t.Errorf("%s is taken, though git does not track it", name)
		}
	}
}

// The user may work in a directory that came from a worker. The test shows which files a
// run sends from there.
func TestADirectoryOfACommandMayBeUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := filepath.Join(dir, "state", "written")
	write(t, dir, map[string]string{"got/code/a.py": "1", "got/code/b.py": "2", "got/c.txt": "3", "exp/7/logs/output_slice_0000_worker_0000.txt": "4", "old/x": "5"})
	testkit.Must(t, os.Chtimes(filepath.Join(dir, "got/c.txt"), time.Time{}, time.Unix(0, 0)))
	in := func(name string) string { return filepath.Join(dir, name) }
	testkit.Must(t, Remember(kept, "multihost cp", []Written{{Path: in("got")}}))
	testkit.Must(t, Remember(kept, "multihost run", []Written{{Path: in("exp"), Made: true}, {Path: in("exp/7/logs"), Names: []string{"output_slice_*.txt"}}}))
	testkit.Must(t, os.WriteFile(filepath.Join(kept, "earlier.json"), []byte(fmt.Sprintf(`{"by":"multihost cp","paths":[{"path":%q}]}`, in("old"))), 0o600))
	scan := func() (taken []string, left []string) {
		t.Helper()
		tree, err := Scan(t.Context(), Options{Dir: dir, Written: kept})
		testkit.Must(t, err)
		left = skipped(tree)
		slices.Sort(left)
		return paths(tree), left
	}
	taken, left := scan()
	same(t, "taken", taken, []string(nil))
	same(t, "left out", left, []string{"exp/ (written here by multihost run, 1 file)", "got/ (written here by multihost cp, 3 files)",
		"old/ (written here by multihost cp, 1 file)", "state/ (records of multihost, 3 files)"})
	write(t, dir, map[string]string{"got/code/b.py": "changed", "got/code/mine.py": "6", "got/c.txt": "33", "exp/train.py": "7", "exp/7/logs/note.txt": "8"})
	taken, left = scan()
	same(t, "taken", taken, []string{"exp/7/logs/note.txt", "exp/train.py", "got/c.txt", "got/code/b.py", "got/code/mine.py"})
	same(t, "left out", left, []string{"exp/7/logs/output_slice_0000_worker_0000.txt (written here by multihost run)", "got/code/a.py (written here by multihost cp)",
		"old/ (written here by multihost cp, 1 file)", "state/ (records of multihost, 3 files)"})
	if got := Remembered(kept, []string{in("got/code/a.py"), in("got/code/mine.py")}); !slices.Equal(got, []string{in("got/code/a.py")}) {
		t.Errorf("remembered are %q", got)
	}

	// If a command wrote very many files, Remember keeps no states, and the run says so.
	w := Written{Path: in("got")}
	info, err := os.Lstat(w.Path)
	testkit.Must(t, err)
	w.keepState(info, 3)
	if w.Made || !w.Many || len(w.Files) > 0 {
		t.Errorf("of too many files is kept: %+v", w)
	}
	testkit.Must(t, replaceFile(filepath.Join(kept, "many.json"), func(f *os.File) error {
		return json.NewEncoder(f).Encode(writtenFile{By: "multihost cp", Paths: []Written{w}})
	}))
	_, left = scan()
	same(t, "left out", left[1], "got/ (written here by multihost cp, with more than 20000 files: your changes to them are not sent either, 4 files)")
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
