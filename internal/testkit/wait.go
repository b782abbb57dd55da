package testkit

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Eventually waits until a condition holds. After two minutes the test fails.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !Await(2*time.Minute, holds) {
		t.Fatalf("waited in vain for %s", what)
	}
}

// Await waits until a condition holds. It reports whether the condition held before the
// limit. If a look takes long, or the wait has lasted long, it looks less often: what the
// test waits for needs the processor.
func Await(limit time.Duration, holds func() bool) bool {
	begin := time.Now()
	for {
		look := time.Now()
		if holds() {
			return true
		}
		now := time.Now()
		if now.Sub(begin) > limit {
			return false
		}
		<-time.After(pause(now.Sub(look), now.Sub(begin)))
	}
}

// pause returns how long to wait before the next look. took is how long the last look took,
// and waited is how long the wait has lasted. So a test learns of the change late by at
// most a fiftieth of its wait, or by ten times the length of a look.
func pause(took, waited time.Duration) time.Duration {
	return min(max(2*time.Millisecond, 9*took, waited/50), 100*time.Millisecond)
}

// A Buffer can be read while it is written.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns what has been written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
