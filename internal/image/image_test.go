package image_test

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"multihost/internal/codesync"
	"multihost/internal/fault"
	"multihost/internal/image"
	"multihost/internal/testkit"
)

// A fake is a registry in this process. It records its requests.
type fake struct {
	host   string
	refuse func(*http.Request) int // status that refuses a request; 0: accept

	mu      sync.Mutex
	mounted int
	auth    []string
	blobs   map[string]bool // "repository digest"
}

// scope replaces answers of the library's registry that differ from real registries. The
// library's registry has one store for all repositories, and knows no mounts. In a real
// registry, a repository does not see the blobs of another one. The result is the status of
// the answer; 0: the library answers.
func (f *fake) scope(r *http.Request) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.auth = append(f.auth, r.Header.Get("Authorization"))
	repo, rest, blob := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/blobs/")
	query := r.URL.Query()
	if from := query.Get("from"); query.Get("mount") != "" && f.blobs[from+" "+query.Get("mount")] {
		f.mounted++
		f.blobs[repo+" "+query.Get("mount")] = true
		return http.StatusCreated
	}
	if r.Method == http.MethodPut {
		f.blobs[repo+" "+query.Get("digest")] = true
	}
	if blob && r.Method == http.MethodHead && !f.blobs[repo+" "+rest] {
		return http.StatusNotFound
	}
	return 0
}

