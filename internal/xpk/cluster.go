package xpk

import (
	"slices"
	"strings"

	"github.com/google/shlex"

	"multihost/internal/gke"
	"multihost/internal/provision"
)

// DefaultNetwork is the network that GKE uses if --custom-cluster-arguments names none.
const DefaultNetwork = "default"

// Cluster has the flags of xpk cluster create that multihost supports.
type Cluster struct {
	Name                      string // --cluster
	TPUType, DeviceType       string
	Slices                    int
	OnDemand, Spot, Flex      bool
	Reservation               string
	CPUMachine, OldCPUMachine string // --default-pool-cpu-machine-type; --cluster-cpu-machine-type, which counts if it is set
	CPUNodes                  int
	Version, Maintenance      string
	Arguments                 string // --custom-cluster-arguments
	PoolArguments             string // --custom-nodepool-arguments
	OldPoolArguments          string // --custom-tpu-nodepool-arguments
	Force                     bool
}

// Options returns the options of the cluster, or the errors of the flags.
func (c Cluster) Options() (gke.Options, []*FlagError) {
	var p problems
	o := gke.Options{
		Name: c.Name, Slices: c.Slices, Version: c.Version, Maintenance: c.Maintenance,
		CPUMachine: c.CPUMachine, CPUNodes: c.CPUNodes, Force: c.Force, Network: DefaultNetwork,
	}
	if c.Name == "" {
		p.add("cluster", "add --cluster=NAME", "which cluster? --cluster is missing")
	} else if err := gke.CheckName(c.Name); err != nil {
		p.add("cluster", "", "--cluster: %v", err)
	}
	if c.OldCPUMachine != "" {
		o.CPUMachine = c.OldCPUMachine
	}
	if c.Slices < 1 {
		p.add("num-slices", "for a cluster without slices, type: multihost cluster create "+c.Name+" --num-slices=0", "--num-slices=%d: want 1 or more", c.Slices)
	}
	o.Type = p.typeOf(c.TPUType, c.DeviceType, "make the node pool with gcloud, and use it with: multihost workload create --resource=nvidia.com/gpu=8")
	p.poolArguments(&c)
	o.Tier, o.Reservation = p.tier(c), c.Reservation
	p.clusterArguments(c.Arguments, &o)
	sound := gke.Options{Name: "x"}
	for _, one := range []struct {
		flag string
		set  func(*gke.Options)
	}{
		{"reservation", func(s *gke.Options) { s.Reservation = o.Reservation }},
		{"gke-version", func(s *gke.Options) { s.Version = o.Version }},
		{"host-maintenance-interval", func(s *gke.Options) { s.Maintenance = o.Maintenance }},
	} {
		s := sound
		one.set(&s)
		if err := s.Validate(); err != nil {
			p.add(one.flag, "", "--%s: %v", one.flag, err)
		}
	}
	if c.CPUNodes < 1 {
		p.add("default-pool-cpu-num-nodes", "", "--default-pool-cpu-num-nodes=%d: want 1 or more", c.CPUNodes)
	}
	if len(p) == 0 {
		if err := o.Validate(); err != nil { // the name is too long for this number of slices
			p.add("cluster", "", "--cluster: %v", err)
		}
	}
	return o, p
}

// tier returns how the user pays for the slices.
func (p *problems) tier(c Cluster) provision.Tier {
	tier, by := provision.OnDemand, ""
	for _, f := range []struct {
		flag string
		set  bool
		tier provision.Tier
	}{
		{"on-demand", c.OnDemand, provision.OnDemand}, {"reservation", c.Reservation != "", provision.Reserved},
		{"spot", c.Spot, provision.Spot}, {"flex", c.Flex, provision.FlexStart},
	} {
		switch {
		case !f.set:
		case by != "":
			p.add(f.flag, "", "--%s and --%s exclude each other: give one of them", by, f.flag)
		default:
			tier, by = f.tier, f.flag
		}
	}
	return tier
}

// An argument of gcloud, without dashes.
type argument struct{ name, value string }

// split parses the value of a flag, which has arguments for gcloud. withValue names the
// arguments that have a value. The value may be the next word.
func (p *problems) split(flag, text string, withValue ...string) (all []argument) {
	words, err := shlex.Split(text)
	if err != nil {
		p.add(flag, "", "--%s: %v", flag, err)
	}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if !strings.HasPrefix(word, "--") {
			p.add(flag, "", "--%s: %q is no flag of gcloud", flag, word)
			return nil
		}
		name, value, valued := strings.Cut(word[2:], "=")
		if !valued && slices.Contains(withValue, name) && len(words) > 0 {
			value, words = words[0], words[1:]
		}
		all = append(all, argument{name, value})
	}
	return all
}

// fulfilled are arguments of gcloud for features that every cluster of multihost has.
var fulfilled = []string{"enable-ip-alias", "enable-dataplane-v2", "enable-multi-networking", "enable-dns-access"}

// clusterArguments reads --custom-cluster-arguments.
func (p *problems) clusterArguments(text string, o *gke.Options) {
	const flag = "custom-cluster-arguments"
	for _, a := range p.split(flag, text, "network", "subnetwork") {
		switch {
		case slices.Contains(fulfilled, a.name):
			continue
		case a.name == "network":
			o.Network = a.value
		case a.name == "subnetwork":
			o.Subnetwork = a.value
		default:
			p.add(flag, "leave it out; or make the cluster with gcloud, and the same command adds the node pools", "--%s: multihost makes clusters without gcloud, and cannot pass it --%s", flag, a.name)
			return
		}
		if err := gke.CheckNetwork(a.value); err != nil {
			p.add(flag, "", "--%s: --%s: %v", flag, a.name, err)
		}
	}
}

// poolArguments reads the arguments of node pools. Older command lines have spot and
// reservation there.
func (p *problems) poolArguments(c *Cluster) {
	for _, given := range []struct{ flag, text string }{{"custom-nodepool-arguments", c.PoolArguments}, {"custom-tpu-nodepool-arguments", c.OldPoolArguments}} {
		for _, a := range p.split(given.flag, given.text, "reservation", "reservation-affinity") {
			switch {
			case a.name == "spot":
				c.Spot = true
			case a.name == "reservation" && a.value == "": // the slices would be on demand
				p.add(given.flag, "", "--%s: --reservation has no name", given.flag)
			case a.name == "reservation":
				c.Reservation = a.value
			case a.name == "reservation-affinity" && a.value == "specific":
			default:
				p.add(given.flag, leaveOut, "--%s: multihost makes node pools without gcloud, and cannot pass it --%s", given.flag, a.name)
			}
		}
	}
}
