package main

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"multihost/internal/event"
	"multihost/internal/sshkey"
	"multihost/internal/testkit"
)

// One worker of a job fails, so multihost stops the other one. Then nobody can read the end
// of the stopped worker's log. multihost deletes the slices if it can read the log in time,
// and keeps them otherwise.
func TestALogThatIsNotReadKeepsTheSlices(t *testing.T) {
	t.Parallel()
	identity, err := sshkey.Create(filepath.Join(t.TempDir(), "key"))
	testkit.Must(t, err)
	for _, row := range []struct {
		story  string
		inTime bool
		atMost time.Duration // the run ends within this time
	}{
		{"it can be read after a minute", true, 5 * time.Minute},
		{"it cannot be read at all", false, 25 * time.Minute},
	} {
		t.Run(row.story, func(t *testing.T) {
			t.Parallel()
			unread := make(chan struct{})
			release := sync.OnceFunc(func() { close(unread) })
			c := newCell(t, identity, "run", matrixFault{ends: true, slow: true, strike: func(c *cell) {
				for _, vm := range c.fleet.(*quickWorkers).all() {
					if vm.spec.Node == "m-0" {
						vm.fails(3)
						continue
					}
					vm.mu.Lock()
					vm.unread = unread
					vm.mu.Unlock()
				}
			}}, 4)
			c.told = func(n event.Note) {
				if row.inTime && strings.Contains(n.Text, "the end of the log of s1w0 cannot be read: waiting up to 10m for it (--log-timeout)") {
					release()
				}
			}
			testkit.Must(t, c.setUp())
			defer c.close()
			defer release()
			begin := c.clock.Now()
			status, log := c.runner()
			took := c.clock.Now().Sub(begin)
			stays := strings.Contains(log, "queued resource m stays (logs are whole on its workers only)")
			part := strings.Contains(log, "the log of s1w0 is not whole here: 0 bytes, of how many is not known")
			waited := took >= 10*time.Minute
			if status != 3 || took > row.atMost || stays == row.inTime || part == row.inTime || waited == row.inTime || (c.leftovers() != "") == row.inTime {
				t.Errorf("status %d after %s, left: %q\n%s", status, took, c.leftovers(), log)
			}
		})
	}
}
