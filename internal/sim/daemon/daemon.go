// Package daemon runs the simulator for a user: in the foreground, as a daemon, or for a
// single command. It removes what killed simulators left.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"multihost/internal/event"
	"multihost/internal/fault"
	"multihost/internal/remote"
	"multihost/internal/sim"
	"multihost/internal/sshfan"
	"multihost/internal/tpu"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// gcloudPort is the port at which gcloud's ssh and scp connect to workers.
const gcloudPort = 22

// Port returns the port at which the workers answer: asked, or gcloud's port if asked is 0.
// If gcloud's port cannot be used, Port returns 0, which means a free port, and the reason.
func Port(asked int, try func(port int) error) (port int, why, err error) {
	port = cmp.Or(asked, gcloudPort)
	why = try(port)
	if errno := syscall.Errno(0); errors.As(why, &errno) {
		why = errno // without the address of the trial
	}
	switch {
	case why == nil:
		return port, nil, nil
	case asked == 0:
		return 0, fmt.Errorf("workers cannot answer at port %d: %w", port, why), nil
	}
	return 0, nil, &PortError{Port: port, Err: why}
}

// A PortError reports that the workers cannot use the port that the user has chosen.
type PortError struct {
	Port int
	Err  error
}

func (e *PortError) Error() string {
	return fmt.Sprintf("--ssh-port=%d: workers cannot answer there: %v", e.Port, e.Err)
}

func (e *PortError) Unwrap() error { return e.Err }

// Hint says how to find out who uses the port.
func (e *PortError) Hint() string {
	return fmt.Sprintf("see what listens there: sudo ss -ltnp 'sport = :%d'; or leave out --ssh-port", e.Port)
}

// Fault returns fault.Configuration.
func (e *PortError) Fault() fault.Kind { return fault.Configuration }

// Foreground runs a simulator until ctx ends or somebody ends it. Once it answers,
// Foreground calls ready. If ready returns an error, the simulator ends.
func Foreground(ctx context.Context, cfg sim.Config, ready func(url string) error) error {
	workers := 0
	for _, s := range cfg.Slices {
		ty, err := tpu.ParseType(s.Type)
		if err != nil {
			return err
		}
		workers += s.Count * ty.Workers
	}
	if err := sshfan.RaiseFileLimit(workers); err != nil {
		return err
	}
	if err := makeDir(cfg.Dir); err != nil {
		return err
	}
	server, err := sim.Start(ctx, cfg)
	if err != nil {
		return err
	}
	if err := ready(server.URL()); err != nil {
		return errors.Join(err, server.Close())
	}
	select {
	case <-ctx.Done():
	case <-server.Down():
	}
	return server.Close()
}

// A DirError reports that the directory of a simulator cannot be made.
type DirError struct{ Err error }

func (e *DirError) Error() string { return e.Err.Error() }
func (e *DirError) Unwrap() error { return e.Err }

// Fault returns fault.Configuration.
func (e *DirError) Fault() fault.Kind { return fault.Configuration }

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &DirError{Err: err}
	}
	return nil
}

// Background starts this program again with args, as a daemon that runs a simulator in dir.
// It waits until the daemon is ready or has ended, and returns the simulator's address.
func Background(ctx context.Context, dir string, args []string) (url string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if err := makeDir(dir); err != nil {
		return "", err
	}
	logPath := filepath.Join(dir, "sim.log")
	log, err := os.Create(logPath)
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr = log, log
	ownSession(cmd)
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the daemon or this program
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if running, err := sim.Open(dir); err == nil {
			return running.URL(), nil
		}
		select {
		case err := <-ended:
			text, _ := os.ReadFile(logPath)
			return "", fmt.Errorf("start simulator: %w: %s", err, strings.TrimPrefix(strings.TrimSpace(string(text)), "multihost: error: "))
		case <-ctx.Done():
			cmd.Process.Signal(syscall.SIGTERM)
			<-ended
			return "", ctx.Err()
		case <-tick.C:
		}
	}
}

// ForOne starts a simulator for a single command, in a directory of its own. end ends the
// simulator and removes the directory.
func ForOne(ctx context.Context, cfg sim.Config) (server *sim.Server, end func(), err error) {
	if cfg.Dir, err = os.MkdirTemp("", temp); err != nil {
		return nil, nil, err
	}
	if server, err = sim.Start(ctx, cfg); err != nil {
		os.RemoveAll(cfg.Dir)
		return nil, nil, err
	}
	return server, func() {
		server.Close()
		os.RemoveAll(cfg.Dir)
	}, nil
}

// Remove removes the files of a simulator that has ended, and its directory unless that
// contains anything else.
func Remove(dir string) error {
	var err error
	for _, name := range []string{"workers", "gcloud", "google_compute_engine", "google_compute_engine.pub", "known_hosts", "known_hosts.lock", "application_default_credentials.json", "sim.log"} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	os.Remove(dir)
	return err
}

// temp begins the names of directories of ForOne's simulators.
const temp = "multihost-sim-"

// Sweep removes what killed simulators of --sim have left, and returns how many there were.
func Sweep() (swept int, err error) {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), temp+"*"))
	for _, dir := range dirs {
		if _, openErr := sim.Open(dir); !errors.Is(openErr, sim.ErrNotRunning) {
			continue
		}
		if rmErr := os.RemoveAll(dir); rmErr != nil {
			err = errors.Join(err, rmErr)
			continue
		}
		swept++
	}
	return swept, err
}

// StatusText describes what exists in a simulator.
func StatusText(st sim.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "simulator at %s, project %s, zone %s, SSH port %d\n", st.URL, st.Project, st.Zone, st.SSHPort)
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, q := range st.Queued {
		fmt.Fprintf(w, "queued resource\t%s\t%s\n", q.ID, q.State)
	}
	for _, n := range st.Nodes {
		fmt.Fprintf(w, "node\t%s\t%s\t%s\t%s\n", n.ID, n.State, n.Type, event.Count(len(n.Workers), "worker"))
	}
	for _, g := range st.Groups {
		fmt.Fprintf(w, "group\t%s\t%s\t%s\t%s\n", g.ID, groupState(g), g.Type, event.Count(len(g.VMs), "VM"))
	}
	for _, f := range st.Faults {
		fmt.Fprintf(w, "fault %d\t%s\n", f.ID, f.Fault)
	}
	w.Flush()
	return b.String()
}

// groupState returns the state of a group in one word: that of its topology, or of its only
// VM.
func groupState(g sim.GroupStatus) string {
	switch {
	case g.Waiting:
		return "WAITING"
	case g.Topology == "" && len(g.VMs) > 0:
		return cmp.Or(g.VMs[0].Status, "GONE")
	}
	return cmp.Or(g.Topology, "EMPTY")
}

// Unset returns the command with which a shell undoes Export, even without a running
// simulator. lookup reads the shell's environment. dir is the simulator's directory. The
// command does not remove credentials outside of dir, which are the user's own.
func Unset(lookup func(string) (string, bool), dir string) string {
	names := sim.EnvNames()
	const credentials = "GOOGLE_APPLICATION_CREDENTIALS"
	if file, ok := lookup(credentials); ok && filepath.Dir(file) == filepath.Clean(dir) {
		names = append(names, credentials)
	}
	return "unset " + strings.Join(names, " ") + "\n"
}

// Export returns the lines with which a shell sets variables.
func Export(env map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&b, "export %s=%s\n", name, remote.Quote(env[name]))
	}
	return b.String()
}
