package remote

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"multihost/internal/event"
	"multihost/internal/tpu"
)

// A Dialer opens connections to workers. It knows how workers are reached and how the
// user's key gets there. Its methods are safe for concurrent use.
type Dialer interface {
	// Dial tries all workers of r at once and returns when each of them is connected or
	// given up. An error means that no worker could be tried, or that ctx has ended. The
	// caller closes the result.
	Dial(ctx context.Context, r Request) (*Dialed, error)

	// Way is the kind of address by which Dial reaches the workers of the slices, or ""
	// if there is only one. sink is told why, if the user has left the choice open.
	Way(ctx context.Context, all []tpu.Slice, sink event.Sink) string
}

// A Request says which workers to connect to. All fields but Admit and ReadOnly are
// required.
type Request struct {
	Slices  []tpu.Slice
	Workers []tpu.WorkerID // workers of Slices

	// Admit makes sure first that the workers let the user in. Without it the Dialer does
	// that only after a worker has refused the user.
	Admit bool

	// RetryFor is how long a worker that does not answer is tried again.
	RetryFor time.Duration

	// ReadOnly makes connections that run only commands which change nothing. Dial itself
	// then changes nothing either.
	ReadOnly bool

	Sink event.Sink // receives progress and notes
}

// Dialed are the connections that a Dialer has opened, in the order of Request.Workers.
type Dialed struct {
	Conns []Conn  // never nil; a Conn to a worker that was not reached connects at its next use
	Errs  []error // why a worker was not reached; nil if it was reached

	Close func() // closes all Conns and returns when that is done
}

// Greet runs a first command on every worker that was reached. This measures the clocks.
// It also finds logins that accept us but run nothing, before anything is done on any
// worker. A failure becomes the worker's error. Greet calls ended, if not nil, when it is
// done with worker i. These calls may run at the same time.
func (d *Dialed) Greet(ctx context.Context, ended func(i int)) {
	var wg sync.WaitGroup
	for i, c := range d.Conns {
		if d.Errs[i] != nil {
			continue
		}
		wg.Go(func() {
			d.Errs[i] = Again(ctx, nil, func() error {
				_, err := c.MeasureClock(ctx)
				return err
			})
			if ended != nil {
				ended(i)
			}
		})
	}
	wg.Wait()
}

// mostTries is how often a step is tried if the connection breaks during it.
const mostTries = 3

// Again runs an idempotent f again when the connection breaks while it runs, and when it
// fails with ErrProgramGone. It runs f at most three times. Before each retry because the
// connection broke, it calls tell, if not nil.
func Again(ctx context.Context, tell func(error), f func() error) error {
	for n := 1; ; n++ {
		err := f()
		lost := errors.Is(err, ErrConnectionLost)
		if n == mostTries || !lost && !errors.Is(err, ErrProgramGone) || ctx.Err() != nil {
			return err
		}
		if lost && tell != nil {
			tell(err)
		}
	}
}

// LostText returns why the connection was lost.
func LostText(err error) string {
	text := err.Error()
	if _, why, found := strings.Cut(text, ErrConnectionLost.Error()+": "); found {
		return why
	}
	return text
}
