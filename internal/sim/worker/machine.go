//go:build linux

package worker

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// serveMode is how a machine's SSH port behaves.
type serveMode int

const (
	modeServe  serveMode = iota
	modeRefuse           // nobody listens
	modeHang             // connection attempts get no answer
)

var errStopped = errors.New("worker is stopped")

type machine struct {
	b    *processBackend
	spec Spec
	root string
	addr string
	port int

	ctx    context.Context // ends at Stop
	cancel context.CancelFunc
	wg     sync.WaitGroup // accept loop, connections, sessions, timers

	// spawn is held for reading while a process starts, and for writing to
	// change down, so that no process can slip past a search for all of them.
	spawn sync.RWMutex
	down  bool // rebooting or stopped: no process may start

	// port is changed by one goroutine at a time, which may block in system
	// calls while it holds reach.
	reach     sync.Mutex
	listener  *net.TCPListener
	filler    net.Conn // fills the accept queue in modeHang
	serving   serveMode
	accepting sync.WaitGroup

	reboots sync.Mutex // one reboot at a time

	mu       sync.Mutex
	stopped  bool
	booting  bool
	hostKeys []ssh.Signer
	faults   map[FaultKind]Fault    // in force; Slow, Missing, Denied and Fixed are in their own fields
	slow     map[string]Fault       // by mode
	marks    map[FaultKind][]string // names of Missing, Denied, Fixed
	epoch    map[string]int         // per timed fault: which setting of it a timer belongs to
	thaw     chan struct{}          // not nil while frozen; closed at its end
	conns    map[*faultyConn]struct{}
	sessions map[int]struct{} // session ids of the commands started since boot
}

func newMachine(b *processBackend, spec Spec) (*machine, error) {
	root := spec.Root
	if root == "" {
		name := fmt.Sprintf("%s-w-%d", spec.Node, spec.Index)
		if spec.Node == "" || strings.ContainsAny(spec.Node, "/\x00") || strings.HasPrefix(spec.Node, ".") {
			return nil, fmt.Errorf("bad node name %q", spec.Node)
		}
		root = filepath.Join(b.cfg.Root, "workers", name)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, err
	}
	for _, d := range spec.Devices {
		if !strings.HasPrefix(d, "/dev/") || filepath.Clean(d) != d {
			return nil, fmt.Errorf("bad device path %q", d)
		}
	}
	if spec.MTU == 0 {
		spec.MTU = 1460
	}
	if spec.NUMANodes == 0 {
		spec.NUMANodes = 1
	}
	if spec.IP == "" {
		spec.IP = net.IPv4(10, 128, byte((spec.Index+2)>>8), byte(spec.Index+2)).String()
	}
	if spec.Hostname == "" {
		spec.Hostname = fmt.Sprintf("t1v-n-%s-w-%d", spec.Node, spec.Index)
	}
	m := &machine{
		b: b, spec: spec, root: root,
		serving:  modeRefuse,
		booting:  true,
		faults:   make(map[FaultKind]Fault),
		slow:     make(map[string]Fault),
		marks:    make(map[FaultKind][]string),
		epoch:    make(map[string]int),
		conns:    make(map[*faultyConn]struct{}),
		sessions: make(map[int]struct{}),
	}
	if m.hostKeys, err = makeHostKeys(); err != nil {
		return nil, err
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m, nil
}

// makeHostKeys makes the two kinds of host key that are cheap to make; an RSA
// key would cost a second per machine.
func makeHostKeys() ([]ssh.Signer, error) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	var keys []ssh.Signer
	for _, k := range []any{ed, ec} {
		s, err := ssh.NewSignerFromKey(k)
		if err != nil {
			return nil, err
		}
		keys = append(keys, s)
	}
	return keys, nil
}

func (m *machine) Addr() string     { return m.addr }
func (m *machine) Hostname() string { return m.spec.Hostname }

func (m *machine) HostKeys() map[string]string {
	keys := make(map[string]string)
	for _, s := range m.signers() {
		pub := s.PublicKey()
		keys[pub.Type()] = base64.StdEncoding.EncodeToString(pub.Marshal())
	}
	return keys
}

func (m *machine) signers() []ssh.Signer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hostKeys
}

// wantMode is what the faults and the state ask of the port.
func (m *machine) wantMode() serveMode {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || m.booting {
		return modeRefuse
	}
	if f, ok := m.faults[Unreachable]; ok {
		if f.Mode == "refuse" {
			return modeRefuse
		}
		return modeHang
	}
	return modeServe
}

// reconcile makes the port behave as it should now.
func (m *machine) reconcile() error {
	m.reach.Lock()
	defer m.reach.Unlock()
	want := m.wantMode()
	if want == m.serving {
		return nil
	}
	m.unlisten()
	m.serving = modeRefuse
	if want == modeRefuse {
		return nil
	}
	ln, err := listenTCP(m.addr, m.port)
	if err != nil {
		return fmt.Errorf("listen on worker's address: %w", err)
	}
	m.listenWith(ln, want)
	return nil
}

// open ends a new machine's boot, with the listener that it was given.
func (m *machine) open(ln *net.TCPListener) {
	m.reach.Lock()
	defer m.reach.Unlock()
	m.mu.Lock()
	m.booting = false
	m.mu.Unlock()
	want := m.wantMode()
	if want == modeRefuse {
		ln.Close()
		return
	}
	m.listenWith(ln, want)
}

