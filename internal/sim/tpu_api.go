package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	tpualpha "google.golang.org/api/tpu/v2alpha1"
)

// A call is one request to the TPU API, taken apart:
// /VERSION/projects/P/locations/ZONE/COLLECTION/ID:VERB.
type call struct {
	s          *Cloud
	r          *http.Request
	query      url.Values
	body       []byte
	version    string // v2 or v2alpha1
	zone       string // may be "-" in lists; empty: the list of locations
	collection string
	id         string
	verb       string // after the colon
}

func (c *call) parent() string { return c.s.locationName(c.zone) }
func (c *call) name() string   { return c.parent() + "/" + c.collection + "/" + c.id }

// zonesListed returns the zones that a list covers.
func (c *call) zonesListed() []string {
	if c.zone == "-" {
		return c.s.zones()
	}
	return []string{c.zone}
}

// serveJSON answers with the result of dispatch, which it calls with s.mu held.
func (s *Cloud) serveJSON(r *http.Request, body []byte, dispatch func(*http.Request, []byte) (any, error)) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := dispatch(r, body)
	if err != nil {
		return answer{err: asAPIError(err)}
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return answer{err: asAPIError(err)}
	}
	return answer{json: b}
}

func (s *Cloud) dispatchTPU(who caller) func(*http.Request, []byte) (any, error) {
	return func(r *http.Request, body []byte) (any, error) {
		c, err := s.parseCall(r, body)
		if err != nil {
			return nil, err
		}
		if err := who.checkTPU(s, c); err != nil {
			return nil, err
		}
		v, err := c.serve()
		if err != nil {
			return nil, err
		}
		if op, ok := v.(*operation); ok {
			return s.renderOperation(c.version, op)
		}
		return v, nil
	}
}

func (c *call) serve() (any, error) {
	switch c.collection {
	case "":
		return c.s.serveLocations(c)
	case "nodes":
		return c.s.serveNodes(c)
	case "queuedResources":
		return c.s.serveQueued(c)
	case "operations":
		return c.s.serveOperations(c)
	case "acceleratorTypes":
		return c.s.serveAcceleratorTypes(c)
	case "runtimeVersions":
		return c.s.serveRuntimeVersions(c)
	case "reservations":
		return nil, notModelled("reservations")
	}
	return nil, unknownMethod()
}

func (s *Cloud) parseCall(r *http.Request, body []byte) (*call, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errorf(http.StatusBadRequest, "Invalid query: %v", err)
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if len(parts) < 4 || len(parts) > 7 || parts[1] != "projects" || parts[3] != "locations" ||
		slices.Contains(parts, "") || parts[0] != "v2" && parts[0] != "v2alpha1" {
		return nil, unknownMethod()
	}
	c := &call{s: s, r: r, query: query, body: body, version: parts[0]}
	last := len(parts) - 1
	parts[last], c.verb, _ = strings.Cut(parts[last], ":")
	rest := append(parts[4:], "", "", "")
	c.zone, c.collection, c.id = rest[0], rest[1], rest[2]
	if parts[2] != s.cfg.Project {
		return nil, errorf(http.StatusForbidden, "Permission denied on resource project %s.", parts[2]).withDetails(map[string]any{
			"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "CONSUMER_INVALID", "domain": "googleapis.com",
			"metadata": map[string]string{"consumer": "projects/" + parts[2], "service": "tpu.googleapis.com"},
		})
	}
	wildcard := c.zone == "-" && c.collection != "" && c.id == "" && r.Method == http.MethodGet
	if c.zone != "" && !wildcard && !slices.Contains(s.zones(), c.zone) {
		return nil, errorf(http.StatusBadRequest, "The requested zone %q is not supported.", c.zone)
	}
	return c, nil
}

// method returns the method of the request: list, create, get, delete, patch or the verb
// after the colon; "" if there is no such method.
func (c *call) method() string {
	switch m := c.r.Method; {
	case c.verb != "" && c.id != "" && (m == http.MethodPost) == (c.verb != "getMaintenanceInfo"):
		return c.verb
	case c.verb != "":
	case m == http.MethodGet && c.id == "":
		return "list"
	case m == http.MethodPost && c.id == "":
		return "create"
	case m == http.MethodGet:
		return "get"
	case m == http.MethodDelete && c.id != "":
		return "delete"
	case m == http.MethodPatch && c.id != "":
		return "patch"
	}
	return ""
}

