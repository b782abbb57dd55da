package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"multihost/internal/sshfan"
)

// A lab has what every measurement needs: this program, a load server and a key of each
// kind. Its directory is in memory, so that the speed of the disk does not matter.
type lab struct {
	options
	self    string
	dir     string
	key     string // ed25519
	rsa     string
	port    int
	far     int // port of the same workers at a round trip of farAway
	hostKey string

	server *exec.Cmd
	stdin  io.Closer
}

// openLab starts a load server for o.most workers. The caller must close the lab.
func openLab(ctx context.Context, o options) (_ *lab, err error) {
	l := &lab{options: o}
	if l.binary, err = filepath.Abs(o.binary); err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.binary); err != nil {
		return nil, fmt.Errorf("%w; build it with: make build", err)
	}
	for _, test := range []*string{&l.relay, &l.deliver} {
		if *test == "" {
			continue
		}
		if *test, err = filepath.Abs(*test); err != nil {
			return nil, err
		}
	}
	if l.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if err := sshfan.RaiseFileLimit(2 * o.most); err != nil {
		return nil, err
	}
	parent := "/dev/shm"
	if _, err := os.Stat(parent); err != nil {
		parent = ""
	}
	if l.dir, err = os.MkdirTemp(parent, "multihost-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	l.key, l.rsa = filepath.Join(l.dir, "ed25519"), filepath.Join(l.dir, "rsa")
	for path, kind := range map[string][]string{l.key: {"-t", "ed25519"}, l.rsa: {"-t", "rsa", "-b", "3072"}} {
		args := append([]string{"-q", "-N", "", "-C", "bench", "-f", path}, kind...)
		if out, err := exec.CommandContext(ctx, "ssh-keygen", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("make key: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	return l, l.serve(ctx)
}

func (l *lab) serve(ctx context.Context) error {
	l.server = exec.CommandContext(ctx, l.self, "serve", "-n", fmt.Sprint(l.most))
	l.server.Stderr = os.Stderr
	in, err := l.server.StdinPipe()
	if err != nil {
		return err
	}
	out, err := l.server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := l.server.Start(); err != nil {
		return err
	}
	l.stdin = in
	ready, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("start load server: %w", err)
	}
	words := strings.SplitN(strings.TrimSpace(ready), " ", 3)
	if len(words) < 3 {
		return fmt.Errorf("load server said %q", ready)
	}
	l.hostKey = words[2]
	_, err = fmt.Sscan(words[0]+" "+words[1], &l.port, &l.far)
	return err
}

// served returns the CPU time of the load server so far.
func (l *lab) served() time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.server.Process.Pid))
	if err != nil {
		return 0
	}
	// The process name may contain spaces. In the fields after it, utime and stime are the 12th
	// and 13th. Their unit is 10 ms on Linux.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

func (l *lab) close() {
	if l.stdin != nil {
		l.stdin.Close()
		if err := l.server.Wait(); err != nil {
			fmt.Fprintf(os.Stderr, "bench: load server: %v\n", err)
		}
	}
	os.RemoveAll(l.dir)
}

// A cost is the cost of one run of a client.
type cost struct {
	wall     time.Duration
	least    time.Duration // wall time of the quickest round; only inTurn sets it
	cpu      time.Duration // CPU time of the process, and of the children for which it waited
	server   time.Duration // CPU of the load server during the run
	resident int64         // peak of the process or of its largest child
	stderr   []byte
}

// client runs a command and waits for its end. It reads the output through a pipe and drops it.
func (l *lab) client(ctx context.Context, env []string, argv ...string) (cost, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	return l.measure(cmd)
}

func (l *lab) measure(cmd *exec.Cmd) (cost, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Stdout = struct{ io.Writer }{io.Discard} // no *os.File, so that the command gets a pipe
	served, begin := l.served(), time.Now()
	err := cmd.Run()
	c := cost{wall: time.Since(begin), server: l.served() - served, stderr: stderr.Bytes()}
	if cmd.ProcessState != nil {
		c.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		c.resident = cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	}
	if err != nil {
		return c, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, lastOf(c.stderr))
	}
	return c, nil
}

func lastOf(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// own returns the arguments that start this program as a client.
func (l *lab) own(program string, n int, more ...string) []string {
	args := []string{l.self, program, "-n", fmt.Sprint(n), "-port", fmt.Sprint(l.port), "-key", l.key, "-host-key", l.hostKey}
	return append(args, more...)
}

// logs creates an empty directory for the files of one run.
func (l *lab) logs() (string, error) { return os.MkdirTemp(l.dir, "logs-") }

// A contestant is a client that is measured in turn with others.
type contestant struct {
	name string
	run  func() (cost, error)
}

// inTurn runs every contestant once a round and returns the median cost of each. So other work
// of the machine affects all of them alike. The order changes with each round, because a client
// may leave work behind for the next one.
func inTurn(ctx context.Context, rounds int, all ...contestant) (map[string]cost, error) {
	runs := make(map[string][]cost)
	for round := range rounds {
		for _, i := range rand.New(rand.NewPCG(uint64(round), 0)).Perm(len(all)) {
			c := all[i]
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			one, err := c.run()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			runs[c.name] = append(runs[c.name], one)
			fmt.Fprintf(os.Stderr, "bench: %-40s %6.2f s, %6.2f s of CPU\n", c.name, one.wall.Seconds(), one.cpu.Seconds())
		}
	}
	medians := make(map[string]cost)
	for name, costs := range runs {
		medians[name] = cost{
			wall:     median(costs, func(c cost) time.Duration { return c.wall }),
			least:    slices.MinFunc(costs, func(a, b cost) int { return cmp.Compare(a.wall, b.wall) }).wall,
			cpu:      median(costs, func(c cost) time.Duration { return c.cpu }),
			server:   median(costs, func(c cost) time.Duration { return c.server }),
			resident: median(costs, func(c cost) int64 { return c.resident }),
			stderr:   costs[len(costs)-1].stderr,
		}
	}
	return medians, nil
}

func median[T cmp.Ordered](all []cost, of func(cost) T) T {
	values := make([]T, len(all))
	for i, c := range all {
		values[i] = of(c)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// machine describes the machine, on which all figures depend.
func machine() string {
	model := "unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s, %s/%s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, runtime.Version())
}
