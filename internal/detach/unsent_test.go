package detach

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	storage "google.golang.org/api/storage/v1"

	"multihost/internal/tpu"
)

// A worker can report only about its own log.
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

func TestWhatNamesOfObjectsTell(t *testing.T) {
	t.Parallel()
	l := &listing{ends: map[int]map[tpu.WorkerID]string{}, unsent: map[int][]tpu.WorkerID{}}
	for _, name := range []string{
		"workers/s0w0", "workers/s0w1", "ended/1/s0w0.0", "ended/2/s0w0.0", "ended/2/s0w1.143", "ended/x/s0w0.0", "ended/3/nobody.0", "ended/3",
		"control/attempt", "control/unsent-2-s0w1", "control/unsent-2", "logs/2/s0w0",
	} {
		l.add(name, &storage.Object{Name: "jobs/r/" + name})
	}
	w0, w1 := tpu.WorkerID{}, tpu.WorkerID{Worker: 1}
	ends := map[int]map[tpu.WorkerID]string{
		1: {w0: "jobs/r/ended/1/s0w0.0"},
		2: {w0: "jobs/r/ended/2/s0w0.0", w1: "jobs/r/ended/2/s0w1.143"},
	}
	if diff := cmp.Diff(ends, l.ends); diff != "" {
		t.Errorf("ends: %s", diff)
	}
	if diff := cmp.Diff(map[int][]tpu.WorkerID{2: {w1}}, l.unsent); diff != "" {
		t.Errorf("unsent: %s", diff)
	}
	if len(l.workers) != 2 || l.begun != 2 || l.stop {
		t.Errorf("%d workers, begun %d, stop %v", len(l.workers), l.begun, l.stop)
	}
	if l.add("control/stop", &storage.Object{}); !l.stop {
		t.Error("a request to stop is not seen")
	}
}
