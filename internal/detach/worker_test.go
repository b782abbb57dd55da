package detach_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/codesync"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/network"
	"multihost/internal/preflight"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/sim/netns"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simworker"
	"multihost/internal/tpu"
)

func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	flag.Parse()
	// The tests wait for workers most of the time.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A world is a job without runner on a simulated cloud.
type world struct {
	t      *testing.T
	sim    *sim.Server
	dir    string // of the simulator
	queue  *qr.Client
	bucket *detach.Bucket
	told   string // what the user was told at the start
}

const runName = "train"

// onBoth tells a story on workers of both kinds.
func onBoth(t *testing.T, story func(t *testing.T, backend string)) {
	for _, backend := range []string{"process", "netns"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			if backend == "netns" {
				simworker.NeedNetns(t)
			}
			story(t, backend)
		})
	}
}

// begin starts a simulator with the faults, and the job on it. accelerator names
// the type; there is one slice.
func begin(t *testing.T, backend, accelerator, script string, change func(*job.JobOptions, *job.DetachOptions), cfg sim.Config) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "multihost-detach-")
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg.Dir, cfg.Backend, cfg.Step = filepath.Join(dir, "sim"), backend, 10*time.Millisecond
	server, err := sim.Start(t.Context(), cfg)
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	cloud := gcp.New(gcp.Config{
		Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true,
		TPUEndpoint: server.URL() + "/", ComputeEndpoint: server.URL() + "/compute/v1/", StorageEndpoint: server.URL() + "/storage/v1/", SecretManagerEndpoint: server.URL() + "/", ResourceManagerEndpoint: server.URL() + "/",
	})
	t.Cleanup(cloud.Close)
	w := &world{t: t, sim: server, dir: cfg.Dir, queue: qr.New(cloud)}
	code := filepath.Join(dir, "code")
	testkit.Must(t, os.MkdirAll(code, 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(code, "data.txt"), []byte("shipped\n"), 0o644))

	ty, err := tpu.ParseType(accelerator)
	testkit.Must(t, err)
	o := job.JobOptions{
		Request: qr.Request{ID: runName, NodeCount: 1, NodeID: runName, Type: ty, Metadata: map[string]string{"ssh-keys": "ann:" + publicKey(t) + " ann"}}.Neutral(),
		Run:     job.RunOptions{Run: runName, Dir: code, Script: script, Preflight: "apply", Platform: preflight.GCE, NUMA: preflight.NUMAAuto, Grace: 2 * time.Second, FailFast: true, KillStale: launch.FreeOrphans},
	}
	o.Request.Mark(runName, "ann")
	roots, err := cloud.Roots()
	testkit.Must(t, err)
	do := job.DetachOptions{Bucket: sim.DefaultBucket, Dir: "jobs", Roots: roots, Every: time.Second, Patience: 2 * time.Second, Stale: time.Minute}
	if change != nil {
		change(&o, &do)
	}
	d := &job.Deps{
		Cloud: w.queue.Provider(""), Networks: network.New(cloud, qr.LifeOf), Project: sim.DefaultProject, Zone: sim.DefaultZone,
		OpenBucket: func(ctx context.Context, bucket, dir string) (*detach.Bucket, error) {
			return detach.Open(ctx, cloud, bucket, dir)
		},
		Access: job.Access{Login: "ann"}, Clock: gcp.SystemClock,
		Sink: event.SinkFunc(func(e event.Event) {
			if n, ok := e.(event.Note); ok {
				w.told += n.Text + "\n"
			}
		}),
		StateDir: filepath.Join(dir, "state"), Owner: "ann@laptop",
	}
	if _, err := d.Detach(t.Context(), o, do); err != nil {
		t.Fatal(err)
	}
	w.bucket, err = d.OpenBucket(t.Context(), do.Bucket, do.Dir)
	testkit.Must(t, err)
	return w
}

func publicKey(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	testkit.Must(t, err)
	key, err := ssh.NewPublicKey(public)
	testkit.Must(t, err)
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func (w *world) inject(text string) {
	w.t.Helper()
	f, err := sim.ParseFault(text)
	testkit.Must(w.t, err)
	_, err = w.sim.Inject(f)
	testkit.Must(w.t, err)
}

// until waits for what the bucket shows.
func (w *world) until(what string, ok func(detach.State) bool) detach.State {
	w.t.Helper()
	var last detach.State
	w.wait(what, func() bool {
		s, err := w.bucket.State(w.t.Context(), runName)
		if err == nil {
			last = s
		}
		return err == nil && ok(s)
	})
	return last
}

func (w *world) wait(what string, ok func() bool) {
	w.t.Helper()
	deadline := time.After(4 * time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			s, err := w.bucket.State(w.t.Context(), runName)
			w.t.Fatalf("waited too long for %s; the bucket says %+v, %v\n%s", what, s, err, w.startupLogs())
		}
	}
}

func (w *world) startupLogs() string {
	var b bytes.Buffer
	paths, _ := filepath.Glob(filepath.Join(w.dir, "workers", "*", "var", "log", "*-script.log"))
	for _, p := range paths {
		text, _ := os.ReadFile(p)
		fmt.Fprintf(&b, "%s:\n%s", p, text)
	}
	return b.String()
}

// gone waits until the queued resource is deleted.
func (w *world) gone() {
	w.t.Helper()
	w.wait("the queued resource to be deleted", func() bool {
		_, err := w.queue.Get(w.t.Context(), runName)
		return gcp.ClassOf(err) == gcp.NotFound
	})
}

func (w *world) object(name string) string {
	for _, o := range w.sim.Objects(sim.DefaultBucket) {
		if o.Name == "jobs/"+runName+"/"+name {
			return string(o.Data)
		}
	}
	return ""
}

func running(attempt, workers int) func(detach.State) bool {
	return func(s detach.State) bool {
		n := 0
		for _, w := range s.Seen {
			if w.Phase == "running" && w.Attempt == attempt {
				n++
			}
		}
		return n == workers
	}
}

func ended(workers int) func(detach.State) bool {
	return func(s detach.State) bool { return len(s.Ended) == workers }
}

// After maintenance has rebooted every worker the command runs again as attempt
// 2, on the files as it left them, with the settings applied again; and what ended
// attempt 1 is told as what it was, and as nobody's failure.
func TestRebootOfAllWorkersIsANewAttempt(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, backend string) {
		w := begin(t, backend, "v4-16", `
echo "attempt $MULTIHOST_ATTEMPT on $(cat data.txt), slow start $(cat "${MULTIHOST_ROOT_PROC-}/proc/sys/net/ipv4/tcp_slow_start_after_idle"), login $(id -un), locale ${LC_ALL-as it is}, worker $MULTIHOST_WORKER_ID of $MULTIHOST_NUM_WORKERS"
echo changed >data.txt
[ $MULTIHOST_ATTEMPT = 2 ] && exit 0
sleep 1000`, func(_ *job.JobOptions, do *job.DetachOptions) { do.Patience = time.Minute }, sim.Config{}) // both tell of attempt 2
		w.until("attempt 1 to run", running(1, 2))
		w.wait("the logs of attempt 1", func() bool {
			return w.object("main_command_log_slice_0_worker_0") != "" && w.object("main_command_log_slice_0_worker_1") != ""
		})
		w.inject("maintenance node=train")
		w.inject("worker-reboot")
		s := w.until("attempt 2 to end", func(s detach.State) bool { return s.Attempt == 2 && len(s.Ended) == 2 })
		if s.Blame() != nil {
			t.Errorf("got %+v, want success", s.Ended)
		}
		w.gone()
		if failed := w.object("control/failed-1"); failed != "" {
			t.Errorf("the others were told: %s", failed)
		}
		for i := range 2 {
			if end := w.object(fmt.Sprintf("ended/1/s0w%d.255", i)); !strings.Contains(end, "\nreason=the worker was rebooted: maintenance of its host\n") {
				t.Errorf("attempt 1 ended on worker %d with %q", i, end)
			}
			name := fmt.Sprintf("main_command_log_slice_0_worker_%d", i)
			for attempt, want := range map[string]string{
				name:                "attempt 1 on shipped, slow start 0, login ann, locale as it is, worker %d of 2\n",
				"attempt-2/" + name: "attempt 2 on changed, slow start 0, login ann, locale as it is, worker %d of 2\n",
			} {
				if got := w.object(attempt); got != fmt.Sprintf(want, i) {
					t.Errorf("%s: got %q", attempt, got)
				}
			}
		}
	})
}

