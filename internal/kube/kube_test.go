package kube_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/kube"
	"multihost/internal/testkit"
)

// serve starts an API server with TLS that answers by handler, and returns how to reach it.
func serve(t *testing.T, handler http.HandlerFunc) kube.Config {
	t.Helper()
	s := httptest.NewTLSServer(handler)
	t.Cleanup(s.Close)
	return kube.Config{
		Server: s.URL, CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
		Token: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "secret"}),
		Sink:  event.Discard, Clock: testkit.NewJumpClock(), SignIn: "gcloud auth application-default login",
	}
}

func client(t *testing.T, cfg kube.Config) *kube.Client {
	t.Helper()
	c, err := kube.New(cfg)
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	return c
}

func answer(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

// refuse answers with a Status, like API servers.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message})
}

func pod(name, version string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{
		"name": name, "namespace": "team", "uid": "uid-" + name, "resourceVersion": version}}
}

func TestGetIsSigned(t *testing.T) {
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.URL.Path != "/api/v1/namespaces/team/pods/p" {
			t.Errorf("got %s with %q", r.URL, r.Header.Get("Authorization"))
		}
		answer(w, 200, pod("p", "7"))
	}))
	got, err := kube.Pods.In(c, "team").Get(t.Context(), "p")
	if err != nil || got.Name != "p" || got.ResourceVersion != "7" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestForeignCertificate(t *testing.T) {
	cfg := serve(t, func(http.ResponseWriter, *http.Request) {})
	cfg.CA = nil
	_, err := kube.Pods.In(client(t, cfg), "").Get(t.Context(), "p")
	if fault.Of(err) != fault.Configuration || len(fault.Hints(err)) != 1 {
		t.Errorf("got %v (%s), hints %q", err, fault.Of(err), fault.Hints(err))
	}
}

type noToken struct{}

func (noToken) Token() (*oauth2.Token, error) {
	return nil, fault.New(fault.Permission, "no credentials")
}

func TestWithoutCredentials(t *testing.T) {
	cfg := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("it was asked") })
	cfg.Token = noToken{}
	_, err := kube.Pods.In(client(t, cfg), "").Get(t.Context(), "p")
	if fault.Of(err) != fault.Permission || !slices.Equal(fault.Hints(err), []string{cfg.SignIn}) {
		t.Errorf("got %v (%s), hints %q", err, fault.Of(err), fault.Hints(err))
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		code   int
		reason metav1.StatusReason
		kind   fault.Kind
		is     func(error) bool
		hint   string
		tries  bool
	}{
		{401, metav1.StatusReasonUnauthorized, fault.Permission, nil, "gcloud auth", false},
		{403, metav1.StatusReasonForbidden, fault.Permission, nil, "roles/container.developer", false},
		{404, metav1.StatusReasonNotFound, fault.Unavailable, kube.NotFound, "", false},
		{409, metav1.StatusReasonConflict, fault.Unavailable, kube.Conflict, "", false},
		{409, metav1.StatusReasonAlreadyExists, fault.Unavailable, kube.AlreadyExists, "", false},
		{410, metav1.StatusReasonExpired, fault.Unavailable, kube.Expired, "", false},
		{422, metav1.StatusReasonInvalid, fault.Usage, kube.Invalid, "", false},
		{429, metav1.StatusReasonTooManyRequests, fault.Temporary, nil, "", true},
		{500, metav1.StatusReasonInternalError, fault.Unavailable, nil, "", true},
		{409, "", fault.Unavailable, kube.Conflict, "", false}, // a proxy's own answer
		{503, metav1.StatusReasonServiceUnavailable, fault.Unavailable, nil, "", true},
		{504, metav1.StatusReasonTimeout, fault.Temporary, nil, "", true},
	} {
		t.Run(fmt.Sprint(tt.code, " ", tt.reason), func(t *testing.T) {
			c := client(t, serve(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, tt.code, tt.reason, "because") }))
			_, err := kube.Pods.In(c, "team").Get(t.Context(), "p")
			var e *kube.Error
			if !errors.As(err, &e) || fault.Of(err) != tt.kind || tt.is != nil && !tt.is(err) || (e.Tries > 1) != tt.tries {
				t.Fatalf("got %v (%s)", err, fault.Of(err))
			}
			if text := `get Pod "team/p": because`; !strings.HasPrefix(err.Error(), text) {
				t.Errorf("got %q, want %q", err, text)
			}
			if hints := strings.Join(fault.Hints(err), ""); !strings.Contains(hints, tt.hint) || tt.hint == "" && hints != "" {
				t.Errorf("hints %q, want %q", hints, tt.hint)
			}
		})
	}
}

