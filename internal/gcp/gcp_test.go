package gcp_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/googleapi"
	tpuapi "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/testkit"
)

// script serves the answers one after the other, the last one for ever, and counts the
// requests.
type script struct {
	mu      sync.Mutex
	answers []http.HandlerFunc
	calls   []string
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	i := min(len(s.calls), len(s.answers)-1)
	s.calls = append(s.calls, r.Method+" "+r.URL.Path)
	answer := s.answers[i]
	s.mu.Unlock()
	answer(w, r)
}

func (s *script) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

func answer(code int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

func apiError(code int, status, message string, details ...any) string {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{
		"code": code, "status": status, "message": message, "details": details,
	}})
	return string(body)
}

// reset breaks the connection in the middle of the answer.
func reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

const node = `{"name":"projects/p/locations/us-central2-b/nodes/t-0","state":"READY"}`

type fixture struct {
	client *gcp.Client
	server *script
	clock  *testkit.JumpClock
	notes  *testkit.Recorder
	url    string
}

func setUp(t *testing.T, change func(*gcp.Config), answers ...http.HandlerFunc) *fixture {
	t.Helper()
	f := &fixture{server: &script{answers: answers}, clock: testkit.NewJumpClock(), notes: &testkit.Recorder{}}
	srv := httptest.NewServer(f.server)
	t.Cleanup(srv.Close)
	f.url = srv.URL
	cfg := gcp.Config{
		Project: "p", Zone: "us-central2-b",
		TPUEndpoint: srv.URL + "/", ComputeEndpoint: srv.URL + "/compute/v1/",
		DisableAuth: true, Clock: f.clock, Sink: f.notes,
	}
	if change != nil {
		change(&cfg)
	}
	f.client = gcp.New(cfg)
	return f
}

// getNode calls the TPU API like package qr.
func (f *fixture) getNode(ctx context.Context) (*tpuapi.Node, error) {
	svc, err := f.client.TPU(ctx)
	if err != nil {
		return nil, err
	}
	var n *tpuapi.Node
	err = f.client.Do(ctx, `show node "t-0"`, func(ctx context.Context) error {
		n, err = svc.Projects.Locations.Nodes.Get("projects/p/locations/us-central2-b/nodes/t-0").Context(ctx).Do()
		return err
	})
	return n, err
}

// getNetwork calls the Compute API like package network.
func (f *fixture) getNetwork(ctx context.Context) error {
	opts, err := f.client.ComputeOptions(ctx)
	if err != nil {
		return err
	}
	c, err := compute.NewNetworksRESTClient(ctx, opts...)
	if err != nil {
		return err
	}
	return f.client.Do(ctx, `show network "n"`, func(ctx context.Context) error {
		_, err := c.Get(ctx, &computepb.GetNetworkRequest{Project: "p", Network: "n"}, gcp.NoRetry())
		return err
	})
}

