package wire

import (
	"errors"
	"net/http"
)

// An Answer is the result of a handler: JSON, raw bytes with a code, or an error.
type Answer struct {
	JSON []byte
	Err  *Error

	Raw    []byte
	Header http.Header
	Code   int // 0: 200 with json
}

// AsAPIError returns err as an answer, with status 500 unless it is an *Error.
func AsAPIError(err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	return Errorf(http.StatusInternalServerError, "An internal error has occurred: %v", err)
}
