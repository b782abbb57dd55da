package tpuapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"
)

// A call is one request to the TPU API with its parts:
// /VERSION/projects/P/locations/ZONE/COLLECTION/ID:VERB.
type call struct {
	s          *cloud.Cloud
	r          *http.Request
	query      url.Values
	body       []byte
	version    string // v2 or v2alpha1
	zone       string // may be "-" in lists; "" in the list of locations
	collection string
	id         string
	verb       string // after the colon
}

func (c *call) parent() string { return c.s.LocationName(c.zone) }
func (c *call) name() string   { return c.parent() + "/" + c.collection + "/" + c.id }

// zonesListed returns the zones that a list covers.
func (c *call) zonesListed() []string {
	if c.zone == "-" {
		return c.s.Catalog().Zones()
	}
	return []string{c.zone}
}

// ServeJSON answers with the result of dispatch, which it calls with s.Mu held.
func (s API) ServeJSON(r *http.Request, body []byte, dispatch func(*http.Request, []byte) (any, error)) wire.Answer {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	v, err := dispatch(r, body)
	if err != nil {
		return wire.Answer{Err: wire.AsAPIError(err)}
	}
	b, ready := v.(json.RawMessage)
	if !ready {
		b, err = json.Marshal(v)
	}
	if err == nil && r.URL.Query().Get("prettyPrint") != "false" {
		pretty := &bytes.Buffer{}
		err = json.Indent(pretty, b, "", "  ")
		b = pretty.Bytes()
	}
	if err != nil {
		return wire.Answer{Err: wire.AsAPIError(err)}
	}
	return wire.Answer{JSON: b}
}

// DispatchTPU returns the function that answers requests to the TPU API from the caller
// who. The caller of that function holds the lock.
func (s API) DispatchTPU(who cloud.Caller) func(*http.Request, []byte) (any, error) {
	return func(r *http.Request, body []byte) (any, error) {
		c, err := s.parseCall(r, body)
		if err != nil {
			return nil, err
		}
		if err := checkTPU(who, s.Cloud, c); err != nil {
			return nil, err
		}
		v, err := c.serve()
		if err != nil {
			return nil, err
		}
		if op, ok := v.(*cloud.Operation); ok {
			return s.renderOperation(c.version, op)
		}
		return v, nil
	}
}

func (c *call) serve() (any, error) {
	switch c.collection {
	case "":
		return New(c.s).serveLocations(c)
	case "nodes":
		return New(c.s).serveNodes(c)
	case "queuedResources":
		return New(c.s).serveQueued(c)
	case "operations":
		return New(c.s).serveOperations(c)
	case "acceleratorTypes":
		return New(c.s).serveAcceleratorTypes(c)
	case "runtimeVersions":
		return New(c.s).serveRuntimeVersions(c)
	case "reservations":
		return nil, wire.NotModelled("reservations")
	}
	return nil, wire.UnknownMethod()
}

func (s API) parseCall(r *http.Request, body []byte) (*call, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid query: %v", err)
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if len(parts) < 4 || len(parts) > 7 || parts[1] != "projects" || parts[3] != "locations" ||
		slices.Contains(parts, "") || parts[0] != "v2" && parts[0] != "v2alpha1" {
		return nil, wire.UnknownMethod()
	}
	c := &call{s: s.Cloud, r: r, query: query, body: body, version: parts[0]}
	last := len(parts) - 1
	parts[last], c.verb, _ = strings.Cut(parts[last], ":")
	rest := append(parts[4:], "", "", "")
	c.zone, c.collection, c.id = rest[0], rest[1], rest[2]
	if parts[2] != s.Config.Project {
		return nil, wire.Errorf(http.StatusForbidden, "Permission denied on resource project %s.", parts[2]).WithDetails(map[string]any{
			"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "CONSUMER_INVALID", "domain": "googleapis.com",
			"metadata": map[string]string{"consumer": "projects/" + parts[2], "service": "tpu.googleapis.com"},
		})
	}
	wildcard := c.zone == "-" && c.collection != "" && c.id == "" && r.Method == http.MethodGet
	if c.zone != "" && !wildcard && !slices.Contains(s.Catalog().Zones(), c.zone) {
		return nil, wire.Errorf(http.StatusBadRequest, "The requested zone %q is not supported.", c.zone)
	}
	return c, nil
}

