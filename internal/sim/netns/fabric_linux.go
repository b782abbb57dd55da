package netns

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"multihost/internal/sim/worker"
)

// The fabric is the network between the machines, and the file system with their disks.
// Only one thread of this process is in their namespaces, so they vanish with the process.
type fabric struct {
	*worker.Thread
	ip   string   // ip(8)
	home *os.File // network namespace of the real machine

	// Only the thread uses the fields below.
	networks map[string]*fabricNetwork
	links    int
	uplink   *uplink
}

type fabricNetwork struct {
	bridge   string
	table    int
	mtu      int
	gateways map[string]bool
}

func newFabric(ip, disks string) (*fabric, error) {
	home, err := worker.OpenNetwork(os.Getpid())
	if err != nil {
		return nil, err
	}
	f := &fabric{ip: ip, home: home, networks: make(map[string]*fabricNetwork)}
	if f.Thread, err = worker.NewThread(func() error { return f.unshare(disks) }); err != nil {
		home.Close()
		return nil, err
	}
	return f, nil
}

// close ends the thread, which removes the namespaces.
func (f *fabric) close() error {
	err := f.Do(func() error {
		if f.uplink == nil {
			return nil
		}
		// The kernel removes a namespace only some time later. So remove the link now.
		return f.batch("link del up0")
	})
	f.End()
	f.home.Close()
	return err
}

func (f *fabric) unshare(disks string) error {
	if err := os.MkdirAll(disks, 0o700); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("multihost-sim", disks, "tmpfs", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount disks: %w", err)
	}
	for _, key := range []string{"ip_forward=1", "conf/all/send_redirects=0", "conf/default/send_redirects=0"} {
		name, value, _ := strings.Cut(key, "=")
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
			return fmt.Errorf("set up router: %w", err)
		}
	}
	return f.batch("link set lo up")
}

// batch runs commands of ip in the namespace of the calling thread.
func (f *fabric) batch(lines ...string) error { return runIP(f.ip, lines...) }

func runIP(ip string, lines ...string) error {
	cmd := exec.Command(ip, "-batch", "-")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run ip: %w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}

// connect gives the process pid an interface on the network of spec, and returns the name
// of its peer. It must run on the fabric's thread.
func (f *fabric) connect(pid int, spec worker.Spec) (peer string, err error) {
	n, err := f.network(spec)
	if err != nil {
		return "", err
	}
	f.links++
	peer = fmt.Sprintf("v%d", f.links)
	err = f.batch(
		fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d netns %d", peer, spec.MTU, interfaceName, spec.MTU, pid),
		fmt.Sprintf("link set %s master %s up", peer, n.bridge),
		fmt.Sprintf("route replace %s/32 dev %s table %d", spec.IP, n.bridge, n.table),
		fmt.Sprintf("route replace %s/32 dev %s", spec.IP, n.bridge),
	)
	return peer, err
}

// disconnect removes an interface at once. The kernel would do so only some time after the
// end of its namespace.
func (f *fabric) disconnect(peer string) {
	if peer != "" {
		_ = f.batch("link del " + peer) // it may have gone
	}
}

// network creates the bridge of a network, if it is missing, and the router's addresses on
// it.
func (f *fabric) network(spec worker.Spec) (*fabricNetwork, error) {
	n := f.networks[spec.Network]
	var lines []string
	if n == nil {
		i := len(f.networks)
		n = &fabricNetwork{bridge: fmt.Sprintf("br%d", i), table: 100 + i, gateways: make(map[string]bool)}
		lines = append(lines,
			fmt.Sprintf("link add %s type bridge", n.bridge),
			fmt.Sprintf("link set %s up", n.bridge),
			// Route packets from a network only within that network.
			fmt.Sprintf("rule add iif %s lookup %d", n.bridge, n.table),
			fmt.Sprintf("route add unreachable default table %d", n.table),
		)
		if f.uplink != nil {
			lines = append(lines, f.uplink.routeFrom(n.table))
		}
	}
	if n.mtu != spec.MTU {
		lines = append(lines, fmt.Sprintf("link set %s mtu %d", n.bridge, spec.MTU))
	}
	if !n.gateways[spec.Gateway] {
		lines = append(lines, fmt.Sprintf("addr add %s/32 dev %s", spec.Gateway, n.bridge))
	}
	if len(lines) > 0 {
		if err := f.batch(lines...); err != nil {
			return nil, err
		}
	}
	f.networks[spec.Network] = n
	n.mtu, n.gateways[spec.Gateway] = spec.MTU, true
	return n, nil
}
