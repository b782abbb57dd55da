package sim_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	secretmanager "google.golang.org/api/secretmanager/v1"
	storage "google.golang.org/api/storage/v1"
	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim"
	"multihost/internal/testkit"
)

// bearer sends a token with every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b != "" {
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

func objects(t *testing.T, s *sim.Server, token string) *storage.Service {
	t.Helper()
	svc, err := storage.NewService(t.Context(), option.WithEndpoint(s.URL()+"/storage/v1/"), option.WithHTTPClient(&http.Client{Transport: bearer(token)}))
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

func code(err error) int {
	var e *googleapi.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func TestStorageKeepsObjectsAsGooglesClientSendsThem(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	svc := objects(t, s, "")
	read := func(name, byteRange string) string {
		t.Helper()
		call := svc.Objects.Get(sim.DefaultBucket, name)
		if byteRange != "" {
			call.Header().Set("Range", byteRange)
		}
		resp, err := call.Download()
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 40<<10) // 640 KiB: three chunks
	put := func(name string, data []byte, o ...googleapi.MediaOption) (*storage.Object, error) {
		return svc.Objects.Insert(sim.DefaultBucket, &storage.Object{Name: name}).Media(bytes.NewReader(data), o...).Do()
	}
	if _, err := put("run/small file", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if o, err := put("run/large", large, googleapi.ChunkSize(256<<10)); err != nil || o.Size != uint64(len(large)) {
		t.Fatalf("got %+v, %v", o, err)
	}
	for _, c := range [][3]string{
		{"run/small file", "", "hello"}, {"run/small file", "bytes=1-3", "ell"}, {"run/small file", "bytes=2-", "llo"}, {"run/small file", "bytes=-2", "lo"},
		{"run/large", "bytes=655350-", "6789abcdef"},
	} {
		if got := read(c[0], c[1]); got != c[2] {
			t.Errorf("%s %s: got %q, want %q", c[0], c[1], got, c[2])
		}
	}
	if got := read("run/small file", "bytes=5-"); !strings.Contains(got, "416") {
		t.Errorf("a range behind the end: got %s", got)
	}
	composed, err := svc.Objects.Compose(sim.DefaultBucket, "run/both", &storage.ComposeRequest{SourceObjects: []*storage.ComposeRequestSourceObjects{
		{Name: "run/small file"}, {Name: "run/small file"},
	}}).IfGenerationMatch(0).Do()
	if err != nil || composed.ComponentCount != 2 || read("run/both", "") != "hellohello" {
		t.Errorf("composed: %+v, %v", composed, err)
	}
	_, err = svc.Objects.Insert(sim.DefaultBucket, &storage.Object{Name: "run/both"}).IfGenerationMatch(0).Media(strings.NewReader("x")).Do()
	if code(err) != 412 {
		t.Errorf("an object that must not exist: got %v, want 412", err)
	}
	if _, err := svc.Objects.Insert(sim.DefaultBucket, &storage.Object{Name: "run/both"}).IfGenerationMatch(composed.Generation).Media(strings.NewReader("x")).Do(); err != nil {
		t.Error(err)
	}
	if err := svc.Objects.Delete(sim.DefaultBucket, "run/both").Do(); err != nil {
		t.Error(err)
	}
	if err := svc.Objects.Delete(sim.DefaultBucket, "run/both").Do(); code(err) != 404 {
		t.Errorf("a second deletion: got %v, want 404", err)
	}

	for i := range 5 {
		if _, err := put(fmt.Sprintf("list/%d/x", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	err = svc.Objects.List(sim.DefaultBucket).Prefix("list/").MaxResults(2).Pages(t.Context(), func(page *storage.Objects) error {
		for _, o := range page.Items {
			names = append(names, o.Name)
		}
		return nil
	})
	if diff := cmp.Diff([]string{"list/0/x", "list/1/x", "list/2/x", "list/3/x", "list/4/x"}, names); err != nil || diff != "" {
		t.Errorf("%v, list (-want +got):\n%s", err, diff)
	}
	dirs, err := svc.Objects.List(sim.DefaultBucket).Delimiter("/").Do()
	if err != nil || cmp.Diff([]string{"list/", "run/"}, dirs.Prefixes) != "" {
		t.Errorf("directories: %v, %v", dirs, err)
	}
	if _, err := svc.Buckets.Get("nobodys").Do(); code(err) != 404 {
		t.Errorf("a bucket that is not there: got %v, want 404", err)
	}
}

func TestStorageCopiesAndFailsClosed(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	svc := objects(t, s, "")
	first, err := svc.Objects.Insert(sim.DefaultBucket, &storage.Object{Name: "a/b c", CacheControl: "no-store", Metadata: map[string]string{"k": "v"}}).Media(strings.NewReader("hello"), googleapi.ContentType("text/x")).Do()
	if err != nil {
		t.Fatal(err)
	}
	got, err := svc.Objects.Rewrite(sim.DefaultBucket, "a/b c", sim.DefaultBucket, "copy", &storage.Object{}).IfSourceGenerationMatch(first.Generation).IfGenerationMatch(0).Do()
	if err != nil || !got.Done || got.ObjectSize != 5 || got.Resource.ContentType != "text/x" || got.Resource.Metadata["k"] != "v" || got.Resource.CacheControl != "no-store" {
		t.Errorf("a copy: got %+v, %v", got, err)
	}
	got, err = svc.Objects.Rewrite(sim.DefaultBucket, "a/b c", sim.DefaultBucket, "copy", &storage.Object{ContentType: "text/y"}).Do()
	if err != nil || got.Resource.ContentType != "text/y" || got.Resource.Metadata != nil {
		t.Errorf("a copy with metadata of its own: got %+v, %v", got, err)
	}
	for _, c := range []struct {
		story, method, path, body string
		want                      int
	}{
		{"media by the link of the object", "GET", strings.TrimPrefix(first.MediaLink, s.URL()), "", 200},
		{"a copy of what is not there", "POST", "/storage/v1/b/multihost-sim/o/none/rewriteTo/b/multihost-sim/o/x", "", 404},
		{"a copy of another generation", "POST", "/storage/v1/b/multihost-sim/o/a%2Fb%20c/rewriteTo/b/multihost-sim/o/x?ifSourceGenerationMatch=1", "", 412},
		{"a copy to no bucket", "POST", "/storage/v1/b/multihost-sim/o/a%2Fb%20c/rewriteTo/b/nobodys/o/x", "", 404},
		{"a copy with an unknown parameter", "POST", "/storage/v1/b/multihost-sim/o/a%2Fb%20c/rewriteTo/b/multihost-sim/o/x?foo=1", "", 400},
		{"a copy with an unknown field", "POST", "/storage/v1/b/multihost-sim/o/a%2Fb%20c/rewriteTo/b/multihost-sim/o/x", `{"foo":1}`, 400},
		{"another storage class", "POST", "/storage/v1/b/multihost-sim/o/a%2Fb%20c/rewriteTo/b/multihost-sim/o/x", `{"storageClass":"NEARLINE"}`, 501},
		{"chunks of a strange size", "POST", "/storage/v1/b/multihost-sim/o/a%2Fb%20c/rewriteTo/b/multihost-sim/o/x?maxBytesRewrittenPerCall=5", "", 400},
		{"the other way to copy", "POST", "/storage/v1/b/multihost-sim/o/a%2Fb%20c/copyTo/b/multihost-sim/o/x", "", 501},
		{"a change of metadata", "PATCH", "/storage/v1/b/multihost-sim/o/copy", `{"contentType":"text/z"}`, 501},
		{"objects that were deleted", "GET", "/storage/v1/b/multihost-sim/o?softDeleted=true", "", 501},
		{"a list by pattern", "GET", "/storage/v1/b/multihost-sim/o?matchGlob=*", "", 501},
		{"a field that objects lack", "GET", "/storage/v1/b/multihost-sim/o?fields=items/foo", "", 400},
		{"metageneration of another", "GET", "/storage/v1/b/multihost-sim/o/copy?ifMetagenerationMatch=2", "", 412},
		{"buckets", "GET", "/storage/v1/b?project=multihost-sim", "", 200},
		{"buckets of another project", "GET", "/storage/v1/b?project=another", "", 400},
		{"layout", "GET", "/storage/v1/b/multihost-sim/storageLayout", "", 200},
		{"folders", "GET", "/storage/v1/b/multihost-sim/folders", "", 501},
		{"a wrong checksum", "POST", "/upload/storage/v1/b/multihost-sim/o?uploadType=multipart&name=x", "", 400},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.URL()+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(c.path, "/upload") {
			req.Header.Set("Content-Type", "multipart/related; boundary='=1='") // in gcloud's quotes
			req.Body = io.NopCloser(strings.NewReader("--=1=\r\nContent-Type: application/json\r\n\r\n{\"md5Hash\":\"AAAA\"}\r\n--=1=\r\nContent-Type: text/x\r\n\r\nhello\r\n--=1=--\r\n"))
			req.ContentLength = -1
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s: got %d, want %d: %s", c.story, resp.StatusCode, c.want, text)
		}
		if c.story == "a wrong checksum" && !strings.Contains(string(text), "MD5") {
			t.Errorf("%s: got %s", c.story, text)
		}
	}
}

// A worker's token has the rights of its node's service account, within its scopes. It
// becomes invalid with the node.
func TestWorkersTokensAreGoodForWhatTheyMay(t *testing.T) {
	testkit.Need(t, "curl")
	t.Parallel()
	s, _ := start(t, func(c *sim.Config) { c.Workers, c.Secrets = nil, map[string]string{"key": "hunter2"} })
	svc := alpha(t, s)
	node := func(id string, scopes ...string) string {
		t.Helper()
		_, err := svc.Nodes.Create(parent, &tpualpha.Node{
			AcceleratorType: "v4-8", RuntimeVersion: "tpu-ubuntu2204-base", NetworkConfig: &tpualpha.NetworkConfig{EnableExternalIps: true},
			ServiceAccount: &tpualpha.ServiceAccount{Email: id + "@x.iam.gserviceaccount.com", Scope: scopes},
			Metadata: map[string]string{"startup-script": `#!/bin/bash
curl -sS -H 'Metadata-Flavor: Google' "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/service-accounts/default/token" | sed 's/.*"access_token":"\([^"]*\)".*/\1/' >"$HOME/token.new"
id -un >>"$HOME/boots"
mv "$HOME/token.new" "$HOME/token"
`},
		}).NodeId(id).Do()
		if err != nil {
			t.Fatal(err)
		}
		path := func(name string) string {
			found, _ := filepath.Glob(filepath.Join(s.Dir(), "workers", "*"+id+"*", "root", name))
			return strings.Join(found, "")
		}
		testkit.Eventually(t, "the startup script", func() bool { return path("token") != "" })
		b, err := os.ReadFile(path("token"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	all := node("all", "https://www.googleapis.com/auth/cloud-platform")
	reader := node("reader", "https://www.googleapis.com/auth/devstorage.read_only")

	insert := func(token string) error {
		_, err := objects(t, s, token).Objects.Insert(sim.DefaultBucket, &storage.Object{Name: "x"}).Media(strings.NewReader("x")).Do()
		return err
	}
	secret := func(token string) error {
		svc, err := secretmanager.NewService(t.Context(), option.WithEndpoint(s.URL()), option.WithHTTPClient(&http.Client{Transport: bearer(token)}))
		if err != nil {
			t.Fatal(err)
		}
		got, err := svc.Projects.Secrets.Versions.Access("projects/" + sim.DefaultProject + "/secrets/key/versions/latest").Do()
		if err == nil && got.Payload.Data != "aHVudGVyMg==" {
			t.Errorf("got %q", got.Payload.Data)
		}
		return err
	}
	for story, c := range map[string]struct {
		err  error
		want int
	}{
		"full scope writes":         {insert(all), 0},
		"full scope reads secrets":  {secret(all), 0},
		"read-only scope writes":    {insert(reader), 403},
		"read-only scope, secrets":  {secret(reader), 403},
		"a token that nobody gave":  {insert("ya29.simulated-all-0-0"), 401},
		"a token of somebody's own": {insert("ya29.mine"), 0},
	} {
		if code(c.err) != c.want {
			t.Errorf("%s: got %v, want %d", story, c.err, c.want)
		}
	}
	inject(t, s, "permission-denied permission=storage.objects.* account=all@* n=all")
	if err := insert(all); code(err) != 403 || !strings.Contains(err.Error(), "storage.objects.create") {
		t.Errorf("without the permission: got %v", err)
	}
	if err := insert(""); err != nil {
		t.Errorf("the user still may: %v", err)
	}
	if _, err := svc.Nodes.Delete(parent + "/nodes/all").Do(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the token to die", func() bool { return code(secret(all)) == 401 })
}

// The API shows other callers the guest attributes that a worker writes.
func TestGuestAttributesOfWorkers(t *testing.T) {
	testkit.Need(t, "curl")
	t.Parallel()
	s, _ := start(t, preset(t, "t:1xv4-16"), func(c *sim.Config) { c.Workers = nil })
	svc := alpha(t, s)
	_, err := svc.Nodes.Patch(parent+"/nodes/t", &tpualpha.Node{Metadata: map[string]string{"startup-script": `#!/bin/bash
curl -sS -X PUT --data-binary "number $(hostname)" -H 'Metadata-Flavor: Google' "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/guest-attributes/multihost/state"
`}}).UpdateMask("metadata").Do()
	if err != nil {
		t.Fatal(err)
	}
	inject(t, s, "worker-reboot node=t worker=1")
	testkit.Eventually(t, "the attribute", func() bool {
		got, err := svc.Nodes.GetGuestAttributes(parent+"/nodes/t", &tpualpha.GetGuestAttributesRequest{QueryPath: "multihost/", WorkerIds: []string{"1"}}).Do()
		items := got.GuestAttributes[0].QueryValue.Items
		return err == nil && len(items) == 1 && strings.HasSuffix(items[0].Value, "-w-1")
	})
}
