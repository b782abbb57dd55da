//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// ownSession keeps a daemon from what happens to this terminal.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