// method returns the method of the request: list, create, get, delete, patch or the verb
// after the colon, or "" if there is no such method.
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

// alpha returns the given parameters for v2alpha1, and none for v2, which does not have
// them.
func (c *call) alpha(names ...string) []string {
	if c.version == "v2alpha1" {
		return names
	}
	return nil
}

// replay returns the operation that an earlier request with the same id created.
func (c *call) replay() (key string, op *cloud.Operation, err error) {
	id := c.query.Get("requestId")
	if id == "" {
		return "", nil, nil
	}
	if !cloud.UUIDPattern.MatchString(id) || id == "00000000-0000-0000-0000-000000000000" {
		return "", nil, wire.Errorf(http.StatusBadRequest, "Invalid value at 'request_id': %q is not a valid UUID.", id)
	}
	key = c.r.Method + " " + c.r.URL.Path + " " + id
	return key, c.s.State.Replay[key], nil
}

func (c *call) remember(key string, op *cloud.Operation) *cloud.Operation {
	if key != "" {
		c.s.State.Replay[key] = op
	}
	return op
}

func (s API) serveOperations(c *call) (any, error) {
	method := c.method()
	if method == "list" {
		return s.listOperations(c)
	}
	if err := wire.CheckQuery(c.query); err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"get", "cancel", "delete"}, method) {
		return nil, wire.UnknownMethod()
	}
	op := s.State.Ops[c.name()]
	if op == nil {
		return nil, wire.NoSuch(c.name())
	}
	switch method {
	case "cancel":
		// As documented, cancelling need not succeed: work that has begun continues.
		op.Cancelled = true
		return struct{}{}, nil
	case "delete":
		delete(s.State.Ops, op.Name)
		return struct{}{}, nil
	}
	return op, nil
}

func (s API) listOperations(c *call) (any, error) {
	if err := wire.CheckQuery(c.query, "pageSize", "pageToken", "filter", "returnPartialSuccess"); err != nil {
		return nil, err
	}
	if c.query.Get("filter") != "" {
		return nil, wire.NotModelled("The filter of operations.list")
	}
	all := cloud.Sorted(s.State.Ops, func(name string, _ *cloud.Operation) bool { return c.covers(name) })
	ops, next, err := wire.Page(all, c.query, "pageSize", 1000)
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

// covers reports whether a list of c's zone has the resource.
func (c *call) covers(name string) bool {
	return c.zone == "-" || strings.HasPrefix(name, c.parent()+"/")
}

func (s API) renderOperation(version string, op *cloud.Operation) (map[string]any, error) {
	metadata := map[string]any{
		"@type":      "type.googleapis.com/google.cloud.common.OperationMetadata",
		"createTime": cloud.Stamp(op.Created), "target": op.Target, "verb": op.Verb,
		"cancelRequested": op.Cancelled, "apiVersion": version,
	}
	m := map[string]any{"name": op.Name, "metadata": metadata}
	if !op.Done {
		return m, nil
	}
	m["done"] = true
	metadata["endTime"] = cloud.Stamp(op.Ended)
	if op.Err != nil {
		m["error"] = op.Err.RPCStatus()
		return m, nil
	}
	response := map[string]any{"@type": "type.googleapis.com/google.protobuf.Empty"}
	if op.Result != nil {
		b, err := wire.Encode(version, op.Result)
		if err == nil {
			response = map[string]any{}
			err = json.Unmarshal(b, &response)
		}
		if err != nil {
			return nil, err
		}
		kind := "Node"
		if _, ok := op.Result.(*tpualpha.QueuedResource); ok {
			kind = "QueuedResource"
		}
		response["@type"] = fmt.Sprintf("type.googleapis.com/google.cloud.tpu.%s.%s", version, kind)
	}
	m["response"] = response
	return m, nil
}
