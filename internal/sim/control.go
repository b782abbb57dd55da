package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"multihost/internal/sim/cloud"
	"multihost/internal/sim/groups"
	"multihost/internal/sim/wire"
)

// Status is the state of a simulator.
type Status struct {
	URL      string         `json:"url"`
	Project  string         `json:"project"`
	Zone     string         `json:"zone"`
	Zones    []string       `json:"zones"`
	SSHPort  int            `json:"ssh_port,omitempty"`
	Queued   []QueuedStatus `json:"queued_resources"`
	Nodes    []NodeStatus   `json:"nodes"`
	Groups   []GroupStatus  `json:"groups,omitempty"`
	Networks []string       `json:"networks"`
	Rules    []string       `json:"firewalls"`
	Faults   []FaultStatus  `json:"faults"`
	Quota    map[string]int `json:"quota,omitempty"`
	Requests map[string]int `json:"requests"` // by method
	Total    int            `json:"total_requests"`
}

// QueuedStatus is one queued resource.
type QueuedStatus struct {
	ID    string   `json:"id"`
	Zone  string   `json:"zone"`
	Type  string   `json:"type"`
	State string   `json:"state"`
	Nodes []string `json:"nodes"`
}

// NodeStatus is one node.
type NodeStatus struct {
	ID      string         `json:"id"`
	Zone    string         `json:"zone"`
	Type    string         `json:"type"`
	State   string         `json:"state"`
	Health  string         `json:"health,omitempty"`
	Queued  string         `json:"queued_resource,omitempty"`
	Network string         `json:"network"`
	Workers []WorkerStatus `json:"workers"`
}

// WorkerStatus is one running worker.
type WorkerStatus struct {
	Index    int    `json:"index"`
	Address  string `json:"address"` // with port
	Hostname string `json:"hostname"`
}

// GroupStatus is one managed instance group.
type GroupStatus struct {
	ID       string     `json:"id"`
	Zone     string     `json:"zone"`
	Type     string     `json:"type"`
	Waiting  bool       `json:"waiting"`            // it waits for its VMs
	Topology string     `json:"topology,omitempty"` // state of its topology; "": it has none
	VMs      []VMStatus `json:"vms"`
}

// VMStatus is one VM of a group, which need not exist yet.
type VMStatus struct {
	Name    string `json:"name"`
	Worker  int    `json:"worker"`            // number of the worker in the slice
	Status  string `json:"status,omitempty"`  // "": the VM does not exist
	Address string `json:"address,omitempty"` // address with port; "": the VM does not run
}

// FaultStatus is one active fault. Left is how many more times it happens; AllCalls means
// until it is cleared.
type FaultStatus struct {
	ID    int    `json:"id"`
	Fault string `json:"fault"`
	Left  int    `json:"left"`
}

// Status returns the present state.
func (s *Server) Status() Status {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	st := Status{
		URL: s.BaseURL, Project: s.Config.Project, Zone: s.Config.Zone, Zones: s.Catalog().Zones(), SSHPort: s.SSHPort(),
		Quota: maps.Clone(s.State.Quota), Requests: maps.Clone(s.State.Counts), Total: s.State.Total,
		Queued: []QueuedStatus{}, Nodes: []NodeStatus{}, Faults: []FaultStatus{},
		Networks: slices.Sorted(maps.Keys(s.State.Networks)), Rules: slices.Sorted(maps.Keys(s.State.Firewalls)),
	}
	for i, n := range st.Networks {
		st.Networks[i] = path.Base(n)
	}
	for i, n := range st.Rules {
		st.Rules[i] = path.Base(n)
	}
	for _, q := range cloud.Sorted(s.State.Queued, nil) {
		st.Queued = append(st.Queued, QueuedStatus{ID: q.Id, Zone: q.Zone, Type: q.Typ.Name, State: q.State(), Nodes: q.NodeIDs()})
	}
	for _, n := range cloud.Sorted(s.State.Nodes, nil) {
		ns := NodeStatus{
			ID: n.Id, Zone: n.Zone, Type: n.Typ.Name, State: n.Msg.State, Health: n.Msg.Health, Network: path.Base(cloud.Interfaces(n.Msg)[0].Network),
			Workers: []WorkerStatus{},
		}
		if n.Queued != "" {
			ns.Queued = path.Base(n.Queued)
		}
		for i, m := range n.Machines {
			ns.Workers = append(ns.Workers, WorkerStatus{Index: i, Address: fmt.Sprintf("%s:%d", m.Addr(), st.SSHPort), Hostname: m.Hostname()})
		}
		st.Nodes = append(st.Nodes, ns)
	}
	for _, g := range cloud.Sorted(s.State.Groups, nil) {
		st.Groups = append(st.Groups, s.groupStatus(g))
	}
	for _, a := range s.State.Faults {
		st.Faults = append(st.Faults, FaultStatus{ID: a.Id, Fault: a.String(), Left: a.Left})
	}
	return st
}

