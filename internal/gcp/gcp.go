// Package gcp makes all calls to Google Cloud: credentials, endpoints, the meaning of
// errors, retries, and waits for long-running operations. The packages for single services
// (network, qr) build on it and have no retries of their own.
//
// A Client sends everything through one HTTP client, which gets a token for each
// request. If a login expires during a wait of hours and the user renews it in
// another terminal, the Client uses the new login without a restart.
//
//	c := gcp.New(gcp.Config{Project: "p", Zone: "us-central2-b"})
//	svc, err := c.TPU(ctx)
//	err = c.Do(ctx, `show queued resource "q7"`, func(ctx context.Context) error {
//		r, err = svc.Projects.Locations.QueuedResources.Get(name).Context(ctx).Do()
//		return err
//	})
//
// # Decisions
//
//   - Do waits up to four days for a user to renew an expired login. So callers need not
//     know of the expiry. Loops with a limit of their own pass a context from Unattended
//     and retry themselves.
//   - The clients' own retries are off, because two layers of retries multiply.
package gcp

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gax "github.com/googleapis/gax-go/v2"
	"google.golang.org/api/option"
	tpuapi "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/event"
)

// Config says which project and zone to use, how to reach Google's APIs, and with which
// credentials.
type Config struct {
	Project string
	Zone    string

	// TPUEndpoint and ComputeEndpoint replace Google's addresses, in the form of gcloud's
	// api_endpoint_overrides. The TPU address has no version ("http://127.0.0.1:8080/").
	// The Compute address ends in /compute/v1/. A missing or superfluous version does no
	// harm. Empty: Google's.
	TPUEndpoint     string
	ComputeEndpoint string
	// OSLoginEndpoint replaces Google's address of OS Login. It has no version. Empty:
	// Google's.
	OSLoginEndpoint string

	// StorageEndpoint ends in /storage/v1/. SecretManagerEndpoint has no version. Empty:
	// Google's.
	StorageEndpoint       string
	SecretManagerEndpoint string
	// ContainerEndpoint is Google Kubernetes Engine's address. It has no version. Empty:
	// Google's.
	ContainerEndpoint string
	// ServiceUsageEndpoint, ResourceManagerEndpoint and QuotasEndpoint (Cloud Quotas) have
	// no version. Empty: Google's.
	ServiceUsageEndpoint    string
	ResourceManagerEndpoint string
	QuotasEndpoint          string

	// ReadOnly refuses every request that could change something. The error is a
	// *ReadOnlyError with the request.
	ReadOnly bool

	// DisableAuth sends requests without credentials.
	DisableAuth bool
	// AccessTokenFile is a file with an access token. It is read at each request, or with
	// Impersonate at each refresh.
	AccessTokenFile string
	// CredentialsFile is the name of the file with application default credentials, for
	// hints. It may be empty.
	CredentialsFile string
	// GcloudToken returns an access token. It is called without application default
	// credentials. It may be nil.
	GcloudToken func(ctx context.Context) (string, error)
	// Impersonate is the service account for the calls. The other credentials must have the
	// right to act as this account. Empty: none.
	Impersonate string
	// QuotaProject is the project that pays for the calls. Empty: the credentials' quota
	// project.
	QuotaProject string

	// Transport carries the requests. Nil: the network.
	Transport http.RoundTripper

	UserAgent string        // empty: "multihost"
	Clock     Clock         // nil: SystemClock
	Sink      event.Sink    // nil: event.Discard
	MaxRetry  time.Duration // how long Do retries; 0: 2 minutes
	// LoginWait is how long Do waits for new credentials when credentials that had worked
	// are refused. 0: Do does not wait.
	LoginWait time.Duration
}

// A Client has what all calls to Google Cloud share. It is safe for concurrent use and
// needs no closing.
type Client struct {
	cfg    Config
	tokens *tokens
	login  *login
	http   *http.Client

	waiting atomic.Pointer[time.Time] // time of the last report of a call without an answer

	tpuOnce sync.Once
	tpu     *tpuapi.Service
	tpuErr  error
}

