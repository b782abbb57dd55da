// Package kubeapi is the simulator's stand-in for a GKE cluster: the Kubernetes API with
// JobSet and Kueue. Its pods run as simulated workers.
//
// It has everything that multihost and kubectl use. Objects, field managers, watches,
// errors, logs and exec behave as in a real cluster, and a few controllers do what users
// see of the real ones (see package control). It has no authorization by role, protobuf,
// strategic merge patches, attach, port forwarding, or webhooks of users.
package kubeapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"multihost/internal/sim/kubeapi/control"
	"multihost/internal/sim/kubeapi/kubelet"
	"multihost/internal/sim/kubeapi/store"
	"multihost/internal/sim/worker"
)

// Config configures a cluster.
type Config struct {
	Dir    string // private directory; must exist
	Listen string // address of the API; "": a free port of 127.0.0.1

	// Token reports whether a bearer token is valid, or "" for a request without one. If
	// Token is nil, every token except "" is valid.
	Token func(token string) bool

	// Backend makes the machines on which pods run. If it is nil, the cluster has a process
	// backend of its own.
	Backend worker.Backend

	// Bare says that JobSet and Kueue are not installed in the cluster yet.
	Bare bool

	// Programs has files of programs that images may have and this machine lacks, by the
	// name of the program.
	Programs map[string]string

	// Image writes the files of an image below the root of a machine, and returns the
	// directory in which programs start. Nil: images are not read.
	Image func(image, root string) (dir string, err error)

	Now func() time.Time // nil: the system's clock
}

// A Server is one running cluster. Its methods are safe for concurrent use.
type Server struct {
	cfg     Config
	store   *store.Store
	kubelet *kubelet.Kubelet
	control *control.Controllers
	ca      *authority
	own     worker.Backend // the backend that Close closes; nil if it is the caller's

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup // all goroutines except requests

	mu     sync.Mutex
	http   *http.Server // nil while the API is away
	addr   string
	faults faults
	execs  map[*execution]bool
	closed bool
}

// New starts a cluster without nodes. The caller closes it.
func New(cfg Config) (*Server, error) {
	s, err := newServer(cfg)
	if err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	return s, nil
}

func newServer(cfg Config) (*Server, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Token == nil {
		cfg.Token = func(token string) bool { return token != "" }
	}
	st, err := store.New(cfg.Now, control.Admit)
	if err != nil {
		return nil, err
	}
	if cfg.Bare {
		st.Bare()
	}
	host, _, _ := net.SplitHostPort(cmp.Or(cfg.Listen, "127.0.0.1:0")) // listen tells what is wrong with it
	ca, err := newAuthority(cfg.Now(), net.ParseIP(host))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{cfg: cfg, store: st, ca: ca, ctx: ctx, cancel: cancel, execs: make(map[*execution]bool)}
	if cfg.Backend == nil {
		if s.own, err = worker.NewProcess(worker.ProcessConfig{Root: filepath.Join(cfg.Dir, "pods")}); err != nil {
			cancel()
			return nil, err
		}
		cfg.Backend = s.own
	}
	s.kubelet = kubelet.New(kubelet.Config{API: podStates{st}, Backend: cfg.Backend, Dir: filepath.Join(cfg.Dir, "kubelet"), Programs: cfg.Programs, Image: cfg.Image, Now: cfg.Now})
	s.control = control.New(st, cfg.Now)
	if err := s.listen(cmp.Or(cfg.Listen, "127.0.0.1:0")); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.running.Go(func() { watchPods(ctx, st, s.kubelet) })
	s.running.Go(func() { s.control.Run(ctx) })
	return s, nil
}

// listen serves the API at an address.
func (s *Server) listen(addr string) error {
	ln, err := (&net.ListenConfig{}).Listen(s.ctx, "tcp", addr)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.Join(http.ErrServerClosed, ln.Close())
	}
	s.addr = ln.Addr().String()
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 30 * time.Second,
		BaseContext: func(net.Listener) context.Context { return s.ctx },
		TLSConfig:   &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{s.ca.server}, NextProtos: []string{"h2", "http/1.1"}},
	}
	s.http = server
	s.running.Go(func() { _ = server.ServeTLS(ln, "", "") }) // ends with ErrServerClosed
	return nil
}

// URL returns the URL of the API.
func (s *Server) URL() string { return "https://" + s.address() }

func (s *Server) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// CA returns the certificate, in PEM, that lets clients verify the server.
func (s *Server) CA() []byte { return s.ca.pem }

// Objects returns the objects of the cluster.
func (s *Server) Objects() *store.Store { return s.store }

// Close ends the cluster: the API, all controllers, and all processes of pods.
func (s *Server) Close() error {
	s.mu.Lock()
	server := s.http
	s.closed, s.http = true, nil
	s.mu.Unlock()
	s.cancel()
	s.CutExecs()
	var errs []error
	if server != nil {
		errs = append(errs, server.Close())
	}
	errs = append(errs, s.kubelet.Close())
	s.running.Wait()
	if s.own != nil {
		errs = append(errs, s.own.Close())
	}
	return errors.Join(errs...)
}

// ServeHTTP serves the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz", "/livez", "/readyz":
		_, _ = w.Write([]byte("ok")) // an error means that the client has gone
		return
	case "/version":
		writeJSON(w, http.StatusOK, serverVersion())
		return
	}
	if err := s.authenticate(r); err != nil {
		writeError(w, err)
		return
	}
	if err := s.meetFaults(r); err != nil {
		writeError(w, err)
		return
	}
	if r.URL.Path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" && r.Method == http.MethodPost {
		reviewAccess(w, r)
		return
	}
	all := objects{s.store}
	if all.discover(w, r) {
		return
	}
	if q := all.parse(r); q != nil {
		s.serveObjects(w, q)
		return
	}
	writeError(w, notFound())
}

// reviewAccess answers whether the caller may do something: with a token, everything.
func reviewAccess(w http.ResponseWriter, r *http.Request) {
	var review authorizationv1.SelfSubjectAccessReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		writeError(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: true}
	writeJSON(w, http.StatusCreated, review)
}

func (s *Server) authenticate(r *http.Request) error {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !s.cfg.Token(strings.TrimSpace(token)) {
		return apierrors.NewUnauthorized("Unauthorized")
	}
	return nil
}

func requiredManager() field.ErrorList {
	return field.ErrorList{field.Required(field.NewPath("fieldManager"), "is required for apply patch")}
}

// WriteKubeconfig writes a kubeconfig with which a client reaches the cluster. It contains
// the token.
func (s *Server) WriteKubeconfig(file, token string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: sim
clusters:
- name: sim
  cluster: {server: %q, certificate-authority-data: %q}
users:
- name: sim
  user: {token: %q}
contexts:
- name: sim
  context: {cluster: sim, user: sim}
`, s.URL(), base64Of(s.CA()), token)
	return os.WriteFile(file, []byte(text), 0o600)
}

func statusError(code int, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}}
}
