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

	"multihost/internal/testkit"
)

// The program of a release keeps its promises about size, start and libraries,
// and comes out the same, byte for byte, from two directories.
func TestProgramIsSmallQuickAndReproducible(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("skipped under the race detector: it is not in the program that is built")
	}
	here := platform{runtime.GOOS, runtime.GOARCH}
	dir := t.TempDir()
	program := filepath.Join(dir, "one", here.program())
	testkit.Must(t, build(t.Context(), "..", program, "v0.0.0-test", here))
	testkit.Must(t, check(program, here))
	r := release{version: "v0.0.0-test", source: ".."}
	testkit.Must(t, r.tryHere(t.Context(), program, here, dir))
}

// check is worth something: a program that was built without -trimpath is none
// for a release.
func TestCheckRefusesOrdinaryPrograms(t *testing.T) {
	self, err := os.Executable()
	testkit.Must(t, err)
	if err := check(self, platform{runtime.GOOS, runtime.GOARCH}); err == nil || !strings.Contains(err.Error(), "-trimpath") {
		t.Errorf("check of a test program: %v", err)
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
		now := packedTime() // the times of the files count for nothing
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
