package sim

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

// How requests and nodes change state. The caller of every function here holds s.mu, and
// every function returns at once. Work that takes time runs in later or spawn and checks
// the state again afterwards.

// setState moves q and sets the data that belongs to the state.
func (s *Cloud) setState(q *queuedResource, state, initiator string, failure *apiError) {
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
		st.FailedData = &tpualpha.FailedData{Error: &tpualpha.Status{Code: int64(rpcCode(failure.Status)), Message: failure.Message}}
	}
	q.msg.State = st
}

// when runs f after one step if q still exists and is still in state.
func (s *Cloud) when(q *queuedResource, state string, f func()) {
	s.nextStep(func() {
		if s.state.queued[q.msg.Name] == q && q.state() == state {
			f()
		}
	})
}

// enqueue moves q through CREATING, ACCEPTED and WAITING_FOR_RESOURCES.
func (s *Cloud) enqueue(q *queuedResource, op *operation) {
	s.setState(q, "CREATING", "USER", nil)
	if !q.deadline.IsZero() {
		s.later(q.deadline.Sub(s.clock.Now()), func() { s.expire(q) })
	}
	// The operation ends once the request is accepted, whatever happens to it later.
	s.nextStep(func() { s.finish(op, q.msg, nil) })
	s.when(q, "CREATING", func() {
		s.setState(q, "ACCEPTED", "SERVICE", nil)
		if s.strike(q) {
			return
		}
		s.when(q, "ACCEPTED", func() {
			s.setState(q, "WAITING_FOR_RESOURCES", "SERVICE", nil)
			if !s.strike(q) {
				s.when(q, "WAITING_FOR_RESOURCES", func() { s.provision(q) })
			}
		})
	})
}

// expire fails q if its valid-until time has passed before provisioning.
func (s *Cloud) expire(q *queuedResource) {
	if s.state.queued[q.msg.Name] != q || !slices.Contains([]string{"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"}, q.state()) {
		return
	}
	s.fail(q, errorf(http.StatusGatewayTimeout, "The request could not be provisioned before its valid-until time %s.", stamp(q.deadline)))
}

// provision starts provisioning q if there is capacity. If not, q waits until retryQueue.
func (s *Cloud) provision(q *queuedResource) {
	if wait := q.begins.Sub(s.clock.Now()); wait > 0 {
		s.later(wait, func() {
			if s.state.queued[q.msg.Name] == q && q.state() == "WAITING_FOR_RESOURCES" {
				s.provision(q)
			}
		})
		return
	}
	if s.noCapacity(q.id) {
		return
	}
	s.setState(q, "PROVISIONING", "SERVICE", nil)
	if s.strike(q) {
		return
	}
	waiting := q.count
	for _, n := range s.addNodes(q) {
		s.nextStep(func() {
			s.bootNode(n, func(err error) {
				waiting--
				switch {
				case s.state.queued[q.msg.Name] != q || q.state() != "PROVISIONING":
				case err != nil:
					s.fail(q, errorf(http.StatusInternalServerError, "an internal error has occurred: %v", err))
				case waiting == 0:
					s.activate(q)
				}
			})
		})
	}
}

// retryQueue tries again to provision the requests that wait for capacity.
func (s *Cloud) retryQueue() {
	for _, q := range sorted(s.state.queued, nil) {
		if q.state() == "WAITING_FOR_RESOURCES" {
			s.when(q, "WAITING_FOR_RESOURCES", func() { s.provision(q) })
		}
	}
}

func (s *Cloud) activate(q *queuedResource) {
	s.setState(q, "ACTIVE", "SERVICE", nil)
	if s.strike(q) {
		return
	}
	if run := q.msg.RunDuration; run != nil {
		d, err := parseDuration("", run.MaxRunDuration)
		if err == nil {
			s.later(d, func() { s.suspend(q, "SERVICE") })
		}
	}
}

// fail makes q FAILED, which is final. It deletes the nodes of q; q keeps its quota.
func (s *Cloud) fail(q *queuedResource, failure *apiError) {
	s.setState(q, "FAILED", "SERVICE", failure)
	for _, n := range s.nodesOf(q) {
		s.removeNode(n, nil)
	}
}

// suspend removes the nodes of q. q keeps its quota. Preempted nodes stay visible until q
// is deleted.
func (s *Cloud) suspend(q *queuedResource, initiator string) {
	if s.state.queued[q.msg.Name] != q || slices.Contains([]string{"SUSPENDING", "SUSPENDED", "DELETING", "FAILED"}, q.state()) {
		return
	}
	s.setState(q, "SUSPENDING", initiator, nil)
	s.when(q, "SUSPENDING", func() {
		left := 1
		gone := func() {
			if left--; left == 0 && s.state.queued[q.msg.Name] == q && q.state() == "SUSPENDING" {
				s.setState(q, "SUSPENDED", initiator, nil)
			}
		}
		for _, n := range s.nodesOf(q) {
			switch {
			case n.msg.State != "PREEMPTED":
				left++
				s.removeNode(n, gone)
			case len(n.ended) > 0:
				left++
				n.ended = append(n.ended, gone)
			}
		}
		gone()
	})
}

// deleteNow deletes the nodes of q and then q.
func (s *Cloud) deleteNow(q *queuedResource, op *operation) {
	s.setState(q, "DELETING", "USER", nil)
	left := 1
	gone := func() {
		if left--; left > 0 {
			return
		}
		s.nextStep(func() {
			delete(s.state.queued, q.msg.Name)
			s.finish(op, nil, nil)
		})
	}
	for _, n := range s.nodesOf(q) {
		left++
		s.removeNode(n, gone)
	}
	gone()
}

func (s *Cloud) nodesOf(q *queuedResource) []*node {
	return sorted(s.state.nodes, func(_ string, n *node) bool { return n.queued == q.msg.Name })
}

