//go:build unix

package codesync

import (
	"io/fs"
	"os"
	"syscall"
)

// With readFlags, opening a file that has become a FIFO does not wait. Opening a file that
// has become a link fails.
const readFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOFOLLOW

// identity returns the inode of a file and its time of change in nanoseconds.
func identity(info fs.FileInfo) (inode uint64, changed int64, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return st.Ino, changeTime(st), true
}

// permissions returns the mode that the file gets on the workers.
func permissions(info fs.FileInfo) fs.FileMode { return info.Mode().Perm() }
