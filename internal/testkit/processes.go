package testkit

import (
	"bytes"
	"os"
	"strconv"
)

// Processes returns the processes of this machine that have a text in one of their files in
// /proc. file is the name of that file, for example "environ" or "cmdline". Words in these
// files end with a NUL.
func Processes(file, text string) (pids []int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // processes may end meanwhile
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if has, err := os.ReadFile("/proc/" + name + "/" + file); err == nil && bytes.Contains(has, []byte(text)) {
			pids = append(pids, pid)
		}
	}
	return pids
}
