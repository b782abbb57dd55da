package sim

import (
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
)

// projectNumber is the number of the project; the real service gives each project one.
const projectNumber = "123456789012"

// A computeCall is one request to the Compute API, taken apart:
// /compute/v1/projects/P/SCOPE/COLLECTION/NAME/VERB, where SCOPE is global,
// regions/R, zones/Z, aggregated, or empty.
type computeCall struct {
	s          *Cloud
	r          *http.Request
	query      url.Values
	body       []byte
	scope      string
	collection string
	id, verb   string
}

// name returns the resource of the call: projects/P/SCOPE/COLLECTION/ID.
func (c *computeCall) name() string {
	return c.s.computePath(c.scope, c.collection, c.id)
}

func (s *Cloud) computePath(scope, collection, id string) string {
	return "projects/" + s.cfg.Project + "/" + scope + "/" + collection + "/" + id
}

// link returns the URL of a compute resource.
func (s *Cloud) link(name string) string { return s.url + "/compute/v1/" + name }

// urlToName returns the part projects/… of a URL of a compute resource.
func (s *Cloud) urlToName(link string) string {
	if i := strings.Index(link, "/projects/"); i >= 0 {
		return link[i+1:]
	}
	return link
}

// globalRef returns the name of a global resource given by URL, by path or by bare name.
func (s *Cloud) globalRef(text, collection string) (name string, ok bool) {
	return s.ref(text, "global", collection)
}

func (s *Cloud) regionRef(text, region, collection string) (name string, ok bool) {
	return s.ref(text, "regions/"+region, collection)
}

func (s *Cloud) ref(text, scope, collection string) (string, bool) {
	id := text[strings.LastIndexByte(text, '/')+1:]
	name := s.computePath(scope, collection, id)
	short := scope + "/" + collection + "/" + id
	ok := id != "" && (text == id || text == short || s.urlToName(text) == name)
	return name, ok
}

func noSuchCompute(name string) *apiError {
	return errorf(http.StatusNotFound, "The resource '%s' was not found", name)
}

func existsCompute(name string) *apiError {
	return errorf(http.StatusConflict, "The resource '%s' already exists", name)
}

func badValue(field, value, why string) *apiError {
	return errorf(http.StatusBadRequest, "Invalid value for field '%s': '%s'. %s", field, value, why)
}

func inUse(kind, name, by string) *apiError {
	return errorf(http.StatusBadRequest, "The %s resource '%s' is already being used by '%s'", kind, name, by).
		withReason("resourceInUseByAnotherResource")
}

func notReady(name string) *apiError {
	return errorf(http.StatusBadRequest, "The resource '%s' is not ready", name).withReason("resourceNotReady")
}

