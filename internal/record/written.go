package record

import (
	"os"
	"path/filepath"
	"slices"

	"multihost/internal/codesync"
)

// WrittenDir is where this machine records which files commands have written at places that
// the user chose.
func WrittenDir(stateDir string) string {
	if stateDir == "" {
		return ""
	}
	return filepath.Join(stateDir, "written")
}

// Remember records that the command called by has written a file or directory on this
// machine, so that no later run ships it.
func Remember(stateDir, by, path string) error {
	return KeepWritten(stateDir, by, codesync.Written{Path: path})
}

// KeepWritten records files that a command has written on this machine, so that no sync
// ships them. by is the name of the command.
func KeepWritten(stateDir, by string, all ...codesync.Written) error {
	if stateDir == "" {
		return nil
	}
	all = slices.DeleteFunc(all, func(w codesync.Written) bool { return within(stateDir, w.Path) }) // no run ships the state directory anyway
	return codesync.Remember(WrittenDir(stateDir), "multihost "+by, all)
}

// within reports whether a path is in dir.
func within(dir, at string) bool {
	rel, err := filepath.Rel(dir, at)
	return err == nil && filepath.IsLocal(rel)
}

// MissingAbove returns the outermost directory of a path that does not exist, or "" if all
// exist.
func MissingAbove(dir string) string {
	missing := ""
	for {
		if _, err := os.Lstat(dir); err == nil {
			return missing
		}
		above := filepath.Dir(dir)
		if above == dir {
			return missing
		}
		missing, dir = dir, above
	}
}
