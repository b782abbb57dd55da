package nodes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/nodes"
	"multihost/internal/sim"
	"multihost/internal/sim/worker"
	"multihost/internal/testkit/simcloud"
)

var (
	osLoginOn = map[string]string{"enable-oslogin": "TRUE"}
	asAda     = nodes.OSLoginOptions{Account: "Ada.L@example.com"}
)

// keyBackend makes workers and keeps for each the function that returns its accepted keys.
type keyBackend struct {
	simcloud.Backend
	mu   sync.Mutex
	keys map[string]func() []string // by worker
}

func (b *keyBackend) Start(ctx context.Context, spec worker.Spec) (worker.Machine, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keys == nil {
		b.keys = map[string]func() []string{}
	}
	b.keys[spec.Name] = spec.AuthorizedKeys
	return b.Backend.Start(ctx, spec)
}

func (b *keyBackend) letsIn(name, login, key string) bool {
	b.mu.Lock()
	keys := b.keys[name]
	b.mu.Unlock()
	for _, line := range keys() {
		if strings.HasPrefix(line, login+":"+key) {
			return true
		}
	}
	return false
}

func TestLoginWithoutOSLoginIsAKeyInMetadata(t *testing.T) {
	workers := &keyBackend{}
	c := start(t, sim.Config{Workers: workers})
	c.make(nil)
	user, changed, err := c.Login(t.Context(), c.slice("t-0"), "ada", simcloud.PublicKey("ada"), asAda)
	if user != "ada" || !changed || err != nil {
		t.Errorf("got %q, %v, %v", user, changed, err)
	}
	if !workers.letsIn("t-0-w-0", "ada", simcloud.PublicKey("ada")) {
		t.Error("the worker does not let the key in")
	}
	if c.Calls("GET", "loginProfile") != 0 {
		t.Error("OS Login was asked although it is off")
	}
}

func TestLoginWithOSLogin(t *testing.T) {
	workers := &keyBackend{}
	c := start(t, sim.Config{ProjectMetadata: osLoginOn, Workers: workers})
	c.make(nil)
	key := simcloud.PublicKey("ada")
	for n, name := range []string{"t-0", "t-1", "t-0"} {
		user, changed, err := c.Login(t.Context(), c.slice(name), "ada", key+" ada@laptop", asAda)
		if user != "ada_l_example_com" || changed != (n == 0) || err != nil {
			t.Fatalf("%s: got %q, %v, %v", name, user, changed, err)
		}
		if !workers.letsIn(name+"-w-0", user, key) {
			t.Errorf("%s does not let the key in", name)
		}
	}
	if n := c.Calls("POST", ":importSshPublicKey"); n != 1 {
		t.Errorf("imported %d times, want once for all slices", n)
	}
	for _, r := range c.Sim.Requests() {
		if strings.Contains(r.Path, ":importSshPublicKey") && (!strings.Contains(r.Path, "projectId="+sim.DefaultProject) || !strings.Contains(r.Body, "expirationTimeUsec")) {
			t.Errorf("imported by %s %s", r.Path, r.Body)
		}
	}
	if c.Calls("PATCH", "nodes") != 0 {
		t.Error("metadata was written, which the workers ignore")
	}
	if !c.Log.Said(event.Info, `logging in as "ada_l_example_com" instead of "ada"`) {
		t.Error("nothing was said about the login")
	}
	// If the node says FALSE, its workers do not ask OS Login.
	s := c.slice("t-0")
	s.Metadata = map[string]string{"enable-oslogin": "FALSE"}
	if user, _, err := c.Login(t.Context(), s, "ada", key, asAda); user != "ada" || err != nil {
		t.Errorf("node without OS Login: got %q, %v", user, err)
	}
}

