package launch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// A local is a worker without a network. It is a private home in which commands run as under
// sshd. Its connections can be cut. As with sshd, a cut closes the command's descriptors
// and does not kill the command.
type local struct {
	t    testing.TB
	root string
	env  []string
	sh   string // login shell; empty: bash

	mu      sync.Mutex
	cut     chan struct{} // closed to cut the open connections
	lines   []string      // all command lines
	running sync.WaitGroup

	// cutAfterOut returns after how many bytes of output the connection is cut.
	cutAfterOut func() int
	// cgroup is the control group of the commands, if set.
	cgroup *os.File
	// refuse makes Run fail before it starts anything.
	refuse func() error
}

func newLocal(t testing.TB) *local {
	t.Helper()
	testkit.Need(t, "ps")
	// The path is short, because it is part of the names of FIFOs and of lines of ps.
	root, err := os.MkdirTemp("", "mh")
	if err != nil {
		t.Fatal(err)
	}
	l := &local{t: t, root: root, cut: make(chan struct{})}
	for _, d := range []string{"home", "tmp", "dev/vfio", "sys", "proc/sys/kernel/random", "bin"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.setBoot("boot-1")
	l.env = []string{
		"HOME=" + l.home(), "PATH=" + os.Getenv("PATH"), "USER=tester", "LOGNAME=tester", "SHELL=/bin/bash",
		"MULTIHOST_ROOT_PROC=" + root, "MULTIHOST_ROOT_SYS=" + root, "MULTIHOST_ROOT_DEV=" + root, "MULTIHOST_ROOT_TMP=" + root,
	}
	t.Cleanup(func() {
		l.cutNow()
		l.killAll()
		l.running.Wait()
		os.RemoveAll(root)
	})
	return l
}

// Our scripts run stat to find the free part of the disk. disk replaces stat by another
// script.
func (l *local) disk(script string) {
	l.t.Helper()
	stat, err := exec.LookPath("stat")
	testkit.Must(l.t, err)
	l.write("bin/stat", `#!/bin/bash
if [[ $3 != "%a %b %S" ]]; then exec `+stat+` "$@"; fi
`+script+"\n", 0o755)
	l.env = append(l.env, "PATH="+filepath.Join(l.root, "bin")+":"+os.Getenv("PATH"))
}

func (l *local) home() string { return filepath.Join(l.root, "home") }

func (l *local) dir(ref Ref) string {
	return filepath.Join(l.home(), ".multihost", "runs", ref.Run, fmt.Sprint(ref.Attempt))
}

func (l *local) setBoot(id string) {
	l.write("proc/sys/kernel/random/boot_id", id+"\n", 0o644)
}

func (l *local) write(name, text string, mode os.FileMode) {
	l.t.Helper()
	path := filepath.Join(l.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if mode == 0o755 {
		testkit.WriteProgram(l.t, path, text)
		return
	}
	testkit.Must(l.t, os.WriteFile(path, []byte(text), mode))
}

func (l *local) Name() string               { return "s0w0" }
func (l *local) ClockOffset() time.Duration { return 0 }

func (l *local) login(home string) *local {
	l.t.Helper()
	other := &local{t: l.t, root: l.root, cut: make(chan struct{})}
	for _, v := range l.env {
		if strings.HasPrefix(v, "HOME=") {
			v = "HOME=" + filepath.Join(l.root, home)
		}
		other.env = append(other.env, v)
	}
	if err := os.MkdirAll(filepath.Join(l.root, home), 0o755); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { other.cutNow(); l.killAll(); other.running.Wait() })
	return other
}

func (l *local) cutNow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.cut)
	l.cut = make(chan struct{})
}

