package overssh

import (
	"context"
	"time"

	"multihost/internal/gcp"
	"multihost/internal/provision"
	"multihost/internal/tpu"
)

// A roster caches the API's last answer about all slices. After an outage, all workers are
// dialled again at the same time, and share one list call.
type roster struct {
	turn  chan struct{} // whoever asks the API or reads the answer holds it
	at    time.Time     // when the API was asked
	slice map[string]tpu.Slice
	err   error
}

// rosterAge is how long an answer is valid. A VM that reboots with another address is
// dialled again for minutes, so an old answer does no harm.
const rosterAge = 5 * time.Second

func newRoster() *roster { return &roster{turn: make(chan struct{}, 1)} }

// lookUp returns a slice from the API's answer, which is at most rosterAge old. It returns
// false if the slice does not exist or the API does not answer.
func (r *roster) lookUp(ctx context.Context, cloud provision.Provider, clock gcp.Clock, name string) (tpu.Slice, bool) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return tpu.Slice{}, false
	}
	defer func() { <-r.turn }()
	if r.at.IsZero() || clock.Now().Sub(r.at) >= rosterAge {
		all, err := cloud.Slices(ctx)
		if ctx.Err() != nil {
			return tpu.Slice{}, false // the next caller asks
		}
		r.at, r.err, r.slice = clock.Now(), err, make(map[string]tpu.Slice, len(all))
		for _, s := range all {
			r.slice[s.Name] = s
		}
	}
	s, ok := r.slice[name]
	return s, ok && r.err == nil
}
