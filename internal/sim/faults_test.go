package sim_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/googleapi"
	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/testkit"
)

func wantBody(t *testing.T, status int, body, want string) {
	t.Helper()
	if status != http.StatusBadRequest || !strings.Contains(body, want) || !strings.Contains(body, `"domain": "global"`) {
		t.Errorf("got %d %s, want 400 with %q", status, body, want)
	}
}

func TestFaultTextIsReadBack(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"no-capacity", "qr-failed qr=q state=PROVISIONING message='it'\"'\"'s full'", "qr-suspended initiator=USER",
		"api-error method=POST path=*/nodes n=3 code=429 retry-after=2s", "expired-token n=all", "drop-reply",
		"preempt node=t-* vanish=true", "quota cores=16", "worker-cut node=t worker=1 n=2 mode=in bytes=5000",
		"worker-refuse-auth duration=10s", "foreign-node node=x type=v4-8",
	} {
		f, err := sim.ParseFault(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		again, err := sim.ParseFault(f.String())
		if err != nil || again != f {
			t.Errorf("%s: written as %s, read as %+v, %v", text, f, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                            "no name given",
		"nocapacity":                  "did you mean no-capacity?",
		"preempt":                     "node= is missing",
		"preempt node=a qr=b":         "unknown argument",
		"api-error code=200":          "not between 400 and 599",
		"worker-cut bytes=1 mode=up":  "none of in, out",
		"slow-api delay=fast":         "delay=fast",
		"qr-failed state=SOMEWHERE":   "state",
		"worker-unreachable worker=x": "not a number",
	} {
		if _, err := sim.ParseFault(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestEveryFaultIsDocumentedAndCanBeWritten(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"node": "t", "worker": "0", "code": "503", "delay": "1ms", "cores": "8", "type": "v4-8", "bytes": "1", "setting": "net.core.somaxconn", "duration": "1s", "permission": "storage.objects.get",
		"service": "tpu.googleapis.com", "group": "g", "state": "ACTIVE_DEGRADED", "pod": "p",
	}
	for _, d := range sim.Faults() {
		text := d.Name
		for _, key := range d.Required {
			text += " " + key + "=" + values[key]
		}
		switch d.Name {
		case "worker-refuse-auth":
			text += " n=1"
		case "worker-shell":
			text = d.Name + " setting=/bin/dash"
		}
		if _, err := sim.ParseFault(text); err != nil || d.What == "" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestAPIErrorsForTheNextCalls(t *testing.T) {
	t.Parallel()
	s, _ := start(t, preset(t, "t:1xv4-8"))
	svc := alpha(t, s)
	inject(t, s, "api-error code=429 n=2 path=*/nodes retry-after=3s")
	for range 2 {
		_, err := svc.Nodes.List(parent).Do()
		wantError(t, err, 429, "RESOURCE_EXHAUSTED")
		var e *googleapi.Error
		if errors.As(err, &e) && e.Header.Get("Retry-After") != "3" {
			t.Errorf("got Retry-After %q", e.Header.Get("Retry-After"))
		}
	}
	if _, err := svc.Nodes.List(parent).Do(); err != nil {
		t.Errorf("third call: %v", err)
	}
	inject(t, s, "expired-token")
	_, err := svc.Nodes.List(parent).Do()
	wantError(t, err, 401, "UNAUTHENTICATED")
	inject(t, s, "no-guest-attributes")
	_, err = svc.Nodes.GetGuestAttributes(parent+"/nodes/t", &tpualpha.GetGuestAttributesRequest{}).Do()
	wantError(t, err, 400, "Guest attributes endpoint access is disabled")
}

func TestOperationError(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	svc := alpha(t, s)
	inject(t, s, "op-error code=500")
	op, err := svc.QueuedResources.Create(parent, request(1, "v4-8")).QueuedResourceId("q").Do()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "operation", func() bool {
		op, err = svc.Operations.Get(op.Name).Do()
		return err == nil && op.Done
	})
	if op.Error == nil || op.Error.Code != 13 || op.Error.Message != "an internal error has occurred" {
		t.Errorf("got %+v", op.Error)
	}
}

func TestWorkerFaultsReachPresentAndFutureWorkers(t *testing.T) {
	t.Parallel()
	s, workers := start(t, preset(t, "t:1xv4-16"))
	inject(t, s, "worker-refuse-auth duration=2s worker=1")
	if got := workers.find("t", 0).faults; got != nil {
		t.Errorf("worker 0 has %v", got)
	}
	want := []worker.Fault{{Kind: worker.RefuseAuth, Duration: 2 * time.Second}}
	if d := cmp.Diff(want, workers.find("t", 1).faults); d != "" {
		t.Error(d)
	}
	inject(t, s, "foreign-node node=t-7 type=v4-16")
	testkit.Eventually(t, "foreign node", func() bool { return workers.find("t-7", 1) != nil })
	if d := cmp.Diff(want, workers.find("t-7", 1).faults); d != "" {
		t.Error(d)
	}
	if n, err := s.Clear("worker-refuse-auth"); n != 1 || err != nil {
		t.Errorf("clear: %d, %v", n, err)
	}
	if got := workers.find("t", 1).faults; len(got) != 2 || got[1].Kind != worker.Clear {
		t.Errorf("after clear: %v", got)
	}
}

func TestStuckDelete(t *testing.T) {
	t.Parallel()
	s, _ := start(t, preset(t, "t:1xv4-8"))
	svc := alpha(t, s)
	inject(t, s, "qr-suspended qr=t")
	waitState(t, s, "t", "SUSPENDED")
	inject(t, s, "delete-stuck")
	op, err := svc.QueuedResources.Delete(parent + "/queuedResources/t").Force(true).Do()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "operation", func() bool {
		op, err = svc.Operations.Get(op.Name).Do()
		return err == nil && op.Done
	})
	waitState(t, s, "t", "SUSPENDED")
	if _, err := svc.QueuedResources.Delete(parent + "/queuedResources/t").Force(true).Do(); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, "t", "")
}

func TestMaintenance(t *testing.T) {
	t.Parallel()
	s, _ := start(t, preset(t, "t:1xv4-8"))
	inject(t, s, "maintenance node=t")
	n, err := alpha(t, s).Nodes.Get(parent + "/nodes/t").Do()
	if err != nil || n.Health != "UNHEALTHY_MAINTENANCE" || n.UpcomingMaintenance.MaintenanceStatus != "ONGOING" {
		t.Errorf("got %+v, %v", n, err)
	}
}

func TestClientFindsControlsAndEndsTheSimulator(t *testing.T) {
	t.Parallel()
	s, _ := start(t, preset(t, "t:2xv4-8"))
	if info, err := os.Stat(filepath.Join(s.Dir(), "sim.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("state file: %v, %v", info, err)
	}
	c, err := sim.Open(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(s.Env(), c.Env()); d != "" {
		t.Error(d)
	}
	if _, err := sim.Start(t.Context(), sim.Config{Dir: s.Dir(), Backend: "none"}); !errors.Is(err, sim.ErrRunning) {
		t.Errorf("a second simulator in one directory: %v", err)
	}
	id, err := c.Fault(t.Context(), "no-capacity qr=x")
	if err != nil || id == 0 {
		t.Fatalf("fault: %d, %v", id, err)
	}
	if _, err := c.Fault(t.Context(), "preempt node=nope"); err == nil || !strings.Contains(err.Error(), "there is no node") {
		t.Errorf("got %v", err)
	}
	st, err := c.Status(t.Context())
	if err != nil || len(st.Nodes) != 2 || st.Nodes[1].ID != "t-1" || len(st.Faults) != 1 || st.Faults[0].Fault != "no-capacity qr=x" || len(st.Nodes[0].Workers) != 1 {
		t.Errorf("got %+v, %v", st, err)
	}
	if n, err := c.Clear(t.Context(), "all"); n != 1 || err != nil {
		t.Errorf("clear: %d, %v", n, err)
	}
	done := make(chan error)
	go func() { <-s.Down(); done <- s.Close() }()
	if err := c.Down(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := sim.Open(s.Dir()); !errors.Is(err, sim.ErrNotRunning) {
		t.Errorf("after the end: %v", err)
	}
}

func TestStateOfADeadSimulatorIsCleaned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "sim.json")
	// No process has this number: it is above the kernel's largest pid_max.
	if err := os.WriteFile(file, []byte(`{"url":"http://127.0.0.1:1","pid":4194305}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sim.Open(dir); !errors.Is(err, sim.ErrNotRunning) || !strings.Contains(err.Error(), "is dead") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
}

func TestParseSlices(t *testing.T) {
	t.Parallel()
	got, err := sim.ParseSlices("v4:2xv4-16,solo:1xv5litepod-8:foreign old:1xv2-8:network=mtu9k")
	want := []sim.SliceSpec{
		{Name: "v4", Count: 2, Type: "v4-16"}, {Name: "solo", Count: 1, Type: "v5litepod-8", Foreign: true},
		{Name: "old", Count: 1, Type: "v2-8", Network: "mtu9k"},
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	for _, bad := range []string{"", "t", "t:v4-8", "t:0xv4-8", "t:2xv4-9", "T:1xv4-8", "t:2xv2-8", "t:1xv4-8:blue", "t:1xtpu7x-8", "t:2xv4-8,t-1:1xv4-8"} {
		if _, err := sim.ParseSlices(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	if _, err := alpha(t, s).QueuedResources.Create(parent, request(1, "v4-8")).QueuedResourceId("q").Do(); err != nil {
		t.Fatal(err)
	}
	all := s.Requests()
	if len(all) != 1 || all[0].Method != "POST" || !strings.Contains(all[0].Path, "queuedResourceId=q") || !strings.Contains(all[0].Body, "single") || all[0].Code != 200 {
		t.Errorf("got %+v", all)
	}
}
