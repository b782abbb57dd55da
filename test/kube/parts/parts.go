// Package parts builds the programs of a Kubernetes control plane from their Go modules.
//
// Each module has a go.mod of its own here, because their versions of shared modules are
// incompatible. The programs are kept in a directory whose name has the module's version and a
// hash of all inputs of the build. So they are built only once.
package parts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// A Part is a Go module and the programs that are built from it.
type Part struct {
	Name     string // of the files NAME.mod and NAME.sum
	Module   string
	Version  string
	Packages []string          // import paths of the programs; empty: the module's main package
	Set      map[string]string // variables of packages that the linker sets
	Edit     Edit
}

// An Edit replaces the text Old in the main package of the last program before the build. If
// Old is empty, it does nothing.
type Edit struct{ Old, New string }

const componentVersion = "k8s.io/component-base/version."

// All returns all parts, the one with the longest build last.
func All() []Part {
	return []Part{
		{Name: "etcd", Module: "go.etcd.io/etcd/server/v3", Version: "v3.6.16"},
		{Name: "jobset", Module: "sigs.k8s.io/jobset", Version: "v0.11.1"},
		{
			Name: "kueue", Module: "sigs.k8s.io/kueue", Version: "v0.17.0", Packages: []string{"cmd/kueue"},
			// Kueue reads this certificate even if it serves no metrics. Only root can make
			// files there.
			Edit: Edit{Old: `"/etc/kueue/metrics/certs"`, New: `os.Getenv("KUEUE_METRICS_CERTS")`},
		},
		{
			Name: "kubernetes", Module: "k8s.io/kubernetes", Version: "v1.35.4",
			Packages: []string{"cmd/kube-apiserver", "cmd/kube-controller-manager", "cmd/kube-scheduler"},
			// Without these variables, the server reports a version that Kueue cannot parse.
			Set: map[string]string{componentVersion + "gitVersion": "v1.35.4", componentVersion + "gitMajor": "1", componentVersion + "gitMinor": "35"},
		},
	}
}

//go:embed *.mod *.sum
var files embed.FS

// packages returns the import paths of the programs.
func (p Part) packages() []string {
	if len(p.Packages) == 0 {
		return []string{p.Module}
	}
	var all []string
	for _, name := range p.Packages {
		all = append(all, p.Module+"/"+name)
	}
	return all
}

// Programs returns the names of the programs.
func (p Part) Programs() []string {
	if len(p.Packages) == 0 {
		return []string{p.Name}
	}
	var all []string
	for _, name := range p.Packages {
		all = append(all, path.Base(name))
	}
	return all
}

// flags returns the flags of go build on which the programs depend.
func (p Part) flags() []string {
	link := "-s -w"
	for _, name := range []string{"gitVersion", "gitMajor", "gitMinor"} {
		if value, ok := p.Set[componentVersion+name]; ok {
			link += " -X " + componentVersion + name + "=" + value
		}
	}
	return []string{"-buildvcs=false", "-ldflags", link}
}

// modules returns the texts of go.mod and go.sum.
func (p Part) modules() (mod, sum []byte, err error) {
	if mod, err = files.ReadFile(p.Name + ".mod"); err != nil {
		return nil, nil, err
	}
	sum, err = files.ReadFile(p.Name + ".sum")
	return mod, sum, err
}

// directory returns the name of the directory with the programs.
func (p Part) directory(goVersion string) (string, error) {
	mod, sum, err := p.modules()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, text := range [][]byte{mod, sum, []byte(strings.Join(p.flags(), "\n")), fmt.Appendf(nil, "%q", p.Edit), []byte(goVersion + " " + runtime.GOARCH)} {
		fmt.Fprintf(h, "%d\n%s\n", len(text), text)
	}
	return fmt.Sprintf("%s-%s-%.6x", p.Name, p.Version, h.Sum(nil)), nil
}

// A Builder builds parts.
type Builder struct {
	Dir    string    // directory that keeps the programs; see Dir
	Log    io.Writer // receives progress and the messages of go build
	AtOnce int       // packages that go build compiles at once; 0: one per CPU
}

// Dir returns the directory that keeps the programs: multihost/kube in the user's cache
// directory.
func Dir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "multihost", "kube"), nil
}

