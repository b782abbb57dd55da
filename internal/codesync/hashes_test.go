package codesync

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"multihost/internal/testkit"
)

// scan scans dir with a clock that is ahead by offset. It returns the names of the files
// that it read.
func (c hashing) scan(t *testing.T, offset time.Duration) (*Tree, []string) {
	t.Helper()
	opened := make(chan string, 1000)
	s := &scanner{
		opts: Options{Dir: c.dir, Cache: c.cache, Now: func() time.Time { return time.Now().Add(offset) }},
		open: func(name string) (*os.File, error) {
			opened <- filepath.Base(name)
			return openRegular(name)
		},
	}
	tree, err := s.scan(t.Context())
	testkit.Must(t, err)
	close(opened)
	var names []string
	for name := range opened {
		names = append(names, name)
	}
	slices.Sort(names)
	return tree, names
}

type hashing struct{ dir, cache string }

func TestScanReadsOnlyWhatHasChanged(t *testing.T) {
	t.Parallel()
	c := hashing{t.TempDir(), filepath.Join(t.TempDir(), "state", "hashes")}
	write(t, c.dir, map[string]string{"a": "1", "b": "2", "sub/c": "3"})
	const later = time.Hour // a file that is written now has settled after this time
	expect := func(what string, offset time.Duration, want ...string) *Tree {
		t.Helper()
		tree, names := c.scan(t, offset)
		if !slices.Equal(names, want) {
			t.Errorf("%s: read %q, want %q", what, names, want)
		}
		plain, err := Scan(t.Context(), Options{Dir: c.dir})
		testkit.Must(t, err)
		same(t, what, tree.Digest, plain.Digest)
		return tree
	}
	expect("first scan", 0, "a", "b", "c")
	expect("files that have just changed", 0, "a", "b", "c")
	expect("files from the future", -later, "a", "b", "c")
	expect("once they have settled", later, "a", "b", "c")
	expect("nothing changed", later)

	// The size and the time of modification are the same. The time of change differs.
	info, err := os.Stat(filepath.Join(c.dir, "b"))
	testkit.Must(t, err)
	write(t, c.dir, map[string]string{"b": "X"})
	testkit.Must(t, os.Chtimes(filepath.Join(c.dir, "b"), info.ModTime(), info.ModTime()))
	expect("a change that hides its time", later, "b")
	expect("nothing changed again", later)

	testkit.Must(t, os.Rename(filepath.Join(c.dir, "a"), filepath.Join(c.dir, "d")))
	write(t, c.dir, map[string]string{"a": "new"})
	expect("another file under an old name", later, "a", "d")
	testkit.Must(t, os.Remove(filepath.Join(c.dir, "d")))
	expect("a file less", later)

	files, err := filepath.Glob(filepath.Join(c.cache, "*.hashes"))
	testkit.Must(t, err)
	if len(files) != 1 {
		t.Fatalf("files of the cache: %q", files)
	}
	testkit.Must(t, os.WriteFile(files[0], []byte("broken"), 0o600))
	expect("a broken cache", later, "a", "b", "c")
	expect("it is whole again", later)
}

func TestHashesOfFewDirectoriesAreKept(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	for i := range mostCaches + 5 {
		c := hashing{t.TempDir(), cache}
		write(t, c.dir, map[string]string{"a": fmt.Sprint(i)})
		c.scan(t, time.Hour)
	}
	for pattern, want := range map[string]int{"*.hashes": mostCaches, "*.manifest": mostManifests} {
		files, err := filepath.Glob(filepath.Join(cache, pattern))
		testkit.Must(t, err)
		same(t, pattern, len(files), want)
	}
}

// BenchmarkScanUnchanged measures a scan of a directory of 1000 files that was read
// before.
func BenchmarkScanUnchanged(b *testing.B) {
	dir, cache := b.TempDir(), b.TempDir()
	for i := range 1000 {
		testkit.Must(b, os.WriteFile(filepath.Join(dir, fmt.Sprint("module", i, ".py")), fmt.Appendf(nil, "print(%d)\n", i), 0o644))
	}
	settled := func() time.Time { return time.Now().Add(time.Hour) }
	b.ReportAllocs()
	for b.Loop() {
		tree, err := Scan(b.Context(), Options{Dir: dir, Cache: cache, Now: settled})
		testkit.Must(b, err)
		testkit.Must(b, tree.Close())
	}
}
