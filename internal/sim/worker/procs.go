//go:build linux

package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// markerName is the environment variable that marks every process of a machine. Its value
// is the machine's root.
const markerName = "MULTIHOST_SIM_WORKER"

// KillLimit limits how long processes may take to die. Only a process stuck in the kernel
// takes more than milliseconds.
const KillLimit = 10 * time.Second

// killAll kills every process of the machines and returns when none is left.
func killAll(ctx context.Context, machines []*machine) error {
	ctx, cancel := context.WithTimeoutCause(ctx, KillLimit,
		fmt.Errorf("processes survive SIGKILL for %v", KillLimit))
	defer cancel()
	if len(machines) == 0 {
		return nil
	}
	// A process can fork during a scan, which may then miss its child. So only a second
	// scan without finds is proof. A dying process loses its environment before its files,
	// so watch killed processes until they are zombies.
	dying := make(map[int]string)
	for clean := 0; clean < 2; {
		found, err := processesOf(machines)
		if err != nil {
			return fmt.Errorf("find processes: %w", err)
		}
		for _, pid := range found {
			if st, err := readStat(strconv.Itoa(pid)); err == nil {
				dying[pid] = st.start
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		for pid, start := range dying {
			st, err := readStat(strconv.Itoa(pid))
			if err != nil || st.start != start || st.state == 'Z' || st.state == 'X' {
				delete(dying, pid)
			}
		}
		if len(found) == 0 && len(dying) == 0 {
			clean++
			continue
		}
		clean = 0
		t := time.NewTimer(time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("kill processes %v: %w", found, context.Cause(ctx))
		}
	}
	return nil
}

// signalAll sends a signal to every process of a machine.
func signalAll(m *machine, sig syscall.Signal) error {
	found, err := processesOf([]*machine{m})
	if err != nil {
		return err
	}
	for _, pid := range found {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal process %d: %w", pid, err)
		}
	}
	return nil
}

// processesOf returns the living processes of the machines, from one scan of the process
// table.
func processesOf(machines []*machine) ([]int, error) {
	roots := make(map[string]bool)
	sessions := make(map[int]bool)
	for _, m := range machines {
		roots[m.root] = true
		m.Mu.Lock()
		for sid := range m.sessions {
			sessions[sid] = true
		}
		m.Mu.Unlock()
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, err
	}
	var found []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		if belongs(name, roots, sessions) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// belongs reports whether a process belongs to a machine of roots. The marker in its
// environment decides. Without a marker, its working directory must be below the machine's
// root, and it must be in one of the machine's sessions or have no terminal. So a person's
// shell in that directory is spared.
func belongs(pid string, roots map[string]bool, sessions map[int]bool) bool {
	env, err := os.ReadFile("/proc/" + pid + "/environ")
	if err != nil {
		return false // the process has gone or belongs to another user
	}
	if root, ok := marker(env); ok {
		return roots[root]
	}
	cwd, err := os.Readlink("/proc/" + pid + "/cwd")
	if err != nil || !below(cwd, roots) {
		return false
	}
	st, err := readStat(pid)
	if err != nil || st.state == 'Z' || st.state == 'X' || isAncestor(pid) {
		return false
	}
	return sessions[st.sid] || st.tty == 0
}

func marker(env []byte) (root string, ok bool) {
	const prefix = markerName + "="
	i := 0
	if !bytes.HasPrefix(env, []byte(prefix)) {
		if i = bytes.Index(env, []byte("\x00"+prefix)) + 1; i == 0 {
			return "", false
		}
	}
	value := env[i+len(prefix):]
	if end := bytes.IndexByte(value, 0); end >= 0 {
		value = value[:end]
	}
	return string(value), true
}

// below reports whether dir is one of roots or is inside one.
func below(dir string, roots map[string]bool) bool {
	dir = strings.TrimSuffix(dir, " (deleted)")
	for dir != "/" && dir != "." {
		if roots[dir] {
			return true
		}
		dir = filepath.Dir(dir)
	}
	return false
}

// isAncestor reports whether pid is a parent, grandparent, ... of this process.
func isAncestor(pid string) bool {
	want, _ := strconv.Atoi(pid)
	for p := os.Getppid(); p > 1; {
		if p == want {
			return true
		}
		st, err := readStat(strconv.Itoa(p))
		if err != nil {
			return false
		}
		p = st.ppid
	}
	return false
}

type procStat struct {
	state          byte
	ppid, sid, tty int
	start          string // in clock ticks since boot; tells apart two processes with the same id
}

func readStat(pid string) (procStat, error) {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return procStat{}, err
	}
	// The command's name may contain spaces and parentheses.
	i := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[i+1:]))
	if i < 0 || len(fields) < 20 {
		return procStat{}, fmt.Errorf("read stat of process %s: unexpected form", pid)
	}
	st := procStat{state: fields[0][0], start: fields[19]}
	for j, p := range map[int]*int{1: &st.ppid, 3: &st.sid, 4: &st.tty} {
		if *p, err = strconv.Atoi(fields[j]); err != nil {
			return procStat{}, fmt.Errorf("read stat of process %s: %w", pid, err)
		}
	}
	return st, nil
}
