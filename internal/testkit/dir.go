package testkit

import (
	"os"
	"testing"
	"time"
)

// dirPatience limits how long killed processes may continue to write.
const dirPatience = time.Minute

// SharedDir makes a directory for processes that may outlive the test. SharedDir removes the
// directory repeatedly until the processes have stopped writing. A new file during the removal
// then does not fail the test, as it would with t.TempDir.
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
