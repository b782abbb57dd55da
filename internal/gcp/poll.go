package gcp

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	tpuapi "google.golang.org/api/tpu/v2alpha1"
)

// A Clock gives waits their time. Tests have clocks of their own.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

// SystemClock is the real clock.
var SystemClock Clock = systemClock{}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Backoff is a growing pause. It begins with First and gets Factor times longer each time,
// up to Max. Zero values mean First 100 ms, Max 5 s and Factor 1.5.
type Backoff struct {
	First, Max time.Duration
	Factor     float64
}

var defaultBackoff = Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second, Factor: 1.5}

// Or returns b, with other's values in fields that b does not set.
func (b Backoff) Or(other Backoff) Backoff {
	if b.First <= 0 {
		b.First = other.First
	}
	if b.Max <= 0 {
		b.Max = other.Max
	}
	if b.Factor < 1 {
		b.Factor = other.Factor
	}
	return b
}

// next returns the pause that follows a pause of d.
func (b Backoff) next(d time.Duration) time.Duration {
	return min(time.Duration(float64(d)*b.Factor), b.Max)
}

// Poll calls check at once and then after each pause of policy, until check is done
// or fails. When ctx ends, Poll returns its cause and does not call check again. A
// nil clock means SystemClock.
func Poll(ctx context.Context, clock Clock, policy Backoff, check func(ctx context.Context) (done bool, err error)) error {
	if clock == nil {
		clock = SystemClock
	}
	policy = policy.Or(defaultBackoff)
	for pause := min(policy.First, policy.Max); ; pause = policy.next(pause) {
		if ctx.Err() != nil {
			return stoppedBy(ctx)
		}
		if done, err := check(ctx); done || err != nil {
			return err
		}
		if err := Sleep(ctx, clock, pause); err != nil {
			return err
		}
	}
}

// Sleep waits for d on clock. If ctx ends first, it returns the cause.
func Sleep(ctx context.Context, clock Clock, d time.Duration) error {
	select {
	case <-clock.After(d):
		return nil
	case <-ctx.Done():
		return stoppedBy(ctx)
	}
}

// stoppedBy returns the error of an ended context. It has the text of the cause. It matches
// the cause, and context.Canceled or DeadlineExceeded.
func stoppedBy(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == ctx.Err() {
		return cause
	}
	return &stopped{cause: cause, err: ctx.Err()}
}

type stopped struct{ cause, err error }

func (s *stopped) Error() string   { return s.cause.Error() }
func (s *stopped) Unwrap() []error { return []error{s.cause, s.err} }

// WaitTPU polls a long-running operation of the TPU API until it is done, and returns it.
// If the operation fails, the error is an *OperationError. The parameter what describes the
// work in errors: `create queued resource "q7"`. Only ctx limits the wait.
func (c *Client) WaitTPU(ctx context.Context, op *tpuapi.Operation, what string) (*tpuapi.Operation, error) {
	svc, err := c.TPU(ctx)
	if err != nil {
		return nil, err
	}
	asked := false
	err = Poll(ctx, c.cfg.Clock, Backoff{}, func(ctx context.Context) (bool, error) {
		// op may already be done.
		if !asked {
			asked = true
			return op.Done, nil
		}
		name := op.Name
		err := c.Do(ctx, what, func(ctx context.Context) error {
			got, err := svc.Projects.Locations.Operations.Get(name).Context(ctx).Do()
			if err == nil {
				op = got
			}
			return err
		})
		return op.Done, err
	})
	if err != nil {
		return nil, prefix(what, err)
	}
	if op.Error != nil {
		return op, fmt.Errorf("%s: %w", what, tpuOperationError(op))
	}
	return op, nil
}

func tpuOperationError(op *tpuapi.Operation) *OperationError {
	var meta struct {
		Target string `json:"target"`
	}
	// Metadata only has the name of the target. Without it, the error is still returned.
	_ = json.Unmarshal(op.Metadata, &meta)
	e := &OperationError{
		Code:    int(op.Error.Code),
		Status:  rpcName(int(op.Error.Code)),
		Message: oneLine(op.Error.Message),
		Target:  meta.Target,
	}
	var details []any
	for _, raw := range op.Error.Details {
		var d any
		if json.Unmarshal(raw, &d) == nil {
			details = append(details, d)
		}
	}
	e.Reason, e.Message = readDetails(details, e.Message)
	return e
}
