package netns

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"multihost/internal/sim/worker"
)

const (
	interfaceName = "ens8" // as on a TPU VM

	metadataAddr = "169.254.169.254"

	// bootLimit limits one boot, which takes a tenth of a second on an idle machine.
	bootLimit = 60 * time.Second

	// keysEvery is how often a machine looks for new keys while nobody connects to Addr.
	keysEvery = 2 * time.Second
)

// netnsMachine is a Machine of the netns backend.
type netnsMachine struct {
	worker.Door

	b    *netnsBackend
	name string // name of its disk
	addr string
	port int

	reboots sync.Mutex // held during a boot, so that there is one at a time

	// The fields guarded by mu survive a reboot.
	hostKeys map[string]hostKey // by type
	missing  []string
	denied   []string
	guest    *guest // nil while the machine is down
}

type hostKey struct {
	Private string // PEM
	Public  string // base64
}

func newNetnsMachine(b *netnsBackend, spec worker.Spec) (*netnsMachine, error) {
	name := filepath.Base(spec.Root)
	spec, err := spec.Filled()
	if err != nil {
		return nil, err
	}
	if spec.Root == "" {
		if name, err = spec.Directory(); err != nil {
			return nil, err
		}
	}
	m := &netnsMachine{b: b, name: name}
	if m.hostKeys, err = makeHostKeyFiles(); err != nil {
		return nil, err
	}
	m.Door.Init(spec, m.pass)
	m.Ways = []worker.Way{{
		Listen: func() (*net.TCPListener, error) { return worker.ListenTCP(m.addr, m.port) },
		Dial:   func() (net.Conn, error) { return net.DialTimeout("tcp4", worker.JoinPort(m.addr, m.port), time.Second) },
	}, {
		Listen: func() (ln *net.TCPListener, err error) {
			err = m.inside(func() error {
				ln, err = worker.ListenTCP(m.Spec.IP, m.port)
				return err
			})
			return ln, err
		},
		Dial: func() (c net.Conn, err error) {
			err = m.inside(func() error {
				c, err = net.DialTimeout("tcp4", worker.JoinPort(m.Spec.IP, m.port), time.Second)
				return err
			})
			return c, err
		},
	}}
	return m, nil
}

func makeHostKeyFiles() (map[string]hostKey, error) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	keys := make(map[string]hostKey)
	for _, k := range []any{ed, ec} {
		block, err := ssh.MarshalPrivateKey(k, "")
		if err != nil {
			return nil, err
		}
		s, err := ssh.NewSignerFromKey(k)
		if err != nil {
			return nil, err
		}
		pub := s.PublicKey()
		keys[pub.Type()] = hostKey{string(pem.EncodeToMemory(block)), base64.StdEncoding.EncodeToString(pub.Marshal())}
	}
	return keys, nil
}

func (m *netnsMachine) Addr() string         { return m.addr }
func (m *netnsMachine) InternalAddr() string { return m.Spec.IP }
func (m *netnsMachine) Hostname() string     { return m.Spec.Hostname }

func (m *netnsMachine) HostKeys() map[string]string {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	keys := make(map[string]string)
	for kind, k := range m.hostKeys {
		keys[kind] = k.Public
	}
	return keys
}

// running returns the guest, or an error if the machine is down.
func (m *netnsMachine) running() (*guest, error) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.guest == nil {
		return nil, errors.New("worker is down")
	}
	return m.guest, nil
}

// inside runs f in the network namespace of the machine.
func (m *netnsMachine) inside(f func() error) error {
	g, err := m.running()
	if err != nil {
		return err
	}
	return worker.InNetwork(g.network, f)
}

// begin boots a new machine, which then accepts connections.
func (m *netnsMachine) begin(ctx context.Context, ln *net.TCPListener) error {
	for _, f := range m.Spec.Faults {
		if f.Kind == worker.Reboot || f.Kind == worker.Kill {
			continue // this fault cannot happen before the boot
		}
		if err := m.SetFault(f); err != nil {
			ln.Close()
			return err
		}
	}
	m.reboots.Lock()
	defer m.reboots.Unlock()
	if err := m.boot(ctx); err != nil {
		ln.Close()
		return err
	}
	inner, err := m.Ways[1].Listen()
	if err == nil {
		err = m.b.fabric.Do(func() error { return m.b.fabric.expose(m.Spec) })
		if err != nil {
			inner.Close()
		}
	}
	if err != nil {
		ln.Close()
		return err
	}
	m.Open(ln, inner)
	m.Wg.Go(m.watchKeys)
	return nil
}

