package cloud

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"multihost/internal/sim/worker"
	"multihost/internal/tpu"
)

// A Group is a managed instance group: the VMs of one slice. Package groups changes its
// state over time.
type Group struct {
	Msg        *computepb.InstanceGroupManager // without status
	Id, Zone   string
	Typ        tpu.Type // type of the slice
	NUMANodes  int      // NUMA nodes of each VM; 0: unknown
	Properties *computepb.InstanceProperties
	Places     []*Place

	Growing  bool             // its VMs are being made
	Check    *computepb.Error // why its VMs do not exist yet
	Checked  time.Time
	Topology string // state of the topology; "": it has none
	Why      *computepb.Error
	Errors   []*computepb.InstanceManagedByIgmError
	Deleting bool
	Epoch    int      // grows whenever something interrupts a change of the VMs
	Gone     []func() // called once the group is deleted
}

// A Place is what a group says about one of its VMs, which need not exist yet.
type Place struct {
	Name     string
	Number   int // number of the worker in its slice; independent of the name
	Action   string
	Instance *Instance
	Failure  *computepb.Errors // error of the last attempt to make the VM
}

// An Instance is a VM that a group has made.
type Instance struct {
	Msg        *computepb.Instance
	Id, Zone   string
	Group      *Group
	Number     int
	Machine    worker.Machine // nil unless it runs
	Booting    bool
	Preempted  bool
	Maintained bool // maintenance is under way
	IP         string
	Version    int               // number of changes of its metadata
	Written    map[string]string // guest attributes, by namespace/key
	subnetwork string
	mtu        int
	ended      []func() // called when its machine has ended; set while it is ending
}

// Place gives i a network and an address.
func (s Networks) Place(i *Instance, network, subnetwork string) {
	if subnetwork == "" {
		subnetwork = s.subnetworkIn(network, RegionOf(i.Zone))
	}
	i.subnetwork, i.mtu, i.IP = subnetwork, s.mtuOf(network), s.nextAddress(subnetwork)
}

// subnetworkIn returns the name of a subnetwork of a network in a region, or "".
func (s Networks) subnetworkIn(network, region string) string {
	found := ""
	for key, sub := range s.State.Subnetworks {
		if s.URLToName(sub.GetNetwork()) == network && strings.Contains(key, "/regions/"+region+"/") && (found == "" || key < found) {
			found = key
		}
	}
	return found
}

// Subnetwork returns the name of the subnetwork of i.
func (i *Instance) Subnetwork() string { return i.subnetwork }

// instance returns the resource name of i.
func (s Machines) instance(i *Instance) string {
	return s.Networks().ComputePath("zones/"+i.Zone, "instances", i.Id)
}

// Metadata returns i's own metadata.
func (i *Instance) Metadata() map[string]string {
	m := map[string]string{}
	for _, item := range i.Msg.GetMetadata().GetItems() {
		m[item.GetKey()] = item.GetValue()
	}
	return m
}

// Spec describes the machine of an instance.
func (s Machines) Spec(i *Instance) worker.Spec {
	g := i.Group
	spec := worker.Spec{
		Name: i.Id, Node: g.Id, NodeUID: fmt.Sprint(g.Msg.GetId()), Index: i.Number, Hostname: i.Id, NUMANodes: g.NUMANodes,
		Root:    filepath.Join(s.WorkersDir(), fmt.Sprintf("%s-%s-%x", i.Zone, i.Id, i.Msg.GetId())),
		Devices: g.Typ.Devices(), MTU: i.mtu, IP: i.IP,
		Gateway:  s.State.Subnetworks[i.subnetwork].GetGatewayAddress(),
		Network:  s.Networks().URLToName(s.State.Subnetworks[i.subnetwork].GetNetwork()),
		Hosts:    map[string]string{},
		Metadata: metadataServer(func() map[string]string { return s.Machines().metadataOfInstance(i) }, func(name, value string) bool { return s.Machines().keepOf(i, name, value) }),
		Services: map[string]http.Handler{strings.TrimPrefix(s.BaseURL, "http://"): s.Serve},
		AuthorizedKeys: func() []string {
			s.Mu.Lock()
			defer s.Mu.Unlock()
			return s.Slices().keysInForce(i.Metadata())
		},
		Faults: s.Injection().workerFaults(g.Id, i.Number),
	}
	for _, p := range g.Places {
		if p.Instance != nil {
			spec.Hosts[p.Name] = p.Instance.IP
			spec.Hosts[p.Name+"."+g.Zone+".c."+s.Config.Project+".internal"] = p.Instance.IP
		}
	}
	return spec
}

