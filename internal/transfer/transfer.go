// Package transfer copies files between this machine and a worker, as a tar
// archive over the connection that there is: a worker needs nothing but a shell
// and tar.
//
// What it promises, in both directions:
//
//   - Nothing is put into place that has not arrived whole and been compared by
//     digest: until then it lies in a directory of its own, beside its place and
//     on the same file system, and is removed when anything goes wrong, on a
//     worker also when the connection is lost or this program dies.
//   - Each file takes the place of an earlier one at once, by a rename; a
//     directory joins the one that is there.
//   - Modes, times of modification, symbolic links, empty directories and names
//     of any bytes are kept. Owners and set-user-id bits are not; what is neither
//     file, directory nor link is left out, which is said.
//   - A worker can write nowhere but below the names that it was asked for: names
//     with "..", absolute ones and others than those asked for are errors, and
//     links, which may lead anywhere, are never followed.
package transfer

import (
	"context"
	"fmt"

	"multihost/internal/sshfan"
)

// A Runner runs commands on one worker. *sshfan.Conn is one.
type Runner interface {
	Name() string
	Run(ctx context.Context, cmd sshfan.Cmd) (sshfan.Status, error)
}

// A WorkerError is what a worker said about files that it could not take or
// give.
type WorkerError struct{ Text string }

func (e *WorkerError) Error() string { return e.Text }

// trouble is why the worker did not do what it was asked for: what it says itself,
// on one of its outputs, else the last line that was no answer.
func trouble(errs, out *sshfan.Answer) error {
	for _, from := range []*sshfan.Answer{out, errs} {
		if failed := from.Failure(); failed != "" {
			return &WorkerError{failed}
		}
	}
	for _, from := range []*sshfan.Answer{errs, out} {
		if line := from.Trouble(); line != "" {
			return &WorkerError{"no answer: " + line}
		}
	}
	return &WorkerError{"no answer"}
}

// moved tells bytes that were copied; nil tells nobody.
type moved func(n int64)

func (m moved) add(n int) {
	if m != nil && n > 0 {
		m(int64(n))
	}
}

func describe(status sshfan.Status) string {
	if status.Signal != "" {
		return "killed by SIG" + status.Signal
	}
	return fmt.Sprintf("exit status %d", status.Code)
}
