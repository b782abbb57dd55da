package cloud

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/tpu"
)

// A SliceSpec describes slices that exist from the start.
type SliceSpec struct {
	Name  string // name of the queued resource; with Count 1 also of the node, otherwise the prefix of NAME-0, NAME-1, …
	Count int
	Type  string
	// Foreign slices belong to no queued resource.
	Foreign bool
	// Network is the network of the slices. "" means "default" for one slice and
	// LargePackets for several. A network that does not exist is created with the largest
	// possible MTU and the rules of "default".
	Network string
}

// LargePackets is the network of several slices that exist from the start. Its MTU is 8896,
// which traffic between slices needs. That of "default" is 1460.
const LargePackets = "mtu8896"

// String returns the text form that ParseSlices reads.
func (p SliceSpec) String() string {
	text := fmt.Sprintf("%s:%dx%s", p.Name, p.Count, p.Type)
	if p.Foreign {
		text += ":foreign"
	}
	if p.Network != "" {
		text += ":network=" + p.Network
	}
	return text
}

// ParseSlices parses descriptions of slices, separated by commas or spaces. Each is
// NAME:COUNTxTYPE, and may end in ":foreign" and ":network=NETWORK": "v4:2xv4-16",
// "t:1xv5litepod-16,old:1xv4-8:foreign".
func ParseSlices(text string) ([]SliceSpec, error) {
	var specs []SliceSpec
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		parts := strings.Split(word, ":")
		if len(parts) < 2 {
			return nil, fmt.Errorf("parse slices %q: want NAME:COUNTxTYPE, such as t:2xv4-16", word)
		}
		count, kind, ok := strings.Cut(parts[1], "x")
		n, err := strconv.Atoi(count)
		if !ok || err != nil {
			return nil, fmt.Errorf("parse slices %q: want NAME:COUNTxTYPE, such as t:2xv4-16", word)
		}
		p := SliceSpec{Name: parts[0], Count: n, Type: kind}
		for _, option := range parts[2:] {
			network, isNetwork := strings.CutPrefix(option, "network=")
			switch {
			case option == "foreign":
				p.Foreign = true
			case isNetwork:
				p.Network = network
			default:
				return nil, fmt.Errorf("parse slices %q: option %q is neither foreign nor network=NETWORK", word, option)
			}
		}
		specs = append(specs, p)
	}
	if len(specs) == 0 {
		return nil, errors.New("parse slices: no slice given: want NAME:COUNTxTYPE, such as t:2xv4-16")
	}
	return specs, CheckSlices(specs)
}

// CheckSlices returns what is wrong with the slices that a user requests.
func CheckSlices(specs []SliceSpec) error {
	seen := map[string]bool{}
	for _, p := range specs {
		t, err := tpu.ParseType(p.Type)
		switch {
		case err != nil:
			return fmt.Errorf("parse slices %q: %w", p, err)
		case !t.OnCloudAPI():
			return fmt.Errorf("parse slices %q: %s is not served by the Cloud TPU API", p, t.Name)
		case p.Count < 1:
			return fmt.Errorf("parse slices %q: count must be at least 1", p)
		case p.Count > 1 && !p.Foreign && !t.Generation.MultiSlice:
			return fmt.Errorf("parse slices %q: %s has no multi-slice", p, t.Generation.Name)
		case p.Network != "" && !IDPattern.MatchString(p.Network):
			return fmt.Errorf("parse slices %q: %q is no legal network name", p, p.Network)
		}
		for _, id := range append(p.nodeIDs(), p.Name) {
			if !IDPattern.MatchString(id) {
				return fmt.Errorf("parse slices %q: %q is no legal node name", p, id)
			}
		}
		for _, id := range p.nodeIDs() {
			if seen[id] {
				return fmt.Errorf("parse slices %q: there are two nodes %q", p, id)
			}
			seen[id] = true
		}
	}
	return nil
}

func (p SliceSpec) nodeIDs() []string {
	if p.Count <= 1 {
		return []string{p.Name}
	}
	ids := make([]string, p.Count)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d", p.Name, i)
	}
	return ids
}

// StartPreset creates the configured slices and waits until they are READY.
func (s Slices) StartPreset(ctx context.Context) error {
	results := make(chan error)
	started := 0
	s.Mu.Lock()
	for _, p := range s.Config.Slices {
		nodes, err := s.addPreset(s.Config.Zone, p)
		if err != nil {
			s.Mu.Unlock()
			return err
		}
		for _, n := range nodes {
			started++
			s.BootNode(n, func(err error) {
				s.Spawn(func() {
					select {
					case results <- err:
					case <-s.Ctx.Done():
					}
				})
			})
		}
	}
	s.Mu.Unlock()
	for range started {
		select {
		case err := <-results:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// addPreset creates the nodes of p, in state CREATING, as if an ACTIVE request had
// created them.
func (s Slices) addPreset(zone string, p SliceSpec) ([]*Node, error) {
	t, err := tpu.ParseType(p.Type)
	if err != nil {
		return nil, err
	}
	if p.Network == "" && p.Count > 1 {
		p.Network = LargePackets
	}
	if p.Network != "" {
		s.Networks().ensureNetwork(p.Network)
	}
	msg := &tpualpha.Node{
		AcceleratorType: t.Name, RuntimeVersion: t.Generation.RuntimeVersion,
		NetworkConfig: &tpualpha.NetworkConfig{Network: p.Network, EnableExternalIps: true},
	}
	if _, err := s.Catalog().CheckNode(zone, "node", msg); err != nil {
		return nil, err
	}
	for _, id := range p.nodeIDs() {
		if name := s.LocationName(zone) + "/nodes/" + id; s.State.Nodes[name] != nil {
			return nil, wire.Exists(name)
		}
	}
	if p.Foreign {
		var nodes []*Node
		for _, id := range p.nodeIDs() {
			nodes = append(nodes, s.AddNode(zone, id, t, cloneNode(msg)))
		}
		return nodes, nil
	}
	spec := &tpualpha.NodeSpec{Parent: s.LocationName(zone), Node: msg}
	q := &QueuedResource{
		Id: p.Name, Zone: zone, Typ: t, Count: p.Count,
		Msg: &tpualpha.QueuedResource{
			Name: s.LocationName(zone) + "/queuedResources/" + p.Name, CreateTime: s.Timestamp(),
			Tpu: &tpualpha.Tpu{NodeSpec: []*tpualpha.NodeSpec{spec}},
		},
	}
	if s.State.Queued[q.Msg.Name] != nil {
		return nil, wire.Exists(q.Msg.Name)
	}
	if p.Count > 1 {
		q.Prefix = p.Name
		spec.MultiNodeParams = &tpualpha.MultiNodeParams{NodeCount: int64(p.Count), NodeIdPrefix: p.Name}
	} else {
		spec.NodeId = p.Name
	}
	s.State.Queued[q.Msg.Name] = q
	s.setState(q, "ACTIVE", "SERVICE", nil)
	return s.addNodes(q), nil
}
