//go:build unix

package sshkey

import (
	"io"
	"io/fs"
	"net"
)

// exposed reports whether other users can read a private key with that mode.
func exposed(mode fs.FileMode) bool { return mode&0o077 != 0 }

func dialAgent(socket string) (io.ReadWriteCloser, error) { return net.Dial("unix", socket) }

// DefaultAgent returns the place of an agent if the environment names none, or "".
func DefaultAgent() string { return "" }
