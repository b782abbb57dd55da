//go:build unix

package agent_test

import (
	"os"
	"path/filepath"
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
	first, err := agent.Lock(path)
	if err != nil || first == nil {
		t.Fatal(first, err)
	}
	if second, err := agent.Lock(path); err != nil || second != nil {
		t.Errorf("got %v, %v", second, err)
	}
	first.Close()
	if third, err := agent.Lock(path); err != nil || third == nil {
		t.Errorf("got %v, %v", third, err)
	}
}
