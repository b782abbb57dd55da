package iap

import (
	"fmt"
	"time"
)

// A Clock tells the time and waits. Proxy's default is the system's.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// permanentError marks a failure that a retry cannot cure.
type permanentError struct{ error }

func (e permanentError) Unwrap() error   { return e.error }
func (e permanentError) Permanent() bool { return true }

// noAnswerError is the cause of a try that took too long.
type noAnswerError time.Duration

func (e noAnswerError) Error() string { return fmt.Sprintf("no answer within %s", time.Duration(e)) }
func (e noAnswerError) Timeout() bool { return true }
