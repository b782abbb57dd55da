package worker

import (
	"strconv"
)

func ProcPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }
