//go:build unix

package job

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// shareLock waits for a lock of a file that others may share, which ends when it is
// closed.
func shareLock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// tryLock takes the lock of a file, which ends when it is closed. taken is that
// another process has it.
func tryLock(f *os.File) (taken bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return errors.Is(err, unix.EWOULDBLOCK), err
}
