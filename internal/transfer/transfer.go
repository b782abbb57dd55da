// Package transfer copies files between this machine and a worker, as a tar archive over
// the existing connection. A worker needs only bash, tar and the usual GNU tools.
//
// It makes these promises, in both directions:
//
//   - Nothing gets to its place before everything has arrived whole and the digest was
//     compared. Until then it is in a directory beside its place, on the same file system.
//     If anything goes wrong, that directory is removed, on a worker even if the connection
//     is lost or this program dies.
//   - A rename replaces an existing file at once. A new directory is merged into an
//     existing one.
//   - Modes, times of modification, symbolic links, empty directories and names of any
//     bytes are kept. Owners and set-user-id bits are not. Anything that is not a file,
//     directory or link is left out and reported.
//   - A worker can write only below the names for which it was asked. Names with "..",
//     absolute names and other names are errors. Links may lead anywhere, so they are never
//     followed.
//
// # Decisions
//
//   - Files travel as tar and not by SFTP: workers of GKE and of the simulator have no SFTP
//     server, tar transfers links and empty directories, and one digest at the end covers
//     everything.
//   - Unlike in a sync, workers do not pass files on to each other, because a transfer to
//     workers ends with a barrier: what has arrived waits beside its place while the
//     connection lasts. Files from workers are unpacked below an os.Root.
package transfer

import (
	"fmt"

	"multihost/internal/fault"
	"multihost/internal/remote"
)

// A WorkerError reports that a worker could not take or give files, or that we refused its
// answer.
type WorkerError struct{ Text string }

func (e *WorkerError) Error() string { return e.Text }

// Fault returns fault.Unavailable.
func (e *WorkerError) Fault() fault.Kind { return fault.Unavailable }

// trouble returns why the worker failed: the worker's report, or else the last line outside of
// the answer.
func trouble(errs, out *remote.Answer) error {
	for _, from := range []*remote.Answer{out, errs} {
		if failed := from.Failure(); failed != "" {
			return &WorkerError{failed}
		}
	}
	for _, from := range []*remote.Answer{errs, out} {
		if line := from.Trouble(); line != "" {
			return &WorkerError{"no answer: " + line}
		}
	}
	return &WorkerError{"no answer"}
}

// moved is called with the number of bytes just copied. It may be nil.
type moved func(n int64)

func (m moved) add(n int) {
	if m != nil && n > 0 {
		m(int64(n))
	}
}

func describe(status remote.Status) string {
	if status.Signal != "" {
		return "killed by SIG" + status.Signal
	}
	return fmt.Sprintf("exit status %d", status.Code)
}