func TestManySlicesShareOneImport(t *testing.T) {
	c := start(t, sim.Config{ProjectMetadata: osLoginOn})
	c.make(nil)
	s := c.slice("t-0")
	c.Fault(sim.Fault{Name: "slow-api", Delay: 100 * time.Millisecond})
	var wg sync.WaitGroup
	var mu sync.Mutex
	told := 0
	for range 16 {
		wg.Go(func() {
			_, changed, err := c.Login(t.Context(), s, "ada", simcloud.PublicKey("ada"), asAda)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if changed {
				told++
			}
		})
	}
	wg.Wait()
	if told != 1 || c.Calls("POST", ":importSshPublicKey") != 1 {
		t.Errorf("%d callers were told, %d imports; want one each", told, c.Calls("POST", ":importSshPublicKey"))
	}
}

func TestKeyThatExpiresSoonIsImportedAgain(t *testing.T) {
	c := start(t, sim.Config{ProjectMetadata: osLoginOn})
	c.make(nil)
	s := c.slice("t-0")
	day := asAda
	for _, tt := range []struct {
		life time.Duration
		want bool
	}{{24 * time.Hour, true}, {24 * time.Hour, false}, {72 * time.Hour, true}, {72 * time.Hour, false}} {
		day.KeyLife = tt.life
		if _, changed, err := c.Login(t.Context(), s, "ada", simcloud.PublicKey("ada"), day); changed != tt.want || err != nil {
			t.Errorf("for %s: changed %v, %v; want %v", tt.life, changed, err, tt.want)
		}
	}
}

func TestLoginIsChosenFromTheProfile(t *testing.T) {
	account := func(name string, primary bool) string {
		return fmt.Sprintf(`{"username":%q,"primary":%v}`, name, primary)
	}
	for _, tt := range []struct{ accounts, want string }{
		{account("x", false) + "," + account("ada", false) + "," + account("p", true), "ada"},
		{account("x", false) + "," + account("p", true), "p"},
		{account("x", false) + "," + account("y", false), "x"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			c := start(t, sim.Config{ProjectMetadata: osLoginOn})
			c.make(nil)
			c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/loginProfile") {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"sshPublicKeys":{"f":{"key":"`+simcloud.PublicKey("ada")+` comment"}},"posixAccounts":[`+tt.accounts+`]}`)
				return true
			})
			user, changed, err := c.Login(t.Context(), c.slice("t-0"), "ada", simcloud.PublicKey("ada"), asAda)
			if user != tt.want || changed || err != nil {
				t.Errorf("got %q, %v, %v; want %q", user, changed, err, tt.want)
			}
		})
	}
}

func TestFullLoginProfile(t *testing.T) {
	c := start(t, sim.Config{ProjectMetadata: osLoginOn})
	c.make(nil)
	s := c.slice("t-0")
	long := strings.Repeat("k", 3000)
	var err error
	for n := 0; n < 20 && err == nil; n++ {
		_, _, err = c.Login(t.Context(), s, "ada", simcloud.PublicKey(fmt.Sprint(n, long)), asAda)
	}
	var full *nodes.OSLoginError
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "32 KiB") || !strings.Contains(full.Hint(), "os-login ssh-keys remove") {
		t.Errorf("got %v", err)
	}
}

func TestAccountOfTheCredentials(t *testing.T) {
	c := start(t, sim.Config{ProjectMetadata: osLoginOn})
	c.make(nil)
	s := c.slice("t-0")
	user, _, err := c.Login(t.Context(), s, "ada", simcloud.PublicKey("ada"), nodes.OSLoginOptions{})
	if user != "you_multihost_example" || err != nil {
		t.Errorf("got %q, %v", user, err)
	}
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, "/userinfo"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{}`)
		case strings.HasSuffix(r.URL.Path, "/loginProfile"):
			http.Error(w, `{"error":{"code":403,"message":"no","status":"PERMISSION_DENIED"}}`, http.StatusForbidden)
		default:
			return false
		}
		return true
	})
	for _, tt := range []struct {
		o    nodes.OSLoginOptions
		hint string
	}{{nodes.OSLoginOptions{}, "gcloud config set account"}, {asAda, "osAdminLogin"}} {
		_, _, err := c.Login(t.Context(), s, "ada", simcloud.PublicKey("ada"), tt.o)
		var e *nodes.OSLoginError
		if !errors.As(err, &e) || !strings.Contains(e.Hint(), tt.hint) {
			t.Errorf("got %v, want a hint with %q", err, tt.hint)
		}
	}
}
