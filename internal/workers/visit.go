package workers

import (
	"context"

	"multihost/internal/overssh"
	"multihost/internal/remote"
	"multihost/internal/tpu"
)

// A Visit holds connections to workers for a command that only looks at them. The caller
// must close it.
type Visit struct {
	Way     overssh.Way // by which address the workers were reached
	Workers []Visited

	close func()
}

// Visited is one worker of a Visit.
type Visited struct {
	ID   tpu.WorkerID
	Conn remote.Conn // nil if Err is not nil
	Err  error
}

// Visit connects to the workers of sel for which only returns true, or to all if only is
// nil. The result, in the order of sel, has errors of single workers.
func (d *Reach) Visit(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool) (*Visit, error) {
	t, err := d.DialAll(ctx, sel, only, true, d.Access.RetryFor)
	if err != nil {
		return nil, err
	}
	v := &Visit{Way: overssh.Way(d.Dialer.Way(ctx, sel.Slices, d.Sink)), close: t.Close}
	for i, id := range t.IDs {
		worker := Visited{ID: id, Conn: t.Conns[i]}
		if t.IsAway(i) {
			worker.Conn, worker.Err = nil, t.Away[i]
		}
		v.Workers = append(v.Workers, worker)
	}
	return v, nil
}

// Close ends the connections.
func (v *Visit) Close() { v.close() }
