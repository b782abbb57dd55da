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
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"crypto/rand"
	"encoding/hex"

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

// newNonce makes the word that marks the answers of one exec.
func newNonce() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return "mh" + hex.EncodeToString(b[:])
}

// maxLine is the longest line of an answer, and maxNoise the most that is kept of
// what is none.
const (
	maxLine  = 4 << 10
	maxNoise = 16 << 10
	flood    = 4 << 20
)

var errFlood = errors.New("the worker answers without end")

// answers reads lines that begin with a nonce. Whatever else comes is kept as far
// as it helps to tell what went wrong.
type answers struct {
	nonce string
	hear  func(word, rest string) // nil when there is nobody to hear

	mu     sync.Mutex
	line   []byte
	noise  []byte
	size   int
	failed string // what the worker said that went wrong
}

func (a *answers) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(p)
	if a.size += n; a.size > flood {
		return 0, errFlood
	}
	for len(p) > 0 {
		line, rest, whole := bytes.Cut(p, []byte{'\n'})
		a.line = append(a.line, line[:min(len(line), maxLine-len(a.line))]...)
		p = rest
		if whole {
			a.take(string(a.line))
			a.line = a.line[:0]
		}
	}
	return n, nil
}

func (a *answers) take(line string) {
	_, text, found := strings.Cut(line, a.nonce+" ")
	if !found {
		if line != "" && len(a.noise) < maxNoise {
			a.noise = append(append(a.noise, line...), '\n')
		}
		return
	}
	word, rest, _ := strings.Cut(text, " ")
	if word == "error" {
		a.failed = clean(rest)
	}
	if a.hear != nil {
		a.hear(word, rest)
	}
}

// trouble is why the worker did not do what it was asked for.
func (a *answers) trouble(others ...*answers) error {
	for _, from := range append([]*answers{a}, others...) {
		from.mu.Lock()
		failed := from.failed
		from.mu.Unlock()
		if failed != "" {
			return &WorkerError{failed}
		}
	}
	for _, from := range append(others, a) {
		if line := from.lastNoise(); line != "" {
			return &WorkerError{"no answer: " + line}
		}
	}
	return &WorkerError{"no answer"}
}

func (a *answers) lastNoise() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(a.noise)+string(a.line)), "\n")
	return clean(lines[len(lines)-1])
}

// clean makes text of a worker fit for one line of a message.
func clean(s string) string {
	if len(s) > 500 {
		s = s[:500] + "…"
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
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
