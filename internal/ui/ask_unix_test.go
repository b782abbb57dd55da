//go:build unix

package ui

import (
	"context"
	"os"
	"testing"
)

// A new question ignores what the user typed before it.
func TestWhatWasTypedBeforeIsDropped(t *testing.T) {
	t.Parallel()
	keyboard, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	defer typed.Close()
	fd := int(keyboard.Fd())
	dropTyped(fd) // nothing to drop, so this must not wait
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
