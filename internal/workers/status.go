package workers

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/record"
	"multihost/internal/stage"
)

// A Status is a snapshot of the run's status for the Ctrl-C prompt.
type Status struct {
	Run      string
	Running  string    // the workers on which the command runs, folded; empty: it runs on none
	Ended    bool      // the command has run and ended; another attempt may begin
	Kept     time.Time // until when failed slices are kept for a look; zero: they are not kept
	Ours     bool      // this command has started the run, and would stop it
	Resource string    // what is deleted at the end of this command, in words; empty: nothing
	Delete   string    // what the user types to delete it
	Billed   string    // what is billed for the run, in words; empty: nothing yet
	Lease    string    // what the run's workers do about the slices by themselves, in words; empty: nothing
	Earlier  bool      // an earlier runner made the resource: the command may run on it already
	Waiting  string    // what happens to the resource if no runner continues before the command has started, in words
}

// Started reports whether the command runs, or failed slices are kept, so that there is
// something to decide about.
func (s Status) Started() bool { return s.Running != "" || !s.Kept.IsZero() }

// Second returns what a second interrupt means while the prompt for the first one is
// open: a running command continues; a queued resource on which nothing runs is deleted.
func (s Status) Second() stage.Answer {
	if s.Started() || s.Earlier {
		return stage.Detach
	}
	return stage.Stop
}

// State holds the Status of a command.
type State struct {
	mu sync.Mutex // guards at
	at Status
}

// StatusOf returns the current status of the run. It is safe for concurrent use.
func (d *Deps) StatusOf() Status {
	d.stand.mu.Lock()
	defer d.stand.mu.Unlock()
	return d.stand.at
}

// SetStatus changes the status of the run. change must not call d.
func (d *Deps) SetStatus(change func(*Status)) {
	d.stand.mu.Lock()
	defer d.stand.mu.Unlock()
	change(&d.stand.at)
}

// A Presence is a lock that tells other commands on this machine that a command brings
// the logs of a run here. It ends with the process, however the process ends.
type Presence struct {
	run  string
	file *os.File
}

// PresencePath returns the file that a command locks while it is present at a run.
func PresencePath(stateDir, run string) string {
	return filepath.Join(record.RunDir(stateDir, run), "present")
}

// ComeTo makes this command present at a run until LeaveRun. Repeated calls for one run
// do nothing.
func (d *Deps) ComeTo(run string) {
	if d.present != nil && d.present.run == run {
		return
	}
	d.leaveRun()
	path := PresencePath(d.StateDir, run)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	var file *os.File
	if err == nil {
		file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err == nil {
		if err = record.ShareLock(file); err != nil {
			file.Close()
		}
	}
	if err != nil { // an onlooker then reads from the workers too, and takes no byte twice
		event.Notef(d.Sink, event.Debug, "", "lock %s: %v", path, err)
		return
	}
	d.present = &Presence{run, file}
}

// leaveRun ends the presence, if there is one.
func (d *Deps) leaveRun() {
	if d.present != nil {
		d.present.file.Close()
		d.present = nil
	}
}
