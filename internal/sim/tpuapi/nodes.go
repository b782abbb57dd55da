package tpuapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"
)

func (s API) serveNodes(c *call) (any, error) {
	switch c.method() {
	case "list":
		return s.listNodes(c)
	case "create":
		return s.createNode(c)
	case "get":
		if err := wire.CheckQuery(c.query); err != nil {
			return nil, err
		}
		n, err := s.findNode(c)
		if err != nil {
			return nil, err
		}
		return n.JSON.Encode(c.version, n.Msg)
	case "delete":
		return s.deleteNode(c)
	case "patch":
		return s.patchNode(c)
	case "getGuestAttributes":
		return s.getGuestAttributes(c)
	case "start", "stop", "performMaintenance", "simulateMaintenanceEvent":
		return nil, wire.NotModelled("nodes." + c.verb)
	}
	return nil, wire.UnknownMethod()
}

func (s API) findNode(c *call) (*cloud.Node, error) {
	n := s.State.Nodes[c.name()]
	if n == nil {
		return nil, wire.NoSuch(c.name())
	}
	return n, nil
}

func (s API) listNodes(c *call) (any, error) {
	if err := wire.CheckQuery(c.query, "pageSize", "pageToken"); err != nil {
		return nil, err
	}
	all := cloud.Sorted(s.State.Nodes, func(name string, _ *cloud.Node) bool { return c.covers(name) })
	nodes, next, err := wire.Page(all, c.query, "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	var list []json.RawMessage
	for _, n := range nodes {
		b, err := n.JSON.Encode(c.version, n.Msg)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return wire.List("nodes", list, next), nil
}

func (s API) createNode(c *call) (any, error) {
	if err := wire.CheckQuery(c.query, append(c.alpha("requestId"), "nodeId")...); err != nil {
		return nil, err
	}
	key, op, err := c.replay()
	if err != nil || op != nil {
		return op, err
	}
	msg, err := decodeNode(c.version, c.body)
	if err != nil {
		return nil, err
	}
	c.id = c.query.Get("nodeId")
	if c.id == "" {
		c.id = "node-" + strconv.FormatInt(cloud.NewID(), 36)
	}
	if err := cloud.CheckID("node_id", c.id); err != nil {
		return nil, err
	}
	t, err := s.Catalog().CheckNode(c.zone, "node", msg)
	if err != nil {
		return nil, err
	}
	if s.State.Nodes[c.name()] != nil {
		return nil, wire.Exists(c.name())
	}
	if err := s.Slices().CheckQuota(c.zone, t, cloud.Units(t), msg.SchedulingConfig != nil && (msg.SchedulingConfig.Spot || msg.SchedulingConfig.Preemptible)); err != nil {
		return nil, err
	}
	op = c.remember(key, s.NewOperation(c.zone, "create", c.name()))
	if failure := s.Injection().TakeOperationFault(); failure != nil {
		s.NextStep(func() { s.Finish(op, nil, failure) })
		return op, nil
	}
	n := s.Slices().AddNode(c.zone, c.id, t, msg)
	if c.version == "v2" {
		msg.ApiVersion = "V2"
	}
	s.NextStep(func() {
		s.Slices().BootNode(n, func(err error) {
			if err != nil {
				delete(s.State.Nodes, n.Msg.Name)
				s.Finish(op, nil, wire.Errorf(http.StatusInternalServerError, "an internal error has occurred: %v", err))
				return
			}
			s.Finish(op, n.Msg, nil)
		})
	})
	return op, nil
}

func (s API) deleteNode(c *call) (any, error) {
	if err := wire.CheckQuery(c.query, c.alpha("requestId")...); err != nil {
		return nil, err
	}
	key, op, err := c.replay()
	if err != nil || op != nil {
		return op, err
	}
	n, err := s.findNode(c)
	if err != nil {
		return nil, err
	}
	if n.Msg.State == "DELETING" {
		return nil, wire.Precondition("The operation cannot be performed on the node %s with current state DELETING.", n.Msg.Name)
	}
	op = c.remember(key, s.NewOperation(c.zone, "delete", n.Msg.Name))
	s.Slices().RemoveNode(n, func() {
		s.Finish(op, nil, nil)
		s.Slices().NodeGone(n)
	})
	return op, nil
}

func (s API) patchNode(c *call) (any, error) {
	if err := wire.CheckQuery(c.query, "updateMask"); err != nil {
		return nil, err
	}
	msg, err := decodeNode(c.version, c.body)
	if err != nil {
		return nil, err
	}
	n, err := s.findNode(c)
	if err != nil {
		return nil, err
	}
	if n.Msg.State == "DELETING" {
		return nil, wire.Precondition("The operation cannot be performed on the node %s with current state %s.", n.Msg.Name, n.Msg.State)
	}
	if err := cloud.CheckLabels("node", msg); err != nil {
		return nil, err
	}
	changes, err := nodeChanges(strings.Join(c.query["updateMask"], ","), msg)
	if err != nil {
		return nil, err
	}
	op := s.NewOperation(c.zone, "update", n.Msg.Name)
	failure := s.Injection().TakeOperationFault()
	s.NextStep(func() {
		if failure == nil {
			for _, change := range changes {
				change(n.Msg)
			}
		}
		s.Finish(op, n.Msg, failure)
	})
	return op, nil
}

// nodeChanges returns the assignments for a field mask. An assignment replaces a whole map.
// There is no fingerprint, so the last writer wins.
func nodeChanges(mask string, from *tpualpha.Node) ([]func(*tpualpha.Node), error) {
	if mask == "" {
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid value at 'update_mask': the field mask is required.")
	}
	var changes []func(*tpualpha.Node)
	for path := range strings.SplitSeq(mask, ",") {
		var change func(*tpualpha.Node)
		switch path {
		case "description":
			change = func(n *tpualpha.Node) { n.Description = from.Description }
		case "tags":
			change = func(n *tpualpha.Node) { n.Tags = from.Tags }
		case "labels":
			change = func(n *tpualpha.Node) { n.Labels = maps.Clone(from.Labels) }
		case "metadata":
			change = func(n *tpualpha.Node) { n.Metadata = maps.Clone(from.Metadata) }
		case "networkConfig.enableExternalIps", "network_config.enable_external_ips", "dataDisks", "data_disks":
			return nil, wire.NotModelled("A patch of " + path)
		default:
			return nil, wire.BadField("update_mask", "%q is not one of description, tags, labels, metadata, network_config.enable_external_ips", path)
		}
		changes = append(changes, change)
	}
	return changes, nil
}

func (s API) getGuestAttributes(c *call) (any, error) {
	if err := wire.CheckQuery(c.query); err != nil {
		return nil, err
	}
	req := new(tpualpha.GetGuestAttributesRequest)
	if err := wire.DecodeStrict(c.body, req, "get_guest_attributes_request"); err != nil {
		return nil, err
	}
	n, err := s.findNode(c)
	if err != nil {
		return nil, err
	}
	if s.Injection().GuestAttributesOff(n.Id) {
		return nil, wire.Precondition("Guest attributes endpoint access is disabled on %s.", n.Msg.Name)
	}
	workers, err := workersAsked(n, req.WorkerIds)
	if err != nil {
		return nil, err
	}
	namespace, key, _ := strings.Cut(strings.Trim(req.QueryPath, "/"), "/")
	out := &tpualpha.GetGuestAttributesResponse{}
	for _, i := range workers {
		var items []*tpualpha.GuestAttributesEntry
		for _, item := range guestAttributes(n, i) {
			if (namespace == "" || item.Namespace == namespace) && (key == "" || item.Key == key) {
				items = append(items, item)
			}
		}
		out.GuestAttributes = append(out.GuestAttributes, &tpualpha.GuestAttributes{
			QueryPath: req.QueryPath, QueryValue: &tpualpha.GuestAttributesValue{Items: items},
		})
	}
	return out, nil
}

// workersAsked parses worker ids. None, or a single empty id as gcloud sends it, means all
// workers.
func workersAsked(n *cloud.Node, ids []string) ([]int, error) {
	var workers []int
	if len(ids) == 0 || len(ids) == 1 && ids[0] == "" {
		for i := range n.Typ.Workers {
			workers = append(workers, i)
		}
		return workers, nil
	}
	for _, id := range ids {
		i, err := strconv.Atoi(id)
		if err != nil || i < 0 || i >= n.Typ.Workers {
			return nil, wire.BadField("worker_ids", "%q is no worker of %s, which has %d", id, n.Msg.Name, n.Typ.Workers)
		}
		workers = append(workers, i)
	}
	return workers, nil
}

// guestAttributes returns the guest attributes that worker i has written: none before its
// boot.
func guestAttributes(n *cloud.Node, i int) []*tpualpha.GuestAttributesEntry {
	if i >= len(n.Machines) || n.Machines[i] == nil {
		return nil
	}
	var items []*tpualpha.GuestAttributesEntry
	keys := n.Machines[i].HostKeys()
	for _, kind := range slices.Sorted(maps.Keys(keys)) {
		items = append(items, &tpualpha.GuestAttributesEntry{Namespace: "hostkeys", Key: kind, Value: keys[kind]})
	}
	items = append(items, &tpualpha.GuestAttributesEntry{Namespace: "hostkeys", Key: "hostname", Value: n.Machines[i].Hostname()})
	written := n.GuestOf(i)
	for _, name := range slices.Sorted(maps.Keys(written)) {
		namespace, key, _ := strings.Cut(name, "/")
		items = append(items, &tpualpha.GuestAttributesEntry{Namespace: namespace, Key: key, Value: written[name]})
	}
	return items
}
