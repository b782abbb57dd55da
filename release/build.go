package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	agentprogram "multihost/internal/agent/program"
	agentbuild "multihost/internal/agent/program/build"
)

const (
	largestProgram = 55_000_000 // in bytes, with two agents of 2.5 MB each
	slowestStart   = 50 * time.Millisecond
	// slowestRatio is the limit for the start on a machine that is too slow for slowestStart.
	// It is a multiple of the start time of a Go program that does nothing.
	slowestRatio = 15
)

// build builds the program for p. It overrides the environment, so that only the source, the
// version and Go itself affect the result.
func build(ctx context.Context, source, program, version string, p platform) error {
	program, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-tags", "grpcnotrace", // without this tag, grpc's debug page links html/template and every exported method, which is 8 MB
		"-ldflags", "-s -w -buildid= -X main.buildVersion="+version, "-o", program, "./cmd/multihost")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.system, "GOARCH="+p.arch,
		"GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build for %s: %w\n%s", p, err, out)
	}
	return nil
}

// check returns an error if a program is too large, needs a library of the system, or contains
// the place or time of its build.
func check(program string, p platform) error {
	info, err := os.Stat(program)
	if err != nil {
		return err
	}
	if info.Size() > largestProgram {
		return fmt.Errorf("it has %d bytes, more than %d", info.Size(), largestProgram)
	}
	built, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	settings := map[string]string{}
	for _, s := range built.Settings {
		settings[s.Key] = s.Value
	}
	for key, want := range map[string]string{"-trimpath": "true", "CGO_ENABLED": "0", "GOOS": p.system, "GOARCH": p.arch, "vcs.time": ""} {
		if settings[key] != want {
			return fmt.Errorf("it was built with %s=%q, want %q", key, settings[key], want)
		}
	}
	if p.system == "linux" {
		return isStatic(program)
	}
	return nil // on other systems, every program uses the system's own library
}

func isStatic(program string) error {
	file, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			return errors.New("it is linked to libraries of the system")
		}
	}
	return nil
}

// startTime returns the CPU time that the program needs to start and end. It takes the minimum
// of 30 runs, on which other load has little effect.
func startTime(ctx context.Context, program string) (time.Duration, error) {
	var took [30]time.Duration
	for i := range took {
		cmd := exec.CommandContext(ctx, program, "--version")
		if err := cmd.Run(); err != nil {
			return 0, fmt.Errorf("start the program: %w", err)
		}
		took[i] = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return slices.Min(took[:]), nil
}

// startsQuickly returns the CPU time of one start, and an error if it is above the limit.
func startsQuickly(ctx context.Context, program, work string) (time.Duration, error) {
	took, err := startTime(ctx, program)
	if err != nil || took <= slowestStart {
		return took, err
	}
	source, idle := filepath.Join(work, "idle.go"), filepath.Join(work, "idle")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		return 0, fmt.Errorf("write a program that does nothing: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", idle, source).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build a program that does nothing: %w\n%s", err, out)
	}
	least, err := startTime(ctx, idle)
	if err != nil {
		return 0, err
	}
	if limit := slowestRatio * least; took > limit {
		return 0, fmt.Errorf("start the program: it takes %s, more than %s and more than %s, %d times a program that does nothing",
			took, slowestStart, limit, slowestRatio)
	}
	return took, nil
}

// copySource copies the files from which the program is built. In the copy it builds the agent
// that the program embeds.
func copySource(ctx context.Context, to, from string) error {
	for _, dir := range []string{"cmd", "internal"} {
		if err := os.CopyFS(filepath.Join(to, dir), os.DirFS(filepath.Join(from, dir))); err != nil {
			return fmt.Errorf("copy the source: %w", err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("copy the source: %w", err)
		}
	}
	return agentbuild.Into(ctx, to, filepath.Join(to, agentbuild.Folder), agentprogram.Archs()...)
}

// sameBytes compares two files. Its error says where they begin to differ.
func sameBytes(a, b string) error {
	one, err := os.ReadFile(a)
	if err != nil {
		return err
	}
	two, err := os.ReadFile(b)
	if err != nil {
		return err
	}
	if bytes.Equal(one, two) {
		return nil
	}
	at := 0
	for at < min(len(one), len(two)) && one[at] == two[at] {
		at++
	}
	near := func(text []byte) []byte { return text[max(0, at-20):min(len(text), at+40)] }
	return fmt.Errorf("%d and %d bytes, which differ from byte %d on: %q, %q", len(one), len(two), at, near(one), near(two))
}

// readModules returns the modules from which a program was built, as path@version.
func readModules(program string) ([]string, error) {
	built, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var modules []string
	for _, m := range built.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, m.Path+"@"+m.Version)
	}
	return modules, nil
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// billTool writes bills of materials. It is a separate program, so that its dependencies do
// not become ours.
const billTool = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"

// writeBill writes the bill of materials of a program, and checks that it has each module
// of the program.
func writeBill(ctx context.Context, path, program, version string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	// The tool runs on this machine, also if the program is for another platform.
	cmd := exec.CommandContext(ctx, "go", "run", billTool, "bin", "-json", "-std", "-noserial", "-notimestamp", "-version", version, "-output", path, program)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOOS=", "GOARCH=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("write bill of materials: %w\n%s", err, out)
	}
	bill, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	modules, err := readModules(program)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if !strings.Contains(string(bill), `"pkg:golang/`+m) {
			return fmt.Errorf("write bill of materials: %s is not in it", m)
		}
	}
	return nil
}
