// Package image makes the image of a workload without docker: it finds an image in a
// registry, adds layers to it and pushes the result.
//
//	base, err := client.Find(ctx, "python:3.12")
//	code, err := image.Files(ctx, tree, "")
//	defer code.Close()
//	pushed, err := client.Push(ctx, base, "gcr.io/p/ann-runner", code)
//	... pushed.Ref // gcr.io/p/ann-runner@sha256:…
//
// # Decisions
//
//   - Every image is named by its digest, because a tag may move between two pods of a
//     workload, and then workers run different programs.
//   - A layer depends only on its files: it has no times, users or names of this machine.
//     So the same code has the same digest, and is not sent again to a registry that has
//     it.
//   - Layers of the base are mounted from their repository, so the registry copies nothing
//     and this machine sends only the new layers. This works within one registry. To
//     another one, this machine sends the layers of the base once.
//   - Nodes with TPU chips have amd64 processors. Find refuses other images, because pods
//     would fail with "exec format error" only after they got their slices.
package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"multihost/internal/fault"
)

// System and processor of a cluster's nodes.
const (
	system    = "linux"
	processor = "amd64"
)

// A Client calls registries. Its methods are safe for concurrent use.
type Client struct {
	// Token returns an access token of Google Cloud for Google's registries. If Token is nil,
	// Keychain is used for them too.
	Token func(ctx context.Context) (string, error)
	// Keychain has the credentials for all other registries. nil means docker's configuration.
	Keychain  authn.Keychain
	Transport http.RoundTripper // nil: the network
	// Endpoint gets the requests to all registries, for simulators. The name of the registry
	// follows the path of Endpoint. nil means that each registry gets its own requests.
	Endpoint  *url.URL
	UserAgent string // empty: "multihost"
}

// An Image is an image in a registry.
type Image struct {
	Ref   string // with the digest: "gcr.io/p/i@sha256:…"
	Named string // the user's name for it
	Size  int64  // of the compressed layers, in bytes
	image v1.Image
}

// Empty is an image without files, for a Push that only adds layers.
func Empty() Image {
	config, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: system, Architecture: processor, RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return Image{} // cannot happen: the empty image is in memory
	}
	return Image{image: config}
}

// CheckRepository returns a *NameError if Push would not accept the name of the repository.
func CheckRepository(repository string) error {
	if _, err := name.NewRepository(repository); err != nil {
		return &NameError{repository, err}
	}
	return nil
}

