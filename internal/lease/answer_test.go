package lease

import (
	"context"
	"fmt"
	"testing"
	"time"

	"multihost/internal/remote"
)

// A speaker is a worker that answers each command with the same lines.
type speaker struct{ lines []string }

func (speaker) Name() string { return "s0w0" }

func (speaker) ClockOffset() time.Duration { return 0 }

func (s speaker) Run(_ context.Context, cmd remote.Cmd) (remote.Status, error) {
	nonce := cmd.Stdout.(*remote.Answer).Nonce
	for _, line := range s.lines {
		fmt.Fprintln(cmd.Stdout, nonce, line)
	}
	return remote.Status{}, nil
}

// A worker's answer may have lines without a visible word.
func TestALineOfSpaces(t *testing.T) {
	t.Parallel()
	const spaces, held = "\u2003 \u3000", "lease yes 60 0 5 never 0"
	for _, lines := range [][]string{{held, spaces}, {spaces, held}} {
		if h, err := Look(t.Context(), speaker{lines}, "", "train"); err != nil || !h.Watched {
			t.Errorf("%q: got %+v, %v", lines, h, err)
		}
	}
	if _, err := Look(t.Context(), speaker{[]string{spaces}}, "", "train"); err == nil {
		t.Error("no error without an answer")
	}
}
