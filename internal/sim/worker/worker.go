// Package worker is the simulator's stand-in for the VMs of a TPU slice. They answer SSH,
// run commands, have kernel settings and fail on request.
//
// A [Backend] creates machines. The process backend ([NewProcess]) needs no privileges.
// Each of its machines is an SSH server on its own loopback address, which runs real bash
// in a private directory. A private PATH has stand-ins for commands that would read or
// change the real machine (sudo, sysctl, ip, ethtool, numactl, lsof, …). See [NewProcess]
// for what it does and does not model.
//
// Package netns has the other backend. Its machines have their own kernel namespaces, file
// system and OpenSSH server. All exported names except Backend, Spec, Machine and Fault are
// for the two backends.
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

// A Spec describes a machine.
type Spec struct {
	Name     string // for people: "s0w0", or "t-0-w-3"
	Node     string // the TPU node of the machine: "t-0"
	NodeUID  string // unique id of that node
	Index    int    // number of the worker in its node
	Hostname string // the machine's host name: "t1v-n-0123abcd-w-0"

	// Root is the machine's private directory. It is created if it is missing. Two machines
	// must not share one. Homes in it are kept, so a machine that must be new to its user
	// needs a new directory. "" means a directory below the backend's root, named after
	// Node and Index. With a file system in memory, many machines start much faster.
	Root string

	// Devices are the TPU device files, as absolute paths on the machine:
	// "/dev/accel0", or "/dev/vfio/0" and "/dev/vfio/vfio".
	Devices []string

	MTU       int    // MTU of the machine's network; 0 means 1460
	IP        string // the machine's own address, as it sees it; "" means 10.128.0.2 + Index
	Gateway   string // gateway of its subnetwork; "" means address 1 of the /20 around IP
	Network   string // machines with the same Network reach each other; the process backend has only one network
	NUMANodes int    // number of NUMA nodes; 0 means 1; on the netns backend, those of the real machine

	// Hosts are addresses of other machines by the names that this machine knows. Machines
	// of the process backend know no names.
	Hosts map[string]string

	// AuthorizedKeys returns the lines of the ssh-keys metadata of project and node that
	// apply now ("login:type base64 comment"). Each login calls it, several at a time. If
	// it is nil, nobody can log in.
	AuthorizedKeys func() []string

	// Metadata is the instance metadata server, or nil. The machine finds it at
	// 169.254.169.254, port 80, or at the address in GCE_METADATA_HOST, which Google's own
	// libraries also read. At each boot, root runs the startup script in it. At an orderly
	// shutdown, root runs the shutdown script.
	Metadata http.Handler

	// Services are servers of the caller, by the loopback address on which each listens. A
	// machine with a loopback interface of its own reaches them there, too.
	Services map[string]http.Handler

	// Boot is a bash script that root runs at each boot, before the machine answers. Netns
	// backend only.
	Boot string

	// Env is added to the environment of every login, after the machine's own.
	Env []string

	// Faults are active when the machine starts.
	Faults []Fault
}

// A Backend creates machines. Its methods are safe for concurrent use.
type Backend interface {
	// Start creates a machine and returns once it answers, or once it cannot because of a
	// fault in the spec.
	Start(ctx context.Context, spec Spec) (Machine, error)

	// Port returns the SSH port, which is the same on every machine.
	Port() int

	// Close stops all machines and waits until nothing of them is left.
	Close() error
}

// A Machine is one running worker. Its methods are safe for concurrent use.
type Machine interface {
	// Addr returns the IP address that reaches the machine. It does not change until Stop.
	Addr() string

	// Hostname returns the machine's host name.
	Hostname() string

	// HostKeys returns the public host keys in base64 by type ("ssh-ed25519"), as in
	// guest attributes.
	HostKeys() map[string]string

	// Reboot is a reset. It kills every process, resets the kernel settings, empties /tmp
	// and makes a new boot id. Files outside of /tmp and the host keys stay. No shutdown
	// script runs. Reboot returns when the machine answers again.
	Reboot(ctx context.Context) error

	// SetFault makes a fault active. [FaultKind] says what each fault does.
	SetFault(f Fault) error

	// Stop ends the machine like a power failure. When it returns without error, no process
	// and no listener is left. The machine's directory stays. Stop may be called again.
	Stop(ctx context.Context) error
}

// Orderly is a machine whose operating system can be shut down.
type Orderly interface {
	// ShutDown runs the shutdown script of the metadata as root, if there is one, until it
	// ends or the limit has passed. Meanwhile the machine works on. Then ShutDown calls
	// Stop.
	ShutDown(ctx context.Context, limit time.Duration) error
}

// Host is a machine whose processes run on this machine.
type Host interface {
	// Login returns the environment of a user's process, without the variables that SSH
	// adds, and the user's home, which it creates.
	Login(user string) (env []string, home string, err error)
}

// RebootLimit limits the shutdown script when a machine reboots. Compute Engine gives 90 s
// unless the machine is preempted.
const RebootLimit = 90 * time.Second

// The scripts of the metadata that root runs. They run from files of these names.
const (
	StartupScript  = "startup-script"
	ShutdownScript = "shutdown-script"
)

// Internal is a machine whose address in its own network differs from the address at which
// the caller reaches it.
type Internal interface {
	// InternalAddr returns the address at which other machines of the network reach this
	// one: Spec.IP.
	InternalAddr() string
}

// Claimer is a backend whose machines must not have the addresses (Spec.IP) of another
// simulator's machines.
type Claimer interface {
	// Claim reports whether a machine may have the address. A claim lasts until Close.
	Claim(addr netip.Addr) bool
}

// Filled returns the spec with its defaults, or an error if the spec is invalid.
func (s Spec) Filled() (Spec, error) {
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

// Directory returns the name of a machine's directory below that of its backend.
func (s Spec) Directory() (string, error) {
	if s.Node == "" || strings.ContainsAny(s.Node, "/\x00") || strings.HasPrefix(s.Node, ".") {
		return "", fmt.Errorf("bad node name %q", s.Node)
	}
	return fmt.Sprintf("%s-w-%d", s.Node, s.Index), nil
}
