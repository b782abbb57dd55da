package cmdline

import (
	"cmp"
	"fmt"
	"strings"

	"multihost/internal/fault"
)

// A UsageError says that a command line has no meaning as typed.
type UsageError struct {
	Err    error
	Advice string // what to type instead; "": the hint of Err
}

// Usagef returns a UsageError without advice, with a text like fmt.Errorf's.
func Usagef(format string, args ...any) *UsageError {
	return &UsageError{Err: fmt.Errorf(format, args...)}
}

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Hint returns the advice, or else the hints of the cause.
func (e *UsageError) Hint() string { return advice(e.Advice, e.Err) }

// Fault returns fault.Usage.
func (e *UsageError) Fault() fault.Kind { return fault.Usage }

// A ConfigError reports a missing or malformed setting.
type ConfigError struct {
	Err    error
	Advice string // what to type; "": the hint of Err
}

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// Hint returns the advice, or else the hints of the cause.
func (e *ConfigError) Hint() string { return advice(e.Advice, e.Err) }

// Fault returns fault.Configuration.
func (e *ConfigError) Fault() fault.Kind { return fault.Configuration }

func advice(own string, cause error) string {
	return cmp.Or(own, strings.Join(fault.Hints(cause), "\n"))
}

// A PlacedError is an error about a value that the user did not type, with the value's
// place.
type PlacedError struct {
	Place string
	Err   error
}

func (e *PlacedError) Error() string { return e.Place + ": " + e.Err.Error() }
func (e *PlacedError) Unwrap() error { return e.Err }

// Fault returns fault.Unknown: the cause decides.
func (e *PlacedError) Fault() fault.Kind { return fault.Unknown }
