// Package testkit has code that the tests of several packages share.
package testkit

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// leakPatience limits how long goroutines may take to end after a test. It is long, because
// machines may be slow.
const leakPatience = time.Minute

// NoLeaks fails t if a goroutine of the test still runs when the test ends. It prints the
// stack of each. Call it first, so that it checks last, after the test's cleanups. The test
// cannot run in parallel with others, because NoLeaks would report their goroutines.
func NoLeaks(t testing.TB) {
	t.Helper()
	before := goroutines()
	t.Cleanup(func() {
		for _, stack := range leaked(before, leakPatience) {
			t.Errorf("goroutine still runs after the test:\n%s", stack)
		}
	})
}

// leaked returns the goroutines that are not in the map before and do not end within patience.
func leaked(before map[string]string, patience time.Duration) map[string]string {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		left := goroutines()
		for id := range before {
			delete(left, id)
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-again.C:
		case <-deadline.C:
			return left
		}
	}
}

// goroutines returns the stacks of all goroutines by id, except the caller's and package
// testing's.
func goroutines() map[string]string {
	stacks := make(map[string]string)
	for i, stack := range strings.Split(allStacks(), "\n\n") {
		id, _, ok := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		if !ok || i == 0 || ofTesting(stack) {
			continue
		}
		stacks[id] = stack
	}
	return stacks
}

func ofTesting(stack string) bool {
	for _, mark := range []string{
		"testing.(*T).Run(", "testing.(*M).", "testing.runFuzz", "testing.tRunner.func", "testing.(*B).run",
		"runtime.goexit0", "os/signal.signal_recv", "os/signal.loop", "runtime/trace.Start",
	} {
		if strings.Contains(stack, mark) {
			return true
		}
	}
	return false
}

func allStacks() string {
	buf := make([]byte, 1<<16)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			return string(buf[:n])
		}
		buf = make([]byte, 2*len(buf))
	}
}
