package sim_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/sim"
	"multihost/internal/testkit"
)

func projectClient(t *testing.T, url string) *gcp.Client {
	t.Helper()
	c := gcp.New(gcp.Config{
		Project: sim.DefaultProject, Zone: sim.DefaultZone, DisableAuth: true, Clock: testkit.NewFastClock(),
		TPUEndpoint: url + "/", ServiceUsageEndpoint: url + "/", ResourceManagerEndpoint: url + "/", QuotasEndpoint: url + "/", OSLoginEndpoint: url + "/",
	})
	t.Cleanup(c.Close)
	return c
}

// postTo sends what gcloud sends, and returns the status and the body.
func postTo(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	testkit.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	return resp.StatusCode, string(text)
}

func TestAnAPIThatIsNotEnabledRefusesUntilItIs(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	c := projectClient(t, s.URL())
	inject(t, s, "api-disabled service=tpu.googleapis.com")
	list := func() error {
		svc, err := c.TPU(t.Context())
		testkit.Must(t, err)
		return c.Do(t.Context(), "list", func(ctx context.Context) error {
			_, err := svc.Projects.Locations.Nodes.List(parent).Context(ctx).Do()
			return err
		})
	}
	if err := list(); gcp.ClassOf(err) != gcp.Permission || !strings.Contains(gcp.Hint(err), "gcloud services enable tpu.googleapis.com") {
		t.Errorf("got %v, hint %q", err, gcp.Hint(err))
	}
	enabled, err := c.Enabled(t.Context(), "tpu.googleapis.com", "compute.googleapis.com")
	if err != nil || enabled["tpu.googleapis.com"] || !enabled["compute.googleapis.com"] {
		t.Errorf("enabled = %v, %v", enabled, err)
	}
	if code, body := postTo(t, s.URL()+"/v1/projects/"+sim.DefaultProject+"/services/tpu.googleapis.com:enable", "{}"); code != 200 || !strings.Contains(body, `"done": true`) {
		t.Errorf("enable: %d %s", code, body)
	}
	if err := list(); err != nil {
		t.Error(err)
	}
	if code, _ := postTo(t, s.URL()+"/v1/projects/"+sim.DefaultProject+"/services/nope.googleapis.com:enable", "{}"); code != 403 {
		t.Errorf("an API that does not exist: %d", code)
	}
}

func TestARoleGivesBackWhatIsDenied(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	c := projectClient(t, s.URL())
	inject(t, s, "permission-denied permission=tpu.* n=all")
	wanted := []string{"tpu.nodes.get", "compute.networks.get", "tpu.nodes.create"}
	if lacking, err := c.Lacking(t.Context(), wanted); err != nil || !slices.Equal(lacking, []string{"tpu.nodes.get", "tpu.nodes.create"}) {
		t.Errorf("lacking = %v, %v", lacking, err)
	}
	if _, err := c.Lacking(t.Context(), []string{"nope.things.get"}); gcp.ClassOf(err) != gcp.Invalid {
		t.Errorf("a permission that does not exist: %v", err)
	}
	root := s.URL() + "/v1/projects/" + sim.DefaultProject
	for body, want := range map[string]int{
		`{"policy":{"bindings":[{"role":"roles/nope","members":["user:you@multihost.example"]}]}}`:       400,
		`{"policy":{"bindings":[{"role":"roles/tpu.admin","members":["you@multihost.example"]}]}}`:       400,
		`{"policy":{"etag":"b2xk","bindings":[]}}`:                                                       409,
		`{"policy":{"bindings":[{"role":"roles/tpu.admin","who":["user:you@multihost.example"]}]}}`:      400,
		`{"policy":{"bindings":[{"role":"roles/tpu.viewer","members":["user:you@multihost.example"]}]}}`: 200,
	} {
		if code, text := postTo(t, root+":setIamPolicy", body); code != want {
			t.Errorf("%s: %d, want %d: %s", body, code, want, text)
		}
	}
	if lacking, err := c.Lacking(t.Context(), wanted); err != nil || !slices.Equal(lacking, []string{"tpu.nodes.create"}) {
		t.Errorf("with the viewer's role lacking = %v, %v", lacking, err)
	}
}

func TestQuotasAreThoseThatRequestsMeet(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	c := projectClient(t, s.URL())
	inject(t, s, "quota cores=16")
	limit := func() int64 {
		quotas, err := c.Quotas(t.Context(), "tpu.googleapis.com")
		testkit.Must(t, err)
		for _, q := range quotas {
			if q.ID == "TPUV4sPodPerProjectPerZoneForTPUAPI" {
				v, where, ok := q.In(sim.DefaultZone)
				if !ok || where != "zone="+sim.DefaultZone {
					t.Errorf("%s is for %q", q.ID, where)
				}
				return v
			}
		}
		t.Fatalf("no quota for v4 among %d", len(quotas))
		return 0
	}
	if v := limit(); v != 16 {
		t.Errorf("limit = %d, want 16", v)
	}
	address := s.URL() + "/v1/projects/" + sim.DefaultProject + "/locations/global/quotaPreferences"
	preference := `{"service":"tpu.googleapis.com","quotaId":"TPUV4sPodPerProjectPerZoneForTPUAPI","dimensions":{"zone":"us-central2-b"},"quotaConfig":{"preferredValue":"64"}`
	if code, _ := postTo(t, address, preference+"}"); code != 400 {
		t.Errorf("an increase without an address: %d", code)
	}
	if code, text := postTo(t, address, preference+`,"contactEmail":"you@multihost.example"}`); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	if v := limit(); v != 64 {
		t.Errorf("limit = %d, want 64", v)
	}
}

// Our requests about the project, and gcloud's changes to it, agree with Google's
// descriptions of these APIs. Google's Go clients have no description of Cloud Quotas.
func TestDiscoveryDocumentsDescribeTheProject(t *testing.T) {
	t.Parallel()
	c := &checker{docs: loadDiscovery(t), problems: map[string]string{}, called: map[string]int{}}
	s, err := sim.Start(t.Context(), sim.Config{Dir: t.TempDir(), Step: time.Millisecond, Backend: "none"})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, s.Close()) })
	p := newTap(t, s)
	g := projectClient(t, p.URL)
	_, err = g.Enabled(t.Context(), "tpu.googleapis.com")
	testkit.Must(t, err)
	_, err = g.Lacking(t.Context(), []string{"tpu.nodes.get"})
	testkit.Must(t, err)
	root := p.URL + "/v1/projects/" + sim.DefaultProject
	for _, call := range [][2]string{
		{root + "/services/tpu.googleapis.com:enable", "{}"},
		{root + ":getIamPolicy", `{"options":{"requestedPolicyVersion":3}}`},
		{root + ":setIamPolicy", `{"policy":{"version":3,"bindings":[{"role":"roles/tpu.admin","members":["user:you@multihost.example"]}]}}`},
	} {
		if code, text := postTo(t, call[0], call[1]); code != 200 {
			t.Errorf("%s: %d %s", call[0], code, text)
		}
	}
	for _, e := range p.exchanges() {
		c.check(e)
	}
	c.report(t)
	if len(c.called) != 5 {
		t.Errorf("methods called: %v, want 5", c.called)
	}
}
