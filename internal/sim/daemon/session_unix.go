//go:build unix

package daemon

import (
	"os/exec"
	"syscall"
)

// ownSession puts a daemon into a session of its own, so that signals from this terminal do
// not reach it.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
