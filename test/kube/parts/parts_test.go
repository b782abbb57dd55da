package parts

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestDirectories: every input of a part's build changes the name of its directory.
func TestDirectories(t *testing.T) {
	var seen []string
	name := func(p Part, goVersion string) {
		t.Helper()
		dir, err := p.directory(goVersion)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`^[a-z]+-v[0-9.]+-[0-9a-f]{12}$`).MatchString(dir) || slices.Contains(seen, dir) {
			t.Errorf("directory of %s is %s, others are %s", p.Name, dir, seen)
		}
		seen = append(seen, dir)
	}
	for _, p := range All() {
		name(p, "go1.26.8")
		name(p, "go1.26.9")
		p.Set = map[string]string{componentVersion + "gitMinor": "1"}
		name(p, "go1.26.8")
		p.Edit = Edit{Old: "a", New: "b"}
		name(p, "go1.26.8")
	}
}

// TestFailedBuild: a failed build leaves no files.
func TestFailedBuild(t *testing.T) {
	b := Builder{Dir: t.TempDir(), Log: t.Output()}
	p := Part{Name: "etcd", Module: "none.invalid/x", Version: "v1.0.0"}
	if _, err := b.Build(t.Context(), p); err == nil {
		t.Error("a module that does not exist was built")
	}
	if left, err := filepath.Glob(filepath.Join(b.Dir, "work-*")); err != nil || len(left) > 0 {
		t.Errorf("a build that failed left %s, %v", left, err)
	}
}
