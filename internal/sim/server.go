package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/computeapi"
	"multihost/internal/sim/containerapi"
	"multihost/internal/sim/groups"
	"multihost/internal/sim/projectapi"
	"multihost/internal/sim/registry"
	"multihost/internal/sim/storageapi"
	"multihost/internal/sim/tpuapi"
	"multihost/internal/sim/wire"
	"multihost/internal/sim/worker"
)

// A Server is a running simulator. Its methods are safe for concurrent use.
type Server struct {
	*cloud.Cloud
	ownDir bool
	kubes  *kubernetes
	images *registry.Registry
	http   *http.Server
	cancel context.CancelCauseFunc
	down   chan struct{} // closed when a client asks the simulator to end
	stop   sync.Once
	asked  sync.Once
	err    error
}

// Start starts a simulator, which runs until Close. It returns when the API answers and the
// configured slices are ready, or when ctx is done. ctx limits only the start.
func Start(ctx context.Context, cfg cloud.Config) (*Server, error) {
	s, err := newServer(cfg)
	if err != nil {
		return nil, fmt.Errorf("start simulator: %w", err)
	}
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start simulator: %w", err), s.Close())
	}
	return s, nil
}

func newServer(cfg cloud.Config) (*Server, error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Project == "" {
		cfg.Project = cloud.DefaultProject
	}
	if cfg.Zone == "" {
		cfg.Zone = cloud.DefaultZone
	}
	if cfg.Step == 0 {
		cfg.Step = cloud.DefaultStep
	}
	if cfg.Clock == nil {
		cfg.Clock = cloud.SystemClock{}
	}
	if !cloud.ProjectPattern.MatchString(cfg.Project) {
		return nil, fmt.Errorf("project %q: not a legal project id", cfg.Project)
	}
	if !cloud.ZonePattern.MatchString(cfg.Zone) {
		return nil, fmt.Errorf("zone %q: not a legal zone name", cfg.Zone)
	}
	if err := cloud.CheckSlices(cfg.Slices); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &Server{
		Cloud:  &cloud.Cloud{Config: cfg, Clock: cfg.Clock, Ctx: ctx},
		cancel: cancel,
		down:   make(chan struct{}),
		images: registry.New(),
	}
	s.Serve = s
	return s, nil
}

func (s *Server) begin(ctx context.Context) error {
	if err := s.makeDir(); err != nil {
		return err
	}
	if err := s.Slices().MakeBackend(); err != nil {
		return err
	}
	s.kubes = &kubernetes{dir: filepath.Join(s.Config.Dir, "clusters"), agent: s.Config.Agent, images: s.images}
	if _, ok := s.Workers.(worker.Claimer); ok {
		s.kubes.backend = s.Workers // pods are machines with namespaces, as TPU VMs are
	}
	s.Kubernetes = s.kubes
	if err := s.listen(ctx); err != nil {
		return err
	}
	s.State = s.InitialState()
	if s.Config.Login {
		if err := s.Login(); err != nil {
			return err
		}
	}
	for _, f := range s.Config.Faults {
		if _, err := s.Inject(f); err != nil {
			return err
		}
	}
	if err := s.Slices().StartPreset(ctx); err != nil {
		return err
	}
	return s.writeStateFile()
}

// listen opens the address of the API and serves it.
func (s *Server) listen(ctx context.Context) error {
	if s.Config.Listen == "none" {
		s.BaseURL = "http://sim.invalid"
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Config.Listen)
	if err != nil {
		return err
	}
	s.BaseURL = "http://" + listener.Addr().String()
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second, BaseContext: func(net.Listener) context.Context { return s.Ctx }}
	s.Running.Go(func() { _ = s.http.Serve(listener) }) // ends with ErrServerClosed
	return nil
}

