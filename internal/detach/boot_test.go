package detach_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/detach"
	"multihost/internal/testkit"
)

// A vm is this machine as a worker that boots. The test answers the calls of its startup
// script, whose waits are short.
type vm struct {
	t      *testing.T
	root   string
	url    string
	agents program.Set
	keys   string // lines of the job, besides those of every job

	mu       sync.Mutex
	bucket   int    // HTTP status that refuses objects; 0: none
	deaf     bool   // guest attributes are refused
	packed   []byte // object with the program
	reported bool   // another worker has reported
	dropped  int    // number of lists of objects without an answer
	label    string // label of the queued resource
	deleted  bool
	told     []string // values of the guest attribute state
	asked    []string // objects
}

func bootVM(t *testing.T) *vm {
	testkit.Need(t, "curl")
	v := &vm{t: t, root: testkit.SharedDir(t), label: "r"}
	v.agent(`echo "became $*"`)
	for _, dir := range []string{"home", "tmp", "dev/shm", "run", "bin"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(v.root, dir), 0o755))
	}
	v.stand("sleep", "exec /bin/sleep 0.1")
	server := httptest.NewServer(http.HandlerFunc(v.serve))
	t.Cleanup(server.Close)
	v.url = server.URL
	return v
}

func (v *vm) agent(text string) {
	v.agents = noAgent(v.t, "#!/bin/sh\n[ \"$1\" = check ] && exit\n"+text+"\n")
	for _, arch := range program.Archs() {
		if p, err := v.agents.For(arch); err == nil {
			v.packed = p.Packed
		}
	}
}

// stand replaces a program of the worker by a script.
func (v *vm) stand(name, text string) {
	testkit.WriteProgram(v.t, filepath.Join(v.root, "bin", name), "#!/bin/bash\n"+text+"\n")
}

func (v *vm) serve(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	switch path := strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/instance/"); {
	case path == "attributes/multihost-job":
		fmt.Fprintf(w, "run=r\ndeletion={\"read\":\"%[1]s/q\",\"method\":\"DELETE\",\"url\":\"%[1]s/q?force=true\",\"proof\":{\"path\":\"/labels/multihost-run\",\"value\":\"r\"}}\nbucket=b\nprefix=d/r/\nclaim=c\nstorage=%[1]s/storage\nlook=1\n%[2]s", v.url, v.keys)
	case strings.HasSuffix(path, "/token"):
		fmt.Fprint(w, `{"access_token": "t"}`)
	case r.Method == http.MethodPut && v.deaf:
		v.told = append(v.told, string(body))
		w.WriteHeader(http.StatusForbidden)
	case r.Method == http.MethodPut:
		v.told = append(v.told, string(body))
	case strings.HasPrefix(path, "/storage/"):
		v.asked = append(v.asked, r.URL.EscapedPath())
		switch {
		case r.URL.Query().Has("prefix") && v.dropped > 0:
			v.dropped--
			w.WriteHeader(http.StatusServiceUnavailable)
		case v.bucket != 0:
			http.Error(w, `{"error": {"message": "refused"}}`, v.bucket)
		case r.URL.Query().Has("prefix") && v.reported:
			fmt.Fprint(w, `{"items": [{"name": "d/r/workers/s0w1"}]}`)
		case r.URL.Query().Has("prefix"):
			fmt.Fprint(w, `{}`)
		default:
			_, _ = w.Write(v.packed)
		}
	case r.Method == http.MethodDelete:
		v.deleted = true
	default:
		fmt.Fprintf(w, `{"name": "q", "labels": {"multihost-run": %q}}`, v.label)
	}
}

// boot runs the script until the limit or until done returns true. It returns the output.
func (v *vm) boot(key string, limit time.Duration, done func() bool) string {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), limit)
	defer cancel()
	script := filepath.Join(v.root, key)
	testkit.WriteProgram(v.t, script, detach.Job{Agents: v.agents}.Metadata()[key])
	cmd := exec.CommandContext(ctx, "/bin/bash", script)
	cmd.Env = []string{"PATH=" + filepath.Join(v.root, "bin") + ":" + os.Getenv("PATH"), "HOME=" + filepath.Join(v.root, "home"), "MULTIHOST_ROOT_TMP=" + v.root,
		"MULTIHOST_ROOT_DEV=" + v.root, "GCE_METADATA_HOST=" + strings.TrimPrefix(v.url, "http://")}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
	testkit.Must(v.t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the script was killed, or its output shows the error
		close(ended)
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return out.String()
		case <-tick.C:
			v.mu.Lock()
			if done != nil && done() {
				cancel()
				done = nil
			}
			v.mu.Unlock()
		}
	}
}

// The script fetches the program once. At a later boot, and when the machine shuts down, it
// takes the program from the disk.
func TestABootBecomesTheAgent(t *testing.T) {
	t.Parallel()
	v := bootVM(t)
	if out := v.boot("shutdown-script", time.Minute, nil); out != "" {
		t.Errorf("without the program the end of the machine says %q", out)
	}
	if out := v.boot("startup-script", time.Minute, nil); out != "became job\n" {
		t.Errorf("got %q", out)
	}
	v.bucket = http.StatusForbidden
	if out := v.boot("startup-script", time.Minute, nil); out != "became job\n" {
		t.Errorf("the second boot: got %q", out)
	}
	if out := v.boot("shutdown-script", time.Minute, nil); out != "became job --going\n" {
		t.Errorf("at the end: got %q", out)
	}
	var sum string
	for _, arch := range program.Archs() {
		if s, err := v.agents.Sum(arch); err == nil {
			sum = s
		}
	}
	if want := []string{"/storage/b/b/o/d%2Fr%2Fstarts%2Fc%2Fmultihost-agent-" + sum + ".gz"}; !slices.Equal(v.asked, want) {
		t.Errorf("asked for %q, want %q", v.asked, want)
	}
	if len(v.told) > 0 {
		t.Errorf("told %q", v.told)
	}
}