// nodeGone suspends the request whose last node a user deleted.
func (s *Cloud) nodeGone(n *node) {
	q := s.state.queued[n.queued]
	if q != nil && q.state() == "ACTIVE" && len(s.nodesOf(q)) == 0 {
		s.suspend(q, "USER")
	}
}

// addNodes creates the nodes of q, in state CREATING.
func (s *Cloud) addNodes(q *queuedResource) []*node {
	var nodes []*node
	for _, id := range q.nodeIDs() {
		msg := cloneNode(q.msg.Tpu.NodeSpec[0].Node)
		msg.QueuedResource, msg.MultisliceNode = q.msg.Name, q.prefix != ""
		msg.SchedulingConfig = &tpualpha.SchedulingConfig{
			Spot: q.msg.Spot != nil || q.msg.ProvisioningModel == "SPOT", Preemptible: q.msg.BestEffort != nil,
			Reserved: q.msg.ReservationName != "", ReservationName: q.msg.ReservationName,
		}
		// A node cannot be marked as flex-start: the enumeration has no such value.
		if q.msg.ProvisioningModel != "FLEX_START" {
			msg.SchedulingConfig.ProvisioningModel = q.msg.ProvisioningModel
		}
		n := s.addNode(q.zone, id, q.typ, msg)
		n.queued = q.msg.Name
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

// addNode creates a node, in state CREATING. msg must have passed checkNode.
func (s *Cloud) addNode(zone, id string, t tpu.Type, msg *tpualpha.Node) *node {
	msg.Name = s.locationName(zone) + "/nodes/" + id
	msg.Id, msg.State, msg.CreateTime, msg.ApiVersion = newID(), "CREATING", s.timestamp(), "V2_ALPHA1"
	if t.Topology != "" {
		msg.AcceleratorConfig = &tpualpha.AcceleratorConfig{Type: t.Generation.ChipType, Topology: t.Topology}
	}
	if msg.ServiceAccount == nil {
		msg.ServiceAccount = &tpualpha.ServiceAccount{}
	}
	if msg.ServiceAccount.Email == "" {
		msg.ServiceAccount.Email = defaultAccount
	}
	if msg.ServiceAccount.Scope == nil {
		msg.ServiceAccount.Scope = []string{"https://www.googleapis.com/auth/cloud-platform"}
	}
	n := &node{msg: msg, id: id, zone: zone, typ: t, mtu: s.mtuOf(interfaces(msg)[0].Network)}
	for range t.Workers {
		var further []string
		for i, cfg := range interfaces(msg) {
			if ip := s.nextAddress(cfg.Subnetwork); i == 0 {
				n.ips = append(n.ips, ip)
			} else {
				further = append(further, ip)
			}
		}
		n.further = append(n.further, further)
	}
	s.state.nodes[msg.Name] = n
	return n
}

// removeNode deletes n, which takes a step, and then calls done, which may be nil. If it
// is called several times for one node, it calls each done.
func (s *Cloud) removeNode(n *node, done func()) {
	if done != nil {
		n.gone = append(n.gone, done)
	}
	if n.msg.State == "DELETING" {
		return
	}
	n.msg.State = "DELETING"
	s.nextStep(func() {
		s.stopMachines(n, stopLimit, func() {
			delete(s.state.nodes, n.msg.Name)
			for _, f := range n.gone {
				f()
			}
		})
	})
}

// preempt removes n as the service does. With vanish the node disappears from the list;
// otherwise it stays listed as PREEMPTED.
func (s *Cloud) preempt(n *node, vanish bool) {
	if n.msg.State == "DELETING" || n.msg.State == "PREEMPTED" {
		return
	}
	n.msg.State = "PREEMPTED"
	s.stopMachines(n, preemptLimit, func() {
		if vanish {
			delete(s.state.nodes, n.msg.Name)
		}
	})
	if q := s.state.queued[n.queued]; q != nil {
		s.suspend(q, "SERVICE")
	}
}

// maintain marks n as under ongoing maintenance.
func (s *Cloud) maintain(n *node) {
	now := s.clock.Now()
	n.msg.Health = "UNHEALTHY_MAINTENANCE"
	n.msg.HealthDescription = "The TPU had a maintenance event at " + stamp(now) + "."
	n.msg.UpcomingMaintenance = &tpualpha.UpcomingMaintenance{
		Type: "UNSCHEDULED", MaintenanceStatus: "ONGOING", WindowStartTime: stamp(now), WindowEndTime: stamp(now.Add(4 * time.Hour)),
	}
}

// checkQuota refuses a request that exceeds the quota of its zone and generation. Spot
// and best-effort requests have a separate quota.
func (s *Cloud) checkQuota(zone string, t tpu.Type, cost int, preemptible bool) error {
	limit := s.state.quota[zone]
	if limit <= 0 {
		return nil
	}
	used := 0
	for _, q := range s.state.queued {
		if q.zone == zone && q.typ.Generation == t.Generation && q.preemptible() == preemptible {
			used += q.cost()
		}
	}
	for _, n := range s.state.nodes {
		if n.zone == zone && n.queued == "" && n.typ.Generation == t.Generation && !preemptible {
			used += units(n.typ)
		}
	}
	if used+cost <= limit {
		return nil
	}
	name := quotaName(t, preemptible)
	text := fmt.Sprintf("Quota limit '%s' has been exceeded. Limit: %d in zone %s.", name, limit, zone)
	return errorf(http.StatusTooManyRequests, "%s", text).withDetails(map[string]any{
		"@type":      "type.googleapis.com/google.rpc.QuotaFailure",
		"violations": []any{map[string]any{"subject": "project:" + projectNumber, "description": text}},
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
