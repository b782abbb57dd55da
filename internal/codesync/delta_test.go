package codesync

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"multihost/internal/testkit"
)

// After a change of one file, the next run sends that file and some kB, not the list of all
// files. The two runs have different names.
func TestASecondRunSendsWhatHasChanged(t *testing.T) {
	t.Parallel()
	const n = 200 // files; their packed list takes 9 kB
	dir, w, cache := t.TempDir(), newWorker(t), t.TempDir()
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprintf("pkg%d/module%d.py", i%50, i)] = noise(i, 32)
	}
	write(t, dir, files)
	sync := func(run, cache string) Report {
		t.Helper()
		tree, err := Scan(t.Context(), Options{Dir: dir, Cache: cache})
		testkit.Must(t, err)
		defer tree.Close()
		rep, err := tree.Push(t.Context(), w, run)
		testkit.Must(t, err)
		return rep
	}
	first := sync("run1", cache)
	if whole := int64(n * 32); first.Uploaded < whole {
		t.Errorf("the first run uploaded %d bytes of %d", first.Uploaded, whole)
	}
	write(t, dir, map[string]string{"pkg7/module7.py": noise(1, 2000), "pkg7/more.py": "x"})
	testkit.Must(t, os.Remove(filepath.Join(dir, "pkg9/module9.py")))
	rep := sync("run2", cache)
	same(t, "files sent", rep.SentFiles, 2)
	// Uploaded also counts the new part of the list.
	if limit := rep.SentBytes + 2<<10; rep.Uploaded > limit {
		t.Errorf("%d bytes of files cost %d bytes, want at most %d", rep.SentBytes, rep.Uploaded, limit)
	}
	same(t, "run directory", read(t, filepath.Join(w.home, "run2")), read(t, dir))
	t.Logf("first %d bytes, second %d, of contents %d", first.Uploaded, rep.Uploaded, rep.SentBytes)
}

// A worker refuses a manifest with a wrong digest.
func TestManifestsInPieces(t *testing.T) {
	t.Parallel()
	dir, w, cache := t.TempDir(), newWorker(t), t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	sync := func(run string) {
		t.Helper()
		tree, err := Scan(t.Context(), Options{Dir: dir, Cache: cache})
		testkit.Must(t, err)
		defer tree.Close()
		push(t, tree, w, run)
		same(t, "run directory", read(t, filepath.Join(w.home, run)), read(t, dir))
	}
	for i := range 5 {
		for range 1 + rng.IntN(6) {
			write(t, dir, map[string]string{fmt.Sprintf("d%d/f\n%d", rng.IntN(3), rng.IntN(9)): fmt.Sprint(rng.IntN(5))})
		}
		_ = os.RemoveAll(filepath.Join(dir, fmt.Sprintf("d%d/f\n%d", rng.IntN(3), rng.IntN(9)))) // the directory may not exist
		sync(fmt.Sprint("r", i%3))
	}
	// If the digest of the manifest differs, this machine sends the whole manifest.
	lists, err := filepath.Glob(filepath.Join(w.home, ".multihost/sync/*/manifest"))
	testkit.Must(t, err)
	for _, list := range lists {
		testkit.Must(t, os.WriteFile(list, []byte("spoilt"), 0o644))
	}
	write(t, dir, map[string]string{"new": "1"})
	sync("r9")
	kept, err := filepath.Glob(filepath.Join(cache, "*.manifest"))
	testkit.Must(t, err)
	for _, list := range kept {
		testkit.Must(t, os.WriteFile(list, []byte("spoilt"), 0o644))
	}
	write(t, dir, map[string]string{"new": "2"})
	sync("r10")
}

// A worker makes a manifest from an earlier manifest. If the disk is too full for the new
// manifest, the error says so, whether or not a part of the manifest is new.
func TestAManifestWithoutRoomIsTold(t *testing.T) {
	t.Parallel()
	dir, w, cache := t.TempDir(), newWorker(t), t.TempDir()
	scan := func() *Tree {
		tree, err := Scan(t.Context(), Options{Dir: dir, Cache: cache})
		testkit.Must(t, err)
		t.Cleanup(func() { tree.Close() })
		return tree
	}
	full := func(tree *Tree, run string) {
		t.Helper()
		state := filepath.Join(w.home, ".multihost/sync", run)
		testkit.Must(t, os.MkdirAll(state, 0o700))
		testkit.Must(t, os.Symlink("/dev/full", filepath.Join(state, "manifest."+tree.Digest)))
		_, err := tree.Push(t.Context(), w, run)
		for _, want := range []string{"cannot write ~/.multihost/sync/" + run, "No space left on device"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", run, err, want)
			}
		}
	}
	for i := range 200 {
		write(t, dir, map[string]string{fmt.Sprintf("module%d.py", i): noise(i, 32)})
	}
	first := scan()
	_, err := first.Push(t.Context(), w, "first")
	testkit.Must(t, err)
	full(scan(), "same")
	write(t, dir, map[string]string{"new.py": noise(1, 2000)})
	full(scan(), "more")
}
