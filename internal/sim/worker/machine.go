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
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

type machine struct {
	door
	disk
	hostKeyring

	b    *processBackend
	addr string
	port int

	// A start of a process holds spawn for reading, a change of down for writing, so that
	// no process escapes a search for all of them.
	spawn sync.RWMutex
	down  bool // rebooting or stopped: no process may start

	reboots sync.Mutex // one reboot at a time

	metadata *http.Server // nil when there is none
	metaAddr metadataAt

	marks    map[FaultKind][]string // names of Missing, Denied, Fixed; guarded by mu
	sessions map[int]struct{}       // session ids of the commands started since boot; guarded by mu
}

func newMachine(b *processBackend, spec Spec) (*machine, error) {
	root := spec.Root
	if root == "" {
		name, err := spec.directory()
		if err != nil {
			return nil, err
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
	if spec, err = spec.filled(); err != nil {
		return nil, err
	}
	m := &machine{
		b: b, disk: disk{root, b.standins, spec},
		marks:    make(map[FaultKind][]string),
		sessions: make(map[int]struct{}),
	}
	if err = m.rotateHostKeys(); err != nil {
		return nil, err
	}
	m.door.init(spec, m.handle)
	m.ways = []way{{
		listen: func() (*net.TCPListener, error) { return listenTCP(m.addr, m.port) },
		dial:   func() (net.Conn, error) { return net.DialTimeout("tcp4", joinPort(m.addr, m.port), time.Second) },
	}}
	return m, nil
}

// makeHostKeys makes the two kinds of host key that are cheap to make; an RSA key would
// cost a second per machine.
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

// A hostKeyring has the host keys of a machine.
type hostKeyring struct {
	lock sync.Mutex
	keys []ssh.Signer
}

func (k *hostKeyring) HostKeys() map[string]string {
	keys := make(map[string]string)
	for _, s := range k.signers() {
		pub := s.PublicKey()
		keys[pub.Type()] = base64.StdEncoding.EncodeToString(pub.Marshal())
	}
	return keys
}

func (k *hostKeyring) signers() []ssh.Signer {
	k.lock.Lock()
	defer k.lock.Unlock()
	return k.keys
}

func (k *hostKeyring) rotateHostKeys() error {
	keys, err := makeHostKeys()
	if err != nil {
		return err
	}
	k.lock.Lock()
	defer k.lock.Unlock()
	k.keys = keys
	return nil
}

// start starts a process as the leader of its own session, unless the machine is down.
func (m *machine) start(file string, argv []string, attr *os.ProcAttr) (proc *os.Process, err error) {
	m.spawn.RLock()
	defer m.spawn.RUnlock()
	if m.down {
		return nil, errStopped
	}
	err = m.b.origin.do(func() (err error) {
		proc, err = os.StartProcess(file, argv, attr)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions[proc.Pid] = struct{}{}
	return proc, nil
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

// reboot takes the machine down and prepares it to answer again: at the caller's
// reconcile, or by itself after a downtime.
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
	// Setting the timer also cancels that of an earlier reboot.
	m.after(downtime, "reboot", func() {
		m.boot()
		_ = m.reconcile()
	})
	if downtime == 0 {
		m.boot()
	}
	return nil
}

// boot allows processes and connections, unless the machine was stopped meanwhile.
func (m *machine) boot() {
	m.spawn.Lock()
	defer m.spawn.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return
	}
	m.booting, m.down = false, false
	m.wg.Go(m.startup)
}

func (m *machine) ShutDown(ctx context.Context, limit time.Duration) error {
	ended := m.shutdown(ctx, limit)
	err := m.Stop(ctx)
	<-ended
	return err
}

func (m *machine) Stop(ctx context.Context) error {
	m.beginStop()
	if err := killAll(ctx, []*machine{m}); err != nil {
		return fmt.Errorf("stop worker %q: %w", m.spec.Name, err)
	}
	m.endStop()
	return nil
}

// beginStop closes everything that could start a new process.
func (m *machine) beginStop() {
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.setDown(true)
	m.cancel()
	_ = m.reconcile() // it only closes, so it cannot fail
	m.resetConnections()
}

// endStop waits for all goroutines; all processes have ended.
func (m *machine) endStop() {
	if m.metadata != nil {
		m.metadata.Close()
	}
	m.wg.Wait()
	m.b.forget(m)
}
