package program_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"multihost/internal/agent/program"
	"multihost/internal/testkit"
)

func TestAProgramIsWhatItsHashSays(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{}
	for _, arch := range program.Archs() {
		made, err := program.Files(arch, []byte("program for "+arch))
		testkit.Must(t, err)
		for name, data := range made {
			files[name] = &fstest.MapFile{Data: data}
		}
	}
	set := program.In(files)
	testkit.Must(t, set.Check())
	p, err := set.For("arm64")
	testkit.Must(t, err)
	if text, err := p.Unpack(); err != nil || string(text) != "program for arm64" {
		t.Errorf("got %q, %v", text, err)
	}
	other, err := set.For("amd64")
	testkit.Must(t, err)
	p.Packed = other.Packed
	if _, err := p.Unpack(); err == nil {
		t.Error("another program was unpacked")
	}
}

// The error for a clean clone says what to do.
func TestAMissingAgentIsOneError(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]program.Set{
		"none":     {},
		"clone":    program.In(os.DirFS(t.TempDir())),
		"bad hash": program.In(fstest.MapFS{"amd64.sha256": {Data: []byte("x")}, "arm64.sha256": {Data: []byte("x")}}),
	} {
		var missing *program.MissingError
		if err := set.Check(); !errors.As(err, &missing) || missing.Hint() == "" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Git has the folder, without the files that the build puts into it.
func TestTheFolderIsThereInAClone(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("built", ".gitignore"))
	testkit.Must(t, err)
	for _, end := range []string{"*.gz", "*.sha256"} {
		if !strings.Contains(string(text), end) {
			t.Errorf("git would keep %s", end)
		}
	}
}
