package api

import (
	"fmt"
	"time"

	"multihost/internal/event"
	"multihost/internal/fault"
)

// A SlowError says that a change did not end within its limit. It may still end.
type SlowError struct {
	What      string // "create group \"m\""
	Operation string
	Limit     time.Duration
}

func (e *SlowError) Error() string {
	return fmt.Sprintf("%s: operation %s is not over after %s", e.What, e.Operation, event.Duration(e.Limit))
}

// Fault returns fault.Temporary.
func (e *SlowError) Fault() fault.Kind { return fault.Temporary }

// Hint returns what to do.
func (e *SlowError) Hint() string {
	return "type the same command again: it goes on where this one stopped"
}
