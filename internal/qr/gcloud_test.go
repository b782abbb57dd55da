package qr_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What gcloud sends when it is given our command line is what we send. Three
// differences are known and mean nothing: gcloud says provisioningModel
// STANDARD where we say nothing, autocheckpointEnabled false, and empty objects.
func TestGcloudSendsTheSameBody(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped by -short: each gcloud call takes seconds")
	}
	gcloud, err := exec.LookPath("gcloud")
	if err != nil {
		t.Skip("gcloud is not installed")
	}
	all := goldenRequests(t)
	// One start of gcloud costs two seconds of CPU, so only the requests that
	// differ most are tried.
	for _, name := range []string{"spot", "single-slice-full"} {
		r := all[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bodies := make(chan []byte, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				body, _ := io.ReadAll(req.Body)
				if req.Method == http.MethodPost {
					select {
					case bodies <- body:
					default:
					}
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"name":"projects/p/locations/us-central2-b/operations/o1","done":true,"response":{}}`)
			}))
			defer server.Close()
			cmd := exec.CommandContext(t.Context(), "sh", "-c", r.Gcloud("p", "us-central2-b")+" --async --quiet")
			cmd.Env = append(cmd.Environ(), "HOME="+t.TempDir(), "CLOUDSDK_CONFIG="+t.TempDir(),
				"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU="+server.URL+"/", "CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true",
				"CLOUDSDK_CORE_DISABLE_PROMPTS=1", "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=true")
			out, err := cmd.CombinedOutput()
			select {
			case body := <-bodies:
				want := plainBody(t, []byte(bodyText(t, r)))
				if diff := cmp.Diff(want, plainBody(t, body)); diff != "" {
					t.Errorf("%s sends another body (-ours +gcloud's):\n%s", gcloud, diff)
				}
			default:
				t.Fatalf("gcloud sent nothing: %v\n%s", err, out)
			}
		})
	}
}

// plainBody decodes a body without what is known not to matter.
func plainBody(t *testing.T, text []byte) any {
	t.Helper()
	var body map[string]any
	if err := json.Unmarshal(text, &body); err != nil {
		t.Fatal(err)
	}
	if body["provisioningModel"] == "STANDARD" {
		delete(body, "provisioningModel")
	}
	node := body["tpu"].(map[string]any)["nodeSpec"].([]any)[0].(map[string]any)["node"].(map[string]any)
	if node["autocheckpointEnabled"] == false {
		delete(node, "autocheckpointEnabled")
	}
	for _, key := range []string{"serviceAccount", "metadata"} {
		if m, ok := node[key].(map[string]any); ok && len(m) == 0 {
			delete(node, key)
		}
	}
	return body
}
