package job

import (
	"context"

	"multihost/internal/remote"
	"multihost/internal/sshfan"
	"multihost/internal/tpu"
)

// A Visit holds connections to workers for a look at them. The caller must Close it.
type Visit struct {
	Way     Way // by which address the workers were reached
	Workers []Visited

	fleet *sshfan.Fleet
}

// Visited is one worker of a Visit.
type Visited struct {
	ID   tpu.WorkerID
	Conn remote.Conn // nil if Err is not nil
	Err  error
}

// Visit connects to the workers of sel that only accepts; nil accepts all. Errors of
// single workers are in the result, which has the order of sel.
func (d *Deps) Visit(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool) (*Visit, error) {
	t, failed, err := d.dial(ctx, sel, only, true)
	if err != nil {
		return nil, err
	}
	v := &Visit{Way: d.way(ctx, sel), fleet: t.fleet}
	conns := map[tpu.WorkerID]remote.Conn{}
	for i, id := range t.ids {
		conns[id] = t.conns[i]
	}
	for _, id := range sel.Workers() {
		if only == nil || only(id) {
			v.Workers = append(v.Workers, Visited{ID: id, Conn: conns[id], Err: failed[id]})
		}
	}
	return v, nil
}

// Close ends the connections.
func (v *Visit) Close() { v.fleet.Close() }
