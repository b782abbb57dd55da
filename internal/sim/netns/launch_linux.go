package netns

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"multihost/internal/sim/program"
	"multihost/internal/sim/worker"
)

// loginEnv is the environment of a program without a login.
var loginEnv = []string{"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/bash", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}

// inDir changes the directory and then runs the rest of its arguments.
const inDir = `cd -- "$1" && shift && exec "$@"`

// Launch implements worker.Launcher.
func (m *netnsMachine) Launch(p worker.Program) (worker.Launched, error) {
	g, err := m.running()
	if err != nil {
		return nil, err
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, err
	}
	env := program.Overlay(append(append([]string{}, loginEnv...), m.Spec.Env...), p.Env)
	if p.File != "" {
		if err := m.place(p.File, p.Argv[0]); err != nil {
			return nil, err
		}
	} else if _, err := program.Find(program.Value(loginEnv, "PATH"), p.Argv); err != nil {
		return nil, err
	}
	dir := p.Dir
	if dir == "" {
		dir = "/root"
	}
	argv := append([]string{"nsenter", "--target", strconv.Itoa(g.cmd.Process.Pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd",
		"--", "/bin/bash", "-c", inDir, "bash", dir}, p.Argv...)
	l := &entered{}
	start := func(file string, argv []string, attr *os.ProcAttr) (proc *os.Process, err error) {
		err = m.b.fabric.Do(func() error {
			proc, err = os.StartProcess(file, argv, attr)
			return err
		})
		if err == nil {
			l.pid = proc.Pid
		}
		return proc, err
	}
	if l.Launched, err = worker.StartOn(start, nsenter, argv, env, "/", p.Terminal); err != nil {
		return nil, err
	}
	return l, nil
}

// entered is a program that nsenter has started on a machine. nsenter waits for its end,
// and ends in the same way.
type entered struct {
	worker.Launched
	pid int // process id of nsenter
}

// Signal implements worker.Launched. It sends the signal to nsenter's child.
func (l *entered) Signal(sig syscall.Signal) error {
	children, err := os.ReadFile(worker.ProcPath(l.pid, "task/"+strconv.Itoa(l.pid)+"/children"))
	if err != nil {
		return os.ErrProcessDone
	}
	for _, word := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(word); err == nil {
			return unix.Kill(pid, sig)
		}
	}
	return l.Launched.Signal(sig) // nsenter has not started the program yet
}

// place copies a program of this machine to a path on the worker, unless it is there.
func (m *netnsMachine) place(file, path string) error {
	to := filepath.Join(m.Root(), path)
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return worker.WriteProgram(to, text)
}

// Root implements worker.Rooted.
func (m *netnsMachine) Root() string {
	g, err := m.running()
	if err != nil {
		return "/nonexistent"
	}
	return worker.ProcPath(g.cmd.Process.Pid, "root")
}
