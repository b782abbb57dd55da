// Package record keeps what this machine knows about a run: run.json with its attempts, the
// copied logs, and when their lines arrived. The workers hold the truth; a record only
// saves calls to them.
//
// # Decisions
//
//   - The times at which lines arrived are beside the log, not in it. So the log stays as
//     the command wrote it, and the workers need not record times. A log that nobody here
//     followed has no times. The command logs then says that it shows the time of the copy.
//   - run.json names the slices by id. So attach and stop mean the same machines with the
//     same numbers, whatever has happened since.
//   - A command that copies logs to this machine holds a shared lock (runs/<run>/present)
//     until it ends, in whatever way. Meanwhile, top reads the files and asks no worker.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"multihost/internal/config"
	"multihost/internal/event"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// A Cluster names the Kubernetes cluster whose pods a run uses: by Name, or by Kubeconfig and
// Context.
type Cluster struct {
	Name       string   `json:"name,omitempty"`       // name of a GKE cluster in the project and region
	Kubeconfig []string `json:"kubeconfig,omitempty"` // files that describe the cluster
	Context    string   `json:"context,omitempty"`    // name of a context in these files
	Namespace  string   `json:"namespace"`
}

// Flags returns the flags that name the cluster on a command line.
func (c *Cluster) Flags() []string {
	if c.Name != "" {
		return []string{"--cluster=" + c.Name, "--namespace=" + c.Namespace}
	}
	return []string{"--kubeconfig=" + strings.Join(c.Kubeconfig, ":"), "--context=" + c.Context, "--namespace=" + c.Namespace}
}

// A Record is what the runner stores about a run on this machine, so that ps, logs, attach
// and stop find the run by its name. It is a cache.
type Record struct {
	Run     string    `json:"run"`
	Attempt int       `json:"attempt"`
	Project string    `json:"project"`
	Zone    string    `json:"zone"`
	Prefix  string    `json:"tpu_prefix"`
	Partial bool      `json:"allow_partial,omitempty"`
	Login   string    `json:"login"`
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	Command string    `json:"command"`
	Workers int       `json:"workers"`
	Hosts   string    `json:"hosts,omitempty"`   // the machines of a run on hosts that no cloud knows
	Cluster *Cluster  `json:"cluster,omitempty"` // the cluster of a run in pods
	// Workload is the UID of the workload that is this run. "" means that the run is no
	// workload.
	Workload string  `json:"workload,omitempty"`
	Slices   []Slice `json:"slices"`
	LogDir   string  `json:"log_dir"`
	Ended    bool    `json:"ended,omitempty"`
	Code     int     `json:"exit_code,omitempty"`
	Cut      bool    `json:"cut,omitempty"` // a log here has only its beginning, because the disk was full

	// Work identifies the command, its environment and its code: attempts with the same
	// Work do the same. It contains no values of secrets. "" means that it was not
	// recorded.
	Work string `json:"work,omitempty"`

	// Removing says that the job of the run deletes the slices, because the run has succeeded
	// with whole logs. The function Removed clears it.
	Removing bool `json:"removing,omitempty"`

	// SecretEnv names the variables of the command whose values have a mask where its
	// output is shown. The values are stored nowhere.
	SecretEnv []string `json:"secret_env,omitempty"`

	// KeepGoing says that the runner does not stop the other workers after a failure on one.
	// It is true with --fail-fast=false. It is also true for a job without runner, because
	// its workers stop each other.
	KeepGoing bool `json:"keep_going,omitempty"`

	Bucket    string `json:"bucket,omitempty"` // bucket of a job without runner
	BucketDir string `json:"bucket_dir,omitempty"`

	Attempts []PastAttempt `json:"attempts,omitempty"` // oldest first; the last one has the number Attempt

	Unseen *Unseen `json:"-"` // for a run found on workers: the parts that nobody could look at; nil: none
}

// Unseen is what this machine does not know about a run that it found by asking slices.
type Unseen struct {
	Slices []string // slices that may have a part of the run and could not be asked, with the reason if it is known
	Of     int      // number of slices of the run; 0: unknown
	Gone   int      // how many of them do not exist any more or do not know the run
	Err    error    // why slices did not answer, or nil
}