// boot starts the guest, and returns when it is up. The caller holds m.reboots.
func (m *netnsMachine) boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bootLimit, fmt.Errorf("boot did not end within %v", bootLimit))
	defer cancel()
	stop := context.AfterFunc(m.Ctx, cancel)
	defer stop()

	m.Mu.Lock()
	req := guestRequest{Op: "boot", Boot: &bootRequest{
		Disk: filepath.Join(m.b.disks(), m.name), Tools: m.b.tools, SSHD: m.b.extraSSHD,
		Hostname: m.Spec.Hostname, Interface: interfaceName, IP: m.Spec.IP, Gateway: m.Spec.Gateway, Hosts: m.Spec.Hosts,
		Listen: "0.0.0.0", Devices: m.Spec.Devices, Env: m.Spec.Env, Script: m.Spec.Boot, Metadata: m.Spec.Metadata != nil,
		BootID: uuid.NewString(), guestFaults: m.guestFaults(),
	}}
	m.Mu.Unlock()
	if m.port == sshdPort {
		req.Boot.Listen = "127.0.0.1" // the backend itself listens on the machine's own address
	}

	g, err := m.startGuest()
	if err != nil {
		return err
	}
	stopGuest := context.AfterFunc(ctx, g.kill)
	defer stopGuest()
	err = g.serveMetadata(m.b.tools["ip"], m.Spec.Metadata)
	for addr, h := range m.Spec.Services {
		if err == nil {
			err = g.serveAt(m.b.tools["ip"], addr, h)
		}
	}
	if err != nil {
		return errors.Join(err, m.halt(g))
	}
	err = g.call(req)
	if err == nil {
		err = g.syncKeys(m.keys())
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return errors.Join(err, m.halt(g))
	}
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.Stopped {
		g.kill() // Stop waits for it
	}
	m.guest = g
	m.Wg.Go(func() { m.watch(g) })
	return nil
}

// guestFaults returns the faults to simulate inside the machine. The caller holds m.mu.
func (m *netnsMachine) guestFaults() guestFaults {
	f := guestFaults{
		Missing: m.missing, Denied: m.denied,
		SlowExec: m.Slow["exec"].Duration.Seconds(), HostKeys: make(map[string]string),
	}
	for kind, k := range m.hostKeys {
		f.HostKeys[kind] = k.Private
	}
	for kind, fault := range m.Faults {
		if inGuest(kind) {
			f.Troubles = append(f.Troubles, fault)
		}
	}
	return f
}

// keys returns each login's authorized keys that the metadata has now.
func (m *netnsMachine) keys() map[string][]string {
	keys := make(map[string][]string)
	if m.Spec.AuthorizedKeys == nil {
		return keys
	}
	for _, line := range m.Spec.AuthorizedKeys() {
		login, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok || login == "root" || !worker.LoginName.MatchString(login) {
			continue
		}
		_, comment, _, _, err := ssh.ParseAuthorizedKey([]byte(rest))
		if err == nil && !worker.Expired(comment, time.Now()) {
			keys[login] = append(keys[login], rest)
		}
	}
	return keys
}

// watchKeys creates users when their keys appear, as the guest agent does.
func (m *netnsMachine) watchKeys() {
	tick := time.NewTicker(keysEvery)
	defer tick.Stop()
	for {
		select {
		case <-m.Ctx.Done():
			return
		case <-tick.C:
			if g, err := m.running(); err == nil {
				_ = g.syncKeys(m.keys()) // the guest has gone, or the next tick tries again
			}
		}
	}
}

// watch boots the machine again if its guest ends by itself.
func (m *netnsMachine) watch(g *guest) {
	<-g.ended
	m.reboots.Lock()
	defer m.reboots.Unlock()
	m.Mu.Lock()
	own := m.guest == g && !m.Stopped
	if own {
		m.Booting = true
	}
	m.Mu.Unlock()
	if !own {
		return
	}
	_ = m.Reconcile() // only closes something
	m.ResetConnections()
	if m.halt(g) == nil && m.boot(m.Ctx) == nil {
		m.serveAgain()
	}
}

