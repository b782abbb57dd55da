package gke

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	container "google.golang.org/api/container/v1beta1"
	"google.golang.org/protobuf/encoding/protojson"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/gke/controllers"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A Verb is what a plan does to a resource.
type Verb string

const (
	Create   Verb = "create"
	Keep     Verb = "keep"     // leave it: it exists as wanted
	Wait     Verb = "wait"     // wait for it: it is being made as wanted
	Remake   Verb = "remake"   // delete it and make it again
	Change   Verb = "change"   // give it other settings
	Delete   Verb = "delete"   // delete it
	Conflict Verb = "conflict" // it is in the way: the plan cannot be applied
)

// Kinds of resources in a plan.
const (
	kindPolicy  = "workload policy"
	kindCluster = "cluster"
	kindPool    = "node pool"

	kindController = "controller" // JobSet or Kueue
	kindQueue      = "queue"
)

// A Step is one step of a Plan.
type Step struct {
	Verb     Verb            `json:"verb"`
	Resource string          `json:"resource"` // "workload policy", "cluster", "node pool", "controller" or "queue"
	Name     string          `json:"name"`
	Reason   string          `json:"reason,omitempty"`
	Request  json.RawMessage `json:"request,omitempty"` // request that makes the resource

	policy   *computepb.ResourcePolicy
	cluster  *container.Cluster
	pool     *container.NodePool
	slices   controllers.Slices // of a queue
	leaving  bool               // the old resource of this name is being deleted; wait for that first
	conflict error
}

// A Plan lists the necessary changes, in order. It does not notice later changes of the cluster.
type Plan struct {
	Cluster string `json:"cluster"`
	Steps   []Step `json:"steps"`
	Cost    Cost   `json:"cost"` // of the cluster after the plan
}

