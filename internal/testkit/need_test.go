package testkit

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"testing"
)

// ending is a test that only records how it ends.
type ending struct {
	testing.TB
	how string
}

func (e *ending) Helper()                           {}
func (e *ending) Skipf(format string, args ...any)  { e.end("skipped: "+format, args...) }
func (e *ending) Fatalf(format string, args ...any) { e.end("failed: "+format, args...) }

func (e *ending) end(format string, args ...any) {
	e.how = fmt.Sprintf(format, args...)
	panic(e)
}

func endingOf(f func(t testing.TB)) string {
	e := &ending{}
	func() {
		defer func() { _ = recover() }()
		f(e)
	}()
	return e.how
}

func TestNeedTellsThePackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("MULTIHOST_REQUIRE_TOOLS", "")
	const text = "shellcheck is not installed (Debian package shellcheck)"
	need := func(t testing.TB) { Need(t, "shellcheck") }
	if got := endingOf(need); got != "skipped: "+text {
		t.Error(got)
	}
	t.Setenv("MULTIHOST_REQUIRE_TOOLS", "1")
	if got := endingOf(need); got != "failed: "+text {
		t.Error(got)
	}
}

func TestNeedFindsAll(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"git", "tar"} {
		if err := os.WriteFile(path.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	t.Setenv("MULTIHOST_REQUIRE_TOOLS", "")
	if got := Need(t, "git", "tar"); got != path.Join(dir, "git") {
		t.Errorf("git is %q", got)
	}
	if got := endingOf(func(t testing.TB) { Need(t, "git", "gzip", "tar") }); got != "skipped: gzip is not installed (Debian package gzip)" {
		t.Error(got)
	}
	if got := endingOf(func(t testing.TB) { Need(t, "emacs") }); got == "" || got[:7] != "failed:" {
		t.Errorf("a program of an unknown package: %q", got)
	}
}

// .ci/tools installs the programs that tests need.
func TestToolsAreInstalled(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../.ci/tools")
	if err != nil {
		t.Fatal(err)
	}
	installed, names := map[string]bool{}, packages()
	for _, m := range regexp.MustCompile(`([a-z0-9/-]+):([a-z0-9-]+)`).FindAllStringSubmatch(string(text), -1) {
		program, pkg := path.Base(m[1]), m[2]
		installed[pkg] = true
		if names[program] != pkg {
			t.Errorf("%s is of package %s in .ci/tools, of %q here", program, pkg, names[program])
		}
	}
	for program, pkg := range names {
		if !installed[pkg] {
			t.Errorf(".ci/tools does not install %s, which has %s", pkg, program)
		}
	}
}
