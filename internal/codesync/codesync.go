// Package codesync copies a directory of this machine to every worker.
//
// Scan decides which files to send, hashes them, and reports everything that it leaves out.
// Push makes the directory ~/<run> of one worker equal to the scanned tree. It does not
// send contents that the worker's store already has. It removes files of an earlier sync
// that no longer exist here. It leaves files that a run made. An interrupted sync leaves no
// digest, so the next Push completes the directory.
//
//	tree, err := codesync.Scan(ctx, codesync.Options{Dir: ".", Sink: sink})
//	defer tree.Close()
//	reports, errs := tree.PushAll(ctx, targets, "run1")
//
// PushAll sends large contents to a few workers, which pass them on to the others. Push
// sends to one worker.
//
// On the worker:
//
//	~/.multihost/store/sha256/ab/ab12…   contents, by hash; shared by all runs of the login
//	~/.multihost/sync/<run>/place        identifies the directory ~/<run>; a sync touches no other one
//	~/.multihost/sync/<run>/digest       what ~/<run> holds, and who sent it; written last
//	~/.multihost/sync/<run>/manifest     the entries behind the digest
//	~/.multihost/sync/<run>/seen         size, inode and time of change of each entry after the sync
//
// A sync removes contents from the store that no sync has used for 30 days. If the store is
// above 20 GB, it also removes the contents with the oldest last use. It never removes
// contents used within the last hour. It checks the store once a day and when the store
// gets too large, so that a large store does not slow down every sync.
//
// # Decisions
//
//   - A sync looks only at two kinds of files. The first kind differs between the new list
//     of files and the last one. The second kind has another size, inode or time of change
//     than at the last sync. The worker hashes all files only if the last sync did not end.
//     So one changed file costs the same for any number of files.
//   - The worker makes the new list from the differences, and compares the digest. If the
//     digest is wrong, it gets the whole list.
//   - Workers fetch files from each other, and do not push them. So each worker reports
//     over its own connection. If one fails, this machine sends it the files. Four workers
//     fetch from one. Each worker writes what it receives to a spool. At the same time its
//     tar, and the commands that serve other workers, read the spool, 64 KiB at a time.
//   - Before the first change, this machine asks every worker who owns its ~/<run>.
//   - A sync leaves out files that a command wrote on this machine. Such a file becomes the
//     user's, and is sent, as soon as git tracks it, its contents change, or a pattern with
//     ! names it.
package codesync

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
)

// IgnoreFile is the name of a file with patterns, in gitignore syntax, of paths that Scan
// leaves out. It applies to its directory and everything below.
const IgnoreFile = ".multihostignore"

// Options say which files to send. Dir is required.
type Options struct {
	Dir string
	// NoIgnore sends everything except .git. It ignores the rules of git and IgnoreFile.
	NoIgnore bool
	// Home is the user's home directory. Scan refuses to send it unless it is a git work
	// tree or has an IgnoreFile. "" means no check.
	Home string
	Sink event.Sink // may be nil
	// Owner names the person who sends the files, for people: "ann@laptop".
	Owner string
	// Adopt allows a sync into a directory that no sync made. The sent files replace files
	// of the same names, and all other files stay.
	Adopt bool
	// Workers is the number of Pushes to come, for the progress; 0: unknown.
	Workers int
	// Stall is the longest time without a byte to or from a worker. After that the transfer
	// is cancelled and retried. 0 means 10 min.
	Stall time.Duration
	// TempDir is the directory for packed files; "" means os.TempDir().
	TempDir string
	// Store limits the content store of the workers.
	Store StoreLimits
	// Cache is a directory in which Scan keeps the hashes of unchanged files. Scan creates
	// it if it is missing. "" keeps nothing.
	Cache string
	// Written is a directory in which Remember lists the files that commands wrote on this
	// machine. It lies in the directory of multihost's records. Scan sends neither that
	// directory nor the listed files, unless git tracks a file or an IgnoreFile has a
	// pattern for it with a "!". "" means that no command wrote anything.
	Written string
	// With ReadOnly nothing is written on this machine: Cache is only read.
	ReadOnly bool
	// Now is the clock for progress events and for Cache; nil means time.Now.
	Now func() time.Time
	// Relay says whether workers pass contents on; "" means RelayAuto.
	Relay Relay
	// RelayFanout is how many workers get contents from this machine if workers pass
	// contents on; 0 means one of each slice.
	RelayFanout int
	// HopLimit limits how long each further worker may need to get everything, once the
	// first worker of a tree has it. 0 means 30 s plus 1 s for each 4 MB.
	HopLimit time.Duration
}

// Relay says when workers pass contents on to each other.
type Relay string

