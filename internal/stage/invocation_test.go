package stage_test

import (
	"strings"
	"testing"

	"multihost/internal/stage"
	"multihost/internal/testkit"
)

// During a long wait, Remind emits a message every minute.
func TestRemindSaysEveryMinuteWhatIsWaitedFor(t *testing.T) {
	t.Parallel()
	said := &testkit.Recorder{}
	v := &stage.Invocation{Sink: said, Clock: testkit.NewJumpClock()}
	v.Remind("workers are asked", func() {
		testkit.Eventually(t, "two reminders", func() bool { return len(said.Notes()) >= 2 })
	})
	for i, want := range []string{"1m: workers are asked", "2m: workers are asked"} {
		if n := said.Notes()[i]; !strings.Contains(n.Text, want) {
			t.Errorf("note %d: %q, want %q", i, n.Text, want)
		}
	}
}
