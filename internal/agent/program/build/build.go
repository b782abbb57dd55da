// Package build compiles multihost-agent for workers. The same source and Go version give
// the same bytes on every machine.
package build

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"multihost/internal/agent/program"
)

// Folder has the programs that package program embeds. The path is relative to the source
// directory.
const Folder = "internal/agent/program/built"

// Into compiles the program for each of archs, and writes the files that program.In reads
// to dir. It does not rewrite a program that dir already has. source is the source
// directory. Into fails if a compressed program is larger than program.Largest.
func Into(ctx context.Context, source, dir string, archs ...string) error {
	look(source)
	work, err := os.MkdirTemp("", "multihost-agent-")
	if err != nil {
		return fmt.Errorf("build multihost-agent: %w", err)
	}
	defer os.RemoveAll(work)
	for _, arch := range archs {
		file := filepath.Join(work, arch)
		if err := compile(ctx, source, file, arch); err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("build multihost-agent for %s: %w", arch, err)
		}
		if current(dir, arch, text) {
			continue
		}
		files, err := program.Files(arch, text)
		if err != nil {
			return fmt.Errorf("pack multihost-agent for %s: %w", arch, err)
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			data := files[name]
			if len(data) > program.Largest {
				return fmt.Errorf("build multihost-agent for %s: it has %d bytes compressed, more than %d", arch, len(data), program.Largest)
			}
			if err := replace(filepath.Join(dir, name), data); err != nil {
				return fmt.Errorf("build multihost-agent for %s: %w", arch, err)
			}
		}
	}
	return nil
}

// current reports whether dir has this program. If it has, no compression is needed, which
// would take longer than compiling.
func current(dir, arch string, text []byte) bool {
	p, err := program.In(os.DirFS(dir)).For(arch)
	if err != nil {
		return false
	}
	old, err := p.Unpack()
	return err == nil && bytes.Equal(old, text)
}

// look looks at the source files of the program. Go reuses the result of a test until a
// file changes that the test has looked at. The files that the compiler reads do not count.
func look(source string) {
	for _, dir := range []string{"cmd/multihost-agent", "internal/agent"} {
		_ = filepath.WalkDir(filepath.Join(source, dir), func(path string, _ os.DirEntry, _ error) error {
			_, _ = os.Stat(path)
			return nil // the compiler reports what is missing
		})
	}
}

// replace writes a file in one step, because another build may read it meanwhile. It does
// not touch a file that has the same contents, so that Go need not rebuild the packages
// that embed it.
func replace(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// compile overrides all environment variables that would change the result. The program
// needs no version, because workers know it by its hash. A worker makes few calls, so it
// does without HTTP/2, which is a tenth of the program. Without inlined calls the program
// is another tenth smaller. It becomes slower, but it waits nearly all of the time.
func compile(ctx context.Context, source, file, arch string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", "nethttpomithttp2", "-gcflags=all=-l", "-ldflags", "-s -w -buildid=", "-o", file, "./cmd/multihost-agent")
	cmd.Dir = source
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch,
		"GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build multihost-agent for %s: %w\n%s", arch, err, out)
	}
	return nil
}