// serveAgain accepts connections again.
func (m *netnsMachine) serveAgain() {
	m.Mu.Lock()
	m.Booting = false
	m.Mu.Unlock()
	_ = m.Reconcile() // cannot fail: nothing else takes the machine's own address
}

// halt ends a guest and everything in it.
func (m *netnsMachine) halt(g *guest) error {
	m.Mu.Lock()
	if m.guest == g {
		m.guest = nil
	}
	m.Mu.Unlock()
	g.kill()
	<-g.ended
	g.close()
	return m.b.fabric.Do(func() error {
		m.b.fabric.disconnect(g.peer)
		return nil
	})
}

func (m *netnsMachine) Reboot(ctx context.Context) error {
	if err := m.reboot(ctx, 0); err != nil {
		return fmt.Errorf("reboot worker %q: %w", m.Spec.Name, err)
	}
	return nil
}

// reboot takes the machine down, and boots it again after downtime.
func (m *netnsMachine) reboot(ctx context.Context, downtime time.Duration) error {
	m.reboots.Lock()
	defer m.reboots.Unlock()
	m.Mu.Lock()
	if m.Stopped {
		m.Mu.Unlock()
		return worker.ErrStopped
	}
	m.Booting = true
	g := m.guest
	m.guest = nil
	m.Mu.Unlock()
	err := m.Reconcile()
	m.ResetConnections()
	if g != nil {
		err = errors.Join(err, m.halt(g))
	}
	if err != nil {
		return err
	}
	// This also cancels the timer of an earlier reboot.
	m.After(downtime, "reboot", func() {
		m.reboots.Lock()
		defer m.reboots.Unlock()
		if m.boot(m.Ctx) == nil {
			m.serveAgain()
		}
	})
	if downtime > 0 {
		return nil
	}
	if err := m.boot(ctx); err != nil {
		return err
	}
	m.serveAgain()
	return nil
}

func (m *netnsMachine) ShutDown(ctx context.Context, limit time.Duration) error {
	m.shutdown(ctx, limit)
	return m.Stop(ctx)
}

// shutdown runs the shutdown script for at most limit. Processes that run longer end with
// the guest.
func (m *netnsMachine) shutdown(ctx context.Context, limit time.Duration) {
	g, err := m.running()
	if err != nil || m.Spec.Metadata == nil {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		busy, err := g.shutdown()
		if err != nil || !busy {
			return
		}
		select {
		case <-tick.C:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case <-m.Ctx.Done():
			return
		}
	}
}

func (m *netnsMachine) Stop(ctx context.Context) error {
	m.Mu.Lock()
	m.Stopped = true
	m.Mu.Unlock()
	m.Cancel()
	_ = m.Reconcile() // only closes something
	m.ResetConnections()

	m.reboots.Lock()
	m.Mu.Lock()
	g := m.guest
	m.Mu.Unlock()
	var err error
	if g != nil {
		err = m.halt(g)
	}
	m.reboots.Unlock()
	m.Wg.Wait()
	m.b.forget(m)
	if err == nil {
		err = m.b.fabric.Do(func() error {
			m.b.fabric.hide(m.Spec)
			return os.RemoveAll(filepath.Join(m.b.disks(), m.name))
		})
	}
	if err != nil {
		return fmt.Errorf("stop worker %q: %w", m.Spec.Name, err)
	}
	return nil
}

// pass creates on the machine the users in the metadata, then passes the connection on to
// sshd.
func (m *netnsMachine) pass(c *worker.FaultyConn) {
	if !c.Pause(m.Slowness("handshake").Duration) {
		return
	}
	g, err := m.running()
	if err != nil {
		return
	}
	port := sshdPort
	if m.TakeRefusal() {
		port = refuserPort
		err = g.call(guestRequest{Op: "refuse"})
	} else {
		err = g.syncKeys(m.keys())
	}
	if err != nil {
		return
	}
	var out *net.TCPConn
	err = m.inside(func() error {
		conn, err := net.DialTimeout("tcp4", worker.JoinPort("127.0.0.1", port), 10*time.Second)
		if err == nil {
			out = conn.(*net.TCPConn)
		}
		return err
	})
	if err != nil {
		c.Reset()
		return
	}
	defer out.Close()
	var copies sync.WaitGroup
	copies.Go(func() {
		// Hide the methods of the embedded TCPConn, which would bypass worker.FaultyConn.
		_, err := io.Copy(out, struct{ io.Reader }{c})
		if err != nil {
			out.Close()
			return
		}
		_ = out.CloseWrite()
	})
	copies.Go(func() {
		_, err := io.Copy(struct{ io.Writer }{c}, out)
		if err != nil {
			c.Reset()
			return
		}
		_ = c.CloseWrite()
	})
	copies.Wait()
}

