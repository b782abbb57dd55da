package sim

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/cloudresourcemanager/v1"
	oslogin "google.golang.org/api/oslogin/v1"
	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim/worker"
	"multihost/internal/tpu"
)

// state is the whole state of the simulated cloud. Keys of the maps are full resource
// names: projects/P/locations/Z/nodes/N, projects/P/global/networks/N.
type state struct {
	queued map[string]*queuedResource
	nodes  map[string]*node
	ops    map[string]*operation
	replay map[string]*operation // by method, parent and requestId

	networks    map[string]*network
	subnetworks map[string]*computepb.Subnetwork
	firewalls   map[string]*computepb.Firewall
	computeOps  map[string]*computeOp
	computeSeen map[string]*computeOp // by method, path and requestId
	metadata    map[string]string     // commonInstanceMetadata
	fingerprint int
	logins      map[string]*oslogin.LoginProfile // of OS Login, by address

	login      simLogin
	buckets    map[string]*bucket
	uploads    map[string]*upload // unfinished resumable uploads, by id
	generation int64              // the last one assigned to an object
	secrets    map[string][][]byte
	tokens     map[string]*token // of workers, by node and index

	policy      []*cloudresourcemanager.Binding // of the project
	policyCount int                             // number of changes of policy

	faults    []*activeFault
	faultID   int
	quota     map[string]int // by zone; 0 or missing: no limit
	addresses map[string]int // by subnetwork: number of internal addresses assigned
	requests  []Request
	counts    map[string]int // requests by method
	total     int
}

func (s *Cloud) initialState() state {
	st := state{
		queued: map[string]*queuedResource{}, nodes: map[string]*node{}, ops: map[string]*operation{},
		replay: map[string]*operation{}, networks: map[string]*network{}, subnetworks: map[string]*computepb.Subnetwork{},
		firewalls: map[string]*computepb.Firewall{}, computeOps: map[string]*computeOp{}, computeSeen: map[string]*computeOp{},
		metadata: map[string]string{}, quota: map[string]int{}, addresses: map[string]int{}, counts: map[string]int{},
		buckets: map[string]*bucket{DefaultBucket: newBucket(DefaultBucket, s.storageTime())}, uploads: map[string]*upload{},
		secrets: map[string][][]byte{}, tokens: map[string]*token{}, policy: firstPolicy(),
	}
	for id, value := range s.cfg.Secrets {
		st.secrets[id] = [][]byte{[]byte(value)}
	}
	maps.Copy(st.metadata, s.cfg.ProjectMetadata)
	for _, z := range s.zones() {
		if s.cfg.Quota > 0 {
			st.quota[z] = s.cfg.Quota
		}
	}
	s.addDefaultNetwork(&st)
	return st
}

// A queuedResource is one request and its state.
type queuedResource struct {
	msg      *tpualpha.QueuedResource // state and name included
	id, zone string
	typ      tpu.Type
	count    int
	prefix   string // of multi-node requests; empty for a single node
	deadline time.Time
	begins   time.Time // valid-after
}

func (q *queuedResource) state() string { return q.msg.State.State }

// nodeIDs returns the ids of the nodes of q, in slice order.
func (q *queuedResource) nodeIDs() []string {
	if q.prefix == "" {
		return []string{q.msg.Tpu.NodeSpec[0].NodeId}
	}
	ids := make([]string, q.count)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d", q.prefix, i)
	}
	return ids
}

// cost returns how much of the quota q takes.
func (q *queuedResource) cost() int { return q.count * units(q.typ) }

// units returns the number in the accelerator type: TensorCores or chips.
func units(t tpu.Type) int {
	if t.Generation.CountsCores {
		return 2 * t.Chips
	}
	return t.Chips
}

// A node is one slice.
type node struct {
	msg      *tpualpha.Node
	id, zone string
	typ      tpu.Type
	machines []worker.Machine // in worker order; nil entries before they boot
	further  [][]string       // the addresses of each worker's other interfaces
	ips      []string
	mtu      int
	queued   string              // resource name of the request that created it, or empty
	gone     []func()            // called once the node is deleted
	ended    []func()            // called once its machines have ended, while they are ending
	guest    []map[string]string // guest attributes of each worker, by namespace/key
}

// An operation of the TPU API.
type operation struct {
	name, verb, target string
	created, ended     time.Time
	done, cancelled    bool
	err                *apiError
	result             any // *tpualpha.Node, *tpualpha.QueuedResource, or nil for Empty
}

func (s *Cloud) newOperation(zone, verb, target string) *operation {
	op := &operation{
		name: fmt.Sprintf("%s/operations/operation-%d-%012x", s.locationName(zone), s.clock.Now().UnixMilli(), uint64(newID())&(1<<48-1)),
		verb: verb, target: target, created: s.clock.Now(),
	}
	s.state.ops[op.name] = op
	return op
}

// finish ends op with result, or with err if not nil. op may be nil.
func (s *Cloud) finish(op *operation, result any, err *apiError) {
	if op == nil || op.done {
		return
	}
	op.done, op.result, op.err, op.ended = true, result, err, s.clock.Now()
}

// newID returns a positive number for things that the real API numbers at random. It
// never returns the same number twice.
func newID() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return int64(binary.BigEndian.Uint64(b[:])&(1<<62-1)) | 1<<61
}

func (s *Cloud) locationName(zone string) string {
	return "projects/" + s.cfg.Project + "/locations/" + zone
}

func (s *Cloud) timestamp() string { return stamp(s.clock.Now()) }

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z") }

// sorted returns the values of m that keep accepts, in the order of their keys; a nil
// keep accepts all.
func sorted[V any](m map[string]V, keep func(key string, v V) bool) []V {
	var out []V
	for _, key := range slices.SortedFunc(maps.Keys(m), cmp.Compare[string]) {
		if keep == nil || keep(key, m[key]) {
			out = append(out, m[key])
		}
	}
	return out
}