func TestCutConnectionsAreTriedAgain(t *testing.T) {
	tries := 0
	cfg := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if tries++; tries < 3 {
			panic(http.ErrAbortHandler)
		}
		answer(w, 200, pod("p", "1"))
	})
	if _, err := kube.Pods.In(client(t, cfg), "").Get(t.Context(), "p"); err != nil || tries < 3 {
		t.Errorf("%d tries, %v", tries, err)
	}
}

func TestNobodyListens(t *testing.T) {
	cfg := serve(t, nil)
	cfg.Server = "https://127.0.0.1:1"
	_, err := kube.Pods.In(client(t, cfg), "").Get(t.Context(), "p")
	if fault.Of(err) != fault.Unavailable || !strings.Contains(strings.Join(fault.Hints(err), ""), "curl") {
		t.Errorf("got %v (%s), hints %q", err, fault.Of(err), fault.Hints(err))
	}
}

func TestContextEnds(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	c := client(t, serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel(why)
		<-r.Context().Done()
	}))
	if _, err := kube.Pods.In(c, "").Get(ctx, "p"); !errors.Is(err, why) {
		t.Errorf("got %v, want the cause", err)
	}
}

func TestListPages(t *testing.T) {
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/api/v1/pods" || q.Get("labelSelector") != "a=b" {
			t.Errorf("got %s", r.URL)
		}
		list := map[string]any{"apiVersion": "v1", "kind": "PodList", "metadata": map[string]any{"resourceVersion": "9", "continue": "more"}, "items": []any{pod("p1", "1")}}
		if q.Get("continue") == "more" {
			list["metadata"] = map[string]any{"resourceVersion": "9"}
			list["items"] = []any{pod("p2", "2")}
		}
		answer(w, 200, list)
	}))
	all, version, err := kube.Pods.In(c, kube.Everywhere).List(t.Context(), kube.ListOptions{Labels: "a=b"})
	if err != nil || len(all) != 2 || all[1].Name != "p2" || version != "9" {
		t.Errorf("got %d pods, version %q, %v", len(all), version, err)
	}
}

func TestApply(t *testing.T) {
	var sent map[string]any
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.Method != http.MethodPatch || r.URL.Path != "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/w" ||
			r.Header.Get("Content-Type") != "application/apply-patch+yaml" || q.Get("dryRun") != "All" ||
			q.Get("fieldManager") != kube.Manager || q.Get("fieldValidation") != "Strict" || q.Get("force") != "false" {
			t.Errorf("got %s %s, %s", r.Method, r.URL, r.Header.Get("Content-Type"))
		}
		testkit.Must(t, json.NewDecoder(r.Body).Decode(&sent))
		answer(w, 200, sent)
	}))
	object := &jobset.JobSet{ObjectMeta: metav1.ObjectMeta{Name: "w"}}
	object.Spec.ReplicatedJobs = []jobset.ReplicatedJob{{Name: "slice"}}
	got, err := kube.JobSets.In(c, "team").Apply(t.Context(), object, kube.WriteOptions{DryRun: true})
	if err != nil || got.Namespace != "team" || got.Spec.ReplicatedJobs[0].Name != "slice" {
		t.Errorf("got %+v, %v", got, err)
	}
	text, _ := json.Marshal(sent)
	if sent["kind"] != "JobSet" || sent["apiVersion"] != "jobset.x-k8s.io/v1alpha2" || strings.Contains(string(text), "null") || sent["status"] != nil {
		t.Errorf("sent %s", text)
	}
}

func TestApplyConflict(t *testing.T) {
	c := client(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 409, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: 409, Reason: metav1.StatusReasonConflict, Message: `conflict with "kubectl": .spec`,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldManagerConflict}}}})
	}))
	_, err := kube.ConfigMaps.In(c, "").Apply(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, kube.WriteOptions{})
	if !kube.Conflict(err) || !strings.Contains(strings.Join(fault.Hints(err), ""), "another program") {
		t.Errorf("got %v, hints %q", err, fault.Hints(err))
	}
}

func TestDelete(t *testing.T) {
	gone := false
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if gone {
			refuse(w, 404, metav1.StatusReasonNotFound, "not found")
			return
		}
		var o metav1.DeleteOptions
		testkit.Must(t, json.NewDecoder(r.Body).Decode(&o))
		if r.Method != http.MethodDelete || *o.PropagationPolicy != metav1.DeletePropagationForeground || string(*o.Preconditions.UID) != "u" || len(o.DryRun) != 0 {
			t.Errorf("got %s with %+v", r.Method, o)
		}
		gone = true
		answer(w, 200, metav1.Status{Status: metav1.StatusSuccess})
	}))
	for _, want := range []bool{true, false} {
		deleted, err := kube.Pods.In(c, "").Delete(t.Context(), "p", kube.RemoveOptions{UID: "u", Foreground: true})
		if deleted != want || err != nil {
			t.Errorf("got %t, %v; want %t", deleted, err, want)
		}
	}
}