// New returns a Client for cfg. It does no I/O: the first call looks for credentials.
func New(cfg Config) *Client {
	if cfg.UserAgent == "" {
		cfg.UserAgent = "multihost"
	}
	if cfg.Clock == nil {
		cfg.Clock = SystemClock
	}
	if cfg.Sink == nil {
		cfg.Sink = event.Discard
	}
	if cfg.MaxRetry == 0 {
		cfg.MaxRetry = 2 * time.Minute
	}
	if cfg.Transport == nil {
		base := http.DefaultTransport.(*http.Transport).Clone()
		// A server that never answers must not block a wait for ever. No call of these APIs
		// takes a minute to begin its answer.
		base.ResponseHeaderTimeout = time.Minute
		cfg.Transport = base
	}
	tokens := newTokens(cfg)
	var transport http.RoundTripper = &authTransport{
		base:         cfg.Transport,
		tokens:       tokens,
		userAgent:    cfg.UserAgent,
		quotaProject: cfg.QuotaProject,
	}
	if cfg.ReadOnly {
		transport = readOnly{transport}
	}
	return &Client{cfg: cfg, tokens: tokens, login: &login{cfg: cfg}, http: &http.Client{Transport: transport}}
}

// Close closes idle connections. The Client stays usable.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Token returns an access token for services outside this package, for example the IAP
// relay. With Config.DisableAuth it is empty.
func (c *Client) Token(ctx context.Context) (string, error) {
	if c.cfg.DisableAuth {
		return "", nil
	}
	token, _, err := c.tokens.token(ctx)
	if ClassOf(err) == Unauthenticated {
		c.login.ceased(err, c.remedy(err))
	}
	return token, err
}

// Project returns the project of Config.
func (c *Client) Project() string { return c.cfg.Project }

// Zone returns the zone of Config.
func (c *Client) Zone() string { return c.cfg.Zone }

// Clock returns the clock that waits use.
func (c *Client) Clock() Clock { return c.cfg.Clock }

// Sink returns the sink for the events of calls.
func (c *Client) Sink() event.Sink { return c.cfg.Sink }

// TPU returns the client of the Cloud TPU API, which the first call makes. The client does
// not retry, so wrap each of its calls in Do.
func (c *Client) TPU(ctx context.Context) (*tpuapi.Service, error) {
	c.tpuOnce.Do(func() {
		opts := []option.ClientOption{option.WithHTTPClient(c.http)}
		if c.cfg.TPUEndpoint != "" {
			root, err := endpointRoot("TPU", c.cfg.TPUEndpoint)
			if err != nil {
				c.tpuErr = err
				return
			}
			opts = append(opts, option.WithEndpoint(root+"/"))
		}
		// The service lives as long as the Client, not as long as the first caller's
		// context.
		c.tpu, c.tpuErr = tpuapi.NewService(context.WithoutCancel(ctx), opts...)
		if c.tpu != nil {
			c.tpu.UserAgent = c.cfg.UserAgent
		}
	})
	return c.tpu, c.tpuErr
}

// ComputeOptions returns the options for the New*RESTClient functions of
// cloud.google.com/go/compute/apiv1. Give NoRetry to each call of those
// clients and wrap it in Do.
func (c *Client) ComputeOptions(context.Context) ([]option.ClientOption, error) {
	opts := []option.ClientOption{option.WithHTTPClient(c.http)}
	if c.cfg.ComputeEndpoint != "" {
		root, err := endpointRoot("Compute", c.cfg.ComputeEndpoint)
		if err != nil {
			return nil, err
		}
		opts = append(opts, option.WithEndpoint(root))
	}
	return opts, nil
}

