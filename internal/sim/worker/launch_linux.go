package worker

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Launch implements Launcher.
func (m *machine) Launch(p Program) (Launched, error) {
	env, home, err := m.Login("root")
	if err != nil {
		return nil, err
	}
	env = Overlay(append(env, m.Spec.Env...), p.Env)
	file := p.File
	if file == "" {
		if file, err = lookIn(valueIn(env, "PATH"), p.Argv); err != nil {
			return nil, err
		}
	}
	l := &launched{}
	if p.Terminal {
		if l.pty, err = openPTY(cmp.Or(valueIn(env, "TERM"), "xterm")); err != nil {
			return nil, err
		}
		env = Overlay(env, []string{"TERM=" + l.pty.term})
	}
	dir := home
	if p.Dir != "" {
		dir = p.Dir
	}
	if l.process, err = m.startProcess(file, p.Argv, env, dir, l.pty); err != nil {
		if l.pty != nil {
			l.pty.close()
		}
		return nil, err
	}
	return l, nil
}

// Overlay returns the variables of both lists; those of over take precedence. Of several
// values of one variable the last counts.
func Overlay(under, over []string) []string {
	var env []string
	last := make(map[string]int)
	for _, e := range slices.Concat(under, over) {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := last[name]; ok {
			env[i] = e
			continue
		}
		last[name] = len(env)
		env = append(env, e)
	}
	return env
}

func valueIn(env []string, name string) string {
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

// lookIn finds a program in a search path.
func lookIn(path string, argv []string) (string, error) {
	if len(argv) == 0 || argv[0] == "" {
		return "", errors.New("no command specified")
	}
	if strings.Contains(argv[0], "/") {
		if _, err := os.Stat(argv[0]); err != nil {
			return "", fmt.Errorf("exec: %q: stat %s: no such file or directory: %w", argv[0], argv[0], os.ErrNotExist)
		}
		return argv[0], nil
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, argv[0])
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH: %w", argv[0], os.ErrNotExist)
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
