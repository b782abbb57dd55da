package detach_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"multihost/internal/detach"
	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/job"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/sim"
	"multihost/internal/stage"
	"multihost/internal/submit"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// The calls go over a real network. The bucket refuses while the workers boot, tokens are
// not accepted for a while, and the API does not answer the deletion of the slices. The job
// still succeeds and leaves nothing. The matrix of cmd/multihost has other faults, in each
// phase.
func TestRefusedCallsAreMadeAgain(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	onBoth(t, refusedCalls)
}

func refusedCalls(t *testing.T, backend string) {
	w := begin(t, backend, "v4-8", "sleep 2", func(_ *job.JobOptions, do *submit.DetachOptions) { do.Patience = time.Minute }, sim.Config{Faults: []sim.Fault{
		{Name: "api-error", Code: http.StatusServiceUnavailable, Path: "*kit.tar.gz", Count: 2},
		{Name: "api-error", Code: http.StatusForbidden, Path: "*script_dir_zip*", Method: http.MethodGet, Count: 2},
	}})
	w.until("attempt 1 to run", func(s detach.State) bool { return running(1, 1)(s) || ended(1)(s) })
	w.inject("expired-token path=/storage* n=6")
	w.inject("expired-token path=*/queuedResources/* n=1")
	w.inject("api-error code=503 method=DELETE path=*/queuedResources/train n=1")
	w.gone()
	s, err := w.bucket.State(t.Context(), runName)
	testkit.Must(t, err)
	if s.Attempt != 1 || len(s.Ended) != 1 || s.Ended[0].Code != 0 {
		t.Errorf("got %+v", s)
	}
}

