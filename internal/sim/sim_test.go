package sim_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	tpuv2 "google.golang.org/api/tpu/v2"
	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/testkit"
)

const parent = "projects/" + sim.DefaultProject + "/locations/" + sim.DefaultZone

// fakeWorkers is a worker.Backend whose machines do not answer.
type fakeWorkers struct {
	mu      sync.Mutex
	running map[string]*fakeMachine
	made    int
}

func (b *fakeWorkers) Start(_ context.Context, spec worker.Spec) (worker.Machine, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running == nil {
		b.running = map[string]*fakeMachine{}
	}
	b.made++
	m := &fakeMachine{backend: b, spec: spec, addr: fmt.Sprintf("127.9.%d.%d", b.made/250, b.made%250+1), faults: spec.Faults}
	b.running[spec.Hostname] = m
	return m, nil
}

func (b *fakeWorkers) Port() int { return 22022 }

func (b *fakeWorkers) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = nil
	return nil
}

func (b *fakeWorkers) find(node string, index int) *fakeMachine {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.running {
		if m.spec.Node == node && m.spec.Index == index {
			return m
		}
	}
	return nil
}

type fakeMachine struct {
	backend *fakeWorkers
	spec    worker.Spec
	addr    string
	mu      sync.Mutex
	faults  []worker.Fault
	reboots int
}

func (m *fakeMachine) Addr() string     { return m.addr }
func (m *fakeMachine) Hostname() string { return m.spec.Hostname }
func (m *fakeMachine) HostKeys() map[string]string {
	return map[string]string{"ssh-ed25519": base64.StdEncoding.EncodeToString([]byte(m.spec.Hostname))}
}

func (m *fakeMachine) Reboot(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reboots++
	return nil
}

func (m *fakeMachine) SetFault(f worker.Fault) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, f)
	return nil
}

func (m *fakeMachine) Stop(context.Context) error {
	m.backend.mu.Lock()
	defer m.backend.mu.Unlock()
	delete(m.backend.running, m.spec.Hostname)
	return nil
}

// start runs a simulator that changes state every millisecond.
func start(t *testing.T, change ...func(*sim.Config)) (*sim.Server, *fakeWorkers) {
	t.Helper()
	workers := &fakeWorkers{}
	cfg := sim.Config{Dir: t.TempDir(), Step: time.Millisecond, Workers: workers}
	for _, f := range change {
		f(&cfg)
	}
	s, err := sim.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, workers
}

func preset(t *testing.T, text string) func(*sim.Config) {
	t.Helper()
	specs, err := sim.ParseSlices(text)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *sim.Config) { c.Slices = specs }
}

func alpha(t *testing.T, s *sim.Server) *tpualpha.ProjectsLocationsService {
	t.Helper()
	svc, err := tpualpha.NewService(t.Context(), option.WithEndpoint(s.URL()), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	return svc.Projects.Locations
}

func v2(t *testing.T, s *sim.Server) *tpuv2.ProjectsLocationsService {
	t.Helper()
	svc, err := tpuv2.NewService(t.Context(), option.WithEndpoint(s.URL()), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	return svc.Projects.Locations
}

func request(count int64, kind string) *tpualpha.QueuedResource {
	spec := &tpualpha.NodeSpec{Parent: parent, Node: &tpualpha.Node{AcceleratorType: kind, RuntimeVersion: "tpu-ubuntu2204-base"}}
	if count > 1 {
		spec.MultiNodeParams = &tpualpha.MultiNodeParams{NodeCount: count}
	} else {
		spec.NodeId = "single"
	}
	return &tpualpha.QueuedResource{Tpu: &tpualpha.Tpu{NodeSpec: []*tpualpha.NodeSpec{spec}}}
}

// waitState waits until the queued resource has a state. "" means that it does not exist.
func waitState(t *testing.T, s *sim.Server, id, state string) {
	t.Helper()
	last := "?"
	testkit.Eventually(t, id+" "+state, func() bool {
		last = ""
		for _, q := range s.Status().Queued {
			if q.ID == id {
				last = q.State
			}
		}
		return last == state
	})
}

func wantError(t *testing.T, err error, code int, text string) {
	t.Helper()
	var e *googleapi.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Body, text) {
		t.Errorf("got error %v, want code %d with %q", err, code, text)
	}
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func inject(t *testing.T, s *sim.Server, text string) int {
	t.Helper()
	f, err := sim.ParseFault(text)
	if err != nil {
		t.Fatal(err)
	}
	id, err := s.Inject(f)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestAClientMayAskForCompactJSON reads one answer in the form for people, and in the one
// that Google's clients ask for.
func TestAClientMayAskForCompactJSON(t *testing.T) {
	s, _ := start(t)
	for query, want := range map[string]bool{"": true, "?prettyPrint=false": false} {
		resp, err := http.Get(s.URL() + "/v2alpha1/projects/" + sim.DefaultProject + "/locations" + query)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), `"locationId"`) || strings.Contains(string(body), "\n  ") != want {
			t.Errorf("%q: %s, %v", query, body, err)
		}
	}
}
