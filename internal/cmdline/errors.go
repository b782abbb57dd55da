package cmdline

import (
	"fmt"

	"multihost/internal/fault"
)

// A UsageError reports a command line that cannot be carried out as typed.
type UsageError struct {
	Err    error
	Advice string // what to type instead, or ""
}

// Usagef returns a UsageError without advice, with a text as of fmt.Errorf.
func Usagef(format string, args ...any) *UsageError {
	return &UsageError{Err: fmt.Errorf(format, args...)}
}

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Hint returns the advice.
func (e *UsageError) Hint() string { return e.Advice }

// Fault returns fault.Usage.
func (e *UsageError) Fault() fault.Kind { return fault.Usage }

// A PlacedError is an error about a value that was not typed, with the value's place.
type PlacedError struct {
	Place string
	Err   error
}

func (e *PlacedError) Error() string { return e.Place + ": " + e.Err.Error() }
func (e *PlacedError) Unwrap() error { return e.Err }

// Fault returns fault.Unknown: the cause decides.
func (e *PlacedError) Fault() fault.Kind { return fault.Unknown }
