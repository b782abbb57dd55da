//go:build unix

package sshkey

import (
	"io"
	"io/fs"
	"net"
)

// exposed reports whether other users can read a private key of that mode.
func exposed(mode fs.FileMode) bool { return mode&0o077 != 0 }

func dialAgent(socket string) (io.ReadWriteCloser, error) { return net.Dial("unix", socket) }

// DefaultAgent returns where to ask an agent for keys when the environment names none;
// "" means nowhere.
func DefaultAgent() string { return "" }
