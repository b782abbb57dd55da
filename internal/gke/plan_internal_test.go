package gke

import (
	"errors"
	"strings"
	"testing"

	"cloud.google.com/go/compute/apiv1/computepb"
	container "google.golang.org/api/container/v1beta1"
	"google.golang.org/protobuf/proto"

	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// having returns a world with a cluster c whose slices have these states.
func having(o Options, states ...string) world {
	o = o.withDefaults()
	nodes, _ := tpu.NodesOf(o.Type)
	k := clusterBody(o, "us-west4-a", "1.34.1-gke.100")
	k.Status, k.CurrentMasterVersion, k.NodePools[0].Status = stateRunning, "1.34.1-gke.100", stateRunning
	k.Network = "projects/p/global/networks/" + k.Network
	for i, state := range states {
		if state == "" {
			continue
		}
		p := poolBody(o, nodes, PoolName("c", i), "us-west4-a", "1.34.1-gke.100")
		p.Status, p.StatusMessage, _ = strings.Cut(state, ": ")
		k.NodePools = append(k.NodePools, p)
	}
	return world{cluster: k, project: "p", zone: "us-west4-a", version: "1.34.1-gke.100"}
}

func steps(p Plan) string {
	var all []string
	for _, s := range p.Steps {
		all = append(all, string(s.Verb)+" "+s.Name)
	}
	return strings.Join(all, ", ")
}

var errAway = errors.New("the API of the cluster is away")

func TestPlan(t *testing.T) {
	t.Parallel()
	v5e := Options{Name: "c", Type: typeNamed(t, "v5litepod-16"), Slices: 2}
	v7 := Options{Name: "c", Type: typeNamed(t, "tpu7x-128"), Slices: 1}
	with := func(o Options, change func(*Options)) Options { change(&o); return o }
	busy := func(w world, pools ...string) world {
		w.busy = map[string][]string{}
		for _, p := range pools {
			w.busy[p] = []string{"default/train-" + p}
		}
		return w
	}
	cluster := func(w world, change func(*container.Cluster)) world { change(w.cluster); return w }
	policy := func(w world, topology string) world {
		w.policy = &computepb.ResourcePolicy{WorkloadPolicy: &computepb.ResourcePolicyWorkloadPolicy{Type: proto.String("HIGH_THROUGHPUT"), AcceleratorTopology: &topology}}
		return w
	}
	nothing := world{project: "p", zone: "us-west4-a", version: "1.34.1-gke.100"}
	blind := having(v5e, "ERROR: lack of capacity", stateRunning)
	blind.blind = errAway
	for _, test := range []struct {
		name  string
		o     Options
		w     world
		steps string
		err   string // part of the error
	}{
		{"nothing is there", v5e, nothing, "create c, create c-np-0, create c-np-1", ""},
		{"no slices", Options{Name: "c"}, nothing, "create c", ""},
		{"a policy comes first", v7, nothing, "create tpu7x-128-4x4x4-placement-policy, create c, create c-np-0", ""},
		{"the policy is there", v7, policy(nothing, "4x4x4"), "keep tpu7x-128-4x4x4-placement-policy, create c, create c-np-0", ""},
		{"the policy is another one", v7, policy(nothing, "4x4x8"), "conflict tpu7x-128-4x4x4-placement-policy, create c, create c-np-0",
			"exists and is different: topology is 4x4x8, wanted 4x4x4"},
		{"all is there", v5e, having(v5e, stateRunning, stateRunning), "keep c, keep c-np-0, keep c-np-1", ""},
		{"the cluster is being made", v5e, cluster(having(v5e), func(k *container.Cluster) { k.Status = stateProvisioning }), "wait c, create c-np-0, create c-np-1", ""},
		{"the cluster is being deleted", v5e, cluster(having(v5e, stateStopping), func(k *container.Cluster) { k.Status = stateStopping }), "create c, create c-np-0, create c-np-1", ""},
		{"the cluster has failed", v5e, cluster(having(v5e), func(k *container.Cluster) { k.Status, k.StatusMessage = stateError, "no addresses left" }), "conflict c",
			`cluster "c" is in state ERROR: no addresses left`},
		{"half of it", v5e, having(v5e, stateProvisioning), "keep c, wait c-np-0, create c-np-1", ""},
		{"a gap", v5e, having(v5e, "", "", stateRunning), "keep c, keep c-np-2, create c-np-0", ""},
		{"one more", with(v5e, func(o *Options) { o.Slices = 3 }), having(v5e, stateRunning, stateRunning), "keep c, keep c-np-0, keep c-np-1, create c-np-2", ""},
		{"one less", with(v5e, func(o *Options) { o.Slices = 1 }), having(v5e, stateRunning, stateRunning), "keep c, keep c-np-0, delete c-np-1", ""},
		{"one less, and it is in use", with(v5e, func(o *Options) { o.Slices = 1 }), busy(having(v5e, stateRunning, stateRunning), "c-np-1"), "keep c, keep c-np-0, conflict c-np-1",
			`delete node pool c-np-1 of cluster "c": workloads run there: default/train-c-np-1`},
		{"one less, in use and forced", with(v5e, func(o *Options) { o.Slices, o.Force = 1, true }), busy(having(v5e, stateRunning, stateRunning), "c-np-1"), "keep c, keep c-np-0, delete c-np-1", ""},
		{"one is being deleted", v5e, having(v5e, stateStopping, stateRunning), "keep c, wait c-np-0, keep c-np-1, create c-np-2", ""},
		{"a stockout", v5e, having(v5e, "ERROR: lack of capacity", stateRunning), "keep c, remake c-np-0, keep c-np-1", ""},
		{"a pool has failed and is in use", v5e, busy(having(v5e, "ERROR: broken", stateRunning), "c-np-0"), "keep c, conflict c-np-0, keep c-np-1", "remake node pool c-np-0"},
		{"a pool has failed and nobody knows its pods", v5e, blind, "keep c, conflict c-np-0, keep c-np-1", "is not known"},
		{"faulty pools stay", v5e, having(v5e, "RUNNING_WITH_ERROR: odd", stateReconciling), "keep c, keep c-np-0, keep c-np-1", ""},
		{"another type", v5e, having(Options{Name: "c", Type: typeNamed(t, "v6e-16")}, stateRunning), "keep c, conflict c-np-0, create c-np-1",
			`node pool "c-np-0" exists and is different: accelerator type is v6e-16, wanted v5litepod-16`},
		{"another tier", with(v5e, func(o *Options) { o.Tier = provision.Spot }), having(v5e, stateRunning), "keep c, conflict c-np-0, create c-np-1", "tier is on-demand, wanted spot"},
		{"another tier, forced", with(v5e, func(o *Options) { o.Tier, o.Force = provision.Spot, true }), having(v5e, stateRunning), "keep c, remake c-np-0, create c-np-1", ""},
		{"another reservation", with(v5e, func(o *Options) { o.Reservation = "a" }), having(with(v5e, func(o *Options) { o.Reservation = "b" }), stateRunning), "keep c, conflict c-np-0, create c-np-1", "reservation is b, wanted a"},
		{"another network", with(v5e, func(o *Options) { o.Network = "other" }), having(v5e, stateRunning), "conflict c",
			`cluster "c" exists and is different: network is mtu9k, wanted other; subnetwork is mtu9k, wanted other`},
		{"another version", with(v5e, func(o *Options) { o.Version = "1.33" }), having(v5e, stateRunning, stateRunning), "conflict c", "version is 1.34.1-gke.100, wanted 1.33"},
		{"the version in short", with(v5e, func(o *Options) { o.Version = "1.34" }), having(v5e, stateRunning, stateRunning), "keep c, keep c-np-0, keep c-np-1", ""},
		{"pools of the user", v5e, cluster(having(v5e, stateRunning, stateRunning), func(k *container.Cluster) {
			k.NodePools = append(k.NodePools, &container.NodePool{Name: "c-np-x", Status: stateError}, &container.NodePool{Name: "c-np-07", Status: stateError})
		}), "keep c, keep c-np-0, keep c-np-1", ""},
	} {
		p := planOf(test.o, test.w)
		err := p.Err()
		if got := steps(p); got != test.steps {
			t.Errorf("%s: got %s, want %s", test.name, got, test.steps)
		}
		if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.err)
		}
		for _, s := range p.Steps {
			if made := s.Verb == Create || s.Verb == Remake; made != (s.Request != nil) {
				t.Errorf("%s: %s %s sends %s", test.name, s.Verb, s.Name, s.Request)
			}
		}
	}
}