// A PastAttempt is one start of the command of a run.
type PastAttempt struct {
	Attempt int       `json:"attempt"`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end,omitzero"` // zero: unknown
	Cause   string    `json:"cause,omitempty"`
	Why     string    `json:"why,omitempty"`
	Code    int       `json:"exit_code,omitempty"`
	Again   bool      `json:"again,omitempty"` // another attempt should follow
	LogDir  string    `json:"log_dir"`
	Cut     bool      `json:"cut,omitempty"`    // as in Record
	Slices  []string  `json:"slices,omitempty"` // ids of its slices

	// The rest is about a workload: its UID, how often its cluster had restarted it, and the
	// UIDs of the attempt's pods by worker.
	Workload string            `json:"workload,omitempty"`
	Restart  int               `json:"restart,omitempty"`
	Pods     map[string]string `json:"pods,omitempty"`
}

// Over reports whether the run has ended, was followed to its end, and will not start
// again.
func (r *Record) Over() bool {
	last := len(r.Attempts) - 1
	return r.Ended && (last < 0 || !r.Attempts[last].Again)
}

// BeginAttempt adds the record's current attempt to Attempts, unless this command takes
// over an attempt that is there already.
func (r *Record) BeginAttempt(now time.Time) {
	if n := len(r.Attempts); n > 0 && r.Attempts[n-1].Attempt == r.Attempt && r.Attempts[n-1].LogDir == r.LogDir {
		return
	}
	r.Attempts = append(r.Attempts, PastAttempt{Attempt: r.Attempt, Begin: now.UTC(), LogDir: r.LogDir, Slices: SliceIDs(r.Slices)})
}

// Place returns the directory for the logs of an attempt on the given slices: dir, unless
// dir has the logs of another attempt. Two attempts may have the same number: when slices
// are gone, a runner on another machine does not know how many attempts ran on them. An
// attempt that this command takes over keeps its directory, unless the user has typed dir.
func (r *Record) Place(attempt int, on []Slice, dir string, typed bool) string {
	taken := false
	for _, a := range r.Attempts {
		known := a.Slices
		if known == nil && a.Attempt == r.Attempt { // from a version that did not record slices
			known = SliceIDs(r.Slices)
		}
		switch {
		case a.Attempt != attempt || known == nil:
		case slices.Equal(known, SliceIDs(on)) && typed:
			return dir
		case slices.Equal(known, SliceIDs(on)):
			return a.LogDir
		default:
			taken = true
		}
	}
	if !taken {
		return dir
	}
	if attempt > 1 {
		dir = filepath.Dir(dir)
	}
	return filepath.Join(dir, fmt.Sprintf("attempt-%d-%s", attempt, on[0].UID))
}

// SliceIDs returns the ids of slices, or nil for hosts that no cloud knows.
func SliceIDs(all []Slice) (ids []string) {
	for _, s := range all {
		if s.UID != "" {
			ids = append(ids, s.UID)
		}
	}
	return ids
}

// EndAttempt records how the last attempt ended. There must be an attempt.
func (r *Record) EndAttempt(e event.AttemptEnd, now time.Time) {
	last := &r.Attempts[len(r.Attempts)-1]
	last.End, last.Cause, last.Why, last.Code, last.Again = now.UTC(), e.Cause, e.Why, e.Code, e.Again
	last.Cut = r.Cut
}

// LogDirOf returns the directory of an attempt's local logs, or "" if this machine does not
// know it. ended reports that the attempt was followed to its end and that its logs are
// whole, so that they will not grow.
func (r *Record) LogDirOf(attempt int) (dir string, ended bool) {
	if attempt == r.Attempt {
		return r.LogDir, r.Ended && !r.Cut
	}
	for _, a := range r.Attempts {
		if a.Attempt == attempt {
			return a.LogDir, !a.End.IsZero() && !a.Cut
		}
	}
	return "", false
}