// ContainerOptions returns the options for google.golang.org/api/container/v1beta1. Wrap
// each call in Do.
func (c *Client) ContainerOptions() ([]option.ClientOption, error) {
	opts := []option.ClientOption{option.WithHTTPClient(c.http), option.WithUserAgent(c.cfg.UserAgent)}
	if c.cfg.ContainerEndpoint != "" {
		root, err := endpointRoot("Kubernetes Engine", c.cfg.ContainerEndpoint)
		if err != nil {
			return nil, err
		}
		opts = append(opts, option.WithEndpoint(root+"/"))
	}
	return opts, nil
}

// OSLoginOptions returns the options for google.golang.org/api/oslogin/v1, and for
// google.golang.org/api/oauth2/v2, which returns the credentials' account. Wrap each call
// in Do.
func (c *Client) OSLoginOptions() ([]option.ClientOption, error) {
	opts := []option.ClientOption{option.WithHTTPClient(c.http), option.WithUserAgent(c.cfg.UserAgent)}
	if c.cfg.OSLoginEndpoint != "" {
		root, err := endpointRoot("OS Login", c.cfg.OSLoginEndpoint)
		if err != nil {
			return nil, err
		}
		opts = append(opts, option.WithEndpoint(root+"/"))
	}
	return opts, nil
}

// Google's addresses of the APIs that workers call.
const (
	storageRoot       = "https://storage.googleapis.com"
	tpuRoot           = "https://tpu.googleapis.com"
	secretManagerRoot = "https://secretmanager.googleapis.com"
	computeRoot       = "https://compute.googleapis.com"
)

// StorageOptions returns the options for google.golang.org/api/storage/v1. Wrap
// each call in Do.
func (c *Client) StorageOptions() ([]option.ClientOption, error) {
	roots, err := c.Roots()
	if err != nil {
		return nil, err
	}
	return []option.ClientOption{
		option.WithHTTPClient(c.http), option.WithUserAgent(c.cfg.UserAgent), option.WithEndpoint(roots.Storage + "/storage/v1/"),
	}, nil
}

// Roots are addresses of APIs, without a version and a final slash.
type Roots struct{ TPU, Compute, Storage, SecretManager string }

// Roots returns the addresses of the APIs that workers call.
func (c *Client) Roots() (Roots, error) { return c.cfg.Roots() }

// Roots returns the addresses of the APIs that workers call.
func (c Config) Roots() (Roots, error) {
	r := Roots{TPU: tpuRoot, Compute: computeRoot, Storage: storageRoot, SecretManager: secretManagerRoot}
	for _, o := range []struct {
		api, endpoint string
		root          *string
	}{
		{"TPU", c.TPUEndpoint, &r.TPU}, {"Compute", c.ComputeEndpoint, &r.Compute}, {"Storage", c.StorageEndpoint, &r.Storage}, {"Secret Manager", c.SecretManagerEndpoint, &r.SecretManager},
	} {
		if o.endpoint == "" {
			continue
		}
		root, err := endpointRoot(o.api, o.endpoint)
		if err != nil {
			return r, err
		}
		*o.root = strings.TrimSuffix(root, "/storage")
	}
	return r, nil
}

// NoRetry returns an option for calls of cloud.google.com/go/compute/apiv1 that leaves
// retries to Do. Without it, those clients silently repeat reads on 503 and 504 for up to
// ten minutes. A client's CallOptions field would not do, because its REST half has a copy.
func NoRetry() gax.CallOption {
	return gax.WithRetry(func() gax.Retryer { return nil })
}

// apiPath matches the API path and version at the end of an endpoint override.
var apiPath = regexp.MustCompile(`/(compute/)?(v1|v1beta1|v2|v2alpha1|beta|alpha)$`)

// endpointRoot reduces an endpoint override to scheme, host and any leading path, without a
// version and a final slash.
func endpointRoot(api, raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", fmt.Errorf("%s endpoint override %q: %w", api, raw, err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%s endpoint override %q: want a URL such as http://127.0.0.1:8080/", api, raw)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.Path = apiPath.ReplaceAllString(u.Path, "")
	return strings.TrimRight(u.String(), "/"), nil
}
