package tpuapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

func (s API) serveQueued(c *call) (any, error) {
	switch c.method() {
	case "list":
		return s.listQueued(c)
	case "create":
		return s.createQueued(c)
	case "get":
		if err := wire.CheckQuery(c.query); err != nil {
			return nil, err
		}
		q, err := s.findQueued(c)
		if err != nil {
			return nil, err
		}
		return q.JSON.Encode(c.version, q.Msg)
	case "delete":
		return s.deleteQueued(c)
	case "reset":
		return s.resetQueued(c)
	case "getMaintenanceInfo", "performMaintenanceQueuedResource":
		return nil, wire.NotModelled("queuedResources." + c.verb)
	}
	return nil, wire.UnknownMethod()
}

func (s API) findQueued(c *call) (*cloud.QueuedResource, error) {
	q := s.State.Queued[c.name()]
	if q == nil {
		return nil, wire.NoSuch(c.name())
	}
	return q, nil
}

func (s API) listQueued(c *call) (any, error) {
	if err := wire.CheckQuery(c.query, "pageSize", "pageToken"); err != nil {
		return nil, err
	}
	all := cloud.Sorted(s.State.Queued, func(name string, _ *cloud.QueuedResource) bool { return c.covers(name) })
	items, next, err := wire.Page(all, c.query, "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	var list []json.RawMessage
	for _, q := range items {
		b, err := q.JSON.Encode(c.version, q.Msg)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return wire.List("queuedResources", list, next), nil
}

func (s API) createQueued(c *call) (any, error) {
	if err := wire.CheckQuery(c.query, "queuedResourceId", "requestId"); err != nil {
		return nil, err
	}
	key, op, err := c.replay()
	if err != nil || op != nil {
		return op, err
	}
	msg, err := decodeQueued(c.version, c.body)
	if err != nil {
		return nil, err
	}
	if c.id = c.query.Get("queuedResourceId"); c.id == "" {
		c.id = "qr-" + strconv.FormatInt(cloud.NewID(), 36)
	}
	q := &cloud.QueuedResource{Msg: msg, Id: c.id, Zone: c.zone}
	if err := s.checkQueued(q); err != nil {
		return nil, err
	}
	if s.State.Queued[c.name()] != nil {
		return nil, wire.Exists(c.name())
	}
	for _, id := range q.NodeIDs() {
		if name := c.parent() + "/nodes/" + id; s.State.Nodes[name] != nil {
			return nil, wire.Exists(name)
		}
	}
	if err := s.Slices().CheckQuota(c.zone, q.Typ, q.Cost(), q.Preemptible()); err != nil {
		return nil, err
	}
	msg.Name, msg.CreateTime = c.name(), s.Timestamp()
	op = c.remember(key, s.NewOperation(c.zone, "create", msg.Name))
	if failure := s.Injection().TakeOperationFault(); failure != nil {
		s.NextStep(func() { s.Finish(op, nil, failure) })
		return op, nil
	}
	if failure := flexStartFailure(q); failure != nil {
		s.NextStep(func() { s.Finish(op, nil, failure) })
		return op, nil
	}
	s.State.Queued[msg.Name] = q
	s.Slices().Enqueue(q, op)
	return op, nil
}

// flexStartFailure returns an error or nil. The service accepts such a request and reports
// the error in the operation. No other known error comes there.
func flexStartFailure(q *cloud.QueuedResource) *wire.Error {
	if q.Msg.ProvisioningModel != "FLEX_START" || slices.Contains([]string{"v5e", "v5p", "v6e"}, q.Typ.Generation.Name) {
		return nil
	}
	return wire.Errorf(http.StatusBadRequest, "FLEX_START provisioning model is not supported for accelerator type %s.", q.Typ.Name)
}

// checkQueued returns an error for a request that the real service refuses, and fills in q.
func (s API) checkQueued(q *cloud.QueuedResource) error {
	if err := cloud.CheckID("queued_resource_id", q.Id); err != nil {
		return err
	}
	msg := q.Msg
	if msg.Tpu == nil || len(msg.Tpu.NodeSpec) == 0 {
		return wire.BadField("queued_resource.tpu.node_spec", "node_spec is required")
	}
	if len(msg.Tpu.NodeSpec) > 1 {
		return wire.BadField("queued_resource.tpu.node_spec", "only one node_spec is supported")
	}
	const field = "queued_resource.tpu.node_spec[0]"
	spec := msg.Tpu.NodeSpec[0]
	if spec.Node == nil {
		return wire.BadField(field+".node", "node is required")
	}
	if spec.Parent != s.LocationName(q.Zone) && !strings.HasSuffix(spec.Parent, "/locations/"+q.Zone) {
		return wire.BadField(field+".parent", "%q is not %q", spec.Parent, s.LocationName(q.Zone))
	}
	if spec.Node.SchedulingConfig != nil {
		return wire.BadField(field+".node.scheduling_config", "scheduling_config cannot be set in a queued resource: use the tier of the request")
	}
	var err error
	if q.Typ, err = s.Catalog().CheckNode(q.Zone, field+".node", spec.Node); err != nil {
		return err
	}
	if err := checkNames(q, field, spec); err != nil {
		return err
	}
	if err := checkTier(q.Zone, msg, q.Typ); err != nil {
		return err
	}
	return checkPolicy(q, s.Clock.Now())
}

// maxNodes limits the nodes of one request. Google limits them by quota, which a simulator
// may not have.
const maxNodes = 4096

func checkNames(q *cloud.QueuedResource, field string, spec *tpualpha.NodeSpec) error {
	params := spec.MultiNodeParams
	switch {
	case params == nil && spec.NodeId == "":
		return wire.BadField(field, "one of node_id and multi_node_params is required")
	case params == nil:
		q.Count = 1
		return cloud.CheckID(field+".node_id", spec.NodeId)
	case spec.NodeId != "":
		return wire.BadField(field, "only one of node_id and multi_node_params can be set")
	case params.NodeCount <= 1:
		return wire.BadField(field+".multi_node_params.node_count", "node_count is %d: it must be greater than 1", params.NodeCount)
	case params.NodeCount > maxNodes:
		return wire.BadField(field+".multi_node_params.node_count", "node_count is %d: the simulator has %d nodes at most", params.NodeCount, maxNodes)
	case !q.Typ.Generation.MultiSlice:
		return wire.BadField(field+".multi_node_params", "multi-node requests are not supported for accelerator type %s", q.Typ.Name)
	case !slices.Contains([]string{"", "WORKLOAD_TYPE_UNSPECIFIED", "THROUGHPUT_OPTIMIZED", "AVAILABILITY_OPTIMIZED"}, params.WorkloadType):
		return wire.Errorf(http.StatusBadRequest, "Invalid value at '%s.multi_node_params.workload_type' (type.googleapis.com/google.cloud.tpu.v2alpha1.MultiNodeParams.WorkloadType), %q", field, params.WorkloadType)
	}
	if params.NodeIdPrefix == "" {
		params.NodeIdPrefix = q.Id
	}
	q.Count, q.Prefix = int(params.NodeCount), params.NodeIdPrefix
	return cloud.CheckID(field+".multi_node_params.node_id_prefix", fmt.Sprintf("%s-%d", q.Prefix, q.Count-1))
}

var reservationPattern = regexp.MustCompile(`^(projects|folders|organizations)/[^/]+/locations/([^/]+)/reservations/[^/]+$`)

// maxFlexStart is how long a flex-start request may keep its nodes.
const maxFlexStart = 7 * 24 * time.Hour

func checkTier(zone string, msg *tpualpha.QueuedResource, t tpu.Type) error {
	tiers := 0
	for _, set := range []bool{msg.Spot != nil, msg.Guaranteed != nil, msg.BestEffort != nil} {
		if set {
			tiers++
		}
	}
	if tiers > 1 {
		return wire.Errorf(http.StatusBadRequest, "Invalid value at 'queued_resource' (oneof), oneof field 'tier' is already set. Only one of spot, guaranteed and best_effort can be set.")
	}
	model := msg.ProvisioningModel
	if !slices.Contains([]string{"", "PROVISIONING_MODEL_UNSPECIFIED", "STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START"}, model) {
		return wire.Errorf(http.StatusBadRequest, "Invalid value at 'queued_resource.provisioning_model' (type.googleapis.com/google.cloud.tpu.v2alpha1.QueuedResource.ProvisioningModel), %q", model)
	}
	// gcloud alpha sends STANDARD with every tier, so it means nothing.
	agrees := model == "" || model == "STANDARD" || model == "PROVISIONING_MODEL_UNSPECIFIED" || model == "SPOT" && msg.Spot != nil ||
		model == "RESERVATION_BOUND" && msg.Guaranteed != nil
	if tiers > 0 && !agrees {
		return wire.BadField("queued_resource.provisioning_model", "%s cannot be combined with a tier", model)
	}
	if msg.Guaranteed != nil && msg.Guaranteed.MinDuration != "" {
		if _, err := cloud.ParseDuration("queued_resource.guaranteed.min_duration", msg.Guaranteed.MinDuration); err != nil {
			return err
		}
	}
	if err := checkReservation(zone, msg); err != nil {
		return err
	}
	return checkRunDuration(msg)
}

func checkReservation(zone string, msg *tpualpha.QueuedResource) error {
	model := msg.ProvisioningModel
	if msg.ReservationName == "" {
		if model == "RESERVATION_BOUND" {
			return wire.BadField("queued_resource.reservation_name", "reservation_name is required for RESERVATION_BOUND")
		}
		return nil
	}
	m := reservationPattern.FindStringSubmatch(msg.ReservationName)
	if m == nil || m[2] != zone {
		return wire.BadField("queued_resource.reservation_name", "%q is not the name of a reservation in %s", msg.ReservationName, zone)
	}
	if msg.Spot != nil || msg.BestEffort != nil || model == "SPOT" || model == "FLEX_START" {
		return wire.BadField("queued_resource.reservation_name", "a reservation cannot be used by a spot, best-effort or flex-start request")
	}
	return nil
}

func checkRunDuration(msg *tpualpha.QueuedResource) error {
	const field = "queued_resource.run_duration"
	run := msg.RunDuration
	if run == nil {
		if msg.ProvisioningModel == "FLEX_START" {
			return wire.BadField(field, "run_duration is required for FLEX_START")
		}
		return nil
	}
	if run.TerminationTime != "" {
		return wire.NotModelled("runDuration.terminationTime")
	}
	d, err := cloud.ParseDuration(field+".max_run_duration", run.MaxRunDuration)
	if err != nil {
		return err
	}
	if d <= 0 || msg.ProvisioningModel == "FLEX_START" && d > maxFlexStart {
		return wire.BadField(field+".max_run_duration", "%s is not between 1s and %ds", run.MaxRunDuration, int(maxFlexStart.Seconds()))
	}
	return nil
}

func parseTime(field, text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return t, wire.Errorf(http.StatusBadRequest, "Invalid value at '%s' (type.googleapis.com/google.protobuf.Timestamp), Field '%s', Invalid time format", field, text)
	}
	return t, nil
}

// checkPolicy parses the queueing policy, of which at most one field may be set.
func checkPolicy(q *cloud.QueuedResource, now time.Time) (err error) {
	p := q.Msg.QueueingPolicy
	if p == nil {
		return nil
	}
	const field = "queued_resource.queueing_policy"
	set := 0
	for _, text := range []string{p.ValidUntilDuration, p.ValidUntilTime, p.ValidAfterDuration, p.ValidAfterTime} {
		if text != "" {
			set++
		}
	}
	if p.ValidInterval != nil {
		set++
	}
	if set > 1 {
		return wire.Errorf(http.StatusBadRequest, "Invalid value at '%s' (oneof), oneof field 'start_timing_constraints' is already set.", field)
	}
	var d time.Duration
	switch {
	case p.ValidUntilDuration != "":
		d, err = cloud.ParseDuration(field+".valid_until_duration", p.ValidUntilDuration)
		q.Deadline = now.Add(d)
	case p.ValidUntilTime != "":
		q.Deadline, err = parseTime(field+".valid_until_time", p.ValidUntilTime)
	case p.ValidAfterDuration != "":
		d, err = cloud.ParseDuration(field+".valid_after_duration", p.ValidAfterDuration)
		q.Begins = now.Add(d)
	case p.ValidAfterTime != "":
		q.Begins, err = parseTime(field+".valid_after_time", p.ValidAfterTime)
	case p.ValidInterval != nil:
		q.Begins, err = parseTime(field+".valid_interval.start_time", p.ValidInterval.StartTime)
		if err == nil {
			q.Deadline, err = parseTime(field+".valid_interval.end_time", p.ValidInterval.EndTime)
		}
	}
	if err == nil && !q.Deadline.IsZero() && (q.Deadline.Before(now) || q.Deadline.Before(q.Begins)) {
		return wire.BadField(field, "the request must be valid until a time in the future")
	}
	return err
}

func (s API) deleteQueued(c *call) (any, error) {
	if err := wire.CheckQuery(c.query, "force", "requestId"); err != nil {
		return nil, err
	}
	force, err := wire.QueryBool(c.query, "force")
	if err != nil {
		return nil, err
	}
	key, op, err := c.replay()
	if err != nil || op != nil {
		return op, err
	}
	q, err := s.findQueued(c)
	if err != nil {
		return nil, err
	}
	state := q.State()
	free := slices.Contains([]string{"ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED", "SUSPENDED"}, state) ||
		state != "CREATING" && state != "PROVISIONING" && len(s.Slices().NodesOf(q)) == 0
	if state == "DELETING" || !force && !free {
		return nil, wire.Precondition("The queued resource %s cannot be deleted in state %s: its nodes must be deleted first, or force must be set.", q.Msg.Name, state)
	}
	op = c.remember(key, s.NewOperation(c.zone, "delete", q.Msg.Name))
	if (state == "FAILED" || state == "SUSPENDED") && s.Injection().TakeStuckDelete(q.Id) {
		s.NextStep(func() { s.Finish(op, nil, nil) })
		return op, nil
	}
	s.Slices().DeleteNow(q, op)
	return op, nil
}

func (s API) resetQueued(c *call) (any, error) {
	if err := wire.CheckQuery(c.query); err != nil {
		return nil, err
	}
	if err := wire.DecodeStrict(c.body, new(tpualpha.ResetQueuedResourceRequest), "reset_queued_resource_request"); err != nil {
		return nil, err
	}
	q, err := s.findQueued(c)
	if err != nil {
		return nil, err
	}
	if q.State() != "ACTIVE" {
		return nil, wire.Precondition("The queued resource %s cannot be reset in state %s.", q.Msg.Name, q.State())
	}
	op := s.NewOperation(c.zone, "reset", q.Msg.Name)
	s.Slices().RebootAll(q, op)
	return op, nil
}
