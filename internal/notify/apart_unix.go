//go:build unix

package notify

import (
	"os/exec"
	"syscall"
)

// runApart runs cmd in a process group of its own, which is killed when cmd's context ends.
func runApart(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd.Run()
}
