package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"multihost/internal/sim/netns"
	"multihost/internal/sim/wire"

	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim/worker"
)

// maxBoots limits how many workers of a node boot at a time.
const maxBoots = 16

// MakeBackend makes the backend for workers, as configured.
func (s Slices) MakeBackend() error {
	switch {
	case s.Config.Workers != nil:
		s.Workers = s.Config.Workers
		return nil
	case s.Config.Backend == "none":
		return nil
	case !slices.Contains([]string{"", "process", "netns"}, s.Config.Backend):
		return fmt.Errorf("backend %q: want process, netns or none", s.Config.Backend)
	}
	// Env returns the port, so it must be known before the first worker exists.
	port := s.Config.SSHPort
	if port == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		port = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return err
		}
	}
	var b worker.Backend
	var err error
	if s.Config.Backend == "netns" {
		b, err = netns.New(netns.Config{Root: s.WorkersDir(), Port: port})
	} else {
		b, err = worker.NewProcess(worker.ProcessConfig{Root: s.WorkersDir(), Port: port})
	}
	if err != nil {
		return err
	}
	s.Workers = b
	return nil
}

var errNodeGone = errors.New("node deleted while it was being made")

// BootNode starts the workers of n and makes n READY, then calls done with s.Mu held. The
// caller holds s.Mu.
func (s Slices) BootNode(n *Node, done func(error)) {
	if n.Msg.State != "CREATING" {
		done(errNodeGone)
		return
	}
	specs := s.workerSpecs(n)
	s.Spawn(func() {
		machines, err := s.StartMachines(specs)
		s.Mu.Lock()
		defer s.Mu.Unlock()
		if err == nil && n.Msg.State != "CREATING" {
			s.Discard(machines)
			err = errNodeGone
		}
		if err == nil {
			n.Machines = machines
			n.ready()
		}
		done(err)
	})
}

// ready fills in the fields of a node that are known once its workers run.
func (n *Node) ready() {
	n.Msg.State, n.Msg.Health = "READY", "HEALTHY"
	for i := range n.Typ.Workers {
		e := &tpualpha.NetworkEndpoint{IpAddress: n.ips[i], Port: 8470, AccessConfig: &tpualpha.AccessConfig{}}
		external := e.IpAddress
		if i < len(n.Machines) {
			external = n.Machines[i].Addr()
			if _, ok := n.Machines[i].(worker.Internal); !ok {
				// A machine on loopback has one address, which is both the internal and the
				// external one.
				e.IpAddress = external
			}
		}
		if Interfaces(n.Msg)[0].EnableExternalIps {
			e.AccessConfig.ExternalIp = external
		}
		n.Msg.NetworkEndpoints = append(n.Msg.NetworkEndpoints, e)
		for _, ip := range n.further[i] { // nothing listens there
			n.Msg.NetworkEndpoints = append(n.Msg.NetworkEndpoints, &tpualpha.NetworkEndpoint{IpAddress: ip, Port: 8470, AccessConfig: &tpualpha.AccessConfig{}})
		}
	}
}

func (s Slices) workerSpecs(n *Node) []worker.Spec {
	if s.Workers == nil {
		return nil
	}
	specs := make([]worker.Spec, n.Typ.Workers)
	name := n.Msg.Name
	for i := range specs {
		specs[i] = worker.Spec{
			Name:     fmt.Sprintf("%s-w-%d", n.Id, i),
			Node:     n.Id,
			NodeUID:  fmt.Sprint(n.Msg.Id),
			Index:    i,
			Hostname: instanceName(n, i),
			Root:     filepath.Join(s.WorkersDir(), fmt.Sprintf("%s-%s-%x-w-%d", n.Zone, n.Id, n.Msg.Id, i)),
			Devices:  n.Typ.Devices(),
			MTU:      n.mtu,
			IP:       n.ips[i],
			Gateway:  s.State.Subnetworks[Interfaces(n.Msg)[0].Subnetwork].GetGatewayAddress(),
			Network:  Interfaces(n.Msg)[0].Network,
			Metadata: metadataServer(
				func() map[string]string { return s.Machines().metadataOf(n, i) },
				func(name, value string) bool { return s.Machines().keepGuest(n, i, name, value) }),
			Services:       map[string]http.Handler{strings.TrimPrefix(s.BaseURL, "http://"): s.Serve},
			AuthorizedKeys: func() []string { return s.authorizedKeys(name) },
			Faults:         s.Injection().workerFaults(n.Id, i),
		}
		if n.Typ.Generation.NUMA {
			specs[i].NUMANodes = 2
		}
	}
	return specs
}

// instanceName returns the hostname of the VM of worker i.
func instanceName(n *Node, i int) string { return fmt.Sprintf("t1v-n-%08x-w-%d", uint32(n.Msg.Id), i) }

