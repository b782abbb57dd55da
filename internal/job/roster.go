package job

import (
	"context"
	"time"

	"multihost/internal/tpu"
)

// A roster is what the API last said about all slices. Workers that are dialled
// again at the same time, after an outage all of them, share one list call.
type roster struct {
	turn  chan struct{} // held by who asks, or looks
	at    time.Time     // when it was asked
	slice map[string]tpu.Slice
	err   error
}

// rosterAge is how long an answer holds. A VM that reboots to another address is
// tried again for minutes.
const rosterAge = 5 * time.Second

func newRoster() *roster { return &roster{turn: make(chan struct{}, 1)} }

// lookUp returns a slice as the API has it now, or a little earlier; false says
// that it is not there or that the API does not answer.
func (r *roster) lookUp(ctx context.Context, d *Deps, name string) (tpu.Slice, bool) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return tpu.Slice{}, false
	}
	defer func() { <-r.turn }()
	if r.at.IsZero() || d.Clock.Now().Sub(r.at) >= rosterAge {
		all, err := d.Cloud.Slices(ctx)
		if ctx.Err() != nil {
			return tpu.Slice{}, false // the next one asks
		}
		r.at, r.err, r.slice = d.Clock.Now(), err, make(map[string]tpu.Slice, len(all))
		for _, s := range all {
			r.slice[s.Name] = s
		}
	}
	s, ok := r.slice[name]
	return s, ok && r.err == nil
}
