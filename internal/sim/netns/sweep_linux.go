package netns

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"multihost/internal/sim/worker"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// killInits kills process 1 of every machine of a backend with that root, and so all its
// processes. It returns how many it found.
func killInits(root string) (int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return 0, err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return 0, err
	}
	want := []byte(initName + "\x00" + root + "\x00")
	found := 0
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		line, err := os.ReadFile(worker.ProcPath(pid, "cmdline"))
		if err != nil || !bytes.HasPrefix(line, want) {
			continue
		}
		found++
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return found, err
		}
	}
	return found, nil
}
