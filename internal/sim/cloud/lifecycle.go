package cloud

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

// This file says how requests and nodes change state. The caller of every function here
// holds s.Mu, and every function returns at once. Work that takes time runs in Later or
// Spawn and checks the state again afterwards.

// setState moves q to a state, and sets the data of that state.
func (s Slices) setState(q *QueuedResource, state, initiator string, failure *wire.Error) {
	st := &tpualpha.QueuedResourceState{State: state, StateInitiator: initiator}
	switch state {
	case "CREATING":
		st.CreatingData = &tpualpha.CreatingData{}
	case "ACCEPTED":
		st.AcceptedData = &tpualpha.AcceptedData{}
	case "PROVISIONING":
		st.ProvisioningData = &tpualpha.ProvisioningData{}
	case "ACTIVE":
		st.ActiveData = &tpualpha.ActiveData{}
	case "SUSPENDING":
		st.SuspendingData = &tpualpha.SuspendingData{}
	case "SUSPENDED":
		st.SuspendedData = &tpualpha.SuspendedData{}
	case "DELETING":
		st.DeletingData = &tpualpha.DeletingData{}
	case "FAILED":
		st.FailedData = &tpualpha.FailedData{Error: &tpualpha.Status{Code: int64(wire.RPCCode(failure.Status)), Message: failure.Message}}
	}
	q.Msg.State = st
}

// when runs f after one step if q still exists and is still in state.
func (s Slices) when(q *QueuedResource, state string, f func()) {
	s.NextStep(func() {
		if s.State.Queued[q.Msg.Name] == q && q.State() == state {
			f()
		}
	})
}

// Enqueue moves q through CREATING, ACCEPTED and WAITING_FOR_RESOURCES.
func (s Slices) Enqueue(q *QueuedResource, op *Operation) {
	s.setState(q, "CREATING", "USER", nil)
	if !q.Deadline.IsZero() {
		s.Later(q.Deadline.Sub(s.Clock.Now()), func() { s.expire(q) })
	}
	// The operation ends once the request is accepted, whatever happens to the request
	// later.
	s.NextStep(func() { s.Finish(op, q.Msg, nil) })
	s.when(q, "CREATING", func() {
		s.setState(q, "ACCEPTED", "SERVICE", nil)
		if s.Injection().strike(q) {
			return
		}
		s.when(q, "ACCEPTED", func() {
			s.setState(q, "WAITING_FOR_RESOURCES", "SERVICE", nil)
			if !s.Injection().strike(q) {
				s.when(q, "WAITING_FOR_RESOURCES", func() { s.provision(q) })
			}
		})
	})
}

// expire fails q if its valid-until time has passed before provisioning.
func (s Slices) expire(q *QueuedResource) {
	if s.State.Queued[q.Msg.Name] != q || !slices.Contains([]string{"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"}, q.State()) {
		return
	}
	s.fail(q, wire.Errorf(http.StatusGatewayTimeout, "The request could not be provisioned before its valid-until time %s.", Stamp(q.Deadline)))
}

// provision starts provisioning q if there is capacity. Otherwise q waits until retryQueue.
func (s Slices) provision(q *QueuedResource) {
	if wait := q.Begins.Sub(s.Clock.Now()); wait > 0 {
		s.Later(wait, func() {
			if s.State.Queued[q.Msg.Name] == q && q.State() == "WAITING_FOR_RESOURCES" {
				s.provision(q)
			}
		})
		return
	}
	if s.Injection().noCapacity(q.Id) {
		return
	}
	s.setState(q, "PROVISIONING", "SERVICE", nil)
	if s.Injection().strike(q) {
		return
	}
	waiting := q.Count
	for _, n := range s.addNodes(q) {
		s.NextStep(func() {
			s.BootNode(n, func(err error) {
				waiting--
				switch {
				case s.State.Queued[q.Msg.Name] != q || q.State() != "PROVISIONING":
				case err != nil:
					s.fail(q, wire.Errorf(http.StatusInternalServerError, "an internal error has occurred: %v", err))
				case waiting == 0:
					s.activate(q)
				}
			})
		})
	}
}

// retryQueue tries again to provision the requests that wait for capacity.
func (s Slices) retryQueue() {
	for _, q := range Sorted(s.State.Queued, nil) {
		if q.State() == "WAITING_FOR_RESOURCES" {
			s.when(q, "WAITING_FOR_RESOURCES", func() { s.provision(q) })
		}
	}
}

