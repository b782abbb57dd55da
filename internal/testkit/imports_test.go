package testkit_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A pkg is go list's description of a package.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	GoFiles      []string
	Dir          string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,GoFiles,Dir", "multihost/...").Output()
	if err != nil {
		t.Fatalf("list packages: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// among reports whether name matches one of patterns.
func among(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		dir, below := strings.CutSuffix(p, "/...")
		return name == dir || below && strings.HasPrefix(name, dir+"/")
	})
}

// The rules are the layers of docs/ARCHITECTURE.md. Each rule says which packages may import
// packages with a prefix, and why.
func TestImportRules(t *testing.T) {
	rules := []struct {
		prefix  string   // of the import path
		only    []string // packages below multihost/ that may import them; a/... means a and all below it
		because string
	}{
		{"github.com/urfave/cli", []string{"cmd/multihost/...", "internal/cmdline", "internal/options"}, "flags are the commands' business"},
		{"golang.org/x/crypto/ssh", []string{"internal/sshfan", "internal/sshkey", "internal/sim/netns", "internal/sim/worker", "bench"}, "SSH is hidden in the engine and the simulated workers; bench has the least client to compare with"},
		{"github.com/google/go-containerregistry", []string{"internal/image", "internal/sim/..."}, "registries stay behind the package that makes images"},
		{"google.golang.org/api", []string{"internal/detach", "internal/gce/...", "internal/gcp", "internal/gke", "internal/network", "internal/nodes", "internal/qr", "internal/sim/...", "internal/zones"}, "cloud types stay behind the packages that hide the cloud"},
		{"cloud.google.com/go", []string{"internal/gce/...", "internal/gcp/computeop", "internal/gke", "internal/network", "internal/nodes", "internal/sim/..."}, "cloud types stay behind the packages that hide the cloud"},
		{"golang.org/x/term", []string{"internal/ui"}, "the terminal has one owner"},
		{"github.com/gdamore/tcell", []string{"internal/ui"}, "the terminal has one owner"},
		{"github.com/vbauerster/mpb", []string{"internal/ui"}, "the terminal has one owner"},
		{"github.com/coder/websocket", []string{"internal/iap", "internal/sim/..."}, "the tunnel through IAP has one owner, and the simulator its other end"},
		{"k8s.io/client-go", []string{"internal/kube", "internal/testkit/kubecontract"}, "the client of Kubernetes has one owner; its typed structs are for all"},
		{"github.com/gorilla/websocket", []string{"internal/kube", "internal/sim/..."}, "commands in pods have one owner, and the simulator their other end"},
		{"multihost/internal/sshfan", []string{"bench", "internal/options", "internal/overssh", "internal/sim/daemon", "internal/testkit/simworker"}, "SSH is one way to reach a worker: what is done there takes a remote.Runner"},
		{"multihost/internal/sim", []string{"cmd/multihost/...", "internal/sim/...", "internal/testkit/simcloud", "internal/testkit/simworker"}, "product code has no simulator branches; tests have workers"},
		{"multihost/internal/testkit", []string{"internal/testkit/..."}, "test code stays in tests"},
		{"github.com/chromedp", []string{"internal/testkit/browser"}, "test code stays in tests"},
		{"multihost/internal/options", []string{"cmd/multihost/..."}, "packages take validated options"},
		{"multihost/internal/qr", []string{"cmd/multihost", "internal/options", "internal/qr/...", "internal/sim"}, "whoever needs slices asks a provision.Provider"},
		{"multihost/internal/nodes", []string{"internal/gce", "internal/qr"}, "whoever needs slices asks a provision.Provider"},
		{"multihost/internal/gce", []string{"cmd/multihost", "internal/gce", "internal/gke", "internal/options"}, "whoever needs slices asks a provision.Provider"},
		{"multihost/internal/held", []string{"cmd/multihost", "internal/access", "internal/options"}, "whoever needs slices asks a provision.Provider"},
		{"multihost/internal/zones", []string{"internal/nodes", "internal/qr"}, "zones explain refusals of the Cloud TPU API"},
		{"text/template", nil, "with it the linker keeps every exported method, 8 MB"},
		{"html/template", nil, "with it the linker keeps every exported method, 8 MB"},
		{"log", []string{"cmd/multihost", "internal/sim/registry"}, "logic emits events and prints nothing; a library of the simulated registry gets a logger that drops all"},
	}
	// Pure packages import only the standard library and these packages of ours.
	pure := map[string][]string{
		"internal/fault": nil, "internal/tpu": {"fault"}, "internal/event": {"fault"}, "internal/help": {"fault"},
		"internal/gcloud":    {"fault"},
		"internal/provision": {"fault", "tpu", "event"},
	}
	apis := []string{"tpuapi", "projectapi", "computeapi", "containerapi", "storageapi"} // the APIs of the simulator
	apart := []string{"network", "gce", "gke", "qr", "preflight", "codesync", "launch", "lease", "detach", "transfer", "xla", "metrics"}

	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, "multihost/")
		for _, imp := range p.Imports {
			for _, r := range rules {
				if (imp == r.prefix || strings.HasPrefix(imp, r.prefix+"/")) && !among(r.only, name) {
					t.Errorf("%s imports %s: %s", name, imp, r.because)
				}
			}
			if name == "internal/cmdline" && strings.HasPrefix(imp, "multihost/") && !slices.Contains([]string{"config", "event", "fault", "help"}, strings.TrimPrefix(imp, "multihost/internal/")) {
				t.Errorf("%s imports %s: it is for any program", name, imp)
			}
			if others, is := pure[name]; is && (strings.Contains(imp, ".") || strings.HasPrefix(imp, "multihost/") && !slices.Contains(others, strings.TrimPrefix(imp, "multihost/internal/"))) {
				t.Errorf("%s imports %s: it is pure: the standard library and %s only", name, imp, strings.Join(others, ", "))
			}
			for _, a := range apis {
				if other, ok := strings.CutPrefix(imp, "multihost/internal/sim/"); ok && name == "internal/sim/"+a && slices.Contains(apis, other) {
					t.Errorf("%s imports %s: the APIs share the state of the cloud and nothing else", name, imp)
				}
			}
			if agent, _ := strings.CutPrefix(name, "internal/agent"); slices.Contains([]string{"", "/detached", "/pod", "/watch"}, agent) && agent != name && (strings.Contains(imp, ".") || strings.HasPrefix(imp, "multihost/") && imp != "multihost/internal/fault" && imp != "multihost/internal/agent") {
				t.Errorf("%s imports %s: it goes to every worker: the standard library, fault and agent only", name, imp)
			}
			for _, a := range apart {
				for _, b := range apart {
					if name == "internal/"+a && imp == "multihost/internal/"+b && a != b {
						t.Errorf("%s imports %s: they share through tpu, event, config, gcp and remote", name, imp)
					}
				}
			}
		}
	}
}

