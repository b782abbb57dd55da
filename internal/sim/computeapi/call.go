package computeapi

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

// A computeCall is one request to the Compute API with its parts:
// /compute/v1/projects/P/SCOPE/COLLECTION/NAME/VERB. SCOPE is global, regions/R, zones/Z,
// aggregated, or "".
type computeCall struct {
	s          *cloud.Cloud
	r          *http.Request
	query      url.Values
	body       []byte
	project    string
	scope      string
	collection string
	id, verb   string
	below      string // name of a resource below that of the id, such as a block of a reservation
}

// name returns the resource of the call: projects/P/SCOPE/COLLECTION/ID.
func (c *computeCall) name() string {
	return c.s.Networks().ComputePath(c.scope, c.collection, c.id)
}

func noSuchCompute(name string) *wire.Error {
	return wire.Errorf(http.StatusNotFound, "The resource '%s' was not found", name)
}

func existsCompute(name string) *wire.Error {
	return wire.Errorf(http.StatusConflict, "The resource '%s' already exists", name)
}

func badValue(field, value, why string) *wire.Error {
	return wire.Errorf(http.StatusBadRequest, "Invalid value for field '%s': '%s'. %s", field, value, why)
}

func inUse(kind, name, by string) *wire.Error {
	return wire.Errorf(http.StatusBadRequest, "The %s resource '%s' is already being used by '%s'", kind, name, by).
		WithReason("resourceInUseByAnotherResource")
}

func notReady(name string) *wire.Error {
	return wire.Errorf(http.StatusBadRequest, "The resource '%s' is not ready", name).WithReason("resourceNotReady")
}

// ServeCompute answers a request. It takes the lock.
func (s API) ServeCompute(r *http.Request, body []byte, who cloud.Caller) wire.Answer {
	c, err := s.parseComputeCall(r, body)
	if err == nil && c.collection == "operations" && c.verb == "wait" {
		err = s.waitComputeOp(c) // this waits, so it must not hold the lock
		c.verb, c.r = "", r.Clone(r.Context())
		c.r.Method = http.MethodGet
	}
	if err != nil {
		return wire.Answer{Err: wire.AsAPIError(err)}
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err := checkCompute(who, s.Cloud, c); err != nil {
		return wire.Answer{Err: wire.AsAPIError(err)}
	}
	m, err := c.serve()
	if err != nil {
		return wire.Answer{Err: wire.AsAPIError(err)}
	}
	if list, ok := m.(*computeList); ok {
		b, err := list.marshal()
		if err != nil {
			return wire.Answer{Err: wire.AsAPIError(err)}
		}
		return wire.Answer{JSON: b}
	}
	b, err := protojson.MarshalOptions{Multiline: true}.Marshal(m.(proto.Message))
	if err != nil {
		return wire.Answer{Err: wire.AsAPIError(err)}
	}
	return wire.Answer{JSON: b}
}

func (s API) parseComputeCall(r *http.Request, body []byte) (*computeCall, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "Invalid query: %v", err)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/compute/v1/projects/")
	parts := strings.Split(rest, "/")
	if !ok || slices.Contains(parts, "") {
		return nil, wire.UnknownMethod()
	}
	images := parts[0] == groups.ImageProject && len(parts) > 2 && parts[1] == "global" && parts[2] == "images"
	if parts[0] != s.Config.Project && parts[0] != cloud.ProjectNumber && !images {
		return nil, noSuchCompute("projects/" + parts[0])
	}
	c := &computeCall{s: s.Cloud, r: r, query: query, body: body, project: parts[0]}
	parts = parts[1:]
	switch {
	case len(parts) > 0 && (parts[0] == "global" || parts[0] == "aggregated"):
		c.scope, parts = parts[0], parts[1:]
	case len(parts) > 2 && (parts[0] == "regions" || parts[0] == "zones"):
		c.scope, parts = parts[0]+"/"+parts[1], parts[2:]
	}
	if len(parts) == 4 && parts[0] == "reservations" && parts[2] == "reservationBlocks" {
		c.below, parts = parts[3], parts[:3]
	}
	if len(parts) > 3 {
		return nil, wire.UnknownMethod()
	}
	parts = append(parts, "", "", "")
	c.collection, c.id, c.verb = parts[0], parts[1], parts[2]
	return c, nil
}

