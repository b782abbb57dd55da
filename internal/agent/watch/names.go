package watch

import "fmt"

// Index is the directory that all logins of a worker share, below the root of /tmp. The
// scripts of package launch make it, too. The name of a lease, and of the lock of a watch,
// ends with the number of the login that owns the file.
const Index = "/tmp/.multihost"

// The files of the index that launch's scripts write.
const (
	busyLock = "lock" // held while a command lives on the worker
	entryEnd = ".run" // LOGIN-RUN-ATTEMPT.run describes an attempt
)

// Those keys of an attempt's file that count here.
const (
	entryCode    = "exit_code" // this key exists only once the command has ended
	entryStarted = "started"   // PID START …: the command's session
)

// ownFolder is the directory of each login's own files, in its home.
const ownFolder = ".multihost/lease"

// termsEnd is the end of the name of the file with the terms of a run.
const termsEnd = ".terms"

// WatchFile is the part after the run in the name of the file that a watch locks.
// RUN.watch.LOGIN has a line "PID START BORN" for the watch itself, and another for its
// keeper, if there is one. Package launch reads these lines, so that it does not stop the
// processes as remnants of a run.
const WatchFile = ".watch."

// leaseOf is the part after the run in the name of a lease.
const leaseOf = ".lease."

func leaseFile(run string, login int) string { return fmt.Sprint(run, leaseOf, login) }
func watchFile(run string, login int) string { return fmt.Sprint(run, WatchFile, login) }
