//go:build unix

package gcp

import "syscall"

// errRefused is the error of a connection to a port on which nothing listens.
const errRefused = syscall.ECONNREFUSED
