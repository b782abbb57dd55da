package gcp

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/oauth2/google"
)

func noADC(context.Context, ...string) (*google.Credentials, error) {
	return nil, errors.New("google: could not find default credentials")
}

func TestGcloudTokenIsTheFallback(t *testing.T) {
	asked := 0
	tok := newTokens(New(Config{GcloudToken: func(context.Context) (string, error) {
		asked++
		return "from-gcloud\n", nil
	}}).cfg)
	tok.adc = noADC
	for range 2 {
		got, _, err := tok.token(t.Context())
		if err != nil || got != "from-gcloud" {
			t.Fatalf("token = %q, %v", got, err)
		}
	}
	if asked != 1 {
		t.Errorf("gcloud was asked %d times for two calls, want 1", asked)
	}
}

func TestNoCredentials(t *testing.T) {
	tok := newTokens(New(Config{}).cfg)
	tok.adc = noADC
	_, _, err := tok.token(t.Context())
	if ClassOf(err) != Unauthenticated {
		t.Errorf("class of %v = %v, want Unauthenticated", err, ClassOf(err))
	}
	for _, part := range []string{"gcloud auth application-default login", "--access-token-file"} {
		if !strings.Contains(Hint(err), part) {
			t.Errorf("hint = %q, want %q in it", Hint(err), part)
		}
	}
}

// Some messages of Google show their meaning only by their text. The test pins these texts.
func TestForeignTexts(t *testing.T) {
	tests := []struct {
		message string
		class   Class
	}{
		{`There is no more capacity in the zone "us-east1-d"; you can try in another zone where Cloud TPU Nodes are offered`, Capacity},
		{`Insufficient reserved capacity`, Capacity},
		{`Quota 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' exhausted. Limit 16 in zone us-west4-a`, Quota},
		{`Quota limit 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' has been exceeded. Limit: 32 in region us-central2.`, Quota},
		{`Quota exceeded for quota metric 'Create requests' and limit 'Create requests per minute' of service 'tpu.googleapis.com' for consumer 'project_number:1'.`, Unavailable},
		{`Maximum number of CreateNode requests per minute`, Unavailable},
		{``, Unavailable},
	}
	for _, tt := range tests {
		a := answer{http: 429, status: "RESOURCE_EXHAUSTED", message: tt.message}
		if got := a.class(); got != tt.class {
			t.Errorf("class of %q = %v, want %v", tt.message, got, tt.class)
		}
		if got, want := a.retryable(), tt.class == Unavailable; got != want {
			t.Errorf("retryable %q = %v, want %v", tt.message, got, want)
		}
	}
}

func TestClassOfAnAnswer(t *testing.T) {
	for _, tt := range []struct {
		a    answer
		want Class
	}{
		{answer{http: 400}, Invalid},
		{answer{http: 400, status: "FAILED_PRECONDITION"}, Conflict},
		{answer{http: 400, message: "The network resource 'n' is already being used by 'i'"}, Conflict},
		{answer{http: 400, reason: "resourceNotReady"}, Unavailable},
		{answer{http: 400, reason: "resourceInUseByAnotherResource"}, Conflict},
		{answer{http: 401}, Unauthenticated},
		{answer{http: 403}, Permission},
		{answer{http: 403, reason: "quotaExceeded"}, Quota},
		{answer{http: 403, reason: "rateLimitExceeded"}, Unavailable},
		{answer{http: 404}, NotFound},
		{answer{http: 408}, Timeout},
		{answer{http: 409}, Conflict},
		{answer{http: 409, status: "ALREADY_EXISTS"}, AlreadyExists},
		{answer{http: 409, reason: "alreadyExists"}, AlreadyExists},
		{answer{http: 409, message: "The resource 'n' already exists"}, AlreadyExists},
		{answer{http: 410}, NotFound},
		{answer{http: 412}, Conflict},
		{answer{http: 429, message: "Quota limit 'X' has been exceeded."}, Quota},
		{answer{http: 429, message: "Quota limit 'X' has been exceeded.", waits: true}, Unavailable},
		{answer{http: 429}, Unavailable},
		{answer{http: 418}, Invalid},
		{answer{http: 500}, Unavailable},
		{answer{http: 501}, Invalid},
		{answer{http: 503}, Unavailable},
		{answer{http: 503, reason: "ZONE_RESOURCE_POOL_EXHAUSTED"}, Capacity},
		{answer{http: 504}, Timeout},
		{answer{http: 599}, Unavailable},
		{answer{http: 302}, Unknown},
		{answer{status: "NOT_FOUND"}, NotFound},
		{answer{status: "RESOURCE_EXHAUSTED", message: "Quota limit 'X' has been exceeded."}, Quota},
		{answer{}, Unknown},
	} {
		if got := tt.a.class(); got != tt.want {
			t.Errorf("class of %+v = %v, want %v", tt.a, got, tt.want)
		}
	}
}

func TestQuotaHint(t *testing.T) {
	for message, want := range map[string]string{
		`Quota 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' exhausted. Limit 16 in zone us-west4-a`: "the quota TPUV5sLitepodPerProjectPerZoneForTPUAPI allows 16 in zone us-west4-a; queued resources",
		`Quota 'NETWORKS' exceeded.  Limit: 5.0 globally.`:                                       "the quota NETWORKS allows 5 globally; delete what is not needed",
	} {
		if got := quotaHint(oneLine(message)); !strings.HasPrefix(got, want) {
			t.Errorf("hint of %q = %q, want it to begin with %q", message, got, want)
		}
	}
}

func TestEachKindOfCredentialsHasItsCommand(t *testing.T) {
	for content, want := range map[string]string{
		`{"type":"authorized_user"}`:                              "gcloud auth application-default login",
		`{"type":"service_account","client_email":"a@p.iam"}`:     "gcloud iam service-accounts keys create key.json --iam-account=a@p.iam",
		`{"type":"external_account"}`:                             "key.json",
		`{"type":"impersonated_service_account"}`:                 "gcloud auth application-default login",
		`not JSON, but what is there when a file is half written`: "gcloud auth application-default login",
	} {
		if got := remedyOf("key.json", []byte(content)); !strings.Contains(got, want) {
			t.Errorf("remedy of %s = %q, want %q in it", content, got, want)
		}
	}
}

func TestGcloudsOwnLoginIsRenewedByGcloud(t *testing.T) {
	var refusal error
	tok := newTokens(New(Config{GcloudToken: func(context.Context) (string, error) { return "t", refusal }}).cfg)
	tok.adc = noADC
	if _, _, err := tok.token(t.Context()); err != nil {
		t.Fatal(err)
	}
	tok.forget("t")
	refusal = errors.New("exit status 1")
	_, _, err := tok.token(t.Context())
	if hint := Hint(err); !strings.HasSuffix(hint, ": gcloud auth login") {
		t.Errorf("hint of %v = %q, want gcloud auth login", err, hint)
	}
}
