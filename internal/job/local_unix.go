//go:build unix

package job

import "golang.org/x/sys/unix"

// mayWrite is the error with which files in a directory could not be made.
func mayWrite(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }
