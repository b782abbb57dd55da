package testkit

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Paths of a LeaseCloud's API.
const (
	LeaseZone     = "/v2alpha1/projects/p/locations/z"
	LeaseResource = LeaseZone + "/queuedResources/train"
)

// LeaseVMs is the path of the zone with the groups of VMs.
const LeaseVMs = "/compute/v1/projects/p/zones/z"

// LeaseGroup is the path of the group of VMs of the slice train-N.
func LeaseGroup(n int) string { return fmt.Sprintf("%s/instanceGroupManagers/train-%d", LeaseVMs, n) }

// A LeaseCloud is the part of Google Cloud that the watches of a job's lease use: the
// metadata server of each worker, and the API with the queued resource LeaseResource. Its
// methods are safe for concurrent use. While a watch runs, change a field only inside Do.
type LeaseCloud struct {
	mu      sync.Mutex
	Label   string    // multihost-run of the resource
	Terms   string    // terms in the metadata of the slices
	Told    []string  // guest attribute of each worker; "": none
	Asked   int       // calls for guest attributes
	Deleted time.Time // when the resource or its last group was deleted; zero: it exists

	// VMs is the number of VMs in a group; 0: the workers belong to the queued resource.
	// The groups are LeaseGroup(0) and so on. Worker n is VM vm-n.
	VMs     int
	States  []string        // state of each worker's VM; "": RUNNING; NONE: no VM yet
	Gone    map[string]bool // deleted groups
	Foreign string          // path of another run's group

	// Refuse returns the status of a refused call, 0 for a call with an answer, and -1 for
	// one without. A call is a method, a space and a path. The path of the metadata server
	// begins after "instance/". If Refuse is nil, all calls get an answer.
	Refuse func(call string) int
}

// NewLeaseCloud returns the cloud of the job train with this number of workers.
func NewLeaseCloud(workers int) *LeaseCloud {
	return &LeaseCloud{Label: "train", Told: make([]string, workers)}
}

// Do calls f while no call is being answered.
func (c *LeaseCloud) Do(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Serve answers a call of a worker, or returns false if there is no answer.
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
	case strings.HasPrefix(path, LeaseVMs):
		c.serveVMs(w, r, strings.TrimPrefix(path, LeaseVMs+"/"))
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

func (c *LeaseCloud) attributes() string {
	all := make([]string, len(c.Told))
	for i, value := range c.Told {
		if all[i] = "{}"; value != "" {
			all[i] = fmt.Sprintf(`{"queryValue":{"items":[{"namespace":"multihost","key":"lease","value":%q}]}}`, value)
		}
	}
	return strings.Join(all, ",")
}

// serveVMs answers a call about groups of VMs. path is the part after the zone.
func (c *LeaseCloud) serveVMs(w http.ResponseWriter, r *http.Request, path string) {
	var n int
	group, list := strings.CutSuffix(path, "/listManagedInstances")
	if _, err := fmt.Sscanf(path, "instances/vm-%d/getGuestAttributes", &n); err == nil && r.URL.Query().Get("queryPath") == "multihost/lease" && n < len(c.Told) && c.Told[n] != "" {
		c.Asked++
		fmt.Fprintf(w, `{"queryPath":"multihost/lease","queryValue":{"items":[{"namespace":"multihost","key":"lease","value":%q}]}}`, c.Told[n])
		return
	}
	_, err := fmt.Sscanf(group, "instanceGroupManagers/train-%d", &n)
	switch name := fmt.Sprintf("train-%d", n); {
	case err != nil || n*c.VMs >= len(c.Told) || c.Gone[name]:
		http.NotFound(w, r)
	case r.Header.Get("Authorization") != "Bearer t":
		w.WriteHeader(http.StatusUnauthorized)
	case list && r.Method == http.MethodPost:
		fmt.Fprintf(w, `{"managedInstances":[%s]}`, c.managed(n))
	case r.Method == http.MethodDelete:
		if c.Gone == nil {
			c.Gone = map[string]bool{}
		}
		if c.Gone[name] = true; len(c.Gone)*c.VMs == len(c.Told) {
			c.Deleted = time.Now()
		}
	case c.Foreign == name:
		fmt.Fprintf(w, `{"name":%q,"description":"of multihost-run=other"}`, name)
	default:
		fmt.Fprintf(w, `{"name":%q,"description":"of multihost-run=%s"}`, name, c.Label)
	}
}

// managed lists the VMs of group n. A VM that does not exist yet has no state.
func (c *LeaseCloud) managed(n int) string {
	var all []string
	for i := n * c.VMs; i < (n+1)*c.VMs; i++ {
		state := "RUNNING"
		if i < len(c.States) && c.States[i] != "" {
			state = c.States[i]
		}
		text := fmt.Sprintf(`{"instance":"https://compute/zones/z/instances/vm-%d"`, i)
		if state != "NONE" {
			text += fmt.Sprintf(`,"instanceStatus":%q`, state)
		}
		all = append(all, text+"}")
	}
	return strings.Join(all, ",")
}
