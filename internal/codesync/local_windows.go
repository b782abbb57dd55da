package codesync

import (
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// readFlags open a link as the link that it is, which is then no regular file.
const readFlags = os.O_RDONLY | windows.FILE_FLAG_OPEN_REPARSE_POINT

// identity is not known here: a FileInfo has no inode, and a time of change
// that cannot be set back is not in it. So every file is read each time.
func identity(fs.FileInfo) (inode uint64, changed int64, ok bool) { return 0, 0, false }

// permissions make every file executable on the workers: Windows does not say
// which are, and a script that cannot be run is worse than data that can.
func permissions(info fs.FileInfo) fs.FileMode { return info.Mode().Perm() | 0o111 }