// Build builds the parts that the directory lacks. It returns the file of each program by
// its name. Builders of one directory wait for each other.
func (b Builder) Build(ctx context.Context, parts ...Part) (map[string]string, error) {
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Join(b.Dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	version, err := exec.CommandContext(ctx, "go", "env", "GOVERSION").Output()
	if err != nil {
		return nil, fmt.Errorf("ask go for its version: %w", err)
	}
	programs := map[string]string{}
	for _, p := range parts {
		name, err := p.directory(string(bytes.TrimSpace(version)))
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(b.Dir, name)
		if _, err := os.Stat(dir); err != nil {
			if err := b.build(ctx, p, dir); err != nil {
				return nil, fmt.Errorf("build %s %s: %w", p.Module, p.Version, err)
			}
		}
		for _, program := range p.Programs() {
			programs[program] = filepath.Join(dir, program)
		}
	}
	return programs, nil
}

// build builds the programs of a part. Their directory appears when all of them are there.
func (b Builder) build(ctx context.Context, p Part, dir string) error {
	fmt.Fprintf(b.Log, "build %s of %s %s\n", strings.Join(p.Programs(), ", "), p.Module, p.Version)
	work, err := os.MkdirTemp(b.Dir, "work-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // an unused directory remains at worst
	mod, sum, err := p.modules()
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"go.mod": mod, "go.sum": sum} {
		if err := os.WriteFile(filepath.Join(work, name), text, 0o644); err != nil {
			return err
		}
	}
	out := filepath.Join(work, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	args := append([]string{"build"}, p.flags()...)
	if b.AtOnce > 0 {
		args = append(args, "-p", fmt.Sprint(b.AtOnce))
	}
	if len(p.Packages) == 0 {
		out = filepath.Join(out, p.Name)
	}
	packages := p.packages()
	if p.Edit.Old != "" {
		if err := b.edit(ctx, p, filepath.Join(work, p.Name)); err != nil {
			return err
		}
		packages[len(packages)-1] = "./" + p.Name
	}
	cmd := exec.CommandContext(ctx, "go", append(append(args, "-o", out), packages...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = work, b.Log, b.Log, environment()
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return err
	}
	took := Took{Wall: time.Since(start).Seconds(), CPU: (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()}
	fmt.Fprintf(b.Log, "built %s in %.0f s, %.0f s of CPU:%s\n", p.Name, took.Wall, took.CPU, sizes(filepath.Join(work, "out")))
	text, err := json.Marshal(took)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "out", tookFile), text, 0o644); err != nil {
		return err
	}
	return os.Rename(filepath.Join(work, "out"), dir)
}

// Took is how many seconds a build has taken.
type Took struct{ Wall, CPU float64 }

const tookFile = "took.json" // beside the programs

// TookOf returns how long the builds of programs took together. The time is shorter than that
// of a first build if Go's build cache helped.
func TookOf(programs map[string]string) (sum Took, err error) {
	seen := map[string]bool{}
	for _, file := range programs {
		dir := filepath.Dir(file)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		text, err := os.ReadFile(filepath.Join(dir, tookFile))
		if err != nil {
			return sum, err
		}
		var took Took
		if err := json.Unmarshal(text, &took); err != nil {
			return sum, err
		}
		sum.Wall, sum.CPU = sum.Wall+took.Wall, sum.CPU+took.CPU
	}
	return sum, nil
}

// environment returns the environment of go. The user's settings must not change what is
// built.
func environment() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
}

// edit copies the package of the last program to a directory and makes the edit there.
func (b Builder) edit(ctx context.Context, p Part, to string) error {
	packages := p.packages()
	cmd := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", packages[len(packages)-1])
	cmd.Dir, cmd.Stderr, cmd.Env = filepath.Dir(to), b.Log, environment()
	dir, err := cmd.Output()
	if err != nil {
		return err
	}
	sources, err := filepath.Glob(filepath.Join(string(bytes.TrimSpace(dir)), "*.go"))
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	edits := 0
	for _, file := range sources {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		edits += bytes.Count(text, []byte(p.Edit.Old))
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), bytes.ReplaceAll(text, []byte(p.Edit.Old), []byte(p.Edit.New)), 0o644); err != nil {
			return err
		}
	}
	if edits != 1 {
		return fmt.Errorf("edit %s: it has %s %d times", p.Module, p.Edit.Old, edits)
	}
	return nil
}

// sizes returns the names and sizes of the files of a directory.
func sizes(dir string) string {
	var b strings.Builder
	entries, _ := os.ReadDir(dir) // without entries there is nothing to say
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			fmt.Fprintf(&b, " %s %.1f MB", e.Name(), float64(info.Size())/1e6)
		}
	}
	return b.String()
}

// Tidy writes new files NAME.mod and NAME.sum into dir, for the version in p.
func (b Builder) Tidy(ctx context.Context, p Part, dir string) error {
	work, err := os.MkdirTemp("", "tidy-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // an unused directory remains at worst
	mod, sum, err := p.modules()
	if err != nil {
		return err
	}
	var tools bytes.Buffer
	fmt.Fprintf(&tools, "//go:build tools\n\npackage tools\n\n")
	for _, name := range p.packages() {
		fmt.Fprintf(&tools, "import _ %q\n", name)
	}
	for name, text := range map[string][]byte{"go.mod": mod, "go.sum": sum, "tools.go": tools.Bytes()} {
		if err := os.WriteFile(filepath.Join(work, name), text, 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"mod", "edit", "-require=" + p.Module + "@" + p.Version}, {"mod", "tidy"}} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = work, b.Log, b.Log
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		if err := cmd.Run(); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{"go.mod": p.Name + ".mod", "go.sum": p.Name + ".sum"} {
		text, err := os.ReadFile(filepath.Join(work, from))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
