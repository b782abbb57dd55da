package computeapi

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

// serveInstances answers for VMs. All of them belong to a group.
func (s machines) serveInstances(c *computeCall) (any, error) {
	if err := s.checkPlace(c.scope); err != nil {
		return nil, err
	}
	if c.id == "" {
		if c.r.Method == http.MethodPost {
			return nil, wire.NotModelled("Making VMs without a managed instance group")
		}
		var all []message
		for _, i := range cloud.Sorted(s.State.Instances, nil) {
			all = append(all, i.Msg)
		}
		return s.listOf(c, "instance", all)
	}
	i := s.State.Instances[c.name()]
	if i == nil {
		return nil, noSuchCompute(c.name())
	}
	switch c.r.Method + " " + c.verb {
	case "GET ":
		return i.Msg, wire.CheckQuery(c.query)
	case "GET getGuestAttributes":
		return s.guestAttributes(c, i)
	case "GET serialPort":
		return s.serialPort(c, i)
	case "POST setMetadata":
		return s.setMetadata(c, i)
	case "POST reset":
		return s.resetInstance(c, i)
	case "DELETE ":
		if op, seen, err := c.begin(nil); seen || err != nil {
			return op, err
		}
		return s.startLongOp(c, "delete", c.name(), i.Msg.GetId(), func(ok bool, done func()) {
			if ok {
				groups.Of(s.Cloud).Drop(i, done)
			} else {
				s.NextStep(done)
			}
		})
	}
	return nil, wire.NotModelled("instances." + cmp.Or(c.verb, strings.ToLower(c.r.Method)))
}

// guestAttributes returns the guest attributes that i has written, which include its host
// keys.
func (s machines) guestAttributes(c *computeCall, i *cloud.Instance) (any, error) {
	if err := wire.CheckQuery(c.query, "queryPath", "variableKey"); err != nil {
		return nil, err
	}
	if !s.Machines().GuestAttributesOn(i) {
		return nil, wire.Errorf(http.StatusPreconditionFailed, "Guest attributes endpoint access is disabled.")
	}
	asked := cmp.Or(c.query.Get("queryPath"), c.query.Get("variableKey"))
	all := maps.Clone(i.Written)
	if all == nil {
		all = map[string]string{}
	}
	if i.Machine != nil {
		for kind, key := range i.Machine.HostKeys() {
			all["hostkeys/"+kind] = key
		}
	}
	out := &computepb.GuestAttributes{
		Kind: proto.String("compute#guestAttributes"), SelfLink: proto.String(s.Networks().Link(c.name() + "/getGuestAttributes/" + asked)),
	}
	if c.query.Get("variableKey") != "" {
		value, ok := all[asked]
		if !ok {
			return nil, wire.Errorf(http.StatusNotFound, "The resource '%s' of type 'Guest Attribute' was not found.", asked)
		}
		out.VariableKey, out.VariableValue = &asked, &value
		return out, nil
	}
	namespace, key, _ := strings.Cut(strings.TrimSuffix(asked, "/"), "/")
	out.QueryPath, out.QueryValue = &asked, &computepb.GuestAttributesValue{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		space, k, _ := strings.Cut(name, "/")
		if (namespace == "" || space == namespace) && (key == "" || k == key) {
			out.QueryValue.Items = append(out.QueryValue.Items, &computepb.GuestAttributesEntry{Namespace: &space, Key: &k, Value: proto.String(all[name])})
		}
	}
	if len(out.QueryValue.Items) == 0 {
		return nil, wire.Errorf(http.StatusNotFound, "The resource '%s' of type 'Guest Attribute' was not found.", asked)
	}
	return out, nil
}

// serialPort returns what i has printed during its boot.
func (s machines) serialPort(c *computeCall, i *cloud.Instance) (any, error) {
	if err := wire.CheckQuery(c.query, "port", "start"); err != nil {
		return nil, err
	}
	if port := cmp.Or(c.query.Get("port"), "1"); port != "1" {
		return nil, wire.NotModelled("Serial port " + port)
	}
	text := groups.Of(s.Cloud).Console(i)
	start := 0
	if from := c.query.Get("start"); from != "" {
		var err error
		if start, err = strconv.Atoi(from); err != nil {
			return nil, badValue("start", from, "Must be a number.")
		}
	}
	if start < 0 { // counted from the end
		start += len(text)
	}
	start = min(max(start, 0), len(text))
	return &computepb.SerialPortOutput{
		Kind: proto.String("compute#serialPortOutput"), Contents: proto.String(text[start:]), Start: proto.Int64(int64(start)), Next: proto.Int64(int64(len(text))),
		SelfLink: proto.String(s.Networks().Link(c.name() + "/serialPort")),
	}, nil
}

// setMetadata replaces the metadata of i. It refuses a caller that has not seen the last
// change.
func (s machines) setMetadata(c *computeCall, i *cloud.Instance) (any, error) {
	m := new(computepb.Metadata)
	if op, seen, err := c.begin(m); seen || err != nil {
		return op, err
	}
	if m.GetFingerprint() != i.Msg.GetMetadata().GetFingerprint() {
		return nil, wire.Errorf(http.StatusPreconditionFailed, "Supplied fingerprint does not match current metadata fingerprint.")
	}
	if err := checkItems("metadata", m); err != nil {
		return nil, err
	}
	items := map[string]string{}
	for _, item := range m.GetItems() {
		items[item.GetKey()] = item.GetValue()
	}
	return s.startComputeOp(c, "setMetadata", c.name(), i.Msg.GetId(), func(ok bool) {
		if ok {
			groups.SetMetadata(i, items, i.Version+1)
		}
	})
}

// resetInstance reboots i as a power failure does.
func (s machines) resetInstance(c *computeCall, i *cloud.Instance) (any, error) {
	if op, seen, err := c.begin(nil); seen || err != nil {
		return op, err
	}
	if i.Msg.GetStatus() != "RUNNING" {
		return nil, notReady(c.name())
	}
	return s.startLongOp(c, "reset", c.name(), i.Msg.GetId(), func(ok bool, done func()) {
		machine := i.Machine
		if !ok || machine == nil {
			s.NextStep(done)
			return
		}
		s.Spawn(func() {
			_ = machine.Reboot(s.Ctx) // a machine that has ended does not boot again
			s.Mu.Lock()
			defer s.Mu.Unlock()
			done()
		})
	})
}
