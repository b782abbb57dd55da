// Package codesync brings a directory of the runner to every worker.
//
// Scan decides which files go and hashes them; nothing is left out without
// being named. Push makes the directory ~/<run> of one worker equal to what
// was scanned: files that the worker's content store knows already are not
// sent, files of an earlier sync that are gone here are removed there, files
// that a run made are left alone. A directory that is not complete is known to
// be so and is completed by the next Push.
//
//	tree, err := codesync.Scan(ctx, codesync.Options{Dir: ".", Sink: sink})
//	defer tree.Close()
//	reports, errs := tree.PushAll(ctx, targets, "run1")
//
// PushAll sends what is large to a few workers, which pass it on to the others;
// Push sends to one worker.
//
// On the worker:
//
//	~/.multihost/store/sha256/ab/ab12…   contents, by hash; shared by all runs of the login
//	~/.multihost/sync/<run>/place        which directory ~/<run> is; another one is not touched
//	~/.multihost/sync/<run>/digest       what ~/<run> holds, and who brought it; written last
//	~/.multihost/sync/<run>/manifest     the entries behind the digest
//	~/.multihost/sync/<run>/seen         size, inode and time of change of each entry after the sync
//
// Contents that no sync has used for 30 days are dropped from the store, and
// the longest unused ones while it is above 20 GB; what came within the last hour
// is never dropped. That is looked after once a day and when the store gets too
// large, so that a sync takes no longer because much is stored.
package codesync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"multihost/internal/event"
	"multihost/internal/sshfan"
)

// A Runner runs one command line on one worker. *sshfan.Conn is one.
type Runner interface {
	Run(ctx context.Context, cmd sshfan.Cmd) (sshfan.Status, error)
}

// IgnoreFile is the name of the file with patterns, in gitignore syntax, of
// what is not sent. It holds for the directory it lies in and everything below.
const IgnoreFile = ".multihostignore"

// Options say what to send. Dir is required.
type Options struct {
	Dir string
	// NoIgnore sends everything but .git, whatever git or IgnoreFile say.
	NoIgnore bool
	// Home is the user's home directory, which is not sent unless it is a git
	// work tree or has an IgnoreFile; "" means not to check.
	Home string
	Sink event.Sink // nil discards
	// Owner is who brings the files, for people: "ann@laptop".
	Owner string
	// Adopt takes over a directory that no sync made: files that are to be sent
	// replace what has their names there, and the rest stays.
	Adopt bool
	// Workers is how many Pushes there will be, for the progress; 0: unknown.
	Workers int
	// Stall is how long a worker may take or answer no byte before its transfer
	// is given up and tried again; 0 means 10 min.
	Stall time.Duration
	// TempDir is where packed files are spooled; "" means os.TempDir().
	TempDir string
	// Store limits the content store of the workers.
	Store StoreLimits
	// Cache is a directory, made if need be, in which Scan remembers the hashes
	// of files that have not changed since; "" remembers nothing.
	Cache string
	// ReadOnly writes nothing on this machine: Cache is only read.
	ReadOnly bool
	// Now is the clock of the progress events and of what is remembered; nil
	// means time.Now.
	Now func() time.Time
	// Relay says whether workers pass contents on; "" means RelayAuto.
	Relay Relay
	// RelayFanout is how many workers get contents from here when they are
	// passed on; 0 means one of each slice.
	RelayFanout int
	// HopLimit is how long a worker may take, once the first one of its tree has
	// everything, to get it as well; 0 means 30 s and 1 s for each 4 MB.
	HopLimit time.Duration
}

// Relay says when workers pass contents on to each other.
type Relay string

// RelayAuto passes contents on when that keeps relayFrom bytes or more off the
// runner's link. Fewer are faster sent than a login on every worker takes.
const (
	RelayAuto Relay = "auto"
	RelayOn   Relay = "on"
	RelayOff  Relay = "off"
)

const relayFrom = 32 << 20

// StoreLimits say what is dropped from a worker's content store after a Push.
type StoreLimits struct {
	MaxAge   time.Duration // since its last use, which is noted once a day; 0 means 30 days
	MaxBytes int64         // 0 means 20 GB
	Keep     time.Duration // what was used within this time is never dropped; 0 means 1 h
}

// Kind is what an Entry is.
type Kind byte

// The kinds of entries.
const (
	File    Kind = 'f'
	Dir     Kind = 'd'
	Symlink Kind = 'l'
)

