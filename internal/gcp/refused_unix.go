//go:build unix

package gcp

import "syscall"

// errRefused means that nothing listens there.
const errRefused = syscall.ECONNREFUSED