func (s Slices) activate(q *QueuedResource) {
	s.setState(q, "ACTIVE", "SERVICE", nil)
	if s.Injection().strike(q) {
		return
	}
	if run := q.Msg.RunDuration; run != nil {
		d, err := ParseDuration("", run.MaxRunDuration)
		if err == nil {
			s.Later(d, func() { s.suspend(q, "SERVICE") })
		}
	}
}

// fail makes q FAILED, which is final, and deletes its nodes. q still counts against the
// quota.
func (s Slices) fail(q *QueuedResource, failure *wire.Error) {
	s.setState(q, "FAILED", "SERVICE", failure)
	for _, n := range s.NodesOf(q) {
		s.RemoveNode(n, nil)
	}
}

// suspend removes the nodes of q, which still counts against the quota. Preempted nodes
// stay visible until q is deleted.
func (s Slices) suspend(q *QueuedResource, initiator string) {
	if s.State.Queued[q.Msg.Name] != q || slices.Contains([]string{"SUSPENDING", "SUSPENDED", "DELETING", "FAILED"}, q.State()) {
		return
	}
	s.setState(q, "SUSPENDING", initiator, nil)
	s.when(q, "SUSPENDING", func() {
		left := 1
		gone := func() {
			if left--; left == 0 && s.State.Queued[q.Msg.Name] == q && q.State() == "SUSPENDING" {
				s.setState(q, "SUSPENDED", initiator, nil)
			}
		}
		for _, n := range s.NodesOf(q) {
			switch {
			case n.Msg.State != "PREEMPTED":
				left++
				s.RemoveNode(n, gone)
			case len(n.ended) > 0:
				left++
				n.ended = append(n.ended, gone)
			}
		}
		gone()
	})
}

// DeleteNow deletes the nodes of q and then q.
func (s Slices) DeleteNow(q *QueuedResource, op *Operation) {
	s.setState(q, "DELETING", "USER", nil)
	left := 1
	gone := func() {
		if left--; left > 0 {
			return
		}
		s.NextStep(func() {
			delete(s.State.Queued, q.Msg.Name)
			s.Finish(op, nil, nil)
		})
	}
	for _, n := range s.NodesOf(q) {
		left++
		s.RemoveNode(n, gone)
	}
	gone()
}

// NodesOf returns the existing nodes of a queued resource, in slice order.
func (s Slices) NodesOf(q *QueuedResource) []*Node {
	return Sorted(s.State.Nodes, func(_ string, n *Node) bool { return n.Queued == q.Msg.Name })
}

// NodeGone suspends a request after a user has deleted its last node.
func (s Slices) NodeGone(n *Node) {
	q := s.State.Queued[n.Queued]
	if q != nil && q.State() == "ACTIVE" && len(s.NodesOf(q)) == 0 {
		s.suspend(q, "USER")
	}
}

// addNodes creates the nodes of q, in state CREATING.
func (s Slices) addNodes(q *QueuedResource) []*Node {
	var nodes []*Node
	for _, id := range q.NodeIDs() {
		msg := cloneNode(q.Msg.Tpu.NodeSpec[0].Node)
		msg.QueuedResource, msg.MultisliceNode = q.Msg.Name, q.Prefix != ""
		msg.SchedulingConfig = &tpualpha.SchedulingConfig{
			Spot: q.Msg.Spot != nil || q.Msg.ProvisioningModel == "SPOT", Preemptible: q.Msg.BestEffort != nil,
			Reserved: q.Msg.ReservationName != "", ReservationName: q.Msg.ReservationName,
		}
		// A node cannot be marked as flex-start: the enumeration has no such value.
		if q.Msg.ProvisioningModel != "FLEX_START" {
			msg.SchedulingConfig.ProvisioningModel = q.Msg.ProvisioningModel
		}
		n := s.AddNode(q.Zone, id, q.Typ, msg)
		n.Queued = q.Msg.Name
		nodes = append(nodes, n)
	}
	return nodes
}

func cloneNode(n *tpualpha.Node) *tpualpha.Node {
	c := *n
	if n.NetworkConfig != nil {
		network := *n.NetworkConfig
		c.NetworkConfig = &network
	}
	c.NetworkConfigs = slices.Clone(n.NetworkConfigs)
	for i, network := range c.NetworkConfigs {
		own := *network
		c.NetworkConfigs[i] = &own
	}
	c.Labels, c.Metadata, c.Tags = maps.Clone(n.Labels), maps.Clone(n.Metadata), slices.Clone(n.Tags)
	return &c
}