// Err returns the conflicts of the plan with what exists, joined, or nil.
func (p Plan) Err() error {
	var errs []error
	for _, s := range p.Steps {
		if s.conflict != nil {
			errs = append(errs, s.conflict)
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Count returns the number of steps with one of the verbs.
func (p Plan) Count(verbs ...Verb) int {
	n := 0
	for _, s := range p.Steps {
		if slices.Contains(verbs, s.Verb) {
			n++
		}
	}
	return n
}

// Loses returns the names of the node pools that the plan deletes, even if it makes them
// again.
func (p Plan) Loses() (names []string) {
	for _, s := range p.Steps {
		if s.Verb == Delete || s.Verb == Remake {
			names = append(names, s.Name)
		}
	}
	return names
}

// Done reports whether there is nothing to do.
func (p Plan) Done() bool { return p.Count(Keep) == len(p.Steps) }

// String returns the plan for people: one line for each resource, and what the cluster
// costs.
func (p Plan) String() string {
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%-8s %s %s", s.Verb, s.Resource, s.Name)
		if s.Reason != "" {
			fmt.Fprintf(&b, ": %s", s.Reason)
		}
		b.WriteByte('\n')
	}
	b.WriteString(p.Cost.String())
	return b.String()
}

// A world is what exists before a plan.
type world struct {
	policy  *computepb.ResourcePolicy // of the topology; nil: none
	cluster *container.Cluster        // nil: none
	busy    map[string][]string       // pods that ask for TPU chips, by node pool
	blind   error                     // why busy is not known, or nil

	project, zone, version string // version is that of a new cluster
}

// planOf returns the plan for o, which must be valid.
func planOf(o Options, w world) Plan {
	o = o.withDefaults()
	p := Plan{Cluster: o.Name}
	nodes := tpu.Nodes{}
	if o.Slices > 0 {
		nodes, _ = tpu.NodesOf(o.Type) // o is valid
	}
	if o.Slices > 0 && byPolicy(o.Type, nodes) {
		p.Steps = append(p.Steps, planPolicy(o, w))
	}
	cluster := planCluster(o, w)
	p.Steps = append(p.Steps, cluster)
	var have []Pool
	version := w.version
	if w.cluster != nil && cluster.Verb != Create {
		version = w.cluster.CurrentMasterVersion
		have = poolsOf(w.cluster)
	}
	if cluster.conflict == nil {
		p.Steps = append(p.Steps, planPools(o, w, nodes, have, version)...)
	}
	for i := range p.Steps {
		p.Steps[i].Request = p.Steps[i].request()
	}
	p.Cost = costOf(o, w, have)
	return p
}

// request returns the body of the request that makes the resource of s, or nil.
func (s Step) request() json.RawMessage {
	var body []byte
	if s.Verb != Create && s.Verb != Remake {
		return nil
	}
	switch { // messages of these types can always be encoded
	case s.policy != nil:
		body, _ = protojson.Marshal(s.policy)
	case s.cluster != nil:
		body, _ = json.Marshal(s.cluster)
	case s.pool != nil:
		body, _ = json.Marshal(s.pool)
	}
	return body
}

func planPolicy(o Options, w world) Step {
	s := Step{Verb: Create, Resource: kindPolicy, Name: policyName(o.Type), policy: policyBody(o.Type), Reason: "it gives the pools the topology " + o.Type.Topology}
	if w.policy == nil {
		return s
	}
	have, want := w.policy.GetWorkloadPolicy(), s.policy.GetWorkloadPolicy()
	var diffs []Difference
	if have.GetType() != want.GetType() {
		diffs = append(diffs, Difference{"type", have.GetType(), want.GetType()})
	}
	if have.GetAcceleratorTopology() != want.GetAcceleratorTopology() {
		diffs = append(diffs, Difference{"topology", have.GetAcceleratorTopology(), want.GetAcceleratorTopology()})
	}
	if len(diffs) > 0 {
		return s.refuse(&MismatchError{Resource: kindPolicy, Name: s.Name, Cluster: o.Name, Differences: diffs}, describe(diffs))
	}
	s.Verb, s.Reason = Keep, "exists"
	return s
}

func (s Step) refuse(err error, why string) Step {
	s.Verb, s.conflict, s.Reason = Conflict, err, why
	return s
}

func planCluster(o Options, w world) Step {
	s := Step{Resource: kindCluster, Name: o.Name}
	k := w.cluster
	if k == nil || k.Status == stateStopping {
		s.Verb, s.cluster = Create, clusterBody(o, w.zone, w.version)
		s.Reason = fmt.Sprintf("Kubernetes %s, network %s, %d CPU nodes of %s", w.version, o.Network, o.CPUNodes, o.CPUMachine)
		if k != nil {
			s.leaving, s.Reason = true, "the old one is being deleted; then "+s.Reason
		}
		return s
	}
	var diffs []Difference
	add := func(field, have, want string) {
		if have != want {
			diffs = append(diffs, Difference{field, have, want})
		}
	}
	add("network", gcp.BaseName(k.Network), gcp.BaseName(o.Network))
	add("subnetwork", gcp.BaseName(k.Subnetwork), gcp.BaseName(o.Subnetwork))
	if o.Version != "" && k.CurrentMasterVersion != o.Version && !strings.HasPrefix(k.CurrentMasterVersion, o.Version+".") {
		add("version", k.CurrentMasterVersion, o.Version)
	}
	if len(diffs) > 0 {
		return s.refuse(&MismatchError{Resource: kindCluster, Name: o.Name, Cluster: o.Name, Differences: diffs}, describe(diffs))
	}
	switch k.Status {
	case stateError:
		err := &FailedError{Cluster: o.Name, Reason: clusterReason(k)}
		return s.refuse(err, err.Error())
	case stateProvisioning:
		s.Verb, s.Reason = Wait, "it is being made"
	case stateReconciling:
		s.Verb, s.Reason = Keep, "exists; GKE is changing it"
	case stateDegraded:
		s.Verb, s.Reason = Keep, "exists, DEGRADED: "+clusterReason(k)
	default:
		s.Verb, s.Reason = Keep, "exists with Kubernetes "+k.CurrentMasterVersion
	}
	return s
}

func clusterReason(k *container.Cluster) string {
	for _, c := range k.Conditions {
		if c.Message != "" {
			return c.Message
		}
	}
	return k.StatusMessage
}

// poolsOf returns the node pools of a cluster: the slices first, by number.
func poolsOf(k *container.Cluster) []Pool {
	var all []Pool
	for _, p := range k.NodePools {
		all = append(all, poolOf(k.Name, p))
	}
	slices.SortFunc(all, func(a, b Pool) int {
		switch {
		case (a.Number < 0) != (b.Number < 0):
			return b.Number - a.Number
		case a.Number != b.Number:
			return a.Number - b.Number
		}
		return strings.Compare(a.Name, b.Name)
	})
	return all
}

// planPools decides about the node pools of the slices. The pools with the lowest numbers
// stay, missing ones get the lowest free numbers, and surplus ones are deleted.
func planPools(o Options, w world, nodes tpu.Nodes, have []Pool, version string) (steps []Step) {
	body := func(name string) *container.NodePool { return poolBody(o, nodes, name, w.zone, version) }
	taken := map[int]bool{}
	kept := 0
	for _, p := range have {
		if p.Number < 0 {
			continue
		}
		taken[p.Number] = true
		s := Step{Resource: kindPool, Name: p.Name}
		switch {
		case p.State == stateStopping:
			s.Verb, s.Reason = Wait, "it is being deleted"
		case kept == o.Slices:
			s.Verb, s.Reason = Delete, fmt.Sprintf("only %s wanted", event.Count(o.Slices, "slice"))
			s = o.mayLose(s, w, p)
		default:
			kept++
			s.pool = body(p.Name)
			s = o.judgePool(s, w, p, poolOf(o.Name, s.pool))
		}
		steps = append(steps, s)
	}
	for n := 0; kept < o.Slices; n++ {
		if taken[n] {
			continue
		}
		kept++
		name := PoolName(o.Name, n)
		steps = append(steps, Step{
			Verb: Create, Resource: kindPool, Name: name, pool: body(name),
			Reason: fmt.Sprintf("%s, %s of %s, %s", o.Type.Name, event.Count(nodes.Count, "node"), nodes.Machine.Name, tierWords(o)),
		})
	}
	return steps
}

func tierWords(o Options) string {
	if o.Reservation != "" {
		return "reservation " + o.Reservation
	}
	return strings.ReplaceAll(string(o.Tier), "on-demand", "on demand")
}

// judgePool decides about an existing pool that should stay.
func (o Options) judgePool(s Step, w world, have, want Pool) Step {
	diffs := differences(have, want)
	switch {
	case len(diffs) > 0 && !o.Force:
		return s.refuse(&MismatchError{Resource: kindPool, Name: have.Name, Cluster: o.Name, Differences: diffs}, describe(diffs))
	case len(diffs) > 0:
		s.Verb, s.Reason = Remake, describe(diffs)
		return s
	}
	switch have.State {
	case stateError:
		meaning, _ := explain(have.Reason)
		s.Verb, s.Reason = Remake, "ERROR: "+meaning+" ("+have.Reason+")"
		return o.mayLose(s, w, have)
	case stateProvisioning:
		s.Verb, s.Reason = Wait, "it is being made"
	case stateFaulty:
		s.Verb, s.Reason = Keep, "exists, RUNNING_WITH_ERROR: "+have.Reason
	default:
		s.Verb, s.Reason = Keep, "exists"
	}
	return s
}

// mayLose refuses a step that deletes a pool on which workloads run or may run, unless
// o.Force is set.
func (o Options) mayLose(s Step, w world, p Pool) Step {
	pods := w.busy[p.Name]
	switch {
	case o.Force:
	case w.blind != nil:
		err := &BusyError{Cluster: o.Name, Pools: []string{p.Name}, Verb: string(s.Verb), Err: w.blind}
		return s.refuse(err, "whether workloads run on it is not known")
	case len(pods) > 0:
		err := &BusyError{Cluster: o.Name, Pools: []string{p.Name}, Pods: pods, Verb: string(s.Verb)}
		return s.refuse(err, "workloads run on it: "+listed(pods))
	}
	return s
}

// Plan returns what is necessary for o. It only reads. Conflicts with what exists are in
// the plan, not in err.
func (c *Client) Plan(ctx context.Context, o Options) (Plan, error) {
	if err := o.Validate(); err != nil {
		return Plan{}, err
	}
	w, err := c.look(ctx, o.withDefaults())
	if err != nil {
		return Plan{}, err
	}
	plan := planOf(o, w)
	if !o.Force && len(plan.Loses()) > 0 {
		if w.blind = c.readPods(ctx, &w); errors.Is(w.blind, context.Canceled) {
			return Plan{}, context.Cause(ctx)
		}
		plan = planOf(o, w)
	}
	if plan.Err() != nil {
		return plan, nil
	}
	inside, err := c.planInside(ctx, o.withDefaults(), w)
	plan.Steps = append(plan.Steps, inside...)
	return plan, err
}

// look reads what exists, except for pods.
func (c *Client) look(ctx context.Context, o Options) (w world, err error) {
	w = world{project: c.gcp.Project(), zone: c.gcp.Zone()}
	if w.cluster, err = c.cluster(ctx, o.Name); err != nil {
		return w, err
	}
	if w.cluster == nil || w.cluster.Status == stateStopping {
		if w.version, err = c.version(ctx, o.Version); err != nil {
			return w, err
		}
	}
	if o.Slices > 0 && o.Type.Generation.Name == "tpu7x" {
		w.policy, err = c.compute.Policy(ctx, policyName(o.Type))
		if gcp.ClassOf(err) == gcp.NotFound {
			w.policy, err = nil, nil
		}
	}
	return w, err
}

// readPods reads the pods of w's cluster.
func (c *Client) readPods(ctx context.Context, w *world) error {
	w.busy = map[string][]string{}
	pods, err := c.podsOf(ctx, w.cluster)
	for _, p := range pods {
		w.busy[p.Pool] = append(w.busy[p.Pool], p.String())
	}
	return err
}

// podsOf returns the pods of a cluster that ask for TPU chips.
func (c *Client) podsOf(ctx context.Context, k *container.Cluster) ([]Pod, error) {
	at, err := endpointOf(k)
	if err != nil {
		return nil, err
	}
	return c.pods(ctx, at)
}

// isOurs reports whether the labels of a cluster say that multihost made it.
func isOurs(labels map[string]string) bool { return labels[provision.LabelTool] == provision.ToolName }
