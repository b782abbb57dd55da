package parts

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lock waits until no other process has the lock of a file, and takes it.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { _ = f.Close() }, nil // closing gives the lock back
}
