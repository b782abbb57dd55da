package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/fault"
	"multihost/internal/sim/worker"
)

// A Clock provides the time. The zero Config uses the system's clock.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Config configures a simulator. The comment on each field names the default that its
// zero value means.
type Config struct {
	Listen  string // address of the API; 127.0.0.1:0. "none": ServeHTTP only
	Project string // the only project; DefaultProject
	Zone    string // where Slices are; it offers every accelerator type; DefaultZone

	// Dir is the private directory of the simulator: state file, keys, gcloud
	// configuration, homes of workers. It is created when missing. Empty: a new one in
	// the system's temporary directory, which Close removes.
	Dir string

	// Slices exist and are READY when Start returns.
	Slices []SliceSpec

	// Step is how long each change of state takes; 300 ms.
	Step time.Duration

	// Backend is the kind of the workers: "process" (the default); "netns", which needs
	// root and worker.MaybeInit at the start of main; or "none" for an API without
	// workers, whose nodes have addresses on which nothing listens.
	Backend string

	// Workers, when set, is used in place of Backend. The server closes it.
	Workers worker.Backend

	// SSHPort is the port of all workers; 0: a free one.
	SSHPort int

	// Quota is how many TensorCores (chips for v5litepod and v6e) of one
	// generation a zone may hold; 0: no limit.
	Quota int

	// ProjectMetadata is the initial commonInstanceMetadata.
	ProjectMetadata map[string]string

	// Login requires an access token from every caller: one of the user, whose
	// application default credentials Env names, or one of a worker's metadata server.
	// Without Login no token is needed.
	Login bool

	// Secrets are the initial secrets of Secret Manager, as version 1.
	Secrets map[string]string

	// Faults are in force from the start.
	Faults []Fault

	Clock Clock // the system's
}

// The defaults of a zero Config.
const (
	DefaultProject = "multihost-sim"
	DefaultZone    = "us-central2-b"
	defaultStep    = 300 * time.Millisecond
)

// A Server is a running simulator. Its methods are safe for concurrent use.
type Server struct {
	*Cloud
	ownDir bool
	http   *http.Server
	cancel context.CancelCauseFunc
	down   chan struct{} // closed when a client asks the simulator to end
	stop   sync.Once
	asked  sync.Once
	err    error // of Close
}

// A Cloud is the state of the simulated cloud and what changes it: one lock, one clock.
// The APIs read and change it.
type Cloud struct {
	cfg     Config
	clock   Clock
	url     string
	workers worker.Backend // nil with the backend "none"
	serve   http.Handler   // of all APIs

	ctx context.Context // ends when the simulator closes
	wg  sync.WaitGroup  // everything that later, spawn and Serve started

	mu      sync.Mutex // guards the rest; never held while waiting for anything
	closing bool       // wg must not grow any more
	state   state
}

// ErrClosed is the cause of everything that Close cancels.
var ErrClosed = fault.New(fault.Unavailable, "simulator closed")

// Start starts a simulator, which runs until Close. It returns when the API answers and
// the configured slices are ready, or when ctx is done; ctx limits only the start.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s, err := newServer(cfg)
	if err != nil {
		return nil, fmt.Errorf("start simulator: %w", err)
	}
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start simulator: %w", err), s.Close())
	}
	return s, nil
}

func newServer(cfg Config) (*Server, error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Project == "" {
		cfg.Project = DefaultProject
	}
	if cfg.Zone == "" {
		cfg.Zone = DefaultZone
	}
	if cfg.Step == 0 {
		cfg.Step = defaultStep
	}
	if cfg.Clock == nil {
		cfg.Clock = systemClock{}
	}
	if !projectPattern.MatchString(cfg.Project) {
		return nil, fmt.Errorf("project %q: not a legal project id", cfg.Project)
	}
	if !zonePattern.MatchString(cfg.Zone) {
		return nil, fmt.Errorf("zone %q: not a legal zone name", cfg.Zone)
	}
	if err := checkSlices(cfg.Slices); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &Server{
		Cloud:  &Cloud{cfg: cfg, clock: cfg.Clock, ctx: ctx},
		cancel: cancel,
		down:   make(chan struct{}),
	}
	s.serve = s
	return s, nil
}

