package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

func (s *Cloud) serveNodes(c *call) (any, error) {
	switch c.method() {
	case "list":
		return s.listNodes(c)
	case "create":
		return s.createNode(c)
	case "get":
		if err := checkQuery(c.query); err != nil {
			return nil, err
		}
		n, err := s.findNode(c)
		if err != nil {
			return nil, err
		}
		return encode(c.version, n.msg)
	case "delete":
		return s.deleteNode(c)
	case "patch":
		return s.patchNode(c)
	case "getGuestAttributes":
		return s.getGuestAttributes(c)
	case "start", "stop", "performMaintenance", "simulateMaintenanceEvent":
		return nil, notModelled("nodes." + c.verb)
	}
	return nil, unknownMethod()
}

func (s *Cloud) findNode(c *call) (*node, error) {
	n := s.state.nodes[c.name()]
	if n == nil {
		return nil, noSuch(c.name())
	}
	return n, nil
}

func (s *Cloud) listNodes(c *call) (any, error) {
	if err := checkQuery(c.query, "pageSize", "pageToken"); err != nil {
		return nil, err
	}
	all := sorted(s.state.nodes, func(name string, _ *node) bool { return c.covers(name) })
	nodes, next, err := page(all, c.query, "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	var list []json.RawMessage
	for _, n := range nodes {
		b, err := encode(c.version, n.msg)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	if list != nil {
		out["nodes"] = list
	}
	if next != "" {
		out["nextPageToken"] = next
	}
	return out, nil
}

func (s *Cloud) createNode(c *call) (any, error) {
	if err := checkQuery(c.query, append(c.alpha("requestId"), "nodeId")...); err != nil {
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
		c.id = "node-" + strconv.FormatInt(newID(), 36)
	}
	if err := checkID("node_id", c.id); err != nil {
		return nil, err
	}
	t, err := s.checkNode(c.zone, "node", msg)
	if err != nil {
		return nil, err
	}
	if s.state.nodes[c.name()] != nil {
		return nil, exists(c.name())
	}
	if err := s.checkQuota(c.zone, t, units(t), msg.SchedulingConfig != nil && (msg.SchedulingConfig.Spot || msg.SchedulingConfig.Preemptible)); err != nil {
		return nil, err
	}
	op = c.remember(key, s.newOperation(c.zone, "create", c.name()))
	if failure := s.takeOperationFault(); failure != nil {
		s.nextStep(func() { s.finish(op, nil, failure) })
		return op, nil
	}
	n := s.addNode(c.zone, c.id, t, msg)
	if c.version == "v2" {
		msg.ApiVersion = "V2"
	}
	s.nextStep(func() {
		s.bootNode(n, func(err error) {
			if err != nil {
				delete(s.state.nodes, n.msg.Name)
				s.finish(op, nil, errorf(http.StatusInternalServerError, "an internal error has occurred: %v", err))
				return
			}
			s.finish(op, n.msg, nil)
		})
	})
	return op, nil
}

// checkNode refuses nodes that the real service refuses, and fills in the fields that it
// fills in.
func (s *Cloud) checkNode(zone, field string, n *tpualpha.Node) (tpu.Type, error) {
	t, err := s.typeOf(zone, field, n)
	if err != nil {
		return t, err
	}
	n.AcceleratorType = t.Name
	if n.RuntimeVersion == "" {
		return t, badField(field+".runtime_version", "runtime_version is required")
	}
	if !slices.Contains(runtimeVersions(), n.RuntimeVersion) {
		return t, badField(field+".runtime_version", "runtime version %q could not be found", n.RuntimeVersion)
	}
	if len(n.Description) > 512 {
		return t, badField(field+".description", "must be at most 512 characters")
	}
	if err := checkBootDisk(field+".boot_disk_config", n.BootDiskConfig); err != nil {
		return t, err
	}
	if err := s.checkInterfaces(zone, field, n); err != nil {
		return t, err
	}
	if err := checkLabels(field, n); err != nil {
		return t, err
	}
	for _, d := range n.DataDisks {
		if !strings.Contains(d.SourceDisk, "/disks/") {
			return t, badField(field+".data_disks", "source_disk %q is not the name of a disk", d.SourceDisk)
		}
		if !slices.Contains([]string{"", "READ_WRITE", "READ_ONLY", "DISK_MODE_UNSPECIFIED"}, d.Mode) {
			return t, errorf(http.StatusBadRequest, "Invalid value at '%s.data_disks.mode' (type.googleapis.com/google.cloud.tpu.v2.AttachedDisk.DiskMode), %q", field, d.Mode)
		}
		if d.Mode == "READ_WRITE" && t.Workers > 1 {
			return t, badField(field+".data_disks", "a disk can be attached in read-write mode to a single-host TPU only")
		}
	}
	clearOutputOnly(n)
	return t, nil
}

func clearOutputOnly(n *tpualpha.Node) {
	n.Name, n.State, n.ApiVersion, n.CreateTime, n.Health, n.HealthDescription, n.QueuedResource = "", "", "", "", "", "", ""
	n.Id, n.MultisliceNode, n.NetworkEndpoints, n.Symptoms, n.UpcomingMaintenance = 0, false, nil, nil, nil
}

// checkBootDisk accepts a disk that is encrypted with a key. All other properties of a
// disk are not modelled.
func checkBootDisk(field string, b *tpualpha.BootDiskConfig) error {
	if b == nil {
		return nil
	}
	if b.DiskSizeGb != 0 || b.ProvisionedIops != 0 || b.ProvisionedThroughput != 0 || b.SourceImage != "" || b.StoragePool != "" {
		return notModelled("A bootDiskConfig with more than a key")
	}
	key := ""
	if b.CustomerEncryptionKey != nil {
		key = b.CustomerEncryptionKey.KmsKeyName
	}
	if key == "" && b.EnableConfidentialCompute || key != "" && !kmsKey.MatchString(key) {
		return badField(field+".customer_encryption_key", "%q is not the name of a key", key)
	}
	return nil
}

var kmsKey = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+(/cryptoKeyVersions/[0-9]+)?$`)

// checkInterfaces checks and fills in the networks of a node, which has one
// network_config or a list.
func (s *Cloud) checkInterfaces(zone, field string, n *tpualpha.Node) error {
	if len(n.NetworkConfigs) == 0 {
		if n.NetworkConfig == nil {
			n.NetworkConfig = &tpualpha.NetworkConfig{EnableExternalIps: true}
		}
		return s.checkNetworkConfig(zone, field+".network_config", n.NetworkConfig)
	}
	if n.NetworkConfig != nil {
		return badField(field+".network_configs", "only one of network_config and network_configs can be set")
	}
	for i, cfg := range n.NetworkConfigs {
		if err := s.checkNetworkConfig(zone, fmt.Sprintf("%s.network_configs[%d]", field, i), cfg); err != nil {
			return err
		}
	}
	return nil
}

// interfaces returns the networks of a node that has passed checkNode. Workers are
// reached through the first.
func interfaces(n *tpualpha.Node) []*tpualpha.NetworkConfig {
	if n.NetworkConfig != nil {
		return []*tpualpha.NetworkConfig{n.NetworkConfig}
	}
	return n.NetworkConfigs
}

func (s *Cloud) checkNetworkConfig(zone, field string, cfg *tpualpha.NetworkConfig) error {
	if cfg.Network == "" {
		cfg.Network = "default"
	}
	name, ok := s.globalRef(cfg.Network, "networks")
	if !ok || s.state.networks[name] == nil {
		return badField(field+".network", "network %q was not found", cfg.Network)
	}
	cfg.Network = name
	region := regionOf(zone)
	if cfg.Subnetwork == "" {
		for key, sub := range s.state.subnetworks {
			if s.urlToName(sub.GetNetwork()) == name && strings.Contains(key, "/regions/"+region+"/") {
				cfg.Subnetwork = key
			}
		}
		if cfg.Subnetwork == "" {
			return badField(field+".subnetwork", "network %q has no subnetwork in region %s: subnetwork is required", name, region)
		}
		return nil
	}
	key, ok := s.regionRef(cfg.Subnetwork, region, "subnetworks")
	sub := s.state.subnetworks[key]
	if !ok || sub == nil || s.urlToName(sub.GetNetwork()) != name {
		return badField(field+".subnetwork", "subnetwork %q was not found in network %q and region %s", cfg.Subnetwork, name, region)
	}
	cfg.Subnetwork = key
	return nil
}

// maxMetadata is Compute Engine's limit for one value.
const maxMetadata = 262_144

func checkLabels(field string, n *tpualpha.Node) error {
	for k, v := range n.Labels {
		if !labelKey.MatchString(k) || !labelValue.MatchString(v) {
			return badField(field+".labels", "label %q=%q is not valid: lower-case letters, digits, _ and - only, at most 63", k, v)
		}
	}
	for _, tag := range n.Tags {
		if !idPattern.MatchString(tag) {
			return badField(field+".tags", "tag %q is not valid", tag)
		}
	}
	for k, v := range n.Metadata {
		if len(k) == 0 || len(k) > 128 || len(v) > maxMetadata {
			return badField(field+".metadata", "key %.40q: keys have 1 to 128 characters, values at most %d", k, maxMetadata)
		}
	}
	return nil
}

func (s *Cloud) deleteNode(c *call) (any, error) {
	if err := checkQuery(c.query, c.alpha("requestId")...); err != nil {
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
	if n.msg.State == "DELETING" {
		return nil, precondition("The operation cannot be performed on the node %s with current state DELETING.", n.msg.Name)
	}
	op = c.remember(key, s.newOperation(c.zone, "delete", n.msg.Name))
	s.removeNode(n, func() {
		s.finish(op, nil, nil)
		s.nodeGone(n)
	})
	return op, nil
}

func (s *Cloud) patchNode(c *call) (any, error) {
	if err := checkQuery(c.query, "updateMask"); err != nil {
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
	if n.msg.State == "DELETING" {
		return nil, precondition("The operation cannot be performed on the node %s with current state %s.", n.msg.Name, n.msg.State)
	}
	if err := checkLabels("node", msg); err != nil {
		return nil, err
	}
	changes, err := nodeChanges(strings.Join(c.query["updateMask"], ","), msg)
	if err != nil {
		return nil, err
	}
	op := s.newOperation(c.zone, "update", n.msg.Name)
	failure := s.takeOperationFault()
	s.nextStep(func() {
		if failure == nil {
			for _, change := range changes {
				change(n.msg)
			}
		}
		s.finish(op, n.msg, failure)
	})
	return op, nil
}

// nodeChanges returns the assignments that a field mask requests. An assignment replaces
// a whole map: there is no fingerprint, so the last writer wins.
func nodeChanges(mask string, from *tpualpha.Node) ([]func(*tpualpha.Node), error) {
	if mask == "" {
		return nil, errorf(http.StatusBadRequest, "Invalid value at 'update_mask': the field mask is required.")
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
			return nil, notModelled("A patch of " + path)
		default:
			return nil, badField("update_mask", "%q is not one of description, tags, labels, metadata, network_config.enable_external_ips", path)
		}
		changes = append(changes, change)
	}
	return changes, nil
}

func (s *Cloud) getGuestAttributes(c *call) (any, error) {
	if err := checkQuery(c.query); err != nil {
		return nil, err
	}
	req := new(tpualpha.GetGuestAttributesRequest)
	if err := decodeStrict(c.body, req, "get_guest_attributes_request"); err != nil {
		return nil, err
	}
	n, err := s.findNode(c)
	if err != nil {
		return nil, err
	}
	if s.guestAttributesOff(n.id) {
		return nil, precondition("Guest attributes endpoint access is disabled on %s.", n.msg.Name)
	}
	workers, err := workersAsked(n, req.WorkerIds)
	if err != nil {
		return nil, err
	}
	namespace, key, _ := strings.Cut(strings.Trim(req.QueryPath, "/"), "/")
	out := &tpualpha.GetGuestAttributesResponse{}
	for _, i := range workers {
		var items []*tpualpha.GuestAttributesEntry
		for _, item := range n.guestAttributes(i) {
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

// workersAsked parses worker ids. No id, or the single empty id that gcloud sends, means
// all workers.
func workersAsked(n *node, ids []string) ([]int, error) {
	var workers []int
	if len(ids) == 0 || len(ids) == 1 && ids[0] == "" {
		for i := range n.typ.Workers {
			workers = append(workers, i)
		}
		return workers, nil
	}
	for _, id := range ids {
		i, err := strconv.Atoi(id)
		if err != nil || i < 0 || i >= n.typ.Workers {
			return nil, badField("worker_ids", "%q is no worker of %s, which has %d", id, n.msg.Name, n.typ.Workers)
		}
		workers = append(workers, i)
	}
	return workers, nil
}

// guestAttributes returns the guest attributes that worker i has written; none before it
// has booted.
func (n *node) guestAttributes(i int) []*tpualpha.GuestAttributesEntry {
	if i >= len(n.machines) || n.machines[i] == nil {
		return nil
	}
	var items []*tpualpha.GuestAttributesEntry
	keys := n.machines[i].HostKeys()
	for _, kind := range slices.Sorted(maps.Keys(keys)) {
		items = append(items, &tpualpha.GuestAttributesEntry{Namespace: "hostkeys", Key: kind, Value: keys[kind]})
	}
	items = append(items, &tpualpha.GuestAttributesEntry{Namespace: "hostkeys", Key: "hostname", Value: n.machines[i].Hostname()})
	written := n.guestOf(i)
	for _, name := range slices.Sorted(maps.Keys(written)) {
		namespace, key, _ := strings.Cut(name, "/")
		items = append(items, &tpualpha.GuestAttributesEntry{Namespace: namespace, Key: key, Value: written[name]})
	}
	return items
}
