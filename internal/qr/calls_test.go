package qr_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/provider"
	"multihost/internal/provision"
	"multihost/internal/qr"
	"multihost/internal/sim"
	"multihost/internal/testkit"
	"multihost/internal/testkit/simcloud"
	"multihost/internal/tpu"
)

// A look at any number of slices takes two calls: one reads the queued resource, one lists
// the slices.
func TestWaitingFor64SlicesListsThem(t *testing.T) {
	c := start(t, sim.Config{Step: 50 * time.Millisecond})
	c.create(request(t, func(r *qr.Request) { r.NodeCount = 64 }))
	before := len(c.Sim.Requests())
	_, list, err := c.Wait(t.Context(), "q7", quick(nil))
	if err != nil || len(list) != 64 {
		t.Fatalf("%d slices, %v", len(list), err)
	}
	reads, lists := 0, 0
	for _, r := range c.Sim.Requests()[before:] {
		path, _, _ := strings.Cut(r.Path, "?")
		switch {
		case r.Method == http.MethodGet && strings.HasSuffix(path, "/queuedResources/q7"):
			reads++
		case r.Method == http.MethodGet && strings.HasSuffix(path, "/nodes"):
			lists++
		default:
			t.Errorf("wait calls %s %s", r.Method, r.Path)
		}
	}
	if lists == 0 || lists > reads {
		t.Errorf("%d lists of slices in %d looks", lists, reads)
	}
	before = len(c.Sim.Requests())
	for _, s := range list {
		// A run does this for each slice. Its metadata already has the key.
		s.Metadata = map[string]string{"ssh-keys": "ada:" + simcloud.PublicKey("ada") + " ada"}
		if changed, err := c.EnsureKey(t.Context(), s, "ada", simcloud.PublicKey("ada")); changed || err != nil {
			t.Fatal(changed, err)
		}
	}
	if got := c.Sim.Requests()[before:]; len(got) > 1 { // once: the project's metadata
		t.Errorf("64 slices that have the key cost %d calls", len(got))
	}
}

// A long wait reads less than once a second, and not in step with other waits.
func TestALongWaitReadsRarely(t *testing.T) {
	c := start(t, sim.Config{})
	c.Fault(sim.Fault{Name: "no-capacity"})
	c.create(request(t, nil))
	clock := testkit.NewFastClock()
	var mu sync.Mutex
	var times []time.Time
	c.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		times = append(times, clock.Now())
		return false
	})
	var late *qr.DeadlineError
	begin := clock.Now()
	if _, _, err := c.Wait(t.Context(), "q7", qr.WaitOptions{QueueLimit: 4 * time.Minute, AdviceAfter: time.Hour}); !errors.As(err, &late) {
		t.Fatal(err)
	}
	took := clock.Now().Sub(begin)
	mu.Lock()
	defer mu.Unlock()
	if n := len(times); n < 3 || float64(n) > took.Seconds()/4 {
		t.Errorf("%d calls in %v", n, took)
	}
	pauses := map[time.Duration]bool{}
	for i := 1; i < len(times); i++ {
		pauses[times[i].Sub(times[i-1]).Round(10*time.Millisecond)] = true
	}
	if len(pauses) < len(times)/2 {
		t.Errorf("pauses are all alike: %v", pauses)
	}
}

// Guest attributes take one call per worker. Of 2048 such calls, only a few run at once.
// Neither this command nor the next one repeats them, unless a worker was made again or
// somebody doubts its key.
func TestHostKeysOf2048WorkersAreAskedOnce(t *testing.T) {
	c := start(t, sim.Config{Slices: []sim.SliceSpec{{Name: "big", Count: 32, Type: "v5litepod-256"}}})
	path := filepath.Join(t.TempDir(), "state", "hostkeys.json")
	keys := provider.KeepKeys(c.Provider(""), gcp.SystemClock, path)
	all, err := c.Slices(t.Context())
	testkit.Must(t, err)
	all = slices.DeleteFunc(all, func(s tpu.Slice) bool { return !strings.HasPrefix(s.Name, "big") })

	var mu sync.Mutex
	var asked, now, most int64
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "getGuestAttributes") {
			return false
		}
		count := func(n int64) {
			mu.Lock()
			defer mu.Unlock()
			asked, now = asked+max(n, 0), now+n
			most = max(most, now)
		}
		count(1)
		defer count(-1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"guestAttributes":[{"queryValue":{"items":[{"namespace":"hostkeys","key":"ssh-ed25519","value":"` + simcloud.WireKey("ssh-ed25519", "x") + `"}]}}]}`))
		return true
	})
	ask := func(client provision.Provider, list []tpu.Slice) int64 {
		t.Helper()
		before := asked
		var wg sync.WaitGroup
		for _, s := range list {
			for worker := range s.Workers {
				wg.Go(func() {
					keys, _, err := client.HostKeys(t.Context(), s, worker)
					if err != nil || len(keys) != 1 {
						t.Error(keys, err)
					}
				})
			}
		}
		wg.Wait()
		return asked - before
	}
	if n := ask(keys, all); n != 2048 {
		t.Errorf("%d calls for 2048 workers", n)
	}
	if n := most; n > 32 {
		t.Errorf("%d calls at once", n)
	}
	if n := ask(keys, all); n != 0 {
		t.Errorf("%d calls the second time", n)
	}
	testkit.Must(t, provider.SaveKeys(keys))

	next := func() *provider.Keys { return provider.KeepKeys(qr.New(c.GCP).Provider(""), gcp.SystemClock, path) }
	if n := ask(next(), all); n != 0 {
		t.Errorf("%d calls of the next command", n)
	}
	anew, later := all[0], all[0]
	anew.UID += "0"
	later.Created = later.Created.Add(time.Second)
	if later.Created.Year() < 2000 {
		t.Errorf("slice was made at %v", later.Created)
	}
	if n := ask(next(), []tpu.Slice{anew, later}); n != 128 {
		t.Errorf("%d calls for 128 workers that were made anew", n)
	}
	client := next()
	if !provider.DoubtKeys(client, all[0], 3) || provider.DoubtKeys(client, all[0], 3) {
		t.Error("what is remembered is not forgotten once")
	}
	if n := ask(client, all[:1]); n != 1 {
		t.Errorf("%d calls after one worker was doubted", n)
	}
	testkit.Must(t, os.WriteFile(path, []byte("{broken"), 0o600))
	if n := ask(next(), all[:1]); n != 64 {
		t.Errorf("%d calls with a broken file", n)
	}
}

// If the API could not complete its list, the client requests the list again. Otherwise a
// missing slice would count as gone, and its run as lost.
func TestAListThatLeavesSomethingOutIsNotBelieved(t *testing.T) {
	c := start(t, sim.Config{})
	partial := 0
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if partial++; partial > 2 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"unreachable": ["projects/p/locations/`+testZone+`"]}`)
		return true
	})
	if list, err := c.Slices(t.Context()); err != nil || len(list) != 1 || partial != 3 {
		t.Errorf("%d slices after %d calls, %v", len(list), partial, err)
	}
	partial = 0
	if _, err := c.List(t.Context()); err != nil || partial != 4 { // and one call for the slices
		t.Errorf("queued resources after %d calls: %v", partial, err)
	}
}

// Callers that know only package provision recognize a missing resource by the error.
func TestAResourceThatIsNotThereIsNotFound(t *testing.T) {
	c := start(t, sim.Config{})
	if _, err := c.Provider("").Get(t.Context(), "none"); !errors.Is(err, provision.ErrNotFound) {
		t.Errorf("the error is %v", err)
	}
}