// services has the functions that answer calls, by kind of scope and collection.
var services = map[string]func(API, *computeCall) (any, error){
	" ":                                API.serveProject,
	" setCommonInstanceMetadata":       API.setProjectMetadata,
	" regions":                         API.servePlaces,
	" zones":                           API.servePlaces,
	"global networks":                  onNetworks(networks.serveNetworks),
	"global firewalls":                 onNetworks(networks.serveFirewalls),
	"global operations":                API.serveComputeOps,
	"regions operations":               API.serveComputeOps,
	"zones operations":                 API.serveComputeOps,
	"regions subnetworks":              onNetworks(networks.serveSubnetworks),
	"aggregated subnetworks":           onNetworks(networks.serveSubnetworks),
	"regions resourcePolicies":         onMachines(machines.serveResourcePolicies),
	"aggregated resourcePolicies":      onMachines(machines.serveResourcePolicies),
	"global instanceTemplates":         onMachines(machines.serveInstanceTemplates),
	"regions instanceTemplates":        onMachines(machines.serveInstanceTemplates),
	"aggregated instanceTemplates":     onMachines(machines.serveInstanceTemplates),
	"global images":                    onMachines(machines.serveImages),
	"zones instanceGroupManagers":      onMachines(machines.serveGroups),
	"aggregated instanceGroupManagers": onMachines(machines.serveGroups),
	"zones instances":                  onMachines(machines.serveInstances),
	"zones instanceGroups":             onMachines(machines.serveInstanceGroups),
	"aggregated instanceGroups":        onMachines(machines.serveInstanceGroups),
	"aggregated instances":             onMachines(machines.serveInstances),
	"zones autoscalers":                onMachines(machines.serveAutoscalers),
	"aggregated autoscalers":           onMachines(machines.serveAutoscalers),
	"zones machineTypes":               onMachines(machines.serveMachineTypes),
	"zones reservations":               onMachines(machines.serveReservations),
	"aggregated reservations":          onMachines(machines.serveReservations),
	"aggregated machineTypes":          onMachines(machines.serveMachineTypes),
}

func onNetworks(f func(networks, *computeCall) (any, error)) func(API, *computeCall) (any, error) {
	return func(s API, c *computeCall) (any, error) { return f(networks{s}, c) }
}

func onMachines(f func(machines, *computeCall) (any, error)) func(API, *computeCall) (any, error) {
	return func(s API, c *computeCall) (any, error) { return f(machines{s}, c) }
}

func (c *computeCall) serve() (any, error) {
	kind, _, _ := strings.Cut(c.scope, "/")
	if f := services[kind+" "+c.collection]; f != nil {
		return f(New(c.s), c)
	}
	if kind != "" && slices.Contains(unmodelled, c.collection) {
		return nil, wire.NotModelled(kind + " " + c.collection)
	}
	return nil, wire.UnknownMethod()
}

// unmodelled are collections of the service that the simulator does not have. A client must
// not take them for empty: for example, a commitment may exist although the client cannot
// read it.
var unmodelled = []string{
	"acceleratorTypes", "addresses", "autoscalers", "commitments", "diskTypes", "disks", "firewallPolicies", "futureReservations", "healthChecks", "images",
	"instanceGroupManagers", "instanceGroups", "instances", "instanceTemplates", "machineImages", "networkEndpointGroups", "nodeGroups", "operations",
	"reservations", "routers", "routes", "snapshots", "storagePools",
}