func (l *local) Run(ctx context.Context, cmd remote.Cmd) (remote.Status, error) {
	cmd = cmd.Whole()
	l.mu.Lock()
	cut := l.cut
	l.lines = append(l.lines, cmd.Line)
	refuse := l.refuse
	limit := -1
	if l.cutAfterOut != nil {
		limit = l.cutAfterOut()
	}
	l.mu.Unlock()
	if refuse != nil {
		if err := refuse(); err != nil {
			return remote.Status{}, err
		}
	}
	c := execCommand(l, cmd.Line)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if l.cgroup != nil {
		c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(l.cgroup.Fd())
	}
	stdin, err := c.StdinPipe()
	if err != nil {
		return remote.Status{}, err
	}
	stdout, stdoutW, err := os.Pipe()
	if err != nil {
		return remote.Status{}, err
	}
	stderr, stderrW, err := os.Pipe()
	if err != nil {
		return remote.Status{}, err
	}
	c.Stdout, c.Stderr = stdoutW, stderrW
	if err := c.Start(); err != nil {
		return remote.Status{}, err
	}
	stdoutW.Close()
	stderrW.Close()
	lost := make(chan struct{})
	var once sync.Once
	lose := func() { once.Do(func() { close(lost) }) }
	go func() {
		if cmd.Stdin != nil {
			io.Copy(stdin, cmd.Stdin)
		}
		stdin.Close()
	}()
	var copies sync.WaitGroup
	copies.Go(func() { // the output comes in pieces, as over SSH
		var n int
		buf := make([]byte, 32<<10)
		for {
			k, err := stdout.Read(buf)
			if limit >= 0 && n+k >= limit {
				if cmd.Stdout != nil {
					cmd.Stdout.Write(buf[:limit-n])
				}
				lose()
				return
			}
			n += k
			if k > 0 && cmd.Stdout != nil {
				if _, err := cmd.Stdout.Write(buf[:k]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	copies.Go(func() { io.Copy(writerOr(cmd.Stderr), stderr) })
	ended := make(chan error, 1)
	l.running.Go(func() {
		ended <- func() error { err := c.Wait(); return err }()
	})
	shut := func() {
		stdin.Close()
		stdout.Close()
		stderr.Close()
		copies.Wait()
	}
	select {
	case err := <-ended:
		copied := make(chan struct{})
		go func() { // like sshd, wait until no process holds the output
			copies.Wait()
			close(copied)
		}()
		select {
		case <-copied:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		shut()
		return statusOf(err)
	case <-lost:
		shut()
		return remote.Status{}, fmt.Errorf("run on s0w0: %w", remote.ErrConnectionLost)
	case <-cut:
		shut()
		return remote.Status{}, fmt.Errorf("run on s0w0: %w", remote.ErrConnectionLost)
	case <-ctx.Done():
		shut()
		return remote.Status{}, context.Cause(ctx)
	}
}

// execCommand returns the command that sshd would start for a command line.
func execCommand(l *local, line string) *exec.Cmd {
	c := exec.Command(cmp.Or(l.sh, "/bin/bash"), "-c", line)
	c.Env, c.Dir = l.env, l.home()
	return c
}

func writerOr(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

func statusOf(err error) (remote.Status, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return remote.Status{}, nil
	case errors.As(err, &exit):
		ws := exit.Sys().(syscall.WaitStatus)
		if ws.Signaled() {
			return remote.Status{Code: 128 + int(ws.Signal()), Signal: strings.TrimPrefix(ws.Signal().String(), "SIG")}, nil
		}
		return remote.Status{Code: ws.ExitStatus()}, nil
	}
	return remote.Status{}, err
}

// processes returns the pids of the processes that still run in this worker's directories.
func (l *local) processes() []int { return testkit.Processes("environ", l.root+"/") }

func (l *local) killAll() {
	for _, pid := range l.processes() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// descriptors returns the targets of the open descriptors of a process, without the
// descriptors that the test process itself inherited.
func descriptors(pid int) []string {
	inherited := map[string]bool{}
	read := func(pid int, use func(string)) {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil {
				use(to)
			}
		}
	}
	read(os.Getpid(), func(to string) { inherited[to] = strings.HasPrefix(to, "pipe:") })
	var all []string
	read(pid, func(to string) {
		if !inherited[to] {
			all = append(all, to)
		}
	})
	return all
}

func parent(t testing.TB, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var state string
	var ppid int
	_, rest, _ := strings.Cut(string(text), ") ")
	fmt.Sscan(rest, &state, &ppid)
	return ppid
}

// alive reports whether the process with the number in file runs.
func alive(t testing.TB, file string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(text)), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// missing ends a test that needs something that this machine lacks.
func missing(t testing.TB, what string) {
	t.Helper()
	testkit.Lacks(t, "%s is needed", what)
}

// controlGroup makes a group of the unified hierarchy, below its root.
func controlGroup(t testing.TB, name string) *os.File {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			f.Close()
			testkit.Eventually(t, "the control group is empty", func() bool {
				os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0o644)
				return os.Remove(dir) == nil
			})
		})
		return f
	}
	missing(t, "a unified control group hierarchy that we may change")
	return nil
}

// patience limits every wait for an event. It is long, because tests share the machine.
const patience = 2 * time.Minute

func spec(run, script string) Spec {
	return Spec{Run: run, Attempt: 1, Owner: "ann@laptop", Script: script}
}

func begin(t testing.TB, r remote.Runner, s Spec) Started {
	t.Helper()
	a, err := Arm(t.Context(), r, s)
	if err != nil {
		t.Fatal(err)
	}
	started, err := a.ReleaseAt(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return started
}

func complete(t testing.TB, r remote.Runner, s Spec) (string, Exit) {
	t.Helper()
	begin(t, r, s)
	var out bytes.Buffer
	exit, err := Follow(t.Context(), r, s.Ref(), 0, &out, FollowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), exit
}

func stopped(t testing.TB, r remote.Runner, ref Ref, grace time.Duration) StopReport {
	t.Helper()
	report, err := Stop(t.Context(), r, ref, StopOptions{Grace: grace, Reason: "test by ann"})
	if err != nil {
		t.Fatal(err)
	}
	return report
}
