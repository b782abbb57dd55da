package sshkey

import (
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
)

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