func (m *netnsMachine) SetFault(f worker.Fault) error {
	err := f.Check()
	if err == nil {
		err = m.setFault(f)
	}
	if err != nil {
		return fmt.Errorf("set fault %q on worker %q: %w", f, m.Spec.Name, err)
	}
	return nil
}

func (m *netnsMachine) setFault(f worker.Fault) error {
	m.Mu.Lock()
	stopped := m.Stopped
	m.Mu.Unlock()
	if stopped {
		return worker.ErrStopped
	}
	switch f.Kind {
	case worker.Clear:
		return m.clearFaults(worker.FaultKind(f.Name))
	case worker.Reboot:
		if f.Mode == "" {
			m.shutdown(m.Ctx, worker.RebootLimit)
		}
		return m.reboot(m.Ctx, f.Duration)
	case worker.RotateHostKeys:
		keys, err := makeHostKeyFiles()
		if err != nil {
			return err
		}
		m.Mu.Lock()
		m.hostKeys = keys
		m.Mu.Unlock()
	case worker.Kill:
		g, err := m.running()
		if err != nil {
			return err
		}
		return g.call(guestRequest{Op: "kill", Signal: int(worker.Signals[worker.KillName(f)])})
	case worker.Fixed:
		return errors.New("a real kernel decides which features are fixed: give the worker a default route through lo, where most are")
	case worker.Missing:
		if err := canMiss(f.Name, m.Spec.Devices); err != nil {
			return err
		}
		m.mark(&m.missing, f.Name)
	case worker.Denied:
		if err := canDeny(f.Name); err != nil {
			return err
		}
		m.mark(&m.denied, f.Name)
	default:
		if err := f.CheckHere(); err != nil {
			return err
		}
		if err := m.SetDoorFault(f, m.clearFaults); err != nil {
			return err
		}
	}
	return m.applyFaults()
}

func (m *netnsMachine) mark(list *[]string, name string) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if !slices.Contains(*list, name) {
		*list = append(slices.Clone(*list), name)
	}
}

func (m *netnsMachine) clearFaults(kind worker.FaultKind) error {
	m.Mu.Lock()
	if kind == "" || kind == worker.Missing {
		m.missing = nil
	}
	if kind == "" || kind == worker.Denied {
		m.denied = nil
	}
	m.Mu.Unlock()
	m.ClearDoorFaults(kind)
	if err := m.applyFaults(); err != nil {
		return err
	}
	return m.Reconcile()
}

// applyFaults sends the guest the faults to simulate inside. A guest that is down gets them
// at its boot.
func (m *netnsMachine) applyFaults() error {
	m.Mu.Lock()
	g := m.guest
	faults := m.guestFaults()
	m.Mu.Unlock()
	if g == nil {
		return nil
	}
	return g.call(guestRequest{Op: "faults", Faults: &faults})
}

// A guest is one boot of a machine, seen from outside.
type guest struct {
	cmd     *exec.Cmd
	network *os.File
	peer    string        // name of its interface's other end, in the fabric
	ended   chan struct{} // closed when all its processes have ended

	servers []*http.Server
	serving sync.WaitGroup

	calls   sync.Mutex // held during a call, so that there is one at a time
	to      *os.File
	from    *os.File
	replies *bufio.Reader
	keys    map[string][]string // the keys that the guest has; nil before the first
}

