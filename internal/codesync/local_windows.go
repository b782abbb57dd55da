package codesync

import (
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// readFlags open a link itself, not its target. The result is then not a regular file.
const readFlags = os.O_RDONLY | windows.FILE_FLAG_OPEN_REPARSE_POINT

// identity returns false, because on Windows a FileInfo has no inode, and programs can set
// back its times. So Scan reads every file each time.
func identity(fs.FileInfo) (inode uint64, changed int64, ok bool) { return 0, 0, false }

// permissions makes every file executable on the workers, because Windows does not say
// which files are executable. A script that cannot be run is worse than data that can be
// run.
func permissions(info fs.FileInfo) fs.FileMode { return info.Mode().Perm() | 0o111 }
