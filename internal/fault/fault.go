// Package fault sorts errors into kinds. A package gives its errors a kind, and the kind
// decides the exit status of the program. So the program need not know the types of errors.
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
// permission.
type Kind int

const (
	Unknown       Kind = iota // the error has no kind; the kind of its cause counts
	Internal                  // a fault of the program
	Usage                     // the command line is wrong
	Configuration             // a setting, key or file is missing or malformed
	Permission                // the caller lacks a permission, or is not signed in
	Temporary                 // no capacity or quota, or a deadline passed: a retry may work later
	Unavailable               // a worker, a resource or an API does not exist, does not answer or is not usable
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

// Of returns the kind of err. The kind of the outermost error that has one counts. In joined
// errors, the first one with a kind counts. Without a kind, a passed deadline is Temporary, a
// failed file operation is IO, and a failed network operation is Unavailable. For all other
// errors and for nil, Of returns Unknown.
func Of(err error) Kind {
	if kind := told(err); kind != Unknown {
		return kind
	}
	var (
		path   *fs.PathError
		netErr net.Error
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded): // also a net.Error
		return Temporary
	case errors.As(err, &path):
		return IO
	case errors.As(err, &netErr):
		return Unavailable
	}
	return Unknown
}

// told returns the first kind that err or an error that it wraps reports.
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

// Hints returns what to type about an error, one text for each part of a joined error. A
// hint is the result of a method Hint() string. The hint of an error also covers the errors
// that it wraps.
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
