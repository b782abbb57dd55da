package wire

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"multihost/internal/fault"
)

// An Error is an answer without success. The TPU API uses Status and Details, the Compute
// API uses Reason.
type Error struct {
	Code       int
	Status     string // canonical code: INVALID_ARGUMENT
	Reason     string // compute's errors[].reason: notFound
	Message    string
	Details    []any
	RetryAfter time.Duration
	Plain      bool // the body has only the text
}

// Fault returns fault.Unavailable: the caller got no usable answer.
func (e *Error) Fault() fault.Kind { return fault.Unavailable }

func (e *Error) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Status, e.Message) }

// statuses maps HTTP codes to the canonical status and to compute's reason. Where several
// errors share a code, their constructors below set other values.
func statuses(code int) (status, reason string) {
	switch code {
	case http.StatusBadRequest:
		return "INVALID_ARGUMENT", "invalid"
	case http.StatusUnauthorized:
		return "UNAUTHENTICATED", "authError"
	case http.StatusForbidden:
		return "PERMISSION_DENIED", "forbidden"
	case http.StatusNotFound:
		return "NOT_FOUND", "notFound"
	case http.StatusConflict:
		return "ALREADY_EXISTS", "alreadyExists"
	case http.StatusPreconditionFailed:
		return "FAILED_PRECONDITION", "conditionNotMet"
	case http.StatusTooManyRequests:
		return "RESOURCE_EXHAUSTED", "rateLimitExceeded"
	case http.StatusNotImplemented:
		return "UNIMPLEMENTED", "notImplemented"
	case http.StatusServiceUnavailable:
		return "UNAVAILABLE", "backendError"
	case http.StatusRequestedRangeNotSatisfiable:
		return "OUT_OF_RANGE", "requestedRangeNotSatisfiable"
	case http.StatusGatewayTimeout:
		return "DEADLINE_EXCEEDED", "backendError"
	case http.StatusInternalServerError:
		return "INTERNAL", "backendError"
	}
	return "UNKNOWN", "unknown"
}

// RPCCode returns the number that operations have in place of the HTTP code.
func RPCCode(status string) int {
	for i, s := range []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
		"ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
		"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"} {
		if s == status {
			return i
		}
	}
	return 2
}

// Errorf returns the answer with an HTTP status and a message.
func Errorf(code int, format string, args ...any) *Error {
	status, reason := statuses(code)
	return &Error{Code: code, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// WithStatus sets the status of the TPU API.
func (e *Error) WithStatus(status string) *Error { e.Status = status; return e }

// WithReason sets the reason of the older APIs.
func (e *Error) WithReason(reason string) *Error { e.Reason = reason; return e }

// WithDetails sets the details of the TPU API.
func (e *Error) WithDetails(d ...any) *Error { e.Details = d; return e }

// BadField returns the TPU service's own error for a bad value, as opposed to that of the
// JSON layer before it. Google's support asks for its EID.
func BadField(field, format string, args ...any) *Error {
	text := fmt.Sprintf(format, args...)
	e := Errorf(http.StatusBadRequest, "Cloud TPU received a bad request. Field: %s Error: %s [EID: 0x%016x]", field, text, rand.Uint64())
	return e.WithDetails(map[string]any{
		"@type":           "type.googleapis.com/google.rpc.BadRequest",
		"fieldViolations": []any{map[string]any{"field": field, "description": text}},
	})
}

// Precondition is the answer to a request that does not fit the state of its resource.
func Precondition(format string, args ...any) *Error {
	text := fmt.Sprintf(format, args...)
	return Errorf(http.StatusBadRequest, "Cloud TPU received a bad request. %s [EID: 0x%016x]", text, rand.Uint64()).
		WithStatus("FAILED_PRECONDITION")
}

// NoSuch is the answer about a resource that does not exist.
func NoSuch(resource string) *Error {
	return Errorf(http.StatusNotFound, "Resource '%s' was not found", resource).WithDetails(map[string]any{
		"@type":        "type.googleapis.com/google.rpc.ResourceInfo",
		"resourceName": resource,
	})
}

// Exists is the answer to the creation of a resource that exists.
func Exists(resource string) *Error {
	return Errorf(http.StatusConflict, "Resource '%s' already exists", resource).WithDetails(map[string]any{
		"@type":        "type.googleapis.com/google.rpc.ResourceInfo",
		"resourceName": resource,
	})
}

// UnknownMethod is the answer to a method that the API does not have.
func UnknownMethod() *Error { return Errorf(http.StatusNotFound, "Method not found.") }

// NotModelled is the answer to a request that only the real API has.
func NotModelled(what string) *Error {
	return Errorf(http.StatusNotImplemented, "%s is not modelled by the simulator.", what)
}

// body renders e as the Compute API or the TPU API does.
func (e *Error) body(compute bool) []byte {
	inner := map[string]any{"code": e.Code, "message": e.Message}
	if compute {
		inner["errors"] = []any{map[string]any{"message": e.Message, "domain": "global", "reason": e.Reason}}
	} else {
		inner["status"] = e.Status
	}
	// The common front end of both APIs refuses credentials. Its errors have the status.
	if e.Code == http.StatusUnauthorized || e.Code >= 500 {
		inner["status"] = e.Status
	}
	if len(e.Details) > 0 {
		inner["details"] = e.Details
	}
	b, err := json.MarshalIndent(map[string]any{"error": inner}, "", "  ")
	if err != nil {
		panic(err) // cannot happen: there are only strings and numbers
	}
	return append(b, '\n')
}

// RPCStatus returns e as the error of a TPU operation or of failedData.
func (e *Error) RPCStatus() map[string]any {
	return map[string]any{"code": RPCCode(e.Status), "message": e.Message}
}

// WriteError sends e, in the form of Google's older APIs if compute is true.
func WriteError(w http.ResponseWriter, e *Error, compute bool) {
	kind, body := "application/json; charset=UTF-8", e.body(compute)
	if e.Plain {
		kind, body = "text/html; charset=UTF-8", []byte(e.Message)
	}
	if e.Code == http.StatusNotModified {
		body = nil
	}
	w.Header().Set("Content-Type", kind)
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(e.RetryAfter.Round(time.Second)/time.Second)))
	}
	if e.Code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="https://accounts.google.com/", error="invalid_token"`)
	}
	w.WriteHeader(e.Code)
	_, _ = w.Write(body) // an error means that the client has gone
}
