// Package simworker starts simulated workers for tests that need SSH. It is separate from
// testkit, because tests inside the packages of the simulator and the SSH engine import
// testkit.
package simworker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"multihost/internal/sim/netns"
	"multihost/internal/sim/worker"
	"multihost/internal/sshfan"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
)

// Config changes the usual worker. The zero value is a worker of a v5e slice on a jumbo
// network.
type Config struct {
	Root    string        // the worker's file system; default: a new directory
	Devices []string      // default: those of one VFIO chip
	Logins  []string      // users that may log in; default: tester
	SSH     sshfan.Config // Start sets Identity

	// Netns starts workers of the netns backend. Their addresses are 10.X.Y.2 and the
	// following. Subnet is "10.X.Y".
	Netns  bool
	Subnet string
}

// A Worker is a simulated machine with one connection for each login. Everything ends
// with the test.
type Worker struct {
	worker.Machine
	Root  string // file system; only with the process backend
	Addr  string // host:port for us and the other workers
	Conns []*sshfan.Conn
}

// Start starts the worker s0w0 of the process backend and connects to it.
func Start(t testing.TB, c Config) *Worker {
	t.Helper()
	return StartMany(t, 1, c)[0]
}

// StartMany starts n workers of one slice: s0w0, s0w1 and so on.
func StartMany(t testing.TB, n int, c Config) []*Worker {
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
	id, err := sshkey.Create(filepath.Join(dir, "key"))
	testkit.Must(t, err)
	c.SSH.Identity = id
	if c.SSH.KnownHosts == "" {
		c.SSH.KnownHosts = filepath.Join(dir, "known_hosts")
	}

	backend := start(t, c)
	workers := make([]*Worker, n)
	errs := make([]error, n)
	var starting sync.WaitGroup
	for i := range workers {
		starting.Go(func() {
			workers[i], errs[i] = c.worker(t.Context(), backend, i)
		})
	}
	starting.Wait()
	testkit.Must(t, errors.Join(errs...))

	fleet, err := sshfan.New(c.SSH)
	testkit.Must(t, err)
	t.Cleanup(fleet.Close)
	var hosts []sshfan.Host
	for i, w := range workers {
		for _, login := range c.Logins {
			hosts = append(hosts, sshfan.Host{
				Name: fmt.Sprintf("s0w%d", i), User: login, Pin: fmt.Sprintf("1234/%d", i),
				Addr: func(context.Context) (string, error) { return w.Addr, nil },
			})
		}
	}
	conns, errs := fleet.Connect(t.Context(), hosts)
	testkit.Must(t, errors.Join(errs...))
	for i, w := range workers {
		w.Conns = conns[i*len(c.Logins) : (i+1)*len(c.Logins)]
	}
	return workers
}

func start(t testing.TB, c Config) worker.Backend {
	t.Helper()
	var backend worker.Backend
	var err error
	if c.Netns {
		NeedNetns(t)
		backend, err = netns.New(netns.Config{Root: t.TempDir()})
	} else {
		backend, err = worker.NewProcess(worker.ProcessConfig{Root: t.TempDir()})
	}
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	return backend
}

func (c Config) worker(ctx context.Context, backend worker.Backend, i int) (*Worker, error) {
	id := c.SSH.Identity
	w := &Worker{Root: c.Root}
	if i > 0 {
		w.Root = fmt.Sprint(c.Root, i)
	}
	spec := worker.Spec{
		Name: fmt.Sprintf("s0w%d", i), Node: "t-0", NodeUID: "1234", Index: i, Hostname: fmt.Sprintf("t1v-n-0123abcd-w-%d", i),
		Root: w.Root, MTU: 8896, Devices: c.Devices,
		AuthorizedKeys: func() (lines []string) {
			for _, login := range c.Logins {
				lines = append(lines, login+":"+id.PublicKey()+" "+login)
			}
			return lines
		},
	}
	if c.Netns {
		spec.IP = fmt.Sprintf("%s.%d", c.Subnet, i+2)
	}
	var err error
	if w.Machine, err = backend.Start(ctx, spec); err != nil {
		return nil, err
	}
	w.Addr = net.JoinHostPort(w.Machine.Addr(), strconv.Itoa(backend.Port()))
	if c.Netns {
		w.Addr = net.JoinHostPort(spec.IP, "22")
	}
	return w, nil
}

// Fault sets a fault in its text form.
func (w *Worker) Fault(t testing.TB, words ...string) {
	t.Helper()
	f, err := worker.ParseFault(words...)
	testkit.Must(t, err)
	testkit.Must(t, w.SetFault(f))
}

// NeedNetns ends the test like testkit.Lacks if the netns backend cannot work here.
func NeedNetns(t testing.TB) {
	t.Helper()
	if err := netns.Ready(); err != nil {
		testkit.Lacks(t, "no workers of namespaces: %v", err)
	}
}