func (s *Cloud) serveCompute(r *http.Request, body []byte, who caller) answer {
	c, err := s.parseComputeCall(r, body)
	if err == nil && c.collection == "operations" && c.verb == "wait" {
		err = s.waitComputeOp(c) // waits, so it must not hold the lock
		c.verb, c.r = "", r.Clone(r.Context())
		c.r.Method = http.MethodGet
	}
	if err != nil {
		return answer{err: asAPIError(err)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := who.checkCompute(s, c); err != nil {
		return answer{err: asAPIError(err)}
	}
	m, err := c.serve()
	if err != nil {
		return answer{err: asAPIError(err)}
	}
	if list, ok := m.(*computeList); ok {
		b, err := list.marshal()
		if err != nil {
			return answer{err: asAPIError(err)}
		}
		return answer{json: b}
	}
	b, err := protojson.MarshalOptions{Multiline: true}.Marshal(m.(proto.Message))
	if err != nil {
		return answer{err: asAPIError(err)}
	}
	return answer{json: b}
}

func (s *Cloud) parseComputeCall(r *http.Request, body []byte) (*computeCall, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errorf(http.StatusBadRequest, "Invalid query: %v", err)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/compute/v1/projects/")
	parts := strings.Split(rest, "/")
	if !ok || slices.Contains(parts, "") {
		return nil, unknownMethod()
	}
	if parts[0] != s.cfg.Project && parts[0] != projectNumber {
		return nil, noSuchCompute("projects/" + parts[0])
	}
	c := &computeCall{s: s, r: r, query: query, body: body}
	parts = parts[1:]
	switch {
	case len(parts) > 0 && (parts[0] == "global" || parts[0] == "aggregated"):
		c.scope, parts = parts[0], parts[1:]
	case len(parts) > 2 && (parts[0] == "regions" || parts[0] == "zones"):
		c.scope, parts = parts[0]+"/"+parts[1], parts[2:]
	}
	if len(parts) > 3 {
		return nil, unknownMethod()
	}
	parts = append(parts, "", "", "")
	c.collection, c.id, c.verb = parts[0], parts[1], parts[2]
	return c, nil
}

func (c *computeCall) serve() (any, error) {
	kind, _, _ := strings.Cut(c.scope, "/")
	switch kind + " " + c.collection {
	case " ":
		return c.s.serveProject(c)
	case " setCommonInstanceMetadata":
		return c.s.setProjectMetadata(c)
	case " regions", " zones":
		return c.s.servePlaces(c)
	case "global networks":
		return c.s.serveNetworks(c)
	case "global firewalls":
		return c.s.serveFirewalls(c)
	case "global operations", "regions operations":
		return c.s.serveComputeOps(c)
	case "regions subnetworks", "aggregated subnetworks":
		return c.s.serveSubnetworks(c)
	}
	return nil, unknownMethod()
}

// decode reads the body strictly into m.
func (c *computeCall) decode(m proto.Message) error {
	if err := protojson.Unmarshal(c.body, m); err != nil {
		text := strings.ReplaceAll(err.Error(), "\u00a0", " ") // protobuf varies its spaces on purpose
		return errorf(http.StatusBadRequest, "Invalid JSON payload received. %s", strings.TrimPrefix(text, "proto: ")).withReason("badRequest")
	}
	return nil
}

func (s *Cloud) serveProject(c *computeCall) (any, error) {
	if c.r.Method != http.MethodGet {
		return nil, unknownMethod()
	}
	if err := checkQuery(c.query); err != nil {
		return nil, err
	}
	name := "projects/" + s.cfg.Project
	return &computepb.Project{
		Kind: proto.String("compute#project"), Name: proto.String(s.cfg.Project), Id: proto.Uint64(123456789012),
		SelfLink: proto.String(s.link(name)), DefaultServiceAccount: proto.String(defaultAccount),
		DefaultNetworkTier: proto.String("PREMIUM"), XpnProjectStatus: proto.String("UNSPECIFIED_XPN_PROJECT_STATUS"),
		CreationTimestamp: proto.String("2024-01-01T00:00:00.000-08:00"), CommonInstanceMetadata: s.projectMetadata(),
	}, nil
}

func (s *Cloud) projectMetadata() *computepb.Metadata {
	m := &computepb.Metadata{Kind: proto.String("compute#metadata"), Fingerprint: proto.String(s.metadataFingerprint())}
	for _, k := range slices.Sorted(maps.Keys(s.state.metadata)) {
		m.Items = append(m.Items, &computepb.Items{Key: proto.String(k), Value: proto.String(s.state.metadata[k])})
	}
	return m
}

func (s *Cloud) metadataFingerprint() string {
	return base64.URLEncoding.EncodeToString(fmt.Appendf(nil, "metadata-%d", s.state.fingerprint))
}

func (s *Cloud) setProjectMetadata(c *computeCall) (any, error) {
	if c.r.Method != http.MethodPost || c.id != "" {
		return nil, unknownMethod()
	}
	if err := checkQuery(c.query, "requestId"); err != nil {
		return nil, err
	}
	m := new(computepb.Metadata)
	if err := c.decode(m); err != nil {
		return nil, err
	}
	if m.GetFingerprint() != s.metadataFingerprint() {
		return nil, errorf(http.StatusPreconditionFailed, "Supplied fingerprint does not match current metadata fingerprint.")
	}
	next := map[string]string{}
	for _, item := range m.Items {
		if len(item.GetValue()) > maxMetadata {
			return nil, badValue("resource.items", item.GetKey(), "The value is too large.")
		}
		if _, twice := next[item.GetKey()]; twice || item.GetKey() == "" {
			return nil, badValue("resource.items", item.GetKey(), "Metadata has duplicate or empty keys.")
		}
		next[item.GetKey()] = item.GetValue()
	}
	s.state.metadata = next
	s.state.fingerprint++
	return s.startComputeOp(c, "setMetadata", "projects/"+s.cfg.Project, 0, nil)
}

func (s *Cloud) servePlaces(c *computeCall) (any, error) {
	if c.r.Method != http.MethodGet || c.verb != "" {
		return nil, unknownMethod()
	}
	var all []proto.Message
	if c.collection == "zones" {
		for i, z := range s.zones() {
			all = append(all, &computepb.Zone{
				Kind: proto.String("compute#zone"), Id: proto.Uint64(uint64(2000 + i)), Name: proto.String(z), Description: proto.String(z),
				Status: proto.String("UP"), Region: proto.String(s.link("projects/" + s.cfg.Project + "/regions/" + regionOf(z))),
				SelfLink: proto.String(s.link("projects/" + s.cfg.Project + "/zones/" + z)),
			})
		}
	} else {
		for i, r := range s.regions() {
			region := &computepb.Region{
				Kind: proto.String("compute#region"), Id: proto.Uint64(uint64(1000 + i)), Name: proto.String(r), Description: proto.String(r),
				Status: proto.String("UP"), SelfLink: proto.String(s.link("projects/" + s.cfg.Project + "/regions/" + r)),
			}
			for _, z := range s.zones() {
				if regionOf(z) == r {
					region.Zones = append(region.Zones, s.link("projects/"+s.cfg.Project+"/zones/"+z))
				}
			}
			all = append(all, region)
		}
	}
	if c.id == "" {
		return s.list(c, "compute#"+strings.TrimSuffix(c.collection, "s")+"List", all)
	}
	if err := checkQuery(c.query); err != nil {
		return nil, err
	}
	for _, m := range all {
		if m.(interface{ GetName() string }).GetName() == c.id {
			return m, nil
		}
	}
	return nil, noSuchCompute("projects/" + s.cfg.Project + "/" + c.collection + "/" + c.id)
}

// A computeList is the answer to a list. Items are marshalled one by one because each
// list message of computepb is a separate type.
type computeList struct {
	head  map[string]any
	items []proto.Message
}

func (l *computeList) marshal() ([]byte, error) {
	var items []json.RawMessage
	for _, m := range l.items {
		b, err := protojson.Marshal(m)
		if err != nil {
			return nil, err
		}
		items = append(items, b)
	}
	if items != nil {
		l.head["items"] = items
	}
	return json.MarshalIndent(l.head, "", "  ")
}

func (s *Cloud) list(c *computeCall, kind string, all []proto.Message) (any, error) {
	if c.r.Method != http.MethodGet {
		return nil, unknownMethod()
	}
	if err := checkQuery(c.query, "filter", "maxResults", "orderBy", "pageToken", "returnPartialSuccess"); err != nil {
		return nil, err
	}
	if order := c.query.Get("orderBy"); order != "" && order != "name" {
		return nil, notModelled("orderBy=" + order)
	}
	match, err := parseFilter(c.query.Get("filter"))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m proto.Message) bool { return !match(m) })
	items, next, err := page(all, c.query, "maxResults", 500)
	if err != nil {
		return nil, err
	}
	l := &computeList{items: items, head: map[string]any{
		"kind": kind, "id": strings.TrimSuffix(strings.TrimPrefix(c.r.URL.Path, "/compute/v1/"), "/"), "selfLink": s.url + c.r.URL.Path,
	}}
	if next != "" {
		l.head["nextPageToken"] = next
	}
	return l, nil
}

// waitComputeOp waits until the operation is done, but at most two minutes, as the real
// service does.
func (s *Cloud) waitComputeOp(c *computeCall) error {
	if c.r.Method != http.MethodPost {
		return unknownMethod()
	}
	s.mu.Lock()
	op := s.state.computeOps[c.name()]
	s.mu.Unlock()
	if op == nil {
		return noSuchCompute(c.name())
	}
	return s.awaitDone(c.r.Context(), op)
}

func (s *Cloud) awaitDone(ctx context.Context, op *computeOp) error {
	select {
	case <-op.done:
		return nil
	case <-s.clock.After(maxOpWait):
		return nil
	case <-ctx.Done():
		return errorf(http.StatusServiceUnavailable, "The request was cancelled.")
	}
}
