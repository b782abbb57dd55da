package testkit

import (
	"context"
	"fmt"

	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// WorkerIDs returns the ids of all workers of this number of slices, with this number of
// workers each.
func WorkerIDs(slices, workers int) (all []tpu.WorkerID) {
	for s := range slices {
		for w := range workers {
			all = append(all, tpu.WorkerID{Slice: s, Worker: w})
		}
	}
	return all
}

// ReadySlice returns a ready slice with that many workers. Its UID is its name.
func ReadySlice(name string, workers int) tpu.Slice {
	return tpu.Slice{Name: name, UID: name, State: "READY", Condition: tpu.Usable, Type: fmt.Sprintf("v4-%d", 8*workers), Workers: make([]tpu.Worker, workers)}
}

// FixedSlices answers a list of slices with Err, or with All. It answers no other call.
type FixedSlices struct {
	provision.Provider
	All []tpu.Slice
	Err error
}

// Slices implements provision.Provider.
func (f *FixedSlices) Slices(context.Context) ([]tpu.Slice, error) { return f.All, f.Err }
