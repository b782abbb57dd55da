package sshfan

import (
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/windows"
)

// What this system calls failures of connections.
const (
	errRefused      = windows.WSAECONNREFUSED
	errNoHost       = windows.WSAEHOSTUNREACH
	errNoNetwork    = windows.WSAENETUNREACH
	errTooManyFiles = windows.WSAEMFILE
)

// ownFailures are failures of this machine, which trying again does not mend.
func ownFailures() []error {
	return []error{windows.WSAEMFILE, windows.WSAEACCES, windows.WSAEAFNOSUPPORT, windows.ERROR_TOO_MANY_OPEN_FILES}
}

// raiseFileLimit has nothing to raise: a process may have 16 million handles.
func raiseFileLimit(uint64) (uint64, error) { return math.MaxInt, nil }

// lockFile waits until no other process has the lock of the file; closing the
// file gives it back.
func lockFile(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, &windows.Overlapped{})
}

// exposed cannot tell: who may read a file is in its access control list, which
// the mode does not show. A profile directory is its owner's alone.
func exposed(fs.FileMode) bool { return false }

// agentPipe is where the agent of OpenSSH for Windows listens.
const agentPipe = `\\.\pipe\openssh-ssh-agent`

// dialAgent opens a named pipe as the file that it is: the agent's client never
// reads and writes at once, which such a file would not bear.
func dialAgent(socket string) (io.ReadWriteCloser, error) {
	if strings.HasPrefix(socket, `\\.\pipe\`) {
		return os.OpenFile(socket, os.O_RDWR, 0)
	}
	return net.Dial("unix", socket)
}

// DefaultAgent is where an agent is asked for keys when the environment names
// none: the pipe of OpenSSH's agent where that service runs, else "".
func DefaultAgent() string {
	pipe, err := os.OpenFile(agentPipe, os.O_RDWR, 0)
	if err != nil {
		return ""
	}
	_ = pipe.Close() // nothing was written
	return agentPipe
}
