// Package worker is the simulator's stand-in for the virtual machines of a TPU slice. They
// answer SSH, run commands, have kernel settings and fail on request.
//
// A [Backend] creates machines. The process backend ([NewProcess]) needs no privileges.
// Each of its machines is a separate SSH server on its own loopback address. The server
// runs real bash in a private directory. A private PATH has stand-ins for the commands that
// would read or change the real machine (sudo, sysctl, ip, ethtool, numactl, lsof, …). See
// [NewProcess] for what it does and does not model.
//
// Package netns has the other backend, whose machines have their own kernel namespaces,
// file system and OpenSSH server. Besides Backend, Spec, Machine and Fault, the exported
// names are those that both backends share.
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
	Node     string // the TPU node to which the machine belongs: "t-0"
	NodeUID  string // unique id of that node
	Index    int    // number of the worker in its node
	Hostname string // the machine's host name: "t1v-n-0123abcd-w-0"

	// Root is the machine's private directory. It is created if it is missing. Two machines
	// must not share one. Homes in it are kept. So a machine that must be new to its user
	// needs a new directory. Empty means a directory below the backend's root, named after
	// Node and Index. A file system in memory makes starting many machines much faster.
	Root string

	// Devices are the TPU device files, as absolute paths on the machine:
	// "/dev/accel0", or "/dev/vfio/0" and "/dev/vfio/vfio".
	Devices []string

	MTU       int    // MTU of the machine's network; 0 means 1460
	IP        string // the machine's own address, as it sees it; empty means 10.128.0.2 + Index
	Gateway   string // gateway of its subnetwork; empty means address 1 of the /20 that contains IP
	Network   string // machines with the same Network reach each other; the process backend has only one network
	NUMANodes int    // number of NUMA nodes; 0 means 1; the netns backend has those of the real machine

	// Hosts are the addresses of other machines that the machine knows by name. Machines of
	// the process backend do not know each other by name.
	Hosts map[string]string

	// AuthorizedKeys returns the lines of the ssh-keys metadata of project and node that
	// now apply ("login:type base64 comment"). Each login calls it. Several logins may call
	// it at the same time. If it is nil, nobody can log in.
	AuthorizedKeys func() []string

	// Metadata is the instance metadata server. The machine finds it at 169.254.169.254,
	// port 80. On some machines it is at the address in the variable GCE_METADATA_HOST,
	// which Google's own libraries also read. At each boot, root runs the startup script
	// that it has, if there is one. At an orderly shutdown, root runs the shutdown script.
	// Nil means no metadata server.
	Metadata http.Handler

	// Services are servers of the caller, by the loopback address on which each listens. If
	// a machine has its own loopback interface, it reaches them there, too.
	Services map[string]http.Handler

	// Boot is a bash script that root runs on the machine at each boot, before the
	// machine answers. Only the netns backend runs it.
	Boot string

	// Env is added to the environment of every login, after the machine's own.
	Env []string

	// Faults are active when the machine starts.
	Faults []Fault
}

// A Backend creates machines. Its methods are safe for concurrent use.
type Backend interface {
	// Start creates a machine and returns once it answers, or once a fault of the spec
	// keeps it from answering.
	Start(ctx context.Context, spec Spec) (Machine, error)

	// Port returns the SSH port, which is the same on every machine.
	Port() int

	// Close stops all machines and waits until nothing of them is left.
	Close() error
}

// A Machine is one running worker. Its methods are safe for concurrent use.
type Machine interface {
	// Addr returns the IP address at which the machine is reachable. It does not change
	// until Stop.
	Addr() string

	// Hostname returns the machine's host name.
	Hostname() string

	// HostKeys returns the public host keys in base64 by type ("ssh-ed25519"), as in
	// guest attributes.
	HostKeys() map[string]string

	// Reboot is a reset. It kills every process, resets the kernel settings, empties /tmp
	// and makes a new boot id. It returns when the machine answers again. Files outside of
	// /tmp and the host keys stay. No shutdown script runs.
	Reboot(ctx context.Context) error

	// SetFault makes a fault active. [FaultKind] says what each fault does.
	SetFault(f Fault) error

	// Stop ends the machine like a power failure. When it returns without error, no process
	// and no listener is left. The machine's directory stays. A caller may call Stop again.
	Stop(ctx context.Context) error
}

// Orderly is implemented by machines whose operating system can be shut down.
type Orderly interface {
	// If the metadata has a shutdown script, ShutDown runs it as root until it ends or the
	// limit has passed. Then it calls Stop. Meanwhile the machine continues to work.
	ShutDown(ctx context.Context, limit time.Duration) error
}

// Host is implemented by machines whose processes run on this machine.
type Host interface {
	// Login returns the environment of a process of the user, without the variables that
	// SSH adds. It also returns the home of the user. Login creates the home.
	Login(user string) (env []string, home string, err error)
}

// RebootLimit is how long the shutdown script may take when a machine reboots. Compute
// Engine gives 90 s unless the machine is preempted.
const RebootLimit = 90 * time.Second

// These are scripts of the metadata that root runs. The names are also the names of the
// files from which they run.
const (
	StartupScript  = "startup-script"
	ShutdownScript = "shutdown-script"
)

// Internal is implemented by machines whose address in their own network differs from the
// address at which the caller reaches them.
type Internal interface {
	// InternalAddr returns the address at which the other machines of the network reach
	// this machine: Spec.IP.
	InternalAddr() string
}

// Claimer is implemented by backends whose machines must not have the addresses (Spec.IP)
// of another simulator's machines.
type Claimer interface {
	// Claim reports whether a machine may have the address. A claim lasts until Close.
	Claim(addr netip.Addr) bool
}

// Filled returns the spec with its defaults filled in. If the spec is invalid, it returns
// an error.
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

// Directory returns the name of a machine's directory. It is below the directory of its
// backend.
func (s Spec) Directory() (string, error) {
	if s.Node == "" || strings.ContainsAny(s.Node, "/\x00") || strings.HasPrefix(s.Node, ".") {
		return "", fmt.Errorf("bad node name %q", s.Node)
	}
	return fmt.Sprintf("%s-w-%d", s.Node, s.Index), nil
}