func (s *Server) makeDir() error {
	if s.Config.Dir == "" {
		dir, err := os.MkdirTemp("", "multihost-sim-")
		if err != nil {
			return err
		}
		s.Config.Dir, s.ownDir = dir, true
	}
	dir, err := filepath.Abs(s.Config.Dir)
	if err != nil {
		return err
	}
	s.Config.Dir = dir
	if other, err := Open(dir); err == nil {
		return fmt.Errorf("use directory %q: %w (process %d)", dir, ErrRunning, other.PID())
	}
	for _, d := range []string{dir, s.gcloudDir(), s.WorkersDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) gcloudDir() string { return filepath.Join(s.Config.Dir, "gcloud") }

// URL returns the URL of the API, without a final slash.
func (s *Server) URL() string { return s.BaseURL }

// Dir returns the private directory of the simulator.
func (s *Server) Dir() string { return s.Config.Dir }

// SSHPort returns the SSH port of all workers, or 0 without workers.
func (s *Server) SSHPort() int {
	if s.Workers == nil {
		return 0
	}
	return s.Workers.Port()
}

// Down returns a channel that is closed when a client asks the simulator to end. The
// process that started the simulator must then call Close.
func (s *Server) Down() <-chan struct{} { return s.down }

// Env returns the environment variables that make multihost and an unmodified gcloud use
// this simulator and nothing else.
func (s *Server) Env() map[string]string {
	env := map[string]string{
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU":                  s.BaseURL + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE":              s.BaseURL + "/compute/v1/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_OSLOGIN":              s.BaseURL + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE":              s.BaseURL + "/storage/v1/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER":            s.BaseURL + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER":        s.BaseURL + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_SERVICEUSAGE":         s.BaseURL + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER": s.BaseURL + "/",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDQUOTAS":          s.BaseURL + "/",
		"CLOUDSDK_AUTH_DISABLE_CREDENTIALS":                    "true",
		"CLOUDSDK_CORE_PROJECT":                                s.Config.Project,
		"CLOUDSDK_COMPUTE_ZONE":                                s.Config.Zone,
		"CLOUDSDK_COMPUTE_REGION":                              cloud.RegionOf(s.Config.Zone),
		"CLOUDSDK_CONFIG":                                      s.gcloudDir(),
		"CLOUDSDK_CORE_DISABLE_PROMPTS":                        "true",
		"CLOUDSDK_CORE_DISABLE_USAGE_REPORTING":                "true",
		"CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK":      "true",
		"MULTIHOST_FLAG_PROJECT":                               s.Config.Project, // goes before a multihost.yaml
		"MULTIHOST_FLAG_ZONE":                                  s.Config.Zone,
		"MULTIHOST_FLAG_IDENTITY_FILE":                         filepath.Join(s.Config.Dir, "google_compute_engine"),
		"MULTIHOST_FLAG_REGISTRY_ENDPOINT":                     s.BaseURL + registryPath,
		"MULTIHOST_FLAG_KNOWN_HOSTS":                           filepath.Join(s.Config.Dir, "known_hosts"),
	}
	if s.Config.Login {
		delete(env, "CLOUDSDK_AUTH_DISABLE_CREDENTIALS")
		env["GOOGLE_APPLICATION_CREDENTIALS"] = s.credentialsFile()
	}
	if port := s.SSHPort(); port > 0 {
		env["MULTIHOST_FLAG_SSH_PORT"] = fmt.Sprint(port)
		env["MULTIHOST_FLAG_IAP_ENDPOINT"] = "ws" + strings.TrimPrefix(s.BaseURL, "http") + strings.TrimSuffix(relayPath, "/")
	}
	return env
}

// EnvNames returns the names of all variables in the Env of any simulator, sorted, without
// the one for credentials: the user may have set it before.
func EnvNames() []string {
	env := (&Server{Cloud: &cloud.Cloud{}}).Env()
	for _, name := range []string{"MULTIHOST_FLAG_SSH_PORT", "MULTIHOST_FLAG_IAP_ENDPOINT"} {
		env[name] = ""
	}
	return slices.Sorted(maps.Keys(env))
}

// Close ends the simulator. Then no request, worker or goroutine of it is left. It may be
// called twice.
func (s *Server) Close() error {
	s.stop.Do(func() {
		s.Mu.Lock()
		s.Closing = true
		s.Mu.Unlock()
		s.cancel(cloud.ErrClosed)
		s.requestDown()
		var errs []error
		if s.http != nil {
			errs = append(errs, s.http.Close())
		}
		s.Running.Wait()
		if s.kubes != nil {
			errs = append(errs, s.kubes.closeAll())
		}
		if s.Workers != nil {
			errs = append(errs, s.Workers.Close())
		}
		errs = append(errs, s.removeStateFile())
		if s.ownDir {
			errs = append(errs, os.RemoveAll(s.Config.Dir))
		}
		s.err = errors.Join(errs...)
	})
	return s.err
}

func (s *Server) requestDown() { s.asked.Do(func() { close(s.down) }) }

// Requests returns the API requests so far, oldest first: at most the last 10,000, without
// those of the control endpoint.
func (s *Server) Requests() []cloud.Request {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return slices.Clone(s.State.Requests)
}

// Inject makes a fault active. id is for Clear. It is 0 for a fault that happens once and
// is over.
func (s *Server) Inject(f cloud.Fault) (id int, err error) {
	if mine, err := groups.Inject(s.Cloud, f); mine {
		return 0, err
	}
	if mine, err := s.kubes.inject(f); mine {
		return 0, err
	}
	if id, err = s.Cloud.Inject(f); err != nil {
		return id, err
	}
	return id, s.kubes.follow(s.activeFaults())
}

func (s *Server) activeFaults() (all []cloud.Fault) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, a := range s.State.Faults {
		all = append(all, a.Fault)
	}
	return all
}

// Clear ends the fault with this id, the faults with this name, or with "all" all faults.
// It returns their number.
func (s *Server) Clear(which string) (int, error) {
	n, err := s.Cloud.Clear(which)
	err = errors.Join(err, s.kubes.follow(s.activeFaults()))
	s.Mu.Lock()
	defer s.Mu.Unlock()
	groups.Of(s.Cloud).Retry()
	return n, err
}

// An endpoint is one of the APIs that the simulator serves.
type endpoint struct {
	name    string
	has     func(*http.Request) bool
	limit   int // limit of a request's body, in bytes
	uploads bool
	old     bool // its errors have the form of Google's older APIs
	serve   func(s *Server, r *http.Request, body []byte, who cloud.Caller) wire.Answer
}

