package job

import (
	"context"

	"multihost/internal/sshfan"
	"multihost/internal/tpu"
)

// A Visit is connections to workers for a look at them. Close it.
type Visit struct {
	Way     Way // by which address they were reached
	Workers []Visited

	fleet *sshfan.Fleet
}

// Visited is one worker of a Visit.
type Visited struct {
	ID   tpu.WorkerID
	Conn *sshfan.Conn // nil where Err is not
	Err  error
}

// Visit connects to those workers of sel that only likes; nil likes all. What
// fails for single workers is in the result. The order is that of sel.
func (d *Deps) Visit(ctx context.Context, sel tpu.Selection, only func(tpu.WorkerID) bool) (*Visit, error) {
	t, failed, err := d.dial(ctx, sel, only, true)
	if err != nil {
		return nil, err
	}
	v := &Visit{Way: d.way(ctx, sel), fleet: t.fleet}
	conns := map[tpu.WorkerID]*sshfan.Conn{}
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
