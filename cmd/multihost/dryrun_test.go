package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"multihost/internal/plan"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// A rehearsal is a user with a simulator. Commands run there first with --dry-run, then for
// real.
type rehearsal struct {
	*testing.T
	dir    string
	server *sim.Server
	env    map[string]string
}

func newRehearsal(t *testing.T, cfg sim.Config) *rehearsal {
	t.Helper()
	dir, err := os.MkdirTemp(memoryDir(), "multihost-dryrun-")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg.Dir, cfg.Step = filepath.Join(dir, "sim"), 10*time.Millisecond
	server, err := sim.Start(context.Background(), cfg)
	testkit.Must(t, err)
	t.Cleanup(func() { server.Close() })
	r := &rehearsal{t, dir, server, server.Env()}
	r.env["HOME"], r.env["USER"], r.env["TOKEN"] = filepath.Join(dir, "home"), "ann", "hunter2-dry-run"
	r.env["MULTIHOST_FLAG_SKEW"] = "off" // comparing versions would start Python on each worker
	r.write("home/.keep", "")
	return r
}

func (r *rehearsal) write(name, text string) {
	r.Helper()
	path := filepath.Join(r.dir, name)
	testkit.Must(r, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Must(r, os.WriteFile(path, []byte(text), 0o644))
}

// do runs a command. It returns the status and the output. In args, $DIR is the directory
// of the rehearsal.
func (r *rehearsal) do(args ...string) (status int, stdout, stderr string) {
	r.Helper()
	var out, errs bytes.Buffer
	p := process{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, home: r.env["HOME"], leave: make(chan struct{}),
		lookup: func(key string) (string, bool) { v, ok := r.env[key]; return v, ok }}
	args = slices.Clone(args)
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "$DIR", r.dir)
	}
	status = p.run(args)
	return status, out.String(), errs.String()
}

func (r *rehearsal) must(want int, args ...string) (stdout, stderr string) {
	r.Helper()
	status, stdout, stderr := r.do(args...)
	if status != want {
		r.Fatalf("%q ended with %d, want %d:\n%s%s", args, status, want, stdout, stderr)
	}
	return stdout, stderr
}

// plan returns what a dry run of a command prints, as a document.
func (r *rehearsal) plan(args ...string) plan.Plan {
	r.Helper()
	stdout, _ := r.must(0, append(slices.Clone(args), "--dry-run", "--output=json")...)
	for line := range strings.Lines(stdout) {
		var doc struct {
			Kind, Name string
			Data       plan.Plan
		}
		testkit.Must(r, json.Unmarshal([]byte(line), &doc))
		if doc.Kind == "result" && doc.Name == "plan" {
			return doc.Data
		}
	}
	r.Fatalf("no plan in:\n%s", stdout)
	return plan.Plan{}
}

// state returns everything that a command could change: the files of the user and of the
// workers, with content, mode and times, and all resources of the cloud.
func (r *rehearsal) state() map[string]string {
	r.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the file has gone meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%v %v", info.Mode(), info.ModTime())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %x", sha256.Sum256(data))
		}
		all[path] = text
		return nil
	})
	testkit.Must(r, err)
	cloud := r.server.Status()
	all["cloud"] = fmt.Sprint(cloud.Queued, cloud.Nodes, cloud.Networks, cloud.Rules)
	return all
}

// settled returns the state once it no longer changes. Workers take some time to clean up
// after a connection.
func (r *rehearsal) settled() (now map[string]string) {
	r.Helper()
	now = r.state()
	testkit.Eventually(r.T, "nothing changes any more", func() bool {
		before := now
		<-time.After(100 * time.Millisecond)
		now = r.state()
		return maps.Equal(before, now)
	})
	return now
}

// onlyReads fails the test if the API has received anything but reads. It ignores the oldest
// requests: the parameter since is their number.
func (r *rehearsal) onlyReads(since int) {
	r.Helper()
	asked := r.server.Requests()[since:]
	if len(asked) == 0 {
		r.Error("the API was not asked at all")
	}
	for _, q := range asked {
		if q.Method != "GET" && !strings.Contains(q.Path, ":getGuestAttributes") && !strings.Contains(q.Path, ":getIamPolicy") {
			r.Errorf("a dry run sent %s %s", q.Method, q.Path)
		}
	}
}

