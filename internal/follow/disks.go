package follow

import (
	"fmt"
	"sync"

	"multihost/internal/event"
	"multihost/internal/launch"
	"multihost/internal/stage"
	"multihost/internal/tpu"
)

// LowDisks gathers the workers with little free space. It reports them together in one
// line, and each worker only once. The zero value is ready for use. It is safe for
// concurrent use.
type LowDisks struct {
	mu    sync.Mutex
	known map[tpu.WorkerID]bool
	fresh []tpu.WorkerID // workers that are not yet reported
	least launch.Disk    // of the fresh workers
	on    tpu.WorkerID   // the worker with the least space
}

// Add notes a worker whose disk is low. It counts each worker once.
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

// What a disk with little free space is used for, and what happens when it is full.
const (
	OutputDisk = "where the output is kept; when less than a fiftieth is free, no more is kept, and the run goes on"
	TmpDisk    = "in /tmp; a command that writes there fails when it is full"
)

// Tell warns about the workers added since the last call, in one line. The parameter what
// names the use of the disk.
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
