package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"multihost/internal/sim/worker"
)

// netnsBackend is the Backend of New.
type netnsBackend struct {
	cfg    Config
	tools  map[string]string // paths by name
	fabric *fabric
	worker.Loopback

	extraSSHD []string // lines of sshd_config that only some versions accept

	mu       sync.Mutex
	closed   bool
	machines map[*netnsMachine]struct{}
	claims   map[netip.Prefix]io.Closer // networks whose addresses belong to this backend
}

// toolPackages maps the programs that machines need from the real machine to Debian
// packages.
func toolPackages() map[string]string {
	return map[string]string{
		"sshd": "openssh-server", "ip": "iproute2", "ethtool": "ethtool", "numactl": "numactl", "lsof": "lsof",
		"sudo": "sudo", "bash": "bash", "sysctl": "procps", "curl": "curl", "tar": "tar", "gzip": "gzip",
		"setsid": "util-linux", "tail": "coreutils",
	}
}

// Ready returns why the netns backend cannot work here: [ErrNotRoot], a [*ToolsError] or an
// error of the kernel, such as in a container without the rights. nil means that it found
// no reason.
func Ready() error {
	if _, err := findTools(); err != nil {
		return err
	}
	return worker.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		return nil
	})
}

func findTools() (map[string]string, error) {
	if os.Geteuid() != 0 {
		return nil, worker.ErrNotRoot
	}
	paths := make(map[string]string)
	var missing worker.ToolsError
	for _, name := range sortedKeys(toolPackages()) {
		for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
			path := filepath.Join(dir, name)
			if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				paths[name] = path
				break
			}
		}
		if paths[name] == "" {
			missing.Missing = append(missing.Missing, name)
			missing.Packages = append(missing.Packages, toolPackages()[name])
		}
	}
	if len(missing.Missing) > 0 {
		return nil, &missing
	}
	return paths, nil
}

// New returns a backend whose machines are as real as a single Linux kernel can make them.
// It needs root. The program's main function must call [MaybeInit] first, because the
// backend starts the program again as process 1 of each machine.
//
// A machine has its own network, mount, process, UTS and IPC namespaces. It sees the files
// of the real machine under a private layer that survives reboots. It has its own /tmp,
// /run, /home, /root, /dev, users, module parameters and boot id. It uses sshd, ip, sysctl,
// ethtool and sudo of the real machine. Its process 1 collects ended processes. Its
// interface ens8 is on a bridge for its network. A router between the bridges answers as
// gateway, but does not connect networks. If the metadata has a key for a user, the backend
// creates the user before it passes a connection on to sshd.
//
// The caller reaches a machine at Addr, an address of 127.64.0.0/10. There the backend
// passes bytes on to sshd, and simulates the faults of the transport. Other machines of the
// network reach a machine at its own address ([Internal]). So does the real machine, unless
// it has another route to that address. The faults of the transport affect connections to
// the backend's port, which need not be 22. If the caller uses Claim, backends that run at
// the same time have different addresses.
//
// All namespaces, links and mounts belong to a thread of the caller and to the machines'
// processes, which die with the thread. So the kernel removes everything, however the
// caller ends. Outside of the namespaces there is one link, with one route for each
// machine.
//
// A machine sees only the root file system of the real machine, not the mounts below /. It
// has no other programs.
//
// It does not model resource limits, NUMA nodes and chips that the real machine does not
// have, package installation (there is no route to the internet), systemd, and time. Root
// on a machine may not mount, load modules, make device nodes or change the kernel outside
// its network namespace.
func New(cfg Config) (worker.Backend, error) {
	b, err := newNetns(cfg)
	if err != nil {
		return nil, fmt.Errorf("make netns backend: %w", err)
	}
	return b, nil
}

