// Command release builds the files of a release:
//
//	go run ./release -version v1.2.3 -out dist
//
// For each platform it writes an archive with the program, its manual pages, the licence and
// the changes, and a bill of materials in CycloneDX form. SHA256SUMS has the digests of all
// files. The files contain nothing about the machine, the directory or the time. The same Go
// builds the same bytes from the same commit. A second build in another directory checks this.
// The command also checks limits for size and start, and static linking. If a check fails, it
// makes no release and exits with status 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := start(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, args []string) error {
	var r release
	flags := flag.NewFlagSet("release", flag.ExitOnError)
	flags.StringVar(&r.version, "version", "", "version of the release, as git describe says it")
	flags.StringVar(&r.out, "out", "dist", "directory to write to: none, an empty one, or that of an earlier release, which is removed")
	flags.StringVar(&r.source, "source", ".", "directory of the source")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+_-]*$`).MatchString(r.version) {
		return fmt.Errorf("-version %q: want a word such as v1.2.3", r.version)
	}
	return r.make(ctx)
}

// A platform is a system and architecture on which a program runs.
type platform struct{ system, arch string }

func (p platform) String() string { return p.system + "-" + p.arch }

func (p platform) program() string {
	if p.system == "windows" {
		return "multihost.exe"
	}
	return "multihost"
}

func platforms() []platform {
	return []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}}
}

type release struct {
	version, source, out string
	manual               string // directory of the manual pages
}

// clearOut removes the files of an earlier release from a directory. If the directory has other
// files, clearOut changes nothing and returns an error. Somebody may have given their home by
// mistake.
func clearOut(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("-out: %w", err)
	}
	sums := false
	for _, e := range entries {
		sums = sums || e.Name() == sumsName
		if !e.Type().IsRegular() || e.Name() != sumsName && !releaseFile.MatchString(e.Name()) {
			return fmt.Errorf("-out %q: %q is in it, which is no file of a release: name a directory that does not exist, or remove it", dir, e.Name())
		}
	}
	if len(entries) > 0 && !sums {
		return fmt.Errorf("-out %q: no %s is in it, so it is not known for a release: name a directory that does not exist, or remove it", dir, sumsName)
	}
	return removeFiles(dir)
}

// removeFiles removes all files of a directory.
func removeFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
	}
	return err
}

// releaseFile matches the names of all files of a release except the digests.
var releaseFile = regexp.MustCompile(`^multihost-.+-[a-z]+-[a-z0-9]+\.(tar\.gz|zip|cdx\.json)$`)

func before(is bool) int {
	if is {
		return 0
	}
	return 1
}

func (r *release) make(ctx context.Context) (err error) {
	if err := clearOut(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil { // remove it: half a release is useless and would block the next one
			err = errors.Join(err, removeFiles(r.out))
		}
	}()
	work, err := os.MkdirTemp("", "multihost-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	source := filepath.Join(work, "source")
	if err := copySource(ctx, source, r.source); err != nil {
		return err
	}
	here := platform{runtime.GOOS, runtime.GOARCH}
	order := platforms()
	// This machine's platform first: its program can be tried, and writes the manual.
	slices.SortStableFunc(order, func(a, b platform) int { return before(a == here) - before(b == here) })
	if order[0] != here {
		return fmt.Errorf("make a release on %s: it is none of the platforms, so no program can be tried", here)
	}
	var sums []string
	for _, p := range order {
		begun := time.Now()
		program := filepath.Join(work, p.String(), p.program())
		if err := build(ctx, source, program, r.version, p); err != nil {
			return err
		}
		if err := check(program, p); err != nil {
			return fmt.Errorf("check program for %s: %w", p, err)
		}
		if p == here {
			if err := r.tryHere(ctx, program, p, work); err != nil {
				return err
			}
			r.manual = filepath.Join(work, "man")
			if out, err := exec.CommandContext(ctx, program, "manual", r.manual).CombinedOutput(); err != nil {
				return fmt.Errorf("write the manual pages: %w\n%s", err, out)
			}
		}
		bill := fmt.Sprintf("multihost-%s-%s.cdx.json", r.version, p)
		if err := writeBill(ctx, filepath.Join(r.out, bill), program, r.version); err != nil {
			return err
		}
		archive, err := r.pack(program, p)
		if err != nil {
			return err
		}
		sums = append(sums, archive, bill)
		fmt.Printf("%-40s %4.1f MB program, %.0f s\n", archive, megabytes(program), time.Since(begun).Seconds())
	}
	return writeSums(r.out, sums)
}

// tryHere tests the program for this machine: it starts quickly, prints its version, and
// has the same bytes after a build in another directory.
func (r *release) tryHere(ctx context.Context, program string, p platform, work string) error {
	said, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil || !strings.HasPrefix(string(said), "multihost "+r.version+" (") {
		return fmt.Errorf("ask the program for its version: it says %q: %v", said, err)
	}
	took, err := startsQuickly(ctx, program, work)
	if err != nil {
		return err
	}
	elsewhere := filepath.Join(work, "elsewhere", "source")
	if err := copySource(ctx, elsewhere, r.source); err != nil {
		return err
	}
	again := filepath.Join(work, "again", p.program())
	if err := build(ctx, elsewhere, again, r.version, p); err != nil {
		return err
	}
	if err := sameBytes(program, again); err != nil {
		return fmt.Errorf("build a second time from another directory: %w", err)
	}
	fmt.Printf("starts in %.0f ms; a build from another directory is the same\n", took.Seconds()*1000)
	return nil
}

func megabytes(path string) float64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return float64(info.Size()) / 1e6
}

// pack writes the archive for a platform, and returns its name.
func (r *release) pack(program string, p platform) (string, error) {
	top := fmt.Sprintf("multihost-%s-%s", r.version, p)
	files := []packed{{name: p.program(), from: program, mode: 0o755}}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		files = append(files, packed{name: name, from: filepath.Join(r.source, name), mode: 0o644})
	}
	pages, err := filepath.Glob(filepath.Join(r.manual, "*.1"))
	if err != nil || len(pages) == 0 {
		return "", errors.Join(errors.New("pack manual pages: there are none"), err)
	}
	for _, page := range pages {
		if p.system != "windows" {
			files = append(files, packed{name: "man/man1/" + filepath.Base(page), from: page, mode: 0o644})
		}
	}
	if p.system == "windows" {
		return top + ".zip", writeZip(filepath.Join(r.out, top+".zip"), top, files)
	}
	return top + ".tar.gz", writeTar(filepath.Join(r.out, top+".tar.gz"), top, files)
}
