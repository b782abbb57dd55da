// Package worker is the simulator's stand-in for the virtual machines of a TPU
// slice: what answers SSH, runs commands, keeps kernel settings and fails when
// told to.
//
// A [Backend] makes machines. The process backend ([NewProcess]) needs no
// privileges: each machine is an SSH server of its own on a loopback address
// of its own, which runs real bash in a private directory with a private PATH
// of stand-ins for the commands that would read or change the machine it runs
// on (sudo, sysctl, ip, ethtool, numactl, lsof, …). See [NewProcess] for what
// it does and does not model.
//
// The netns backend ([NewNetns]) needs root: each machine has kernel
// namespaces, a file system and an OpenSSH server of its own.
package worker

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// A Spec says what machine to make.
type Spec struct {
	Name     string // for people: "s0w0", or "t-0-w-3"
	Node     string // the TPU node that the machine belongs to: "t-0"
	NodeUID  string // unique id of that node
	Index    int    // number of the worker in its node
	Hostname string // what the machine calls itself: "t1v-n-0123abcd-w-0"

	// Root is the machine's private directory. It is made if need be, and no
	// two machines run in one. Homes that are in it are kept, so a machine
	// that is new to its user wants a new directory. Empty means one below the
	// backend's root, named after Node and Index. A file system in memory
	// makes starting many machines much faster.
	Root string

	// Devices are the TPU device files, as absolute paths on the machine:
	// "/dev/accel0", or "/dev/vfio/0" and "/dev/vfio/vfio".
	Devices []string

	MTU       int    // of the network that the machine is on; 0 means 1460
	IP        string // the machine's own address as it sees it; empty means 10.128.0.2 + Index
	Gateway   string // of its subnetwork; empty means address 1 of the /20 that IP is in
	Network   string // machines reach each other when they name the same one; the process backend has but one
	NUMANodes int    // number of NUMA nodes; 0 means 1; the netns backend has those of the real machine

	// AuthorizedKeys returns the lines of the ssh-keys metadata in force
	// ("login:type base64 comment"), of project and node. It is asked at each
	// login, possibly by many goroutines at once. Nil lets nobody in.
	AuthorizedKeys func() []string

	// Metadata is the instance metadata server. The machine finds it at
	// 169.254.169.254, port 80, or where the variable GCE_METADATA_HOST says,
	// which Google's own libraries read too. At each boot root runs the startup
	// script that is in it, if there is one, and at an orderly end the shutdown
	// script. Nil means that there is none.
	Metadata http.Handler

	// Services are servers of the caller, by the loopback address that they
	// listen on. A machine with a loopback interface of its own has them there.
	Services map[string]http.Handler

	// Boot is a bash script that root runs on the machine at each boot, before
	// it answers. Only the netns backend runs it.
	Boot string

	// Env is added to the environment of every login, after the machine's own.
	Env []string

	// Faults are in force when the machine starts.
	Faults []Fault
}

// A Backend makes machines. Its methods may be called by many goroutines.
type Backend interface {
	// Start makes a machine and returns once it answers, unless a fault of
	// the spec keeps it from doing so.
	Start(ctx context.Context, spec Spec) (Machine, error)

	// Port is the SSH port, the same on every machine.
	Port() int

	// Close stops all machines and waits until nothing of them is left.
	Close() error
}

// A Machine is one running worker. Its methods may be called by many
// goroutines.
type Machine interface {
	// Addr is the IP address at which the machine is reached. It stays the
	// same until Stop.
	Addr() string

	// Hostname is what the machine calls itself.
	Hostname() string

	// HostKeys returns the public host keys by type ("ssh-ed25519"), base64,
	// as guest attributes serve them.
	HostKeys() map[string]string

	// Reboot is a reset: it kills every process, resets the kernel settings,
	// empties /tmp, makes a new boot id and returns when the machine answers
	// again. Files outside /tmp and host keys stay. No shutdown script runs.
	Reboot(ctx context.Context) error

	// SetFault puts a fault in force (see [FaultKind] for what each does).
	SetFault(f Fault) error

	// Stop ends the machine, as when its power goes: no process and no listener
	// is left when it returns without error. Its directory stays. It may be called
	// again.
	Stop(ctx context.Context) error
}

// Orderly is what a Machine has besides when its operating system can be told to
// end.
type Orderly interface {
	// ShutDown has root run the shutdown script of the metadata, if there is one,
	// until it has ended or the limit is over, and then is Stop. The machine works
	// on meanwhile.
	ShutDown(ctx context.Context, limit time.Duration) error
}

// rebootLimit is how long the shutdown script may take when a machine reboots.
// Compute Engine gives 90 s where it is not preempted.
const rebootLimit = 90 * time.Second

// Metadata that root runs, and the names of the files that it is run from.
const (
	startupScript  = "startup-script"
	shutdownScript = "shutdown-script"
)

// Internal is what a Machine has besides when the address at which the caller
// reaches it is not the one that it has in its own network.
type Internal interface {
	// InternalAddr is the address at which the other machines of the network
	// reach it: Spec.IP.
	InternalAddr() string
}

// Claimer is what a Backend has besides when its machines' own addresses (Spec.IP)
// must not be those of another simulator's.
type Claimer interface {
	// Claim reports whether a machine may have the address. What is claimed is so
	// until Close.
	Claim(addr netip.Addr) bool
}

// filled returns the spec with its defaults, or says what is wrong with it.
func (s Spec) filled() (Spec, error) {
	for _, d := range s.Devices {
		if !strings.HasPrefix(d, "/dev/") || filepath.Clean(d) != d {
			return s, fmt.Errorf("bad device path %q", d)
		}
	}
	s.MTU = cmp.Or(s.MTU, 1460)
	s.NUMANodes = cmp.Or(s.NUMANodes, 1)
	s.IP = cmp.Or(s.IP, net.IPv4(10, 128, byte((s.Index+2)>>8), byte(s.Index+2)).String())
	s.Hostname = cmp.Or(s.Hostname, fmt.Sprintf("t1v-n-%s-w-%d", s.Node, s.Index))
	ip, err := netip.ParseAddr(s.IP)
	if err != nil || !ip.Is4() {
		return s, fmt.Errorf("bad address %q", s.IP)
	}
	if s.Gateway == "" {
		subnet, err := ip.Prefix(20)
		if err != nil {
			return s, err
		}
		s.Gateway = subnet.Addr().Next().String()
	}
	return s, nil
}

// directory returns the name of a machine's directory below its backend's.
func (s Spec) directory() (string, error) {
	if s.Node == "" || strings.ContainsAny(s.Node, "/\x00") || strings.HasPrefix(s.Node, ".") {
		return "", fmt.Errorf("bad node name %q", s.Node)
	}
	return fmt.Sprintf("%s-w-%d", s.Node, s.Index), nil
}
