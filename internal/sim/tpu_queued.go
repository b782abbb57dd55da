package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

func (s *Cloud) serveQueued(c *call) (any, error) {
	switch c.method() {
	case "list":
		return s.listQueued(c)
	case "create":
		return s.createQueued(c)
	case "get":
		if err := checkQuery(c.query); err != nil {
			return nil, err
		}
		q, err := s.findQueued(c)
		if err != nil {
			return nil, err
		}
		return encode(c.version, q.msg)
	case "delete":
		return s.deleteQueued(c)
	case "reset":
		return s.resetQueued(c)
	case "getMaintenanceInfo", "performMaintenanceQueuedResource":
		return nil, notModelled("queuedResources." + c.verb)
	}
	return nil, unknownMethod()
}

func (s *Cloud) findQueued(c *call) (*queuedResource, error) {
	q := s.state.queued[c.name()]
	if q == nil {
		return nil, noSuch(c.name())
	}
	return q, nil
}

func (s *Cloud) listQueued(c *call) (any, error) {
	if err := checkQuery(c.query, "pageSize", "pageToken"); err != nil {
		return nil, err
	}
	all := sorted(s.state.queued, func(name string, _ *queuedResource) bool { return c.covers(name) })
	items, next, err := page(all, c.query, "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	var list []json.RawMessage
	for _, q := range items {
		b, err := encode(c.version, q.msg)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	if list != nil {
		out["queuedResources"] = list
	}
	if next != "" {
		out["nextPageToken"] = next
	}
	return out, nil
}

func (s *Cloud) createQueued(c *call) (any, error) {
	if err := checkQuery(c.query, "queuedResourceId", "requestId"); err != nil {
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
		c.id = "qr-" + strconv.FormatInt(newID(), 36)
	}
	q := &queuedResource{msg: msg, id: c.id, zone: c.zone}
	if err := s.checkQueued(q); err != nil {
		return nil, err
	}
	if s.state.queued[c.name()] != nil {
		return nil, exists(c.name())
	}
	for _, id := range q.nodeIDs() {
		if name := c.parent() + "/nodes/" + id; s.state.nodes[name] != nil {
			return nil, exists(name)
		}
	}
	if err := s.checkQuota(c.zone, q.typ, q.cost(), q.preemptible()); err != nil {
		return nil, err
	}
	msg.Name, msg.CreateTime = c.name(), s.timestamp()
	op = c.remember(key, s.newOperation(c.zone, "create", msg.Name))
	if failure := s.takeOperationFault(); failure != nil {
		s.nextStep(func() { s.finish(op, nil, failure) })
		return op, nil
	}
	if failure := flexStartFailure(q); failure != nil {
		s.nextStep(func() { s.finish(op, nil, failure) })
		return op, nil
	}
	s.state.queued[msg.Name] = q
	s.enqueue(q, op)
	return op, nil
}

func (q *queuedResource) preemptible() bool {
	return q.msg.Spot != nil || q.msg.BestEffort != nil || q.msg.ProvisioningModel == "SPOT" || q.msg.ProvisioningModel == "FLEX_START"
}

// flexStartFailure returns the only error known to be reported by the operation and not
// by the request, or nil.
func flexStartFailure(q *queuedResource) *apiError {
	if q.msg.ProvisioningModel != "FLEX_START" || slices.Contains([]string{"v5e", "v5p", "v6e"}, q.typ.Generation.Name) {
		return nil
	}
	return errorf(http.StatusBadRequest, "FLEX_START provisioning model is not supported for accelerator type %s.", q.typ.Name)
}

// checkQueued refuses requests that the real service refuses, and fills in q.
func (s *Cloud) checkQueued(q *queuedResource) error {
	if err := checkID("queued_resource_id", q.id); err != nil {
		return err
	}
	msg := q.msg
	if msg.Tpu == nil || len(msg.Tpu.NodeSpec) == 0 {
		return badField("queued_resource.tpu.node_spec", "node_spec is required")
	}
	if len(msg.Tpu.NodeSpec) > 1 {
		return badField("queued_resource.tpu.node_spec", "only one node_spec is supported")
	}
	const field = "queued_resource.tpu.node_spec[0]"
	spec := msg.Tpu.NodeSpec[0]
	if spec.Node == nil {
		return badField(field+".node", "node is required")
	}
	if spec.Parent != s.locationName(q.zone) && !strings.HasSuffix(spec.Parent, "/locations/"+q.zone) {
		return badField(field+".parent", "%q is not %q", spec.Parent, s.locationName(q.zone))
	}
	if spec.Node.SchedulingConfig != nil {
		return badField(field+".node.scheduling_config", "scheduling_config cannot be set in a queued resource: use the tier of the request")
	}
	var err error
	if q.typ, err = s.checkNode(q.zone, field+".node", spec.Node); err != nil {
		return err
	}
	if err := q.checkNames(field, spec); err != nil {
		return err
	}
	if err := checkTier(q.zone, msg, q.typ); err != nil {
		return err
	}
	return q.checkPolicy(s.clock.Now())
}

// maxNodes limits the nodes of one request. Google limits them by quota, which the
// simulator need not have.
const maxNodes = 4096

func (q *queuedResource) checkNames(field string, spec *tpualpha.NodeSpec) error {
	params := spec.MultiNodeParams
	switch {
	case params == nil && spec.NodeId == "":
		return badField(field, "one of node_id and multi_node_params is required")
	case params == nil:
		q.count = 1
		return checkID(field+".node_id", spec.NodeId)
	case spec.NodeId != "":
		return badField(field, "only one of node_id and multi_node_params can be set")
	case params.NodeCount <= 1:
		return badField(field+".multi_node_params.node_count", "node_count is %d: it must be greater than 1", params.NodeCount)
	case params.NodeCount > maxNodes:
		return badField(field+".multi_node_params.node_count", "node_count is %d: the simulator has %d nodes at most", params.NodeCount, maxNodes)
	case !q.typ.Generation.MultiSlice:
		return badField(field+".multi_node_params", "multi-node requests are not supported for accelerator type %s", q.typ.Name)
	case !slices.Contains([]string{"", "WORKLOAD_TYPE_UNSPECIFIED", "THROUGHPUT_OPTIMIZED", "AVAILABILITY_OPTIMIZED"}, params.WorkloadType):
		return errorf(http.StatusBadRequest, "Invalid value at '%s.multi_node_params.workload_type' (type.googleapis.com/google.cloud.tpu.v2alpha1.MultiNodeParams.WorkloadType), %q", field, params.WorkloadType)
	}
	if params.NodeIdPrefix == "" {
		params.NodeIdPrefix = q.id
	}
	q.count, q.prefix = int(params.NodeCount), params.NodeIdPrefix
	return checkID(field+".multi_node_params.node_id_prefix", fmt.Sprintf("%s-%d", q.prefix, q.count-1))
}

var reservationPattern = regexp.MustCompile(`^(projects|folders|organizations)/[^/]+/locations/([^/]+)/reservations/[^/]+$`)

// maxFlexStart is the longest time for which a flex-start request may keep its nodes.
const maxFlexStart = 7 * 24 * time.Hour

func checkTier(zone string, msg *tpualpha.QueuedResource, t tpu.Type) error {
	tiers := 0
	for _, set := range []bool{msg.Spot != nil, msg.Guaranteed != nil, msg.BestEffort != nil} {
		if set {
			tiers++
		}
	}
	if tiers > 1 {
		return errorf(http.StatusBadRequest, "Invalid value at 'queued_resource' (oneof), oneof field 'tier' is already set. Only one of spot, guaranteed and best_effort can be set.")
	}
	model := msg.ProvisioningModel
	if !slices.Contains([]string{"", "PROVISIONING_MODEL_UNSPECIFIED", "STANDARD", "SPOT", "RESERVATION_BOUND", "FLEX_START"}, model) {
		return errorf(http.StatusBadRequest, "Invalid value at 'queued_resource.provisioning_model' (type.googleapis.com/google.cloud.tpu.v2alpha1.QueuedResource.ProvisioningModel), %q", model)
	}
	// gcloud alpha sends STANDARD with every tier, so it has no meaning.
	agrees := model == "" || model == "STANDARD" || model == "PROVISIONING_MODEL_UNSPECIFIED" || model == "SPOT" && msg.Spot != nil ||
		model == "RESERVATION_BOUND" && msg.Guaranteed != nil
	if tiers > 0 && !agrees {
		return badField("queued_resource.provisioning_model", "%s cannot be combined with a tier", model)
	}
	if msg.Guaranteed != nil && msg.Guaranteed.MinDuration != "" {
		if _, err := parseDuration("queued_resource.guaranteed.min_duration", msg.Guaranteed.MinDuration); err != nil {
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
			return badField("queued_resource.reservation_name", "reservation_name is required for RESERVATION_BOUND")
		}
		return nil
	}
	m := reservationPattern.FindStringSubmatch(msg.ReservationName)
	if m == nil || m[2] != zone {
		return badField("queued_resource.reservation_name", "%q is not the name of a reservation in %s", msg.ReservationName, zone)
	}
	if msg.Spot != nil || msg.BestEffort != nil || model == "SPOT" || model == "FLEX_START" {
		return badField("queued_resource.reservation_name", "a reservation cannot be used by a spot, best-effort or flex-start request")
	}
	return nil
}

func checkRunDuration(msg *tpualpha.QueuedResource) error {
	const field = "queued_resource.run_duration"
	run := msg.RunDuration
	if run == nil {
		if msg.ProvisioningModel == "FLEX_START" {
			return badField(field, "run_duration is required for FLEX_START")
		}
		return nil
	}
	if run.TerminationTime != "" {
		return notModelled("runDuration.terminationTime")
	}
	d, err := parseDuration(field+".max_run_duration", run.MaxRunDuration)
	if err != nil {
		return err
	}
	if d <= 0 || msg.ProvisioningModel == "FLEX_START" && d > maxFlexStart {
		return badField(field+".max_run_duration", "%s is not between 1s and %ds", run.MaxRunDuration, int(maxFlexStart.Seconds()))
	}
	return nil
}

// parseDuration parses a duration in JSON: "3600s", "1.5s".
func parseDuration(field, text string) (time.Duration, error) {
	number, ok := strings.CutSuffix(text, "s")
	seconds, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || strings.ContainsAny(number, "eExXnN") {
		return 0, errorf(http.StatusBadRequest, "Invalid value at '%s' (type.googleapis.com/google.protobuf.Duration), Field '%s', Illegal duration format; duration must end with 's'", field, text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

func parseTime(field, text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return t, errorf(http.StatusBadRequest, "Invalid value at '%s' (type.googleapis.com/google.protobuf.Timestamp), Field '%s', Invalid time format", field, text)
	}
	return t, nil
}

// checkPolicy parses the queueing policy, of which at most one field may be set.
func (q *queuedResource) checkPolicy(now time.Time) (err error) {
	p := q.msg.QueueingPolicy
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
		return errorf(http.StatusBadRequest, "Invalid value at '%s' (oneof), oneof field 'start_timing_constraints' is already set.", field)
	}
	var d time.Duration
	switch {
	case p.ValidUntilDuration != "":
		d, err = parseDuration(field+".valid_until_duration", p.ValidUntilDuration)
		q.deadline = now.Add(d)
	case p.ValidUntilTime != "":
		q.deadline, err = parseTime(field+".valid_until_time", p.ValidUntilTime)
	case p.ValidAfterDuration != "":
		d, err = parseDuration(field+".valid_after_duration", p.ValidAfterDuration)
		q.begins = now.Add(d)
	case p.ValidAfterTime != "":
		q.begins, err = parseTime(field+".valid_after_time", p.ValidAfterTime)
	case p.ValidInterval != nil:
		q.begins, err = parseTime(field+".valid_interval.start_time", p.ValidInterval.StartTime)
		if err == nil {
			q.deadline, err = parseTime(field+".valid_interval.end_time", p.ValidInterval.EndTime)
		}
	}
	if err == nil && !q.deadline.IsZero() && (q.deadline.Before(now) || q.deadline.Before(q.begins)) {
		return badField(field, "the request must be valid until a time in the future")
	}
	return err
}

func (s *Cloud) deleteQueued(c *call) (any, error) {
	if err := checkQuery(c.query, "force", "requestId"); err != nil {
		return nil, err
	}
	force, err := queryBool(c.query, "force")
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
	state := q.state()
	free := slices.Contains([]string{"ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED", "SUSPENDED"}, state) ||
		state != "CREATING" && state != "PROVISIONING" && len(s.nodesOf(q)) == 0
	if state == "DELETING" || !force && !free {
		return nil, precondition("The queued resource %s cannot be deleted in state %s: its nodes must be deleted first, or force must be set.", q.msg.Name, state)
	}
	op = c.remember(key, s.newOperation(c.zone, "delete", q.msg.Name))
	if (state == "FAILED" || state == "SUSPENDED") && s.takeStuckDelete(q.id) {
		s.nextStep(func() { s.finish(op, nil, nil) })
		return op, nil
	}
	s.deleteNow(q, op)
	return op, nil
}

func (s *Cloud) resetQueued(c *call) (any, error) {
	if err := checkQuery(c.query); err != nil {
		return nil, err
	}
	if err := decodeStrict(c.body, new(tpualpha.ResetQueuedResourceRequest), "reset_queued_resource_request"); err != nil {
		return nil, err
	}
	q, err := s.findQueued(c)
	if err != nil {
		return nil, err
	}
	if q.state() != "ACTIVE" {
		return nil, precondition("The queued resource %s cannot be reset in state %s.", q.msg.Name, q.state())
	}
	op := s.newOperation(c.zone, "reset", q.msg.Name)
	s.rebootAll(q, op)
	return op, nil
}
