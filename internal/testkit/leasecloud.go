package testkit

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Paths of the API of a LeaseCloud.
const (
	LeaseZone     = "/v2alpha1/projects/p/locations/z"
	LeaseResource = LeaseZone + "/queuedResources/train"
)

// A LeaseCloud is the part of Google Cloud that the watches of a job's lease use: the
// metadata server of each worker, and the API with the queued resource LeaseResource. Its
// methods are safe for concurrent use; change a field inside Do while a watch lives.
type LeaseCloud struct {
	mu      sync.Mutex
	Label   string    // multihost-run of the resource
	Terms   string    // in the metadata of the slices
	Told    []string  // by worker: its guest attribute; "" for none
	Asked   int       // calls for guest attributes
	Deleted time.Time // when the resource was deleted; zero: it is there

	// Refuse returns the status of a call that is refused, 0 for one that is answered, and
	// -1 for one that gets no answer. A call is a method, a space and a path; that of the
	// metadata server begins behind "instance/". Nil: all are answered.
	Refuse func(call string) int
}

// NewLeaseCloud returns the cloud of a job train with so many workers.
func NewLeaseCloud(workers int) *LeaseCloud {
	return &LeaseCloud{Label: "train", Told: make([]string, workers)}
}

// Do calls f while no call is answered.
func (c *LeaseCloud) Do(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Serve answers a call of a worker. It returns false if the call gets no answer.
func (c *LeaseCloud) Serve(w http.ResponseWriter, r *http.Request, worker int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/instance/")
	if c.Refuse != nil {
		switch status := c.Refuse(r.Method + " " + path); {
		case status < 0:
			return false
		case status > 0:
			http.Error(w, "refused", status)
			return true
		}
	}
	switch {
	case path == "service-accounts/default/token":
		fmt.Fprint(w, `{"access_token":"t","expires_in":3599}`)
	case path == "service-accounts/default/email":
		fmt.Fprint(w, "1-compute@developer.gserviceaccount.com")
	case path == "attributes/multihost-lease":
		io.WriteString(w, c.Terms)
	case path == "guest-attributes/multihost/lease":
		text, _ := io.ReadAll(r.Body)
		c.Told[worker] = string(text)
	case strings.HasPrefix(path, "guest-attributes/"):
	case strings.HasSuffix(path, ":getGuestAttributes"):
		c.Asked++
		fmt.Fprintf(w, `{"guestAttributes":[%s]}`, c.attributes())
	case path != LeaseResource || !c.Deleted.IsZero():
		http.NotFound(w, r)
	case r.Header.Get("Authorization") != "Bearer t":
		w.WriteHeader(http.StatusUnauthorized)
	case r.Method == http.MethodDelete:
		c.Deleted = time.Now()
	default:
		fmt.Fprintf(w, `{"name":"train","tpu":{"nodeSpec":[{"node":{"labels":{"multihost-run": %q}}}]},"state":{"state": "ACTIVE"}}`, c.Label)
	}
	return true
}

// attributes returns the guest attributes of all workers.
func (c *LeaseCloud) attributes() string {
	all := make([]string, len(c.Told))
	for i, value := range c.Told {
		if all[i] = "{}"; value != "" {
			all[i] = fmt.Sprintf(`{"queryValue":{"items":[{"namespace":"multihost","key":"lease","value":%q}]}}`, value)
		}
	}
	return strings.Join(all, ",")
}