// groupStatus returns the present state of g. The caller holds s.Mu.
func (s *Server) groupStatus(g *cloud.Group) GroupStatus {
	gs := GroupStatus{ID: g.Id, Zone: g.Zone, Type: g.Typ.Name, Waiting: g.Growing, Topology: groups.Topology(s.Cloud, g), VMs: []VMStatus{}}
	for _, p := range g.Places {
		vm := VMStatus{Name: p.Name, Worker: p.Number}
		if i := p.Instance; i != nil {
			vm.Status = i.Msg.GetStatus()
			if i.Machine != nil {
				vm.Address = fmt.Sprintf("%s:%d", i.Machine.Addr(), s.SSHPort())
			}
		}
		gs.VMs = append(gs.VMs, vm)
	}
	return gs
}

// The bodies of requests and answers of the control endpoint.
type (
	faultRequest struct {
		Fault string `json:"fault"`
	}
	faultReply struct {
		ID int `json:"id"`
	}
	clearReply struct {
		Cleared int `json:"cleared"`
	}
)

// serveControl answers requests below /sim/v1/: GET of status, env or requests, POST of
// faults, login or down, and DELETE of faults/{ID|NAME|all}.
func (s *Server) serveControl(w http.ResponseWriter, r *http.Request) {
	v, err := s.control(r)
	if err != nil {
		wire.WriteError(w, wire.AsAPIError(err), false)
		return
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		wire.WriteError(w, wire.AsAPIError(err), false)
		return
	}
	writeJSON(w, b)
}

func (s *Server) control(r *http.Request) (any, error) {
	// No web page in the user's browser may use the control endpoint of a simulator on
	// loopback.
	if r.Header.Get("Origin") != "" {
		return nil, wire.Errorf(http.StatusForbidden, "requests from web pages are refused")
	}
	what := strings.TrimPrefix(r.URL.Path, "/sim/v1/")
	which, isClear := strings.CutPrefix(what, "faults/")
	switch {
	case r.Method == http.MethodDelete && isClear:
		n, err := s.Clear(which)
		return clearReply{Cleared: n}, err
	case r.Method == http.MethodGet && what == "status":
		return s.Status(), nil
	case r.Method == http.MethodGet && what == "env":
		return s.Env(), nil
	case r.Method == http.MethodGet && what == "requests":
		return s.Requests(), nil
	case r.Method == http.MethodPost && what == "down":
		s.requestDown()
		return struct{}{}, nil
	case r.Method == http.MethodPost && what == "login":
		if err := s.Login(); err != nil {
			return nil, wire.Errorf(http.StatusBadRequest, "%v", err)
		}
		return struct{}{}, nil
	case r.Method == http.MethodPost && what == "faults":
		return s.controlFault(r)
	}
	return nil, wire.UnknownMethod()
}

func (s *Server) controlFault(r *http.Request) (any, error) {
	body, err := wire.ReadBody(r, wire.MaxBody)
	if err != nil {
		return nil, err
	}
	var req faultRequest
	if err := wire.DecodeStrict(body, &req, "fault"); err != nil {
		return nil, err
	}
	f, err := cloud.ParseFault(req.Fault)
	if err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "%v", err)
	}
	id, err := s.Inject(f)
	if err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "%v", err)
	}
	return faultReply{ID: id}, nil
}