func TestDoRetries(t *testing.T) {
	unavailable := answer(503, apiError(503, "UNAVAILABLE", "The service is currently unavailable."))
	tests := []struct {
		story   string
		answers []http.HandlerFunc
		calls   int
		atLeast time.Duration // shortest first wait
	}{
		{"rate limit with Retry-After", []http.HandlerFunc{
			answer(429, apiError(429, "RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of service 'tpu.googleapis.com'"), "Retry-After", "7"),
			answer(200, node)}, 2, 7 * time.Second},
		{"rate limit with RetryInfo", []http.HandlerFunc{
			answer(429, apiError(429, "RESOURCE_EXHAUSTED", "slow down", map[string]any{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"})),
			answer(200, node)}, 2, 3 * time.Second},
		{"plain 429", []http.HandlerFunc{answer(429, ""), answer(200, node)}, 2, 0},
		{"503 twice", []http.HandlerFunc{unavailable, unavailable, answer(200, node)}, 3, 0},
		{"500 with an EID", []http.HandlerFunc{answer(500, apiError(500, "INTERNAL", "an internal error has occurred (EID: 12ab)")), answer(200, node)}, 2, 0},
		{"page of a load balancer", []http.HandlerFunc{answer(502, "<html><body><h1>502 Bad Gateway</h1></body></html>"), answer(200, node)}, 2, 0},
		{"connection reset", []http.HandlerFunc{reset, answer(200, node)}, 2, 0},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, nil, tt.answers...)
			n, err := f.getNode(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n.State != "READY" {
				t.Errorf("node state = %q, want READY", n.State)
			}
			if got := len(f.server.Calls()); got != tt.calls {
				t.Errorf("%d requests, want %d: %v", got, tt.calls, f.server.Calls())
			}
			if waits := f.clock.Waits(); len(waits) != tt.calls-1 || waits[0] < tt.atLeast {
				t.Errorf("waits = %v, want %d, the first at least %v", waits, tt.calls-1, tt.atLeast)
			}
		})
	}
}

func TestDoDoesNotRetry(t *testing.T) {
	tests := []struct {
		story string
		code  int
		body  string
		class gcp.Class
		hint  string // part of the hint
	}{
		{"not found", 404, apiError(404, "NOT_FOUND", "Resource 'projects/p/locations/us-central2-b/nodes/t-0' was not found"), gcp.NotFound, ""},
		{"project not found", 404, apiError(404, "NOT_FOUND", "The resource 'projects/nope' was not found"), gcp.NotFound, "--project=ID"},
		{"already exists", 409, apiError(409, "ALREADY_EXISTS", "Requested entity already exists"), gcp.AlreadyExists, "another name"},
		{"busy", 409, apiError(409, "ABORTED", "unable to queue the operation"), gcp.Conflict, ""},
		{"precondition", 400, apiError(400, "FAILED_PRECONDITION", "node is in state DELETING"), gcp.Conflict, ""},
		{"bad request", 400, apiError(400, "INVALID_ARGUMENT", "Invalid value", map[string]any{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": []any{map[string]any{"field": "node.runtime_version", "description": "is empty"}}}), gcp.Invalid, ""},
		{"permission", 403, apiError(403, "PERMISSION_DENIED", "Permission 'tpu.nodes.get' denied on 'projects/p/locations/us-central2-b/nodes/t-0' (or it may not exist)."), gcp.Permission, "tpu.nodes.get"},
		{"api not enabled", 403, apiError(403, "PERMISSION_DENIED", "Cloud TPU API has not been used in project 12 before or it is disabled.", map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED", "domain": "googleapis.com"}), gcp.Permission, "gcloud services enable tpu.googleapis.com"},
		{"zone for allow-listed projects", 403, apiError(403, "PERMISSION_DENIED", "location policy", map[string]any{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "LOCATION_POLICY_VIOLATED"}), gcp.Permission, "allow-listed"},
		{"expired token", 401, apiError(401, "UNAUTHENTICATED", "Request had invalid authentication credentials."), gcp.Unauthenticated, "gcloud auth application-default login"},
		{"quota", 429, apiError(429, "RESOURCE_EXHAUSTED", "Quota limit 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' has been exceeded. Limit: 32 in region us-central2."), gcp.Quota, "the quota TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI allows 32 in region us-central2"},
		{"no machines", 429, apiError(429, "RESOURCE_EXHAUSTED", `There is no more capacity in the zone "us-central2-b"; you can try in another zone`), gcp.Capacity, "another zone"},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, nil, answer(tt.code, tt.body))
			_, err := f.getNode(t.Context())
			if got := gcp.ClassOf(err); got != tt.class {
				t.Errorf("class = %v, want %v (%v)", got, tt.class, err)
			}
			if got := len(f.server.Calls()); got != 1 {
				t.Errorf("%d requests, want 1", got)
			}
			if h := gcp.Hint(err); !strings.Contains(h, tt.hint) {
				t.Errorf("hint = %q, want %q in it", h, tt.hint)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
			var ge *googleapi.Error
			if !errors.As(err, &ge) || ge.Code != tt.code {
				t.Errorf("the client library's error is not inside %v", err)
			}
			// The Compute client wraps its errors differently, with the same meaning.
			if got := gcp.ClassOf(f.getNetwork(t.Context())); got != tt.class {
				t.Errorf("class by the Compute client = %v, want %v", got, tt.class)
			}
		})
	}
}

func TestComputeRetryAfter(t *testing.T) {
	f := setUp(t, nil, answer(503, apiError(503, "UNAVAILABLE", "later"), "Retry-After", "9"), answer(200, `{"name":"n"}`))
	if err := f.getNetwork(t.Context()); err != nil {
		t.Fatal(err)
	}
	if waits := f.clock.Waits(); len(waits) != 1 || waits[0] < 9*time.Second {
		t.Errorf("waits = %v, want one of at least 9 s", waits)
	}
	if got, want := f.server.Calls()[0], "GET /compute/v1/projects/p/global/networks/n"; got != want {
		t.Errorf("request = %q, want %q", got, want)
	}
}

func TestEndpointForms(t *testing.T) {
	for _, suffix := range []string{"", "/", "/compute/v1", "/compute/v1/"} {
		f := setUp(t, nil, answer(200, `{"name":"n"}`))
		g := setUp(t, func(c *gcp.Config) { c.ComputeEndpoint = f.url + suffix }, answer(500, ""))
		if err := g.getNetwork(t.Context()); err != nil {
			t.Errorf("Compute endpoint with %q: %v", suffix, err)
		}
		if got, want := f.server.Calls()[0], "GET /compute/v1/projects/p/global/networks/n"; got != want {
			t.Errorf("request = %q, want %q", got, want)
		}
	}
	for _, suffix := range []string{"", "/", "/v2/", "/v2alpha1"} {
		f := setUp(t, nil, answer(200, node))
		g := setUp(t, func(c *gcp.Config) { c.TPUEndpoint = f.url + suffix }, answer(200, node))
		if _, err := g.getNode(t.Context()); err != nil {
			t.Errorf("TPU endpoint with %q: %v", suffix, err)
		}
		if got, want := f.server.Calls()[0], "GET /v2alpha1/projects/p/locations/us-central2-b/nodes/t-0"; got != want {
			t.Errorf("request = %q, want %q", got, want)
		}
	}
	bad := setUp(t, func(c *gcp.Config) { c.TPUEndpoint = "127.0.0.1:80" }, answer(200, node))
	if _, err := bad.getNode(t.Context()); err == nil || !strings.Contains(err.Error(), "TPU endpoint override") {
		t.Errorf("error of an override that is no URL = %v", err)
	}
}

func TestDoGivesUp(t *testing.T) {
	f := setUp(t, nil, answer(503, apiError(503, "UNAVAILABLE", "down (EID: 7)")))
	_, err := f.getNode(t.Context())
	var e *gcp.Error
	if !errors.As(err, &e) || e.Class != gcp.Unavailable || e.Tries < 5 {
		t.Fatalf("error = %#v, want Unavailable after several tries", err)
	}
	if !strings.Contains(err.Error(), "EID: 7") {
		t.Errorf("error %q lost the EID", err)
	}
	var total time.Duration
	for _, w := range f.clock.Waits() {
		total += w
	}
	if total > 2*time.Minute {
		t.Errorf("waited %v, more than 2 min", total)
	}
	levels := map[event.Level]int{}
	for _, n := range f.notes.Notes() {
		levels[n.Level]++
	}
	if levels[event.Debug] != 2 || levels[event.Warn] != e.Tries-3 {
		t.Errorf("notes by level = %v for %d tries, want the first two as debug and the others as warnings", levels, e.Tries)
	}
}

func TestDoStopsWhenTheContextEnds(t *testing.T) {
	cause := errors.New("interrupted by SIGINT")
	ctx, cancel := context.WithCancelCause(t.Context())
	f := setUp(t, func(c *gcp.Config) { c.Clock = gcp.SystemClock }, func(w http.ResponseWriter, _ *http.Request) {
		cancel(cause)
		w.WriteHeader(503)
	})
	_, err := f.getNode(ctx)
	if !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want the cause and context.Canceled", err)
	}
	if got := len(f.server.Calls()); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
	if len(f.notes.Notes()) != 0 {
		t.Errorf("notes = %v, want none", f.notes.Notes())
	}
	if _, err := f.getNode(ctx); !errors.Is(err, cause) {
		t.Errorf("second call: error = %v, want the cause", err)
	}
	if got := len(f.server.Calls()); got != 1 {
		t.Errorf("a request was made after the context had ended")
	}
}

func TestRefusedOnLoopbackFailsAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	f := setUp(t, func(c *gcp.Config) { c.TPUEndpoint = "http://" + addr }, answer(200, node))
	_, err = f.getNode(t.Context())
	if gcp.ClassOf(err) != gcp.Unavailable || !strings.Contains(gcp.Hint(err), `eval "$(multihost sim env --unset)"`) {
		t.Errorf("error = %v (%v), hint %q", err, gcp.ClassOf(err), gcp.Hint(err))
	}
	if len(f.clock.Waits()) != 0 {
		t.Errorf("waited %v before giving up", f.clock.Waits())
	}
}

func TestWaitTPU(t *testing.T) {
	const name = "projects/p/locations/z/operations/operation-1"
	running := answer(200, `{"name":"`+name+`","done":false}`)
	t.Run("done after two polls", func(t *testing.T) {
		f := setUp(t, nil, running, answer(503, ""), answer(200, `{"name":"`+name+`","done":true,"response":{"name":"x"}}`))
		op, err := f.client.WaitTPU(t.Context(), &tpuapi.Operation{Name: name}, "create node")
		if err != nil || !op.Done || string(op.Response) != `{"name":"x"}` {
			t.Errorf("operation = %+v, error %v", op, err)
		}
	})
	t.Run("done at once", func(t *testing.T) {
		f := setUp(t, nil, running)
		if _, err := f.client.WaitTPU(t.Context(), &tpuapi.Operation{Name: name, Done: true}, "create node"); err != nil {
			t.Error(err)
		}
		if len(f.server.Calls()) != 0 || len(f.clock.Waits()) != 0 {
			t.Errorf("requests %v, waits %v; want none", f.server.Calls(), f.clock.Waits())
		}
	})
	t.Run("failed", func(t *testing.T) {
		f := setUp(t, nil, answer(200, `{"name":"`+name+`","done":true,"metadata":{"target":"projects/p/locations/z/nodes/n"},
			"error":{"code":8,"message":"There is no more capacity in the zone \"z\""}}`))
		_, err := f.client.WaitTPU(t.Context(), &tpuapi.Operation{Name: name}, "create node")
		var oe *gcp.OperationError
		if !errors.As(err, &oe) || oe.Status != "RESOURCE_EXHAUSTED" || oe.Target != "projects/p/locations/z/nodes/n" {
			t.Fatalf("error = %#v", err)
		}
		if gcp.ClassOf(err) != gcp.Capacity {
			t.Errorf("class = %v, want Capacity", gcp.ClassOf(err))
		}
		if want := `create node: There is no more capacity in the zone "z" (RESOURCE_EXHAUSTED)`; err.Error() != want {
			t.Errorf("error = %q, want %q", err, want)
		}
	})
}

func TestPollPauses(t *testing.T) {
	clock := testkit.NewJumpClock()
	n := 0
	err := gcp.Poll(t.Context(), clock, gcp.Backoff{First: time.Second, Max: 3 * time.Second, Factor: 2}, func(context.Context) (bool, error) {
		n++
		return n == 5, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second}
	if fmt.Sprint(clock.Waits()) != fmt.Sprint(want) {
		t.Errorf("pauses = %v, want %v", clock.Waits(), want)
	}
}

// wantToken answers with 401 to every other token.
func wantToken(token func() string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token() {
			answer(401, apiError(401, "UNAUTHENTICATED", "invalid token"))(w, r)
			return
		}
		answer(200, node)(w, r)
	}
}

func TestAccessTokenFileIsReadAtEachRequest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	valid := "one"
	f := setUp(t, func(c *gcp.Config) { c.DisableAuth, c.AccessTokenFile = false, file }, wantToken(func() string { return valid }))
	write("one\n")
	if _, err := f.getNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	valid = "two"
	if _, err := f.getNode(t.Context()); gcp.ClassOf(err) != gcp.Unauthenticated {
		t.Errorf("old token: error = %v, want Unauthenticated", err)
	}
	write("two\n")
	if _, err := f.getNode(t.Context()); err != nil {
		t.Errorf("new token: %v", err)
	}
	write("")
	_, err := f.getNode(t.Context())
	var ce *gcp.CredentialsError
	if !errors.As(err, &ce) || !strings.Contains(gcp.Hint(err), file) {
		t.Errorf("empty file: error = %v, hint %q", err, gcp.Hint(err))
	}
}

// adcFile makes application default credentials of a login whose token server
// is handler.
func adcFile(t *testing.T, handler http.HandlerFunc) {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "adc.json")
	body := fmt.Sprintf(`{"type":"external_account","audience":"a","subject_token_type":"urn:ietf:params:oauth:token-type:jwt",
		"token_url":%q,"quota_project_id":"billed","credential_source":{"file":%q}}`, srv.URL, file)
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
}

