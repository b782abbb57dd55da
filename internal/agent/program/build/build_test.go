package build

import (
	"os"
	"path/filepath"
	"testing"

	"multihost/internal/agent/program"
	"multihost/internal/testkit"
)

func TestWhatAFolderHasIsNotCompressedAgain(t *testing.T) {
	const arch, text = "amd64", "the program"
	for name, row := range map[string]struct {
		change func(t *testing.T, dir string)
		want   bool
	}{
		"the same program": {func(*testing.T, string) {}, true},
		"another program": {func(t *testing.T, dir string) {
			write(t, dir, "an older program")
		}, false},
		"a part of it": {func(t *testing.T, dir string) {
			testkit.Must(t, os.Truncate(filepath.Join(dir, arch+".gz"), 20))
		}, false},
		"no hash": {func(t *testing.T, dir string) {
			testkit.Must(t, os.Remove(filepath.Join(dir, arch+".sha256")))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, text)
			row.change(t, dir)
			if got := current(dir, arch, []byte(text)); got != row.want {
				t.Errorf("current = %v, want %v", got, row.want)
			}
		})
	}
}

func write(t *testing.T, dir, text string) {
	files, err := program.Files("amd64", []byte(text))
	testkit.Must(t, err)
	for name, data := range files {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
}
