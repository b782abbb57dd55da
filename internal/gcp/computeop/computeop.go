// Package computeop reads failures from operations of Compute Engine. It is separate from
// gcp, because Google's types of Compute Engine make a program half as large again.
package computeop

import (
	"fmt"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"

	"multihost/internal/gcp"
)

// OperationError returns the failure of an operation that is done, or nil.
func OperationError(op *computepb.Operation) *gcp.OperationError {
	list := op.GetError().GetErrors()
	code := int(op.GetHttpErrorStatusCode())
	if len(list) == 0 && code < 400 {
		return nil
	}
	e := &gcp.OperationError{Code: code, Target: gcp.BaseName(op.GetTargetLink()), Message: op.GetHttpErrorMessage()}
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
