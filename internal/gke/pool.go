package gke

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A Pool is a node pool: a slice, or CPU nodes.
type Pool struct {
	Name   string `json:"name"`
	Number int    `json:"number"` // of the slice; -1 for other pools
	State  string `json:"state"`  // GKE's word
	Reason string `json:"reason,omitempty"`

	Machine     string         `json:"machine_type"`
	Topology    string         `json:"topology,omitempty"` // "": nodes without TPU, or slices of one VM
	Type        string         `json:"accelerator_type,omitempty"`
	Tier        provision.Tier `json:"tier"`
	Reservation string         `json:"reservation,omitempty"`
	Zone        string         `json:"zone"`
	Nodes       int            `json:"nodes"` // of the whole pool; with autoscaling, at its start
	Growing     bool           `json:"autoscaling,omitempty"`
	Workloads   []string       `json:"workloads,omitempty"` // pods that ask for TPU chips

	Hourly *float64 `json:"usd_per_hour"` // list price while its nodes exist; null: not known
	Text   string   `json:"-"`            // cost in words
}

// poolOf reads a node pool.
func poolOf(cluster string, p *container.NodePool) Pool {
	out := Pool{Name: p.Name, Number: -1, State: p.Status, Reason: reasonOf(p), Nodes: int(p.InitialNodeCount), Tier: provision.OnDemand}
	if n, ok := numberOf(cluster, p.Name); ok {
		out.Number = n
	}
	if len(p.Locations) > 0 {
		out.Zone = p.Locations[0]
	}
	if c := p.Config; c != nil {
		out.Machine = c.MachineType
		switch r := c.ReservationAffinity; {
		case c.FlexStart:
			out.Tier = provision.FlexStart
		case c.Spot || c.Preemptible:
			out.Tier = provision.Spot
		case r != nil && r.ConsumeReservationType == "SPECIFIC_RESERVATION" && len(r.Values) > 0:
			out.Tier, out.Reservation = provision.Reserved, r.Values[0]
		}
	}
	if a := p.Autoscaling; a != nil && a.Enabled {
		out.Growing = true
		if out.Tier == provision.FlexStart {
			out.Nodes = int(max(a.MaxNodeCount, a.TotalMaxNodeCount))
		}
	}
	out.Topology = topologyOf(p)
	if t, ok := typeOf(out); ok {
		out.Type = t.Name
		out.Topology = t.Topology
	}
	return out
}

var policyTopology = regexp.MustCompile(`-([0-9]+(?:x[0-9]+)+)-placement-policy$`)

func topologyOf(p *container.NodePool) string {
	if p.PlacementPolicy == nil {
		return ""
	}
	if m := policyTopology.FindStringSubmatch(p.PlacementPolicy.PolicyName); m != nil {
		return m[1]
	}
	return p.PlacementPolicy.TpuTopology
}

// typeOf returns the accelerator type of a pool, from its machine type and its topology. A
// pool of slices with one VM has no topology.
func typeOf(p Pool) (tpu.Type, bool) {
	for _, t := range tpu.Types() {
		n, err := tpu.NodesOf(t)
		if err != nil || n.Machine.Name != p.Machine {
			continue
		}
		if p.Topology == t.Topology || p.Topology == "" && n.Count == 1 {
			return t, true
		}
	}
	t, err := tpu.ParseType(p.Machine + ":" + cmp.Or(p.Topology, "2x4"))
	return t, err == nil && t.Machine != ""
}

// reasonOf returns GKE's reason for a pool's state.
func reasonOf(p *container.NodePool) string {
	var all []string
	for _, c := range p.Conditions {
		all = append(all, strings.TrimSpace(c.Message))
	}
	if len(all) == 0 && p.StatusMessage != "" {
		all = []string{p.StatusMessage}
	}
	return strings.Join(all, "; ")
}

// GKE's words for the states of clusters and node pools.
const (
	stateProvisioning = "PROVISIONING"
	stateRunning      = "RUNNING"
	stateFaulty       = "RUNNING_WITH_ERROR"
	stateReconciling  = "RECONCILING"
	stateStopping     = "STOPPING"
	stateError        = "ERROR"
	stateDegraded     = "DEGRADED"
)

// stockoutText matches GKE's text if Google has no machines of the type now.
var stockoutText = regexp.MustCompile(`(?i)lack of capacity|Requested resource is exhausted|GCE_STOCKOUT|does not have enough resources`)

// explain says what the reason of a state means, and what helps.
func explain(reason string) (meaning, hint string) {
	switch _, _, _, quota := gcp.QuotaOf(reason); {
	case stockoutText.MatchString(reason):
		return "the zone has no free machines of this type now", "the same command tries again; or use another zone, --spot, --flex-start or a reservation"
	case quota || strings.Contains(strings.ToLower(reason), "quota"):
		return "a quota of the project is used up", "ask for more: https://console.cloud.google.com/iam-admin/quotas"
	case strings.Contains(reason, "is incorrect for the requested resources"):
		return "the hosts of the reservation are maintained in another way", "give --host-maintenance-interval=" + Periodic
	}
	return "GKE could not make its nodes", ""
}

// differences lists how an existing slice pool differs from the wanted one.
func differences(have, want Pool) (all []Difference) {
	add := func(field, have, want string) {
		if have != want {
			all = append(all, Difference{field, cmp.Or(have, "none"), cmp.Or(want, "none")})
		}
	}
	add("accelerator type", cmp.Or(have.Type, have.Machine+" "+have.Topology), want.Type)
	add("tier", string(have.Tier), string(want.Tier))
	add("reservation", have.Reservation, want.Reservation)
	add("zone", have.Zone, want.Zone)
	if have.Type == want.Type && have.Nodes != want.Nodes {
		add("number of nodes", fmt.Sprint(have.Nodes), fmt.Sprint(want.Nodes))
	}
	return all
}
