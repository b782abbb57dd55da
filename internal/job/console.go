package job

import (
	"errors"
	"os"
	"path/filepath"

	"multihost/internal/event"
	"multihost/internal/provision"
	"multihost/internal/record"
)

// keepConsoles writes the serial consoles of VMs that did not answer in time into the
// directory of the run, because they are gone once the slices are deleted. cause is why the
// wait for the slices failed.
func keepConsoles(d Deps, run string, cause error) {
	var late *provision.DeadlineError
	if !errors.As(cause, &late) {
		return
	}
	for _, c := range late.Consoles {
		dir := record.RunDir(d.StateDir, run)
		path := filepath.Join(dir, "console_"+c.VM+".txt")
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = os.WriteFile(path, []byte(c.Text), 0o600)
		}
		if err != nil {
			event.Notef(d.Sink, event.Warn, "", "%s; the console could not be kept: %v", c, err)
			continue
		}
		event.Notef(d.Sink, event.Warn, c.Hint, "%s; the console is kept in %s", c, path)
	}
}