func (m *machine) unlisten() {
	if m.listener != nil {
		m.listener.Close()
		m.listener = nil
	}
	if m.filler != nil {
		m.filler.Close()
		m.filler = nil
	}
	m.accepting.Wait()
}

func (m *machine) listenWith(ln *net.TCPListener, mode serveMode) {
	m.listener, m.serving = ln, mode
	if mode == modeHang {
		m.filler = fillQueue(ln)
		return
	}
	m.accepting.Go(func() { m.accept(ln) })
}

// fillQueue makes connection attempts to ln hang: Linux drops them when the
// queue of connections that nobody accepted is full, and one fills a queue of
// length 0.
func fillQueue(ln *net.TCPListener) net.Conn {
	raw, err := ln.SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), 0) })
	c, err := net.DialTimeout("tcp4", ln.Addr().String(), time.Second)
	if err != nil {
		return nil
	}
	return c
}

func (m *machine) accept(ln *net.TCPListener) {
	for {
		c, err := ln.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// No file descriptor is left: try again a little later rather
			// than spin.
			t := time.NewTimer(10 * time.Millisecond)
			select {
			case <-t.C:
			case <-m.ctx.Done():
				t.Stop()
				return
			}
			continue
		}
		fc := newFaultyConn(m, c)
		if !m.track(fc) {
			fc.reset()
			continue
		}
		m.wg.Go(func() {
			defer m.untrack(fc)
			defer fc.Close()
			m.handle(fc)
		})
	}
}

func (m *machine) track(c *faultyConn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || m.booting {
		return false
	}
	m.conns[c] = struct{}{}
	if f, ok := m.faults[Cut]; ok {
		c.limit(f.Mode, f.Bytes)
	}
	return true
}

func (m *machine) untrack(c *faultyConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.conns, c)
}

func (m *machine) connections() []*faultyConn {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*faultyConn
	for c := range m.conns {
		all = append(all, c)
	}
	return all
}

func (m *machine) resetConnections() {
	for _, c := range m.connections() {
		c.reset()
	}
}

// frozen returns a channel that is closed when the machine thaws, or nil when
// it is not frozen.
func (m *machine) frozen() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.thaw == nil {
		return nil
	}
	return m.thaw
}

// start runs spawnProcess unless the machine is down, and records the session
// id that it returns.
func (m *machine) start(spawnProcess func() (sid int, err error)) error {
	m.spawn.RLock()
	defer m.spawn.RUnlock()
	if m.down {
		return errStopped
	}
	sid, err := spawnProcess()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions[sid] = struct{}{}
	return nil
}

func (m *machine) setDown(down bool) {
	m.spawn.Lock()
	defer m.spawn.Unlock()
	m.down = down
}

func (m *machine) Reboot(ctx context.Context) error {
	err := m.reboot(ctx, 0)
	if err == nil {
		err = m.reconcile()
	}
	if err != nil {
		return fmt.Errorf("reboot worker %q: %w", m.spec.Name, err)
	}
	return nil
}

// reboot takes the machine down and makes it ready to answer again, which it
// does at the next reconcile, or by itself after a downtime.
func (m *machine) reboot(ctx context.Context, downtime time.Duration) error {
	m.reboots.Lock()
	defer m.reboots.Unlock()
	m.mu.Lock()
	if m.stopped {
		m.mu.Unlock()
		return errStopped
	}
	m.booting = true
	m.mu.Unlock()
	m.setDown(true)

	err := m.reconcile()
	m.resetConnections()
	err = errors.Join(err, killAll(ctx, []*machine{m}))
	if err == nil {
		err = m.reset()
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	clear(m.sessions)
	m.mu.Unlock()
	// Setting the timer also stops that of an earlier reboot.
	m.after(downtime, "reboot", func() {
		m.boot()
		_ = m.reconcile()
	})
	if downtime == 0 {
		m.boot()
	}
	return nil
}

// boot lets processes start and connections in, unless the machine stopped
// meanwhile.
func (m *machine) boot() {
	m.spawn.Lock()
	defer m.spawn.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return
	}
	m.booting, m.down = false, false
}

// after runs f when d has passed, unless the machine stops or another timer of
// that name is set first.
func (m *machine) after(d time.Duration, name string, f func()) {
	m.mu.Lock()
	m.epoch[name]++
	epoch := m.epoch[name]
	stopped := m.stopped
	m.mu.Unlock()
	if stopped || d <= 0 {
		return
	}
	m.wg.Go(func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-m.ctx.Done():
			return
		case <-t.C:
		}
		m.mu.Lock()
		current := m.epoch[name] == epoch
		m.mu.Unlock()
		if current {
			f()
		}
	})
}

func (m *machine) Stop(ctx context.Context) error {
	m.beginStop()
	if err := killAll(ctx, []*machine{m}); err != nil {
		return fmt.Errorf("stop worker %q: %w", m.spec.Name, err)
	}
	m.endStop()
	return nil
}

// beginStop closes everything that could bring forth a new process.
func (m *machine) beginStop() {
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.setDown(true)
	m.cancel()
	_ = m.reconcile() // only closes: nothing to fail
	m.resetConnections()
}

// endStop waits for all goroutines; the processes are gone by now.
func (m *machine) endStop() {
	m.wg.Wait()
	m.b.forget(m)
}
