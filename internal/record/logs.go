package record

import (
	"multihost/internal/tpu"
)

// IDs returns the workers of a recorded run.
func (r *Record) IDs() (ids []tpu.WorkerID) {
	for i, s := range r.Slices {
		for j := range s.Workers {
			ids = append(ids, tpu.WorkerID{Slice: i, Worker: j})
		}
	}
	return ids
}
