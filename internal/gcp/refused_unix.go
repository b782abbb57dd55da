//go:build unix

package gcp

import "syscall"

// errRefused is the error of a connection to a port without a listener.
const errRefused = syscall.ECONNREFUSED
