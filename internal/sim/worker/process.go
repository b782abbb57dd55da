//go:build linux

package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// processBackend is the Backend of [NewProcess].
type processBackend struct {
	cfg      ProcessConfig
	standins string // directory of the stand-ins, shared by all machines
	origin   *Thread

	Loopback

	mu       sync.Mutex
	closed   bool
	machines map[*machine]struct{}

	nodesMade map[int]bool // the numbers of NUMA nodes for which files exist
}

// NewProcess returns the backend that needs no privileges.
//
// A machine's commands are ordinary processes of the caller. bash runs them in a home below
// the machine's root. However the caller was started, they start as under sshd: no signal
// is ignored or blocked, the umask is 022, only the three descriptors of the session are
// open, and the environment is that of sshd. Limits, niceness and rights are the caller's.
// Each machine has its own address, homes, /tmp (as TMPDIR and below MULTIHOST_ROOT_TMP),
// kernel settings, devices, boot id, and state of the stand-ins. It shares the rest with
// the machine on which the simulator runs: all other files, the process table, the network,
// the user id. So a command that uses /proc/sys or /tmp without the root variables gets the
// real ones. A command on PATH without a stand-in is the real command.
//
// The backend recognises processes by their environment. A process can outlive the machine
// only if it has cleared its environment, left its session and changed to a directory
// outside the machine's root.
//
// It does not model PAM, users with different rights (sudo runs the command as the same
// user), missing packages (except those in mayLack), disk or memory limits, MaxStartups,
// X11 forwarding, ~/.ssh/rc, and subsystems other than sftp, which needs OpenSSH's
// sftp-server.
func NewProcess(cfg ProcessConfig) (Backend, error) {
	if cfg.Root == "" {
		return nil, errors.New("make process backend: no root directory given")
	}
	root, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("make process backend: %w", err)
	}
	// The search for processes uses the kernel's paths, so resolve links here.
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
		machines: make(map[*machine]struct{}),

		nodesMade: make(map[int]bool),
	}
	if err := writeStandins(b.standins); err != nil {
		return nil, fmt.Errorf("make process backend: %w", err)
	}
	if err := b.Loopback.Init(cfg.Port); err != nil {
		return nil, fmt.Errorf("make process backend: %w", err)
	}
	if b.origin, err = newOrigin(); err != nil {
		return nil, fmt.Errorf("make process backend: %w", err)
	}
	return b, nil
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
	ln, err := b.Listen()
	if err != nil {
		return nil, err
	}
	m.addr, m.port = SplitAddr(ln.Addr())
	if err := b.add(m); err != nil {
		ln.Close()
		return nil, err
	}
	// Attempts to connect wait in the listener's queue until the machine's faults are set.
	err = m.serveMetadata()
	if err == nil {
		err = m.reset()
	}
	for _, f := range spec.Faults {
		if err == nil {
			err = m.SetFault(f)
		}
	}
	if err != nil {
		ln.Close()
		return nil, errors.Join(err, m.Stop(context.WithoutCancel(ctx)))
	}
	m.Open(ln)
	m.Wg.Go(m.startup)
	return m, nil
}

// add registers a machine for Close.
func (b *processBackend) add(m *machine) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("backend is closed")
	}
	for other := range b.machines {
		if other.root == m.root {
			return fmt.Errorf("worker %q runs in directory %q already", other.Spec.Name, m.root)
		}
	}
	b.machines[m] = struct{}{}
	return nil
}

func (b *processBackend) Close() error {
	b.mu.Lock()
	already := b.closed
	b.closed = true
	var all []*machine
	for m := range b.machines {
		all = append(all, m)
	}
	b.mu.Unlock()

	for _, m := range all {
		m.beginStop()
	}
	// One scan of the process table serves all machines.
	if err := killAll(context.Background(), all); err != nil {
		return fmt.Errorf("close process backend: %w", err)
	}
	for _, m := range all {
		m.endStop()
	}
	if !already {
		b.origin.End()
	}
	return nil
}

func (b *processBackend) forget(m *machine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.machines, m)
}
