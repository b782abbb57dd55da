package sim

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
	tpualpha "google.golang.org/api/tpu/v2alpha1"

	"multihost/internal/sim/worker"
)

// maxBoots limits the workers of one node that boot at the same time.
const maxBoots = 16

func (s *Cloud) makeBackend() error {
	switch {
	case s.cfg.Workers != nil:
		s.workers = s.cfg.Workers
		return nil
	case s.cfg.Backend == "none":
		return nil
	case !slices.Contains([]string{"", "process", "netns"}, s.cfg.Backend):
		return fmt.Errorf("backend %q: want process, netns or none", s.cfg.Backend)
	}
	// Env returns the port before the first worker exists.
	port := s.cfg.SSHPort
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
	if s.cfg.Backend == "netns" {
		b, err = worker.NewNetns(worker.NetnsConfig{Root: s.workersDir(), Port: port})
	} else {
		b, err = worker.NewProcess(worker.ProcessConfig{Root: s.workersDir(), Port: port})
	}
	if err != nil {
		return err
	}
	s.workers = b
	return nil
}

var errNodeGone = errors.New("node deleted while it was being made")

// bootNode starts the workers of n and makes it READY. It then calls done with s.mu held.
// The caller holds s.mu.
func (s *Cloud) bootNode(n *node, done func(error)) {
	if n.msg.State != "CREATING" {
		done(errNodeGone)
		return
	}
	specs := s.workerSpecs(n)
	s.spawn(func() {
		machines, err := s.startMachines(specs)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil && n.msg.State != "CREATING" {
			s.discard(machines)
			err = errNodeGone
		}
		if err == nil {
			n.machines = machines
			n.ready()
		}
		done(err)
	})
}

// ready fills in the fields of a node that are known once its workers run.
func (n *node) ready() {
	n.msg.State, n.msg.Health = "READY", "HEALTHY"
	for i := range n.typ.Workers {
		e := &tpualpha.NetworkEndpoint{IpAddress: n.ips[i], Port: 8470, AccessConfig: &tpualpha.AccessConfig{}}
		external := e.IpAddress
		if i < len(n.machines) {
			external = n.machines[i].Addr()
			if _, ok := n.machines[i].(worker.Internal); !ok {
				// A machine on loopback has only one address, which serves as both the
				// internal and the external one.
				e.IpAddress = external
			}
		}
		if interfaces(n.msg)[0].EnableExternalIps {
			e.AccessConfig.ExternalIp = external
		}
		n.msg.NetworkEndpoints = append(n.msg.NetworkEndpoints, e)
		for _, ip := range n.further[i] { // nothing listens there
			n.msg.NetworkEndpoints = append(n.msg.NetworkEndpoints, &tpualpha.NetworkEndpoint{IpAddress: ip, Port: 8470, AccessConfig: &tpualpha.AccessConfig{}})
		}
	}
}

func (s *Cloud) workerSpecs(n *node) []worker.Spec {
	if s.workers == nil {
		return nil
	}
	specs := make([]worker.Spec, n.typ.Workers)
	name := n.msg.Name
	for i := range specs {
		specs[i] = worker.Spec{
			Name:           fmt.Sprintf("%s-w-%d", n.id, i),
			Node:           n.id,
			NodeUID:        fmt.Sprint(n.msg.Id),
			Index:          i,
			Hostname:       instanceName(n, i),
			Root:           filepath.Join(s.workersDir(), fmt.Sprintf("%s-%s-%x-w-%d", n.zone, n.id, n.msg.Id, i)),
			Devices:        n.typ.Devices(),
			MTU:            n.mtu,
			IP:             n.ips[i],
			Gateway:        s.state.subnetworks[interfaces(n.msg)[0].Subnetwork].GetGatewayAddress(),
			Network:        interfaces(n.msg)[0].Network,
			Metadata:       s.metadataServer(n, i),
			Services:       map[string]http.Handler{strings.TrimPrefix(s.url, "http://"): s.serve},
			AuthorizedKeys: func() []string { return s.authorizedKeys(name) },
			Faults:         s.workerFaults(n.id, i),
		}
		if n.typ.Generation.NUMA {
			specs[i].NUMANodes = 2
		}
	}
	return specs
}

// instanceName returns the hostname of the VM of worker i.
func instanceName(n *node, i int) string { return fmt.Sprintf("t1v-n-%08x-w-%d", uint32(n.msg.Id), i) }