// With relays, the runner's link carries less. RelayAuto uses relays if they save relayFrom
// bytes or more. For fewer bytes, sending directly is faster than the extra logins on
// workers.
const (
	RelayAuto Relay = "auto"
	RelayOn   Relay = "on"
	RelayOff  Relay = "off"
)

const relayFrom = 32 << 20

// StoreLimits say which contents a Push removes from a worker's store.
type StoreLimits struct {
	MaxAge   time.Duration // time since the last use, with a precision of a day; 0 means 30 days
	MaxBytes int64         // 0 means 20 GB
	Keep     time.Duration // contents used within this time stay; 0 means 1 h
}

// Kind is the type of an Entry.
type Kind byte

const (
	File    Kind = 'f'
	Dir     Kind = 'd'
	Symlink Kind = 'l'
)

// An Entry is one file, directory or symbolic link of a Tree.
type Entry struct {
	Path   string // relative to the tree's directory, with slashes, in the bytes of the file system
	Kind   Kind
	Mode   fs.FileMode // permission bits; 0 for a Symlink
	Size   int64       // of a File, in bytes
	Hash   string      // of a File: hexadecimal SHA-256 of its content
	Target string      // of a Symlink
}

// A Skip is a path that is not sent, and the reason.
type Skip struct {
	Path  string // ends with a slash for a directory
	Why   string // `ignored by git`, `FIFO`, `link out of the directory, to "/etc"`, …
	Files int    // number of files in a directory; 0 for everything else
	// Odd says that no pattern asked to leave the path out.
	Odd bool
}

// A Tree is the content of a directory at the time of the Scan. Its methods are safe for
// concurrent use. Do not change its fields.
type Tree struct {
	Entries []Entry // sorted by Path
	Skipped []Skip
	Count   int     // number of files
	Bytes   int64   // sum of the sizes of the files
	Digest  string  // digest of everything that Push makes equal
	Largest []Entry // the five largest files, largest first

	dir      string
	opts     Options
	ours     bool // Skipped has files that commands wrote
	manifest manifest
	contents contents
	packs    packs
	progress progress
}

// Report is the result of one Push.
type Report struct {
	SentFiles int    // contents sent to the worker
	SentBytes int64  // size of these contents as packed, compressed or not
	Uploaded  int64  // bytes that this machine sent to the worker: the manifest, and the contents unless another worker sent them
	From      string // worker that passed the contents on; "": this machine
	Reused    int    // files that the worker already had
	Removed   int    // removed files of an earlier sync
}

// A DirError is a directory that cannot be synced.
type DirError struct {
	Dir    string
	Reason string
	hint   string
}

func (e *DirError) Error() string { return fmt.Sprintf("sync directory %q: %s", e.Dir, e.Reason) }

// Fault returns fault.IO.
func (e *DirError) Fault() fault.Kind { return fault.IO }

func (e *DirError) Hint() string { return e.hint }

// A FileError is a file that should be sent but cannot be.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("read %q: %v", e.Path, e.Err) }

// Fault returns fault.IO.
func (e *FileError) Fault() fault.Kind { return fault.IO }

func (e *FileError) Unwrap() error { return e.Err }

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
	// ErrChanging is the error for a file that changed during each read.
	ErrChanging = fault.New(fault.IO, "changes while it is read")
	// ErrStalled says that a worker neither took nor sent a byte for Options.Stall.
	ErrStalled = fault.New(fault.Unavailable, "no progress")
)

// InUseError says that a run of that name with other files is active on a worker, or about
// to start there. The sync leaves its files unchanged.
type InUseError struct {
	Owner string // who started the run; "": not known
}

func (e *InUseError) Error() string {
	who := e.Owner
	if who == "" {
		who = "somebody"
	}
	return fmt.Sprintf("a run of that name, of %s, lives there on other code, which is left as it is", who)
}

// Fault returns fault.Unavailable.
func (e *InUseError) Fault() fault.Kind { return fault.Unavailable }

func (e *InUseError) Hint() string {
	return "multihost ps shows it; to start this one beside it, in a directory of its own: --run-name=NAME"
}

// ForeignError says that a file or directory on a worker has the place of the run, and no
// sync made it. It probably belongs to the user. The sync leaves it unchanged.
type ForeignError struct {
	Run    string
	What   string // "directory": a directory that is not empty; "file"; "link": a link to such a directory; "dangling": any other link
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

// Fault returns fault.Configuration.
func (e *ForeignError) Fault() fault.Kind { return fault.Configuration }

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

// Fault returns fault.Unavailable.
func (e *WorkerError) Fault() fault.Kind { return fault.Unavailable }
