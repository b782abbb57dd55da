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
	Door
	disk
	hostKeyring

	b    *processBackend
	addr string
	port int

	// Hold spawn for reading to start a process, and for writing to change down. So a
	// search for all processes misses none.
	spawn sync.RWMutex
	down  bool // rebooting or stopped: no process may start

	reboots sync.Mutex // held during a reboot, so that there is one at a time

	metadata *http.Server // nil if there is none
	metaAddr metadataAt

	marks    map[FaultKind][]string // names of Missing, Denied and Fixed; guarded by mu
	sessions map[int]struct{}       // session ids of the commands started since boot; guarded by mu
}

func newMachine(b *processBackend, spec Spec) (*machine, error) {
	root := spec.Root
	if root == "" {
		name, err := spec.Directory()
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
	if spec, err = spec.Filled(); err != nil {
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
	m.Door.Init(spec, m.handle)
	m.Ways = []Way{{
		Listen: func() (*net.TCPListener, error) { return ListenTCP(m.addr, m.port) },
		Dial:   func() (net.Conn, error) { return net.DialTimeout("tcp4", JoinPort(m.addr, m.port), time.Second) },
	}}
	return m, nil
}

// makeHostKeys makes the two kinds of host key that are cheap. An RSA key would cost a
// second per machine.
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
func (m *machine) Hostname() string { return m.Spec.Hostname }

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
		return nil, ErrStopped
	}
	err = m.b.origin.Do(func() (err error) {
		proc, err = os.StartProcess(file, argv, attr)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.sessions[proc.Pid] = struct{}{}
	return proc, nil
}

func setDown(m *machine, down bool) {
	m.spawn.Lock()
	defer m.spawn.Unlock()
	m.down = down
}

func (m *machine) Reboot(ctx context.Context) error {
	err := m.reboot(ctx, 0)
	if err == nil {
		err = m.Reconcile()
	}
	if err != nil {
		return fmt.Errorf("reboot worker %q: %w", m.Spec.Name, err)
	}
	return nil
}

// reboot takes the machine down and prepares it to answer again. It answers after downtime,
// or after the caller's Reconcile if downtime is 0.
func (m *machine) reboot(ctx context.Context, downtime time.Duration) error {
	m.reboots.Lock()
	defer m.reboots.Unlock()
	m.Mu.Lock()
	if m.Stopped {
		m.Mu.Unlock()
		return ErrStopped
	}
	m.Booting = true
	m.Mu.Unlock()
	setDown(m, true)

	err := m.Reconcile()
	m.ResetConnections()
	err = errors.Join(err, killAll(ctx, []*machine{m}))
	if err == nil {
		err = m.reset()
	}
	if err != nil {
		return err
	}
	m.Mu.Lock()
	clear(m.sessions)
	m.Mu.Unlock()
	// This also cancels the timer of an earlier reboot.
	m.After(downtime, "reboot", func() {
		m.boot()
		_ = m.Reconcile()
	})
	if downtime == 0 {
		m.boot()
	}
	return nil
}

// boot allows processes and connections again, unless the machine was stopped meanwhile.
func (m *machine) boot() {
	m.spawn.Lock()
	defer m.spawn.Unlock()
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.Stopped {
		return
	}
	m.Booting, m.down = false, false
	m.Wg.Go(m.startup)
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
		return fmt.Errorf("stop worker %q: %w", m.Spec.Name, err)
	}
	m.endStop()
	return nil
}

// beginStop closes everything that could start a process.
func (m *machine) beginStop() {
	m.Mu.Lock()
	m.Stopped = true
	m.Mu.Unlock()
	setDown(m, true)
	m.Cancel()
	_ = m.Reconcile() // only closes something, so it cannot fail
	m.ResetConnections()
}

// endStop waits for all goroutines. All processes must have ended.
func (m *machine) endStop() {
	if m.metadata != nil {
		m.metadata.Close()
	}
	m.Wg.Wait()
	m.b.forget(m)
}
