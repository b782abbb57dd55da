package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/event"
	"multihost/internal/launch"
)

// claim makes this process the only runner of a job on this machine until release is
// called or the process ends in any way. Two runners would both start the next attempt
// and both delete the slices.
func (d *Deps) claim(job string) (release func(), err error) {
	path := filepath.Join(d.StateDir, "runners", job)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, &Error{Stage: StageLocal, Err: err, Advice: "choose another place with --state-dir=DIR"}
	}
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, &Error{Stage: StageLocal, Err: err, Advice: "choose another place with --state-dir=DIR"}
		}
		taken, err := tryLock(file)
		if taken {
			who, _ := io.ReadAll(io.LimitReader(file, 1<<10))
			file.Close()
			return nil, &Error{Stage: StageBusy, Text: fmt.Sprintf("job %q has a runner on this machine already: %s", job, strings.TrimSpace(string(who))),
				Advice: "follow its command with: multihost attach " + job + "; end it with Ctrl-C there"}
		}
		if err != nil { // a file system without locks
			event.Notef(d.Sink, event.Debug, "", "lock %s: %v", path, err)
			return func() { file.Close() }, nil
		}
		mine, err := file.Stat()
		there, statErr := os.Stat(path)
		if err != nil || statErr != nil || !os.SameFile(mine, there) { // its last owner has just removed the file
			file.Close()
			continue
		}
		if err := file.Truncate(0); err == nil {
			fmt.Fprintf(file, "process %d, since %s\n", os.Getpid(), d.Clock.Now().Format(time.DateTime)) // only for the message above
		}
		return func() {
			_ = os.Remove(path)
			file.Close()
		}, nil
	}
}

// errStarting says that another runner of the job is just starting its command.
var errStarting = errors.New("another runner starts it at this moment")

// raced reports whether an attempt was not started because another runner of the same
// job, on another machine, was first on some worker.
func (r *run) raced(err error) bool {
	var busy *launch.BusyError
	var code *launch.CodeError
	var inUse *codesync.InUseError
	return errors.Is(err, errStarting) || errors.Is(err, launch.ErrAlreadyStarted) || errors.As(err, &busy) && busy.Info.Run == r.o.Run ||
		errors.As(err, &code) || errors.As(err, &inUse)
}

// maxRaces is how often two runners may hinder each other. After that, the obstacle
// counts as a remnant of a runner that has died.
const maxRaces = 8

// yield waits so that another runner of the job can go first. The time is random, so
// that two runners do not wait equally long.
func (r *run) yield(ctx context.Context) error {
	if r.races == 0 {
		event.Notef(r.Sink, event.Warn, "", "another runner of job %s starts its command, too", r.o.Run)
	}
	return sleep(ctx, r.Clock, time.Second+rand.N(time.Duration(r.races+1)*2*time.Second))
}