// A slice that is preempted between two uploads has half a minute: the bucket has
// the last line that was written before, and what has become of the worker.
func TestPreemptedWorkerLeavesItsLastWords(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, backend string) {
		const log = "main_command_log_slice_0_worker_0"
		w := begin(t, backend, "v4-8", `
echo begin
until curl -s -f -o /dev/null STORAGE/storage/v1/b/BUCKET/o/jobs%2Ftrain%2F`+log+`; do sleep 0.1; done
echo the last line
until grep -q '^the last line$' "$MULTIHOST_RUN_DIR/output.log"; do sleep 0.1; done
curl -s -f -X POST -H 'Content-Type: text/plain' -d yes 'STORAGE/upload/storage/v1/b/BUCKET/o?uploadType=media&name=jobs%2Ftrain%2Fwritten'
sleep 1000`, func(o *job.JobOptions, do *job.DetachOptions) {
			o.Run.Script = strings.NewReplacer("STORAGE", do.Roots.Storage, "BUCKET", do.Bucket).Replace(o.Run.Script)
			do.Every = time.Hour
		}, sim.Config{})
		w.wait("the last line", func() bool { return w.object("written") != "" })
		if got := w.object(log); got != "begin\n" {
			t.Errorf("before the preemption the bucket has %q", got)
		}
		w.inject("preempt node=train")
		w.wait("the queued resource to be SUSPENDED", func() bool {
			res, err := w.queue.Get(t.Context(), runName)
			return err == nil && res.State == "SUSPENDED"
		})
		if got := w.object(log); !strings.HasPrefix(got, "begin\nthe last line\n") {
			t.Errorf("the bucket has %q", got)
		}
		s, err := w.bucket.State(t.Context(), runName)
		testkit.Must(t, err)
		if len(s.Seen) != 1 || s.Seen[0].Phase != detach.Down || s.Seen[0].Detail != "preempted" || s.Seen[0].Attempt != 1 || len(s.Ended) != 0 {
			t.Errorf("the bucket says %+v", s)
		}
	})
}

// A service account that may not read the bucket ends the job with a reason that
// can be seen from outside, and nothing stays billed.
func TestBucketThatCannotBeReadEndsTheJob(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	for permission, backend := range map[string]string{"storage.objects.get": "netns", "storage.*": "process"} {
		t.Run(permission, func(t *testing.T) {
			t.Parallel()
			if backend == "netns" {
				simworker.NeedNetns(t)
			}
			w := begin(t, backend, "v4-8", "true", func(_ *job.JobOptions, do *job.DetachOptions) { do.Stale = 2 * time.Second }, sim.Config{
				Faults: []sim.Fault{{Name: "permission-denied", Permission: permission, Account: "*gserviceaccount.com", Count: sim.AllCalls}},
			})
			w.wait("the guest attribute", func() bool {
				_, told := w.guestState()
				return strings.Contains(told, "phase=failed") && strings.Contains(told, "the job cannot be fetched: tried for 2 s; HTTP status 403") && strings.Contains(told, "storage.objects.get")
			})
			w.gone()
			if permission == "storage.objects.get" {
				if s := w.until("the end", ended(1)); s.Ended[0].Code != 77 || !strings.Contains(s.Ended[0].Reason, "403") {
					t.Errorf("got %+v", s.Ended)
				}
			}
		})
	}
}

// guestState is what worker 0 told as guest attribute.
func (w *world) guestState() (ok bool, text string) {
	resp, err := http.Post(w.sim.URL()+"/v2alpha1/projects/"+sim.DefaultProject+"/locations/"+sim.DefaultZone+"/nodes/"+runName+":getGuestAttributes",
		"application/json", strings.NewReader(`{"queryPath":"multihost/","workerIds":["0"]}`))
	if err != nil {
		return false, ""
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	return err == nil, b.String()
}

// The queued resource stays while anybody works, and then any worker deletes it:
// here the others, for worker 0 is dead.
func TestAnyWorkerTearsDown(t *testing.T) {
	t.Parallel()
	w := begin(t, "process", "v4-16", `[ $MULTIHOST_WORKER_ID = 0 ] || while [ ! -e ~/go ]; do sleep 0.1; done`, nil, sim.Config{})
	w.until("worker 0 to end and worker 1 to run", func(s detach.State) bool { return len(s.Ended) == 1 && running(1, 1)(s) })
	w.inject("worker-kill worker=0")
	if res, err := w.queue.Get(t.Context(), runName); err != nil || res.State != "ACTIVE" {
		t.Errorf("while worker 1 runs: got %s, %v", res.State, err)
	}
	homes, _ := filepath.Glob(filepath.Join(w.dir, "workers", "*-w-1", "home", "ann"))
	if len(homes) != 1 {
		t.Fatalf("homes: %v", homes)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(homes[0], "go"), nil, 0o644))
	w.until("both to end", ended(2))
	w.gone()
}

// A worker that has died for good does not keep the others billed.
func TestDeadWorkerIsNotWaitedForForEver(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	w := begin(t, "process", "v4-16", `[ $MULTIHOST_WORKER_ID = 0 ] || sleep 1000`, func(_ *job.JobOptions, do *job.DetachOptions) { do.Stale = 15 * time.Second }, sim.Config{})
	w.until("worker 0 to end and worker 1 to run", func(s detach.State) bool { return len(s.Ended) == 1 && running(1, 1)(s) })
	w.inject("worker-kill worker=1")
	w.gone()
}

// Without the right to delete, that is known before the command ends, and the
// slices stay.
func TestMissingRightToDeleteIsSaid(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	w := begin(t, "process", "v4-8", "true", nil, sim.Config{
		Faults: []sim.Fault{{Name: "permission-denied", Permission: "tpu.nodes.delete", Account: "*gserviceaccount.com", Count: sim.AllCalls}},
	})
	s := w.until("the end", ended(1))
	if len(s.Seen) != 1 || !strings.HasPrefix(s.Seen[0].MayDelete, "no: HTTP status 403") || s.Blame() != nil {
		t.Errorf("got %+v", s)
	}
	w.until("the try to delete", func(s detach.State) bool { return s.Seen[0].Phase == "deleting" })
	if res, err := w.queue.Get(t.Context(), runName); err != nil || res.State != "ACTIVE" {
		t.Errorf("got %s, %v", res.State, err)
	}
}

func TestTimeToLiveEndsEverything(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	onBoth(t, func(t *testing.T, backend string) {
		w := begin(t, backend, "v4-8", "sleep 1000", func(o *job.JobOptions, _ *job.DetachOptions) { o.TTL = 20 * time.Second }, sim.Config{})
		s := w.until("the end", ended(1))
		// The shell has died of TERM, or of its child that has.
		if s.Ended[0].Code != 143 || !strings.Contains(s.Ended[0].Reason, "--ttl") {
			t.Errorf("got %+v", s.Ended)
		}
		w.gone()
	})
}

// The first failure stops the others, and is the one to blame. Why they were stopped
// names no worker: the first to be seen need not be the first by the clocks.
func TestFirstFailureStopsTheOthers(t *testing.T) {
	t.Parallel()
	w := begin(t, "process", "v4-16", `[ $MULTIHOST_WORKER_ID = 0 ] || exit 7; sleep 1000`, nil, sim.Config{})
	s := w.until("both to end", ended(2))
	if b := s.Blame(); b == nil || b.Code != 7 || b.Worker.Worker != 1 || s.Ended[0].Reason != detach.FailFast {
		t.Errorf("got %+v", s.Ended)
	}
	w.gone()
}

// What only follows worker 0's success is a training's tail: nobody is stopped for
// it, the run has succeeded, and what is kept after a failure is not kept.
func TestATrainingsTailIsExcused(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	onBoth(t, func(t *testing.T, backend string) {
		w := begin(t, backend, "v4-16", `ulimit -c 0; [ $MULTIHOST_WORKER_ID = 0 ] || {
until curl -s -f -o /dev/null STORAGE/storage/v1/b/BUCKET/o/jobs%2Ftrain%2Fended%2F1%2Fs0w0.0; do sleep 0.1; done
kill -ABRT $$; }`, func(o *job.JobOptions, do *job.DetachOptions) {
			o.Run.Script = strings.NewReplacer("STORAGE", do.Roots.Storage, "BUCKET", do.Bucket).Replace(o.Run.Script)
			o.KeepOnFailure = true
		}, sim.Config{})
		s := w.until("both to end", ended(2))
		if s.Blame() != nil || len(s.Excused()) != 1 || s.Ended[1].Code != 134 || s.Ended[1].Signal != "ABRT" {
			t.Errorf("got %+v", s.Ended)
		}
		if told := w.object("control/failed-1"); told != "" {
			t.Errorf("the others were told: %s", told)
		}
		if s.StrictExit = true; s.Blame() != &s.Ended[1] {
			t.Errorf("strictly, %+v is to blame", s.Blame())
		}
		w.gone()
	})
}

// What the command leaves in the background when it ends is ended, on workers that
// nobody is connected to, too, and told.
func TestWhatIsLeftInTheBackgroundEndsAndIsTold(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	onBoth(t, func(t *testing.T, backend string) {
		// The workers of the other backend are on this machine, too: each has a sleep of its own.
		sleep := "sleep 973." + strconv.Itoa(len(backend))
		w := begin(t, backend, "v4-8", `nohup setsid bash -c 'echo $$ >~/left; exec `+sleep+`' >/dev/null 2>&1 & until [ -s ~/left ]; do sleep 0.1; done`, func(o *job.JobOptions, _ *job.DetachOptions) { o.Keep = true }, sim.Config{})
		s := w.until("the end", ended(1))
		if n, on := s.LeftBehind(); n != 1 || len(on) != 1 || s.Blame() != nil {
			t.Errorf("got %+v", s.Ended)
		}
		if out, err := exec.Command("pgrep", "-f", "^"+sleep+"$").Output(); err == nil {
			t.Errorf("it lives on: %s", out)
		}
	})
}

