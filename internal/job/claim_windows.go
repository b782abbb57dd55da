package job

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// shareLock waits for a lock of a file that others may share, which ends when it is
// closed.
func shareLock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), 0, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1})
}

// tryLock takes the lock of a file, which ends when it is closed. taken is that
// another process has it. What is locked is a byte far behind the end, for what
// is locked cannot be read.
func tryLock(f *os.File) (taken bool, err error) {
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1})
	return errors.Is(err, windows.ERROR_LOCK_VIOLATION), err
}
