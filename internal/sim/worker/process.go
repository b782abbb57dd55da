//go:build linux

package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// addressTries bounds the search for addresses that nobody listens on.
const addressTries = 200

// processBackend is the Backend of [NewProcess].
type processBackend struct {
	cfg      ProcessConfig
	standins string // directory of the stand-ins, shared by all machines

	mu       sync.Mutex
	closed   bool
	port     int
	next     uint32 // the next address to try
	machines map[*machine]struct{}

	nodesMade map[int]bool // numbers of NUMA nodes of which the files are there
}

// NewProcess returns the backend that needs no privileges.
//
// A machine's commands are ordinary processes of the caller, run by bash in a
// home of their own below the machine's root, with a clean environment. What
// is private to a machine: its address, homes, /tmp (as TMPDIR and below
// MULTIHOST_ROOT_TMP), kernel settings, devices, boot id, and the stand-ins'
// state. What is shared with the machine that the simulator runs on: the rest
// of the file system, the process table, the network, the user id. So a
// command that names /proc/sys or /tmp itself, without the root variables,
// means the real one, and every command on PATH without a stand-in is the real
// command.
//
// Processes are recognised by their environment. One that cleared it, left its
// session and changed to a directory outside the machine's root outlives the
// machine.
//
// It does not model: PAM, several users with different rights (sudo runs the
// command as the same user), missing packages, disk or memory limits,
// MaxStartups, agent and X11 forwarding, subsystems.
func NewProcess(cfg ProcessConfig) (Backend, error) {
	if cfg.Root == "" {
		return nil, errors.New("make process backend: no root directory given")
	}
	root, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("make process backend: %w", err)
	}
	// Processes are found by paths as the kernel shows them.
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("make process backend: %w", err)
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, fmt.Errorf("make process backend: %w", err)
	}
	cfg.Root = root
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	b := &processBackend{
		cfg:      cfg,
		standins: filepath.Join(root, "stand-ins"),
		port:     cfg.Port,
		machines: make(map[*machine]struct{}),

		nodesMade: make(map[int]bool),
	}
	if err := writeStandins(b.standins); err != nil {
		return nil, fmt.Errorf("make process backend: %w", err)
	}
	// A random start keeps simulators that run at the same time apart.
	n, err := rand.Int(rand.Reader, big.NewInt(1<<14))
	if err != nil {
		return nil, fmt.Errorf("make process backend: %w", err)
	}
	b.next = 127<<24 | 64<<16 | uint32(n.Int64())<<8 | 1
	return b, nil
}

func (b *processBackend) Port() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.port
}

func (b *processBackend) Start(ctx context.Context, spec Spec) (Machine, error) {
	m, err := b.start(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("start worker %q: %w", spec.Name, err)
	}
	return m, nil
}

func (b *processBackend) start(ctx context.Context, spec Spec) (*machine, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m, err := newMachine(b, spec)
	if err != nil {
		return nil, err
	}
	ln, err := b.listen()
	if err != nil {
		return nil, err
	}
	m.addr, m.port = splitAddr(ln.Addr())
	if err := b.add(m); err != nil {
		ln.Close()
		return nil, err
	}
	// Attempts to connect wait in the listener's queue until the machine's
	// faults are known.
	err = m.reset()
	for _, f := range spec.Faults {
		if err == nil {
			err = m.SetFault(f)
		}
	}
	if err != nil {
		ln.Close()
		return nil, errors.Join(err, m.Stop(context.WithoutCancel(ctx)))
	}
	m.open(ln)
	return m, nil
}

// add registers a machine, so that Close finds it.
func (b *processBackend) add(m *machine) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("backend is closed")
	}
	for other := range b.machines {
		if other.root == m.root {
			return fmt.Errorf("worker %q runs in directory %q already", other.spec.Name, m.root)
		}
	}
	b.machines[m] = struct{}{}
	return nil
}

// listen opens the port on an address of its own for a new machine.
func (b *processBackend) listen() (*net.TCPListener, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var last error
	for range addressTries {
		addr := b.nextAddr()
		ln, err := listenTCP(addr, b.port)
		if err == nil {
			_, b.port = splitAddr(ln.Addr())
			return ln, nil
		}
		last = err
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, fmt.Errorf("listen on a loopback address: %w", last)
}

// nextAddr walks through 127.64.0.0/10, leaving out .0 and .255, which some
// programs take for network and broadcast.
func (b *processBackend) nextAddr() string {
	for {
		n := b.next
		b.next = 127<<24 | 64<<16 | (n+1)&(1<<22-1)
		if last := n & 0xff; last != 0 && last != 255 {
			return net.IPv4(byte(n>>24), byte(n>>16), byte(n>>8), byte(n)).String()
		}
	}
}

func (b *processBackend) Close() error {
	b.mu.Lock()
	b.closed = true
	var all []*machine
	for m := range b.machines {
		all = append(all, m)
	}
	b.mu.Unlock()

	for _, m := range all {
		m.beginStop()
	}
	// One look at the process table serves all machines.
	if err := killAll(context.Background(), all); err != nil {
		return fmt.Errorf("close process backend: %w", err)
	}
	for _, m := range all {
		m.endStop()
	}
	return nil
}

func (b *processBackend) forget(m *machine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.machines, m)
}

func listenTCP(addr string, port int) (*net.TCPListener, error) {
	ln, err := net.Listen("tcp4", net.JoinHostPort(addr, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	return ln.(*net.TCPListener), nil
}

func splitAddr(a net.Addr) (ip string, port int) {
	t := a.(*net.TCPAddr)
	return t.IP.String(), t.Port
}
