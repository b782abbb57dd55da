package attempt

import (
	"context"
	"sync"
	"time"

	"multihost/internal/follow"
	"multihost/internal/stage"
	"multihost/internal/tpu"
	"multihost/internal/workers"
)

// A vigil watches the slices of a run during the preparation of their workers. Without it,
// the run would wait for a worker that is gone as long as for a slow one.
type vigil struct {
	mu   sync.Mutex
	gone map[string]bool // names of slices
	done chan struct{}
}

// keepVigil returns a context that ends when a slice of the run is gone or was taken away,
// according to the API. The cause names the slice. The function over ends the vigil.
func keepVigil(ctx context.Context, d *workers.Reach, t *workers.Connected) (_ context.Context, v *vigil, over func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	v = &vigil{gone: map[string]bool{}, done: make(chan struct{})}
	go func() {
		defer close(v.done)
		for stage.Sleep(ctx, d.Clock, follow.OutageLook) == nil {
			nodes, err := d.Cloud.Slices(ctx)
			if err != nil {
				continue // the API is unavailable, and the workers may exist
			}
			if why := v.look(nodes, t.Slices); why != "" {
				cancel(&stage.Error{Stage: stage.Connect, Text: why, Lost: true})
			}
		}
	}()
	return ctx, v, func() {
		cancel(nil)
		<-v.done
	}
}

// glance starts to read the slices. why waits for the read, and says why the command must
// not start, or returns "". If the API takes longer than glanceLimit, why returns "". over
// ends the read and waits for that.
func (v *vigil) glance(ctx context.Context, d *workers.Reach, t *workers.Connected) (why func() string, over func()) {
	ctx, cancel := context.WithTimeout(ctx, glanceLimit)
	text, done := "", make(chan struct{})
	go func() {
		defer close(done)
		if nodes, err := d.Cloud.Slices(ctx); err == nil {
			text = v.look(nodes, t.Slices)
		}
	}()
	return func() string { <-done; return text }, func() { cancel(); <-done }
}

// glanceLimit is longer than the API normally takes to list slices. A start does not wait
// longer for an API that is slow.
const glanceLimit = 2 * time.Second

// look records the slices that are gone. It says why the first of them is gone, and returns
// "" if none is.
func (v *vigil) look(nodes, all []tpu.Slice) (why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range all {
		if text := follow.LostSlice(nodes, s); text != "" {
			v.gone[s.Name] = true
			if why == "" {
				why = text
			}
		}
	}
	return why
}

// isGone reports whether the slice is gone.
func (v *vigil) isGone(slice string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.gone[slice]
}