// An Entry is one file, directory or symbolic link of a Tree.
type Entry struct {
	Path   string // relative to the directory, with slashes, in the bytes of the file system
	Kind   Kind
	Mode   fs.FileMode // permission bits; 0 for a Symlink
	Size   int64       // of a File
	Hash   string      // of a File: hexadecimal SHA-256 of its content
	Target string      // of a Symlink
}

// A Skip is what is not sent, and why.
type Skip struct {
	Path  string // ends with a slash for a directory
	Why   string // "ignored by git", "FIFO", "link out of the directory: /etc", …
	Files int    // files in a directory; 0 for everything else
	// Odd is true for what no pattern asked to leave out.
	Odd bool
}

// A Tree is the content of a directory at the time of the Scan. Its methods are
// safe for concurrent use; the fields must not be changed.
type Tree struct {
	Entries []Entry // sorted by Path
	Skipped []Skip
	Count   int     // number of files
	Bytes   int64   // sum of their sizes
	Digest  string  // of everything that Push makes equal
	Largest []Entry // the five largest files, largest first

	dir      string
	opts     Options
	manifest []byte
	byHash   map[string]Entry
	packs    packs
	recipes  recipes
	progress progress
}

// Report is what one Push did.
type Report struct {
	SentFiles int    // contents sent
	SentBytes int64  // compressed
	Uploaded  int64  // bytes of the manifest, and of contents unless passed on, that left this machine for it
	From      string // worker that passed the contents on; "" where they came from here
	Reused    int    // files that the worker had already
	Removed   int    // files of an earlier sync that were removed
}

// A DirError is a directory that cannot be synced.
type DirError struct {
	Dir    string
	Reason string
	hint   string
}

func (e *DirError) Error() string { return fmt.Sprintf("sync directory %q: %s", e.Dir, e.Reason) }

// Hint says what to do about it.
func (e *DirError) Hint() string { return e.hint }

// A FileError is a file that should be sent and cannot.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("read %q: %v", e.Path, e.Err) }

func (e *FileError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *FileError) Hint() string {
	switch {
	case errors.Is(e.Err, ErrChanging):
		return "stop what writes to it, or name it in " + IgnoreFile
	case errors.Is(e.Err, fs.ErrPermission):
		return "make it readable, or name it in " + IgnoreFile
	}
	return "if the workers do not need it, name it in " + IgnoreFile
}

var (
	// ErrChanging reports a file that changed each time it was read.
	ErrChanging = errors.New("changes while it is read")
	// ErrStalled reports a worker that neither took nor answered a byte for Options.Stall.
	ErrStalled = errors.New("no progress")
)

// InUseError says that a run of that name lives on a worker, or is about to start
// there, with other files than these. They are as they were.
type InUseError struct {
	Owner string // who started it; "" when that is not known
}

func (e *InUseError) Error() string {
	who := e.Owner
	if who == "" {
		who = "somebody"
	}
	return fmt.Sprintf("a run of that name, of %s, lives there on other code, which is left as it is", who)
}

// Hint says what to type.
func (e *InUseError) Hint() string {
	return "multihost ps shows it; to start this one beside it, in a directory of its own: --run-name=NAME"
}

// ForeignError says that the user has something at the run's place on a worker:
// no sync made it. It is as it was.
type ForeignError struct {
	Run    string
	What   string // "directory" with something in it, "file", "link" to such a directory, "dangling" for another link
	Target string // of a link
}

func (e *ForeignError) Error() string {
	switch e.What {
	case "file":
		return fmt.Sprintf("~/%s is a file of yours, which is left as it is", e.Run)
	case "dangling":
		return fmt.Sprintf("~/%s is a link to %q, where no directory is", e.Run, e.Target)
	case "link":
		return fmt.Sprintf("~/%s is a link to %q, which has files that no run brought there; they are left as they are", e.Run, e.Target)
	}
	return fmt.Sprintf("~/%s has files that no run brought there; they are left as they are", e.Run)
}

// Hint says what to type.
func (e *ForeignError) Hint() string {
	other := "to have a directory of its own for the run: --run-name=NAME"
	if e.What == "file" || e.What == "dangling" {
		return other
	}
	return other + "; to put the run's files into this one, over those of the same names: --adopt"
}

// A WorkerError is a failure that the worker reported.
type WorkerError struct {
	Step   string // check, plan, receive, feed, fetch
	Reason string
}

func (e *WorkerError) Error() string { return fmt.Sprintf("sync to worker (%s): %s", e.Step, e.Reason) }
