package record

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"multihost/internal/codesync"
	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/journal"
	"multihost/internal/mask"
	"multihost/internal/stage"
	"multihost/internal/transfer"
)

// A Keeper records on this machine what a command does: the journal of its run, the files
// that it writes, and that it is following a run. It must not be used concurrently.
type Keeper struct {
	Of       *stage.Invocation
	StateDir string           // holds runs/<run>/run.json and, by default, the logs
	Owner    string           // "user@machine" of the runner, for the record of every run
	Journal  *journal.Journal // a part of the sink; opened by a command that starts or follows a run; nil: there is no journal

	// ExitStatus returns the exit status of the program for an error, for the summary
	// of a run.
	ExitStatus func(error) int

	present *presence // nil: this command copies no logs
}

// OpenJournal starts the run's journal. If it cannot, the run continues and the user is
// warned.
func (k *Keeper) OpenJournal(run, command string, env []config.EnvVar) {
	k.ComeTo(run)
	var secrets []string
	for _, w := range mask.MaskedWords(env) {
		secrets = append(secrets, string(w))
	}
	failed := func(err error) {
		event.Notef(k.Of.Sink, event.Warn, "", "the run goes on, but multihost report will not show all of it: %v", err)
	}
	err := k.Journal.Open(journal.Options{Dir: RunDir(k.StateDir, run), Command: command, Secrets: secrets, Failed: failed})
	if err != nil {
		failed(err)
	}
}

// CloseJournal ends the journal of a run with the outcome of this command.
func (k *Keeper) CloseJournal(out stage.Outcome, err error) {
	k.leaveRun()
	end := journal.End{ExitCode: out.Status(), Detached: out.Detached}
	if err != nil {
		end.Error = err.Error()
		if k.ExitStatus != nil {
			end.ExitCode = k.ExitStatus(err)
		}
	}
	k.Journal.Close(end)
}

// A presence is a lock that tells other commands on this machine that a command is copying
// a run's logs. The system releases the lock when the process ends, in whatever way.
type presence struct {
	run  string
	file *os.File
}

// PresencePath returns the file that a command locks while it follows a run.
func PresencePath(stateDir, run string) string {
	return filepath.Join(RunDir(stateDir, run), "present")
}

// ComeTo takes the lock that says that this command follows a run. CloseJournal releases
// it. Another call for the same run does nothing.
func (k *Keeper) ComeTo(run string) {
	if k.present != nil && k.present.run == run {
		return
	}
	k.leaveRun()
	path := PresencePath(k.StateDir, run)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	var file *os.File
	if err == nil {
		file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err == nil {
		if err = ShareLock(file); err != nil {
			file.Close()
		}
	}
	if err != nil { // other commands then read from the workers, too, but take no byte twice
		event.Notef(k.Of.Sink, event.Debug, "", "lock %s: %v", path, err)
		return
	}
	k.present = &presence{run, file}
}

// leaveRun releases the lock of ComeTo, if there is one.
func (k *Keeper) leaveRun() {
	if k.present != nil {
		k.present.file.Close()
		k.present = nil
	}
}

// Claim makes this process the only runner of a job on this machine, until release is
// called or the process ends. Two runners would both start the next attempt and both delete
// the slices.
func (k *Keeper) Claim(job string) (release func(), err error) {
	path := filepath.Join(k.StateDir, "runners", job)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, &stage.Error{Stage: stage.Local, Err: err, Advice: "choose another place with --state-dir=DIR"}
	}
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, &stage.Error{Stage: stage.Local, Err: err, Advice: "choose another place with --state-dir=DIR"}
		}
		taken, err := TryLock(file)
		if taken {
			who, _ := io.ReadAll(io.LimitReader(file, 1<<10))
			file.Close()
			return nil, &stage.Error{Stage: stage.Busy, Text: fmt.Sprintf("job %q has a runner on this machine already: %s", job, strings.TrimSpace(string(who))),
				Advice: "follow its command with: multihost attach " + job + "; end it with Ctrl-C there"}
		}
		if err != nil { // the file system has no locks
			event.Notef(k.Of.Sink, event.Debug, "", "lock %s: %v", path, err)
			return func() { file.Close() }, nil
		}
		mine, err := file.Stat()
		there, statErr := os.Stat(path)
		if err != nil || statErr != nil || !os.SameFile(mine, there) { // the last owner of the lock has just removed the file
			file.Close()
			continue
		}
		if err := file.Truncate(0); err == nil {
			fmt.Fprintf(file, "process %d, since %s\n", os.Getpid(), k.Of.Clock.Now().Format(time.DateTime)) // the text is only for the message above
		}
		return func() {
			_ = os.Remove(path)
			file.Close()
		}, nil
	}
}

// Remember records a directory that only this command is going to fill. No later run ships
// the directory.
func (k *Keeper) Remember(by, dir string) {
	k.notRemembered(KeepWritten(k.StateDir, by, codesync.Written{Path: filepath.Dir(dir), Names: []string{filepath.Base(dir)}}))
}

// RememberFetched records files that are new on this machine, so that no later run ships
// them. A file that existed before is the user's, unless an earlier command fetched it.
func (k *Keeper) RememberFetched(got []transfer.Fetched) {
	var paths, replaced, made []string
	for _, g := range got {
		paths, replaced = append(paths, g.Placed...), append(replaced, g.Replaced...)
		if g.Made != "" {
			made = append(made, g.Made)
		}
	}
	paths = append(paths, codesync.Remembered(WrittenDir(k.StateDir), replaced)...)
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
	k.notRemembered(KeepWritten(k.StateDir, "cp", all...))
}

func (k *Keeper) notRemembered(err error) {
	if err != nil {
		event.Notef(k.Of.Sink, event.Debug, "", "what was written here is not remembered, so the next run may ship it: %v", err)
	}
}

// MakeLogs calls make to create the directory that the user named for logs. Later runs do
// not ship the logs, but still ship other files in the directory.
func (k *Keeper) MakeLogs(by, dir string, make func() error) error {
	made := MissingAbove(dir)
	if err := make(); err != nil {
		return err
	}
	all := []codesync.Written{{Path: dir, Names: LogNames}}
	if made != "" {
		all = append(all, codesync.Written{Path: made, Made: true})
	}
	k.notRemembered(KeepWritten(k.StateDir, by, all...))
	return nil
}