// GuestAttributesOn reports whether i may write guest attributes and the API shows them.
func (s Machines) GuestAttributesOn(i *Instance) bool {
	value, set := i.Metadata()["enable-guest-attributes"]
	if !set {
		value = s.State.Metadata["enable-guest-attributes"]
	}
	return isTrue(value) && !s.Injection().GuestAttributesOff(i.Group.Id)
}

func (s Machines) keepOf(i *Instance, name, value string) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !s.GuestAttributesOn(i) {
		return false
	}
	if i.Written == nil {
		i.Written = map[string]string{}
	}
	i.Written[name] = value
	return true
}

// metadataOfInstance returns all values of the metadata server of i, by path. It takes the
// lock.
func (s Machines) metadataOfInstance(i *Instance) map[string]string {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	g := guest{
		name: i.Id, id: fmt.Sprint(i.Msg.GetId()), zone: i.Zone, tags: i.Msg.GetTags().GetItems(), preempted: i.Preempted, maintained: i.Maintained,
		ip: i.IP, gateway: s.State.Subnetworks[i.subnetwork].GetGatewayAddress(), mtu: i.mtu,
		network: path.Base(s.State.Subnetworks[i.subnetwork].GetNetwork()), written: i.Written, attributes: i.Metadata(),
	}
	for _, nic := range i.Msg.GetNetworkInterfaces() {
		for _, access := range nic.GetAccessConfigs() {
			g.external = access.GetNatIP()
		}
	}
	for _, a := range i.Msg.GetServiceAccounts() {
		g.account, g.scopes = a.GetEmail(), a.GetScopes()
		g.token = s.Identity().tokenFor(s.instance(i), i.Id, g.account, g.scopes)
	}
	hosts, chips := bounds(i.Group.Typ)
	names := make([]string, len(i.Group.Places))
	for _, p := range i.Group.Places {
		names[p.Number] = p.Name
	}
	number := strconv.Itoa(i.Number)
	// Slices of the TPU API have more names here, which VMs of Compute Engine do not have.
	env := fmt.Sprintf("TPU_ACCELERATOR_TYPE: '%s'\nTOPOLOGY: '%s'\nTPU_WORKER_ID: '%s'\nHOST_BOUNDS: '%s'\nCHIPS_PER_HOST_BOUNDS: '%s'\n",
		i.Group.Typ.Name, i.Group.Typ.Topology, number, hosts, chips)
	for key, value := range map[string]string{
		"accelerator-type": i.Group.Typ.Name, "agent-worker-number": number, "worker-id": number,
		"worker-network-endpoints": strings.Join(names, ","), "tpu-env": env,
	} {
		g.attributes[key] = value
	}
	return s.tree(g)
}

// EndInstance shuts the machine of i down, then calls done with s.Mu held. Several calls
// share one shutdown with the limit of the first, and each done is called. A limit of 0
// means a power failure.
func (s Machines) EndInstance(i *Instance, limit time.Duration, done func()) {
	i.ended = append(i.ended, done)
	if len(i.ended) > 1 {
		return
	}
	machines := []worker.Machine{i.Machine}
	i.Machine = nil
	orderly := limit > 0 && i.Metadata()[worker.ShutdownScript] != ""
	s.Spawn(func() {
		// The backend later stops what is left.
		if orderly {
			_ = shutDownAll(s.Ctx, machines, limit)
		} else {
			_ = stopAll(s.Ctx, machines)
		}
		s.Mu.Lock()
		defer s.Mu.Unlock()
		ended := i.ended
		i.ended = nil
		for _, f := range ended {
			f()
		}
	})
}

// RestartMachines kills everything on some machines, and boots them again after the time d,
// in which they do not answer. It returns when they answer again, or, with d above 0, when
// they are down. It takes no lock.
func RestartMachines(ctx context.Context, machines []worker.Machine, d time.Duration) error {
	return each(machines, func(m worker.Machine) error {
		if d > 0 {
			return m.SetFault(worker.Fault{Kind: worker.Reboot, Mode: "power", Duration: d})
		}
		return m.Reboot(ctx)
	})
}

// Instances returns the existing VMs of g, in the order of their worker numbers.
func (g *Group) Instances() []*Instance {
	var all []*Instance
	for _, p := range g.Places {
		if p.Instance != nil {
			all = append(all, p.Instance)
		}
	}
	slices.SortFunc(all, func(a, b *Instance) int { return a.Number - b.Number })
	return all
}
