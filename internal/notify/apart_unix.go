//go:build unix

package notify

import (
	"os/exec"
	"syscall"
)

// runApart runs cmd in a process group of its own. When cmd's context ends, the whole
// group is killed.
func runApart(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd.Run()
}