func TestKeepOnFailureKeepsForATime(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	w := begin(t, "process", "v4-8", "exit 3", func(o *job.JobOptions, _ *job.DetachOptions) { o.KeepOnFailure, o.KeepFor = true, 3*time.Second }, sim.Config{})
	s := w.until("the end", ended(1))
	w.gone()
	if kept := time.Since(s.Ended[0].At); kept < 3*time.Second {
		t.Errorf("kept for %v, want 3 s", kept)
	}
}

// A secret is seen by the command and by nobody else: not in metadata, bucket,
// requests, logs, nor on the worker's disk when the run has ended.
func TestSecretIsNowhereButInTheCommand(t *testing.T) {
	t.Parallel()
	const canary = "canary-3b9ac9ff-with \"quotes\"\n and a line"
	w := begin(t, "process", "v4-8", `[ "$KEY" = "canary-3b9ac9ff-with \"quotes\"
 and a line" ] && echo "it is here"`, func(o *job.JobOptions, _ *job.DetachOptions) {
		secret, err := detach.ParseSecret("KEY=sm://" + sim.DefaultProject + "/key")
		testkit.Must(t, err)
		o.Run.Secrets = []detach.Secret{secret}
		o.Keep = true
		// The command itself names the value; it stands for what a user types.
		o.Run.Script = strings.ReplaceAll(o.Run.Script, "canary-3b9ac9ff", "$(printf canary; printf -- -3b9ac9ff)")
	}, sim.Config{Secrets: map[string]string{"key": canary}})
	s := w.until("the end", ended(1))
	if s.Blame() != nil || !strings.Contains(w.object("main_command_log_slice_0_worker_0"), "it is here") {
		t.Errorf("got %+v, log %q", s.Ended, w.object("main_command_log_slice_0_worker_0"))
	}
	const mark = "canary-3b9ac9ff"
	for _, o := range w.sim.Objects(sim.DefaultBucket) {
		if bytes.Contains(o.Data, []byte(mark)) {
			t.Errorf("object %s has it", o.Name)
		}
	}
	for _, r := range w.sim.Requests() {
		if strings.Contains(r.Path+r.Body, mark) {
			t.Errorf("request %s %s has it", r.Method, r.Path)
		}
	}
	err := filepath.Walk(w.dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(mark)) {
			t.Errorf("file %s has it", path)
		}
		return nil
	})
	testkit.Must(t, err)
}

// A secret that the worker may not read ends the run with the reason.
func TestSecretThatCannotBeReadEndsTheRun(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	w := begin(t, "process", "v4-8", "true", func(o *job.JobOptions, _ *job.DetachOptions) {
		o.Run.Secrets = []detach.Secret{{Name: "KEY", Project: sim.DefaultProject, ID: "none", Version: "latest"}}
	}, sim.Config{})
	s := w.until("the end", ended(1))
	if s.Ended[0].Code != 77 || !strings.HasPrefix(s.Ended[0].Reason, "read secret "+sim.DefaultProject+"/none/latest: HTTP status 404: ") {
		t.Errorf("got %+v", s.Ended)
	}
	w.gone()
}

func TestShellcheck(t *testing.T) {
	testkit.OnlyInAll(t, "`make lint`")
	t.Parallel()
	for _, key := range []string{"startup-script", "shutdown-script"} {
		text := detach.Job{}.Metadata()[key]
		check := exec.Command(testkit.Need(t, "shellcheck"), "-")
		check.Stdin = strings.NewReader(text)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("shellcheck of the %s: %v\n%s", key, err, out)
		}
		// Compute Engine takes 256 KB of a value and 512 KB in all, users' own included.
		if len(text) > 64<<10 {
			t.Errorf("the %s has %d bytes", key, len(text))
		}
	}
}

// playedClock is what lets the seconds of $clock pass while a script sleeps.
const playedClock = `
play_clock() {
  now() { REPLY=$clock; }
  sleep() { clock=$((clock + $1)); }
}
`