// In cmd/multihost, only two parts import package qr: the qr commands, and the code that
// makes the provider for all other commands.
func TestOnlyTheQRCommandsKnowQueuedResources(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath != "multihost/cmd/multihost" {
			continue
		}
		for _, file := range p.GoFiles {
			if slices.Contains(readLines(t, p.Dir+"/"+file), `	"multihost/internal/qr"`) && file != "qr.go" && file != "session.go" {
				t.Errorf("%s imports qr: use provision", file)
			}
		}
	}
}

// Only cmd/multihost exits and uses the environment and the standard streams. Other packages get
// everything as arguments. Package testkit is an exception, because the environment says which
// tests to run.
func TestOnlyMainTouchesTheProcess(t *testing.T) {
	banned := []string{"os.Exit(", "os.Getenv(", "os.LookupEnv(", "os.Environ(", "os.Stdout", "os.Stderr", "os.Stdin", "fmt.Print(", "fmt.Printf(", "fmt.Println("}
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.ImportPath, "multihost/internal/") || strings.HasPrefix(p.ImportPath+"/", "multihost/internal/testkit/") {
			continue
		}
		for _, file := range p.GoFiles {
			for n, line := range readLines(t, p.Dir+"/"+file) {
				code, _, _ := strings.Cut(line, "//")
				for _, b := range banned {
					if strings.Contains(code, b) {
						t.Errorf("%s/%s:%d: %s belongs in cmd/multihost", p.ImportPath, file, n+1, strings.TrimSuffix(b, "("))
					}
				}
			}
		}
	}
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(data), "\n")
}
