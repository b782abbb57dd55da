package gcp

import (
	"fmt"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
)

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
