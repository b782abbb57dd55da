package job

import (
	"os"
	"path/filepath"

	"multihost/internal/event"
)

// A presence is a lock that tells other commands on this machine that a command brings
// the logs of a run here. It ends with the process, however the process ends.
type presence struct {
	run  string
	file *os.File
}

func presencePath(stateDir, run string) string {
	return filepath.Join(RunDir(stateDir, run), "present")
}

// comeTo makes this command present at a run until leaveRun. Repeated calls for one run
// do nothing.
func (d *Deps) comeTo(run string) {
	if d.present != nil && d.present.run == run {
		return
	}
	d.leaveRun()
	path := presencePath(d.StateDir, run)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	var file *os.File
	if err == nil {
		file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err == nil {
		if err = shareLock(file); err != nil {
			file.Close()
		}
	}
	if err != nil { // an onlooker then reads from the workers too, and takes no byte twice
		event.Notef(d.Sink, event.Debug, "", "lock %s: %v", path, err)
		return
	}
	d.present = &presence{run, file}
}

// leaveRun ends the presence, if there is one.
func (d *Deps) leaveRun() {
	if d.present != nil {
		d.present.file.Close()
		d.present = nil
	}
}

// someoneAt reports whether a command on this machine brings the logs of a run here. A
// false positive is possible: another command that calls someoneAt at the same moment.
func someoneAt(stateDir, run string) bool {
	file, err := os.OpenFile(presencePath(stateDir, run), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	taken, _ := tryLock(file)
	return taken
}