// alpha returns the given parameters if the version is v2alpha1, which alone has them.
func (c *call) alpha(names ...string) []string {
	if c.version == "v2alpha1" {
		return names
	}
	return nil
}

// replay returns the operation that an earlier request with the same id created.
func (c *call) replay() (key string, op *operation, err error) {
	id := c.query.Get("requestId")
	if id == "" {
		return "", nil, nil
	}
	if !uuidPattern.MatchString(id) || id == "00000000-0000-0000-0000-000000000000" {
		return "", nil, errorf(http.StatusBadRequest, "Invalid value at 'request_id': %q is not a valid UUID.", id)
	}
	key = c.r.Method + " " + c.r.URL.Path + " " + id
	return key, c.s.state.replay[key], nil
}

func (c *call) remember(key string, op *operation) *operation {
	if key != "" {
		c.s.state.replay[key] = op
	}
	return op
}

var (
	uuidPattern = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	idPattern   = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey    = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValue  = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
)

func checkID(field, id string) error {
	if idPattern.MatchString(id) {
		return nil
	}
	return badField(field, "%q is not a valid name: it must match %s", id, idPattern)
}

func (s *Cloud) serveOperations(c *call) (any, error) {
	method := c.method()
	if method == "list" {
		return s.listOperations(c)
	}
	if err := checkQuery(c.query); err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"get", "cancel", "delete"}, method) {
		return nil, unknownMethod()
	}
	op := s.state.ops[c.name()]
	if op == nil {
		return nil, noSuch(c.name())
	}
	switch method {
	case "cancel":
		// Cancelling is best effort, as documented: work that has begun continues.
		op.cancelled = true
		return struct{}{}, nil
	case "delete":
		delete(s.state.ops, op.name)
		return struct{}{}, nil
	}
	return op, nil
}

func (s *Cloud) listOperations(c *call) (any, error) {
	if err := checkQuery(c.query, "pageSize", "pageToken", "filter", "returnPartialSuccess"); err != nil {
		return nil, err
	}
	if c.query.Get("filter") != "" {
		return nil, notModelled("The filter of operations.list")
	}
	all := sorted(s.state.ops, func(name string, _ *operation) bool { return c.covers(name) })
	ops, next, err := page(all, c.query, "pageSize", 1000)
	if err != nil {
		return nil, err
	}
	list := []any{}
	for _, op := range ops {
		m, err := s.renderOperation(c.version, op)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	out := map[string]any{"operations": list}
	if next != "" {
		out["nextPageToken"] = next
	}
	return out, nil
}

// covers reports whether a list of c's zone includes the resource.
func (c *call) covers(name string) bool {
	return c.zone == "-" || strings.HasPrefix(name, c.parent()+"/")
}

func (s *Cloud) renderOperation(version string, op *operation) (map[string]any, error) {
	metadata := map[string]any{
		"@type":      "type.googleapis.com/google.cloud.common.OperationMetadata",
		"createTime": stamp(op.created), "target": op.target, "verb": op.verb,
		"cancelRequested": op.cancelled, "apiVersion": version,
	}
	m := map[string]any{"name": op.name, "metadata": metadata}
	if !op.done {
		return m, nil
	}
	m["done"] = true
	metadata["endTime"] = stamp(op.ended)
	if op.err != nil {
		m["error"] = op.err.rpcStatus()
		return m, nil
	}
	response := map[string]any{"@type": "type.googleapis.com/google.protobuf.Empty"}
	if op.result != nil {
		b, err := encode(version, op.result)
		if err == nil {
			response = map[string]any{}
			err = json.Unmarshal(b, &response)
		}
		if err != nil {
			return nil, err
		}
		kind := "Node"
		if _, ok := op.result.(*tpualpha.QueuedResource); ok {
			kind = "QueuedResource"
		}
		response["@type"] = fmt.Sprintf("type.googleapis.com/google.cloud.tpu.%s.%s", version, kind)
	}
	m["response"] = response
	return m, nil
}
