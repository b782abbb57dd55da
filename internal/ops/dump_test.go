package ops

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"multihost/internal/launch"
	"multihost/internal/record"
	"multihost/internal/runs"
	"multihost/internal/testkit"
)

// If the command has ended on the workers that dump reaches, it may still run on the others.
func TestDumpDoesNotTakeTheEndOnSomeWorkersForTheEnd(t *testing.T) {
	t.Parallel()
	r := newRack(t, 2)
	d := runs.Deps{Reach: r.Reach, Keeper: r.Keeper}
	d.Access.RetryFor = 100 * time.Millisecond
	r.of[0].Start(t, launch.Spec{Run: "r", Attempt: 1, Owner: "ann@laptop", Slices: 1, Script: "exit 3"})
	all, err := d.Cloud.Slices(t.Context())
	testkit.Must(t, err)
	rec := &record.Record{Run: "r", Attempt: 1, Project: d.Project, Zone: d.Zone, Prefix: "t", Slices: record.SlicesOf(all), Workers: 2, LogDir: record.RecordDir(d.StateDir, "r", 1)}
	testkit.Must(t, rec.Save(d.StateDir))
	testkit.Eventually(t, "the end on a worker", func() bool {
		ends, _ := filepath.Glob(filepath.Join(r.of[0].Home, ".multihost/runs/r/1/exit"))
		return len(ends) > 0
	})
	r.of[1].Leave()
	err = Dump(t.Context(), d, "r", "")
	if err == nil || !strings.Contains(err.Error(), "s0w1") || strings.Contains(err.Error(), "exit code 3") {
		t.Errorf("got %v, said %v", err, r.said.Notes())
	}
}
