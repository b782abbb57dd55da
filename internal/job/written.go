package job

import (
	"cmp"
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
		if within(stateDir, p) {
			continue // no run ships the state directory
		}
		all = append(all, codesync.Written{Path: p})
	}
	return codesync.Remember(writtenDir(stateDir), "multihost "+by, all)
}

// remember is Remember for what a command has written in any case.
func (d *Deps) remember(by string, paths ...string) {
	d.notRemembered(Remember(d.StateDir, by, paths...))
}

// rememberFetched remembers what is new here. A file that was here before is the user's,
// unless it came the same way.
func (d *Deps) rememberFetched(got []transfer.Fetched) {
	var placed, replaced []string
	for _, g := range got {
		placed, replaced = append(placed, g.Placed...), append(replaced, g.Replaced...)
	}
	d.remember("cp", append(placed, codesync.Remembered(writtenDir(d.StateDir), replaced)...)...)
}

func (d *Deps) notRemembered(err error) {
	if err != nil {
		event.Notef(d.Sink, event.Debug, "", "what was written here is not remembered, so the next run may ship it: %v", err)
	}
}

// makeLogs makes a directory for logs that the user has named, by make. If the directory
// was there, later runs ship what else is in it.
func (d *Deps) makeLogs(by, dir string, make func() error) error {
	made := missingAbove(dir)
	if err := make(); err != nil {
		return err
	}
	if d.StateDir == "" || within(d.StateDir, dir) {
		return nil
	}
	w := codesync.Written{Path: cmp.Or(made, dir)}
	if made == "" {
		w.Names = logNames
	}
	d.notRemembered(codesync.Remember(writtenDir(d.StateDir), "multihost "+by, []codesync.Written{w}))
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
