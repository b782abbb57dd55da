//go:build unix

package sshfan

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// This system's errors for connections that fail.
const (
	errRefused      = syscall.ECONNREFUSED
	errNoHost       = syscall.EHOSTUNREACH
	errNoNetwork    = syscall.ENETUNREACH
	errTooManyFiles = syscall.EMFILE
)

// ownFailures returns failures of this machine that another try would not remove.
func ownFailures() []error {
	return []error{syscall.EMFILE, syscall.ENFILE, syscall.EACCES, syscall.EPERM, syscall.EAFNOSUPPORT}
}

// raiseFileLimit raises the soft limit of open files to need, or as far as the hard limit
// allows. It returns the new limit.
func raiseFileLimit(need uint64) (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	if limit.Cur < min(need, limit.Max) {
		raised := limit
		raised.Cur = min(need, limit.Max)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err == nil {
			limit = raised
		}
	}
	return limit.Cur, nil
}

// lockFile waits for the exclusive lock of the file. The lock ends when the file is closed.
func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }
