package worker

import (
	"cmp"
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"multihost/internal/sim/program"
)

// Launch implements Launcher.
func (m *machine) Launch(p Program) (Launched, error) {
	env, home, err := m.Login("root")
	if err != nil {
		return nil, err
	}
	env = program.Overlay(append(env, m.Spec.Env...), p.Env)
	file := p.File
	if file == "" {
		if file, err = program.Find(program.Value(env, "PATH"), p.Argv); err != nil {
			return nil, err
		}
	}
	dir := home
	if p.Dir != "" {
		dir = p.Dir
	}
	return StartOn(m.start, file, p.Argv, env, dir, p.Terminal)
}

// Root implements Rooted.
func (m *machine) Root() string { return m.root }

// StartOn starts a program by calling start. The program gets pipes or a terminal of its
// own.
func StartOn(start func(file string, argv []string, attr *os.ProcAttr) (*os.Process, error), file string, argv, env []string, dir string, terminal bool) (Launched, error) {
	l := &launched{}
	var err error
	if terminal {
		if l.pty, err = openPTY(cmp.Or(program.Value(env, "TERM"), "xterm")); err != nil {
			return nil, err
		}
		env = program.Overlay(env, []string{"TERM=" + l.pty.term})
	}
	if l.process, err = startOn(start, file, argv, env, dir, l.pty); err != nil {
		if l.pty != nil {
			l.pty.close()
		}
		return nil, err
	}
	return l, nil
}

// launched implements Launched.
type launched struct {
	*process
	pty *pty
}

// Streams implements Launched.
func (l *launched) Streams() (stdin io.WriteCloser, stdout, stderr io.ReadCloser) {
	if l.tty {
		return l.stdin, l.output[0], nil
	}
	return l.stdin, l.output[0], l.output[1]
}

// Wait implements Launched.
func (l *launched) Wait() syscall.WaitStatus { return l.wait() }

// Signal implements Launched.
func (l *launched) Signal(sig syscall.Signal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return os.ErrProcessDone
	}
	return unix.Kill(l.proc.Pid, sig)
}

// Resize implements Launched.
func (l *launched) Resize(columns, rows uint16) error {
	if l.pty == nil {
		return errors.New("the program has no terminal")
	}
	return l.pty.setSize(uint32(columns), uint32(rows))
}
