package daemon

import "os/exec"

// ownSession does nothing: the only daemon is the simulator, which does not run on Windows.
func ownSession(*exec.Cmd) {}
