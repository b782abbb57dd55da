package qr_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/testkit"
)

// A cloud is a simulator, a client that talks to it through a proxy that tests
// can interpose on, and what the client said.
type cloud struct {
	*qr.Client
	t   *testing.T
	sim *sim.Server
	gcp *gcp.Client
	log *recorder

	mu        sync.Mutex
	interpose func(w http.ResponseWriter, r *http.Request) (done bool)
}

const testZone = sim.DefaultZone

// start runs a simulator whose states change every few milliseconds. The
// client's clock runs fast, so that its pauses of seconds take as little.
func start(t *testing.T, cfg sim.Config) *cloud {
	t.Helper()
	t.Parallel()
	if cfg.Step == 0 {
		cfg.Step = 5 * time.Millisecond
	}
	if cfg.Workers == nil {
		cfg.Workers = &fakeBackend{}
	}
	// A slice of somebody else; it also makes the network that requests name.
	cfg.Slices = append(cfg.Slices, sim.SliceSpec{Name: "other", Count: 1, Type: "v4-8", Network: "mtu9k", Foreign: true})
	cfg.Dir = t.TempDir()
	server, err := sim.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	c := &cloud{t: t, sim: server, log: &recorder{}}
	target, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {
		panic(http.ErrAbortHandler) // a dropped connection stays a dropped connection
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		interpose := c.interpose
		c.mu.Unlock()
		if interpose != nil && interpose(w, r) {
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	c.gcp = gcp.New(gcp.Config{
		Project: sim.DefaultProject, Zone: testZone, DisableAuth: true,
		TPUEndpoint: proxy.URL + "/", ComputeEndpoint: proxy.URL + "/compute/v1/", OSLoginEndpoint: proxy.URL + "/",
		Clock: testkit.NewFastClock(), Sink: c.log,
	})
	c.Client = qr.New(c.gcp)
	return c
}

func (c *cloud) intercept(f func(w http.ResponseWriter, r *http.Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interpose = f
}

func (c *cloud) fault(f sim.Fault) {
	c.t.Helper()
	if _, err := c.sim.Inject(f); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cloud) create(r qr.Request) {
	c.t.Helper()
	if _, created, err := c.Create(c.t.Context(), r); err != nil || !created {
		c.t.Fatalf("create: created %v, %v", created, err)
	}
}

// ready makes a queued resource and waits until it is ready.
func (c *cloud) ready(r qr.Request) qr.Resource {
	c.t.Helper()
	c.create(r)
	res, _, err := c.Wait(c.t.Context(), r.ID, quick(nil))
	if err != nil {
		c.t.Fatal(err)
	}
	return res
}

// calls counts the requests of a method whose path contains part.
func (c *cloud) calls(method, part string) int {
	n := 0
	for _, r := range c.sim.Requests() {
		if r.Method == method && strings.Contains(r.Path, part) {
			n++
		}
	}
	return n
}

// quick are options of a wait that reads often.
func quick(change func(*qr.WaitOptions)) qr.WaitOptions {
	o := qr.WaitOptions{Poll: gcp.Backoff{First: 200 * time.Millisecond, Max: 400 * time.Millisecond}}
	if change != nil {
		change(&o)
	}
	return o
}

// A recorder also knows the events of this package.
type recorder struct{ testkit.Recorder }

// states lists the states of a resource in the order in which they were said.
func (r *recorder) states(name string) (states []string) {
	for _, e := range r.Events() {
		if s, ok := e.(event.State); ok && s.Name == name {
			states = append(states, s.State)
		}
	}
	return states
}

// fakeBackend makes workers that have host keys and nothing else.
type fakeBackend struct {
	noKeys bool
}

func (*fakeBackend) Port() int    { return 22 }
func (*fakeBackend) Close() error { return nil }

func (b *fakeBackend) Start(_ context.Context, spec worker.Spec) (worker.Machine, error) {
	return &fakeMachine{spec: spec, noKeys: b.noKeys}, nil
}

type fakeMachine struct {
	spec   worker.Spec
	noKeys bool
}

func (m *fakeMachine) Addr() string               { return "127.0.0.1" }
func (m *fakeMachine) Hostname() string           { return m.spec.Hostname }
func (*fakeMachine) Reboot(context.Context) error { return nil }
func (*fakeMachine) SetFault(worker.Fault) error  { return nil }
func (*fakeMachine) Stop(context.Context) error   { return nil }
func (m *fakeMachine) HostKeys() map[string]string {
	if m.noKeys {
		return nil
	}
	return map[string]string{
		"ssh-ed25519": wireKey("ssh-ed25519", m.spec.Hostname),
		"ssh-rsa":     wireKey("ssh-rsa", m.spec.Hostname),
	}
}

// wireKey is the base64 form of something that begins as a public key does.
func wireKey(algorithm, rest string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(algorithm)))
	return base64.StdEncoding.EncodeToString(append(append(b, algorithm...), rest...))
}
