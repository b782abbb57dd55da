package gcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// ReadCompute reads the resource of Compute Engine at path, "projects/P/zones/Z/…", into m.
// what is for errors: "read reservation \"r\"". Use it for kinds of resources that are only
// read one by one: Google's client for a kind would add all of its calls to the program.
func (c *Client) ReadCompute(ctx context.Context, what, path string, m proto.Message) error {
	roots, err := c.Roots()
	if err != nil {
		return err
	}
	return c.Do(ctx, what, func(ctx context.Context) error {
		body, err := c.getBody(ctx, roots.Compute+"/compute/v1/"+path, http.Header{})
		if err != nil {
			return err
		}
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, m)
	})
}

// ComputeError returns the failure of an operation of Compute Engine that is done, or nil.
func ComputeError(op *computepb.Operation) *OperationError {
	list := op.GetError().GetErrors()
	code := int(op.GetHttpErrorStatusCode())
	if len(list) == 0 && code < 400 {
		return nil
	}
	e := &OperationError{Code: code, Target: BaseName(op.GetTargetLink()), Message: op.GetHttpErrorMessage()}
	var messages []string
	for _, item := range list {
		if e.Status == "" {
			e.Status = item.GetCode()
		}
		messages = append(messages, oneLine(item.GetMessage()))
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
