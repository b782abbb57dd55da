package cloud

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/cloudresourcemanager/v1"
	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/sim/wire"

	oslogin "google.golang.org/api/oslogin/v1"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim/worker"
	"multihost/internal/tpu"
)

// state is the whole state of the simulated cloud. Keys of the maps are full resource
// names: projects/P/locations/Z/nodes/N, projects/P/global/networks/N.
type state struct {
	Queued map[string]*QueuedResource
	Nodes  map[string]*Node
	Ops    map[string]*Operation
	Replay map[string]*Operation // by method, parent and requestId

	Networks     map[string]*Network
	Subnetworks  map[string]*computepb.Subnetwork
	Firewalls    map[string]*computepb.Firewall
	ComputeOps   map[string]*ComputeOp
	ComputeSeen  map[string]*ComputeOp // by method, path and requestId
	Policies     map[string]*computepb.ResourcePolicy
	Templates    map[string]*computepb.InstanceTemplate
	Groups       map[string]*Group
	Reservations map[string]*computepb.Reservation
	Instances    map[string]*Instance
	Metadata     map[string]string // commonInstanceMetadata
	Fingerprint  int
	Logins       map[string]*oslogin.LoginProfile // profiles of OS Login, by account address

	Clusters map[string]*Cluster
	KubeOps  map[string]*container.Operation // operations on clusters and node pools

	Login      simLogin
	Buckets    map[string]*Bucket
	Uploads    map[string]*Upload // unfinished resumable uploads, by id
	Generation int64              // the newest generation of an object
	Secrets    map[string][][]byte
	tokens     map[string]*token // tokens of workers, by node and index

	Policy      []*cloudresourcemanager.Binding // policy of the project
	PolicyCount int                             // number of changes of Policy

	Faults    []*ActiveFault
	faultID   int
	Quota     map[string]int // by zone; 0 or absent: no limit
	addresses map[string]int // by subnetwork: number of internal addresses tried
	assigned  map[netip.Addr]bool
	Requests  []Request
	Counts    map[string]int // requests by method
	Total     int
}

// InitialState returns the state of a cloud in which nothing has been made.
func (s *Cloud) InitialState() state {
	st := state{
		Queued: map[string]*QueuedResource{}, Nodes: map[string]*Node{}, Ops: map[string]*Operation{},
		Replay: map[string]*Operation{}, Networks: map[string]*Network{}, Subnetworks: map[string]*computepb.Subnetwork{},
		Firewalls: map[string]*computepb.Firewall{}, ComputeOps: map[string]*ComputeOp{}, ComputeSeen: map[string]*ComputeOp{},
		Reservations: map[string]*computepb.Reservation{},
		Groups:       map[string]*Group{}, Instances: map[string]*Instance{},
		Metadata: map[string]string{}, Quota: map[string]int{}, addresses: map[string]int{}, assigned: map[netip.Addr]bool{}, Counts: map[string]int{},
		Policies: map[string]*computepb.ResourcePolicy{}, Templates: map[string]*computepb.InstanceTemplate{},
		Clusters: map[string]*Cluster{}, KubeOps: map[string]*container.Operation{},
		Buckets: map[string]*Bucket{DefaultBucket: NewBucket(DefaultBucket, s.StorageTime())}, Uploads: map[string]*Upload{},
		Secrets: map[string][][]byte{}, tokens: map[string]*token{}, Policy: firstPolicy(),
	}
	for id, value := range s.Config.Secrets {
		st.Secrets[id] = [][]byte{[]byte(value)}
	}
	maps.Copy(st.Metadata, s.Config.ProjectMetadata)
	for _, z := range s.Catalog().Zones() {
		if s.Config.Quota > 0 {
			st.Quota[z] = s.Config.Quota
		}
	}
	s.Networks().addDefaultNetwork(&st)
	return st
}

// A QueuedResource is one request and its state.
type QueuedResource struct {
	Msg      *tpualpha.QueuedResource // with state and name
	Id, Zone string
	Typ      tpu.Type
	Count    int
	Prefix   string // prefix of a request for several nodes; "" for one node
	Deadline time.Time
	Begins   time.Time    // valid-after
	JSON     wire.Message // Msg, encoded
}

// State returns the API's word for the state of q.
func (q *QueuedResource) State() string { return q.Msg.State.State }

// NodeIDs returns the ids of the nodes of q, in slice order.
func (q *QueuedResource) NodeIDs() []string {
	if q.Prefix == "" {
		return []string{q.Msg.Tpu.NodeSpec[0].NodeId}
	}
	ids := make([]string, q.Count)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d", q.Prefix, i)
	}
	return ids
}

// Cost returns how much of the quota q uses.
func (q *QueuedResource) Cost() int { return q.Count * Units(q.Typ) }

// Units returns the number in the accelerator type: TensorCores or chips.
func Units(t tpu.Type) int {
	if t.Generation.CountsCores {
		return 2 * t.Chips
	}
	return t.Chips
}

// A Node is one slice.
type Node struct {
	Msg      *tpualpha.Node
	Id, Zone string
	Typ      tpu.Type
	Machines []worker.Machine // in worker order; nil until the worker boots
	further  [][]string       // addresses of each worker's other interfaces
	ips      []string
	mtu      int
	Queued   string              // resource name of the request that created it, or ""
	gone     []func()            // called once the node is deleted
	ended    []func()            // called when its machines have ended; set while they are ending
	guest    []map[string]string // guest attributes of each worker, by namespace/key
	JSON     wire.Message        // Msg, encoded
}

// An Operation of the TPU API.
type Operation struct {
	Name, Verb, Target string
	Created, Ended     time.Time
	Done, Cancelled    bool
	Err                *wire.Error
	Result             any // *tpualpha.Node, *tpualpha.QueuedResource, or nil for Empty
}

// NewOperation adds an unfinished operation of the TPU API.
func (s *Cloud) NewOperation(zone, verb, target string) *Operation {
	op := &Operation{
		Name: fmt.Sprintf("%s/operations/operation-%d-%012x", s.LocationName(zone), s.Clock.Now().UnixMilli(), uint64(NewID())&(1<<48-1)),
		Verb: verb, Target: target, Created: s.Clock.Now(),
	}
	s.State.Ops[op.Name] = op
	return op
}

// Finish ends op with result, or with err if err is not nil. op may be nil.
func (s *Cloud) Finish(op *Operation, result any, err *wire.Error) {
	if op == nil || op.Done {
		return
	}
	op.Done, op.Result, op.Err, op.Ended = true, result, err, s.Clock.Now()
}

// NewID returns a positive number where the real API gives a random one. It never returns
// the same number twice.
func NewID() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, as its documentation says
	return int64(binary.BigEndian.Uint64(b[:])&(1<<62-1)) | 1<<61
}

// LocationName returns the resource name of a zone.
func (s *Cloud) LocationName(zone string) string {
	return "projects/" + s.Config.Project + "/locations/" + zone
}

// Timestamp returns the time now, as the TPU API writes it.
func (s *Cloud) Timestamp() string { return Stamp(s.Clock.Now()) }

// Stamp returns a time as the TPU API writes it, with nanoseconds.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z") }

// Sorted returns the values of m for which keep returns true, in the order of their keys. A
// nil keep accepts all.
func Sorted[V any](m map[string]V, keep func(key string, v V) bool) []V {
	var out []V
	for _, key := range slices.SortedFunc(maps.Keys(m), cmp.Compare[string]) {
		if keep == nil || keep(key, m[key]) {
			out = append(out, m[key])
		}
	}
	return out
}
