//go:build unix

package ui

import (
	"context"
	"os"
	"testing"
)

// A question replaces another one. What the user typed before it is not an answer to it.
func TestWhatWasTypedBeforeIsDropped(t *testing.T) {
	t.Parallel()
	keyboard, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	defer typed.Close()
	fd := int(keyboard.Fd())
	dropTyped(fd) // there is nothing to drop, so this does not wait
	for _, keys := range []string{"ss", "c"} {
		if _, err := typed.WriteString(keys); err != nil {
			t.Fatal(err)
		}
		if keys == "ss" {
			dropTyped(fd)
		}
	}
	if key, err := readKey(context.Background(), fd, "sc"); err != nil || key != 'c' {
		t.Errorf("read %q, %v", key, err)
	}
}
