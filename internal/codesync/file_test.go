package codesync

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/testkit"
)

func TestFilesOfAKilledRunnerAreRemoved(t *testing.T) {
	t.Parallel()
	temp, now := t.TempDir(), time.Now()
	for name, age := range map[string]time.Duration{fileDirs + "old": 25 * time.Hour, fileDirs + "in-use": time.Hour, "other": 25 * time.Hour} {
		dir := filepath.Join(temp, name)
		testkit.Must(t, os.Mkdir(dir, 0o700))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "agent"), nil, 0o600))
		testkit.Must(t, os.Chtimes(dir, now, now.Add(-age)))
	}
	PushFile(t.Context(), Options{TempDir: temp}, nil, "agent", func() ([]byte, error) { return []byte("program"), nil })
	left, err := os.ReadDir(temp)
	testkit.Must(t, err)
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != fileDirs+"in-use other" {
		t.Errorf("left: %s", got)
	}
}
