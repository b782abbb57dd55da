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
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/crypto/ssh"

	"multihost/internal/agent/program"
	"multihost/internal/attempt"
	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/launch"
	"multihost/internal/network"
	"multihost/internal/overssh"
	"multihost/internal/preflight"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/record"
	"multihost/internal/sim"
	"multihost/internal/sim/netns"
	"multihost/internal/stage"
	"multihost/internal/submit"
	"multihost/internal/testkit"
	"multihost/internal/testkit/builtagent"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/testkit/simworker"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

func TestMain(m *testing.M) {
	if netns.MaybeInit(os.Args) {
		return
	}
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// noAgent replaces multihost-agent if no worker runs it.
func noAgent(t *testing.T, text string) program.Set {
	t.Helper()
	made, err := program.Files(runtime.GOARCH, []byte(text))
	testkit.Must(t, err)
	files := fstest.MapFS{}
	for name, data := range made {
		files[name] = &fstest.MapFile{Data: data}
	}
	return program.In(files)
}

// A world is a job without runner on a simulated cloud.
type world struct {
	t      *testing.T
	sim    *sim.Server
	dir    string // directory of the simulator
	queue  *qr.Client
	bucket *detach.Bucket
	told   string // messages to the user at the start
}

const runName = "train"

// onBoth runs a test on workers of both kinds.
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

// begin starts a simulator with the faults of cfg, and the job on one slice of the type
// accelerator.
func begin(t *testing.T, backend, accelerator, script string, change func(*job.JobOptions, *submit.DetachOptions), cfg sim.Config) *world {
	t.Helper()
	testkit.NeedWorker(t)
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
		Run:     attempt.Options{Run: runName, Dir: code, Script: script, Preflight: "apply", Platform: preflight.GCE, NUMA: preflight.NUMAAuto, Grace: 2 * time.Second, FailFast: true, KillStale: launch.FreeOrphans},
	}
	o.Request.Mark(runName, "ann")
	roots, err := cloud.Roots()
	testkit.Must(t, err)
	built, err := builtagent.Folder("../..")
	testkit.Must(t, err)
	agents := program.In(os.DirFS(built))
	do := submit.DetachOptions{Bucket: sim.DefaultBucket, Dir: "jobs", Roots: roots, Every: time.Second, Patience: 2 * time.Second, Stale: time.Minute}
	if change != nil {
		change(&o, &do)
	}
	typed := &stage.Invocation{Clock: gcp.SystemClock, Sink: event.SinkFunc(func(e event.Event) {
		if n, ok := e.(event.Note); ok {
			w.told += n.Text + "\n"
		}
	})}
	d := submit.Deps{
		Reach:  &workers.Reach{Invocation: typed, Place: provision.Place{Project: sim.DefaultProject, Zone: sim.DefaultZone}, Cloud: w.queue.Provider(""), Access: overssh.Access{Login: "ann"}},
		Keeper: &record.Keeper{Of: typed, StateDir: filepath.Join(dir, "state"), Owner: "ann@laptop"},
		Source: detach.Source{OpenBucket: func(ctx context.Context, bucket, dir string) (*detach.Bucket, error) {
			return detach.Open(ctx, cloud, bucket, dir)
		}},
		Networks: network.New(cloud, qr.LifeOf), Agents: agents,
	}
	if _, err := submit.Detach(t.Context(), d, o, do); err != nil {
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

// until waits until the state in the bucket is ok.
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
	if !testkit.Await(4*time.Minute, ok) {
		s, err := w.bucket.State(w.t.Context(), runName)
		w.t.Fatalf("waited too long for %s; the bucket says %+v, %v\n%s", what, s, err, w.startupLogs())
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

// After maintenance has rebooted every worker, the command runs again as attempt 2. Its
// files are as it left them, and the settings are applied again. Attempt 1 ended by a
// reboot, and no worker has failed.
func TestRebootOfAllWorkersIsANewAttempt(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, backend string) {
		w := begin(t, backend, "v4-16", `
echo "attempt $MULTIHOST_ATTEMPT on $(cat data.txt), slow start $(cat "${MULTIHOST_ROOT_PROC-}/proc/sys/net/ipv4/tcp_slow_start_after_idle"), login $(id -un), locale ${LC_ALL-as it is}, worker $MULTIHOST_WORKER_ID of $MULTIHOST_NUM_WORKERS"
echo changed >data.txt
[ $MULTIHOST_ATTEMPT = 2 ] && exit 0
sleep 1000`, func(_ *job.JobOptions, do *submit.DetachOptions) { do.Patience = time.Minute }, sim.Config{}) // both workers report attempt 2
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

// A slice that is preempted between two uploads has half a minute. In this time it sends
// the last line of the log, and a report of what happened to the worker.
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
sleep 1000`, func(o *job.JobOptions, do *submit.DetachOptions) {
			o.Run.Script = strings.NewReplacer("STORAGE", do.Roots.Storage, "BUCKET", do.Bucket).Replace(o.Run.Script)
			do.Every = time.Hour
		}, sim.Config{})
		w.wait("the last line", func() bool { return w.object("written") != "" })
		if got := w.object(log); got != "" && got != "begin\n" {
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

// If a service account may not read the bucket, the job ends with a reason that is visible
// from outside, and nothing costs money any longer.
func TestBucketThatCannotBeReadEndsTheJob(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	for permission, backend := range map[string]string{"storage.objects.get": "netns", "storage.*": "process"} {
		t.Run(permission, func(t *testing.T) {
			t.Parallel()
			if backend == "netns" {
				simworker.NeedNetns(t)
			}
			w := begin(t, backend, "v4-8", "true", func(_ *job.JobOptions, do *submit.DetachOptions) { do.Stale = 2 * time.Second }, sim.Config{
				Faults: []sim.Fault{{Name: "permission-denied", Permission: permission, Account: "*gserviceaccount.com", Count: sim.AllCalls}},
			})
			w.wait("the guest attribute", func() bool {
				_, told := w.guestState()
				return strings.Contains(told, "phase=failed") && strings.Contains(told, "the job cannot be fetched: tried for 2 s; HTTP status 403") && strings.Contains(told, "storage.objects.get")
			})
			w.gone()
		})
	}
}

// guestState returns worker 0's state from the guest attribute.
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

// The queued resource stays while a worker works. Then any worker deletes it. Here worker 1
// does, because worker 0 is dead.
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

// A worker has died for ever. The slices of the others are still deleted.
func TestDeadWorkerIsNotWaitedForForEver(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	w := begin(t, "process", "v4-16", `[ $MULTIHOST_WORKER_ID = 0 ] || sleep 1000`, func(_ *job.JobOptions, do *submit.DetachOptions) { do.Stale = 15 * time.Second }, sim.Config{})
	w.until("worker 0 to end and worker 1 to run", func(s detach.State) bool { return len(s.Ended) == 1 && running(1, 1)(s) })
	w.inject("worker-kill worker=1")
	w.gone()
}

// If the workers may not delete, the user learns that before the command ends, and the
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
		w := begin(t, backend, "v4-8", "sleep 1000", func(o *job.JobOptions, _ *submit.DetachOptions) { o.TTL = 20 * time.Second }, sim.Config{})
		s := w.until("the end", ended(1))
		// TERM killed the shell, or its child, whose status the shell returned.
		if s.Ended[0].Code != 143 || !strings.Contains(s.Ended[0].Reason, "--ttl") {
			t.Errorf("got %+v", s.Ended)
		}
		w.gone()
	})
}

// The first failure stops the other workers and is in the verdict. The reason of the stop
// names no worker: the failure that is seen first need not be the first by the clocks.
func TestFirstFailureStopsTheOthers(t *testing.T) {
	t.Parallel()
	w := begin(t, "process", "v4-16", `[ $MULTIHOST_WORKER_ID = 0 ] || exit 7; sleep 1000`, nil, sim.Config{})
	s := w.until("both to end", ended(2))
	if b := s.Blame(); b == nil || b.Code != 7 || b.Worker.Worker != 1 || s.Ended[0].Reason != detach.FailFast {
		t.Errorf("got %+v", s.Ended)
	}
	w.gone()
}

// A failure that only follows the success of worker 0 is a training's tail. It stops no
// worker, the run has succeeded, and --keep-on-failure does not keep the slices.
func TestATrainingsTailIsExcused(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	onBoth(t, func(t *testing.T, backend string) {
		w := begin(t, backend, "v4-16", `ulimit -c 0; [ $MULTIHOST_WORKER_ID = 0 ] || {
until curl -s -f -o /dev/null STORAGE/storage/v1/b/BUCKET/o/jobs%2Ftrain%2Fended%2F1%2Fs0w0.0; do sleep 0.1; done
kill -ABRT $$; }`, func(o *job.JobOptions, do *submit.DetachOptions) {
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

// The worker ends and reports processes that the command leaves in the background, even
// without a connection.
func TestWhatIsLeftInTheBackgroundEndsAndIsTold(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	onBoth(t, func(t *testing.T, backend string) {
		// The workers of the other backend also run on this machine, so each backend has
		// its own duration of sleep.
		sleep := "sleep 973." + strconv.Itoa(len(backend))
		w := begin(t, backend, "v4-8", `nohup setsid bash -c 'echo $$ >~/left; exec `+sleep+`' >/dev/null 2>&1 & until [ -s ~/left ]; do sleep 0.1; done`, func(o *job.JobOptions, _ *submit.DetachOptions) { o.Keep = true }, sim.Config{})
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
	w := begin(t, "process", "v4-8", "exit 3", func(o *job.JobOptions, _ *submit.DetachOptions) { o.KeepOnFailure, o.KeepFor = true, 3*time.Second }, sim.Config{})
	s := w.until("the end", ended(1))
	w.gone()
	if kept := time.Since(s.Ended[0].At); kept < 3*time.Second {
		t.Errorf("kept for %v, want 3 s", kept)
	}
}

// Only the command sees a secret. It is not in the metadata, the bucket, the requests or
// the logs, nor after the run on the worker's disk.
func TestSecretIsNowhereButInTheCommand(t *testing.T) {
	t.Parallel()
	const canary = "canary-3b9ac9ff-with \"quotes\"\n and a line"
	w := begin(t, "process", "v4-8", `[ "$KEY" = "canary-3b9ac9ff-with \"quotes\"
 and a line" ] && echo "it is here"`, func(o *job.JobOptions, _ *submit.DetachOptions) {
		secret, err := detach.ParseSecret("KEY=sm://" + sim.DefaultProject + "/key")
		testkit.Must(t, err)
		o.Run.Secrets = []detach.Secret{secret}
		o.Keep = true
		// The script joins two parts of the value, so its text does not contain the secret.
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

func TestSecretThatCannotBeReadEndsTheRun(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	w := begin(t, "process", "v4-8", "true", func(o *job.JobOptions, _ *submit.DetachOptions) {
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
		text := detach.Job{Agents: noAgent(t, "x")}.Metadata()[key]
		check := exec.Command(testkit.Need(t, "shellcheck"), "-")
		check.Stdin = strings.NewReader(text)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("shellcheck of the %s: %v\n%s", key, err, out)
		}
		// Compute Engine takes 256 KB in one value and 512 KB in all, including the user's
		// values.
		if len(text) > 26<<10 {
			t.Errorf("the %s has %d bytes", key, len(text))
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

// A user's stop is never lost. It replaces the stop of workers whose slices were about to
// be deleted. A start that continues the run does not remove it.
func TestAStopOfAUserStays(t *testing.T) {
	t.Parallel()
	server, err := sim.Start(t.Context(), sim.Config{Dir: t.TempDir(), Backend: "none", Step: time.Millisecond})
	testkit.Must(t, err)
	t.Cleanup(func() { server.Close() })
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, StorageEndpoint: server.URL() + "/storage/v1/"})
	t.Cleanup(cloud.Close)
	b, err := detach.Open(t.Context(), cloud, sim.DefaultBucket, "")
	testkit.Must(t, err)
	j := detach.Job{Run: "r"}
	testkit.Must(t, b.Create(t.Context(), &j, aRun, nil, nil, nil))
	const ours, users = "the slices are deleted 60 s after they were made (--max-run-duration)", "stopped by ann"
	stopping := func(want string) {
		t.Helper()
		if s, err := b.State(t.Context(), "r"); err != nil || s.Stopping != want {
			t.Errorf("got %q, %v, want %q", s.Stopping, err, want)
		}
	}
	simcloud.PutObject(t, server, "r/control/stop", ours+"\n")
	testkit.Must(t, b.Renew(t.Context(), j, 2))
	stopping("")
	simcloud.PutObject(t, server, "r/control/stop", ours+"\n")
	testkit.Must(t, b.Stop(t.Context(), "r", users))
	stopping(users)
	testkit.Must(t, b.Stop(t.Context(), "r", "stopped by bob"))
	stopping(users)
	testkit.Must(t, b.Renew(t.Context(), j, 3))
	stopping(users)
}