func TestPlanSaysWhyAPoolIsRemade(t *testing.T) {
	t.Parallel()
	o := Options{Name: "c", Type: typeNamed(t, "v5litepod-16"), Slices: 1}
	p := planOf(o, having(o, "ERROR: [GCE_STOCKOUT]: Instance creation failed: lack of capacity"))
	if text := p.String(); !strings.Contains(text, "the zone has no free machines of this type now ([GCE_STOCKOUT]") {
		t.Errorf("got %s", text)
	}
}

// The plan shows the list price, or says that the price is unknown.
func TestPlanShowsTheCost(t *testing.T) {
	t.Parallel()
	o := Options{Name: "c", Type: typeNamed(t, "v5litepod-16"), Slices: 2}
	nothing := world{project: "p", zone: "us-west4-a", version: "1"}
	usd, ok := tpu.HourlyPrice("v5litepod-16", "us-west4-a", "on-demand")
	p := planOf(o, nothing)
	if !ok || p.Cost.Slices == nil || *p.Cost.Slices != 2*usd {
		t.Errorf("two slices of %v cost %v", usd, p.Cost.Slices)
	}
	text := p.String()
	for _, want := range []string{"default-pool: 6 nodes at its start of e2-standard-16: price unknown", "c-np-0 to c-np-1: 2 slices of v5litepod-16, 4 nodes each", "control plane: price unknown", "all slices: list price $38.40 an hour"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	if text := planOf(Options{Name: "c"}, nothing).String(); strings.Contains(text, "list price") {
		t.Errorf("a cluster without slices has a price: %q", text)
	}
	o.Reservation = "r"
	if p := planOf(o, nothing); p.Cost.Slices != nil {
		t.Errorf("a reservation costs %v", *p.Cost.Slices)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	v5e := typeNamed(t, "v5litepod-16")
	for want, o := range map[string]Options{
		"name is empty":                             {},
		"want lower-case letters":                   {Name: "C"},
		"longer than 40 characters":                 {Name: strings.Repeat("c", 41)},
		"has more than 40 characters":               {Name: strings.Repeat("c", 36), Type: v5e, Slices: 1},
		"no node pools for it":                      {Name: "c", Type: typeNamed(t, "v3-8"), Slices: 1},
		"-1 slices":                                 {Name: "c", Slices: -1},
		"1001 CPU nodes":                            {Name: "c", CPUNodes: 1001},
		`version "new"`:                             {Name: "c", Version: "new"},
		`host maintenance "never"`:                  {Name: "c", Maintenance: "never"},
		`tier "guaranteed"`:                         {Name: "c", Tier: provision.Guaranteed},
		"which reservation?":                        {Name: "c", Tier: provision.Reserved},
		"exclude each other":                        {Name: "c", Tier: provision.Spot, Reservation: "r"},
		`reservation "a/b": want NAME, projects/P/`: {Name: "c", Reservation: "a/b"},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", o, err, want)
		}
	}
	if err := (Options{Name: "c", Type: v5e, Slices: 3}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestErrorsHaveKinds(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"Instance creation failed: lack of capacity": "no capacity", "Requested resource is exhausted.": "no capacity",
		"Quota 'TPUS' exceeded.  Limit: 0.0 in region us-west4.": "quota exceeded", "it broke": "conflict",
	} {
		err := &FailedError{Cluster: "c", Pools: []string{"c-np-0"}, Reason: reason}
		if got := err.Class().String(); got != want || err.Hint() == "" {
			t.Errorf("%q: %s, hint %q", reason, got, err.Hint())
		}
	}
	if err := (&BusyError{Err: errAway}); !errors.Is(err, errAway) {
		t.Error("the cause is lost")
	}
}