// LogDirOn returns the directory of the local logs of an attempt on the slices with these
// ids, or "" if this machine does not know it. Two attempts on different slices may have
// the same number (see Place). If the record does not name the slices of an attempt, they
// count as the given ones.
func (r *Record) LogDirOn(attempt int, ids []string) string {
	for _, a := range slices.Backward(r.Attempts) {
		known := a.Slices
		if known == nil && a.Attempt == r.Attempt {
			known = SliceIDs(r.Slices)
		}
		if a.Attempt == attempt && (known == nil || slices.Equal(known, ids)) {
			return a.LogDir
		}
	}
	if known := SliceIDs(r.Slices); attempt == r.Attempt && (known == nil || slices.Equal(known, ids)) {
		return r.LogDir
	}
	return ""
}

// A Slice is one slice of a run. Its index in the record is its number.
type Slice struct {
	Name    string `json:"name"`
	UID     string `json:"uid"`
	Workers int    `json:"workers"`
	Type    string `json:"type,omitempty"` // accelerator type, if the cloud reports it

	Provider string    `json:"provider,omitempty"` // as in tpu.Slice
	Created  time.Time `json:"created,omitzero"`   // by the provider's clock
}

// SlicesOf returns what a record keeps about slices, in the same order.
func SlicesOf(all []tpu.Slice) []Slice {
	recorded := make([]Slice, len(all))
	for i, s := range all {
		recorded[i] = Slice{s.Name, s.UID, len(s.Workers), s.Type, s.Provider, s.Created.UTC()}
	}
	return recorded
}

// Workers returns how many workers each slice of a run has, from this machine's record, or
// nil without a record.
func Workers(stateDir, run string) ([]int, error) {
	rec, err := LoadRecord(stateDir, run)
	if err != nil || rec == nil {
		return nil, err
	}
	var counts []int
	for _, s := range rec.Slices {
		counts = append(counts, s.Workers)
	}
	return counts, nil
}

// RunDir returns the directory where this machine keeps a run's record and journal.
func RunDir(stateDir, run string) string {
	return filepath.Join(stateDir, "runs", run)
}

// RecordPath returns the file of a run's record.
func RecordPath(stateDir, run string) string {
	return filepath.Join(RunDir(stateDir, run), "run.json")
}

// RecordDir returns the directory for the logs of a run if the user names none.
func RecordDir(stateDir, run string, attempt int) string {
	return AttemptDir(RunDir(stateDir, run), attempt)
}

// AttemptDir returns the directory for an attempt's logs: dir for the first attempt, a
// subdirectory for a later one.
func AttemptDir(dir string, attempt int) string {
	if attempt <= 1 {
		return dir
	}
	return filepath.Join(dir, "attempt-"+strconv.Itoa(attempt))
}

// Save writes the record atomically: a reader sees either the whole old record or the whole
// new one.
func (r *Record) Save(stateDir string) error {
	path := RecordPath(stateDir, r.Run)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep the record of run %q: %w", r.Run, err)
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("keep the record of run %q: %w", r.Run, err)
	}
	// Several commands may save the record of one run at the same moment, so each writes a
	// file of its own.
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new")
	if err != nil {
		return fmt.Errorf("keep the record of run %q: %w", r.Run, err)
	}
	_, err = tmp.Write(append(data, '\n'))
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("keep the record of run %q: %w", r.Run, err)
	}
	return nil
}

// SaveAhead saves the record before the caller knows whether its content will become true.
// If it does not, the caller calls undo, which restores the old record. undo is never nil.
func (r *Record) SaveAhead(stateDir string) (undo func(), err error) {
	old, err := LoadRecord(stateDir, r.Run)
	if err == nil {
		err = r.Save(stateDir)
	}
	if err != nil {
		return func() {}, err
	}
	if old == nil {
		return func() { _ = os.Remove(RecordPath(stateDir, r.Run)) }, nil
	}
	return func() { _ = old.Save(stateDir) }, nil
}

// Removed records that the job of a run is done with the slices: it has deleted them, or
// they stay.
func Removed(stateDir, run string) error {
	rec, err := LoadRecord(stateDir, run)
	if err != nil || rec == nil || !rec.Removing {
		return err
	}
	rec.Removing = false
	return rec.Save(stateDir)
}

