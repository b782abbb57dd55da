package codesync

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"multihost/internal/sshfan"
	"multihost/internal/testkit"
)

// A localRunner is a worker with a private home directory.
type localRunner struct {
	home  string
	enter []string // a command that runs the worker's shell; empty: none
	mu    sync.Mutex
	// execs are the lengths of stdin that were offered, one for each command.
	execs int
}

func newWorker(t *testing.T) *localRunner { return &localRunner{home: t.TempDir()} }

func (w *localRunner) Run(ctx context.Context, c sshfan.Cmd) (sshfan.Status, error) {
	c = c.Whole()
	w.mu.Lock()
	w.execs++
	w.mu.Unlock()
	words := append(slices.Clone(w.enter), "bash", "-c", "echo noise of a login script; "+c.Line)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = w.home
	cmd.Env = []string{"HOME=" + w.home, "PATH=/usr/bin:/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return sshfan.Status{Code: exit.ExitCode()}, nil
	}
	return sshfan.Status{}, err
}

// text is what notes say, a line each.
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
