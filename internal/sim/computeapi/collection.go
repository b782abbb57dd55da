package computeapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

// A message is a resource of the Compute API.
type message interface {
	proto.Message
	GetName() string
	GetId() uint64
	GetSelfLink() string
}

// A collection has the resources of one kind, which are made, read and deleted, but never
// changed.
type collection[T message] struct {
	kind  string // kind of one resource, without the prefix compute#
	all   map[string]T
	empty func() T
	fill  func(T) error // refuses what the real service refuses, and fills in what it fills in
}

// serveCollection answers a call for the collection k.
func serveCollection[T message](s API, c *computeCall, k collection[T]) (any, error) {
	switch {
	case c.verb != "":
		return nil, wire.NotModelled(c.collection + "." + c.verb)
	case c.id == "" && c.r.Method == http.MethodPost && c.scope != "aggregated":
		return insertInto(s, c, k)
	case c.id == "":
		return s.listOf(c, k.kind, messages(k.all))
	}
	switch c.r.Method {
	case http.MethodGet:
		if err := wire.CheckQuery(c.query); err != nil {
			return nil, err
		}
		msg, ok := k.all[c.name()]
		if !ok {
			return nil, noSuchCompute(c.name())
		}
		return msg, nil
	case http.MethodDelete:
		return deleteFrom(s, c, k)
	case http.MethodPatch, http.MethodPut:
		return nil, wire.NotModelled("Changing " + c.collection)
	}
	return nil, wire.UnknownMethod()
}

// messages returns the resources of a map, in the order of their names.
func messages[T message](all map[string]T) []message {
	var list []message
	for _, m := range cloud.Sorted(all, nil) {
		list = append(list, m)
	}
	return list
}

func insertInto[T message](s API, c *computeCall, k collection[T]) (any, error) {
	msg := k.empty()
	if op, seen, err := c.begin(msg); seen || err != nil {
		return op, err
	}
	c.id = msg.GetName()
	if err := checkName(c.id); err != nil {
		return nil, err
	}
	if _, exists := k.all[c.name()]; exists {
		return nil, existsCompute(c.name())
	}
	if err := k.fill(msg); err != nil {
		return nil, err
	}
	name := c.name()
	s.put(msg, k.kind, name)
	k.all[name] = msg
	return s.startComputeOp(c, "insert", name, msg.GetId(), func(ok bool) {
		if !ok {
			delete(k.all, name)
		}
	})
}

func deleteFrom[T message](s API, c *computeCall, k collection[T]) (any, error) {
	if op, seen, err := c.begin(nil); seen || err != nil {
		return op, err
	}
	name := c.name()
	msg, ok := k.all[name]
	if !ok {
		return nil, noSuchCompute(name)
	}
	if by := groups.UserOf(s.Cloud, name); by != "" {
		return nil, inUse(wire.Snake(k.kind), name, by)
	}
	return s.startComputeOp(c, "delete", name, msg.GetId(), func(ok bool) {
		if ok {
			delete(k.all, name)
		}
	})
}

// begin checks the query of a call that changes something, and reads the body into msg if
// that is not nil. seen says that an earlier call had the same request id. op is then the
// operation of that call.
func (c *computeCall) begin(msg proto.Message, params ...string) (op any, seen bool, err error) {
	if err := wire.CheckQuery(c.query, append(params, "requestId")...); err != nil {
		return nil, false, err
	}
	if op, seen, err := c.replayed(); seen || err != nil {
		return op, seen, err
	}
	if msg == nil {
		return nil, false, nil
	}
	return nil, false, c.decode(msg)
}

func checkName(name string) error {
	if cloud.IDPattern.MatchString(name) {
		return nil
	}
	return badValue("resource.name", name, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
}

// put sets the fields that every new resource gets.
func (s API) put(msg proto.Message, kind, name string) {
	r := msg.ProtoReflect()
	for field, v := range map[string]any{
		"kind": "compute#" + kind, "id": uint64(cloud.NewID()), "selfLink": s.Networks().Link(name), "creationTimestamp": s.Timestamp(),
	} {
		r.Set(r.Descriptor().Fields().ByJSONName(field), protoreflect.ValueOf(v))
	}
}

// onlyFields returns an error for a message with any other field.
func onlyFields(m proto.Message, what string, names ...string) error {
	var err error
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if slices.Contains(names, f.JSONName()) {
			return true
		}
		err = wire.NotModelled(fmt.Sprintf("The field %s of %s", f.JSONName(), what))
		return false
	})
	return err
}

// checkPlace returns an error for an unknown region or zone.
func (s API) checkPlace(scope string) error {
	kind, name, _ := strings.Cut(scope, "/")
	places := map[string][]string{"regions": s.Catalog().Regions(), "zones": s.Catalog().Zones()}[kind]
	if kind == "global" || kind == "aggregated" || slices.Contains(places, name) {
		return nil
	}
	return noSuchCompute("projects/" + s.Config.Project + "/" + scope)
}

// listOf answers with a list of the resources of one scope, or with an aggregated list.
func (s API) listOf(c *computeCall, kind string, all []message) (any, error) {
	if c.scope == "aggregated" {
		return s.aggregated(c, kind, all)
	}
	var list []proto.Message
	for _, m := range all {
		if s.scopeOf(m) == c.scope {
			list = append(list, m)
		}
	}
	return s.list(c, "compute#"+kind+"List", list)
}

// scopeOf returns the scope of a resource: global, regions/R or zones/Z.
func (s API) scopeOf(m message) string {
	parts := strings.Split(s.Networks().URLToName(m.GetSelfLink()), "/")
	return strings.Join(parts[2:len(parts)-2], "/")
}

// aggregated answers an aggregatedList: all items by scope, on one page.
func (s API) aggregated(c *computeCall, kind string, all []message) (any, error) {
	if c.r.Method != http.MethodGet || c.id != "" {
		return nil, wire.UnknownMethod()
	}
	if err := wire.CheckQuery(c.query, "filter", "maxResults", "orderBy", "pageToken", "returnPartialSuccess", "includeAllScopes", "serviceProjectNumber"); err != nil {
		return nil, err
	}
	match, err := parseFilter(c.query.Get("filter"))
	if err != nil {
		return nil, err
	}
	l := &computeList{scopes: map[string][]proto.Message{}, collection: c.collection, head: map[string]any{
		"kind": "compute#" + kind + "AggregatedList", "id": "projects/" + s.Config.Project + "/aggregated/" + c.collection, "selfLink": s.BaseURL + c.r.URL.Path,
	}}
	for _, m := range all {
		if match(m) {
			scope := s.scopeOf(m)
			l.scopes[scope] = append(l.scopes[scope], m)
		}
	}
	return l, nil
}
