// Package transfer copies files between this machine and a worker, as a tar archive over
// the existing connection. A worker needs only bash, tar and the usual GNU tools.
//
// What it promises, in both directions:
//
//   - Nothing is put into place before everything has arrived whole and its digest was
//     compared. Until then it lies in a directory of its own, beside its place and on
//     the same file system. That directory is removed when anything goes wrong. On a
//     worker this also holds when the connection is lost or this program dies.
//   - A rename puts each file in the place of an earlier one at once. A directory is
//     merged into the one that is there.
//   - Modes, times of modification, symbolic links, empty directories and names of any
//     bytes are kept. Owners and set-user-id bits are not. Anything that is neither
//     file, directory nor link is left out and reported.
//   - A worker can write only below the names that it was asked for. Names with "..",
//     absolute names and names that were not asked for are errors. Links, which may lead
//     anywhere, are never followed.
//
// # Decisions
//
//   - Files travel as tar and not by SFTP: workers of GKE and of the simulator have no SFTP
//     server, tar transfers links and empty directories, and one digest at the end covers
//     everything.
//   - Workers do not pass files on to each other, as a sync does. A transfer to workers
//     ends with a barrier: what has arrived waits beside its place, held by the connection.
//     Files from workers are unpacked below an os.Root.
package transfer

import (
	"fmt"

	"multihost/internal/fault"
	"multihost/internal/remote"
)

// A WorkerError reports that a worker could not take or give files, or that its answer
// was refused.
type WorkerError struct{ Text string }

func (e *WorkerError) Error() string { return e.Text }

// Fault returns fault.Unavailable.
func (e *WorkerError) Fault() fault.Kind { return fault.Unavailable }

// trouble returns why the worker failed: its own report on one of its outputs, or otherwise
// the last line that was no answer.
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

// moved is called with the number of bytes that were just copied. A nil moved is
// allowed.
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
