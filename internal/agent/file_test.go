//go:build unix

package agent_test

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"multihost/internal/agent"
)

func TestWriteFileReplaces(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"one", "two", "two"} {
		if err := agent.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := agent.WriteFile(filepath.Join(path, "g"), nil, 0o600); err == nil {
		t.Error("no error below a file")
	}
}

func TestOneHasTheLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := agent.Lock(path)
	if err != nil || unlock == nil {
		t.Fatal(unlock == nil, err)
	}
	if second, err := agent.Lock(path); err != nil || second != nil {
		t.Errorf("got a lock: %t, %v", second != nil, err)
	}
	inherit(t, path)
	unlock()
	third, err := agent.Lock(path)
	if err != nil || third == nil {
		t.Fatal("got no lock", err)
	}
	third()
}

// inherit keeps the file open until the end of the test, as a child process does until its
// exec.
func inherit(t *testing.T, path string) {
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, name := range fds {
		if to, err := os.Readlink(name); err != nil || to != path {
			continue
		}
		fd, _ := strconv.Atoi(filepath.Base(name))
		kept, err := syscall.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(kept) })
	}
}
