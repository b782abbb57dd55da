// Package kube is the client of a Kubernetes API server: objects as typed structs, watches
// that survive outages, logs of pods, and commands in pods. Only this package imports
// client-go.
//
// # Decisions
//
//   - The client is client-go's dynamic client. Each Kind names the struct of its objects.
//     The typed clientsets of Kubernetes, JobSet and Kueue would do the same, but make the
//     program 14 MB larger.
//   - The package writes no kubeconfig. A cluster of GKE is reached by its endpoint, its CA
//     certificate and the user's OAuth token.
//   - Every call except Exec is safe to repeat. So the Client retries it when the
//     connection breaks or the server is overloaded. A repeated Create may find the object
//     of its first try. The error is then AlreadyExists.
//   - Exec speaks the protocol v5.channel.k8s.io itself, over client-go's connection.
//     client-go's own executor does not report that the server has accepted a command. It
//     cuts a session whose command does not read its input. It hides whether the connection
//     or the command has ended.
package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/oauth2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"multihost/internal/event"
	"multihost/internal/fault"
)

// A Config says which API server to use, and how. It has either Server or Kubeconfig.
type Config struct {
	// Kubeconfig has the names of files in kubectl's format. If entries have the same name, the
	// first one is used. A missing file is skipped. Context is the entry to use; "" means the
	// current context of the files.
	Kubeconfig []string
	Context    string

	// Server is the address of the API server: "https://34.1.2.3". CA is its certificate
	// authority in PEM; nil means those of this machine. Token signs every request.
	Server string
	CA     []byte
	Token  oauth2.TokenSource

	// Namespace is the default namespace of objects; "": the namespace of the context, or
	// "default".
	Namespace string

	UserAgent string
	SignIn    string        // command that gets new credentials; "": not known
	Sink      event.Sink    // gets retries and the server's warnings; required
	MaxRetry  time.Duration // how long a call is retried; 0: 30 seconds
	Clock     Clock         // nil: the real time
}

// A Clock tells the time and waits.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// A Client calls one API server. Its methods are safe for concurrent use.
type Client struct {
	cfg       Config
	namespace string
	context   string
	server    string
	signed    *transport.Config // for Exec
	tls       *tls.Config       // for Exec; its sessions are resumed
	proxy     proxyFunc
	http      *http.Client
	rest      rest.Interface
	objects   dynamic.Interface

	mu     sync.Mutex
	served map[string]*metav1.APIResourceList // by group and version; see Resource
}

// quiet keeps client-go from writing to stderr, because errors are values.
var quiet = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// New returns a Client. It makes no call. An error has the kind Configuration.
func New(cfg Config) (*Client, error) {
	quiet()
	if cfg.MaxRetry == 0 {
		cfg.MaxRetry = 30 * time.Second
	}
	if cfg.Clock == nil {
		cfg.Clock = systemClock{}
	}
	rc, context, namespace, err := cfg.rest()
	if err != nil {
		return nil, err
	}
	rc.QPS = -1 // the server has limits of its own
	rc.UserAgent = cfg.UserAgent
	rc.WarningHandlerWithContext = warnings{cfg.Sink}
	c := &Client{cfg: cfg, context: context, namespace: cmp.Or(cfg.Namespace, namespace, "default"), server: strings.TrimRight(rc.Host, "/"),
		proxy: rc.Proxy, served: map[string]*metav1.APIResourceList{}}
	if err := c.connect(rc); err != nil {
		return nil, &ConfigError{Source: cfg.source(), Err: err}
	}
	return c, nil
}

