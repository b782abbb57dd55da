package testkit

import (
	"os"
	"testing"
	"time"
)

// dirPatience is how long processes that have been killed may go on writing.
const dirPatience = time.Minute

// SharedDir makes a directory for processes that may still end when the test
// does. Other than that of t.TempDir it is removed when they let it be: a file
// that is made while it is removed is no fault of the test.
func SharedDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "multihost-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		deadline := time.NewTimer(dirPatience)
		defer deadline.Stop()
		again := time.NewTicker(20 * time.Millisecond)
		defer again.Stop()
		for {
			err := os.RemoveAll(dir)
			if err == nil {
				return
			}
			select {
			case <-again.C:
			case <-deadline.C:
				t.Errorf("remove the directory of a test: %v", err)
				return
			}
		}
	})
	return dir
}