func TestCreateAndMerge(t *testing.T) {
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		switch r.Method + " " + r.URL.Path {
		case "POST /api/v1/namespaces":
		case "PATCH /api/v1/namespaces/team":
			if r.Header.Get("Content-Type") != "application/merge-patch+json" || string(data) != `{"a":null}` {
				t.Errorf("got %s", data)
			}
		default:
			t.Errorf("got %s %s", r.Method, r.URL.Path)
		}
		answer(w, 201, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "team"}})
	}))
	all := kube.Namespaces.In(c, "ignored")
	_, err := all.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, kube.WriteOptions{})
	testkit.Must(t, err)
	got, err := all.Merge(t.Context(), "team", map[string]any{"a": nil}, kube.WriteOptions{})
	if err != nil || got.Name != "team" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestResource(t *testing.T) {
	asked := 0
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/version":
			answer(w, 200, map[string]string{"gitVersion": "v1.35.4"})
		case "/apis/apps/v1":
			asked++
			answer(w, 200, metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "deployments/status", Kind: "Deployment"}, {Name: "deployments", Kind: "Deployment", Namespaced: true}}})
		default:
			refuse(w, 404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		}
	}))
	for range 2 {
		kind, err := c.Resource(t.Context(), "apps/v1", "Deployment")
		if want := (kube.Kind[unstructured.Unstructured]{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}); err != nil || kind != want {
			t.Errorf("got %+v, %v", kind, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times, want 1", asked)
	}
	for _, missing := range []string{"apps/v1", "jobset.x-k8s.io/v1alpha2"} {
		if _, err := c.Resource(t.Context(), missing, "JobSet"); !kube.NotFound(err) || fault.Of(err) != fault.Unavailable {
			t.Errorf("%s: %v", missing, err)
		}
	}
	if version, err := c.Version(t.Context()); version != "v1.35.4" || err != nil {
		t.Errorf("got %q, %v", version, err)
	}
}

// A watchServer has pods, and answers watches with prepared events.
type watchServer struct {
	mu      sync.Mutex
	lists   [][]any                   // answers to lists; the last one repeats
	watches []func(w io.Writer) error // answers to watches, which then block
	from    []string                  // resourceVersions at which watches began
}

func (s *watchServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Query().Get("watch") != "true" {
		items := s.lists[0]
		if len(s.lists) > 1 {
			s.lists = s.lists[1:]
		}
		answer(w, 200, map[string]any{"apiVersion": "v1", "kind": "PodList", "metadata": map[string]any{"resourceVersion": "10"}, "items": items})
		return
	}
	s.from = append(s.from, r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	if len(s.watches) == 0 {
		s.mu.Unlock()
		defer s.mu.Lock()
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	next := s.watches[0]
	s.watches = s.watches[1:]
	if next(w) != nil {
		panic(http.ErrAbortHandler)
	}
}

func send(w io.Writer, kind string, object any) {
	_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
	w.(http.Flusher).Flush()
}

// A watch continues after its connection breaks, lists anew when its version has expired,
// and omits nothing.
func TestWatch(t *testing.T) {
	s := &watchServer{
		lists: [][]any{{pod("a", "1"), pod("b", "2")}, {pod("a", "21")}},
		watches: []func(io.Writer) error{
			func(w io.Writer) error {
				send(w, "ADDED", pod("c", "11"))
				send(w, "BOOKMARK", pod("", "15"))
				return errors.New("cut")
			},
			func(w io.Writer) error {
				send(w, "DELETED", pod("c", "16"))
				return nil
			},
			func(w io.Writer) error {
				send(w, "ERROR", metav1.Status{Code: 410, Reason: metav1.StatusReasonExpired, Message: "too old resource version"})
				return nil
			},
		},
	}
	c := client(t, serve(t, s.serve))
	var said []string
	done := errors.New("done")
	err := kube.Pods.In(c, "team").Watch(t.Context(), kube.WatchOptions{}, func(e kube.Change[corev1.Pod]) error {
		switch {
		case e.Synced:
			said = append(said, "synced")
		case e.Gone:
			said = append(said, "-"+e.Object.Name)
		default:
			said = append(said, e.Object.Name+"@"+e.Object.ResourceVersion)
		}
		if e.Synced && len(said) > 5 {
			return done
		}
		return nil
	})
	if want := "a@1 b@2 synced c@11 -c a@21 -b synced"; strings.Join(said, " ") != want {
		t.Errorf("got %q, want %q", said, want)
	}
	if want := []string{"10", "15", "16"}; !errors.Is(err, done) || !slices.Equal(s.from, want) {
		t.Errorf("got %v, watches from %q, want %q", err, s.from, want)
	}
}

// An outage is reported once. A missing permission ends the watch.
func TestWatchOutage(t *testing.T) {
	var tries int
	var said []string
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch tries++; {
		case tries == 1:
			answer(w, 200, map[string]any{"apiVersion": "v1", "kind": "PodList", "metadata": map[string]any{"resourceVersion": "10"}})
		case tries < 6:
			refuse(w, 503, metav1.StatusReasonServiceUnavailable, "away")
		case tries == 6:
			w.WriteHeader(200)
		default:
			refuse(w, 403, metav1.StatusReasonForbidden, "no right")
		}
	}))
	err := kube.Pods.In(c, "team").Watch(t.Context(), kube.WatchOptions{Away: func(err error) { said = append(said, fmt.Sprint(err)) }},
		func(kube.Change[corev1.Pod]) error { return nil })
	if len(said) != 2 || !strings.Contains(said[0], "away") || said[1] != "<nil>" {
		t.Errorf("outages: %q", said)
	}
	if fault.Of(err) != fault.Permission {
		t.Errorf("got %v", err)
	}
}