func (s *Cloud) startMachines(specs []worker.Spec) ([]worker.Machine, error) {
	machines := make([]worker.Machine, len(specs))
	group, ctx := errgroup.WithContext(s.ctx)
	group.SetLimit(maxBoots)
	for i, spec := range specs {
		group.Go(func() (err error) {
			if addr, parseErr := netip.ParseAddr(spec.IP); parseErr == nil && !s.claim(addr) {
				return fmt.Errorf("start worker %q: no internal address is free: other simulators on this machine have those up to %s", spec.Name, spec.IP)
			}
			machines[i], err = s.workers.Start(ctx, spec)
			if err != nil {
				err = fmt.Errorf("start worker %q: %w", spec.Name, err)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, stopAll(s.ctx, machines))
	}
	return machines, nil
}

// discard stops machines that are not part of any node yet.
func (s *Cloud) discard(machines []worker.Machine) {
	s.spawn(func() { _ = stopAll(s.ctx, machines) }) // the backend stops the rest
}

func stopAll(ctx context.Context, machines []worker.Machine) error {
	group := new(errgroup.Group)
	group.SetLimit(maxBoots)
	for _, m := range machines {
		if m != nil {
			group.Go(func() error { return m.Stop(ctx) })
		}
	}
	return group.Wait()
}

// shutDownAll shuts all machines down in parallel; limit applies to each.
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

// How long Compute Engine lets a machine continue after telling it to end: when it
// preempts the machine, and when it stops or deletes it.
const (
	preemptLimit = 30 * time.Second
	stopLimit    = 90 * time.Second
)

// stopMachines shuts the workers of n down and then calls done with s.mu held. If it is
// called several times, it calls each done; the limit of the first call applies. The
// caller holds s.mu.
func (s *Cloud) stopMachines(n *node, limit time.Duration, done func()) {
	n.ended = append(n.ended, done)
	if len(n.ended) > 1 {
		return
	}
	machines := n.machines
	n.machines = nil
	stop := stopAll
	if n.msg.Metadata["shutdown-script"] != "" {
		stop = func(ctx context.Context, machines []worker.Machine) error { return shutDownAll(ctx, machines, limit) }
	}
	s.spawn(func() {
		_ = stop(s.ctx, machines) // the backend stops the rest
		s.mu.Lock()
		defer s.mu.Unlock()
		ended := n.ended
		n.ended = nil
		for _, f := range ended {
			f()
		}
	})
}

// rebootAll reboots every worker of q and then ends op.
func (s *Cloud) rebootAll(q *queuedResource, op *operation) {
	var machines []worker.Machine
	for _, n := range s.nodesOf(q) {
		machines = append(machines, n.machines...)
	}
	s.nextStep(func() {
		s.spawn(func() {
			group, ctx := errgroup.WithContext(s.ctx)
			group.SetLimit(maxBoots)
			for _, m := range machines {
				group.Go(func() error { return m.Reboot(ctx) })
			}
			err := group.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if err != nil {
				s.finish(op, nil, errorf(http.StatusInternalServerError, "an internal error has occurred: %v", err))
				return
			}
			s.finish(op, q.msg, nil)
		})
	})
}

// authorizedKeys returns the ssh-keys lines in force on the workers of a node, as the
// guest agent computes them: OS Login's keys replace all others, a node may block the
// project's keys, and expired keys do not count.
func (s *Cloud) authorizedKeys(nodeName string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.state.nodes[nodeName]
	if n == nil {
		return nil
	}
	own, project := n.msg.Metadata, s.state.metadata
	osLogin, set := own["enable-oslogin"]
	if !set {
		osLogin = project["enable-oslogin"]
	}
	if isTrue(osLogin) {
		return s.osLoginKeys()
	}
	text := own["ssh-keys"]
	if !isTrue(own["block-project-ssh-keys"]) {
		text = project["ssh-keys"] + "\n" + text
	}
	var keys []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, ":") && !expired(line, s.clock.Now()) {
			keys = append(keys, line)
		}
	}
	return keys
}

func isTrue(text string) bool { return strings.EqualFold(strings.TrimSpace(text), "true") }

// expired parses the form `user:type base64 google-ssh {"expireOn":…}`. A line that
// cannot be parsed counts as expired, as for the guest agent.
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
