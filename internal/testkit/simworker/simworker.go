// Package simworker starts simulated workers for tests that want one at the
// other end of an SSH connection. It is apart from testkit, which tests of the
// simulator and of the SSH engine import from inside.
package simworker

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"testing"

	"multihost/internal/sim/worker"
	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

// Config says what is not as with every worker. The zero value is a worker of a
// v5e slice on a jumbo network.
type Config struct {
	Root    string        // the worker's file system; default: a new directory
	Devices []string      // default: those of one VFIO chip
	Logins  []string      // who is let in; default: tester
	SSH     sshfan.Config // Identity is set for it
}

// A Worker is a simulated machine of the process backend, s0w0, with one
// connection for each login. All ends with the test.
type Worker struct {
	worker.Machine
	Root  string
	Conns []*sshfan.Conn
}

// Start starts a worker and connects to it.
func Start(t testing.TB, c Config) *Worker {
	t.Helper()
	dir := t.TempDir()
	if c.Root == "" {
		c.Root = filepath.Join(dir, "machine")
	}
	if c.Devices == nil {
		c.Devices = []string{"/dev/vfio/0", "/dev/vfio/vfio"}
	}
	if c.Logins == nil {
		c.Logins = []string{"tester"}
	}
	id, err := sshfan.CreateIdentity(filepath.Join(dir, "key"))
	testkit.Must(t, err)
	c.SSH.Identity = id
	if c.SSH.KnownHosts == "" {
		c.SSH.KnownHosts = filepath.Join(dir, "known_hosts")
	}

	backend, err := worker.NewProcess(worker.ProcessConfig{Root: t.TempDir()})
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	machine, err := backend.Start(t.Context(), worker.Spec{
		Name: "s0w0", Node: "t-0", NodeUID: "1234", Hostname: "t1v-n-0123abcd-w-0", Root: c.Root, MTU: 8896, Devices: c.Devices,
		AuthorizedKeys: func() (lines []string) {
			for _, login := range c.Logins {
				lines = append(lines, login+":"+id.PublicKey()+" "+login)
			}
			return lines
		},
	})
	testkit.Must(t, err)

	fleet, err := sshfan.New(c.SSH)
	testkit.Must(t, err)
	t.Cleanup(fleet.Close)
	hosts := make([]sshfan.Host, len(c.Logins))
	for i, login := range c.Logins {
		hosts[i] = sshfan.Host{
			Name: "s0w0", User: login, Pin: "1234/0",
			Addr: func(context.Context) (string, error) {
				return net.JoinHostPort(machine.Addr(), strconv.Itoa(backend.Port())), nil
			},
		}
	}
	conns, errs := fleet.Connect(t.Context(), hosts)
	testkit.Must(t, errors.Join(errs...))
	return &Worker{Machine: machine, Root: c.Root, Conns: conns}
}

// Fault injects a fault, given in its text form.
func (w *Worker) Fault(t testing.TB, words ...string) {
	t.Helper()
	f, err := worker.ParseFault(words...)
	testkit.Must(t, err)
	testkit.Must(t, w.SetFault(f))
}

// NeedNetns ends the test, as testkit.Lacks does, where the backend whose
// workers are namespaces cannot work.
func NeedNetns(t testing.TB) {
	t.Helper()
	if err := worker.NetnsReady(); err != nil {
		testkit.Lacks(t, "no workers of namespaces: %v", err)
	}
}
