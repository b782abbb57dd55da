package watch

import "fmt"

// Index is the directory, below the root of /tmp, that all logins of a worker share. The
// scripts of package launch make it too. The names of leases, and of the locks of watches,
// end with the number of the login that owns the file.
const Index = "/tmp/.multihost"

// Files of the index that launch's scripts write.
const (
	busyLock = "lock" // held while a command is active on the worker
	entryEnd = ".run" // LOGIN-RUN-ATTEMPT.run describes an attempt
)

// Keys of an attempt's file that this package reads.
const (
	entryCode    = "exit_code" // exists once the command has ended
	entryStarted = "started"   // PID START …: the session of the command
)

// ownFolder is the directory of each login's own files, in its home.
const ownFolder = ".multihost/lease"

const termsEnd = ".terms"

// WatchFile follows the run in the name of the file that a watch locks. RUN.watch.LOGIN has
// a line "PID START BORN" for the watch itself, and one for its keeper, if there is one.
// Package launch reads these lines, so that it does not stop the two processes as remnants
// of a run.
const WatchFile = ".watch."

// leaseOf follows the run in the name of a lease.
const leaseOf = ".lease."

func leaseFile(run string, login int) string { return fmt.Sprint(run, leaseOf, login) }
func watchFile(run string, login int) string { return fmt.Sprint(run, WatchFile, login) }
