package renewal

import (
	"testing"
	"time"

	"multihost/internal/agent/program"
	"multihost/internal/lease"
	"multihost/internal/tpu"
)

// A worker with a full disk has no watch. The guard needs no disk: the slices have it from
// their boot on.
func TestWhoDeletesWhereNoWatchRuns(t *testing.T) {
	t.Parallel()
	ours := tpu.Slice{Metadata: lease.Terms{Run: "m", Lease: time.Hour}.Metadata(program.Set{}, nil)}
	for want, s := range map[string]tpu.Slice{
		"s0w1: no watch runs there: no space left on device; if this machine dies, the guard in the startup script deletes queued resource m in its place": ours,
		"s0w1: nobody there will delete queued resource m if this machine dies: no space left on device":                                                   {},
	} {
		if got := unwatched("s0w1", "queued resource m", "no space left on device", s); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
