package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"multihost/internal/testkit"
)

// TestCommand: the command finds the cluster, and demo returns its exit status. If the command
// is interrupted, no program that it has started is left.
func TestCommand(t *testing.T) {
	var ended *exec.ExitError
	if err := command(t.Context(), "file", t.TempDir(), []string{"sh", "-c", `test "$KUBECONFIG" = file && exit 3`}); !errors.As(err, &ended) || ended.ExitCode() != 3 {
		t.Errorf("error is %v, want exit status 3", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "pid")
	var pid string
	done := make(chan error)
	go func() {
		done <- command(ctx, "", t.TempDir(), []string{"sh", "-c", `sleep 1000 & echo $! >` + file + `; wait`})
	}()
	testkit.Eventually(t, "the command to start another program", func() bool {
		text, _ := os.ReadFile(file)
		pid = strings.TrimSpace(string(text))
		return pid != ""
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("an interrupted command has no error")
	}
	testkit.Eventually(t, "the end of what the command has started", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", pid))
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

// TestGuard: if demo is killed, its command is killed too, and the directory of the cluster is
// removed.
func TestGuard(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "etcd"), 0o755))
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testkit.Must(t, cmd.Start())
	g, alive, err := guard(cmd.Process.Pid, dir)
	testkit.Must(t, err)
	testkit.Must(t, alive.Close())
	if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the command ended with %v", err)
	}
	testkit.Must(t, g.Wait())
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory is left")
	}
}

func TestPools(t *testing.T) {
	pools, err := poolsOf("v5litepod-16", 2)
	if err != nil || len(pools) != 2 || len(pools[1].Nodes) != 4 || pools[1].Nodes[3].Name != "gke-demo-np-1-3" || pools[1].Nodes[3].Chips != 4 {
		t.Errorf("pools are %+v, %v", pools, err)
	}
	if _, err := poolsOf("v5litepod-17", 1); err == nil {
		t.Error("a type that does not exist has pools")
	}
}