// decode reads the body into m. It refuses unknown fields.
func (c *computeCall) decode(m proto.Message) error {
	if err := protojson.Unmarshal(c.body, m); err != nil {
		text := strings.ReplaceAll(err.Error(), "\u00a0", " ") // protobuf varies its spaces on purpose
		return wire.Errorf(http.StatusBadRequest, "Invalid JSON payload received. %s", strings.TrimPrefix(text, "proto: ")).WithReason("badRequest")
	}
	return nil
}

func (s API) serveProject(c *computeCall) (any, error) {
	if c.r.Method != http.MethodGet {
		return nil, wire.UnknownMethod()
	}
	if err := wire.CheckQuery(c.query); err != nil {
		return nil, err
	}
	name := "projects/" + s.Config.Project
	return &computepb.Project{
		Kind: proto.String("compute#project"), Name: proto.String(s.Config.Project), Id: proto.Uint64(123456789012),
		SelfLink: proto.String(s.Networks().Link(name)), DefaultServiceAccount: proto.String(cloud.DefaultAccount),
		DefaultNetworkTier: proto.String("PREMIUM"), XpnProjectStatus: proto.String("UNSPECIFIED_XPN_PROJECT_STATUS"),
		CreationTimestamp: proto.String("2024-01-01T00:00:00.000-08:00"), CommonInstanceMetadata: s.projectMetadata(),
	}, nil
}

func (s API) projectMetadata() *computepb.Metadata {
	m := &computepb.Metadata{Kind: proto.String("compute#metadata"), Fingerprint: proto.String(s.metadataFingerprint())}
	for _, k := range slices.Sorted(maps.Keys(s.State.Metadata)) {
		m.Items = append(m.Items, &computepb.Items{Key: proto.String(k), Value: proto.String(s.State.Metadata[k])})
	}
	return m
}

func (s API) metadataFingerprint() string {
	return base64.URLEncoding.EncodeToString(fmt.Appendf(nil, "metadata-%d", s.State.Fingerprint))
}

func (s API) setProjectMetadata(c *computeCall) (any, error) {
	if c.r.Method != http.MethodPost || c.id != "" {
		return nil, wire.UnknownMethod()
	}
	if err := wire.CheckQuery(c.query, "requestId"); err != nil {
		return nil, err
	}
	m := new(computepb.Metadata)
	if err := c.decode(m); err != nil {
		return nil, err
	}
	if m.GetFingerprint() != s.metadataFingerprint() {
		return nil, wire.Errorf(http.StatusPreconditionFailed, "Supplied fingerprint does not match current metadata fingerprint.")
	}
	if err := checkItems("resource", m); err != nil {
		return nil, err
	}
	next := map[string]string{}
	for _, item := range m.Items {
		next[item.GetKey()] = item.GetValue()
	}
	s.State.Metadata = next
	s.State.Fingerprint++
	return s.startComputeOp(c, "setMetadata", "projects/"+s.Config.Project, 0, nil)
}

func (s API) servePlaces(c *computeCall) (any, error) {
	if c.r.Method != http.MethodGet || c.verb != "" {
		return nil, wire.UnknownMethod()
	}
	var all []proto.Message
	if c.collection == "zones" {
		for i, z := range s.Catalog().Zones() {
			all = append(all, &computepb.Zone{
				Kind: proto.String("compute#zone"), Id: proto.Uint64(uint64(2000 + i)), Name: proto.String(z), Description: proto.String(z),
				Status: proto.String("UP"), Region: proto.String(s.Networks().Link("projects/" + s.Config.Project + "/regions/" + cloud.RegionOf(z))),
				SelfLink: proto.String(s.Networks().Link("projects/" + s.Config.Project + "/zones/" + z)),
			})
		}
	} else {
		for i, r := range s.Catalog().Regions() {
			region := &computepb.Region{
				Kind: proto.String("compute#region"), Id: proto.Uint64(uint64(1000 + i)), Name: proto.String(r), Description: proto.String(r),
				Status: proto.String("UP"), SelfLink: proto.String(s.Networks().Link("projects/" + s.Config.Project + "/regions/" + r)),
			}
			for _, z := range s.Catalog().Zones() {
				if cloud.RegionOf(z) == r {
					region.Zones = append(region.Zones, s.Networks().Link("projects/"+s.Config.Project+"/zones/"+z))
				}
			}
			all = append(all, region)
		}
	}
	if c.id == "" {
		return s.list(c, "compute#"+strings.TrimSuffix(c.collection, "s")+"List", all)
	}
	if err := wire.CheckQuery(c.query); err != nil {
		return nil, err
	}
	for _, m := range all {
		if m.(interface{ GetName() string }).GetName() == c.id {
			return m, nil
		}
	}
	return nil, noSuchCompute("projects/" + s.Config.Project + "/" + c.collection + "/" + c.id)
}

