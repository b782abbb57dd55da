package sim_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/api/option"
	oslogin "google.golang.org/api/oslogin/v1"

	"multihost/internal/sim"
)

// laterClock is a clock that a test can set forward.
type laterClock struct{ by atomic.Int64 }

func (c *laterClock) Now() time.Time                         { return time.Now().Add(time.Duration(c.by.Load())) }
func (c *laterClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

func TestOSLogin(t *testing.T) {
	clock := &laterClock{}
	s, workers := start(t, func(c *sim.Config) {
		c.Clock = clock
		c.Slices = []sim.SliceSpec{{Name: "t", Count: 1, Type: "v4-8"}}
		c.ProjectMetadata = map[string]string{"enable-oslogin": "true", "ssh-keys": "eve:ssh-ed25519 AAAA eve"}
	})
	svc, err := oslogin.NewService(t.Context(), option.WithEndpoint(s.URL()+"/"), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	keys := workers.find("t", 0).spec.AuthorizedKeys
	if got := keys(); len(got) != 0 {
		t.Errorf("a worker with OS Login lets %q in", got)
	}
	profile, err := svc.Users.GetLoginProfile("users/ada@example.com").ProjectId(sim.DefaultProject).Do()
	if err != nil || len(profile.PosixAccounts) != 0 || len(profile.SshPublicKeys) != 0 {
		t.Errorf("fresh profile: %+v, %v", profile, err)
	}
	answer, err := svc.Users.ImportSshPublicKey("users/ada@example.com", &oslogin.SshPublicKey{
		Key: "ssh-ed25519 AAAABBBB ada@laptop", ExpirationTimeUsec: clock.Now().Add(time.Hour).UnixMicro(),
	}).ProjectId(sim.DefaultProject).Do()
	if err != nil || len(answer.LoginProfile.SshPublicKeys) != 1 || answer.LoginProfile.PosixAccounts[0].Username != "ada_example_com" {
		t.Fatalf("import: %+v, %v", answer, err)
	}
	want := []string{"ada_example_com:ssh-ed25519 AAAABBBB ada@example.com"}
	if got := keys(); !slices.Equal(got, want) {
		t.Errorf("a worker lets %q in, want %q", got, want)
	}
	clock.by.Store(int64(2 * time.Hour))
	if got := keys(); len(got) != 0 {
		t.Errorf("a worker lets an expired key in: %q", got)
	}

	for _, tt := range []struct {
		method, path, body string
		code               int
	}{
		{"GET", "/v1/users/ada@example.com/loginProfile?projectId=other", "", 403},
		{"GET", "/v1/users/ada@example.com/loginProfile?view=x", "", 400},
		{"GET", "/v1/users/ada/loginProfile", "", 404},
		{"DELETE", "/v1/users/ada@example.com/loginProfile", "", 404},
		{"POST", "/v1/users/ada@example.com/sshPublicKeys", `{}`, 404},
		{"POST", "/v1/users/ada@example.com:importSshPublicKey", `{"key":"ssh-ed25519 AAAA","colour":"red"}`, 400},
		{"POST", "/v1/users/ada@example.com:importSshPublicKey", `{"key":"ssh-ed25519"}`, 400},
		{"POST", "/v1/users/ada@example.com:importSshPublicKey", `{"key":"ssh-ed25519 AAAA","expirationTimeUsec":"1"}`, 400},
		{"GET", "/oauth2/v2/userinfo", "", 200},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, s.URL()+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tt.code || !json.Valid(body) {
			t.Errorf("%s %s: %s %s; want %d", tt.method, tt.path, resp.Status, body, tt.code)
		}
	}
	full := ""
	for n := 0; n < 40 && full == ""; n++ {
		_, err := svc.Users.ImportSshPublicKey("users/bob@example.com", &oslogin.SshPublicKey{
			Key: fmt.Sprintf("ssh-rsa %s%04d", strings.Repeat("AAAA", 500), n),
		}).ProjectId(sim.DefaultProject).Do()
		if err != nil {
			full = err.Error()
		}
	}
	if !strings.Contains(full, "Login profile size exceeds 32 KiB") {
		t.Errorf("a full profile says %q", full)
	}
}
