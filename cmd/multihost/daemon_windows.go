package main

import "os/exec"

// ownSession has nothing to do: the only daemon is the simulator, which is not
// there on Windows.
func ownSession(*exec.Cmd) {}
