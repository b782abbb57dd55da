package worker

import (
	"strconv"
)

// ProcPath returns the path of a file about a process.
func ProcPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }
