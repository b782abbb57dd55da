package workers

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"multihost/internal/event"
	"multihost/internal/record"
	"multihost/internal/stage"
)

// Claim makes this process the only runner of a job on this machine until release is
// called or the process ends in any way. Two runners would both start the next attempt
// and both delete the slices.
func (d *Deps) Claim(job string) (release func(), err error) {
	path := filepath.Join(d.StateDir, "runners", job)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, &stage.Error{Stage: stage.Local, Err: err, Advice: "choose another place with --state-dir=DIR"}
	}
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, &stage.Error{Stage: stage.Local, Err: err, Advice: "choose another place with --state-dir=DIR"}
		}
		taken, err := record.TryLock(file)
		if taken {
			who, _ := io.ReadAll(io.LimitReader(file, 1<<10))
			file.Close()
			return nil, &stage.Error{Stage: stage.Busy, Text: fmt.Sprintf("job %q has a runner on this machine already: %s", job, strings.TrimSpace(string(who))),
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
