package detach

import (
	"testing"

	"multihost/internal/tpu"
)

// Nothing but a worker's own word of its log is taken for one.
func TestParseUnsent(t *testing.T) {
	t.Parallel()
	if attempt, id, ok := parseUnsent("control/unsent-12-s1w3"); attempt != 12 || id != (tpu.WorkerID{Slice: 1, Worker: 3}) || !ok {
		t.Errorf("got %d, %s, %v", attempt, id, ok)
	}
	for _, name := range []string{"control/stop", "control/attempt", "control/failed-1", "control/unsent-", "control/unsent-1", "control/unsent-1-", "control/unsent-x-s0w0", "unsent-1-s0w0"} {
		if _, _, ok := parseUnsent(name); ok {
			t.Errorf("%q is taken for one", name)
		}
	}
}