func newRegistry(t *testing.T) *fake {
	t.Helper()
	f := &fake{blobs: map[string]bool{}}
	next := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := f.scope(r); status != 0 {
			w.WriteHeader(status)
			return
		}
		if f.refuse != nil {
			if status := f.refuse(r); status != 0 {
				w.WriteHeader(status)
				return
			}
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	f.host = strings.TrimPrefix(server.URL, "http://")
	return f
}

// put stores an image for a platform.
func (f *fake) put(t *testing.T, repo string, img v1.Image, arch string) string {
	t.Helper()
	ref, err := name.ParseReference(f.host + "/" + repo)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, platform(t, img, arch)); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

func platform(t *testing.T, img v1.Image, arch string) v1.Image {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config.Env = "linux", arch, []string{"PATH=/usr/bin"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

func small(t *testing.T, size int64, layers int64) v1.Image {
	t.Helper()
	img, err := random.Image(size, layers)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// tree scans a directory with files.
func tree(t *testing.T, files map[string]string) *codesync.Tree {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := codesync.Scan(t.Context(), codesync.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

func code(t *testing.T, files map[string]string) *image.Layer {
	t.Helper()
	l, err := image.Files(t.Context(), tree(t, files), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// content returns the files of an image by name. Files of later layers replace earlier
// ones.
func content(t *testing.T, ref string) (map[string]string, *v1.ConfigFile) {
	t.Helper()
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(parsed)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for archive := tar.NewReader(r); ; {
			h, err := archive.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			files[h.Name] = string(text)
		}
	}
	return files, config
}

func TestCodeOnABase(t *testing.T) {
	t.Parallel()
	f := newRegistry(t)
	for _, kind := range []types.MediaType{types.DockerManifestSchema2, types.OCIManifestSchema1} {
		base := f.put(t, "base:v1", mutate.MediaType(small(t, 1000, 2), kind), "amd64")
		c := &image.Client{}
		found, err := c.Find(t.Context(), base)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(found.Ref, f.host+"/base@sha256:") || found.Size == 0 {
			t.Errorf("%+v", found)
		}
		agent, err := image.Executable("/multihost-agent", []byte("program"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Push(t.Context(), found, f.host+"/run", agent, code(t, map[string]string{"train.py": "print(1)", "lib/a.py": "a"}))
		if err != nil {
			t.Fatal(err)
		}
		files, config := content(t, p.Ref)
		for name, want := range map[string]string{"app/train.py": "print(1)", "app/lib/a.py": "a", "multihost-agent": "program", "app/": "", "app/lib/": ""} {
			if got, ok := files[name]; !ok || got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if config.Config.WorkingDir != "/app" || config.Architecture != "amd64" || !slices.Equal(config.Config.Env, []string{"PATH=/usr/bin"}) || len(config.RootFS.DiffIDs) != 4 {
			t.Errorf("%+v", config)
		}
		// Nodes can run the image, and its layers have the media type of the base's layers.
		back, err := c.Find(t.Context(), p.Ref)
		if err != nil || back.Ref != p.Ref {
			t.Errorf("%+v, %v", back, err)
		}
	}
}

// The same files give the same image, in any order and with any times. The image is pushed only
// once.
func TestTheSameCodeIsTheSameImage(t *testing.T) {
	t.Parallel()
	f := newRegistry(t)
	c := &image.Client{}
	base, err := c.Find(t.Context(), f.put(t, "base:v1", small(t, 1000, 1), "amd64"))
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("0123456789abcdef", 1<<18) // large enough to be compressed on several cores
	var refs []string
	for i, text := range []string{big, big, "other"} {
		p, err := c.Push(t.Context(), base, f.host+"/run", code(t, map[string]string{"a": text, "b/c": "d"}))
		if err != nil {
			t.Fatal(err)
		}
		if p.Same != (i == 1) || p.Same != (p.Sent == 0) {
			t.Errorf("push %d: %+v", i, p)
		}
		refs = append(refs, p.Ref)
	}
	if refs[0] != refs[1] || refs[0] == refs[2] {
		t.Errorf("%q", refs)
	}
}

// 5 MB of code on a base of 200 MB costs at most 6 MB: the layers of the base are mounted,
// and the agent is sent once. `make test` uses a twentieth of all sizes.
func TestAPushSendsTheCodeOnly(t *testing.T) {
	t.Parallel()
	f := newRegistry(t)
	unit := int64(50_000)
	if testkit.All(t) {
		unit = 1_000_000
	}
	c := &image.Client{}
	base, err := c.Find(t.Context(), f.put(t, "team/base:v1", small(t, 20*unit, 10), "amd64"))
	if err != nil {
		t.Fatal(err)
	}
	noise := func(n int64) string {
		b := make([]byte, n)
		_, _ = rand.Read(b) // never fails
		return string(b)
	}
	agent, err := image.Executable("/multihost-agent", []byte(noise(3*unit)))
	if err != nil {
		t.Fatal(err)
	}
	for i, most := range []int64{9 * unit, 6 * unit} {
		p, err := c.Push(t.Context(), base, f.host+"/ann/run", agent, code(t, map[string]string{"train.py": noise(5 * unit)}))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("push %d sent %d bytes of %d", i, p.Sent, base.Size+8*unit)
		if p.Sent > most || p.Sent < 5*unit {
			t.Errorf("push %d sent %d bytes, want at most %d", i, p.Sent, most)
		}
	}
	if f.mounted != 10 {
		t.Errorf("%d layers were mounted", f.mounted)
	}
}

func TestLayersOfAnotherRegistryAreCopied(t *testing.T) {
	t.Parallel()
	from, to := newRegistry(t), newRegistry(t)
	c := &image.Client{}
	base, err := c.Find(t.Context(), from.put(t, "base:v1", small(t, 100_000, 2), "amd64"))
	if err != nil {
		t.Fatal(err)
	}
	for i, least := range []int64{200_000, 0} {
		p, err := c.Push(t.Context(), base, to.host+"/run", code(t, map[string]string{"a": strings.Repeat("x", i)}))
		if err != nil || p.Sent < least || i == 1 && p.Sent > 10_000 {
			t.Errorf("push %d: %+v, %v", i, p, err)
		}
	}
}

func TestOnlyTheAgent(t *testing.T) {
	t.Parallel()
	f := newRegistry(t)
	agent, err := image.Executable("/multihost-agent", []byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := (&image.Client{}).Push(t.Context(), image.Empty(), f.host+"/agent", agent)
	if err != nil {
		t.Fatal(err)
	}
	files, config := content(t, p.Ref)
	if files["multihost-agent"] != "program" || len(files) != 1 || config.Architecture != "amd64" || config.OS != "linux" {
		t.Errorf("%q, %+v", files, config)
	}
}

func TestTheVariantForTheNodesIsChosen(t *testing.T) {
	t.Parallel()
	f := newRegistry(t)
	for _, archs := range [][]string{{"arm64", "amd64"}, {"arm64", "s390x"}} {
		var index v1.ImageIndex = empty.Index
		var want string
		for _, arch := range archs {
			img := platform(t, small(t, 100, 1), arch)
			if arch == "amd64" {
				digest, err := img.Digest()
				if err != nil {
					t.Fatal(err)
				}
				want = digest.String()
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
		}
		ref, err := name.ParseReference(f.host + "/many:v1")
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.WriteIndex(ref, index); err != nil {
			t.Fatal(err)
		}
		found, err := (&image.Client{}).Find(t.Context(), ref.String())
		if want != "" && (err != nil || found.Ref != f.host+"/many@"+want) {
			t.Errorf("%+v, %v, want %s", found, err, want)
		}
		var processor *image.ProcessorError
		if want == "" && !errors.As(err, &processor) {
			t.Errorf("%v", err)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	f, closed := newRegistry(t), newRegistry(t)
	closed.refuse = func(r *http.Request) int {
		if r.URL.Path == "/v2/" {
			return 0
		}
		return http.StatusForbidden
	}
	arm := f.put(t, "arm:v1", small(t, 10, 1), "arm64")
	fine := f.put(t, "fine:v1", small(t, 10, 1), "amd64")
	base, err := (&image.Client{}).Find(t.Context(), fine)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, want string
		kind       fault.Kind
		hint       string
		push       bool
	}{
		{name: "UPPER:x y", want: `image "UPPER:x y" is not a possible name`, kind: fault.Usage, hint: "a name has a registry"},
		{name: f.host + "/none:v1", want: `find image "` + f.host + `/none:v1": the registry does not have it`, kind: fault.Configuration, hint: "compare the name"},
		{name: arm, want: `image "` + arm + `" is for linux/arm64, and the nodes are linux/amd64`, kind: fault.Configuration, hint: "build the image for the nodes: docker build --platform=linux/amd64 …"},
		{name: closed.host + "/x:v1", want: `find image "` + closed.host + `/x:v1": the registry refuses it to you: `, kind: fault.Permission, hint: "sign in with: docker login " + closed.host},
		{name: closed.host + "/x", push: true, want: `push image to "` + closed.host + `/x": the registry refuses it to you: `, kind: fault.Permission, hint: "sign in with"},
		{name: "127.0.0.1:1/x:v1", want: `find image "127.0.0.1:1/x:v1": `, kind: fault.Unavailable},
		{name: "a b", push: true, want: `image "a b" is not a possible name`, kind: fault.Usage, hint: "a name has"},
	} {
		var err error
		if tt.push {
			_, err = (&image.Client{}).Push(t.Context(), base, tt.name)
		} else {
			_, err = (&image.Client{}).Find(t.Context(), tt.name)
		}
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) || fault.Of(err) != tt.kind {
			t.Errorf("%s: %v of kind %v, want %s of %v", tt.name, err, fault.Of(err), tt.want, tt.kind)
			continue
		}
		if hints := strings.Join(fault.Hints(err), ""); !strings.HasPrefix(hints, tt.hint) || tt.hint == "" && hints != "" {
			t.Errorf("%v: hint %q, want %q", err, hints, tt.hint)
		}
	}
}

func TestNamesThatRemoveFilesAreRefused(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	_, err := image.Files(t.Context(), tree(t, map[string]string{"a/.wh.b": "x"}), temp)
	var removes *image.WhiteoutError
	if !errors.As(err, &removes) || removes.Path != "app/a/.wh.b" {
		t.Errorf("%v", err)
	}
	if left, _ := os.ReadDir(temp); len(left) != 0 {
		t.Errorf("files stay: %v", left)
	}
}

// fixed has the same credentials for every registry.
type fixed struct{ user string }

func (f fixed) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: f.user, Password: "p"}, nil
}

func TestWhoGetsWhichCredentials(t *testing.T) {
	t.Parallel()
	f := newRegistry(t)
	f.put(t, "p/i:v1", small(t, 10, 1), "amd64")
	f.refuse = func(r *http.Request) int { // like a real registry, first say which credentials are accepted
		if r.Header.Get("Authorization") == "" {
			return http.StatusUnauthorized
		}
		return 0
	}
	asked := 0
	c := &image.Client{
		Token:    func(context.Context) (string, error) { asked++; return "secret", nil },
		Keychain: fixed{"docker"}, Transport: toward(f.host),
	}
	for host, want := range map[string]string{"gcr.io": "oauth2accesstoken:secret", "us-docker.pkg.dev": "oauth2accesstoken:secret", "registry.example.com": "docker:p"} {
		if _, err := c.Find(t.Context(), host+"/p/i:v1"); err != nil {
			t.Error(err)
		}
		r := &http.Request{Header: http.Header{"Authorization": f.auth[len(f.auth)-1:]}}
		if user, password, _ := r.BasicAuth(); user+":"+password != want {
			t.Errorf("%s got %s:%s, want %s", host, user, password, want)
		}
	}
	if asked == 0 {
		t.Error("nobody asked for a token")
	}
	c.Token = func(context.Context) (string, error) { return "", fault.New(fault.Permission, "no credentials") }
	if _, err := c.Find(t.Context(), "gcr.io/p/i:v1"); fault.Of(err) != fault.Permission {
		t.Errorf("%v", err)
	}
}

// toward sends all requests to one host, without TLS.
type toward string

func (h toward) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", string(h)
	return http.DefaultTransport.RoundTrip(r)
}