// startGuest starts process 1 of a machine, with an interface. The process waits for its
// boot request.
func (m *netnsMachine) startGuest() (*guest, error) {
	theirIn, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirIn.Close()
	from, theirOut, err := os.Pipe()
	if err != nil {
		to.Close()
		return nil, err
	}
	defer theirOut.Close()
	g := &guest{to: to, from: from, replies: bufio.NewReader(from), ended: make(chan struct{})}
	g.cmd = exec.Command("/proc/self/exe")
	g.cmd.Args = initArgs(m.b.cfg.Root, m.Spec.Hostname)
	g.cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	g.cmd.Dir = "/"
	g.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		// The kernel sends the signal at the end of the thread that forked: the fabric's.
		Pdeathsig: syscall.SIGKILL,
		Setsid:    true,
	}
	err = m.b.fabric.Do(func() error {
		if err := os.MkdirAll(filepath.Join(m.b.disks(), m.name), 0o755); err != nil {
			return err
		}
		if err := g.cmd.Start(); err != nil {
			return fmt.Errorf("start process 1: %w", err)
		}
		if g.network, err = worker.OpenNetwork(g.cmd.Process.Pid); err != nil {
			return err
		}
		g.peer, err = m.b.fabric.connect(g.cmd.Process.Pid, m.Spec)
		return err
	})
	if g.cmd.Process == nil {
		to.Close()
		from.Close()
		return nil, err
	}
	go func() {
		_ = g.cmd.Wait() // usually the process was killed
		close(g.ended)
	}()
	if err != nil {
		return nil, errors.Join(err, m.halt(g))
	}
	return g, nil
}

func (g *guest) kill() { _ = g.cmd.Process.Kill() }

// close frees what the caller holds for an ended guest.
func (g *guest) close() {
	for _, s := range g.servers {
		s.Close()
	}
	g.serving.Wait()
	g.to.Close()
	g.from.Close()
	g.network.Close()
}

// serveMetadata starts the metadata server inside the machine.
func (g *guest) serveMetadata(ip string, h http.Handler) error {
	if h == nil {
		return nil
	}
	err := worker.InNetwork(g.network, func() error {
		return runIP(ip, "link set lo up", "addr add "+metadataAddr+"/32 dev lo")
	})
	if err == nil {
		err = g.serveAt(ip, worker.JoinPort(metadataAddr, 80), h)
	}
	if err != nil {
		return fmt.Errorf("serve metadata: %w", err)
	}
	return nil
}

// serveAt starts a server inside the machine, at one of its addresses.
func (g *guest) serveAt(ip, addr string, h http.Handler) error {
	var ln net.Listener
	err := worker.InNetwork(g.network, func() (err error) {
		if err := runIP(ip, "link set lo up"); err != nil {
			return err
		}
		ln, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		return fmt.Errorf("serve at %s: %w", addr, err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	g.servers = append(g.servers, s)
	g.serving.Go(func() { _ = s.Serve(ln) }) // ends with ErrServerClosed
	return nil
}

// call sends a request to the guest and waits for the answer.
func (g *guest) call(req guestRequest) error {
	g.calls.Lock()
	defer g.calls.Unlock()
	_, err := g.exchange(req)
	return err
}

// shutdown makes the guest run its shutdown script, once, and reports whether the script
// still runs.
func (g *guest) shutdown() (busy bool, err error) {
	g.calls.Lock()
	defer g.calls.Unlock()
	reply, err := g.exchange(guestRequest{Op: "shutdown"})
	return reply.Busy, err
}

func (g *guest) exchange(req guestRequest) (reply guestReply, err error) {
	b, err := json.Marshal(req)
	if err != nil {
		return reply, err
	}
	if _, err := g.to.Write(append(b, '\n')); err != nil {
		return reply, fmt.Errorf("ask worker's process 1: %w", err)
	}
	line, err := g.replies.ReadBytes('\n')
	if err != nil {
		return reply, fmt.Errorf("ask worker's process 1: it has ended: %w", err)
	}
	if err := json.Unmarshal(line, &reply); err != nil {
		return reply, fmt.Errorf("ask worker's process 1: %w", err)
	}
	if reply.Error != "" {
		return reply, errors.New(reply.Error)
	}
	return reply, nil
}

// syncKeys gives the guest exactly these users and keys.
func (g *guest) syncKeys(keys map[string][]string) error {
	g.calls.Lock()
	defer g.calls.Unlock()
	if g.keys != nil && maps.EqualFunc(g.keys, keys, slices.Equal[[]string]) {
		return nil
	}
	if _, err := g.exchange(guestRequest{Op: "keys", Keys: keys}); err != nil {
		return err
	}
	g.keys = keys
	return nil
}