// Find looks up an image and checks that nodes can run it. It reads no layer. The error is a
// *NameError, a *ProcessorError or a *RegistryError.
func (c *Client) Find(ctx context.Context, named string) (Image, error) {
	ref, err := name.ParseReference(named)
	if err != nil {
		return Image{}, &NameError{named, err}
	}
	found, err := remote.Get(ref, append(c.options(ctx, nil), remote.WithPlatform(v1.Platform{OS: system, Architecture: processor}))...)
	if err != nil {
		return Image{}, registryError("find image", named, err)
	}
	image, err := found.Image()
	switch {
	case err == nil:
	case found.MediaType.IsIndex() && !asTransport(err):
		return Image{}, &ProcessorError{Image: named, Index: true}
	default:
		return Image{}, registryError("read image", named, err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return Image{}, registryError("read image", named, err)
	}
	if config.Architecture != processor || config.OS != system {
		return Image{}, &ProcessorError{Image: named, Has: config.OS + "/" + config.Architecture}
	}
	manifest, err := image.Manifest()
	if err != nil {
		return Image{}, registryError("read image", named, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return Image{}, registryError("read image", named, err)
	}
	i := Image{Ref: ref.Context().Digest(digest.String()).String(), Named: named, image: image}
	for _, l := range manifest.Layers {
		i.Size += l.Size
	}
	return i, nil
}

// Pushed is the result of Push.
type Pushed struct {
	Ref  string // with the digest
	Sent int64  // bytes that this machine sent
	Same bool   // the registry already had the image
}

// Push adds layers to an image and pushes the result into a repository. The tag is made from
// the digest. If the registry has the image, Push sends nothing. The error is a *NameError or a
// *RegistryError.
func (c *Client) Push(ctx context.Context, base Image, repository string, layers ...*Layer) (Pushed, error) {
	repo, err := name.NewRepository(repository)
	if err != nil {
		return Pushed{}, &NameError{repository, err}
	}
	image, err := add(base.image, layers)
	if err != nil {
		return Pushed{}, fmt.Errorf("add code to image %q: %w", base.Named, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return Pushed{}, fmt.Errorf("add code to image %q: %w", base.Named, err)
	}
	p := Pushed{Ref: repo.Digest(digest.String()).String()}
	tag := repo.Tag("multihost-" + digest.Hex[:16])
	var sent atomic.Int64
	options := c.options(ctx, &sent)
	if known, err := remote.Head(tag, options...); err == nil && known.Digest == digest {
		p.Same = true
		return p, nil
	}
	if err := remote.Write(tag, image, options...); err != nil {
		return p, registryError("push image to", repository, err)
	}
	p.Sent = sent.Load()
	return p, nil
}

// add appends layers to an image. The working directory becomes that of the last layer that has
// one.
func add(base v1.Image, layers []*Layer) (v1.Image, error) {
	kind, err := base.MediaType()
	if err != nil {
		return nil, err
	}
	var all []mutate.Addendum
	dir := ""
	for _, l := range layers {
		one, err := l.as(kind)
		if err != nil {
			return nil, err
		}
		all = append(all, mutate.Addendum{Layer: one, History: v1.History{CreatedBy: "multihost: " + l.what}})
		if l.dir != "" {
			dir = l.dir
		}
	}
	image, err := mutate.Append(base, all...)
	if err != nil || dir == "" {
		return image, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	changed := *config.Config.DeepCopy()
	changed.WorkingDir = dir
	return mutate.Config(image, changed)
}

// options are the options of every call. sent counts the bytes of requests; it may be nil.
func (c *Client) options(ctx context.Context, sent *atomic.Int64) []remote.Option {
	carrier := c.Transport
	if carrier == nil {
		carrier = remote.DefaultTransport
	}
	if c.Endpoint != nil {
		carrier = redirected{carrier, c.Endpoint}
	}
	if sent != nil {
		carrier = &counter{carrier, sent}
	}
	agent := c.UserAgent
	if agent == "" {
		agent = "multihost"
	}
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(carrier), remote.WithUserAgent(agent), remote.WithAuthFromKeychain(keychain{c})}
}

// redirected sends the requests to all registries to one URL.
type redirected struct {
	next http.RoundTripper
	to   *url.URL
}

func (t redirected) RoundTrip(r *http.Request) (*http.Response, error) {
	there := r.Clone(r.Context())
	there.URL.Scheme, there.URL.Host, there.Host = t.to.Scheme, t.to.Host, ""
	there.URL.Path = t.to.Path + "/" + r.URL.Host + r.URL.Path
	answer, err := t.next.RoundTrip(there)
	if answer != nil {
		answer.Request = r // locations in the answer are relative to this request
	}
	return answer, err
}

// A counter counts the bytes of requests.
type counter struct {
	next http.RoundTripper
	sent *atomic.Int64
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		r = r.Clone(r.Context())
		r.Body = &countedBody{r.Body, c.sent}
	}
	return c.next.RoundTrip(r)
}

type countedBody struct {
	io.ReadCloser
	sent *atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.sent.Add(int64(n))
	return n, err
}

// keychain has a Client's credentials.
type keychain struct{ c *Client }

func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	return k.ResolveContext(context.Background(), r)
}

func (k keychain) ResolveContext(ctx context.Context, r authn.Resource) (authn.Authenticator, error) {
	if k.c.Token != nil && Google(r.RegistryStr()) {
		token, err := k.c.Token(ctx)
		if err != nil {
			return nil, err
		}
		return &authn.Basic{Username: "oauth2accesstoken", Password: token}, nil
	}
	if k.c.Keychain != nil {
		return authn.Resolve(ctx, k.c.Keychain, r)
	}
	return authn.Resolve(ctx, authn.DefaultKeychain, r)
}

// Google reports whether a registry accepts access tokens of Google Cloud.
func Google(registry string) bool {
	return registry == "gcr.io" || strings.HasSuffix(registry, ".gcr.io") || strings.HasSuffix(registry, "-docker.pkg.dev")
}

// A NameError reports that a text is no valid name of an image or repository.
type NameError struct {
	Name string
	Err  error
}

func (e *NameError) Error() string { return fmt.Sprintf("image %q is not a possible name", e.Name) }
func (e *NameError) Unwrap() error { return e.Err }

// Fault returns fault.Usage.
func (e *NameError) Fault() fault.Kind { return fault.Usage }

func (e *NameError) Hint() string {
	return "a name has a registry, a repository in lower case, and a tag or digest: us-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE:TAG"
}

// A ProcessorError reports an image that nodes cannot run.
type ProcessorError struct {
	Image string
	Has   string // system/processor
	Index bool   // the image has several variants, and none is for the nodes
}

func (e *ProcessorError) Error() string {
	if e.Index {
		return fmt.Sprintf("image %q has no variant for %s/%s, which the nodes need", e.Image, system, processor)
	}
	return fmt.Sprintf("image %q is for %s, and the nodes are %s/%s", e.Image, e.Has, system, processor)
}

// Fault returns fault.Configuration.
func (e *ProcessorError) Fault() fault.Kind { return fault.Configuration }

// Hint says how to make an image for the nodes.
func (e *ProcessorError) Hint() string {
	return "build the image for the nodes: docker build --platform=linux/amd64 …"
}

// A RegistryError reports a call that a registry refused or did not answer.
type RegistryError struct {
	What   string // "find image"
	Name   string
	Status int // HTTP status; 0: no answer
	Err    error
}

func (e *RegistryError) Error() string {
	switch e.Status {
	case http.StatusNotFound:
		return fmt.Sprintf("%s %q: the registry does not have it", e.What, e.Name)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Sprintf("%s %q: the registry refuses it to you: %v", e.What, e.Name, e.Err)
	}
	return fmt.Sprintf("%s %q: %v", e.What, e.Name, e.Err)
}

func (e *RegistryError) Unwrap() error { return e.Err }

// Fault returns the kind that follows from Status, or fault.Unknown.
func (e *RegistryError) Fault() fault.Kind {
	switch e.Status {
	case 0:
		return fault.Unknown // the cause decides
	case http.StatusNotFound:
		return fault.Configuration
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.Permission
	case http.StatusTooManyRequests:
		return fault.Temporary
	}
	return fault.Unavailable
}

func (e *RegistryError) Hint() string {
	host, _, _ := strings.Cut(e.Name, "/")
	switch {
	case e.Status == 0:
		if hints := fault.Hints(e.Err); len(hints) > 0 {
			return hints[0]
		}
		return ""
	case e.Status == http.StatusNotFound:
		return "compare the name with what the registry has; a repository of Artifact Registry must exist before a push: gcloud artifacts repositories create"
	case e.Status != http.StatusUnauthorized && e.Status != http.StatusForbidden:
		return ""
	case Google(host):
		return "you need the role roles/artifactregistry.writer to push and roles/artifactregistry.reader to read; sign in with: gcloud auth login"
	}
	return "sign in with: docker login " + host
}

func asTransport(err error) bool {
	var answer *transport.Error
	return errors.As(err, &answer)
}

func registryError(what, named string, err error) error {
	e := &RegistryError{What: what, Name: named, Err: err}
	var answer *transport.Error
	if errors.As(err, &answer) {
		e.Status = answer.StatusCode
		for _, d := range answer.Errors {
			if d.Message != "" {
				e.Err = errors.New(d.Message)
				break
			}
		}
	}
	return e
}
