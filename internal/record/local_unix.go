//go:build unix

package record

import "golang.org/x/sys/unix"

// mayWrite returns an error if the process may not create files in a directory.
func mayWrite(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }
