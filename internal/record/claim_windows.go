package record

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// ShareLock waits for a lock on a file that others may share. Closing the file releases
// it.
func ShareLock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), 0, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1})
}

// TryLock takes the exclusive lock on a file without waiting. Closing the file releases
// it. taken reports that another process has the lock. It locks a byte far behind the
// end, because locked bytes cannot be read.
func TryLock(f *os.File) (taken bool, err error) {
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1})
	return errors.Is(err, windows.ERROR_LOCK_VIOLATION), err
}
