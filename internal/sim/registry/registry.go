// Package registry is the simulator's container registry. It stands in for all registries:
// the first part of a request's path is the name of the registry that the client means.
//
//	/gcr.io/v2/p/ann-runner/manifests/latest
//
// It keeps images in memory and asks nobody who they are. As in a real registry, a
// repository sees only its own layers, and a push can mount those of another repository of
// the same registry. A tag that nobody has pushed is made when somebody reads it: it is an
// image without files. So every base image exists.
package registry

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A Registry serves images. Its methods are safe for concurrent use.
type Registry struct {
	mu   sync.Mutex
	host map[string]*host
}

// New returns a registry without images.
func New() *Registry { return &Registry{host: map[string]*host{}} }

// ServeHTTP serves the registry that the first part of the path names.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	named, _, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/"), "/")
	http.StripPrefix("/"+named, r.named(named)).ServeHTTP(w, q)
}

func (r *Registry) named(named string) *host {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.host[named]
	if h == nil {
		h = &host{images: registry.New(registry.Logger(log.New(io.Discard, "", 0))), blobs: map[string]bool{}}
		r.host[named] = h
	}
	return h
}

// A host is one registry.
type host struct {
	images http.Handler // has one store of blobs for all repositories, and no mounts

	mu    sync.Mutex
	blobs map[string]bool // that a repository has: "repository digest"
}

func (h *host) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if tag(q) && q.Method == http.MethodGet && !h.has(q.URL.Path) {
		if err := h.invent(q.URL.Path); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	switch status, digest := h.scope(q); status {
	case 0:
		h.images.ServeHTTP(w, q)
	case http.StatusCreated:
		w.Header().Set("Docker-Content-Digest", digest)
		w.Header().Set("Location", strings.TrimSuffix(q.URL.Path, "uploads/")+digest)
		w.WriteHeader(status)
	default:
		w.WriteHeader(status)
	}
}

// scope keeps the blobs of repositories apart. It returns the status of the answer; 0: the
// images decide.
func (h *host) scope(q *http.Request) (status int, digest string) {
	repository, rest, blob := strings.Cut(strings.TrimPrefix(q.URL.Path, "/v2/"), "/blobs/")
	if !blob {
		return 0, ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	query := q.URL.Query()
	mount := query.Get("mount")
	switch {
	case q.Method == http.MethodPost && mount != "" && h.blobs[query.Get("from")+" "+mount]:
		h.blobs[repository+" "+mount] = true
		return http.StatusCreated, mount
	case q.Method == http.MethodPut:
		h.blobs[repository+" "+query.Get("digest")] = true
	case (q.Method == http.MethodHead || q.Method == http.MethodGet) && !h.blobs[repository+" "+rest]:
		return http.StatusNotFound, ""
	}
	return 0, ""
}

// tag reports whether a request is about an image that a tag names.
func tag(q *http.Request) bool {
	_, reference, ok := strings.Cut(q.URL.Path, "/manifests/")
	return ok && !strings.Contains(reference, ":")
}

func (h *host) has(path string) bool {
	answer := httptest.NewRecorder()
	h.images.ServeHTTP(answer, httptest.NewRequest(http.MethodHead, path, nil))
	return answer.Code == http.StatusOK
}

// invent stores an image without files.
func (h *host) invent(path string) error {
	repository, named, _ := strings.Cut(strings.TrimPrefix(path, "/v2/"), "/manifests/")
	ref, err := name.NewTag("registry.invalid/" + repository + ":" + named)
	if err != nil {
		return err
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return err
	}
	return remote.Write(ref, image, remote.WithTransport(inProcess{h}))
}

// inProcess sends requests to a handler of this process.
type inProcess struct{ to http.Handler }

// RoundTrip implements http.RoundTripper.
func (p inProcess) RoundTrip(q *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	served := q.Clone(q.Context())
	if served.Body == nil {
		served.Body = http.NoBody
	}
	p.to.ServeHTTP(answer, served)
	result := answer.Result()
	result.Request = q
	return result, nil
}

// Unpack writes below root the files that an image has in its working directory, and small
// files of its top directory. It returns the working directory, or "" if the image has none
// or nobody has pushed it. The rest of the image is not written: pods of the simulator use
// the programs of this machine.
func (r *Registry) Unpack(image, root string) (dir string, err error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", nil // an image of this name cannot be here
	}
	h := r.named(ref.Context().RegistryStr())
	if !h.has("/v2/" + ref.Context().RepositoryStr() + "/manifests/" + ref.Identifier()) {
		return "", nil
	}
	found, err := remote.Image(ref, remote.WithTransport(inProcess{h}))
	if err != nil {
		return "", fmt.Errorf("unpack image %q: %w", image, err)
	}
	config, err := found.ConfigFile()
	if err != nil {
		return "", fmt.Errorf("unpack image %q: %w", image, err)
	}
	dir = config.Config.WorkingDir
	if dir == "/" {
		dir = ""
	}
	layers, err := found.Layers()
	for _, l := range layers {
		if err == nil {
			err = unpack(l, dir, root)
		}
	}
	if err != nil {
		return "", fmt.Errorf("unpack image %q: %w", image, err)
	}
	return dir, nil
}

// smallFile is the greatest size of a file of the top directory that Unpack writes. It is
// below the size of multihost-agent, which the simulator has once for all pods.
const smallFile = 1 << 20

// unpack writes the files of a layer that Unpack writes.
func unpack(l v1.Layer, dir, root string) error {
	content, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer content.Close()
	below, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer below.Close()
	archive := tar.NewReader(content)
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		file := path.Join("/", head.Name)
		inDir := dir != "" && (file == dir || strings.HasPrefix(file, dir+"/"))
		if small := path.Dir(file) == "/" && head.Typeflag == tar.TypeReg && head.Size <= smallFile; !inDir && !small {
			continue
		}
		if err := write(below, strings.TrimPrefix(file, "/"), head, archive); err != nil {
			return err
		}
	}
}

func write(root *os.Root, file string, head *tar.Header, content io.Reader) error {
	if head.Typeflag == tar.TypeDir {
		return root.MkdirAll(file, 0o777)
	}
	if err := root.MkdirAll(path.Dir(file), 0o777); err != nil {
		return err
	}
	// A file of a later layer replaces one of an earlier layer.
	if err := root.RemoveAll(file); err != nil {
		return err
	}
	switch head.Typeflag {
	case tar.TypeSymlink:
		return root.Symlink(head.Linkname, file)
	case tar.TypeReg:
		var b bytes.Buffer
		if _, err := io.Copy(&b, content); err != nil {
			return err
		}
		return root.WriteFile(file, b.Bytes(), head.FileInfo().Mode().Perm())
	}
	return nil
}
