//go:build unix

package sshfan

import (
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// What this system calls failures of connections.
const (
	errRefused      = syscall.ECONNREFUSED
	errNoHost       = syscall.EHOSTUNREACH
	errNoNetwork    = syscall.ENETUNREACH
	errTooManyFiles = syscall.EMFILE
)

// ownFailures are failures of this machine, which trying again does not mend.
func ownFailures() []error {
	return []error{syscall.EMFILE, syscall.ENFILE, syscall.EACCES, syscall.EPERM, syscall.EAFNOSUPPORT}
}

// raiseFileLimit raises the soft limit of open files to need, or as far as the
// hard limit allows, and returns what it is now.
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

// lockFile waits until no other process has the lock of the file; closing the
// file gives it back.
func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }

// exposed reports whether a private key of that mode can be read by others.
func exposed(mode fs.FileMode) bool { return mode&0o077 != 0 }

func dialAgent(socket string) (io.ReadWriteCloser, error) { return net.Dial("unix", socket) }

// DefaultAgent is where an agent is asked for keys when the environment names
// none; "" is nowhere.
func DefaultAgent() string { return "" }
