package network

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/google/uuid"

	"multihost/internal/event"
	"multihost/internal/gcp"
)

const (
	// operationLimit is how long one change may take. Creating an auto mode
	// network takes about 40 s, deleting it about 30 s.
	operationLimit = 10 * time.Minute
	// notReadyLimit is how long a change is retried because the network that it
	// needs is not ready yet.
	notReadyLimit = 2 * time.Minute
)

// sender sends a request that starts an operation. It is safe to repeat with
// the same requestID.
type sender func(ctx context.Context, requestID string) (*computepb.Operation, error)

// change sends a request and waits until its operation ends. Either may fail because
// the network is not ready yet. change then sends the request again with a new request
// id, because the old one stands for the operation that failed.
func (c *Client) change(ctx context.Context, what, name string, send sender) error {
	clock := c.gcp.Clock()
	start := clock.Now()
	return gcp.Poll(ctx, clock, gcp.Backoff{First: time.Second, Max: 10 * time.Second, Factor: 2}, func(ctx context.Context) (bool, error) {
		var op *computepb.Operation
		id := uuid.NewString()
		err := c.gcp.Do(ctx, what, func(ctx context.Context) (err error) {
			op, err = send(ctx, id)
			return err
		})
		if err == nil {
			err = c.wait(ctx, op, what, name, start)
		}
		if notReady(err) && clock.Now().Sub(start) < notReadyLimit {
			return false, nil
		}
		return true, err
	})
}

// wait polls a global operation until it is done. It does not use the client library's
// Wait, because that returns nil for a failed operation without httpErrorStatusCode,
// and its first pause is always one second.
func (c *Client) wait(ctx context.Context, op *computepb.Operation, what, name string, start time.Time) error {
	api, err := c.clients(ctx)
	if err != nil {
		return err
	}
	asked := false
	err = gcp.Poll(ctx, c.gcp.Clock(), gcp.Backoff{}, func(ctx context.Context) (bool, error) {
		if !asked {
			asked = true
			return op.GetStatus() == computepb.Operation_DONE, nil
		}
		err := c.gcp.Do(ctx, what, func(ctx context.Context) error {
			got, err := api.operations.Get(ctx, &computepb.GetGlobalOperationRequest{
				Project: c.gcp.Project(), Operation: op.GetName(),
			}, gcp.NoRetry())
			if err == nil {
				op = got
			}
			return err
		})
		if err != nil {
			return false, err
		}
		if op.GetStatus() == computepb.Operation_DONE {
			return true, nil
		}
		elapsed := c.gcp.Clock().Now().Sub(start)
		if elapsed > operationLimit {
			return false, &SlowOperationError{What: what, Operation: op.GetName(), Limit: operationLimit, project: c.gcp.Project()}
		}
		c.gcp.Sink().Emit(event.Progress{
			Phase: phase, Done: int(op.GetProgress()), Total: 100, Waiting: name,
			Detail: what, Elapsed: elapsed, Limit: operationLimit,
		})
		return false, nil
	})
	if err != nil {
		return err
	}
	if e := operationError(op); e != nil {
		return fmt.Errorf("%s: %w", what, e)
	}
	return nil
}

// operationError returns the failure of an operation that is done, or nil.
func operationError(op *computepb.Operation) *gcp.OperationError {
	list := op.GetError().GetErrors()
	code := int(op.GetHttpErrorStatusCode())
	if len(list) == 0 && code < 400 {
		return nil
	}
	e := &gcp.OperationError{Code: code, Target: lastPart(op.GetTargetLink()), Message: op.GetHttpErrorMessage()}
	var messages []string
	for _, item := range list {
		if e.Status == "" {
			e.Status = item.GetCode()
		}
		messages = append(messages, strings.Join(strings.Fields(item.GetMessage()), " "))
		for _, d := range item.GetErrorDetails() {
			if q := d.GetQuotaInfo(); q != nil && !strings.Contains(item.GetMessage(), "Limit:") {
				messages = append(messages, fmt.Sprintf("Quota '%s' exceeded. Limit: %g globally", q.GetLimitName(), q.GetLimit()))
			}
			if info := d.GetErrorInfo(); info != nil && e.Reason == "" {
				e.Reason = info.GetReason()
			}
		}
	}
	if len(messages) > 0 {
		e.Message = strings.Join(messages, "; ")
	}
	return e
}
