package codesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"multihost/internal/remote"
	"multihost/internal/testkit"
)

// A localRunner is a worker with a private home directory.
type localRunner struct {
	home  string
	enter []string // command that runs the worker's shell; empty: none
	tools string   // directory of programs that come before the system's
	mu    sync.Mutex
	execs int
}

func newWorker(t *testing.T) *localRunner { return &localRunner{home: t.TempDir()} }

func (*localRunner) Name() string               { return "s0w0" }
func (*localRunner) ClockOffset() time.Duration { return 0 }

func (w *localRunner) Run(ctx context.Context, c remote.Cmd) (remote.Status, error) {
	c = c.Whole()
	w.mu.Lock()
	w.execs++
	w.mu.Unlock()
	words := append(slices.Clone(w.enter), testkit.LoginShell(w.home), "-c", "echo noise of a login script; "+c.Line)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = w.home
	cmd.Env = []string{"HOME=" + w.home, "PATH=" + w.tools + ":/usr/bin:/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return remote.Status{Code: exit.ExitCode()}, nil
	}
	return remote.Status{}, err
}

// tool puts a bash script in the place of a program that the worker's scripts start. $REAL
// is the program itself.
func (w *localRunner) tool(t *testing.T, name, script string) {
	t.Helper()
	if w.tools == "" {
		w.tools = t.TempDir()
	}
	path, err := exec.LookPath(name)
	testkit.Must(t, err)
	testkit.WriteProgram(t, filepath.Join(w.tools, name), fmt.Sprintf("#!/bin/bash\nREAL=%s\n%s\n", path, script))
}

func text(sink *testkit.Recorder) (all string) {
	for _, n := range sink.Notes() {
		all += string(n.Level) + ": " + n.Text + "\n"
	}
	return all
}

// shortReader ends after n bytes.
type shortReader struct {
	r io.Reader
	n int64
}

func (s *shortReader) Read(p []byte) (int, error) {
	if s.n <= 0 {
		return 0, io.EOF
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.n)])
	s.n -= int64(n)
	return n, err
}
