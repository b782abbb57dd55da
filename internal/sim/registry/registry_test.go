package registry_test

import (
	"context"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/image"
	"multihost/internal/sim/registry"
	"multihost/internal/testkit"
)

func client(t *testing.T, r *registry.Registry) *image.Client {
	t.Helper()
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	to, err := url.Parse(server.URL)
	testkit.Must(t, err)
	return &image.Client{Endpoint: to, Token: func(context.Context) (string, error) { return "t", nil }}
}

func files(t *testing.T, content string) *image.Layer {
	t.Helper()
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "train.py"), []byte(content), 0o644))
	testkit.Must(t, os.Symlink("train.py", filepath.Join(dir, "main.py")))
	tree, err := codesync.Scan(t.Context(), codesync.Options{Dir: dir, Sink: event.Discard, ReadOnly: true})
	testkit.Must(t, err)
	l, err := image.Files(t.Context(), tree, t.TempDir())
	testkit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// A second image on the first one sends its own layer only: the others are mounted.
func TestLayersAreMounted(t *testing.T) {
	t.Parallel()
	r := registry.New()
	c := client(t, r)
	base, err := c.Find(t.Context(), "gcr.io/p/base:1")
	testkit.Must(t, err)
	big := make([]byte, 100_000)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(big) // it has no errors
	first, err := c.Push(t.Context(), base, "gcr.io/p/one", files(t, string(big)))
	testkit.Must(t, err)
	if first.Sent < 100_000 {
		t.Errorf("the first push sent %d bytes", first.Sent)
	}
	again, err := c.Find(t.Context(), first.Ref)
	testkit.Must(t, err)
	second, err := c.Push(t.Context(), again, "gcr.io/p/two", files(t, "second"))
	testkit.Must(t, err)
	if second.Sent > 10_000 {
		t.Errorf("the second push sent %d bytes", second.Sent)
	}
	// Another registry has none of these layers.
	third, err := c.Push(t.Context(), again, "eu.gcr.io/p/two", files(t, "second"))
	testkit.Must(t, err)
	if third.Sent < 100_000 {
		t.Errorf("the push to another registry sent %d bytes", third.Sent)
	}

	root := t.TempDir()
	dir, err := r.Unpack(second.Ref, root)
	testkit.Must(t, err)
	text, err := os.ReadFile(filepath.Join(root, dir, "train.py"))
	if dir != image.Dir || err != nil || string(text) != "second" {
		t.Errorf("%q, %q, %v", dir, text, err)
	}
	if text, err := os.ReadFile(filepath.Join(root, dir, "main.py")); err != nil || string(text) != "second" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestUnpackReadsNothingOfUnknownImages(t *testing.T) {
	t.Parallel()
	for _, named := range []string{"i", "gcr.io/p/i:1", "A b"} {
		if dir, err := registry.New().Unpack(named, t.TempDir()); dir != "" || err != nil {
			t.Errorf("%s: %q, %v", named, dir, err)
		}
	}
}
