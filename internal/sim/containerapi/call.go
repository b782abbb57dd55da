package containerapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	container "google.golang.org/api/container/v1beta1"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/wire"
)

// A call is one request with its parts:
// /VERSION/projects/P/locations/L/COLLECTION/ID/nodePools/POOL.
type call struct {
	API
	r        *http.Request
	query    url.Values
	body     []byte
	version  string // v1 or v1beta1
	location string // a region or a zone; "-" in lists
	kind     string // clusters, nodePools, operations or serverConfig
	cluster  string
	pool     string
	id       string // id of an operation
}

func (c *call) parent() string { return c.LocationName(c.location) }

// name returns the resource name of the cluster of c.
func (c *call) name() string { return c.parent() + "/clusters/" + c.cluster }

func notFound(name string) *wire.Error {
	return wire.Errorf(http.StatusNotFound, "Not found: %s.", name)
}

func exists(name string) *wire.Error {
	return wire.Errorf(http.StatusConflict, "Already exists: %s.", name)
}

func bad(format string, args ...any) *wire.Error {
	return wire.Errorf(http.StatusBadRequest, format, args...)
}

// Dispatch returns the function that answers requests from the caller who. The caller of
// that function holds the lock.
func (s API) Dispatch(who cloud.Caller) func(*http.Request, []byte) (any, error) {
	return func(r *http.Request, body []byte) (any, error) {
		c, err := s.parse(r, body)
		if err != nil {
			return nil, err
		}
		if err := c.permit(who); err != nil {
			return nil, err
		}
		v, err := c.serve()
		if err != nil {
			return nil, err
		}
		return c.encode(v)
	}
}

func (s API) parse(r *http.Request, body []byte) (*call, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, bad("Invalid query: %v", err)
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if slices.Contains(parts, "") || strings.Contains(r.URL.Path, ":") {
		return nil, wire.NotModelled(r.Method + " " + r.URL.Path)
	}
	c := &call{API: s, r: r, query: query, body: body, version: parts[0], location: parts[4], kind: parts[5]}
	if p := parts[2]; p != s.Config.Project && p != cloud.ProjectNumber {
		return nil, wire.Errorf(http.StatusForbidden, "Permission denied on resource project %s.", p).WithDetails(map[string]any{
			"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "CONSUMER_INVALID", "domain": "googleapis.com",
			"metadata": map[string]string{"consumer": "projects/" + p, "service": "container.googleapis.com"},
		})
	}
	if !c.split(parts[6:]) {
		return nil, wire.NotModelled(r.Method + " " + r.URL.Path)
	}
	everywhere := c.location == "-" && r.Method == http.MethodGet && c.cluster == "" && c.id == "" && c.kind != "serverConfig"
	if !everywhere && !slices.Contains(s.Catalog().Regions(), c.location) && !slices.Contains(s.Catalog().Zones(), c.location) {
		return nil, bad("Location %q does not exist.", c.location)
	}
	return c, nil
}

// split reads the part of the path after the collection. It returns false if that names no
// resource of the collection.
func (c *call) split(rest []string) bool {
	rest = append(rest, "", "", "", "")
	extra := 0
	switch {
	case c.kind == "clusters" && rest[1] == "nodePools":
		c.kind, c.cluster, c.pool, extra = "nodePools", rest[0], rest[2], 3
	case c.kind == "clusters":
		c.cluster, extra = rest[0], 1
	case c.kind == "operations":
		c.id, extra = rest[0], 1
	}
	return rest[extra] == ""
}

func (c *call) permit(who cloud.Caller) error {
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodDelete: "delete"}[c.r.Method]
	resource := "clusters"
	switch {
	case c.kind == "operations":
		resource = "operations"
	case c.kind == "nodePools" && verb != "get": // pools have no permissions of their own
		verb = "update"
	case verb == "get" && c.cluster == "":
		verb = "list"
	}
	permission := "container." + resource + "." + verb
	if c.kind == "serverConfig" || who.May(c.Cloud, permission) {
		return nil
	}
	return wire.Errorf(http.StatusForbidden, "Required %q permission(s) for %q.", permission, c.name()).WithDetails(map[string]any{
		"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "IAM_PERMISSION_DENIED", "domain": "container.googleapis.com",
		"metadata": map[string]string{"permission": permission, "resource": c.name()},
	})
}

// services has the functions that answer calls. A key has the method, the collection, and
// whether the call names one resource.
var services = map[string]func(*call) (any, error){
	"GET serverConfig":     (*call).serverConfig,
	"GET operations":       (*call).listOperations,
	"GET operations one":   (*call).operation,
	"GET clusters":         (*call).listClusters,
	"GET clusters one":     (*call).showCluster,
	"GET nodePools":        (*call).pools,
	"GET nodePools one":    (*call).pools,
	"POST clusters":        (*call).createCluster,
	"POST nodePools":       (*call).createPool,
	"DELETE clusters one":  (*call).deleteCluster,
	"DELETE nodePools one": (*call).deletePool,
}