func (s *Server) begin(ctx context.Context) error {
	if err := s.makeDir(); err != nil {
		return err
	}
	if err := s.makeBackend(); err != nil {
		return err
	}
	if err := s.listen(ctx); err != nil {
		return err
	}
	s.state = s.initialState()
	if s.cfg.Login {
		if err := s.Login(); err != nil {
			return err
		}
	}
	for _, f := range s.cfg.Faults {
		if _, err := s.Inject(f); err != nil {
			return err
		}
	}
	if err := s.startPreset(ctx); err != nil {
		return err
	}
	return s.writeStateFile()
}

// listen opens the address of the API and serves it.
func (s *Server) listen(ctx context.Context) error {
	if s.cfg.Listen == "none" {
		s.url = "http://sim.invalid"
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return err
	}
	s.url = "http://" + listener.Addr().String()
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second, BaseContext: func(net.Listener) context.Context { return s.ctx }}
	s.wg.Go(func() { _ = s.http.Serve(listener) }) // ends with ErrServerClosed
	return nil
}

func (s *Server) makeDir() error {
	if s.cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "multihost-sim-")
		if err != nil {
			return err
		}
		s.cfg.Dir, s.ownDir = dir, true
	}
	dir, err := filepath.Abs(s.cfg.Dir)
	if err != nil {
		return err
	}
	s.cfg.Dir = dir
	if other, err := Open(dir); err == nil {
		return fmt.Errorf("use directory %q: %w (process %d)", dir, ErrRunning, other.PID())
	}
	for _, d := range []string{dir, s.gcloudDir(), s.workersDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) gcloudDir() string { return filepath.Join(s.cfg.Dir, "gcloud") }
func (s *Cloud) workersDir() string { return workersDir(s.cfg.Dir) }

func workersDir(dir string) string { return filepath.Join(dir, "workers") }

// URL returns the URL of the API, without a slash at the end.
func (s *Server) URL() string { return s.url }

// Dir returns the private directory of the simulator.
func (s *Server) Dir() string { return s.cfg.Dir }

// SSHPort returns the SSH port of all workers; 0 without workers.
func (s *Server) SSHPort() int {
	if s.workers == nil {
		return 0
	}
	return s.workers.Port()
}

// Down returns a channel that is closed when a client asks the simulator to end; the
// process that started it then calls Close.
func (s *Server) Down() <-chan struct{} { return s.down }

// Env returns the environment variables that make multihost and an unmodified gcloud use
// this simulator and nothing else.
func (s *Server) Env() map[string]string {
	env := map[string]string{
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU":                  s.url + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE":              s.url + "/compute/v1/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_OSLOGIN":              s.url + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE":              s.url + "/storage/v1/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER":        s.url + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_SERVICEUSAGE":         s.url + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER": s.url + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDQUOTAS":          s.url + "/",
		"CLOUDSDK_AUTH_DISABLE_CREDENTIALS":                    "true",
		"CLOUDSDK_CORE_PROJECT":                                s.cfg.Project,
		"CLOUDSDK_COMPUTE_ZONE":                                s.cfg.Zone,
		"CLOUDSDK_COMPUTE_REGION":                              regionOf(s.cfg.Zone),
		"CLOUDSDK_CONFIG":                                      s.gcloudDir(),
		"CLOUDSDK_CORE_DISABLE_PROMPTS":                        "true",
		"CLOUDSDK_CORE_DISABLE_USAGE_REPORTING":                "true",
		"CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK":      "true",
		"MULTIHOST_FLAG_PROJECT":                               s.cfg.Project, // takes precedence over a multihost.yaml
		"MULTIHOST_FLAG_ZONE":                                  s.cfg.Zone,
		"MULTIHOST_FLAG_IDENTITY_FILE":                         filepath.Join(s.cfg.Dir, "google_compute_engine"),
		"MULTIHOST_FLAG_KNOWN_HOSTS":                           filepath.Join(s.cfg.Dir, "known_hosts"),
	}
	if s.cfg.Login {
		delete(env, "CLOUDSDK_AUTH_DISABLE_CREDENTIALS")
		env["GOOGLE_APPLICATION_CREDENTIALS"] = s.credentialsFile()
	}
	if port := s.SSHPort(); port > 0 {
		env["MULTIHOST_FLAG_SSH_PORT"] = fmt.Sprint(port)
		env["MULTIHOST_FLAG_IAP_ENDPOINT"] = "ws" + strings.TrimPrefix(s.url, "http") + strings.TrimSuffix(relayPath, "/")
	}
	return env
}

