package follow

import (
	"fmt"
	"sync"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// LowDisks gathers workers with little free space. It reports each worker once, and several
// in one line. The zero value is ready for use. It is safe for concurrent use.
type LowDisks struct {
	mu    sync.Mutex
	known map[tpu.WorkerID]bool
	fresh []tpu.WorkerID // workers still to be reported
	least launch.Disk    // least free space of the fresh workers
	on    tpu.WorkerID   // worker with the least space
}

// Add notes a worker whose disk is low, once for each worker.
func (l *LowDisks) Add(id tpu.WorkerID, d launch.Disk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[id] {
		return
	}
	if l.known == nil {
		l.known = map[tpu.WorkerID]bool{}
	}
	l.known[id] = true
	if len(l.fresh) == 0 || d.Free < l.least.Free {
		l.least, l.on = d, id
	}
	l.fresh = append(l.fresh, id)
}

// Uses of a disk, and what happens when it is full.
const (
	OutputDisk = "where the output is kept; when less than a fiftieth is free, no more is kept, and the run goes on"
	TmpDisk    = "in /tmp; a command that writes there fails when it is full"
)

// Tell warns in one line of the workers added since the last call. The parameter what is
// one of the uses above.
func (l *LowDisks) Tell(sink event.Sink, what string) {
	l.mu.Lock()
	fresh, least, on := l.fresh, l.least, l.on
	l.fresh = nil
	l.mu.Unlock()
	if len(fresh) == 0 {
		return
	}
	much := fmt.Sprintf("%s (%.0f %%) is free", event.Bytes(least.Free), 100*float64(least.Free)/float64(least.Size))
	if len(fresh) > 1 {
		much = fmt.Sprintf("less than a tenth is free (on %s %s, %.0f %%)", on, event.Bytes(least.Free), 100*float64(least.Free)/float64(least.Size))
	}
	event.Notef(sink, event.Warn, stage.DiskCure, "%s: %s %s", tpu.Fold(fresh), much, what)
}