// A computeList is the answer to a list. Its items are marshalled one by one, because each
// list message of computepb is a type of its own.
type computeList struct {
	head  map[string]any
	items []proto.Message
	under string // name of the field with the items; "": "items"

	// An aggregated list has its items by scope, below the name of the collection.
	scopes     map[string][]proto.Message
	collection string
}

func (l *computeList) marshal() ([]byte, error) {
	items, err := marshalAll(l.items)
	if err != nil {
		return nil, err
	}
	if items != nil {
		l.head[cmp.Or(l.under, "items")] = items
	}
	byScope := map[string]any{}
	for scope, list := range l.scopes {
		if items, err = marshalAll(list); err != nil {
			return nil, err
		}
		byScope[scope] = map[string]any{l.collection: items}
	}
	if l.scopes != nil {
		l.head["items"] = byScope
	}
	return json.MarshalIndent(l.head, "", "  ")
}

func marshalAll(list []proto.Message) (items []json.RawMessage, err error) {
	for _, m := range list {
		b, err := protojson.Marshal(m)
		if err != nil {
			return nil, err
		}
		items = append(items, b)
	}
	return items, nil
}

func (s API) list(c *computeCall, kind string, all []proto.Message) (any, error) {
	if c.r.Method != http.MethodGet {
		return nil, wire.UnknownMethod()
	}
	if err := wire.CheckQuery(c.query, "filter", "maxResults", "orderBy", "pageToken", "returnPartialSuccess"); err != nil {
		return nil, err
	}
	if order := c.query.Get("orderBy"); order != "" && order != "name" {
		return nil, wire.NotModelled("orderBy=" + order)
	}
	match, err := parseFilter(c.query.Get("filter"))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m proto.Message) bool { return !match(m) })
	items, next, err := wire.Page(all, c.query, "maxResults", 500)
	if err != nil {
		return nil, err
	}
	l := &computeList{items: items, head: map[string]any{
		"kind": kind, "id": strings.TrimSuffix(strings.TrimPrefix(c.r.URL.Path, "/compute/v1/"), "/"), "selfLink": s.BaseURL + c.r.URL.Path,
	}}
	if next != "" {
		l.head["nextPageToken"] = next
	}
	return l, nil
}

// waitComputeOp waits until the operation is done, at most two minutes, as the real service
// does.
func (s API) waitComputeOp(c *computeCall) error {
	if c.r.Method != http.MethodPost {
		return wire.UnknownMethod()
	}
	s.Mu.Lock()
	op := s.State.ComputeOps[c.name()]
	s.Mu.Unlock()
	if op == nil {
		return noSuchCompute(c.name())
	}
	return s.awaitDone(c.r.Context(), op)
}

func (s API) awaitDone(ctx context.Context, op *cloud.ComputeOp) error {
	select {
	case <-op.Done:
		return nil
	case <-s.Clock.After(maxOpWait):
		return nil
	case <-ctx.Done():
		return wire.Errorf(http.StatusServiceUnavailable, "The request was cancelled.")
	}
}
