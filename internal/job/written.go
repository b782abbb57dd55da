package job

import (
	"os"
	"path/filepath"
	"slices"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/transfer"
)

// writtenDir is where this machine keeps what commands wrote where the user wanted it.
func writtenDir(stateDir string) string {
	if stateDir == "" {
		return ""
	}
	return filepath.Join(stateDir, "written")
}

// Remember keeps that the command by wrote files or directories on this machine, so that
// no later run ships them.
func Remember(stateDir, by string, paths ...string) error {
	if stateDir == "" {
		return nil
	}
	slices.Sort(paths)
	var all []codesync.Written
	for _, p := range slices.Compact(paths) {
		all = append(all, codesync.Written{Path: p})
	}
	return keepWritten(stateDir, by, all...)
}

func keepWritten(stateDir, by string, all ...codesync.Written) error {
	if stateDir == "" {
		return nil
	}
	all = slices.DeleteFunc(all, func(w codesync.Written) bool { return within(stateDir, w.Path) }) // no run ships the state directory
	return codesync.Remember(writtenDir(stateDir), "multihost "+by, all)
}

// remember remembers a directory that a command is about to fill, and fills alone.
func (d *Deps) remember(by, dir string) {
	d.notRemembered(keepWritten(d.StateDir, by, codesync.Written{Path: filepath.Dir(dir), Names: []string{filepath.Base(dir)}}))
}

// rememberFetched remembers what is new here. A file that was here before is the user's,
// unless it came the same way.
func (d *Deps) rememberFetched(got []transfer.Fetched) {
	var paths, replaced, made []string
	for _, g := range got {
		paths, replaced = append(paths, g.Placed...), append(replaced, g.Replaced...)
		if g.Made != "" {
			made = append(made, g.Made)
		}
	}
	paths = append(paths, codesync.Remembered(writtenDir(d.StateDir), replaced)...)
	slices.Sort(paths)
	slices.Sort(made)
	var all []codesync.Written
	for _, p := range slices.Compact(paths) {
		all = append(all, codesync.Written{Path: p})
	}
	for _, p := range slices.Compact(made) {
		if !slices.Contains(paths, p) {
			all = append(all, codesync.Written{Path: p, Made: true})
		}
	}
	d.notRemembered(keepWritten(d.StateDir, "cp", all...))
}

func (d *Deps) notRemembered(err error) {
	if err != nil {
		event.Notef(d.Sink, event.Debug, "", "what was written here is not remembered, so the next run may ship it: %v", err)
	}
}

// makeLogs makes a directory for logs that the user has named, by make. Later runs ship
// what else is in it.
func (d *Deps) makeLogs(by, dir string, make func() error) error {
	made := missingAbove(dir)
	if err := make(); err != nil {
		return err
	}
	all := []codesync.Written{{Path: dir, Names: logNames}}
	if made != "" {
		all = append(all, codesync.Written{Path: made, Made: true})
	}
	d.notRemembered(keepWritten(d.StateDir, by, all...))
	return nil
}

// within reports whether a path is in dir.
func within(dir, at string) bool {
	rel, err := filepath.Rel(dir, at)
	return err == nil && filepath.IsLocal(rel)
}

// missingAbove returns the outermost directory of a path that is not there, or "".
func missingAbove(dir string) string {
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
