//go:build linux

package codesync_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"multihost/internal/codesync"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
)

func TestPushOverSSH(t *testing.T) {
	testkit.NoLeaks(t)
	w := simworker.Start(t, simworker.Config{})
	dir := t.TempDir()
	big := make([]byte, 6<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, err := random.Read(big)
	testkit.Must(t, err)
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "-d\n"), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "-d\n", "big \xff"), big, 0o644))
	for i := range 20 {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "f"+strconv.Itoa(i)), big[i<<18:(i+1)<<18], 0o644))
	}
	tree, err := codesync.Scan(t.Context(), codesync.Options{Dir: dir})
	testkit.Must(t, err)
	defer tree.Close()

	w.Fault(t, "cut", "in", "3000000", "1")
	rep, err := tree.Push(t.Context(), w.Conns[0], "run1")
	testkit.Must(t, err)
	if rep.SentFiles == 0 {
		t.Errorf("report %+v", rep)
	}
	got, err := os.ReadFile(filepath.Join(w.Root, "home/tester/run1/-d\n/big \xff"))
	testkit.Must(t, err)
	if !bytes.Equal(got, big) {
		t.Error("the file arrived differently")
	}
	rep, err = tree.Push(t.Context(), w.Conns[0], "run1")
	testkit.Must(t, err)
	if rep != (codesync.Report{Reused: 21, Uploaded: rep.Uploaded}) {
		t.Errorf("second push: %+v", rep)
	}
}
