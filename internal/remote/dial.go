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

// A Dialer opens connections to workers. It knows how to reach them and how the user's key
// gets to them. Its methods are safe for concurrent use.
type Dialer interface {
	// Dial tries all workers of r at once. It returns when each of them is connected or
	// given up. An error means that no worker could be tried, or that ctx has ended. The
	// caller closes the result.
	Dial(ctx context.Context, r Request) (*Dialed, error)

	// Way is the kind of address by which Dial reaches the workers of the slices, or "" if
	// there is only one kind. If the user has left the choice open, sink gets the reason
	// for it.
	Way(ctx context.Context, all []tpu.Slice, sink event.Sink) string
}

// A Request says to which workers to connect. All fields but Admit and ReadOnly are
// required.
type Request struct {
	Slices  []tpu.Slice
	Workers []tpu.WorkerID // workers of Slices

	// With Admit, the Dialer makes sure that the workers accept the user's key before it
	// connects. Otherwise it does that only after a worker has refused the user.
	Admit bool

	// RetryFor is how long the Dialer tries a worker that does not answer.
	RetryFor time.Duration

	// ReadOnly makes connections that run only commands which change nothing. Dial itself
	// then changes nothing either.
	ReadOnly bool

	Sink event.Sink // receives progress and notes
}

// Dialed are the connections that a Dialer has opened, in the order of Request.Workers.
type Dialed struct {
	Conns []Conn  // never nil; a Conn whose worker was not reached connects at its next use
	Errs  []error // why a worker was not reached, or nil

	Close func() // closes all Conns and returns when they are closed
}

// Greet runs a first command on every worker that was reached. This measures the clocks,
// and finds logins that accept us but cannot run a command, before anything is done on any
// worker. A failure becomes the worker's error. If ended is not nil, Greet calls it when it
// is done with worker i, for several workers at a time.
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

// mostTries limits the tries of a step during which the connection breaks.
const mostTries = 3

// Again calls f again if the connection breaks while f runs, or if f fails with
// ErrProgramGone. f must be idempotent. Again calls f at most three times. If the
// connection broke and tell is not nil, Again calls tell before it retries.
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
