// Package simcloud starts a simulated cloud for tests of packages that call the cloud's
// APIs. Calls go through a proxy, so a test can intercept them. The clock of the calls runs
// fast.
package simcloud

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

	"multihost/internal/gcp"
	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/testkit"
)

// A Cloud is a simulator and a client of its APIs. It ends with the test.
type Cloud struct {
	T   *testing.T
	Sim *sim.Server
	GCP *gcp.Client
	Log *testkit.Recorder // messages of the client

	mu        sync.Mutex
	interpose func(w http.ResponseWriter, r *http.Request) (done bool)
}

const (
	Zone   = sim.DefaultZone   // of the client
	Bucket = sim.DefaultBucket // the simulator's only bucket
)

// Start starts a simulator whose states change every few milliseconds, and makes the test
// parallel. The client's clock runs fast, so that pauses of seconds take little time. If
// cfg has no Workers, the workers have only host keys. One slice already exists, called
// other. It is on the network mtu9k, and belongs to no queued resource.
func Start(t *testing.T, cfg sim.Config) *Cloud {
	t.Helper()
	t.Parallel()
	if cfg.Step == 0 {
		cfg.Step = 5 * time.Millisecond
	}
	if cfg.Workers == nil {
		cfg.Workers = &Backend{}
	}
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
	c := &Cloud{T: t, Sim: server, Log: &testkit.Recorder{}}
	target, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {
		panic(http.ErrAbortHandler) // the simulator drops the connection, so the proxy drops it too
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
	c.GCP = gcp.New(gcp.Config{
		Project: sim.DefaultProject, Zone: Zone, DisableAuth: true,
		TPUEndpoint: proxy.URL + "/", ComputeEndpoint: proxy.URL + "/compute/v1/", OSLoginEndpoint: proxy.URL + "/", StorageEndpoint: proxy.URL + "/storage/v1/", ContainerEndpoint: proxy.URL + "/",
		Clock: testkit.NewFastClock(), Sink: c.Log,
	})
	return c
}

// Intercept passes each call to f before the simulator. f returns true if it has answered
// the call.
func (c *Cloud) Intercept(f func(w http.ResponseWriter, r *http.Request) (done bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interpose = f
}

// Fault sets a fault of the simulator.
func (c *Cloud) Fault(f sim.Fault) {
	c.T.Helper()
	if _, err := c.Sim.Inject(f); err != nil {
		c.T.Fatal(err)
	}
}

// Put writes an object of Bucket.
func (c *Cloud) Put(name, text string) {
	c.T.Helper()
	PutObject(c.T, c.Sim, name, text)
}

// PutObject writes an object to the bucket of a simulator.
func PutObject(t testing.TB, to http.Handler, name, text string) {
	t.Helper()
	answer := httptest.NewRecorder()
	to.ServeHTTP(answer, httptest.NewRequest(http.MethodPost,
		"/upload/storage/v1/b/"+Bucket+"/o?uploadType=media&name="+url.QueryEscape(name), strings.NewReader(text)))
	if answer.Code != http.StatusOK {
		t.Errorf("put %s: %s", name, answer.Body)
	}
}

// Calls counts the requests of a method whose path contains part.
func (c *Cloud) Calls(method, part string) int {
	n := 0
	for _, r := range c.Sim.Requests() {
		if r.Method == method && strings.Contains(r.Path, part) {
			n++
		}
	}
	return n
}

// A Backend makes workers with host keys only.
type Backend struct {
	NoKeys bool // even without host keys
}

// Port implements worker.Backend.
func (*Backend) Port() int { return 22 }

// Close implements worker.Backend.
func (*Backend) Close() error { return nil }

// Start implements worker.Backend.
func (b *Backend) Start(_ context.Context, spec worker.Spec) (worker.Machine, error) {
	return &machine{spec: spec, noKeys: b.NoKeys}, nil
}

type machine struct {
	spec   worker.Spec
	noKeys bool
}

func (m *machine) Addr() string               { return "127.0.0.1" }
func (m *machine) Hostname() string           { return m.spec.Hostname }
func (*machine) Reboot(context.Context) error { return nil }
func (*machine) SetFault(worker.Fault) error  { return nil }
func (*machine) Stop(context.Context) error   { return nil }

func (m *machine) HostKeys() map[string]string {
	if m.noKeys {
		return nil
	}
	return map[string]string{
		"ssh-ed25519": WireKey("ssh-ed25519", m.spec.Hostname),
		"ssh-rsa":     WireKey("ssh-rsa", m.spec.Hostname),
	}
}

// WireKey returns the base64 form of bytes that begin like a public key.
func WireKey(algorithm, rest string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(algorithm)))
	return base64.StdEncoding.EncodeToString(append(append(b, algorithm...), rest...))
}

// PublicKey returns a public key of owner.
func PublicKey(owner string) string {
	return "ssh-ed25519 " + WireKey("ssh-ed25519", "key of "+owner)
}