// StartMachines starts machines. If one of them does not start, it stops the others. It
// takes no lock.
func (s Slices) StartMachines(specs []worker.Spec) ([]worker.Machine, error) {
	machines := make([]worker.Machine, len(specs))
	group, ctx := errgroup.WithContext(s.Ctx)
	group.SetLimit(maxBoots)
	for i, spec := range specs {
		group.Go(func() (err error) {
			if addr, parseErr := netip.ParseAddr(spec.IP); parseErr == nil && !s.Networks().claim(addr) {
				return fmt.Errorf("start worker %q: no internal address is free: other simulators on this machine have those up to %s", spec.Name, spec.IP)
			}
			machines[i], err = s.Workers.Start(ctx, spec)
			if err != nil {
				err = fmt.Errorf("start worker %q: %w", spec.Name, err)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, stopAll(s.Ctx, machines))
	}
	return machines, nil
}

// Discard stops machines that belong to nothing yet.
func (s Slices) Discard(machines []worker.Machine) {
	s.Spawn(func() { _ = stopAll(s.Ctx, machines) }) // the backend later stops the rest
}

func stopAll(ctx context.Context, machines []worker.Machine) error {
	return each(machines, func(m worker.Machine) error { return m.Stop(ctx) })
}

// each calls f for every machine that is not nil, at most maxBoots at a time.
func each(machines []worker.Machine, f func(worker.Machine) error) error {
	group := new(errgroup.Group)
	group.SetLimit(maxBoots)
	for _, m := range machines {
		if m != nil {
			group.Go(func() error { return f(m) })
		}
	}
	return group.Wait()
}

// shutDownAll shuts all machines down in parallel. limit applies to each.
func shutDownAll(ctx context.Context, machines []worker.Machine, limit time.Duration) error {
	group := new(errgroup.Group)
	for _, m := range machines {
		switch o, ok := m.(worker.Orderly); {
		case ok:
			group.Go(func() error { return o.ShutDown(ctx, limit) })
		case m != nil:
			group.Go(func() error { return m.Stop(ctx) })
		}
	}
	return group.Wait()
}

// How long a machine may run on after Compute Engine has told it to end: when it preempts
// the machine, and when it stops or deletes it.
const (
	PreemptLimit = 30 * time.Second
	StopLimit    = 90 * time.Second
)

// stopMachines shuts the workers of n down, then calls done with s.Mu held. Several calls
// share one shutdown with the limit of the first, and each done is called. The caller holds
// s.Mu.
func (s Slices) stopMachines(n *Node, limit time.Duration, done func()) {
	n.ended = append(n.ended, done)
	if len(n.ended) > 1 {
		return
	}
	machines := n.Machines
	n.Machines = nil
	stop := stopAll
	if n.Msg.Metadata["shutdown-script"] != "" {
		stop = func(ctx context.Context, machines []worker.Machine) error { return shutDownAll(ctx, machines, limit) }
	}
	s.Spawn(func() {
		_ = stop(s.Ctx, machines) // the backend later stops the rest
		s.Mu.Lock()
		defer s.Mu.Unlock()
		ended := n.ended
		n.ended = nil
		for _, f := range ended {
			f()
		}
	})
}

// RebootAll reboots every worker of q and then ends op.
func (s Slices) RebootAll(q *QueuedResource, op *Operation) {
	var machines []worker.Machine
	for _, n := range s.NodesOf(q) {
		machines = append(machines, n.Machines...)
	}
	s.NextStep(func() {
		s.Spawn(func() {
			err := RestartMachines(s.Ctx, machines, 0)
			s.Mu.Lock()
			defer s.Mu.Unlock()
			if err != nil {
				s.Finish(op, nil, wire.Errorf(http.StatusInternalServerError, "an internal error has occurred: %v", err))
				return
			}
			s.Finish(op, q.Msg, nil)
		})
	})
}

// authorizedKeys returns the ssh-keys lines that apply to the workers of a node, by the
// rules of the guest agent: OS Login's keys replace all others, a node may block the
// project's keys, and expired keys do not count. It takes the lock.
func (s Slices) authorizedKeys(nodeName string) []string {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	n := s.State.Nodes[nodeName]
	if n == nil {
		return nil
	}
	return s.keysInForce(n.Msg.Metadata)
}

// keysInForce does what authorizedKeys does, for a machine with metadata of its own. The
// caller holds s.Mu.
func (s Slices) keysInForce(own map[string]string) []string {
	project := s.State.Metadata
	osLogin, set := own["enable-oslogin"]
	if !set {
		osLogin = project["enable-oslogin"]
	}
	if isTrue(osLogin) {
		return s.Identity().osLoginKeys()
	}
	text := own["ssh-keys"]
	if !isTrue(own["block-project-ssh-keys"]) {
		text = project["ssh-keys"] + "\n" + text
	}
	var keys []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, ":") && !expired(line, s.Clock.Now()) {
			keys = append(keys, line)
		}
	}
	return keys
}

func isTrue(text string) bool { return strings.EqualFold(strings.TrimSpace(text), "true") }

// expired parses a line `user:type base64 google-ssh {"expireOn":…}`. As for the guest
// agent, a line that it cannot parse is expired.
func expired(line string, now time.Time) bool {
	_, text, ok := strings.Cut(line, " google-ssh ")
	if !ok {
		return false
	}
	var limit struct {
		ExpireOn string `json:"expireOn"`
	}
	if err := json.Unmarshal([]byte(text), &limit); err != nil {
		return true
	}
	t, err := time.Parse("2006-01-02T15:04:05-0700", limit.ExpireOn)
	return err != nil || now.After(t)
}