// variables returns the environment that a worker's log shows.
func (r *rehearsal) variables(path string) map[string]string {
	r.Helper()
	text, err := os.ReadFile(path)
	testkit.Must(r, err)
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		all[name] = value
	}
	return all
}

var ofThisRun = regexp.MustCompile(`[0-9a-f]{64}|127\.\d+\.\d+\.\d+(:\d+)?|"(startup-script|multihost-lease)": "(\\.|[^"\\])*"|ssh-ed25519 [A-Za-z0-9+/=]+|\([0-9.]+ k?B; `)

// normal removes from a text what differs from one rehearsal to the next.
func (r *rehearsal) normal(text string) string {
	text = strings.ReplaceAll(text, r.dir, "$DIR")
	return ofThisRun.ReplaceAllStringFunc(text, func(found string) string {
		switch {
		case strings.HasPrefix(found, "127."):
			return "ADDRESS"
		case strings.HasPrefix(found, "ssh-"):
			return "ssh-ed25519 KEY"
		case found[0] == '(':
			return "(SIZE; "
		case found[0] == '"':
			name, _, _ := strings.Cut(found, ":")
			return name + `: "TEXT"`
		}
		return "DIGEST"
	})
}

// golden compares got with a file of testdata/dryrun. -update writes the file.
func (r *rehearsal) golden(name, got string) {
	r.Helper()
	path := filepath.Join("testdata", "dryrun", name)
	got = r.normal(got)
	if *update {
		testkit.Must(r, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Must(r, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	testkit.Must(r, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		r.Errorf("%s is another one (-want +got):\n%s", path, diff)
	}
}

func (r *rehearsal) goldenJSON(name string, p plan.Plan) {
	r.Helper()
	text, err := json.MarshalIndent(p, "", "  ")
	testkit.Must(r, err)
	r.golden(name, string(text)+"\n")
}

// TestADryRunChangesNothingAndIsWhatIsDone tries every command that has --dry-run on slices
// that have been used before. The dry runs must change no file here or on a worker, and
// nothing in the cloud, and send only reads to the API. Then the same commands run for
// real, and must do what the plans say.
func TestADryRunChangesNothingAndIsWhatIsDone(t *testing.T) {
	testkit.OnlyInAll(t, "the dry runs in the stories")
	besideOthers(t)
	r := newRehearsal(t, sim.Config{Slices: []sim.SliceSpec{{Name: "t", Count: 2, Type: "v4-16"}}})
	for name, text := range map[string]string{"train.py": "print(1)\n", "old.py": "print(2)\n", "data/big": strings.Repeat("x", 3000), ".multihostignore": "*.ckpt\n", "a.ckpt": "1"} {
		r.write("src/"+name, text)
	}

	// A dry run without a key cannot ask the workers. It makes no key.
	before, since := r.settled(), len(r.server.Requests())
	first := r.plan("run", "--tpu-prefix=t", "--script-dir=$DIR/src", "--run-name=train", "--state-dir=$DIR/state", "--command=true")
	if first.Asked || first.Login.Key != "" || !strings.Contains(first.Why, "key") {
		t.Errorf("plan without a key: asked %v, %q, key %q", first.Asked, first.Why, first.Login.Key)
	}
	r.unchanged(before, since)

	r.must(69, "preflight", "check", "--tpu-prefix=none", "--state-dir=$DIR/state") // makes the key
	base := []string{"--script-dir=$DIR/src", "--state-dir=$DIR/state"}
	run := append([]string{"run", "--tpu-prefix=t", "--run-name=train", "--env=A=one two", "--secret-env=TOKEN", "--xla-flag=xla_tpu_enable_async_collective_fusion=true",
		"--command=env; echo done"}, base...)
	before, since = r.settled(), len(r.server.Requests())
	if unknown := r.plan(run...); unknown.Asked || unknown.Login.Adds != "the metadata of the slices" {
		t.Errorf("plan with a key that the slices do not know: asked %v, adds %q", unknown.Asked, unknown.Login.Adds)
	}
	r.unchanged(before, since)

	r.must(0, append(slices.Clone(run), "--preflight=off")...) // now there is a key, and the files of a first attempt
	r.write("src/train.py", "print(3)\n")
	testkit.Must(t, os.Remove(filepath.Join(r.dir, "src/old.py")))
	r.must(0, append([]string{"qr", "create", "foreign", "--tpu-type=v4-8", "--spot"}, base[1:]...)...)
	r.must(0, "network", "create", "made")
	awaitActive(t, r, "foreign")

	jobOf := func(name string, more ...string) []string {
		return append(append([]string{"job", "--tpu-type=v4-8", "--num-slices=2", "--network-create", "--run-name=" + name, "--spot", "--command=env; echo done"}, more...), base...)
	}
	detached := jobOf("alone", "--detach", "--bucket-name=multihost-sim", "--ttl=1h")
	before, since = r.settled(), len(r.server.Requests())

	planned := r.plan(run...)
	r.goldenJSON("run.json", planned)
	stdout, _ := r.must(0, append(slices.Clone(run), "--dry-run")...)
	r.golden("run.txt", stdout)
	if stdout != planned.String() {
		t.Errorf("the plan for people is not that of the document:\n%s\n%s", stdout, planned)
	}
	for _, text := range []string{stdout, fmt.Sprintf("%+v", planned)} {
		if strings.Contains(text, r.env["TOKEN"]) {
			t.Errorf("a plan shows a secret:\n%s", text)
		}
	}
	plannedJob := r.plan(jobOf("made-by-job")...)
	r.goldenJSON("job.json", plannedJob)
	r.golden("job.txt", plannedJob.String())
	plannedAlone := r.plan(detached...)
	r.golden("job_detached.txt", plannedAlone.String())
	for _, c := range []struct {
		want string
		args []string
	}{
		{"would create queued resource q", []string{"qr", "create", "q", "--tpu-type=v4-8"}},
		{"would delete queued resource foreign .ACTIVE, of run foreign of ann. with its slices foreign\n", []string{"qr", "delete", "foreign", "--force"}},
		{"nothing to delete", []string{"qr", "delete", "none"}},
		{"create +network n", []string{"network", "create", "n"}},
		{"would delete network made with its firewall rules made-internal, made-ssh", []string{"network", "delete", "made"}},
	} {
		stdout, _ := r.must(0, append(c.args, "--dry-run", "--state-dir=$DIR/state")...)
		if !regexp.MustCompile(c.want).MatchString(stdout) {
			t.Errorf("dry run of %q: %q, want %q", c.args, stdout, c.want)
		}
	}

	// The dry run fails with the same error as the command.
	wrong := [][]string{
		append([]string{"run", "--tpu-prefix=none", "--command=true"}, base...),
		append([]string{"run", "--tpu-prefix=t", "--command=true", "--log-dir=$DIR/state/runs/train"}, base...),
		append([]string{"run", "--tpu-prefix=t", "--command=true", "--log-dir=$DIR/src/train.py/logs"}, base...),
		append([]string{"run", "--tpu-prefix=t", "--command=true", "--use-existing-folder", "--run-name=never"}, base[1:]...),
		append([]string{"run", "--tpu-prefix=t", "--command=true", "--numa=sideways"}, base...),
		append([]string{"run", "--tpu-prefix=t", "--command=true", "--xla-preset=none"}, base...),
		append([]string{"job", "--tpu-type=v9-1", "--command=true"}, base...),
		append([]string{"job", "--tpu-type=v4-8", "--run-name=foreign", "--command=true"}, base...),
		append([]string{"job", "--tpu-type=v4-8", "--network=default", "--network-create", "--command=true"}, base...),
		append([]string{"job", "--tpu-type=v4-8", "--zone=moon", "--command=true"}, base...),
		append([]string{"job", "--tpu-type=v4-8", "--detach", "--bucket-name=no-such-bucket", "--run-name=lost", "--command=true"}, base...),
		{"qr", "create", "foreign", "--tpu-type=v4-16", "--state-dir=$DIR/state"},
		{"qr", "delete", "foreign", "--state-dir=$DIR/state"},
		{"network", "create", "default"},
		{"network", "delete", "default"},
	}
	type end struct {
		status int
		text   string
	}
	ends := make([]end, len(wrong))
	for i, args := range wrong {
		status, _, stderr := r.do(append(slices.Clone(args), "--dry-run")...)
		ends[i] = end{status, errorLine(stderr)}
		if status == 0 || status == exitInternal {
			t.Errorf("dry run of %q ended with %d: %s", args, status, stderr)
		}
	}
	r.unchanged(before, since)

	for i, args := range wrong {
		status, _, stderr := r.do(args...)
		if got := (end{status, errorLine(stderr)}); got != ends[i] {
			t.Errorf("%q\nends with %d, %q\ndry    %d, %q", args, got.status, got.text, ends[i].status, ends[i].text)
		}
	}

	// An active run blocks the start unless --replace stops that run.
	r.must(0, append([]string{"run", "--tpu-prefix=t", "--run-name=living", "--detach", "--command=exec sleep 1000"}, base...)...)
	before, since = r.settled(), len(r.server.Requests())
	status, _, stderr := r.do(append(slices.Clone(run), "--dry-run")...)
	if status != 69 || !strings.Contains(errorLine(stderr), `run "living" of`) {
		t.Errorf("beside a living run the dry run ends with %d, %s", status, stderr)
	}
	replace := append(slices.Clone(run), "--replace")
	stops := r.plan(replace...).Stops
	if len(stops) != 1 || stops[0].Run != "living" || stops[0].Workers != "s[0-1]w[0-1]" || stops[0].Command != "exec sleep 1000" {
		t.Errorf("with --replace is stopped: %+v", stops)
	}
	r.unchanged(before, since, "/living", "-living-1.run", "/tmp/.multihost")

	// The command does what the plan says.
	r.must(0, replace...)
	r.carriedOut(planned, 4)
	since = len(r.server.Requests())
	r.must(0, jobOf("made-by-job")...)
	r.requested(plannedJob, since)
	r.carriedOut(plannedJob, 2)
	since = len(r.server.Requests())
	r.must(0, detached...)
	r.requested(plannedAlone, since)
	uploads := 0
	for _, q := range r.server.Requests()[since:] {
		if q.Method == "POST" && strings.HasPrefix(q.Path, "/upload/storage/v1/b/multihost-sim/o") {
			uploads++
		}
	}
	if uploads < len(plannedAlone.Upload.Objects) {
		t.Errorf("%d uploads, planned were %v", uploads, plannedAlone.Upload.Objects)
	}
	if status, _, stderr := r.do(append(slices.Clone(detached), "--dry-run")...); status != 64 || !strings.Contains(errorLine(stderr), "a run of that name is in gs://multihost-sim/alone/") {
		t.Errorf("a name that is taken in the bucket: %d, %s", status, stderr)
	}
	r.must(0, "qr", "delete", "alone", "--force", "--state-dir=$DIR/state")

	// A job takes over its command if the command still runs.
	left := append([]string{"job", "--tpu-type=v4-8", "--run-name=left", "--secret-env=TOKEN", "--command=exec sleep 1000 # " + r.env["TOKEN"]}, base...)
	r.must(0, append(slices.Clone(left), "--detach")...)
	testkit.Eventually(t, "the watch of its lease", func() bool {
		logs, _ := filepath.Glob(filepath.Join(r.dir, "sim/workers/*-left-*/root/.multihost/lease/left.log"))
		if len(logs) != 1 {
			return false
		}
		text, err := os.ReadFile(logs[0])
		return err == nil && strings.Contains(string(text), "watching run left")
	})
	before, since = r.settled(), len(r.server.Requests())
	over := r.plan(left...)
	if over.TakesOver == nil || over.TakesOver.Run != "left" || over.Attempt != 1 || over.Resource.Do != plan.ResourceUse || over.End.Deletes != "left" {
		t.Errorf("plan of a job that lives: %+v", over)
	}
	if text := fmt.Sprintf("%s%+v", over, over); strings.Contains(text, r.env["TOKEN"]) || over.Start.Script != "exec sleep 1000 # ***" {
		t.Errorf("the plan of a job that lives shows a secret:\n%s", text)
	}
	r.unchanged(before, since, "/left", "-left-1.run", "/tmp/.multihost")
	r.must(0, "qr", "delete", "left", "--force", "--state-dir=$DIR/state")
}

func errorLine(stderr string) string {
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "multihost: error: ") {
			return line
		}
	}
	return ""
}

func awaitActive(t *testing.T, r *rehearsal, id string) {
	t.Helper()
	for range 1000 {
		if stdout, _ := r.must(0, "qr", "show", id); strings.Contains(stdout, "ACTIVE") {
			return
		}
	}
	t.Fatalf("queued resource %s is never ACTIVE", id)
}

// unchanged fails the test if anything has changed. It ignores names that contain one of
// the words in but, because an active run writes, too.
func (r *rehearsal) unchanged(before map[string]string, since int, but ...string) {
	r.Helper()
	after := r.settled()
	for _, all := range []map[string]string{before, after} {
		maps.DeleteFunc(all, func(name, _ string) bool {
			return slices.ContainsFunc(but, func(word string) bool { return strings.Contains(name, word) })
		})
	}
	if diff := cmp.Diff(before, after); diff != "" {
		r.Errorf("a dry run changed something (-before +after):\n%s", diff)
	}
	r.onlyReads(since)
}

// carriedOut fails the test unless a run matches its plan: the command's environment on
// every worker, its logs, and its files.
func (r *rehearsal) carriedOut(p plan.Plan, workers int) {
	r.Helper()
	if len(p.Workers) != workers || len(p.Logs.Files) != workers {
		r.Errorf("plan of %d workers and %d logs, want %d", len(p.Workers), len(p.Logs.Files), workers)
	}
	addresses := map[string]string{}
	for i, w := range p.Workers {
		addresses["<address of "+w.Worker+">"] = r.variables(p.Logs.Files[i])["MULTIHOST_WORKER_IP"]
	}
	for i, w := range p.Workers {
		got := r.variables(p.Logs.Files[i])
		if _, done := got["done"]; !done {
			r.Errorf("%s has no output of the command", p.Logs.Files[i])
		}
		for name, value := range w.Env {
			value = strings.Replace(value, "~", got["HOME"], 1)
			if known, ok := addresses[value]; ok {
				value = known
			}
			if value == "***" {
				value = r.env[name]
			}
			if got[name] != value {
				r.Errorf("%s, %s: %s is %q, planned was %q", p.Run, w.Worker, name, got[name], value)
			}
		}
		for name := range maps.Keys(got) {
			_, planned := w.Env[name]
			if !planned && strings.HasPrefix(name, "MULTIHOST_") && !strings.HasPrefix(name, "MULTIHOST_ROOT_") && !strings.HasPrefix(name, "MULTIHOST_SIM_") && name != "MULTIHOST_KEEP" || slices.Contains(p.Start.Unset, name) {
				r.Errorf("%s, %s: %s=%s was not planned", p.Run, w.Worker, name, got[name])
			}
		}
		digest, err := os.ReadFile(filepath.Join(got["HOME"], ".multihost/sync", p.Run, "digest"))
		if os.IsNotExist(err) && p.Resource != nil {
			continue // the slice has gone
		}
		testkit.Must(r, err)
		if sent, _, _ := strings.Cut(string(digest), " "); sent != p.Files.Digest { // after the digest, the line names the run
			r.Errorf("%s, %s: files %s were sent, planned was %s", p.Run, w.Worker, sent, p.Files.Digest)
		}
	}
}

// nameOfStart matches a value in the metadata of a job without runner. Each start makes a
// new value.
var nameOfStart = regexp.MustCompile(`claim=[a-z0-9-]+`)

// momentOfStart matches the time of the request.
var momentOfStart = regexp.MustCompile(`(asked|requested)=[0-9]+`)

// requested fails the test unless the request was the planned one.
func (r *rehearsal) requested(p plan.Plan, since int) {
	r.Helper()
	for _, q := range r.server.Requests()[since:] {
		if q.Method == "POST" && strings.Contains(q.Path, "queuedResourceId="+p.Resource.ID) {
			var want, got any
			testkit.Must(r, json.Unmarshal(momentOfStart.ReplaceAll(p.Resource.Request, []byte("$1=TIME")), &want))
			body := nameOfStart.ReplaceAll([]byte(q.Body), []byte("claim=ID"))
			testkit.Must(r, json.Unmarshal(momentOfStart.ReplaceAll(body, []byte("$1=TIME")), &got))
			if diff := cmp.Diff(want, got); diff != "" {
				r.Errorf("%s was asked for otherwise than planned (-plan +request):\n%s", p.Resource.ID, diff)
			}
			return
		}
	}
	r.Errorf("queued resource %s was not asked for", p.Resource.ID)
}

// A runner that is cut off for a moment must not lose its slices.
func TestTermsAreAMinuteOrMore(t *testing.T) {
	r := newRehearsal(t, sim.Config{Backend: "none"})
	for _, flag := range []string{"--lease=59s", "--ttl=1s", "--lease=-1m0s"} {
		_, stderr := r.must(exitUsage, "job", "--run-name=x", "--tpu-type=v5litepod-4", "--command=true", flag)
		if !strings.Contains(stderr, flag+": it must be 1m or more, or 0") {
			t.Errorf("%s: %s", flag, stderr)
		}
	}
}
