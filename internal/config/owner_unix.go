//go:build unix

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// writtenByOthers returns an error if the file belongs to a user other than this one and
// root, or if every user may write it. The writer of the file decides what commands do.
func writtenByOthers(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	switch uid := int(stat.Uid); {
	case uid != os.Geteuid() && uid != 0:
		return fmt.Errorf("it belongs to another user (uid %d)", uid)
	case info.Mode().Perm()&0o002 != 0:
		return errors.New("everybody may write it")
	}
	return nil
}