// LoadRecord returns the record of a run, or nil if this machine has none.
func LoadRecord(stateDir, run string) (*Record, error) {
	if err := config.CheckRunName(run); err != nil { // the name is part of the path
		return nil, &stage.Error{Stage: stage.Input, Text: err.Error(), Err: err, Advice: "list the runs with: multihost ps --all"}
	}
	data, err := os.ReadFile(RecordPath(stateDir, run))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of run %q: %w", run, err)
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read the record of run %q in %q: %w", run, RecordPath(stateDir, run), err)
	}
	return &r, nil
}

// LocalRecords returns the records on this machine, sorted by name of the run, without
// unreadable ones. The user sees the error when asking for the run by its name.
func LocalRecords(stateDir string) []*Record {
	paths, _ := filepath.Glob(RecordPath(stateDir, "*"))
	var all []*Record
	for _, path := range paths {
		if rec, err := LoadRecord(stateDir, filepath.Base(filepath.Dir(path))); err == nil && rec != nil {
			all = append(all, rec)
		}
	}
	return all
}

// LastLocalAttempt returns the highest number of an attempt that this machine knows, or 0.
func LastLocalAttempt(stateDir, run string) int {
	r, err := LoadRecord(stateDir, run)
	if err != nil || r == nil {
		return 0
	}
	last := r.Attempt
	for _, a := range r.Attempts {
		last = max(last, a.Attempt)
	}
	return last
}

// CheckLogDir returns the error that MakeLogDir would return, and makes nothing.
func (r *Record) CheckLogDir() error {
	dir := r.LogDir
	for {
		info, err := os.Stat(dir)
		up := filepath.Dir(dir)
		if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) && up != dir {
			dir = up
			continue
		}
		if err == nil && !info.IsDir() {
			err = &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		if err == nil {
			if err = mayWrite(dir); err != nil {
				err = &fs.PathError{Op: "mkdir", Path: r.LogDir, Err: err}
			}
		}
		if err != nil {
			return &stage.Error{Stage: stage.Local, Text: err.Error(), Err: err, Advice: elsewhere}
		}
		return nil
	}
}

// elsewhere is the advice about a directory that cannot take logs.
const elsewhere = "choose another place with --log-dir=DIR, or with --state-dir=DIR for records and logs"

// MakeLogDir makes the log directory, and creates a file in it as a test.
func (r *Record) MakeLogDir() error {
	if err := os.MkdirAll(r.LogDir, 0o700); err != nil {
		return &stage.Error{Stage: stage.Local, Text: err.Error(), Err: err, Advice: elsewhere}
	}
	probe, err := os.CreateTemp(r.LogDir, ".probe-*")
	if err != nil {
		return &stage.Error{Stage: stage.Local, Text: err.Error(), Err: err, Advice: elsewhere}
	}
	probe.Close()
	return os.Remove(probe.Name())
}

// Unused returns an error if the log directory has logs: those of two runs would be mixed.
func (r *Record) Unused() error {
	if old, _ := filepath.Glob(filepath.Join(r.LogDir, "output_slice_*.txt")); len(old) > 0 {
		return &stage.Error{Stage: stage.Input, Text: fmt.Sprintf("%q has the logs of another run", r.LogDir), Advice: "name another directory with --log-dir=DIR"}
	}
	return nil
}

// AttemptEvent returns the event for the record's attempt.
func (r *Record) AttemptEvent() event.Attempt {
	e := event.Attempt{Run: r.Run, Attempt: r.Attempt, Command: r.Command, Begin: r.Created, Workers: r.Workers, LogDir: r.LogDir}
	for _, s := range r.Slices {
		e.Slices = append(e.Slices, s.Name)
	}
	return e
}

// LogPath returns the path of one worker's local log file.
func (r *Record) LogPath(id tpu.WorkerID) string { return LogPath(r.LogDir, id) }

// Have returns the size of the local file of a worker's log.
func (r *Record) Have(id tpu.WorkerID) int64 {
	info, err := os.Stat(r.LogPath(id))
	if err != nil {
		return 0
	}
	return info.Size()
}

// LogPath returns the path for a worker's log. MaxText's runner uses the same name.
func LogPath(dir string, id tpu.WorkerID) string {
	return filepath.Join(dir, fmt.Sprintf("output_slice_%04d_worker_%04d.txt", id.Slice, id.Worker))
}
