package testkit

import (
	"strings"
	"testing"
	"time"
)

func TestNoLeaksSeesALeak(t *testing.T) {
	before := goroutines()
	if left := leaked(before, leakPatience); len(left) != 0 {
		t.Fatalf("leaks where there are none: %v", left)
	}
	release, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		<-release
	}()
	left := leaked(before, 20*time.Millisecond)
	if len(left) != 1 {
		t.Fatalf("got %d leaks, want 1", len(left))
	}
	for _, stack := range left {
		if !strings.Contains(stack, "TestNoLeaksSeesALeak") {
			t.Errorf("stack does not tell where it comes from:\n%s", stack)
		}
	}
	close(release)
	<-ended
	if left := leaked(before, leakPatience); len(left) != 0 {
		t.Errorf("still %d leaks after the end", len(left))
	}
}