// AddNode creates a node, in state CREATING. msg must have passed Catalog.CheckNode.
func (s Slices) AddNode(zone, id string, t tpu.Type, msg *tpualpha.Node) *Node {
	msg.Name = s.LocationName(zone) + "/nodes/" + id
	msg.Id, msg.State, msg.CreateTime, msg.ApiVersion = NewID(), "CREATING", s.Timestamp(), "V2_ALPHA1"
	if t.Topology != "" {
		msg.AcceleratorConfig = &tpualpha.AcceleratorConfig{Type: t.Generation.ChipType, Topology: t.Topology}
	}
	if msg.ServiceAccount == nil {
		msg.ServiceAccount = &tpualpha.ServiceAccount{}
	}
	if msg.ServiceAccount.Email == "" {
		msg.ServiceAccount.Email = DefaultAccount
	}
	if msg.ServiceAccount.Scope == nil {
		msg.ServiceAccount.Scope = []string{"https://www.googleapis.com/auth/cloud-platform"}
	}
	n := &Node{Msg: msg, Id: id, Zone: zone, Typ: t, mtu: s.Networks().mtuOf(Interfaces(msg)[0].Network)}
	for range t.Workers {
		var further []string
		for i, cfg := range Interfaces(msg) {
			if ip := s.Networks().nextAddress(cfg.Subnetwork); i == 0 {
				n.ips = append(n.ips, ip)
			} else {
				further = append(further, ip)
			}
		}
		n.further = append(n.further, further)
	}
	s.State.Nodes[msg.Name] = n
	return n
}

// RemoveNode deletes n, which takes a step, then calls done, which may be nil. Several
// calls for one node share the deletion, and each done is called.
func (s Slices) RemoveNode(n *Node, done func()) {
	if done != nil {
		n.gone = append(n.gone, done)
	}
	if n.Msg.State == "DELETING" {
		return
	}
	n.Msg.State = "DELETING"
	s.NextStep(func() {
		s.stopMachines(n, StopLimit, func() {
			delete(s.State.Nodes, n.Msg.Name)
			for _, f := range n.gone {
				f()
			}
		})
	})
}

// preempt takes n away, as the service does. The list then shows the node as PREEMPTED, or
// no longer if vanish is set.
func (s Slices) preempt(n *Node, vanish bool) {
	if n.Msg.State == "DELETING" || n.Msg.State == "PREEMPTED" {
		return
	}
	n.Msg.State = "PREEMPTED"
	s.stopMachines(n, PreemptLimit, func() {
		if vanish {
			delete(s.State.Nodes, n.Msg.Name)
		}
	})
	if q := s.State.Queued[n.Queued]; q != nil {
		s.suspend(q, "SERVICE")
	}
}

// maintain marks n as under ongoing maintenance.
func (s Slices) maintain(n *Node) {
	now := s.Clock.Now()
	n.Msg.Health = "UNHEALTHY_MAINTENANCE"
	n.Msg.HealthDescription = "The TPU had a maintenance event at " + Stamp(now) + "."
	n.Msg.UpcomingMaintenance = &tpualpha.UpcomingMaintenance{
		Type: "UNSCHEDULED", MaintenanceStatus: "ONGOING", WindowStartTime: Stamp(now), WindowEndTime: Stamp(now.Add(4 * time.Hour)),
	}
}

// CheckQuota returns an error for a request beyond the quota of its zone and generation.
// Spot and best-effort requests have a separate quota.
func (s Slices) CheckQuota(zone string, t tpu.Type, cost int, preemptible bool) error {
	limit := s.State.Quota[zone]
	if limit <= 0 {
		return nil
	}
	used := 0
	for _, q := range s.State.Queued {
		if q.Zone == zone && q.Typ.Generation == t.Generation && q.Preemptible() == preemptible {
			used += q.Cost()
		}
	}
	for _, n := range s.State.Nodes {
		if n.Zone == zone && n.Queued == "" && n.Typ.Generation == t.Generation && !preemptible {
			used += Units(n.Typ)
		}
	}
	if used+cost <= limit {
		return nil
	}
	name := quotaName(t, preemptible)
	text := fmt.Sprintf("Quota limit '%s' has been exceeded. Limit: %d in zone %s.", name, limit, zone)
	return wire.Errorf(http.StatusTooManyRequests, "%s", text).WithDetails(map[string]any{
		"@type":      "type.googleapis.com/google.rpc.QuotaFailure",
		"violations": []any{map[string]any{"subject": "project:" + ProjectNumber, "description": text}},
	})
}

func quotaName(t tpu.Type, preemptible bool) string {
	family := strings.TrimSuffix(t.Generation.Quota, "s") + "s"
	if t.Generation.Name == "v5e" {
		family += "Litepod"
	}
	if preemptible {
		family += "Preemptible"
	}
	if t.Generation.CountsCores {
		family += "Pod"
	}
	return family + "PerProjectPerZoneForTPUAPI"
}
