package record

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// ShareLock waits for a shared lock on a file. The lock ends when the caller closes the
// file.
func ShareLock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), 0, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1})
}

// TryLock takes the exclusive lock on a file without waiting. The lock ends when the caller
// closes the file. taken reports that another process has the lock. The locked byte is far
// beyond the end of the file, because other processes cannot read locked bytes.
func TryLock(f *os.File) (taken bool, err error) {
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1})
	return errors.Is(err, windows.ERROR_LOCK_VIOLATION), err
}