// endpointOf returns the first API with the path of a request.
func endpointOf(r *http.Request) endpoint {
	for _, a := range endpoints {
		if a.has(r) {
			return a
		}
	}
	return tpuEndpoint
}

var endpoints = []endpoint{
	{name: "storage", has: cloud.IsStorage, limit: storageapi.MaxObject, uploads: true, old: true, serve: func(s *Server, r *http.Request, body []byte, who cloud.Caller) wire.Answer {
		return storageapi.New(s.Cloud).ServeStorage(r, body, who)
	}},
	{name: "compute", has: isCompute, limit: wire.MaxBody, old: true, serve: func(s *Server, r *http.Request, body []byte, who cloud.Caller) wire.Answer {
		return computeapi.New(s.Cloud).ServeCompute(r, body, who)
	}},
	{name: "oslogin", has: cloud.IsOSLogin, limit: wire.MaxBody, serve: func(s *Server, r *http.Request, body []byte, _ cloud.Caller) wire.Answer {
		return tpuapi.New(s.Cloud).ServeJSON(r, body, projectapi.New(s.Cloud).DispatchOSLogin)
	}},
	{name: "secrets", has: cloud.IsSecrets, limit: wire.MaxBody, serve: func(s *Server, r *http.Request, body []byte, who cloud.Caller) wire.Answer {
		return tpuapi.New(s.Cloud).ServeJSON(r, body, projectapi.New(s.Cloud).DispatchSecrets(who))
	}},
	{name: "container", has: cloud.IsContainer, limit: wire.MaxBody, serve: func(s *Server, r *http.Request, body []byte, who cloud.Caller) wire.Answer {
		return tpuapi.New(s.Cloud).ServeJSON(r, body, containerapi.New(s.Cloud).Dispatch(who))
	}},
	{name: "project", has: cloud.IsProject, limit: wire.MaxBody, serve: func(s *Server, r *http.Request, body []byte, who cloud.Caller) wire.Answer {
		return tpuapi.New(s.Cloud).ServeJSON(r, body, projectapi.New(s.Cloud).DispatchProject(who))
	}},
}

var tpuEndpoint = endpoint{name: "tpu", limit: wire.MaxBody, serve: func(s *Server, r *http.Request, body []byte, who cloud.Caller) wire.Answer {
	return tpuapi.New(s.Cloud).ServeJSON(r, body, tpuapi.New(s.Cloud).DispatchTPU(who))
}}

func isCompute(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/compute/") }

// registryPath is where the API serves container registries.
const registryPath = "/registry"

// ServeHTTP serves all APIs. It logs every request, applies the active faults, and passes
// the request to the API that the path names.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.Enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.Running.Done()
	if strings.HasPrefix(r.URL.Path, "/sim/v1/") {
		s.serveControl(w, r)
		return
	}
	if strings.HasPrefix(r.URL.Path, relayPath) {
		s.serveRelay(w, r)
		return
	}
	if strings.HasPrefix(r.URL.Path, registryPath+"/") {
		http.StripPrefix(registryPath, s.images).ServeHTTP(w, r)
		return
	}
	if r.URL.Path == cloud.TokenPath {
		s.serveToken(w, r)
		return
	}
	api := endpointOf(r)
	body, err := wire.ReadBody(r, api.limit)
	logged := cloud.Request{Method: r.Method, Path: r.URL.RequestURI()}
	if !api.uploads { // a simulator may run for weeks, so its log must not keep uploads
		logged.Body = string(body)
	}
	who, refused := s.Identity().CallerOf(r)
	if refused == nil {
		refused = who.CheckScopes(r)
	}
	var a wire.Answer
	var verdict cloud.RequestVerdict
	if err != nil {
		a.Err = wire.AsAPIError(err)
	} else if verdict = s.Injection().MeetFaults(r); verdict.Err != nil {
		a.Err = verdict.Err
	} else if !s.Pause(r.Context(), verdict.Delay) {
		return
	} else if verdict.Skip {
		// The code below cuts the connection.
	} else if refused != nil {
		a.Err = refused
	} else {
		a = api.serve(s, r, body, who)
	}
	if verdict.Drop {
		s.LogRequest(logged)
		panic(http.ErrAbortHandler) // net/http then cuts the connection
	}
	logged.Code = cmp.Or(a.Code, http.StatusOK)
	if a.Err != nil {
		logged.Code = a.Err.Code
	}
	s.LogRequest(logged)
	if a.Err != nil {
		wire.WriteError(w, a.Err, api.old)
		return
	}
	if a.Code != 0 {
		maps.Copy(w.Header(), a.Header)
		w.WriteHeader(a.Code)
		_, _ = w.Write(a.Raw) // an error means that the client has gone
		return
	}
	writeJSON(w, a.JSON)
}

func writeJSON(w http.ResponseWriter, b []byte) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_, _ = w.Write(b) // an error means that the client has gone
	_, _ = io.WriteString(w, "\n")
}
