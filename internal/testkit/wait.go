package testkit

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Eventually waits until a condition holds. After two minutes it fails the test.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !Await(2*time.Minute, holds) {
		t.Fatalf("waited in vain for %s", what)
	}
}

// Await waits until a condition holds. It returns false after the limit. In a long wait, or if
// holds takes long, it calls holds less often, because the code under test needs the processor.
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

// pause returns the time until the next call of holds. took is the duration of the last call.
// waited is the duration of the whole wait so far.
func pause(took, waited time.Duration) time.Duration {
	return min(max(2*time.Millisecond, 9*took, waited/50), 100*time.Millisecond)
}

// A Buffer can be read during writes.
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

// String returns the text so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