func TestApplicationDefaultCredentials(t *testing.T) {
	issued := 0
	adcFile(t, func(w http.ResponseWriter, _ *http.Request) {
		issued++
		answer(200, fmt.Sprintf(`{"access_token":"t%d","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","token_type":"Bearer","expires_in":3600}`, issued))(w, nil)
	})
	var quota string
	valid := "t1"
	f := setUp(t, func(c *gcp.Config) { c.DisableAuth, c.Clock = false, gcp.SystemClock }, func(w http.ResponseWriter, r *http.Request) {
		quota = r.Header.Get("X-Goog-User-Project")
		wantToken(func() string { return valid })(w, r)
	})
	for range 3 {
		if _, err := f.getNode(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if issued != 1 {
		t.Errorf("%d tokens were issued for three calls, want 1", issued)
	}
	if quota != "billed" {
		t.Errorf("quota project = %q, want that of the credentials", quota)
	}
	// The server refuses a token before its expiry. The same call fetches a new one.
	valid = "t2"
	if _, err := f.getNode(t.Context()); err != nil {
		t.Errorf("after the token was refused: %v", err)
	}
}

func TestExpiredLogin(t *testing.T) {
	adcFile(t, answer(400, `{"error":"invalid_grant","error_description":"reauth related error (invalid_rapt)"}`))
	f := setUp(t, func(c *gcp.Config) { c.DisableAuth = false }, answer(200, node))
	_, err := f.getNode(t.Context())
	var ce *gcp.CredentialsError
	if !errors.As(err, &ce) || !ce.Expired || gcp.ClassOf(err) != gcp.Unauthenticated {
		t.Errorf("error = %v", err)
	}
	if !strings.Contains(gcp.Hint(err), "gcloud auth application-default login") {
		t.Errorf("hint = %q", gcp.Hint(err))
	}
	if len(f.server.Calls()) != 0 || len(f.clock.Waits()) != 0 {
		t.Errorf("requests %v, waits %v: want none", f.server.Calls(), f.clock.Waits())
	}
}

// endedLogin returns a fixture with a token file. The server accepts the token once and
// then refuses it. After this number of refusals, the user writes a new token.
func endedLogin(t *testing.T, wait time.Duration, refusals int) *fixture {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Error(err)
		}
	}
	write("one")
	calls, valid := 0, "one"
	return setUp(t, func(c *gcp.Config) { c.DisableAuth, c.AccessTokenFile, c.LoginWait = false, file, wait }, func(w http.ResponseWriter, r *http.Request) {
		calls++
		if calls > 1 {
			valid = "two"
		}
		if calls == 1+refusals {
			write("two")
		}
		wantToken(func() string { return valid })(w, r)
	})
}