func newNetns(cfg Config) (*netnsBackend, error) {
	if cfg.Root == "" {
		return nil, errors.New("no root directory given")
	}
	tools, err := findTools()
	if err != nil {
		return nil, err
	}
	if cfg.Root, err = filepath.Abs(cfg.Root); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Root, 0o755); err != nil {
		return nil, err
	}
	if cfg.Root, err = filepath.EvalSymlinks(cfg.Root); err != nil {
		return nil, err
	}
	if err := Sweep(context.Background(), cfg.Root); err != nil {
		return nil, err
	}
	b := &netnsBackend{cfg: cfg, tools: tools, machines: make(map[*netnsMachine]struct{}), claims: make(map[netip.Prefix]io.Closer)}
	if err := b.Loopback.Init(cfg.Port); err != nil {
		return nil, err
	}
	if err := worker.StartAfresh(); err != nil {
		return nil, err
	}
	// From version 9.8 on, sshd penalises an address with failed logins. Here all logins
	// come from one address.
	out, _ := exec.Command(tools["sshd"], "-t", "-o", "PerSourcePenalties=no").CombinedOutput()
	if !strings.Contains(string(out), "PerSourcePenalties") {
		b.extraSSHD = append(b.extraSSHD, "PerSourcePenalties no")
	}
	if b.fabric, err = newFabric(tools["ip"], b.disks()); err != nil {
		return nil, err
	}
	return b, nil
}

// disks is the mount point of the file system with the private layers. The real machine
// sees an empty directory.
func (b *netnsBackend) disks() string { return filepath.Join(b.cfg.Root, "disks") }

func (b *netnsBackend) Start(ctx context.Context, spec worker.Spec) (worker.Machine, error) {
	m, err := b.start(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("start worker %q: %w", spec.Name, err)
	}
	return m, nil
}

func (b *netnsBackend) start(ctx context.Context, spec worker.Spec) (*netnsMachine, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m, err := newNetnsMachine(b, spec)
	if err != nil {
		return nil, err
	}
	ln, err := b.Listen()
	if err != nil {
		return nil, err
	}
	m.addr, m.port = worker.SplitAddr(ln.Addr())
	if err := b.add(m); err != nil {
		ln.Close()
		return nil, err
	}
	if err := m.begin(ctx, ln); err != nil {
		return nil, errors.Join(err, m.Stop(context.WithoutCancel(ctx)))
	}
	return m, nil
}

func (b *netnsBackend) add(m *netnsMachine) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("backend is closed")
	}
	for other := range b.machines {
		if other.name == m.name {
			return fmt.Errorf("a worker %q runs already", m.name)
		}
		if other.Spec.IP == m.Spec.IP {
			return fmt.Errorf("worker %q has address %s already", other.Spec.Name, m.Spec.IP)
		}
	}
	b.machines[m] = struct{}{}
	return nil
}

// claimBits is the prefix length of the networks that a backend claims as a whole.
const claimBits = 26

// Claim reports whether a machine may have an address. The real machine has one route to
// the address, so two backends must not use it. A socket named after the network marks the
// claim. The kernel removes it with the process.
func (b *netnsBackend) Claim(addr netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	network, err := addr.Prefix(claimBits)
	if err != nil || b.closed {
		return false
	}
	if b.claims[network] == nil {
		l, err := net.Listen("unix", "@multihost-sim-"+network.String())
		if err != nil {
			return false
		}
		b.claims[network] = l
	}
	return true
}

func (b *netnsBackend) forget(m *netnsMachine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.machines, m)
}

func (b *netnsBackend) Close() error {
	b.mu.Lock()
	already := b.closed
	b.closed = true
	var all []*netnsMachine
	for m := range b.machines {
		all = append(all, m)
	}
	b.mu.Unlock()

	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, m := range all {
		wg.Go(func() { errs[i] = m.Stop(context.Background()) })
	}
	wg.Wait()
	if !already {
		errs = append(errs, b.fabric.close(), removeDisks(b.cfg.Root))
		for _, l := range b.claims { // after closing, nobody adds a claim
			errs = append(errs, l.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close netns backend: %w", err)
	}
	return nil
}

// removeDisks removes the mount point of the fabric's file system. It is empty once the
// fabric has ended. If it contains something else, the removal fails.
func removeDisks(root string) error {
	err := os.Remove(filepath.Join(root, "disks"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Sweep removes what a killed process with a netns backend of that root has left. Usually
// the kernel has removed namespaces, links and mounts. Sweep kills the remaining processes
// of the machines, and waits until they have gone.
func Sweep(ctx context.Context, root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, worker.KillLimit, fmt.Errorf("processes survive SIGKILL for %v", worker.KillLimit))
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := killInits(root)
		if err != nil {
			return fmt.Errorf("sweep %q: %w", root, err)
		}
		if left == 0 {
			return removeDisks(root)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("sweep %q: %w", root, context.Cause(ctx))
		}
	}
}