// The command uses the Python environment of the run, before and after a reboot. Google's
// agent gets every log. Its configuration is complete even if it is written several times.
func TestVenvAndCloudLoggingOfAWholeRun(t *testing.T) {
	testkit.OnlyInAll(t, "TestRebootOfAllWorkersIsANewAttempt and TestAnyWorkerTearsDown")
	t.Parallel()
	testkit.NeedVenv(t)
	w := begin(t, "process", "v4-8", `
python -c 'import os, sys; print("in a venv:", sys.prefix == os.environ["VIRTUAL_ENV"] and sys.prefix != sys.base_prefix, os.path.relpath(sys.prefix, os.environ["HOME"]))'
touch "$VIRTUAL_ENV/attempt-$MULTIHOST_ATTEMPT"; ls "$VIRTUAL_ENV" | grep attempt
[ $MULTIHOST_ATTEMPT = 2 ] || sleep 1000`, func(o *job.JobOptions, do *submit.DetachOptions) {
		o.Run.Venv, do.CloudLogging, o.Keep = true, true, true
	}, sim.Config{})
	for _, link := range []string{
		"logs and results: https://console.cloud.google.com/storage/browser/" + sim.DefaultBucket + "/jobs/train?project=" + sim.DefaultProject,
		"Cloud Logging, all workers: https://console.cloud.google.com/logs/query;query=resource.type%3D%22gce_instance%22%20AND%0Alog_id%28%22train_log%22%29;?project=" + sim.DefaultProject,
		"Cloud Logging, worker 0 of slice 0: ",
		"%2Fvar%2Flog%2Fmultihost%2Ftrain%2Fmain_command_log_slice_0_worker_0%22",
	} {
		if !strings.Contains(w.told, link) {
			t.Errorf("no %q in what was told:\n%s", link, w.told)
		}
	}
	w.until("attempt 1 to run", running(1, 1))
	root := filepath.Join(w.dir, "workers")
	one := func(name string) string {
		paths, _ := filepath.Glob(filepath.Join(root, "*", name))
		if len(paths) != 1 {
			return ""
		}
		text, _ := os.ReadFile(paths[0])
		return string(text)
	}
	w.wait("the log of attempt 1", func() bool { return strings.Contains(w.object("main_command_log_slice_0_worker_0"), "attempt-1\n") })
	const config = "etc/google-cloud-ops-agent/config.yaml"
	w.wait("the agent to be told", func() bool { return one(config) != "" && one("state/ops-agent") == "restart\n" })
	first := one(config)
	w.inject("worker-reboot mode=power")
	s := w.until("attempt 2 to end", func(s detach.State) bool { return s.Attempt == 2 && len(s.Ended) == 1 })
	if s.Blame() != nil {
		t.Errorf("got %+v", s.Ended)
	}
	const venv = "in a venv: True .multihost/venv/train\n"
	for name, want := range map[string]string{
		"main_command_log_slice_0_worker_0":           venv + "attempt-1\n",
		"attempt-2/main_command_log_slice_0_worker_0": venv + "attempt-1\nattempt-2\n",
	} {
		if got := w.object(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
		if got := one(filepath.Join("var/log/multihost/train", strings.ReplaceAll(name, "/", "_"))); got != want {
			t.Errorf("for the agent %s is %q, want %q", name, got, want)
		}
	}
	if ends := one("var/log/multihost/train/ends_slice_0_worker_0"); !regexp.MustCompile(`(?m)^multihost: attempt 1 ended on slice 0 worker 0 .* with exit status 255: the worker was rebooted\n.* attempt 2 ended .* with exit status 0$`).MatchString(ends) {
		t.Errorf("the agent is told of the ends: %q", ends)
	}
	if second := one(config); second != first || strings.Count(second, "logging:") != 1 || strings.Count(second, "train_log:") != 1 || one("state/ops-agent") != "" {
		t.Errorf("the second boot made of\n%s\nthis, and restarted the agent %q:\n%s", first, one("state/ops-agent"), second)
	}
}

// List returns every run of a bucket. If it cannot read a run, it returns an error together
// with the other runs. It skips only runs of other zones, and objects that are no run.
func TestPsTellsOfEveryRunThatItCannotRead(t *testing.T) {
	t.Parallel()
	server, err := sim.Start(t.Context(), sim.Config{Dir: t.TempDir(), Backend: "none", Step: time.Millisecond})
	testkit.Must(t, err)
	t.Cleanup(func() { server.Close() })
	cloud := gcp.New(gcp.Config{Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true,
		TPUEndpoint: server.URL() + "/", StorageEndpoint: server.URL() + "/storage/v1/"})
	t.Cleanup(cloud.Close)
	put := func(name, text string) { simcloud.PutObject(t, server, name, text) }
	describe := func(run, zone string) string {
		return fmt.Sprintf(`{"run":%q,"project":%q,"zone":%q,"queued_resource":%q,"slices":["%s-0"],"workers_per_slice":1,"login":"ann"}`, run, sim.DefaultProject, zone, run, run)
	}
	put("good/run.json", describe("good", sim.DefaultZone))
	put("elsewhere/run.json", describe("elsewhere", "us-east5-a"))
	put("forged/run.json", describe("other", sim.DefaultZone))
	put("checkpoints/1", "x")
	put("_dir/1", "x")
	var shown strings.Builder
	queue := qr.New(cloud)
	typed := &stage.Invocation{Clock: gcp.SystemClock, Sink: event.SinkFunc(func(e event.Event) {
		if r, ok := e.(event.Result); ok {
			shown.WriteString(r.Text)
		}
	})}
	d := runs.Deps{
		Reach:  &workers.Reach{Invocation: typed, Place: provision.Place{Project: sim.DefaultProject, Zone: sim.DefaultZone}, Cloud: queue.Provider("")},
		Keeper: &record.Keeper{Of: typed, StateDir: t.TempDir()},
		Source: detach.Source{Bucket: sim.DefaultBucket, OpenBucket: func(ctx context.Context, bucket, dir string) (*detach.Bucket, error) {
			return detach.Open(ctx, cloud, bucket, dir)
		}},
	}
	err = runs.List(t.Context(), d, "", nil, true)
	if err == nil || !strings.Contains(err.Error(), `forged/run.json: it is about run "other"`) {
		t.Errorf("got error %v, want that of the forged run", err)
	}
	if err != nil && (strings.Contains(err.Error(), "elsewhere") || strings.Contains(err.Error(), "checkpoints")) {
		t.Errorf("the error is about what is no run of this zone: %v", err)
	}
	if text := shown.String(); !strings.Contains(text, "good") || !strings.Contains(text, "gone") || strings.Contains(text, "elsewhere") {
		t.Errorf("shown:\n%s", text)
	}

	// A run of this machine that somebody deleted from the bucket is no error, unless the
	// cloud has a request for the run.
	d.Bucket = ""
	record, err := json.Marshal(record.Record{Run: "deleted", Project: d.Project, Zone: d.Zone, Prefix: "deleted", Bucket: sim.DefaultBucket})
	testkit.Must(t, err)
	testkit.Must(t, os.MkdirAll(filepath.Join(d.StateDir, "runs", "deleted"), 0o700))
	testkit.Must(t, os.WriteFile(filepath.Join(d.StateDir, "runs", "deleted", "run.json"), record, 0o600))
	if err := runs.List(t.Context(), d, "", nil, false); err != nil {
		t.Errorf("a run that was deleted: %v", err)
	}
	_, err = server.Inject(sim.Fault{Name: "no-capacity"})
	testkit.Must(t, err)
	ty, err := tpu.ParseType("v4-8")
	testkit.Must(t, err)
	_, _, err = queue.Create(t.Context(), qr.Request{ID: "deleted", NodeCount: 1, NodeID: "deleted", Type: ty})
	testkit.Must(t, err)
	if err := runs.List(t.Context(), d, "", nil, false); err == nil || !strings.Contains(err.Error(), "no such run in the bucket") {
		t.Errorf("one with a queued resource: %v", err)
	}
}