func TestALoginThatEndsIsWaitedFor(t *testing.T) {
	f := endedLogin(t, time.Hour, 5)
	for range 2 {
		if _, err := f.getNode(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.clock.Waits()); n != 5 {
		t.Errorf("it waited %d times, want 5", n)
	}
	notes := f.notes.Notes()
	if len(notes) != 2 || notes[0].Level != event.Warn || notes[1].Level != event.Info {
		t.Fatalf("notes = %v, want one that the login has ended and one that it is back", notes)
	}
	if !strings.Contains(notes[0].Hint, "gcloud auth print-access-token > ") || !strings.Contains(notes[1].Text, "work again") {
		t.Errorf("notes = %v", notes)
	}
}

func TestALoginIsNotWaitedForForEver(t *testing.T) {
	f := endedLogin(t, time.Minute, 1000)
	if _, err := f.getNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := f.getNode(t.Context())
	if !gcp.Lapsed(err) || gcp.ClassOf(err) != gcp.Unauthenticated {
		t.Errorf("error = %v, want one of a lapsed login", err)
	}
	begin := f.clock.Now()
	if _, err := f.getNode(gcp.Unattended(t.Context())); !gcp.Lapsed(err) || f.clock.Now() != begin {
		t.Errorf("unattended: error = %v after %v, want a lapsed login at once", err, f.clock.Now().Sub(begin))
	}
}

func TestALoginThatNeverWorkedFailsAtOnce(t *testing.T) {
	f := setUp(t, func(c *gcp.Config) { c.DisableAuth, c.GcloudToken, c.LoginWait = false, gcloudSays("t"), time.Hour }, answer(401, apiError(401, "UNAUTHENTICATED", "no")))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("HOME", t.TempDir())
	if _, err := f.getNode(t.Context()); gcp.Lapsed(err) || gcp.ClassOf(err) != gcp.Unauthenticated || len(f.clock.Waits()) > 0 {
		t.Errorf("error = %v after waits %v, want a refusal at once", err, f.clock.Waits())
	}
}

func gcloudSays(token string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return token, nil }
}

// portal is a network with a login page. Until it is open, its own server answers, with a
// certificate that is not the API's.
type portal struct{ open bool }

func (p *portal) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.open {
		return http.DefaultTransport.RoundTrip(r)
	}
	return nil, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
}

// A strange certificate is reported at once if no call has worked yet, because then a proxy
// has wrong settings. Later it counts as an outage of the network.
func TestAStrangeCertificateIsOutlivedOnceTheAPIHasAnswered(t *testing.T) {
	way := &portal{}
	f := setUp(t, func(c *gcp.Config) { c.Transport = way }, answer(200, node))
	if _, err := f.getNode(t.Context()); gcp.ClassOf(err) != gcp.Unknown || len(f.clock.Waits()) > 0 {
		t.Errorf("at first: %v after %v", err, f.clock.Waits())
	}
	way.open = true
	if _, err := f.getNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	way.open = false
	_, err := f.getNode(t.Context())
	if gcp.ClassOf(err) != gcp.Unavailable || len(f.clock.Waits()) == 0 || !strings.Contains(gcp.Hint(err), "log in to the network") {
		t.Errorf("later: %v (%s), after %v", err, gcp.Hint(err), f.clock.Waits())
	}
}
