package sshfan

import (
	"math"
	"os"

	"golang.org/x/sys/windows"
)

// This system's errors for connections that fail.
const (
	errRefused      = windows.WSAECONNREFUSED
	errNoHost       = windows.WSAEHOSTUNREACH
	errNoNetwork    = windows.WSAENETUNREACH
	errTooManyFiles = windows.WSAEMFILE
)

// ownFailures returns failures of this machine that another try would not remove.
func ownFailures() []error {
	return []error{windows.WSAEMFILE, windows.WSAEACCES, windows.WSAEAFNOSUPPORT, windows.ERROR_TOO_MANY_OPEN_FILES}
}

// raiseFileLimit has nothing to raise, because a process may have 16 million handles.
func raiseFileLimit(uint64) (uint64, error) { return math.MaxInt, nil }

// lockFile waits for the exclusive lock of the file. The lock ends when the file is closed.
func lockFile(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, &windows.Overlapped{})
}
