// Package cloud holds the state of the simulated cloud and the code that changes it, with
// one lock and one clock. It creates, boots, preempts and deletes slices, injects faults,
// and knows who calls. The packages of the APIs read and change the state through it.
//
// Slices, Networks, Identity, Machines, Injection and Catalog are views of a Cloud, each
// with the methods for one concern. Unless a comment says otherwise, the caller of a method
// holds the lock.
package cloud

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"multihost/internal/fault"
	"multihost/internal/sim/worker"
)

// A Clock provides the time. A zero Config has the system's clock.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

// A SystemClock is the clock of this machine.
type SystemClock struct{}

// Now implements Clock.
func (SystemClock) Now() time.Time { return time.Now() }

// After implements Clock.
func (SystemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Config configures a simulator. The comment of each field names its default.
type Config struct {
	Listen  string // address of the API; default 127.0.0.1:0; "none": only ServeHTTP
	Project string // the only project; default DefaultProject
	Zone    string // zone of the Slices, which offers every accelerator type; default DefaultZone

	// Dir is the private directory of the simulator: state file, keys, gcloud
	// configuration, homes of workers. It is created if it is missing. "" means a new one
	// in the system's temporary directory, which Close removes.
	Dir string

	// Slices exist and are READY when Start returns.
	Slices []SliceSpec

	// Step is how long each change of state takes. The default is 300 ms.
	Step time.Duration

	// Backend is the kind of the workers. "process" is the default. "netns" needs root, and
	// worker.MaybeInit at the start of main. "none" makes an API without workers: nothing
	// listens on the addresses of its nodes.
	Backend string

	// Workers replaces Backend if it is set. The server closes it.
	Workers worker.Backend

	// Agent returns multihost-agent for this machine, for the images of pods. Nil means
	// that the images lack it.
	Agent func() ([]byte, error)

	// SSHPort is the port of all workers. 0 means a free one.
	SSHPort int

	// Quota is how many TensorCores (chips for v5litepod and v6e) of one generation a zone
	// may have. 0 means no limit.
	Quota int

	// ProjectMetadata is the initial commonInstanceMetadata.
	ProjectMetadata map[string]string

	// With Login, every caller needs an access token: one of the user, whose application
	// default credentials are in Env, or one from a worker's metadata server.
	Login bool

	// Secrets are the initial secrets of Secret Manager. Their values are version 1.
	Secrets map[string]string

	// Faults are active from the start.
	Faults []Fault

	Clock Clock // default: the system's clock
}

// The defaults of a zero Config.
const (
	DefaultProject = "multihost-sim"
	DefaultZone    = "us-central2-b"
	DefaultStep    = 300 * time.Millisecond
)

// A Cloud is the state of the simulated cloud and the methods that change it, with one lock
// and one clock. The APIs read and change it.
type Cloud struct {
	Config  Config
	Clock   Clock
	BaseURL string
	Workers worker.Backend // nil if the backend is "none"

	Kubernetes Kubernetes   // nil: clusters have no Kubernetes APIs
	Serve      http.Handler // handler of all APIs

	Ctx     context.Context // ends when the simulator closes
	Running sync.WaitGroup  // everything started by Later, Spawn and Serve

	Mu      sync.Mutex // guards the fields below; never held during a wait
	Closing bool       // the server is closing, so no request may start
	State   state
}

// ErrClosed is the cause of everything that Close cancels.
var ErrClosed = fault.New(fault.Unavailable, "simulator closed")

// WorkersDir returns the directory of the files of all workers.
func (s *Cloud) WorkersDir() string { return WorkersDir(s.Config.Dir) }

// WorkersDir returns the directory of the files of all workers of a simulator in dir.
func WorkersDir(dir string) string { return filepath.Join(dir, "workers") }

// Enter registers the start of a request, and returns false if the server is closing.
// Otherwise the caller must call s.Running.Done at the end of the request.
func (s *Cloud) Enter() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Closing {
		return false
	}
	s.Running.Add(1)
	return true
}

// Spawn runs f on a goroutine, without s.Mu. Close waits for it, so f must end soon after
// s.Ctx. The caller holds s.Mu.
func (s *Cloud) Spawn(f func()) {
	if !s.Closing {
		s.Running.Go(f)
	}
}

// Later runs f after the time d, with s.Mu held, unless the server closes meanwhile. The
// caller holds s.Mu.
func (s *Cloud) Later(d time.Duration, f func()) {
	s.Spawn(func() {
		if d > 0 {
			select {
			case <-s.Clock.After(d):
			case <-s.Ctx.Done():
				return
			}
		}
		s.Mu.Lock()
		defer s.Mu.Unlock()
		if s.Ctx.Err() == nil {
			f()
		}
	})
}

// NextStep runs f after one Config.Step and the delay of the fault slow-operations.
func (s *Cloud) NextStep(f func()) { s.Later(s.Config.Step+s.Injection().extraDelay(), f) }

// A Request is one API request that the server has received.
type Request struct {
	Method string
	Path   string // with query
	Body   string
	Code   int // status of the answer; 0 if the connection was dropped
}

// keptRequests limits the log of requests, because a simulator may run for weeks.
const keptRequests = 10_000

// LogRequest adds a request to the result of Requests. It takes the lock.
func (s *Cloud) LogRequest(r Request) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.State.Counts[r.Method]++
	s.State.Total++
	s.State.Requests = append(s.State.Requests, r)
	if extra := len(s.State.Requests) - keptRequests; extra > 0 {
		s.State.Requests = slices.Delete(s.State.Requests, 0, extra)
	}
}

// Pause waits for d. It returns false if ctx ends before. The caller must not hold the
// lock.
func (s *Cloud) Pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-s.Clock.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Slices creates, boots, preempts and deletes slices.
type Slices struct{ *Cloud }

// Networks holds networks, subnetworks, firewall rules and internal addresses.
type Networks struct{ *Cloud }

// Identity says who calls and what a caller may do.
type Identity struct{ *Cloud }

// Machines knows the machines of VMs and ends them. It answers for the metadata servers of
// all workers.
type Machines struct{ *Cloud }

// Injection keeps the active faults and applies them.
type Injection struct{ *Cloud }

// Catalog knows zones, accelerator types and runtime versions, and checks nodes against
// them.
type Catalog struct{ *Cloud }

// Slices returns c as Slices.
func (c *Cloud) Slices() Slices { return Slices{c} }

// Networks returns c as Networks.
func (c *Cloud) Networks() Networks { return Networks{c} }

// Identity returns c as Identity.
func (c *Cloud) Identity() Identity { return Identity{c} }

// Machines returns c as Machines.
func (c *Cloud) Machines() Machines { return Machines{c} }

// Injection returns c as Injection.
func (c *Cloud) Injection() Injection { return Injection{c} }

// Catalog returns c as Catalog.
func (c *Cloud) Catalog() Catalog { return Catalog{c} }
