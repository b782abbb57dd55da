package workers

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"multihost/internal/event"
	"multihost/internal/gcp"
	"multihost/internal/remote"
	"multihost/internal/stage"
	"multihost/internal/testkit"
)

// Connections that break together cause one warning, although each error names its worker.
// Every worker tries its step again.
func TestConnectionsThatBreakTogetherAreOneWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		d := &Reach{Invocation: &stage.Invocation{Clock: gcp.SystemClock, Sink: event.SinkFunc(func(e event.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, e.(event.Note).Text)
		})}}
		tm := &Connected{IDs: testkit.WorkerIDs(2, 32)}
		var all sync.WaitGroup
		for i, id := range tm.IDs {
			all.Go(func() {
				n := 0
				err := remote.Again(t.Context(), d.Broke(t.Context(), tm, i, "preflight"), func() error {
					if n++; n == 1 {
						return fmt.Errorf("run on %s: %w: reset by peer", id, remote.ErrConnectionLost)
					}
					return nil
				})
				if err != nil || n != 2 {
					t.Errorf("%s: %d tries, %v", id, n, err)
				}
			})
		}
		all.Wait()
		const want = "s[0-1]w[0-31]: the connection broke during the preflight (reset by peer); trying again"
		if len(told) != 1 || told[0] != want {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}
