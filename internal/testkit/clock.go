package testkit

import (
	"slices"
	"sync"
	"time"
)

// A JumpClock skips every wait and records it.
type JumpClock struct {
	mu    sync.Mutex
	now   time.Time
	waits []time.Duration
}

// NewJumpClock returns a clock that starts at the same time in every test.
func NewJumpClock() *JumpClock {
	return &JumpClock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

// Now implements gcp.Clock.
func (c *JumpClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After implements gcp.Clock.
func (c *JumpClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.waits = append(c.waits, d)
	ch := make(chan time.Time, 1)
	ch <- c.now
	return ch
}

// Waits returns the waits so far.
func (c *JumpClock) Waits() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.waits)
}

// fastness is how many times faster than real time a FastClock is.
const fastness = 100

// A FastClock runs faster than real time. Use it if something real happens between pauses.
type FastClock struct{ start time.Time }

// NewFastClock returns a clock that starts at the real time.
func NewFastClock() FastClock { return FastClock{time.Now()} }

// Now implements gcp.Clock.
func (c FastClock) Now() time.Time { return c.start.Add(time.Since(c.start) * fastness) }

// After implements gcp.Clock.
func (c FastClock) After(d time.Duration) <-chan time.Time { return time.After(d / fastness) }
