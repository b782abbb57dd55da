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

// This system's errors for connections that fail.
const (
	errRefused      = windows.WSAECONNREFUSED
	errNoHost       = windows.WSAEHOSTUNREACH
	errNoNetwork    = windows.WSAENETUNREACH
	errTooManyFiles = windows.WSAEMFILE
)

// ownFailures returns failures of this machine that another try cannot fix.
func ownFailures() []error {
	return []error{windows.WSAEMFILE, windows.WSAEACCES, windows.WSAEAFNOSUPPORT, windows.ERROR_TOO_MANY_OPEN_FILES}
}

// raiseFileLimit has nothing to raise: a process may have 16 million handles.
func raiseFileLimit(uint64) (uint64, error) { return math.MaxInt, nil }

// lockFile waits for the exclusive lock of the file. Closing the file releases it.
func lockFile(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, &windows.Overlapped{})
}

// exposed always returns false: the access control list of a file says who may read it,
// and the mode does not show that. A profile directory is open to its owner only.
func exposed(fs.FileMode) bool { return false }

// agentPipe is where the agent of OpenSSH for Windows listens.
const agentPipe = `\\.\pipe\openssh-ssh-agent`

// dialAgent opens a named pipe as a file. Such a file does not allow a read and a write
// at the same time; the agent's client never does both at once.
func dialAgent(socket string) (io.ReadWriteCloser, error) {
	if strings.HasPrefix(socket, `\\.\pipe\`) {
		return os.OpenFile(socket, os.O_RDWR, 0)
	}
	return net.Dial("unix", socket)
}

// DefaultAgent returns where to ask an agent for keys when the environment names none:
// the pipe of OpenSSH's agent if that service runs, else "".
func DefaultAgent() string {
	pipe, err := os.OpenFile(agentPipe, os.O_RDWR, 0)
	if err != nil {
		return ""
	}
	_ = pipe.Close() // nothing was written
	return agentPipe
}
