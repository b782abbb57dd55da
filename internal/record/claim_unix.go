//go:build unix

package record

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ShareLock waits for a shared lock on a file. The lock ends when the caller closes the
// file.
func ShareLock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// TryLock takes the exclusive lock on a file without waiting. The lock ends when the caller
// closes the file. taken reports that another process has the lock.
func TryLock(f *os.File) (taken bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return errors.Is(err, unix.EWOULDBLOCK), err
}