// connect makes the clients that share a configuration.
func (c *Client) connect(rc *rest.Config) (err error) {
	rc = dynamic.ConfigFor(rc)
	if c.http, err = rest.HTTPClientFor(rc); err != nil {
		return err
	}
	if c.signed, err = rc.TransportConfig(); err != nil {
		return err
	}
	if c.tls, err = transport.TLSConfigFor(c.signed); err != nil {
		return err
	}
	if c.tls != nil {
		c.tls = c.tls.Clone()
		c.tls.NextProtos = nil // a WebSocket needs HTTP/1.1
		c.tls.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	rc.GroupVersion, rc.APIPath = nil, "/"
	raw, err := rest.UnversionedRESTClientForConfigAndClient(rc, c.http)
	if err != nil {
		return err
	}
	c.rest, c.objects = raw, dynamic.New(raw)
	return nil
}

// rest returns the configuration of client-go, and the context and the namespace of a
// kubeconfig.
func (cfg Config) rest() (rc *rest.Config, context, namespace string, err error) {
	if cfg.Server != "" {
		rc = &rest.Config{Host: cfg.Server, TLSClientConfig: rest.TLSClientConfig{CAData: cfg.CA}}
		if cfg.Token != nil {
			rc.WrapTransport = transport.TokenSourceWrapTransport(cfg.Token)
		}
		return rc, "", "", nil
	}
	rules := clientcmd.ClientConfigLoadingRules{Precedence: cfg.Kubeconfig, DefaultClientConfig: &clientcmd.DefaultClientConfig}
	rules.WarnIfAllMissing = false
	all, err := rules.Load()
	if err != nil {
		return nil, "", "", &ConfigError{Source: cfg.source(), Err: err}
	}
	name := cmp.Or(cfg.Context, all.CurrentContext)
	switch {
	case len(all.Contexts) == 0:
		return nil, "", "", &ConfigError{Source: cfg.source(), Err: errors.New("it names no cluster")}
	case name == "":
		return nil, "", "", &ConfigError{Source: cfg.source(), Err: fmt.Errorf("it has no current context; its contexts: %s", names(all.Contexts)),
			hint: "name one with --context=NAME"}
	case all.Contexts[name] == nil:
		return nil, "", "", &ConfigError{Source: cfg.source(), Err: fmt.Errorf("it has no context %q; its contexts: %s", name, names(all.Contexts)),
			hint: "name one of them with --context=NAME"}
	}
	loaded := clientcmd.NewNonInteractiveClientConfig(*all, cfg.Context, &clientcmd.ConfigOverrides{}, nil)
	rc, err = loaded.ClientConfig()
	if err != nil {
		return nil, "", "", &ConfigError{Source: cfg.source(), Err: err}
	}
	namespace, _, err = loaded.Namespace()
	if err != nil {
		return nil, "", "", &ConfigError{Source: cfg.source(), Err: err}
	}
	return rc, name, namespace, nil
}

// source names the source of the configuration.
func (cfg Config) source() string {
	if cfg.Server != "" {
		return fmt.Sprintf("API server %q", cfg.Server)
	}
	return fmt.Sprintf("kubeconfig %q", strings.Join(cfg.Kubeconfig, ":"))
}

func names[T any](m map[string]T) string {
	var all []string
	for name := range m {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// A ConfigError says that a Config does not lead to an API server.
type ConfigError struct {
	Source string // source of the configuration
	Err    error
	hint   string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("use %s: %v", e.Source, e.Err) }
func (e *ConfigError) Unwrap() error { return e.Err }

// Fault returns fault.Configuration.
func (*ConfigError) Fault() fault.Kind { return fault.Configuration }

func (e *ConfigError) Hint() string { return e.hint }

// warnings reports the server's warnings, for example of an old version of a kind.
type warnings struct{ sink event.Sink }

func (w warnings) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	if code == 299 && text != "" {
		event.Notef(w.sink, event.Debug, "", "the API server warns: %s", text)
	}
}

// Namespace is the default namespace of objects.
func (c *Client) Namespace() string { return c.namespace }

// Context is the used entry of the kubeconfig; "" with a Server.
func (c *Client) Context() string { return c.context }

// Server is the address of the API server.
func (c *Client) Server() string { return c.server }

// Close closes connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Version returns the version of the API server: "v1.35.4".
func (c *Client) Version(ctx context.Context) (string, error) {
	var told struct {
		GitVersion string `json:"gitVersion"`
	}
	err := c.read(ctx, "ask for the version of the API server", "/version", &told)
	return told.GitVersion, err
}

// Resource finds the Kind of a manifest's object by its apiVersion and kind. If the cluster
// does not serve them, the error is a NotFound.
func (c *Client) Resource(ctx context.Context, apiVersion, kind string) (Kind[unstructured.Unstructured], error) {
	group, version, found := strings.Cut(apiVersion, "/")
	path := "/apis/" + apiVersion
	if !found {
		group, version, path = "", apiVersion, "/api/"+apiVersion
	}
	c.mu.Lock()
	list := c.served[apiVersion]
	c.mu.Unlock()
	what := fmt.Sprintf("find kind %q of %s", kind, apiVersion)
	if list == nil || resourceOf(list, kind) == nil { // the kind may have been installed since
		list = &metav1.APIResourceList{}
		if err := c.read(ctx, what, path, list); err != nil {
			return Kind[unstructured.Unstructured]{}, err
		}
		c.mu.Lock()
		c.served[apiVersion] = list
		c.mu.Unlock()
	}
	r := resourceOf(list, kind)
	if r == nil {
		return Kind[unstructured.Unstructured]{}, c.fail(what, apierrors.NewNotFound(metav1.Unversioned.WithResource(kind).GroupResource(), apiVersion), 1)
	}
	return Kind[unstructured.Unstructured]{Group: group, Version: version, Resource: r.Name, Kind: kind, Cluster: !r.Namespaced}, nil
}

func resourceOf(list *metav1.APIResourceList, kind string) *metav1.APIResource {
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool {
		return r.Kind == kind && !strings.Contains(r.Name, "/")
	})
	if i < 0 {
		return nil
	}
	return &list.APIResources[i]
}

// read decodes the server's JSON answer at a path. The path is not one of objects.
func (c *Client) read(ctx context.Context, what, path string, into any) error {
	return c.do(ctx, what, func(ctx context.Context) error {
		data, err := c.rest.Get().AbsPath(path).Do(ctx).Raw()
		if err != nil {
			return err
		}
		return json.Unmarshal(data, into)
	})
}