// inWorkerScript runs bash code with the functions of worker.sh, under a program
// where one is named.
func inWorkerScript(t *testing.T, code string, under ...string) string {
	t.Helper()
	library, ok := strings.CutSuffix(strings.TrimSpace(detach.Job{}.Metadata()["startup-script"]), `main "$@"`)
	if !ok {
		t.Fatal("worker.sh does not end by calling main")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	words := append(slices.Clone(under), "bash", "-c", library+playedClock+"scratch=$root\n"+code)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "MULTIHOST_ROOT_TMP=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// What curl says of tries that a later one made up for is no part of a value.
func TestValueOfTheMetadataServerIsWithoutErrors(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
curl() { echo "curl: (7) refused" >&2; echo ann:key; }
instance attributes/ssh-keys 2>/dev/null
curl() { echo "curl: (22) 404" >&2; return 22; }
instance attributes/none 2>/dev/null; echo " $?"`)
	if want := "ann:keycurl: (22) 404 1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A call that hangs, as when a connection is lost without a word, is given up long
// before the time that a large log may take: three in a row, and the others would
// take the worker for dead.
func TestACallThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(server.Close)
	got := inWorkerScript(t, `
access_token() { REPLY=token; }
call_pause=2
api GET `+server.URL+`/b/o || echo "$status, of $call_limit s: $why"`)
	if want := "000, of 600 s: no answer: curl: (28)"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// restOf has a worker rest whose bucket and siblings are what code says, with
// seconds that pass while it sleeps.
func restOf(t *testing.T, code string) string {
	t.Helper()
	return inWorkerScript(t, `
state=$root clock=1000 first_boot=0 born=0 reported=0 total=2 index=0 attempt=1 is=exited phase=ended detail='' me=s0w0 end_told=yes status=200
now() { REPLY=$clock; }
sleep() { clock=$((clock + $1)); if ((clock > 20000)); then echo "it stays"; exit 0; fi; }
report() { phase=$1 detail=$2 reported=$clock; }
teardown() { echo "deleted at $clock: $1"; }
store() { return 1; }
fetch() { status=404; return 1; }
wanted_attempt() { wanted=1; }
find_unsent() { part_logs=''; }
`+code+`
if rest; then echo "attempt $next is wanted"; fi`)
}

// What is kept after a failure is not kept after a training's tail, however often
// the bucket is away while that is found out.
func TestATrainingsTailIsNoFailureThatKeeps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ends, want string }{
		"tails":                    {"s0w0.0=1000 s0w1.134=1001tail s0w2.1=1059tail", "deleted at 1040: every worker has ended\n"},
		"one of them is no tail":   {"s0w0.0=1000 s0w1.134=1001tail s0w2.1=1002", "stays kept\n"},
		"one of them comes late":   {"s0w0.0=1000 s0w1.134=1001tail s0w2.1=1060tail", "stays kept\n"},
		"worker 0 has failed, too": {"s0w0.1=1000 s0w1.134=1001tail s0w2.0=1000", "stays kept\n"},
		"one has not told":         {"s0w0.0=1000 s0w1.134=1001tail", "stays kept\n"},
	} {
		got := restOf(t, `
sleep() { clock=$((clock + $1)); }
teardown() { echo "deleted at $clock: $1"; phase=deleted; }
keep=on-failure keep_for=0 attempt=1 total=3 slices=1 workers=3 storage=S bucket=b prefix=r/
age_of() { REPLY=9000; }
ends='`+c.ends+`'
api() {
  status=200 reply=''
  for e in $ends; do reply+="{\"name\": \"r/ended/1/${e%=*}\"}"$'\n'; done
}
fetch() {
  status=503 why=away
  if ((clock < 1040)); then return 1; fi
  for e in $ends; do
    if [[ $e == "${1##*/}="* ]]; then
      e=${e#*=}
      printf 'end=%s000000000\n%s\n' "${e%tail}" "$([[ $e == *tail ]] && echo tail=1)" >"$2"
      return
    fi
  done
  status=404
  return 1
}
trap '[[ $phase != kept ]] || echo stays kept' EXIT`)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A bucket that could be read a moment ago does not count as lost for ever, and
// a kept queued resource has its time to live.
func TestRestDeletesOnlyWhenItIsTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ code, want string }{
		"one 503 after an hour": {
			"all_ended() { status=200 why=none; if ((clock == 5000)); then status=503; fi; return 1; }", "it stays\n"},
		"the bucket is gone": {
			"all_ended() { status=503 why=gone; return 1; }", "deleted at 2800: the bucket could not be read for 1800 s: gone\n"},
		"the bucket is gone with --keep-on-failure=1h": {
			"keep=on-failure keep_for=3600; all_ended() { status=503 why=gone; return 1; }", "deleted at 6400: the bucket could not be read for 5400 s: gone\n"},
		"--keep and --ttl": {
			"keep=always ttl=9000; all_ended() { failures=0; }", "deleted at 9100: the time to live of 9000 s (--ttl) is over\n"},
		"a worker was rebooted meanwhile": {
			"wanted_attempt() { wanted=$((clock > 1100 ? 2 : 1)); }; all_ended() { clock=1200 failures=0; }", "attempt 2 is wanted\n"},
		"kept, on a disk that is full": {
			"keep=on-failure keep_for=3600; ln -s /dev/full \"$state/kept.1\"; all_ended() { failures=1; }", "deleted at 4600: every worker has ended\n"},
		"kept since before a reboot": {
			"keep=on-failure keep_for=3600; echo 500 >\"$state/kept.1\"; all_ended() { failures=1; }", "deleted at 4100: every worker has ended\n"},
		"others begin again while it is to stop": {
			"wanted_attempt() { wanted=2; }; fetch() { [[ $1 == control/stop ]]; }; all_ended() { failures=0; }", "attempt 2 is wanted\n"},
		"its end was not stored": {
			"end_told='' end_code=0; store() { ((clock > 3000)) && echo \"stored $1\"; }; all_ended() { status=200; [[ $end_told ]]; }",
			"stored ended/1/s0w0.0\ndeleted at 3020: every worker has ended\n"},
	} {
		if got := restOf(t, c.code); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A look that fails is no end, and a stop is asked for until it works or --ttl is
// over.
func TestAttendOutlivesAFailedLook(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
state=$root runs=$root/runs clock=1000 first_boot=0 born=0 attempt=1 missing=''
play_clock
report() { :; }
send_log() { :; }
wanted_attempt() { wanted=1; }
fetch() { return 1; }
op() { [[ $1 != stop ]] || echo "stop at $clock"; }
store_text() { echo "the others find $1: $2"; }
look_at() { is=running; if ((clock >= 1100 && clock < 1400)); then is=unknown; fi; ((clock < 1700)) || is=exited; }
attend; echo "$is at $clock${missing:+: $missing}"
look_at() { is=running; }
clock=1960 ttl=2000 grace=1000
attend; echo "$is at $clock: $missing"`)
	want := "exited at 1700\nmultihost: stopping the command: the time to live of 2000 s (--ttl) is over\nstop at 2000\nthe others find control/stop: the time to live of 2000 s (--ttl) is over\nstop at 2060\nrunning at 2080: the command survives SIGKILL; it was stopped for: the time to live of 2000 s (--ttl) is over\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Whoever is the first whose time to live is over tells the others until they can
// know, after the end of its own command, too; and begins nothing any more.
func TestOthersAreToldOfTheTimeToLiveUntilTheyCanKnow(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
state=$root runs=$root/runs clock=90 first_boot=0 born=0 ttl=100 grace=1000 attempt=1 total=2 index=0 me=s0w0 phase=ended detail='' reported=0
play_clock
report() { phase=$1 detail=$2; }
send_log() { :; }
fetch() { return 1; }
wanted_attempt() { wanted=1; }
op() { [[ $1 != stop ]] || echo "stop at $clock"; }
store() { status=503; ((clock > away)) && echo "$1 at $clock"; }
look_at() { is=running; ((clock < 120)) || is=exited; }
all_ended() { status=200; return 1; }
take_turn() { :; }
teardown() { echo "deleted at $clock: $1"; }
away=140
attend; rest
echo "stored: $([[ $stop_untold ]] || cat "$state/text")"
rm -rf "$state/text"; clock=110 away=0 attempt=2 is=unknown
prepare() { echo prepares; }
begin; echo "attempt $attempt is $is; failed: $failure"
`)
	want := `multihost: stopping the command: the time to live of 100 s (--ttl) is over
stop at 110
control/stop at 150
ended/1/s0w0. at 150
deleted at 170: the time to live of 100 s (--ttl) is over
stored: the time to live of 100 s (--ttl) is over
control/stop at 110
ended/2/s0w0.143 at 110
attempt 2 is exited; failed: 
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A stop without a reason, an empty object, is a stop like another.
func TestAnEmptyStopIsAStop(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
state=$root runs=$root/runs clock=1000 first_boot=0 born=0 attempt=1 me=s0w0
mkdir -p "$runs/1"
play_clock
report() { :; }
send_log() { :; }
store() { sed 's/^/  /' "$2"; }
wanted_attempt() { wanted=1; }
fetch() { [[ $1 == control/stop ]] && : >"$2"; }
op() { [[ $1 != stop ]] || echo "stop: $5"; }
look_at() { is=running; ((clock < 1010)) || is=exited; }
attend
look_at() { is=lost; }
printf 'code=255\nsignal=\nend=0\nsize=7\noom=0\nlost=1\ndropped=0\nreason=the worker was rebooted\n' >"$runs/1/exit"
find_attempt; finish; echo "$end_code, failed: $failure"
attempt=2; begin`)
	want := `multihost: stopping the command: control/stop is in the bucket
stop: control/stop is in the bucket
  end=0
  size=7
  oom=0
  dropped=0
  code=143
  signal=
  lost=1
  reason=control/stop is in the bucket; the worker was rebooted
143, failed: 
  code=143
  signal=
  end=1020000000000
  size=0
  oom=0
  lost=0
  dropped=0
  reason=control/stop is in the bucket
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// What a machine took away when it ended is told as that, whichever of its
// processes ended first; what ended by itself before is not.
func TestWhatTheMachineEndedIsTold(t *testing.T) {
	t.Parallel()
	const killed = "code=255 signal= lost=1 reason=the_supervisor_was_killed"
	for name, c := range map[string]struct{ end, code, want string }{
		"the supervisor was killed first":   {killed, "", "lost, the worker was rebooted"},
		"all had TERM, the command first":   {"code=143 signal=TERM reason=", "", "lost, the worker was rebooted"},
		"its shutdown script has said so":   {"code=1 signal= reason=", "echo preempted >$state/down.1", "lost, the worker was rebooted: preempted"},
		"and does not know why":             {"code=1 signal= reason=", "echo >$state/down.1", "lost, the worker was rebooted"},
		"it was told before":                {killed, ": >$state/told.1", "lost, "},
		"in the same boot":                  {killed, "echo now >$root/proc/sys/kernel/random/boot_id", "lost, "},
		"the command failed before":         {"code=1 signal= reason=", "", "exited, "},
		"it had ended well":                 {"code=0 signal= reason=", "echo >$state/down.1", "exited, "},
		"it was being stopped":              {"code=143 signal=TERM reason=enough", "echo enough >$runs/1/stop", "exited, "},
		"a stop came in the way of its own": {"code=1 signal= reason=enough", "echo enough >$runs/1/stop; echo >$state/down.1", "exited, "},
	} {
		got := inWorkerScript(t, `
state=$root runs=$root/runs clock=1000 first_boot=0 born=0 MULTIHOST_ROOT_PROC=$root
mkdir -p "$runs/1" "$root/proc/sys/kernel/random"
echo later >"$root/proc/sys/kernel/random/boot_id"
echo "7 1 now 0" >"$runs/1/supervisor"
printf '%s\n' `+c.end+` | tr _ ' ' >"$runs/1/exit"
play_clock
look_at() { is=exited; if [[ "`+c.end+`" == *lost=1* ]]; then is=lost; fi; }
fetch() { return 1; }
quick_deaths() { return 1; }
wanted_attempt() { wanted=0; }
announce() { :; }
finish() { :; }
`+c.code+`
went() { look_at 1; attempt=1; if went_down; then is=lost; fi; }
went; echo "$is, $rebooted"`)
		if got != c.want+"\n" {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// lastWordsOf has a machine told to end whose job, state and bucket are what code
// says.
func lastWordsOf(t *testing.T, code string) string {
	t.Helper()
	return inWorkerScript(t, `
HOME=$root dir=$root/.multihost-job/r going_limit=120
mkdir -p "$dir" "$root/runs/1"
date +%s >"$dir/boots"; echo 0 0 >"$dir/me"; echo yes >"$dir/right"; echo ann >"$dir/login"; echo "$root/runs" >"$dir/runs"
printf 'one\ntwo\n' >"$root/runs/1/output.log"
instance() {
  case $1 in
    attributes/multihost-job) printf 'run=r\nprefix=r/\nstorage=S\nupload=U\n' ;;
    preempted) printf TRUE ;;
    *) printf 'curl: (22) The requested URL returned error: 404'; return 1 ;;
  esac
}
attribute() { :; }
access_token() { REPLY=secret; }
api() {
  status=200 reply='{"size": "4", "generation": "3"}'
  case "$1 $2" in
    POST*workers%2F*) sed -n '/=./{/^at=/!p}' "$4" >"$root/note" ;;
    POST*.last*) sed 's/^/log: /' "$4" >"$root/log" ;;
  esac
}
value_of() { REPLY=3; if [[ $1 == size ]]; then if [[ -e $root/log ]]; then REPLY=8; else REPLY=4; fi; fi; }
append() { :; }
`+code+`
going >/dev/null
cat "$root/note" "$root/log" 2>/dev/null
[[ ! -e $dir/down ]] || echo marked`)
}

// The shutdown script says that the machine ends and why, brings what the bucket
// has not of the log, and leaves alone what has ended. Where nothing answers it
// is over in time, and the next boot knows all the same.
func TestLastWordsOfAMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ code, want string }{
		"a command runs": {"", "phase=down worker=s0w0 attempt=1 may_delete=yes login=ann detail=preempted log: two marked"},
		"the first word is refused": {`
eval "$(declare -f api | sed 's/^api /answered /')"
api() { if [[ "$1 $2" == POST*workers%2F* && ! -e $root/refused ]]; then : >"$root/refused"; status=429; return 1; fi; answered "$@"; }
sleep() { [[ $1 == 1 ]] || command sleep "$1"; }`, "phase=down worker=s0w0 attempt=1 may_delete=yes login=ann detail=preempted log: two marked"},
		"nothing has begun":     {`rm -rf "$root/runs/1"`, "phase=down worker=s0w0 attempt=0 may_delete=yes login=ann detail=preempted marked"},
		"it has just ended":     {`echo code=0 >"$root/runs/1/exit"`, "log: two"},
		"its end was told":      {`: >"$dir/told.1"`, "marked"},
		"it never came to run":  {`rm -rf "$root/runs/1"; : >"$dir/told.1"`, "marked"},
		"no job":                {`instance() { return 1; }`, ""},
		"no job was here":       {`rm -rf "$dir"`, ""},
		"nobody answers":        {`going_limit=0.5; api() { sleep 1000; }`, "marked"},
		"the bucket is refused": {`api() { status=403; return 1; }; sleep() { [[ $1 == 1 ]] || command sleep "$1"; }`, "marked"},
	} {
		if got := strings.Join(strings.Fields(lastWordsOf(t, c.code)), " "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// While the machine goes down an end is none of the command's own, and nobody is
// told of one; a machine that lives on is one again after three minutes.
func TestAnEndInAMachineThatEndsIsHeldBack(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
state=$root runs=$root/runs first_boot=0 born=0 attempt=1 me=s0w0 right=yes told=running
clock=$(date +%s); begin=$clock
play_clock
attribute() { :; }
store_text() { echo "$1 after $((clock - begin >= 180 ? 180 : 0)) s"; }
store() { echo "$1 after $((clock - begin >= 180 ? 180 : 0)) s"; }
look_at() { is=exited; }
: >"$state/down"; : >"$state/down.1"
report running 'attempt 1'
attend; echo "$is after $((clock - begin >= 180 ? 180 : 0)) s"; ls "$state" | grep down
: >"$state/down"; begin=$clock; /usr/bin/env touch -d "@$clock" "$state/down"
give_up 76 'the preflight was killed'`)
	want := "exited after 180 s\ncontrol/failed-1 after 180 s\nended/1/s0w0.76 after 180 s\nmultihost: failed: the preflight was killed\nworkers/s0w0 after 180 s\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Whoever reads what a startup script prints, the guest agent, may end before the
// script: nobody else would end the run.
func TestTheGuestAgentMayEndBeforeTheScript(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
HOME=$root
read_job() { run=r; }
identify() { me=s0w0 slice=0 worker=0; }
test_right() { :; }
detached() { note 'the command runs'; echo 'and is attended' >&4; }
exec 4>&1 5> >(:)
wait $!
main >&5 2>&5`)
	if want := "and is attended\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A command that has filled the disk, and failed for that, is told like another
// one: with its last line, its exit status, and no delay.
func TestACommandThatFillsTheDiskIsTold(t *testing.T) {
	t.Parallel()
	simworker.NeedNetns(t) // so we may mount
	got := inWorkerScript(t, `
state=$root/state scratch=$root/scratch runs=$root/runs run=r me=s0w0 slice=0 worker=0 attempt=1 clock=1000 first_boot=0 born=0 total=1 right=yes
mkdir -p "$state" "$scratch/kit" "$runs/1"
: >"$scratch/kit/status" >"$scratch/kit/stop" 2>"$scratch/kit/bootstrap"
mount -t tmpfs -o size=64k none "$state" || exit
printf 'step 1\nNo space left on device\n' >"$runs/1/output.log"
printf 'code=7\nsignal=\nend=1\nsize=31\noom=0\nlost=0\ndropped=0\nreason=\n' >"$runs/1/exit"
play_clock
as_login() { cat >/dev/null; printf '%s phase exited\n' "$nonce"; }
attribute() { :; }
api() {
  if [[ $1 == GET ]]; then status=404; return 1; fi
  status=200
  if [[ $4 == */text ]]; then sed -n '/phase=/s/^/told: /p; /fail/p' "$4"; else REPLY=${2##*name=}; echo "${REPLY%%&*}: $(tr '\n' '|' <"$4")"; fi
}
head -c 1000000 /dev/zero >"$state/checkpoint" 2>/dev/null
attend; finish; echo "after $((clock - 1000)) s"`, "unshare", "-m")
	want := `main_command_log_slice_0_worker_0: step 1|No space left on device|
fail-fast: a worker failed
ended%2F1%2Fs0w0.7: code=7|signal=|end=1|size=31|oom=0|lost=0|dropped=0|reason=|
multihost: ended: attempt 1, exit code 7
told: phase=ended
after 0 s
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The end of a worker is excused where it only follows worker 0, which has succeeded:
// the others are not stopped for it, and the record says that it is a tail. All else
// stops them, and no later than a minute after the end, or at once where worker 0 has
// failed or others were told already.
func TestATrainingsTailStopsNobody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ code, want string }{
		"an abort after worker 0's success": {"lead=0", "tail, after 0 s\n"},
		"an exit status of 134":             {"lead=0 signal=", "tail, after 0 s\n"},
		"the runtime's words":               {"lead=0 code=1 signal=; echo 'JAX distributed service detected fatal errors' >>$runs/1/output.log", "tail, after 0 s\n"},
		"worker 0 tells later":              {"lead=0 told=1050", "tail, after 50 s\n"},
		"59 s after":                        {"lead=0 end=5059", "tail, after 0 s\n"},
		"60 s after":                        {"lead=0 end=5060", "tail, after 0 s, fail-fast: a worker failed\n"},
		"before":                            {"lead=0 end=4999", "tail, after 0 s, fail-fast: a worker failed\n"},
		"before, by a clock that is an hour behind":     {"lead=0 end=1410 skew=-3600", "skew=-3600, tail, after 0 s\n"},
		"after, by a clock that is an hour ahead":       {"lead=0 end=8590 skew=3600", "skew=3600, tail, after 0 s, fail-fast: a worker failed\n"},
		"worker 0 has failed":                           {"lead=1", "tail, after 0 s, fail-fast: a worker failed\n"},
		"worker 0 works on":                             {"told=9000", "tail, after 60 s, fail-fast: a worker failed\n"},
		"worker 0 works on, the others know of another": {"told=9000 known=failed-1", "tail, after 0 s, fail-fast: a worker failed\n"},
		"the bucket tells nothing":                      {"status_of_list=503", "tail, after 60 s, fail-fast: a worker failed\n"},
		"worker 0 itself":                               {"lead=0 me=s0w0", "after 0 s, fail-fast: a worker failed\n"},
		"an ordinary failure":                           {"lead=0 code=100 signal=", "after 0 s, fail-fast: a worker failed\n"},
		"words long before the end":                     {"lead=0 code=1 signal=; { echo 'JAX distributed service'; seq 20; } >>$runs/1/output.log", "after 0 s, fail-fast: a worker failed\n"},
		"for want of memory":                            {"lead=0 oom=1", "after 0 s, fail-fast: a worker failed\n"},
		"an end that nobody has seen":                   {"lead=0 lost=1", "after 0 s, fail-fast: a worker failed\n"},
		"stopped":                                       {"lead=0 reason=enough; echo enough >$runs/1/stop", "after 0 s\n"},
		"--strict-exit":                                 {"lead=0 tail_words=''", "after 0 s, fail-fast: a worker failed\n"},
		"--fail-fast=false":                             {"told=9000 fail_fast=no", "tail, after 0 s\n"},
	} {
		got := inWorkerScript(t, `
state=$root runs=$root/runs clock=1000 first_boot=0 born=0 attempt=1 me=s0w1 slice=0 worker=1 storage=S bucket=b prefix=r/ is=exited
mkdir -p "$runs/1"
: >"$runs/1/output.log"
play_clock
lead='' told=0 code=134 signal=ABRT end=5000 skew=0 oom=0 lost=0 reason='' known='' status_of_list=200 tail_words='JAX distributed service'
report() { :; }
send_log() { :; }
op() { :; }
answer() { return 1; }
api() { # the list of worker 0's ends, and the time
  case $2 in
    *control%2Fattempt*) TZ=UTC0 printf 'Date: %(%a, %d %b %Y %T)T GMT\r\n' "$((clock - skew))" >"$scratch/headers"; status=404; return 1 ;;
    *prefix=r%2Fended%2F1%2Fs0w0.)
      reply='{}' status=$status_of_list why=no
      if ((clock >= told)) && [[ $lead ]]; then reply="{\"items\": [{\"name\": \"r/ended/1/s0w0.$lead\"}]}"; fi
      [[ $status == 200 ]] ;;
  esac
}
fetch() {
  case $1 in
    control/*) [[ ${1#*/} == "$known" ]] && : >"$2" ;;
    ended/1/s0w0.0) printf 'code=0\nend=5000000000000\n' >"$2" ;;
  esac
}
store() { if [[ $1 == control/* ]]; then failed_for=$(<"$2"); else sed -n 's/^tail=1$/tail, /p; s/^skew=.*/&, /p' "$2" | tr -d '\n'; fi; }
`+c.code+`
printf 'code=%s\nsignal=%s\nend=%s000000000\noom=%s\nlost=%s\nreason=%s\n' "$code" "$signal" "$end" "$oom" "$lost" "$reason" >"$runs/1/exit"
finish; echo "after $((clock - 1000)) s${failed_for:+, $failed_for}"`)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// What could not be written whole, on a full disk, goes nowhere: half of it would
// be another attempt, or no log.
func TestOnlyWhatIsWholeGoesToTheBucket(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
state=$root attempt=2 runs=$root/runs slice=0 worker=0
mkdir -p "$runs/2"; echo last words >"$runs/2/output.log"
for file in text piece compose; do ln -s /dev/full "$scratch/$file"; done
wanted_attempt() { wanted=1 wanted_generation=7; }
api() { if [[ $1 == GET ]]; then status=404; return 1; fi; echo "sent $*"; }
announce || echo "not announced: $why"
send_log || echo "no log: $why"
append log 7 || echo "nothing added: $why"`+"\n")
	got = regexp.MustCompile(`(?m)^.*write error.*\n`).ReplaceAllString(strings.ReplaceAll(got, "head: error writing 'standard output': No space left on device\n", ""), "")
	got = regexp.MustCompile(`below \S+`).ReplaceAllString(got, "below DIR")
	if want := "not announced: cannot write below DIR\nno log: cannot write below DIR\nnothing added: cannot write below DIR\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The ends of more workers than a page of the list has are read from all pages,
// whatever the name of the next one.
func TestAllPagesOfTheListAreRead(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
attempt=1 slices=1 workers=2 total=2 storage=S bucket=b prefix=r/
api() {
  echo "${2#*\?}"
  reply='{"items": [{"name": "r/ended/1/s0w0.0"}], "nextPageToken": "a+/b="}'
  if [[ $2 == *pageToken=* ]]; then reply='{"items": [{"name": "r/ended/1/s0w1.3"}]}'; fi
}
all_ended && echo "$failures has failed"`)
	if want := "prefix=r%2Fended%2F1%2F\nprefix=r%2Fended%2F1%2F&pageToken=a%2B/b=\n1 has failed\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The command finds the virtual environment that was made, and its programs first.
func TestVenvComesFirst(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
run=r venv=yes slice=0 worker=0 index=0 total=1 coordinator=10.0.0.1 own=10.0.0.1
op() { printf '%s\n' "$nonce path /v/bin:/usr/bin" "$nonce venv /v" >"$scratch/answer"; echo "$* within $((grace / 1000 + op_limit)) s"; }
make_venv && variables | tr '\0' '\n' | grep -e ^PATH -e ^VIRTUAL -e ^PYTHONHOME`)
	if want := "venv r within 1950 s\nPYTHONHOME\nVIRTUAL_ENV=/v\nPATH=/v/bin:/usr/bin\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Without one nothing is started, and the reason says what to install.
func TestMissingVenvEndsTheRun(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"$nonce refused python3-venv no module": "the package python3-venv is not installed: no module",
		"$nonce refused - no room":              "no room",
		"$nonce error disk full":                "disk full",
		"":                                      "no answer: killed",
	} {
		got := inWorkerScript(t, `
run=r
op() { printf '%s\n' "`+answer+`" >"$scratch/answer"; echo killed >"$scratch/error"; }
make_venv; echo "$?: $why"`)
		if want := "1: make a virtual environment (--venv): " + want + "\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// With MaxText's flags the command finds what MaxText's startup script sets.
func TestVariablesOfMaxText(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
run=r maxtext=yes slice=1 worker=2 node=n-1 zone=z project=p index=0 total=1 coordinator=10.0.0.1 own=10.0.0.1
variables | tr '\0' '\n' | grep -v -e MULTIHOST -e MEGASCALE
maxtext=no; variables | tr '\0' '\n' | grep -v -e MULTIHOST -e MEGASCALE; :`)
	if want := "SLICE_ID=1\nWORKER_ID=2\nNODE_ID=n-1\nZONE=z\nPROJECT=p\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The agent's configuration names everything once however often it is written,
// and the agent is restarted only when it has changed.
func TestOpsAgentConfigurationIsWrittenWhole(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
systemctl() { echo "systemctl $*"; }
run=train runs=/home/ann/.multihost/runs/train slice=1 worker=2 attempt=2
mkdir -p "$root/etc/google-cloud-ops-agent"
printf 'logging:\n  receivers: {}\n' >"$root/etc/google-cloud-ops-agent/config.yaml"
ops_agent; ops_agent; agent_log
cat "$root/etc/google-cloud-ops-agent/config.yaml"
cd "$root/var/log/multihost/train" && for f in *; do echo "$f -> $(readlink "$f")"; done`)
	for _, want := range []string{"    train_log:\n", "receivers: [train_log]\n", "attempt-2_main_command_log_slice_1_worker_2 -> /home/ann/.multihost/runs/train/2/output.log\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "\nlogging:\n"); n != 1 {
		t.Errorf("%d logging sections in\n%s", n, got)
	}
	if n := strings.Count(got, "systemctl restart"); n != 1 {
		t.Errorf("%d restarts in\n%s", n, got)
	}
}

// An operation that hangs, on a home that does, is killed: a stop is asked for
// again, and the worker comes to its end.
func TestHungOperationIsKilled(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
state=$root login=root run=r attempt=1 grace=30000
mkdir "$state/kit"
echo 'trap "" TERM; while :; do sleep 1000; done' >"$state/kit/bootstrap"
: >"$state/kit/stop"
timeout() { echo "$3" >"$state/limit"; command timeout -k 0.1 0.1 "${@:4}"; }
stop_it 'the user wants it' 2>/dev/null
echo "killed after $(<"$state/limit") s"`)
	if want := "multihost: stopping the command: the user wants it\nkilled after 150 s\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The login of ssh-keys is made some time after the boot. Without it root has to
// do; but the login that the run belongs to has no other for it after a reboot.
func TestLoginIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ code, want string }{
		"it comes":                   {"there=1030", "ann at 1030\n"},
		"it does not come":           {"there=9999", "root at 1120, not ann\n"},
		"after a reboot it is slow":  {"there=1400; echo ann >\"$state/login\"", "ann at 1400\n"},
		"after a reboot it is gone":  {"there=9999; echo ann >\"$state/login\"", "none at 1600: login ann, which the run belongs to, was not there after 600 s\n"},
		"after a reboot it was root": {"there=0; echo root >\"$state/login\"", "root at 1000\n"},
	} {
		got := inWorkerScript(t, `
state=$root run=r clock=1000 patience=600
play_clock
instance() { echo "ann:ssh-ed25519 AAAA ann"; }
id() { [[ $2 == ann ]] && ((clock >= there)); }
as_login() { printf /home; }
`+c.code+`
if await_login; then echo "$login at $clock${login_missing:+, not $login_missing}"; else echo "none at $clock: $why"; fi`)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// OS Login tells of a login at once, but makes its home at its first login by SSH,
// which a job without runner has none of.
func TestALoginWithoutAHomeGetsOne(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{
		"as pam_mkhomedir makes it": `mkhomedir_helper() { mkdir -p "$root/home/$1"; echo "made for $1" >&4; }; login=ann_example_com; id() { :; }`,
		"without its program":       `mkhomedir_helper() { return 127; }; login=$(id -un); if [[ $login == root ]]; then login=0; fi; mkdir "$root/home"`,
		"where there is one":        `mkdir -p "$root/home/ann"; mkhomedir_helper() { echo "made for $1" >&4; }; login=ann; id() { :; }`,
	} {
		got := inWorkerScript(t, `
state=$root run=r
as_login() { printf %s "$root/home/$login"; }
exec 4>&1
`+code+`
await_login && [[ -d $root/home/$login ]] && echo "$runs" | sed "s,$root/home/$login,~,"`)
		want := "~/.multihost/runs/r\n"
		if strings.HasPrefix(name, "as pam") {
			want = "made for ann_example_com\n" + want
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// What Secret Manager answers becomes a variable whole, or ends the run; nothing
// of it stays on the disk.
func TestSecretsThatFitNoVariableAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ reply, want string }{
		"a value":       {`{"payload": {"data": "dHdvCmxpbmVz"}}`, "KEY=two\nlines|"},
		"a NUL":         {`{"payload": {"data": "YQBi"}}`, "refused"},
		"no base64":     {`{"payload": {"data": "&%$"}}`, "refused"},
		"an empty one":  {`{"payload": {"data": ""}}`, "refused"},
		"another thing": {`<html>sign in</html>`, "refused"},
	} {
		got := inWorkerScript(t, `
state=$root secretmanager=https://sm/v1 secrets=KEY=sm://p/key/7
api() { [[ $2 == https://sm/v1/projects/p/secrets/key/versions/7:access ]] && reply='`+c.reply+`'; }
if fetch_secrets; then
  tr '\0' '|' <"$state/secrets"
elif [[ $why == "read secret p/key/7: the answer has no value that fits into a variable" && ! -e $state/secrets && ! $reply ]]; then
  printf refused
fi`)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A worker that waits for a right says so; that there is no such secret ends the wait.
func TestASecretThatIsWaitedForIsTold(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
state=$root scratch=$root secretmanager=https://sm/v1 secrets=KEY=sm://p/key/7 clock=1000 phase=preflight calls=0
play_clock
report() { echo "$1: $2 at $clock"; status=200 why=''; }
api() {
  calls=$((calls + 1))
  if ((calls < 4)); then status=403 why=denied; else status=404 why='no such secret'; fi
  return 1
}
if fetch_secrets; then echo read; else echo "$why at $clock"; fi`)
	if want := "preflight: waiting: denied at 1000\nread secret p/key/7: no such secret at 1007\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A setting that had no value before, or has none after, leaves its field empty.
func TestEmptyFieldsOfThePreflightStay(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
state=$root
mkdir "$state/kit"
cat >"$state/kit/preflight" <<'SCRIPT'
printf 'multihost-preflight 1\tresult\trto_min\t\t\t\tfailed\t\tno route\n'
printf 'multihost-preflight 1\tinfo\tnuma_nodes\t2\n'
printf 'multihost-preflight 1\tresult\ttpu_devices\t4\t\t\tfailed\t\tnone found\n'
printf 'multihost-preflight 1\tend\n'
SCRIPT
prepare; echo "$? $code $numa_nodes: $why"`)
	if want := "multihost: preflight: rto_min is not : no route\nmultihost: preflight: tpu_devices is not 4: none found\n1 76 2: preflight: tpu_devices: none found\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What the user has at the job's place is not touched, and a job that is typed again
// finds its own.
func TestDetachedCodeLeavesWhatIsTheUsers(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
state=$root/state run=r claim=c code_sum=$(printf x | gzip | sha256sum)
export HOME=$root/home
mkdir -p "$HOME/r" "$HOME/code" "$state" "$scratch/kit"
echo precious >"$HOME/r/train.py"
echo shipped >"$HOME/code/train.py"
cat >"$scratch/kit/unpack" <<'SCRIPT'
`+codesync.Unpack()+`
SCRIPT
as_login() { shift; "$@"; }
patiently() { tar -czf "$state/code.tar.gz" -C "$HOME/code" .; code_sum=$(sha256sum <"$state/code.tar.gz"); code_sum=${code_sum%% *}; }
try() { code=74 why=''; unpack_code; echo "$? $code ${why//"$HOME"/"~"}: $(cat "$HOME/r/train.py")"; }
try
adopt=yes; try
adopt=no; rm "$state/unpacked"; echo 'of the command' >"$HOME/r/train.py"; try
rm -r "$HOME/r" "$state/unpacked"; mkdir "$HOME/r"; echo anew >"$HOME/r/train.py"; try`)
	refused := "1 78 ~/r is a directory that no run brought there; it is left as it is; another --run-name=NAME has a directory of its own, --adopt puts the files into this one: "
	if want := refused + "precious\n0 74 : shipped\n0 74 : shipped\n" + refused + "anew\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Whoever was rebooted tells of the next attempt before the end of the last one:
// who sees that all have ended that, and of no newer one, deletes the slices.
func TestNextAttemptIsAnnouncedBeforeTheEndOfTheLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ code, want string }{
		"told":              {"", "announced 2\nended 1\nattempt 2 is unknown\n"},
		"others are ahead":  {"wanted_attempt() { wanted=4; }", "announced 4\nended 1\nattempt 4 is unknown\n"},
		"cannot be told":    {"announce() { why=503; return 1; }", "attempt 1 is lost: attempt 2 did not begin, since the others could not be told: tried for 600 s; 503\n"},
		"asked to stop":     {"fetch() { [[ $1 == control/stop ]] && echo enough >\"$2\"; }", "attempt 1 is lost, and not again: enough\n"},
		"at its time limit": {"echo 'timeout of 60 s (--timeout)' >$runs/1/stop", "attempt 1 is lost, and not again: timeout of 60 s (--timeout)\n"},
		"making way":        {"echo 'attempt 2 has begun' >$runs/1/stop; wanted_attempt() { wanted=2; }", "announced 2\nended 1\nattempt 2 is unknown\n"},
		"three times":       {"quick_deaths() { return 0; }", "announced 2\nended 1\ngave up 2 with 75\nattempt 2 is exited\n"},
	} {
		got := inWorkerScript(t, `
state=$root runs=$root/runs clock=1000 first_boot=0 born=0
mkdir -p "$runs/1"
play_clock
look_at() { is=lost; }
fetch() { return 1; }
quick_deaths() { return 1; }
wanted_attempt() { wanted=0; }
announce() { echo "announced $attempt"; }
finish() { echo "ended $attempt"; }
give_up() { echo "gave up $attempt with $1"; }
`+c.code+`
find_attempt
echo "attempt $attempt is $is${not_begun:+: $not_begun}${not_again:+, and not again: $not_again}"`)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A reboot begins nothing again that had ended before and was told: a command that
// failed, one whose supervisor was killed, an attempt that was given up before it
// had a record, not even where the next boot cannot prepare the job.
func TestAnEndThatWasToldOutlastsAReboot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ code, want string }{
		"given up before it had a record": {"give_up 76 'the preflight failed'; boot", "failed-1\nended/1/s0w0.76\nmultihost: ended: attempt 1, exit code 76 (the preflight failed)\nrests after 1\n"},
		"the supervisor was killed":       {"mkdir $runs/1; give_up 70 'it is gone'; boot", "failed-1\nended/1/s0w0.70\nmultihost: ended: attempt 1, exit code 70 (it is gone)\nrests after 1\n"},
		"the next boot prepares nothing":  {"give_up 143 'it is to stop'; prepare_job() { why=no; return 1; }; boot", "ended/1/s0w0.143\nmultihost: ended: attempt 1, exit code 143 (it is to stop)\nrests after 1\n"},
		"the end could not be told":       {"ends=503; give_up 76 'the preflight failed'; boot", "failed-1\nmultihost: begins 1\n"},
		"nor the failure":                 {"control=503; give_up 76 'the preflight failed'; boot", "multihost: begins 1\n"},
		"another has begun since":         {"give_up 76 no; mkdir $runs/1 $runs/2; look_at() { is=running; }; boot", "failed-1\nended/1/s0w0.76\nmultihost: attends 2\n"},
	} {
		got := inWorkerScript(t, `
state=$root/state runs=$root/runs clock=1000 first_boot=0 born=0 attempt=1 me=s0w0 slice=0 worker=0 control=200 ends=200
mkdir -p "$state" "$runs"
play_clock
prepare_job() { :; }
going_down() { return 1; }
report() { if [[ $1 == ended ]]; then note "$1: $2"; fi; }
store() {
  local result=$ends
  if [[ $1 == control/* ]]; then result=$control; fi
  if [[ $result != 200 ]]; then status=$result why=no; return 1; fi
  echo "${1#control/}"
}
fetch() { status=404; return 1; }
api() { status=404; return 1; }
wanted_attempt() { wanted=0; }
look_at() { echo "looked at $1"; is=lost; }
begin() { note "begins $attempt"; exit 0; }
attend() { note "attends $attempt"; exit 0; }
rest() { echo "rests after $attempt"; return 1; }
boot() { failure='' end_told='' gave_up='' end_code=''; detached || :; }
`+c.code)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A worker that comes back with an empty disk, as after a repair, does not begin
// again alone what it had begun: the others begin the next attempt with it. Its log
// in the bucket stays, and what it had ended has ended.
func TestAWorkerThatHasLostItsDiskDoesNotBeginAgainAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ code, want string }{
		"it is new":                {"", "attempt 1 is unknown\n"},
		"new, in a later attempt":  {"wanted_attempt() { wanted=3; }", "attempt 3 is unknown\n"},
		"it had begun":             {"log=200", "announced 2\nended/1/s0w1.255: the worker was rebooted, with an empty disk\nattempt 2 is unknown\n"},
		"and others are ahead":     {"log=200; wanted_attempt() { wanted=3; }", "announced 4\nended/3/s0w1.255: the worker was rebooted, with an empty disk\nattempt 4 is unknown\n"},
		"it had ended":             {"log=200 over=s0w1.0", "attempt 1 is exited, told 1\n"},
		"another one had ended":    {"log=200 over=s0w11.0", "announced 2\nended/1/s0w1.255: the worker was rebooted, with an empty disk\nattempt 2 is unknown\n"},
		"it is to stop":            {"log=200; fetch() { echo enough >\"$2\"; }", "attempt 1 is unknown\n"},
		"others cannot be told":    {"log=200; announce() { why=503; return 1; }", "gave up 1 with 70\nattempt 1 is exited\n"},
		"the bucket does not tell": {"log=503", "gave up 1 with 77\nattempt 1 is exited\n"},
	} {
		got := inWorkerScript(t, `
state=$root runs=$root/runs clock=1000 attempt=1 first_boot=0 born=0 slice=0 worker=1 me=s0w1 storage=S bucket=b prefix=r/ log=404 over=''
play_clock
wanted_attempt() { wanted=0; }
announce() { echo "announced $attempt"; }
fetch() { status=404; return 1; }
api() {
  case $2 in
    S/b/b/o/r%2F*main_command_log_slice_0_worker_1) status=$log why=no; [[ $log == 200 ]] ;;
    *"?prefix=r%2Fended%2F$attempt%2F"*) reply='{}'; if [[ $over == "${2##*%2F}"* ]]; then reply='{"items": [{"name": "r/ended/1/s0w1.0"}]}'; fi ;;
  esac
}
store() { echo "$1: $(sed -n 's/^reason=//p' "$2")"; }
give_up() { echo "gave up $attempt with $1"; }
`+c.code+`
find_attempt
echo "attempt $attempt is $is$([[ ! -e $state/told.1 || $is == unknown ]] || echo ', told 1')"`)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// Whoever holds the TPU against us is named before anything is started, or ended
// where that was asked for.
func TestHolderOfTheTPUIsNamed(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]string{
		"orphans": "69: the TPU is in use by pid 71 of bob: python3 other.py --steps=9; --kill-stale=all would end it\n",
		"all":     "ready\n",
	} {
		got := inWorkerScript(t, `
state=$root preflight=off code_sum=none kill_stale=`+policy+`
op() { if [[ $2 == orphans ]]; then printf '%s holder 71 0 60 bob - - 0 0 accel0 python3 other.py --steps=9\n' "$nonce"; fi >"$state/answer"; }
if prepare; then echo ready; else echo "$code: $why"; fi`)
		if got != want {
			t.Errorf("%s: got %q, want %q", policy, got, want)
		}
	}
}

func TestParseSecret(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"A=sm://my-project/s":        "A=sm://my-project/s/latest",
		"A=sm://123456/s_1/7":        "A=sm://123456/s_1/7",
		"A=sm://my-project":          "",
		"1A=sm://my-project/s":       "",
		"A=sm://my-project/s/1/2":    "",
		"A=sm://my-project/s p":      "",
		"A=sm://my-project/$(x)/1":   "",
		"A=sm://my-project/s/latest": "A=sm://my-project/s/latest",
	} {
		got, err := detach.ParseSecret(text)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%s: got %v, %v, want %q", text, got, err, want)
		}
	}
}

func TestCleanBucket(t *testing.T) {
	t.Parallel()
	for in, want := range map[[2]string]string{
		{"b-1", ""}:           "b-1|",
		{"gs://b-1", "/a/b/"}: "b-1|a/b",
		{"gs://b-1/x/", "y"}:  "b-1|x/y",
		{"B", ""}:             "",
		{"b-1", "a b"}:        "",
		{"b-1", "$(reboot)"}:  "",
		{"b-1", `a"b`}:        "",
		{"b-1", "a//b"}:       "",
		{"b-1 --force", "a"}:  "",
		{"gs://b-1/a b", ""}:  "",
	} {
		bucket, dir, err := detach.CleanBucket(in[0], in[1])
		if (err == nil) != (want != "") || err == nil && bucket+"|"+dir != want {
			t.Errorf("%v: got %q %q, %v, want %q", in, bucket, dir, err, want)
		}
	}
}

// Nothing is left in the bucket when the slices cannot be asked for.
func TestRefusedRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	server, err := sim.Start(t.Context(), sim.Config{Dir: t.TempDir(), Backend: "none", Step: time.Millisecond})
	testkit.Must(t, err)
	t.Cleanup(func() { server.Close() })
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, StorageEndpoint: server.URL() + "/storage/v1/"})
	b, err := detach.Open(t.Context(), cloud, sim.DefaultBucket, "")
	testkit.Must(t, err)
	j, d := detach.Job{Run: "r"}, aRun
	broken := errors.New("disk gone")
	err = b.Create(t.Context(), &j, d, map[string][]byte{"a": nil}, func(io.Writer) error { return broken }, nil)
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want the cause", err)
	}
	if left := server.Objects(sim.DefaultBucket); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	testkit.Must(t, b.Create(t.Context(), &j, d, map[string][]byte{"a": nil}, nil, nil))
	var taken *detach.ExistsError
	if err := b.Create(t.Context(), &j, d, nil, nil, nil); !errors.As(err, &taken) {
		t.Errorf("got %v, want that the name is taken", err)
	}
	if runs, err := b.Runs(t.Context()); err != nil || !slices.Equal(runs, []string{"r"}) {
		t.Errorf("got %v, %v", runs, err)
	}
}

// A bucket that refuses the log of a command that has ended is waited for, and then
// its slices stay a while: what is on the worker is the only copy. A bucket that takes
// it at last ends the wait.
func TestALogThatTheBucketRefusesKeepsTheSlices(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	for name, c := range map[string]struct{ code, want string }{
		"it never takes any":      {"", "1000 logs; 2771 unsent; 2771 ended; kept; 4571 deleted\n"},
		"it takes it soon":        {"takes=1100", "1000 logs; 1121 ended; 1121 deleted\n"},
		"it takes it late":        {"takes=3000", "1000 logs; 2771 unsent; 2771 ended; kept; 3011 whole; 3011 deleted\n"},
		"it takes nothing":        {"takes=9000 refuses=9000", "1000 logs; unreadable; 5142 deleted\n"},
		"it takes all again":      {"takes=4000 refuses=4000", "1000 logs; 4002 ended; 4002 deleted\n"},
		"others have begun again": {"wanted_attempt() { wanted=2; }", "1571 unsent; 1571 ended; next\n"},
		"the machine went down":   {"rebooted='it was rebooted'", "1571 unsent; 1571 ended; kept; 3371 deleted\n"},
	} {
		got := inWorkerScript(t, `
run=r prefix=r/ storage=S upload=U bucket=b me=s0w0 index=0 total=1 slices=1 workers=1 attempt=1 is=exited runs=$root/runs state=$root first_boot=1000 born=1000 reported=0
mkdir -p "$runs/1"; clock=1000 takes=99999 refuses=0 marked='' look=20 phase=running
play_clock
: >"$runs/1/stop" # nothing is swept
printf 'code=0\nend=1000000000000\nsize=9\nlost=0\nreason=\n' >"$runs/1/exit"
sweep() { :; }
note_skew() { :; }
wanted_attempt() { wanted=1 status=200; ((clock >= refuses)) || { status=403 why=refused; return 1; }; }
send_log() { ((clock >= takes)) || { status=403 why=refused; return 1; }; if [[ $marked ]]; then said "whole"; fi; }
note() { :; }
said() { printf '%s; ' "$clock $1"; }
report() {
  case $1 in
    logs) [[ $phase == logs ]] || said logs ;;
    kept) [[ $phase == kept ]] || printf 'kept; ' ;;
  esac
  phase=$1 detail=$2
}
teardown() { if [[ $1 == *'could not be read'* ]]; then printf 'unreadable; '; fi; echo "$clock deleted"; }
store() {
  ((clock >= refuses)) || { status=403 why=refused; return 1; }
  case $1 in
    control/unsent-1-s0w0) marked=$clock; said unsent ;;
    ended/1/s0w0.*) said ended; ended=yes ;;
  esac
}
api() {
  ((clock >= refuses)) || { status=403 why=refused; return 1; }
  status=200 reply='{}'
  case "$1 $2" in
    DELETE*) marked='' ;;
    *unsent*) if [[ $marked ]]; then
      printf 'Date: %(%FT%T)T\r\n' "$clock" >"$scratch/headers"
      printf -v reply '{"items": [{"name": "r/control/unsent-1-s0w0", "updated": "%(%FT%T)T"}]}' "$marked"
    fi ;;
    *ended*) if [[ ${ended-} ]]; then reply='{"items": [{"name": "r/ended/1/s0w0.0"}]}'; fi ;;
  esac
}
`+c.code+`
finish >"$scratch/said"
if rest >>"$scratch/said"; then echo next >>"$scratch/said"; fi
cat "$scratch/said"`)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// Of several workers whose logs are not whole in the bucket the one that has told so last
// decides how long the slices stay.
func TestTheLastOfTheLogsThatAreNotWholeKeepsTheSlices(t *testing.T) {
	t.Parallel()
	got := inWorkerScript(t, `
storage=S bucket=b prefix=r/ attempt=1 stale=1800
api() {
  status=200 reply='{"items": [
    {"name": "r/control/unsent-1-s0w0", "updated": "2026-11-30T01:00:00.5Z"},
    {"name": "r/control/unsent-1-s0w1", "updated": "2026-11-30T01:20:00.1Z"}]}'
  printf 'Date: %s\r\n' "$date" >"$scratch/headers"
}
for date in 'Mon, 30 Nov 2026 01:21:00 GMT' 'Mon, 30 Nov 2026 01:49:00 GMT' 'Mon, 30 Nov 2026 01:51:00 GMT'; do
  find_unsent; echo "${part_logs:+stays}"
done`)
	if want := "stays\nstays\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
