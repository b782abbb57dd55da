//go:build unix

package daemon

import (
	"os/exec"
	"syscall"
)

// ownSession puts a daemon into its own session, so that signals of this terminal spare
// it.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