func TestLogs(t *testing.T) {
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		want := "container=main&follow=true&sinceTime=2026-01-02T03%3A04%3A05Z&tailLines=5&timestamps=true"
		if r.URL.Path != "/api/v1/namespaces/default/pods/p/log" || r.URL.RawQuery != want {
			t.Errorf("got %s", r.URL)
		}
		io.WriteString(w, "a\x00\xff\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler) // the connection breaks
	}))
	log, err := c.Logs(t.Context(), "", "p", kube.LogOptions{Container: "main", Follow: true, Timestamps: true, TailLines: 5,
		Since: time.Date(2026, 1, 2, 3, 4, 5, 999, time.UTC)})
	testkit.Must(t, err)
	defer log.Close()
	data, err := io.ReadAll(log)
	if string(data) != "a\x00\xff\n" || err == nil {
		t.Errorf("got %q, %v; want the bytes and an error", data, err)
	}
}

func TestLogsRefused(t *testing.T) {
	c := client(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 400, metav1.StatusReasonBadRequest, `container "main" in pod "p" is waiting to start: ContainerCreating`)
	}))
	_, err := c.Logs(t.Context(), "", "p", kube.LogOptions{})
	if !kube.Invalid(err) || err.Error() != `read the log of pod "default/p": container "main" in pod "p" is waiting to start: ContainerCreating` {
		t.Errorf("got %v", err)
	}
}

const kubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c1, cluster: {server: "https://10.0.0.1"}}, {name: c2, cluster: {server: "https://10.0.0.2"}}]
users: [{name: ann, user: {token: t}}]
contexts:
- {name: one, context: {cluster: c1, user: ann, namespace: team}}
- {name: two, context: {cluster: c2, user: ann}}
`

func TestKubeconfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	testkit.Must(t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	torn := filepath.Join(dir, "torn")
	testkit.Must(t, os.WriteFile(torn, []byte("{"), 0o600))
	for _, tt := range []struct {
		name              string
		cfg               kube.Config
		server, namespace string
		wrong             string
	}{
		{name: "a context", cfg: kube.Config{Context: "one"}, server: "https://10.0.0.1", namespace: "team"},
		{name: "no namespace", cfg: kube.Config{Context: "two"}, server: "https://10.0.0.2", namespace: "default"},
		{name: "namespace of the caller", cfg: kube.Config{Context: "one", Namespace: "mine"}, server: "https://10.0.0.1", namespace: "mine"},
		{name: "no current context", wrong: "it has no current context; its contexts: one, two"},
		{name: "another context", cfg: kube.Config{Context: "three"}, wrong: `it has no context "three"; its contexts: one, two`},
		{name: "no file", cfg: kube.Config{Kubeconfig: []string{filepath.Join(dir, "none")}}, wrong: "it names no cluster"},
		{name: "a torn file", cfg: kube.Config{Kubeconfig: []string{torn}}, wrong: "error loading config file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.cfg.Kubeconfig == nil {
				tt.cfg.Kubeconfig = []string{file}
			}
			tt.cfg.Sink = event.Discard
			c, err := kube.New(tt.cfg)
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) || fault.Of(err) != fault.Configuration {
					t.Errorf("got %v, want %q", err, tt.wrong)
				}
				return
			}
			if err != nil || c.Server() != tt.server || c.Namespace() != tt.namespace {
				t.Errorf("got %v", err)
			}
		})
	}
}
