package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// A simulation is a simulated Google Cloud whose workers are processes. It also has a directory
// to sync and a home directory for state.
type simulation struct {
	l       *lab
	dir     string
	project string
	env     []string
	meters  []*meter
}

// simulate starts a simulation. Its slices have the prefix "b". slices has the syntax of the
// simulator. flags are further flags of sim up. The caller closes the simulation.
func (l *lab) simulate(ctx context.Context, slices string, flags ...string) (_ *simulation, err error) {
	dir, err := os.MkdirTemp(l.dir, "sim-")
	if err != nil {
		return nil, err
	}
	s := &simulation{l: l, dir: dir, project: filepath.Join(dir, "project")}
	s.env = []string{"HOME=" + dir, "XDG_RUNTIME_DIR=" + dir, "XDG_STATE_HOME=" + filepath.Join(dir, "state"), "XDG_CONFIG_HOME=" + filepath.Join(dir, "config")}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := os.Mkdir(s.project, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.project, "main.py"), []byte("print('hello')\n"), 0o600); err != nil {
		return nil, err
	}
	up := s.multihost(ctx, append([]string{"sim", "up", "--background", "--sim-dir=" + filepath.Join(dir, "sim"), "--slices", "b:" + slices}, flags...)...)
	if out, err := up.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("start simulator: %w: %s", err, lastOf(out))
	}
	vars, err := s.multihost(ctx, "sim", "env", "--sim-dir="+filepath.Join(dir, "sim")).Output()
	if err != nil {
		return nil, fmt.Errorf("simulator's environment: %w", err)
	}
	s.env = append(s.env, environment(vars)...)
	return s, nil
}

func (s *simulation) close() {
	for _, m := range s.meters {
		m.close()
	}
	down := s.multihost(context.Background(), "sim", "down", "--sim-dir="+filepath.Join(s.dir, "sim"))
	if out, err := down.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: end simulator: %v: %s\n", err, lastOf(out))
	}
	os.RemoveAll(s.dir)
}

func (s *simulation) multihost(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.l.binary, args...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Dir = s.project
	return cmd
}

// run measures a `multihost run`. It returns an error if the run fails.
func (s *simulation) run(ctx context.Context, name string, args ...string) (wholeCost, error) {
	c, err := timed(s.multihost(ctx, append([]string{"run", "--run-name=" + name, "--output=json", "--stream=all"}, args...)...))
	if err == nil {
		fmt.Fprintf(os.Stderr, "bench: multihost run %-25s %6.2f s, %6.2f s of CPU\n", name, c.wall.Seconds(), c.cpu.Seconds())
	}
	return c, err
}

// variable returns a variable of the simulator's environment, or "".
func (s *simulation) variable(name string) string {
	for _, v := range s.env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// environment parses lines `export NAME='value'`.
func environment(text []byte) (env []string) {
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if ok {
			env = append(env, name+"="+strings.Trim(value, `'"`))
		}
	}
	return env
}

// hosts starts a meter for each worker of the slices. It returns the addresses of the meters as
// a value of --hosts.
func (s *simulation) hosts(ctx context.Context, slices int) (string, error) {
	var hosts []string
	for i := range slices {
		addresses, err := s.addresses(ctx, fmt.Sprint("b-", i))
		if err != nil {
			return "", err
		}
		for _, ip := range addresses {
			m, err := startMeter(net.JoinHostPort(ip, s.variable("MULTIHOST_FLAG_SSH_PORT")))
			if err != nil {
				return "", err
			}
			s.meters = append(s.meters, m)
			hosts = append(hosts, "multihost@"+m.listener.Addr().String())
		}
	}
	return strings.Join(hosts, ","), nil
}

// addresses returns the addresses of a slice's workers.
func (s *simulation) addresses(ctx context.Context, slice string) (all []string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.variable("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU")+
		"v2alpha1/projects/"+s.variable("CLOUDSDK_CORE_PROJECT")+"/locations/"+s.variable("CLOUDSDK_COMPUTE_ZONE")+"/nodes/"+slice, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var node struct {
		NetworkEndpoints []struct{ IPAddress string }
	}
	if err := json.NewDecoder(answer.Body).Decode(&node); err != nil {
		return nil, err
	}
	for _, e := range node.NetworkEndpoints {
		all = append(all, e.IPAddress)
	}
	return all, nil
}

// sent returns how many bytes clients have sent through all meters.
func (s *simulation) sent() (n int64) {
	for _, m := range s.meters {
		n += m.sent.Load()
	}
	return n
}

// A meter forwards TCP connections to one worker. It counts all bytes that clients send.
type meter struct {
	listener net.Listener
	to       string
	sent     atomic.Int64
	wg       sync.WaitGroup
}

func startMeter(to string) (*meter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &meter{listener: listener, to: to}
	m.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			m.wg.Go(func() { m.pass(client) })
		}
	})
	return m, nil
}

// close waits for the end of the connections. The clients must have ended.
func (m *meter) close() {
	m.listener.Close()
	m.wg.Wait()
}

func (m *meter) pass(client net.Conn) {
	defer client.Close()
	worker, err := net.Dial("tcp", m.to)
	if err != nil {
		return
	}
	defer worker.Close()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(client, worker) // only its end matters
		client.Close()
	})
	_, _ = io.Copy(io.MultiWriter(worker, counter{&m.sent}), client)
	worker.Close()
	back.Wait()
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
