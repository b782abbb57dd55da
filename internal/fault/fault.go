// Package fault sorts errors into kinds. A package that returns an error gives it a kind.
// The program ends with the exit status of the kind. No other code has to know the error's
// type.
package fault

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"slices"
	"strings"
)

// A Kind says how the user can react to an error: type something else, wait, or ask for a
// right.
type Kind int

// The kinds of errors.
const (
	Unknown       Kind = iota // the error has no kind of its own: its cause decides
	Internal                  // a fault of the program
	Usage                     // the command line is wrong
	Configuration             // a setting, key or file is missing or malformed
	Permission                // the caller may not do this, or is not signed in
	Temporary                 // no capacity or quota, or a deadline passed: the same may work later
	Unavailable               // a worker, a resource or an API is not there, not reachable or not usable
	IO                        // a local file cannot be read or written
	Preflight                 // the workers are not in the state that the command needs
	Interrupted               // a signal ended the work
)

var names = [...]string{
	Unknown:       "unknown",
	Internal:      "internal",
	Usage:         "usage",
	Configuration: "configuration",
	Permission:    "permission",
	Temporary:     "temporary",
	Unavailable:   "unavailable",
	IO:            "input or output",
	Preflight:     "preflight",
	Interrupted:   "interrupted",
}

// Kinds returns all kinds, in the order of their numbers.
func Kinds() []Kind {
	all := make([]Kind, len(names))
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

func (k Kind) String() string { return names[k] }

// New returns an error with a text and a kind, to compare with errors.Is.
func New(kind Kind, text string) error { return &sentinel{kind: kind, text: text} }

type sentinel struct {
	kind Kind
	text string
}

func (e *sentinel) Error() string { return e.text }
func (e *sentinel) Fault() Kind   { return e.kind }

// Of returns the kind of err. The outermost error that has a kind decides, because it knows
// more than its cause. Among joined errors, the first that has a kind decides. If no error
// has a kind, the standard library's errors have one. A passed deadline is Temporary, a
// failed file operation is IO, and a failed network operation is Unavailable. Of returns
// Unknown for all other errors and for nil.
func Of(err error) Kind {
	if kind := told(err); kind != Unknown {
		return kind
	}
	var (
		path   *fs.PathError
		netErr net.Error
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded): // a net.Error, too
		return Temporary
	case errors.As(err, &path):
		return IO
	case errors.As(err, &netErr):
		return Unavailable
	}
	return Unknown
}

// told returns the kind that err, or an error in its tree, reports.
func told(err error) Kind {
	if own, ok := err.(interface{ Fault() Kind }); ok {
		if kind := own.Fault(); kind != Unknown {
			return kind
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return told(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if kind := told(inner); kind != Unknown {
				return kind
			}
		}
	}
	return Unknown
}

// Hints returns what to type about an error, one text for each part of a joined error. The
// hint of an error also covers the errors that it wraps. A hint is what a method
// Hint() string returns.
func Hints(err error) (texts []string) {
	if hinted, ok := err.(interface{ Hint() string }); ok {
		if text := strings.TrimSpace(hinted.Hint()); text != "" {
			texts = []string{text}
		}
		return texts
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return Hints(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			for _, text := range Hints(inner) {
				if !slices.Contains(texts, text) {
					texts = append(texts, text)
				}
			}
		}
	}
	return texts
}
