package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	agentprogram "multihost/internal/agent/program"
	agentbuild "multihost/internal/agent/program/build"
	"multihost/internal/testkit"
)

// The program of a release keeps its limits for size and start, and is static. A build in
// another directory gives the same bytes. The same holds for the agent in it, for every kind of
// worker.
func TestProgramIsSmallQuickAndReproducible(t *testing.T) {
	testkit.OnlyInAll(t, "the other tests of this package")
	if testkit.RaceDetector {
		t.Skip("skipped under the race detector: it is not in the program that is built")
	}
	here := platform{runtime.GOOS, runtime.GOARCH}
	dir := t.TempDir()
	program := filepath.Join(dir, "one", here.program())
	source := filepath.Join(dir, "source")
	testkit.Must(t, copySource(t.Context(), source, ".."))
	agents := agentprogram.In(os.DirFS(filepath.Join(source, agentbuild.Folder)))
	for _, arch := range agentprogram.Archs() {
		agent, err := agents.For(arch)
		testkit.Must(t, err)
		text, err := agent.Unpack()
		testkit.Must(t, err)
		file := filepath.Join(dir, arch)
		testkit.Must(t, os.WriteFile(file, text, 0o755))
		testkit.Must(t, check(file, platform{"linux", arch}))
		if n := len(agent.Packed); n > agentprogram.Largest {
			t.Errorf("the agent for %s has %d bytes compressed, more than %d", arch, n, agentprogram.Largest)
		}
		t.Logf("the agent for %s: %d bytes, %d compressed", arch, len(text), len(agent.Packed))
	}
	testkit.Must(t, build(t.Context(), source, program, "v0.0.0-test", here))
	testkit.Must(t, check(program, here))
	r := release{version: "v0.0.0-test", source: ".."}
	testkit.Must(t, r.tryHere(t.Context(), program, here, dir))
}

// check refuses a program built without -trimpath.
func TestCheckRefusesOrdinaryPrograms(t *testing.T) {
	self, err := os.Executable()
	testkit.Must(t, err)
	if err := check(self, platform{runtime.GOOS, runtime.GOARCH}); err == nil || !strings.Contains(err.Error(), "-trimpath") {
		t.Errorf("check of a test program: %v", err)
	}
}

// TestOnlyAReleaseIsRemoved: -out .. or -out "$HOME" deletes nothing.
func TestOnlyAReleaseIsRemoved(t *testing.T) {
	const archive, bill = "multihost-v1.2.3-4-gabc-linux-amd64.tar.gz", "multihost-v1-windows-amd64.cdx.json"
	for _, tt := range []struct {
		names []string // names with a final / are directories
		want  string   // a part of the error; "": the directory is cleared
	}{
		{nil, ""},
		{[]string{"SHA256SUMS", archive, bill, "multihost-v1-windows-amd64.zip"}, ""},
		{[]string{"SHA256SUMS", archive, "thesis.tex"}, `"thesis.tex" is in it`},
		{[]string{"SHA256SUMS", archive, "multihost-x-linux-amd64.zip/"}, "no file of a release"},
		{[]string{"SHA256SUMS/"}, `"SHA256SUMS" is in it`},
		{[]string{archive}, "no SHA256SUMS is in it"},
		{[]string{".git/", "go.mod"}, `".git" is in it`},
	} {
		out := t.TempDir()
		for _, name := range tt.names {
			path := filepath.Join(out, name)
			if strings.HasSuffix(name, "/") {
				testkit.Must(t, os.Mkdir(path, 0o755))
			} else {
				testkit.Must(t, os.WriteFile(path, nil, 0o644))
			}
		}
		var err error
		if tt.want == "" {
			err = clearOut(out)
		} else {
			r := release{version: "v1", source: "..", out: out}
			err = r.make(t.Context())
		}
		left, readErr := os.ReadDir(out)
		testkit.Must(t, readErr)
		switch {
		case tt.want == "" && (err != nil || len(left) > 0):
			t.Errorf("%q: error = %v, %d files left", tt.names, err, len(left))
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || len(left) != len(tt.names)):
			t.Errorf("%q: error = %v, want %q; %d of them left", tt.names, err, tt.want, len(left))
		}
	}
	testkit.Must(t, clearOut(filepath.Join(t.TempDir(), "none")))

	// A failed release leaves nothing that prevents the next one.
	r := release{version: "v1", source: t.TempDir(), out: t.TempDir()}
	testkit.Must(t, os.WriteFile(filepath.Join(r.out, sumsName), nil, 0o644))
	if err := r.make(t.Context()); err == nil {
		t.Error("a release of an empty source was made")
	}
	if left, err := os.ReadDir(r.out); err != nil || len(left) > 0 {
		t.Errorf("after a failed release: %d files, %v", len(left), err)
	}
}

func TestArchivesHoldTheFilesAndNothingOfThisMachine(t *testing.T) {
	source := t.TempDir()
	for name, text := range map[string]string{"LICENSE": "licence", "README.md": "read", "CHANGELOG.md": "changes", "man/multihost.1": ".TH", "program": "ELF"} {
		path := filepath.Join(source, name)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	one := release{version: "v1", source: source, manual: filepath.Join(source, "man"), out: t.TempDir()}
	two := release{version: "v1", source: source, manual: filepath.Join(source, "man"), out: t.TempDir()}
	for _, p := range []platform{{"linux", "arm64"}, {"windows", "amd64"}} {
		name, err := one.pack(filepath.Join(source, "program"), p)
		testkit.Must(t, err)
		now := packedTime() // the files' times have no effect
		testkit.Must(t, os.Chtimes(filepath.Join(source, "LICENSE"), now, now))
		_, err = two.pack(filepath.Join(source, "program"), p)
		testkit.Must(t, err)
		testkit.Must(t, sameBytes(filepath.Join(one.out, name), filepath.Join(two.out, name)))
	}
	want := []string{"multihost-v1-linux-arm64/multihost 755", "multihost-v1-linux-arm64/LICENSE 644", "multihost-v1-linux-arm64/README.md 644",
		"multihost-v1-linux-arm64/CHANGELOG.md 644", "multihost-v1-linux-arm64/man/man1/multihost.1 644"}
	if diff := cmp.Diff(want, listTar(t, filepath.Join(one.out, "multihost-v1-linux-arm64.tar.gz"))); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
	z, err := zip.OpenReader(filepath.Join(one.out, "multihost-v1-windows-amd64.zip"))
	testkit.Must(t, err)
	defer z.Close()
	if z.File[0].Name != "multihost-v1-windows-amd64/multihost.exe" || len(z.File) != 4 {
		t.Errorf("the zip has %d files, the first %q", len(z.File), z.File[0].Name)
	}
}

func listTar(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	testkit.Must(t, err)
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	testkit.Must(t, err)
	var names []string
	for archive := tar.NewReader(unpacked); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		testkit.Must(t, err)
		names = append(names, fmt.Sprintf("%s %o", h.Name, h.Mode))
	}
}

func TestSumsAreThoseOfSha256sum(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a"} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
	}
	testkit.Must(t, writeSums(dir, []string{"b", "a"}))
	cmd := exec.Command("sha256sum", "--strict", "-c", "SHA256SUMS")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "a: OK\nb: OK\n" {
		t.Errorf("sha256sum -c: %v\n%s", err, out)
	}
}