func (c *call) serve() (any, error) {
	key := c.r.Method + " " + c.kind
	if c.kind == "clusters" && c.cluster != "" || c.pool != "" || c.id != "" {
		key += " one"
	}
	serve := services[key]
	if serve == nil {
		return nil, wire.NotModelled(c.r.Method + " of " + c.kind)
	}
	if err := wire.CheckQuery(c.query); err != nil {
		return nil, err
	}
	return serve(c)
}

// onlyBeta are fields that v1 does not have.
var onlyBeta = []string{"hostMaintenancePolicy"}

// decode reads the body into a message. It refuses unknown fields.
func (c *call) decode(into any) error {
	if c.version == "v1" {
		for _, field := range onlyBeta {
			if strings.Contains(string(c.body), `"`+field+`"`) {
				return bad("Invalid JSON payload received. Unknown name %q: Cannot find field.", field)
			}
		}
	}
	return wire.DecodeStrict(c.body, into, "request")
}

// encode encodes an answer in the version of the call.
func (c *call) encode(v any) (json.RawMessage, error) {
	b, err := json.Marshal(v)
	if err != nil || c.version == "v1beta1" {
		return b, err
	}
	var raw any
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, err
	}
	drop(raw)
	return json.Marshal(raw)
}

func drop(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			drop(item)
		}
	case map[string]any:
		for _, field := range onlyBeta {
			delete(v, field)
		}
		for _, item := range v {
			drop(item)
		}
	}
}

// versions returns the versions to choose from, the newest first, which is that of the
// channel RAPID.
func versions() []string {
	return []string{"1.34.1-gke.100", "1.33.5-gke.1080000", "1.32.9-gke.1010000"}
}

func (c *call) serverConfig() (any, error) {
	all := versions()
	channel := func(name, version string) *container.ReleaseChannelConfig {
		return &container.ReleaseChannelConfig{Channel: name, DefaultVersion: version, ValidVersions: all}
	}
	return &container.ServerConfig{
		DefaultClusterVersion: all[1], DefaultImageType: "COS_CONTAINERD", ValidImageTypes: []string{"COS_CONTAINERD", "UBUNTU_CONTAINERD"},
		ValidMasterVersions: all, ValidNodeVersions: all,
		Channels: []*container.ReleaseChannelConfig{channel("RAPID", all[0]), channel("REGULAR", all[1]), channel("STABLE", all[2])},
	}, nil
}

func (c *call) operation() (any, error) {
	name := c.parent() + "/operations/" + c.id
	op := c.State.KubeOps[name]
	if op == nil {
		return nil, notFound(name)
	}
	return op, nil
}

func (c *call) listOperations() (any, error) {
	list := &container.ListOperationsResponse{}
	list.Operations = cloud.Sorted(c.State.KubeOps, func(name string, _ *container.Operation) bool { return c.covers(name) })
	return list, nil
}

// covers reports whether a list of c's location has the resource.
func (c *call) covers(name string) bool {
	return c.location == "-" || strings.HasPrefix(name, c.parent()+"/")
}

// begin adds a running operation. target is a resource name.
func (c *call) begin(kind, target string) *container.Operation {
	op := &container.Operation{
		Name:          fmt.Sprintf("operation-%d-%08x", c.Clock.Now().UnixMilli(), uint32(cloud.NewID())),
		OperationType: kind, Status: "RUNNING", StartTime: c.Timestamp(), Location: c.location, Zone: c.location,
		TargetLink: c.link(target),
	}
	name := c.parent() + "/operations/" + op.Name
	op.SelfLink = c.link(name)
	c.State.KubeOps[name] = op
	return copyOf(op)
}

// end ends an operation. failure is the text of its error, or "".
func (c *call) end(op *container.Operation, failure string) {
	op = c.State.KubeOps[c.parent()+"/operations/"+op.Name]
	op.Status, op.EndTime = "DONE", c.Timestamp()
	if failure != "" {
		op.StatusMessage, op.Error = failure, &container.Status{Code: int64(wire.RPCCode("RESOURCE_EXHAUSTED")), Message: failure}
	}
}

func (c *call) link(name string) string { return c.BaseURL + "/" + c.version + "/" + name }

// copyOf returns a copy of a message, which later changes of the message do not affect.
func copyOf[T any](m *T) *T {
	same := *m
	return &same
}