// Close ends the simulator. When it returns, no request, worker or goroutine of the
// simulator is left. It may be called twice.
func (s *Server) Close() error {
	s.stop.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		s.cancel(ErrClosed)
		s.requestDown()
		var errs []error
		if s.http != nil {
			errs = append(errs, s.http.Close())
		}
		s.wg.Wait()
		if s.workers != nil {
			errs = append(errs, s.workers.Close())
		}
		errs = append(errs, s.removeStateFile())
		if s.ownDir {
			errs = append(errs, os.RemoveAll(s.cfg.Dir))
		}
		s.err = errors.Join(errs...)
	})
	return s.err
}

func (s *Server) requestDown() { s.asked.Do(func() { close(s.down) }) }

// enter registers the start of a request; it reports false if the server is closing.
// Otherwise the caller must call s.wg.Done at the end of the request.
func (s *Cloud) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.wg.Add(1)
	return true
}

// spawn runs f on a goroutine that Close waits for; f must end soon after s.ctx does. The
// caller holds s.mu; f does not.
func (s *Cloud) spawn(f func()) {
	if !s.closing {
		s.wg.Go(f)
	}
}

// later runs f after d with s.mu held, unless the server is closed first. The caller
// holds s.mu.
func (s *Cloud) later(d time.Duration, f func()) {
	s.spawn(func() {
		if d > 0 {
			select {
			case <-s.clock.After(d):
			case <-s.ctx.Done():
				return
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ctx.Err() == nil {
			f()
		}
	})
}

// nextStep runs f after one Config.Step plus the delay of the fault slow-operations.
func (s *Cloud) nextStep(f func()) { s.later(s.cfg.Step+s.extraDelay(), f) }

// A Request is one API request that the server has received.
type Request struct {
	Method string
	Path   string // with query
	Body   string
	Code   int // of the answer; 0 if the connection was dropped
}

// keptRequests limits the log of a simulator that runs for weeks.
const keptRequests = 10_000

// Requests returns the API requests so far, oldest first, at most the last 10,000. It
// does not include requests of the control endpoint.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.state.requests)
}

func (s *Cloud) logRequest(r Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.counts[r.Method]++
	s.state.total++
	s.state.requests = append(s.state.requests, r)
	if extra := len(s.state.requests) - keptRequests; extra > 0 {
		s.state.requests = slices.Delete(s.state.requests, 0, extra)
	}
}

// An answer is the result of a handler: JSON, raw bytes with a code, or an error.
type answer struct {
	json []byte
	err  *apiError

	raw    []byte
	header http.Header
	code   int // 0: 200 with json
}

// An endpoint is one of the APIs that the simulator serves.
type endpoint struct {
	name    string
	has     func(*http.Request) bool
	limit   int // bytes of a request's body
	uploads bool
	old     bool // its errors have the form of Google's older APIs
	serve   func(s *Server, r *http.Request, body []byte, who caller) answer
}

// endpointOf returns the API that a request is for: the first that has it.
func endpointOf(r *http.Request) endpoint {
	for _, a := range endpoints {
		if a.has(r) {
			return a
		}
	}
	return tpuEndpoint
}

var endpoints = []endpoint{
	{name: "storage", has: isStorage, limit: maxObject, uploads: true, old: true, serve: func(s *Server, r *http.Request, body []byte, who caller) answer {
		return s.serveStorage(r, body, who)
	}},
	{name: "compute", has: isCompute, limit: maxBody, old: true, serve: func(s *Server, r *http.Request, body []byte, who caller) answer {
		return s.serveCompute(r, body, who)
	}},
	{name: "oslogin", has: isOSLogin, limit: maxBody, serve: func(s *Server, r *http.Request, body []byte, _ caller) answer {
		return s.serveJSON(r, body, s.dispatchOSLogin)
	}},
	{name: "secrets", has: isSecrets, limit: maxBody, serve: func(s *Server, r *http.Request, body []byte, who caller) answer {
		return s.serveJSON(r, body, s.dispatchSecrets(who))
	}},
	{name: "project", has: isProject, limit: maxBody, serve: func(s *Server, r *http.Request, body []byte, who caller) answer {
		return s.serveJSON(r, body, s.dispatchProject(who))
	}},
}

var tpuEndpoint = endpoint{name: "tpu", limit: maxBody, serve: func(s *Server, r *http.Request, body []byte, who caller) answer {
	return s.serveJSON(r, body, s.dispatchTPU(who))
}}

func isCompute(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/compute/") }

// ServeHTTP serves all APIs. It logs every request, applies the faults in force and
// passes the request to the API that its path names.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.wg.Done()
	if strings.HasPrefix(r.URL.Path, "/sim/v1/") {
		s.serveControl(w, r)
		return
	}
	if strings.HasPrefix(r.URL.Path, relayPath) {
		s.serveRelay(w, r)
		return
	}
	if r.URL.Path == tokenPath {
		s.serveToken(w, r)
		return
	}
	api := endpointOf(r)
	body, err := readBody(r, api.limit)
	logged := Request{Method: r.Method, Path: r.URL.RequestURI()}
	if !api.uploads { // a simulator that runs for weeks must not keep uploads
		logged.Body = string(body)
	}
	who, refused := s.callerOf(r)
	if refused == nil {
		refused = who.checkScopes(r)
	}
	var a answer
	var verdict requestVerdict
	if err != nil {
		a.err = asAPIError(err)
	} else if verdict = s.meetFaults(r); verdict.err != nil {
		a.err = verdict.err
	} else if !s.pause(r.Context(), verdict.delay) {
		return
	} else if verdict.skip {
		// The connection is cut below.
	} else if refused != nil {
		a.err = refused
	} else {
		a = api.serve(s, r, body, who)
	}
	if verdict.drop {
		s.logRequest(logged)
		panic(http.ErrAbortHandler) // net/http's way to cut the connection
	}
	logged.Code = cmp.Or(a.code, http.StatusOK)
	if a.err != nil {
		logged.Code = a.err.Code
	}
	s.logRequest(logged)
	if a.err != nil {
		writeError(w, a.err, api.old)
		return
	}
	if a.code != 0 {
		maps.Copy(w.Header(), a.header)
		w.WriteHeader(a.code)
		_, _ = w.Write(a.raw) // an error means that the client is gone
		return
	}
	writeJSON(w, a.json)
}

func (s *Cloud) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-s.clock.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func writeJSON(w http.ResponseWriter, b []byte) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_, _ = w.Write(append(b, '\n')) // an error means that the client is gone
}

func asAPIError(err error) *apiError {
	if e := (*apiError)(nil); errors.As(err, &e) {
		return e
	}
	return errorf(http.StatusInternalServerError, "An internal error has occurred: %v", err)
}
