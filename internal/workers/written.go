package workers

import (
	"path/filepath"
	"slices"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/record"
	"multihost/internal/transfer"
)

// Remember remembers a directory that a command is about to fill, and fills alone.
func (d *Deps) Remember(by, dir string) {
	d.notRemembered(record.KeepWritten(d.StateDir, by, codesync.Written{Path: filepath.Dir(dir), Names: []string{filepath.Base(dir)}}))
}

// RememberFetched remembers what is new here. A file that was here before is the user's,
// unless it came the same way.
func (d *Deps) RememberFetched(got []transfer.Fetched) {
	var paths, replaced, made []string
	for _, g := range got {
		paths, replaced = append(paths, g.Placed...), append(replaced, g.Replaced...)
		if g.Made != "" {
			made = append(made, g.Made)
		}
	}
	paths = append(paths, codesync.Remembered(record.WrittenDir(d.StateDir), replaced)...)
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
	d.notRemembered(record.KeepWritten(d.StateDir, "cp", all...))
}

func (d *Deps) notRemembered(err error) {
	if err != nil {
		event.Notef(d.Sink, event.Debug, "", "what was written here is not remembered, so the next run may ship it: %v", err)
	}
}

// MakeLogs makes a directory for logs that the user has named, by make. Later runs ship
// what else is in it.
func (d *Deps) MakeLogs(by, dir string, make func() error) error {
	made := record.MissingAbove(dir)
	if err := make(); err != nil {
		return err
	}
	all := []codesync.Written{{Path: dir, Names: record.LogNames}}
	if made != "" {
		all = append(all, codesync.Written{Path: made, Made: true})
	}
	d.notRemembered(record.KeepWritten(d.StateDir, by, all...))
	return nil
}
