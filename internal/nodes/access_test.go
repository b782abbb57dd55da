package nodes_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"multihost/internal/event"
	"multihost/internal/nodes"
	"multihost/internal/provision"
	"multihost/internal/sim"
	"multihost/internal/testkit/simcloud"
)

func TestHostKeysOneWorkerAtATime(t *testing.T) {
	c := start(t, sim.Config{})
	c.make(nil)
	s := c.slice("t-1")
	for worker := range s.Workers {
		keys, hostname, err := c.HostKeys(t.Context(), s, worker)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(hostname, "-w-"+string(rune('0'+worker))) {
			t.Errorf("worker %d: hostname %q", worker, hostname)
		}
		want := "ssh-ed25519 " + simcloud.WireKey("ssh-ed25519", hostname)
		if len(keys) != 2 || keys[0] != want || !strings.HasPrefix(keys[1], "ssh-rsa ") {
			t.Errorf("worker %d: keys %q, want %q first", worker, keys, want)
		}
	}
	for _, r := range c.Sim.Requests() {
		if strings.Contains(r.Path, "getGuestAttributes") && (strings.Contains(r.Body, `"0","1"`) || !strings.Contains(r.Body, "hostkeys/")) {
			t.Errorf("asked for several at once: %s", r.Body)
		}
	}
}

func TestGuestAttributesUnavailable(t *testing.T) {
	c := start(t, sim.Config{})
	c.make(nil)
	c.Fault(sim.Fault{Name: "no-guest-attributes"})
	_, _, err := c.HostKeys(t.Context(), c.slice("t-0"), 0)
	if !errors.Is(err, provision.ErrNoHostKeys) || !strings.Contains(err.Error(), "disabled") {
		t.Errorf("got %v", err)
	}
}

func TestGuestAttributesNotWrittenYet(t *testing.T) {
	c := start(t, sim.Config{Workers: &simcloud.Backend{NoKeys: true}})
	c.make(nil)
	_, hostname, err := c.HostKeys(t.Context(), c.slice("t-0"), 0)
	if !errors.Is(err, provision.ErrNoHostKeys) || hostname == "" {
		t.Errorf("hostname %q, %v", hostname, err)
	}
	if n := c.Calls("POST", "getGuestAttributes"); n != 3 {
		t.Errorf("asked %d times, want 3", n)
	}
}

func TestHostKeysThatAreNotTheWorkersAreNotTaken(t *testing.T) {
	good := simcloud.WireKey("ssh-ed25519", "x")
	tests := map[string]string{
		"another worker's": `{"guestAttributes":[{"queryValue":{"items":[{"namespace":"hostkeys","key":"ssh-ed25519","value":"` + good + `"},{"namespace":"hostkeys","key":"hostname","value":"t1v-n-1-w-3"}]}}]}`,
		"not base64":       `{"guestAttributes":[{"queryValue":{"items":[{"namespace":"hostkeys","key":"ssh-ed25519","value":"!!"}]}}]}`,
		"another type":     `{"guestAttributes":[{"queryValue":{"items":[{"namespace":"hostkeys","key":"ssh-rsa","value":"` + good + `"}]}}]}`,
		"other namespace":  `{"guestAttributes":[{"queryValue":{"items":[{"namespace":"evil","key":"ssh-ed25519","value":"` + good + `"}]}}]}`,
		"nothing":          `{}`,
	}
	c := start(t, sim.Config{})
	c.make(nil)
	s := c.slice("t-0")
	for name, answer := range tests {
		c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
			return true
		})
		if keys, _, err := c.HostKeys(t.Context(), s, 0); !errors.Is(err, provision.ErrNoHostKeys) {
			t.Errorf("%s: got %q, %v", name, keys, err)
		}
	}
}