// A failed agent is started again. Without an agent, nobody would delete the slices.
func TestABootRunsAFailedAgentAgain(t *testing.T) {
	t.Parallel()
	v := bootVM(t)
	v.agent(`echo "became $*"; mkdir "$MULTIHOST_ROOT_TMP/once" 2>/dev/null && exit 3; exit 0`)
	out := v.boot("startup-script", time.Minute, nil)
	if want := "became job\nmultihost: boot: waiting: multihost-agent has ended with status 3\nbecame job\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

// If guest attributes are refused, the reason is on the console once.
func TestABootPrintsAReasonOnce(t *testing.T) {
	t.Parallel()
	v := bootVM(t)
	v.stand("uname", "echo riscv64")
	v.deaf = true
	out := v.boot("startup-script", time.Minute, func() bool { return len(v.told) > 2 })
	if n := strings.Count(out, "multihost: boot: waiting: "); n != 1 || len(v.told) < 3 {
		t.Errorf("%d times in %q, told %d times", n, out, len(v.told))
	}
}

// A worker that cannot get the program reports the reason where people look, and retries.
func TestABootThatHasNoAgentTellsWhy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trouble func(v *vm)
		want    string
	}{
		"the bucket refuses": {func(v *vm) { v.bucket = http.StatusForbidden }, "HTTP status 403: refused"},
		"another hash":       {func(v *vm) { v.packed = slices.Concat(v.packed, v.packed) }, "is not multihost-agent with the SHA-256 "},
		"another machine":    {func(v *vm) { v.stand("uname", "echo riscv64") }, "there is no multihost-agent for machines of type riscv64"},
		"no exec anywhere":   {func(v *vm) { v.stand("chmod", `exec /bin/chmod 644 "${@:2}"`) }, "Permission denied"},
		"a full disk":        {func(v *vm) { v.stand("gzip", "echo 'gzip: stdout: No space left on device' >&2; exit 1") }, "agent: No space left on device"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := bootVM(t)
			c.trouble(v)
			v.keys = "keep=always\npatience=2\nstale=1\n"
			out := v.boot("startup-script", 2*time.Minute, func() bool { return len(v.told) > 1 })
			if len(v.told) < 2 || !strings.HasPrefix(v.told[0], "run=r\nphase=boot\n") || !strings.HasPrefix(v.told[1], "run=r\nphase=failed\n") ||
				!strings.Contains(v.told[0], "detail=waiting: ") || !strings.Contains(v.told[1], "detail=the job cannot be fetched: tried for 2 s; ") {
				t.Errorf("told %q", v.told)
			}
			for _, text := range append(v.told, out) {
				if !strings.Contains(text, c.want) {
					t.Errorf("no %q in %q", c.want, text)
				}
			}
			if v.deleted {
				t.Error("deleted, despite --keep")
			}
		})
	}
}

// The worker deletes the queued resource only if no worker could begin for a long time.
func TestABootThatHasNoAgentDeletesLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys   string
		change func(v *vm)
		want   bool
	}{
		"alone":                   {"", func(*vm) {}, true},
		"the bucket is away":      {"", func(v *vm) { v.bucket, v.reported = http.StatusForbidden, true }, true},
		"another has begun":       {"", func(v *vm) { v.reported = true }, false},
		"away for a moment":       {"stale=1\n", func(v *vm) { v.dropped, v.reported = 1, true }, false},
		"another run's":           {"", func(v *vm) { v.label = "s" }, false},
		"--keep":                  {"keep=always\n", func(*vm) {}, false},
		"--keep-on-failure":       {"keep=on-failure\n", func(*vm) {}, false},
		"--keep-on-failure=1s":    {"keep=on-failure\nkeep_for=1\n", func(*vm) {}, true},
		"--keep, but --ttl ended": {"keep=always\nttl=1\nrequested=1\n", func(*vm) {}, true},
		"--ttl ended just now":    {fmt.Sprintf("keep=always\nttl=1\nrequested=%d\n", time.Now().Unix()-40), func(*vm) {}, false},
		"--ttl, and grace":        {fmt.Sprintf("keep=always\nttl=1\ngrace=600000\nrequested=%d\n", time.Now().Unix()-300), func(*vm) {}, false},
		"--ttl ended 3 min ago":   {fmt.Sprintf("keep=always\nttl=1\ngrace=90000\nrequested=%d\n", time.Now().Unix()-200), func(v *vm) { v.bucket = http.StatusForbidden }, true},
		"there is time":           {"stale=1800\n", func(*vm) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := bootVM(t)
			v.stand("uname", "echo riscv64")
			v.keys = "patience=0\nstale=0\n" + c.keys
			c.change(v)
			limit := 3 * time.Second // enough time for a deletion that must not happen
			if c.want {
				limit = time.Minute
			}
			v.boot("startup-script", limit, func() bool { return v.deleted })
			if v.deleted != c.want {
				t.Errorf("deleted: %v", v.deleted)
			}
		})
	}
}

// The script must be short, because only a real machine tests all of it.
func TestTheBootScriptIsShort(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("boot.sh")
	testkit.Must(t, err)
	lines := 0
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines++
		}
	}
	if lines > 60 {
		t.Errorf("boot.sh has %d lines without its comments, at most 60 are wanted: what decides belongs into package agent/detached", lines)
	}
}
