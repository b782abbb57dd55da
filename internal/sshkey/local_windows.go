package sshkey

import (
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
)

// exposed always returns false. A file's access control list says who may read the file,
// and the mode does not show that. Only its owner can open a profile directory.
func exposed(fs.FileMode) bool { return false }

// agentPipe is the pipe on which the agent of OpenSSH for Windows listens.
const agentPipe = `\\.\pipe\openssh-ssh-agent`

// dialAgent opens a named pipe as a file, which does not allow a read and a write at the
// same time. The agent's client never does both at once.
func dialAgent(socket string) (io.ReadWriteCloser, error) {
	if strings.HasPrefix(socket, `\\.\pipe\`) {
		return os.OpenFile(socket, os.O_RDWR, 0)
	}
	return net.Dial("unix", socket)
}

// DefaultAgent returns the place of an agent if the environment names none: the pipe of
// OpenSSH's agent if that service runs, otherwise "".
func DefaultAgent() string {
	pipe, err := os.OpenFile(agentPipe, os.O_RDWR, 0)
	if err != nil {
		return ""
	}
	_ = pipe.Close() // nothing was written
	return agentPipe
}