// Attributes returns only the attributes of multihost, not others that workers set.
func TestAttributesOfWorkers(t *testing.T) {
	c := start(t, sim.Config{})
	var asked string
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		body, _ := io.ReadAll(r.Body)
		asked = r.URL.Path + " " + string(body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"guestAttributes":[{},{"queryValue":{"items":[{"namespace":"multihost","key":"lease","value":"no"},{"namespace":"multihost","key":"state","value":"run=r"},{"namespace":"x","key":"state","value":"no"}]}},null]}`)
		return true
	})
	got, err := c.Attributes(t.Context(), "t-0", "state")
	if err != nil || !slices.Equal(got, []string{"run=r"}) || !strings.Contains(asked, "/nodes/t-0:getGuestAttributes ") || !strings.Contains(asked, `"queryPath":"multihost/state"`) {
		t.Errorf("got %q, %v; asked %s", got, err, asked)
	}
}

func TestEnsureKey(t *testing.T) {
	c := start(t, sim.Config{})
	bob := "bob:" + simcloud.PublicKey("bob") + " bob"
	c.make(map[string]string{"ssh-keys": bob, "startup-script": "echo"})
	s := c.slice("t-0")
	changed, err := c.EnsureKey(t.Context(), s, "ada", simcloud.PublicKey("ada")+" ada@laptop")
	if err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	got := c.slice("t-0").Metadata
	if want := bob + "\nada:" + simcloud.PublicKey("ada") + " ada"; got["ssh-keys"] != want || got["startup-script"] != "echo" {
		t.Errorf("metadata %q, want keys %q", got, want)
	}
	if got := c.slice("t-1").Metadata["ssh-keys"]; got != bob {
		t.Errorf("another slice was changed: %q", got)
	}
	if changed, err := c.EnsureKey(t.Context(), s, "ada", simcloud.PublicKey("ada")); err != nil || changed {
		t.Errorf("second time: changed %v, %v", changed, err)
	}
}

func TestKeyThatTheProjectHasIsNotAdded(t *testing.T) {
	c := start(t, sim.Config{ProjectMetadata: map[string]string{"ssh-keys": "x:ssh-rsa AAAA x\nada:" + simcloud.PublicKey("ada") + " laptop"}})
	c.make(nil)
	if changed, err := c.EnsureKey(t.Context(), c.slice("t-0"), "ada", simcloud.PublicKey("ada")); err != nil || changed {
		t.Errorf("changed %v, %v", changed, err)
	}
	if changed, err := c.EnsureKey(t.Context(), c.slice("t-0"), "eve", simcloud.PublicKey("ada")); err != nil || !changed {
		t.Errorf("other login: changed %v, %v", changed, err)
	}
}

func TestProjectKeysMayBeBlocked(t *testing.T) {
	c := start(t, sim.Config{ProjectMetadata: map[string]string{"ssh-keys": "ada:" + simcloud.PublicKey("ada")}})
	c.make(map[string]string{"block-project-ssh-keys": "TRUE"})
	if changed, err := c.EnsureKey(t.Context(), c.slice("t-0"), "ada", simcloud.PublicKey("ada")); err != nil || !changed {
		t.Errorf("changed %v, %v", changed, err)
	}
}

func TestExpiredKeyIsAddedAnew(t *testing.T) {
	c := start(t, sim.Config{})
	old := "ada:" + simcloud.PublicKey("ada") + ` google-ssh {"userName":"ada","expireOn":"2020-01-02T03:04:05+0000"}`
	c.make(map[string]string{"ssh-keys": old})
	if changed, err := c.EnsureKey(t.Context(), c.slice("t-0"), "ada", simcloud.PublicKey("ada")); err != nil || !changed {
		t.Errorf("changed %v, %v", changed, err)
	}
}

// Two users add their keys to one slice at the same time. The API keeps only the metadata
// written last.
func TestKeyPatchRace(t *testing.T) {
	c := start(t, sim.Config{})
	c.make(nil)
	s := c.slice("t-0")
	users := []string{"ada", "bob", "eve"}
	var wg sync.WaitGroup
	for _, user := range users {
		wg.Go(func() {
			if changed, err := c.EnsureKey(t.Context(), s, user, simcloud.PublicKey(user)); err != nil || !changed {
				t.Errorf("%s: changed %v, %v", user, changed, err)
			}
		})
	}
	wg.Wait()
	// One client lost the race after its last check. It tries again, as after a refused
	// login, and removes no other key.
	for _, user := range users {
		if _, err := c.EnsureKey(t.Context(), s, user, simcloud.PublicKey(user)); err != nil {
			t.Fatal(err)
		}
	}
	keys := c.slice("t-0").Metadata["ssh-keys"]
	for _, user := range users {
		if strings.Count(keys, user+":"+simcloud.PublicKey(user)) != 1 {
			t.Errorf("%s is missing or double in %q", user, keys)
		}
	}
}

// After our write, another writer's metadata replaces ours.
func TestKeyLostToAnotherWriterIsAddedAgain(t *testing.T) {
	c := start(t, sim.Config{})
	c.make(nil)
	s := c.slice("t-0")
	var once sync.Once
	bob := "bob:" + simcloud.PublicKey("bob") + " bob"
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch {
			return false
		}
		once.Do(func() { // bob's whole metadata replaces ours
			r.Body = io.NopCloser(strings.NewReader(`{"metadata":{"ssh-keys":"` + bob + `"}}`))
			r.ContentLength = -1
		})
		return false
	})
	if changed, err := c.EnsureKey(t.Context(), s, "ada", simcloud.PublicKey("ada")); err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	if got, want := c.slice("t-0").Metadata["ssh-keys"], bob+"\nada:"+simcloud.PublicKey("ada")+" ada"; got != want {
		t.Errorf("keys %q, want %q", got, want)
	}
}

func TestKeyPatchConflictIsTriedAgain(t *testing.T) {
	c := start(t, sim.Config{})
	c.make(nil)
	c.Fault(sim.Fault{Name: "api-error", Code: 409, Method: "PATCH", Count: 2, Message: "another update is in flight"})
	if changed, err := c.EnsureKey(t.Context(), c.slice("t-0"), "ada", simcloud.PublicKey("ada")); err != nil || !changed {
		t.Errorf("changed %v, %v", changed, err)
	}
}

func TestKeysBeyondTheMetadataLimit(t *testing.T) {
	c := start(t, sim.Config{})
	c.make(map[string]string{"ssh-keys": strings.Repeat("x", 262100)})
	_, err := c.EnsureKey(t.Context(), c.slice("t-0"), "ada", simcloud.PublicKey("ada"))
	if err == nil || !strings.Contains(err.Error(), "at most 262144") {
		t.Errorf("got %v", err)
	}
}

func TestOSLoginIsWarnedAbout(t *testing.T) {
	c := start(t, sim.Config{ProjectMetadata: map[string]string{"enable-oslogin": "TRUE"}})
	c.make(nil)
	if _, err := c.EnsureKey(t.Context(), c.slice("t-0"), "ada", simcloud.PublicKey("ada")); err != nil {
		t.Fatal(err)
	}
	if !c.Log.Said(event.Warn, "OS Login is on") {
		t.Error("nothing was said about it")
	}
}

func TestKeyEntryRefusesWhatWouldBreakMetadata(t *testing.T) {
	t.Parallel()
	for _, bad := range [][2]string{
		{"", simcloud.PublicKey("a")}, {"a:b", simcloud.PublicKey("a")}, {"a b", simcloud.PublicKey("a")}, {"a", "ssh-ed25519"}, {"a", "ssh-ed25519 AAAA"},
		{"a", simcloud.PublicKey("a") + "\nroot:" + simcloud.PublicKey("e")},
	} {
		if entry, err := nodes.KeyEntry(bad[0], bad[1]); err == nil {
			t.Errorf("KeyEntry(%q, %q) = %q", bad[0], bad[1], entry)
		}
	}
}

func TestProjectThatCannotBeReadIsNoHindrance(t *testing.T) {
	c := start(t, sim.Config{})
	c.make(nil)
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/compute/") {
			http.Error(w, "{}", http.StatusForbidden)
			return true
		}
		return false
	})
	if changed, err := c.EnsureKey(t.Context(), c.slice("t-0"), "ada", simcloud.PublicKey("ada")); err != nil || !changed {
		t.Errorf("changed %v, %v", changed, err)
	}
}
